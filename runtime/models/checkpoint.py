"""What a model's files hold, whichever format: its architecture, its tensors under our names, its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from palmette.errors import ModelError
from palmette.kernels.blocks import Blocks, Stored, layout, quantize
from palmette.runtime.models.architecture import Architecture, Parameter, parameters
from palmette.torch_later import torch

if TYPE_CHECKING:
    from palmette.runtime.models.lower import Fetch
    from palmette.runtime.models.model import Progress
    from palmette.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Form:
    """How weights are held: in `dtype`, but matrices that are stored in one of the block `formats` as they are.
    quantization: the format that all other matrices are brought into whose rows are whole blocks; embedding and head
    keep eight bits, since fewer cost far more there than in the layers."""

    dtype: str
    formats: Collection[str] = ()
    quantization: str | None = None

    def of(self, parameter: Parameter, weight: Stored, device: str) -> Stored:
        """A weight as the files have it, in this form."""
        if isinstance(weight, Blocks):
            return weight
        format = "Q8_0" if self.quantization and parameter.name in ("embed", "head") else self.quantization
        if isinstance(weight, np.ndarray):
            if self.dtype == "float32":
                return weight
            weight = torch.from_numpy(weight)
        if format is not None and weight.dim() == 2 and weight.shape[1] % layout(format).weights == 0:
            return quantize(weight, format)
        return weight.to(device=device, dtype=getattr(torch, self.dtype)).contiguous()


class TensorSource(Protocol):
    """Tensors by the names that the files give them."""

    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def read(self, name: str, formats: Collection[str] = ()) -> Stored:
        """A tensor, or blocks where it is stored in one of these formats."""
        ...

    def close(self) -> None: ...


def as_stored(parameter: Parameter, tensor: Stored) -> Stored:
    """The tensor as the files have it."""
    return tensor


@dataclass(frozen=True, slots=True)
class Checkpoint(AbstractContextManager["Checkpoint"]):
    """Files that were opened and found complete: every tensor that the architecture needs is there in the right shape,
    and none is left over. A context manager: it holds memory maps.

    names: parameter -> its name in the files. restore: undoes what the format did to a tensor. stored_dtype: None where
    the weights are quantised.
    """

    arch: Architecture
    source: TensorSource
    names: Callable[[Parameter], str]
    stored_dtype: str | None
    tokenizer: Callable[[], Tokenizer]
    where: str
    ignored: Callable[[str], bool] = field(default=lambda name: False)
    restore: Callable[[Parameter, Stored], Stored] = as_stored

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.source.close()

    def check(self) -> None:
        """ModelError that names every missing, left-over and misshapen tensor; reads none."""
        shapes = self.source.shapes()
        needed = {self.names(p): p for p in parameters(self.arch)}
        missing = [name for name in needed if name not in shapes]
        unused = [name for name in shapes if name not in needed and not self.ignored(name)]
        wrong = [
            f"{name} is {list(shapes[name])}, not {list(p.shape)}"
            for name, p in needed.items()
            if name in shapes and tuple(shapes[name]) != p.shape
        ]
        if not (missing or unused or wrong):
            return
        parts = []
        if missing:
            parts.append(f"missing {_few(missing)}")
        if unused:
            parts.append(f"not used {_few(unused)}")
        if wrong:
            parts.append(f"of the wrong shape {_few(wrong)}")
        hint = "the files do not fit the config, or belong to a kind of model that palmette does not know"
        if missing == [self.names(Parameter("head", ()))] and not unused:
            hint = "the output matrix may be the embedding: then tie_word_embeddings in config.json must be true"
        raise ModelError(f"{self.where} ({self.arch.family}): tensors " + "; ".join(parts), hint=hint)

    def fetcher(self, form: Form, device: str, progress: Progress | None = None) -> Fetch:
        """A function that reads a weight in this form on this device."""
        table = {(p.name, p.layer): p for p in parameters(self.arch)}
        done = 0

        def fetch(name: str, layer: int) -> Stored:
            nonlocal done
            parameter = table[name, layer]
            formats = form.formats if len(parameter.shape) == 2 else ()
            weight = self.restore(parameter, self.source.read(self.names(parameter), formats))
            done += 1
            if progress:
                progress(done, len(table))
            return form.of(parameter, weight, device)

        return fetch


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`: a .gguf file, or a folder with config.json and safetensors. Checked already."""
    if path.is_dir():
        from palmette.runtime.models.hf_folder import open_folder

        checkpoint = open_folder(path)
    elif path.suffix == ".gguf" and path.is_file():
        from palmette.runtime.models.gguf_model import open_gguf

        checkpoint = open_gguf(path)
    else:
        what = "is no .gguf file and no folder" if path.exists() else "does not exist"
        raise ModelError(
            f"{path} {what}", hint="give a .gguf file, or a folder that has config.json and .safetensors files"
        )
    try:
        checkpoint.check()
    except ModelError:
        checkpoint.source.close()
        raise
    return checkpoint


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ", ".join(listed[:5]) + more
