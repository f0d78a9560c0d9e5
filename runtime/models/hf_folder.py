"""A folder with Hugging Face's files: config.json, safetensors with or without an index, tokenizer files."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import safetensors
import torch

from palmette.errors import ModelError
from palmette.runtime.models.architecture import Parameter
from palmette.runtime.models.checkpoint import Checkpoint
from palmette.runtime.models.hf_config import architecture
from palmette.torch_later import dtype_name

log = logging.getLogger(__name__)

_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "o": "self_attn.o_proj.weight",
    "o_bias": "self_attn.o_proj.bias",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}
# With norms behind the blocks too, the names shift: "post attention" is what it says.
_LAYER_POST_NORMS = {
    **_LAYER,
    "post_attn_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}
_TOP = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}


def open_folder(folder: Path) -> Checkpoint:
    """The checkpoint in a folder."""
    config = read_json(folder / "config.json")
    if config is None:
        raise ModelError(f"{folder} has no config.json", hint="give the folder that the model was downloaded to")
    arch = architecture(config, folder / "config.json")
    source = SafetensorsSource(folder)
    table = _LAYER_POST_NORMS if arch.post_norms else _LAYER

    def name(parameter: Parameter) -> str:
        if parameter.layer < 0:
            return _TOP[parameter.name]
        return f"model.layers.{parameter.layer}.{table[parameter.name]}"

    def ignored(tensor: str) -> bool:
        # Old files keep the frequencies of the positions; with tied embeddings the output matrix is a second copy.
        return tensor.endswith("rotary_emb.inv_freq") or (arch.tied and tensor == _TOP["head"])

    def tokenizer() -> Any:
        from palmette.runtime.tokenizer import Tokenizer

        return Tokenizer.of_folder(folder, width=arch.vocab)

    return Checkpoint(arch, source, name, dtype_name(source.dtype()), tokenizer, str(folder), ignored=ignored)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no file; ModelError where it is no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}", hint="fetch the file again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object", hint="fetch the file again")
    return value


class SafetensorsSource:
    """Tensors of model.safetensors, or of the files that the index names (and no others); memory-mapped."""

    def __init__(self, folder: Path) -> None:
        index = read_json(folder / "model.safetensors.index.json")
        if index is not None:
            files = sorted(set(index.get("weight_map", {}).values()))
        elif (folder / "model.safetensors").is_file():
            files = ["model.safetensors"]
        else:
            raise ModelError(
                f"{folder} has no model.safetensors and no model.safetensors.index.json",
                hint="give a model in safetensors or GGUF; pickled weights (.bin, .pt) are not read",
            )
        stray = sorted({p.name for p in folder.glob("*.safetensors")} - set(files))
        if stray:
            log.warning("%s: not read, since not part of the model: %s", folder, ", ".join(stray))
        self._files: dict[str, Any] = {}
        self._where: dict[str, str] = {}
        for file in files:
            self._open(folder, file)
        if index is not None:
            self._check_index(folder, index["weight_map"])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(self._slice(name).get_shape()) for name in self._where}

    def dtype(self) -> torch.dtype:
        """The dtype of the embedding, which stands for all."""
        names = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        for name in (_TOP["embed"], *self._where):
            if name in self._where:
                stored = self._slice(name).get_dtype()
                if stored not in names:
                    raise ModelError(
                        f"tensor {name} is stored as {stored}, which cannot be read here",
                        hint="use a checkpoint in float32, float16 or bfloat16",
                    )
                return names[stored]
        raise ModelError("the safetensors files hold no tensors", hint="fetch the files again")

    def read(self, name: str, formats: Collection[str] = ()) -> torch.Tensor:
        # A copy: the map is closed when the model is loaded.
        tensor: torch.Tensor = self._files[self._where[name]].get_tensor(name)
        return tensor.clone()

    def close(self) -> None:
        for file in self._files.values():
            file.__exit__(None, None, None)
        self._files.clear()

    def _open(self, folder: Path, name: str) -> None:
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise ModelError(f"{folder}: the index names {name}, which is not there", hint="fetch the missing file")
        try:
            file = safetensors.safe_open(str(path), framework="pt")
            file.__enter__()
        except (safetensors.SafetensorError, OSError) as error:
            raise ModelError(f"{path} is no usable safetensors file: {error}", hint="fetch the file again") from error
        self._files[name] = file
        for tensor in file.keys():  # noqa: SIM118 - not a mapping
            if tensor in self._where:
                raise ModelError(f"tensor {tensor} is in both {self._where[tensor]} and {name}", hint="mend the index")
            self._where[tensor] = name

    def _check_index(self, folder: Path, weight_map: dict[str, str]) -> None:
        for tensor, file in weight_map.items():
            if self._where.get(tensor) != file:
                raise ModelError(
                    f"{folder}: by the index {file} holds {tensor}, but it does not", hint="fetch the files again"
                )

    def _slice(self, name: str) -> Any:
        return self._files[self._where[name]].get_slice(name)
