"""GGUF metadata to an architecture, and GGUF's tensor names and layouts to ours."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from palmette.errors import ModelError
from palmette.kernels.blocks import Blocks, Stored
from palmette.runtime.models.architecture import Architecture, LayerKind, Parameter, Rope
from palmette.runtime.models.checkpoint import Checkpoint, as_stored
from palmette.runtime.models.gguf_file import GgufFile

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")

_NAMES = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "o": "attn_output.weight",
    "o_bias": "attn_output.bias",
    "post_attn_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "gate_bias": "ffn_gate.bias",
    "up_bias": "ffn_up.bias",
    "down_bias": "ffn_down.bias",
    "post_mlp_norm": "post_ffw_norm.weight",
}
_TOP = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
# What the families above may not have; with any of these the model is another one.
_FOREIGN = ("expert_count", "attention.causal", "pooling_type", "logit_scale", "residual_scale", "embedding_scale")


def tensor_name(parameter: Parameter) -> str:
    """GGUF's name of a parameter."""
    if parameter.layer < 0:
        return _TOP[parameter.name]
    return f"blk.{parameter.layer}.{_NAMES[parameter.name]}"


def open_gguf(path: Path) -> Checkpoint:
    """The checkpoint in a GGUF file."""
    file = GgufFile(path)
    try:
        arch = architecture(file)
        file.check_types()
    except ModelError:
        file.close()
        raise

    def tokenizer() -> Any:
        from palmette.runtime.tokenizer import Tokenizer
        from palmette.runtime.tokenizer_gguf import gguf_parts

        return Tokenizer(gguf_parts(file.metadata, name=path.stem), width=arch.vocab)

    def restore(parameter: Parameter, tensor: Stored) -> Stored:
        if parameter.name in ("q", "q_bias"):
            return _halves(tensor, arch.heads)
        return _halves(tensor, arch.kv_heads) if parameter.name in ("k", "k_bias") else tensor

    return Checkpoint(
        arch,
        _Source(file),
        tensor_name,
        file.plain_dtype(),
        tokenizer,
        str(path),
        ignored=lambda name: name == "rope_freqs.weight",
        restore=restore if arch.family == "llama" else as_stored,
    )


def architecture(file: GgufFile) -> Architecture:
    """The record of a GGUF file's metadata. ModelError where it is of a family that is not known here."""
    meta = file.metadata
    family = meta.get("general.architecture")
    if family not in FAMILIES:
        raise ModelError(
            f"{file.path}: architecture {family!r} is not known here", hint="known are: " + ", ".join(FAMILIES)
        )

    def get(key: str, default: Any = None) -> Any:
        value = meta.get(f"{family}.{key}", default)
        if value is None:
            raise ModelError(
                f"{file.path}: the metadata lack {family}.{key}", hint="convert the model anew with a current converter"
            )
        return value

    for key in _FOREIGN:
        if meta.get(f"{family}.{key}"):
            raise ModelError(
                f"{file.path}: {family}.{key} is set; such a model is not known here",
                hint="use a plain dense decoder of the families " + ", ".join(FAMILIES),
            )
    heads, hidden = get("attention.head_count"), get("embedding_length")
    kv_heads = get("attention.head_count_kv", heads)
    if isinstance(heads, list) or isinstance(kv_heads, list):
        raise ModelError(f"{file.path}: head counts differ from layer to layer", hint="use another model")
    head_dim = get("attention.key_length", hidden // heads)
    embedding = file.tensors.get("token_embd.weight")
    vocab = embedding.shape[0] if embedding else len(meta.get("tokenizer.ggml.tokens", ()))
    gemma = family == "gemma3"
    return Architecture(
        family=family,
        hidden=hidden,
        intermediate=get("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        max_context=get("context_length"),
        layers=_layers(file, family, head_dim),
        norm_eps=get("attention.layer_norm_rms_epsilon", 1e-6 if gemma else 1e-5),
        attention_scale=meta.get(f"{family}.attention.scale", 0.0),
        activation="gelu_tanh" if gemma else "silu",
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        post_norms=gemma,
        embed_scale=hidden**0.5 if gemma else 1.0,
        logit_softcap=meta.get(f"{family}.final_logit_softcapping", 0.0),
        # GGUF says nothing of tying: without an output matrix the embedding is it.
        tied="output.weight" not in file.tensors,
    )


def _layers(file: GgufFile, family: str, head_dim: int) -> tuple[LayerKind, ...]:
    meta = file.metadata
    count = meta.get(f"{family}.block_count", 0)
    scaling = meta.get(f"{family}.rope.scaling.type", "none") or "none"
    # Older files give only the linear factor.
    factor = meta.get(f"{family}.rope.scaling.factor", meta.get(f"{family}.rope.scale_linear", 1.0)) or 1.0
    if scaling == "none" and factor != 1.0 and f"{family}.rope.scale_linear" in meta:
        scaling = "linear"
    if scaling not in ("none", "linear"):
        raise ModelError(f"{file.path}: rope scaling {scaling!r} is not known here", hint="known are: none, linear")
    divisors = None
    if "rope_freqs.weight" in file.tensors:
        found = file.read("rope_freqs.weight")
        divisors = tuple((found if isinstance(found, np.ndarray) else found.float()).tolist())
    rope = Rope(
        theta=meta.get(f"{family}.rope.freq_base", 1e6 if family == "gemma3" else 10000.0),
        dim=meta.get(f"{family}.rope.dimension_count", head_dim),
        scaling="linear" if scaling == "linear" and factor != 1.0 else "none",
        factor=factor if scaling == "linear" else 1.0,
        divisors=divisors,
    )
    window = meta.get(f"{family}.attention.sliding_window", 0)
    if family == "gemma3" and window:
        # Five windowed layers, then one that sees all; the windowed ones turn at the shorter wavelength, unscaled.
        local = LayerKind(Rope(theta=meta.get(f"{family}.rope.freq_base_swa", 10000.0), dim=rope.dim), window)
        return tuple(LayerKind(rope) if (i + 1) % 6 == 0 else local for i in range(count))
    return (LayerKind(rope, window),) * count


def _halves(tensor: Stored, heads: int) -> Stored:
    """Rows of Llama's q and k from pairs that lie side by side, as GGUF has them, to pairs that lie half a head apart,
    as `rope` turns them."""
    if isinstance(tensor, Blocks):
        rows = _halves(np.arange(len(tensor.data)), heads)
        assert isinstance(rows, np.ndarray)
        return tensor.take(rows)
    rest = tensor.shape[1:]
    return tensor.reshape(heads, -1, 2, *rest).swapaxes(1, 2).reshape(tensor.shape)


class _Source:
    """A GgufFile as a TensorSource."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: info.shape for name, info in self._file.tensors.items()}

    def read(self, name: str, formats: Collection[str] = ()) -> Stored:
        return self._file.read(name, formats)

    def close(self) -> None:
        self._file.close()
