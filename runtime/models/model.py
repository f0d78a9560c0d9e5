"""A loaded model: its tape and the memory that it needs. `load_model` is the way in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from palmette.errors import ModelError, suggestion
from palmette.kernels.dispatch import choose
from palmette.kernels.ragged import RaggedBatch
from palmette.runtime.models.architecture import Architecture
from palmette.runtime.models.lower import Fetch, lower
from palmette.runtime.models.tape import KV, run

if TYPE_CHECKING:
    from palmette.runtime.tokenizer import Tokenizer

__all__ = ["KV", "Model", "RaggedBatch", "load_model"]

Progress = Callable[[int, int], None]
"""Called with (tensors read, tensors in all) while a model loads."""

# Changes whenever KV in a slot comes to mean something else.
KV_LAYOUT = "palmette-kv-1"

DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}


class Model:
    """A decoder that runs ragged batches over a cache of slots.

    vocab_width: columns of the logits; may exceed the tokenizer's count of tokens. max_context: tokens of one sequence.
    kernels: which implementation was chosen, `kernel_reason` why.
    """

    def __init__(
        self,
        arch: Architecture,
        fetch: Fetch,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.arch = arch
        self.dtype = dtype
        self.device = torch.device(device)
        choice = choose(self.device)
        self.kernels = choice.kernels
        self.kernel_reason = choice.reason
        self.vocab_width = arch.vocab
        self.max_context = arch.max_context
        weights = WeightsDigest(fetch)
        self._tape = lower(arch, weights.fetch, self.kernels, self.device)
        self._weights = weights.hexdigest()

    @property
    def batch_invariant(self) -> bool:
        """Whether a token's logits are the same bits in every batch, chunk and cache state (kernels/reference.py)."""
        return self.device.type == "cpu" and self.dtype == torch.float32 and torch.backends.mkldnn.is_available()

    @property
    def fingerprint(self) -> str:
        """Equal where KV of one model is as good as KV of the other, bit for bit: same weights (as far as samples
        tell), same dtype, same kernels on the same kind of processor."""
        parts = (
            KV_LAYOUT,
            self.arch,
            self.dtype,
            self._weights,
            self.kernels.name,
            self.device.type,
            torch.__version__,
            torch.backends.cpu.get_cpu_capability() if self.device.type == "cpu" else torch.cuda.get_device_name(),
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token in all layers."""
        arch = self.arch
        return 2 * len(arch.layers) * arch.kv_heads * arch.head_dim * self.dtype.itemsize

    def new_kv(self, slots: int) -> KV:
        """An empty cache of that many slots."""
        shape = (len(self.arch.layers), slots, self.arch.kv_heads, self.arch.head_dim)
        # Zeros and not garbage: what fills up a tile of attention reads slots that nobody wrote, and NaN * 0 is NaN.
        return KV(*(_zeros(shape, self.dtype, self.device) for _ in range(2)))

    @torch.no_grad()
    def forward(self, batch: RaggedBatch, kv: KV) -> torch.Tensor:
        """Logits, float32 [R, vocab_width], of the batch's out_rows, in their order.

        Writes K and V of every token of the batch into its slot. The batch is taken to be sound (`problems()`).
        """
        return run(self._tape, self.kernels, batch, kv)


class WeightsDigest:
    """A hash of the weights that pass through `fetch`: of each its name, its shape and some thousand of its elements,
    spread evenly. Other weights that agree in all of those are not to be expected."""

    _SAMPLES = 4096

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._hash = hashlib.blake2b(digest_size=16)

    def fetch(self, name: str, layer: int) -> torch.Tensor:
        weight = self._fetch(name, layer)
        flat = weight.flatten()
        sample = flat[:: max(1, len(flat) // self._SAMPLES)].contiguous().cpu()
        self._hash.update(repr((name, layer, tuple(weight.shape), weight.dtype)).encode())
        self._hash.update(sample.view(torch.uint8).numpy().tobytes())
        return weight

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU memory that the system hands over page by page when it is first used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


def load_model(
    path: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: torch.device | str | None = None,
    quantization: str | None = None,
    progress: Progress | None = None,
) -> tuple[Model, Tokenizer]:
    """The model and tokenizer of a .gguf file or of a folder with config.json and safetensors.

    dtype None: as stored for fp32, bf16 and fp16 files; quantised files are spread out to fp32 on a CPU and to bf16 on
    a GPU. quantization: names one of the dtypes; block formats ("q8_0" ...) are refused: no kernels read them yet.
    Raises ModelError where the files are not what they should be.
    """
    from palmette.runtime.models.checkpoint import open_checkpoint

    wanted = _dtype(dtype, quantization)
    try:
        place = torch.device(device or "cpu")
    except (RuntimeError, TypeError):
        raise ModelError(f"device {device!r} is unknown to torch", hint='"cpu", or "cuda" for a GPU') from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {device!r}: torch sees no GPU here", hint="leave `device` out to run on the CPU")
    with open_checkpoint(Path(path)) as checkpoint:
        if wanted is None:
            spread = torch.float32 if place.type == "cpu" else torch.bfloat16
            wanted = checkpoint.stored_dtype or spread
        fetch = checkpoint.fetcher(wanted, place, progress)
        model = Model(checkpoint.arch, fetch, dtype=wanted, device=place)
        return model, checkpoint.tokenizer()


def _dtype(dtype: str | torch.dtype | None, quantization: str | None) -> torch.dtype | None:
    if dtype is not None and quantization is not None:
        raise ModelError("both dtype and quantization are given", hint="give one: both say how weights are held")
    name = dtype if dtype is not None else quantization
    if name is None or isinstance(name, torch.dtype):
        return name
    if not isinstance(name, str) or name.lower() not in DTYPES:
        hint = suggestion(str(name).lower(), DTYPES)
        raise ModelError(f"weights cannot be held as {name!r} by the kernels there are", hint=hint)
    return DTYPES[name.lower()]
