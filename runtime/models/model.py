"""A loaded model: its tape and the memory that it needs. `load_model` is the way in."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from palmette.errors import ModelError, suggestion
from palmette.kernels.blocks import Blocks, Stored
from palmette.kernels.dispatch import Promise, choose, device_kind, promise
from palmette.kernels.ragged import RaggedBatch
from palmette.kernels.tape import KV
from palmette.runtime.models.architecture import Architecture
from palmette.runtime.models.checkpoint import Checkpoint, Form, open_checkpoint
from palmette.runtime.models.lower import Fetch, lower
from palmette.torch_later import Array, dtype_name, torch

if TYPE_CHECKING:
    from palmette.runtime.tokenizer import Tokenizer

__all__ = ["KV", "Model", "RaggedBatch", "load_model"]

Progress = Callable[[int, int], None]
"""Called with (tensors read, tensors in all) while a model loads."""

# Changes whenever KV in a slot comes to mean something else.
KV_LAYOUT = "palmette-kv-1"

DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
}
_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Block formats that weights can be brought into when they are loaded.
QUANTIZATIONS = {"q8_0": "Q8_0", "q4_0": "Q4_0", "q4_1": "Q4_1"}


class Model:
    """A decoder that runs ragged batches over a cache of slots.

    vocab_width: columns of the logits; may exceed the tokenizer's count of tokens. max_context: tokens of one sequence.
    kernels: which implementation was chosen, `kernel_reason` why. dtype, kv_dtype: of weights and of the KV cache, by
    name ("bfloat16"). forms: in which dtypes and block formats the weights are held, and how many in each.
    """

    def __init__(
        self,
        arch: Architecture,
        fetch: Fetch,
        *,
        dtype: torch.dtype | str = "float32",
        kv_dtype: torch.dtype | str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.arch = arch
        self.dtype = dtype_name(dtype)
        self.device = str(device)
        choice = choose(self.device)
        self.kernels = choice.kernels
        wanted = dtype_name(kv_dtype or dtype)
        # Of fp16's size where the kernels have no cache of that.
        self.kv_dtype = wanted if wanted in self.kernels.kv_dtypes else "bfloat16"
        self.kernel_reason = choice.reason
        self.vocab_width = arch.vocab
        self.max_context = arch.max_context
        weights = WeightsDigest(fetch)
        self._step = self.kernels.compile(lower(arch, weights.fetch, self.kernels, self.device))
        self._weights = weights.hexdigest()
        self.forms = weights.forms
        self.sampler = self.kernels.sampler()

    @property
    def promise(self) -> Promise:
        """Whether a token's logits are the same bits in every batch, chunk and cache state, and why."""
        return promise(self.kernels, self.device, self.dtype)

    @property
    def batch_invariant(self) -> bool:
        return self.promise.same_bits

    @property
    def fingerprint(self) -> str:
        """Equal where KV of one model is as good as KV of the other, bit for bit: same weights (as far as samples
        tell), same dtype, same kernels on the same kind of processor."""
        parts = (
            KV_LAYOUT,
            self.arch,
            self.dtype,
            self.kv_dtype,
            self._weights,
            self.kernels.name,
            device_kind(self.device),
            *self.kernels.build(self.device),
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token in all layers."""
        arch = self.arch
        return 2 * len(arch.layers) * arch.kv_heads * arch.head_dim * _SIZES[self.kv_dtype]

    def new_kv(self, slots: int) -> KV:
        """An empty cache of that many slots."""
        shape = (len(self.arch.layers), slots, self.arch.kv_heads, self.arch.head_dim)
        # Zeros and not garbage: what fills up a tile of attention reads slots that nobody wrote, and NaN * 0 is NaN.
        return KV(*(self.kernels.cache(shape, self.kv_dtype, self.device) for _ in range(2)))

    def forward(self, batch: RaggedBatch, kv: KV) -> Array:
        """Logits, float32 [R, vocab_width], of the batch's out_rows, in their order: an array, or a tensor where the
        kernels are torch's.

        Writes K and V of every token of the batch into its slot. The batch is taken to be sound (`problems()`).
        """
        return self._step(batch, kv)


class WeightsDigest:
    """A hash of the weights that pass through `fetch`: of each its name, its shape and some thousand of its elements,
    spread evenly. Other weights that agree in all of those are not to be expected."""

    _SAMPLES = 4096

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._hash = hashlib.blake2b(digest_size=16)
        # By form, how many weights are held in it.
        self.forms: Counter[str] = Counter()

    def fetch(self, name: str, layer: int) -> Stored:
        weight = self._fetch(name, layer)
        if isinstance(weight, Blocks):
            form, flat = weight.format, weight.data.reshape(-1)
        else:
            form, flat = dtype_name(weight.dtype), weight.reshape(-1)
        self.forms[form] += math.prod(weight.shape)
        sample = flat[:: max(1, len(flat) // self._SAMPLES)]
        if not isinstance(sample, np.ndarray):
            sample = sample.contiguous().cpu().view(torch.uint8).numpy()
        self._hash.update(repr((name, layer, tuple(weight.shape), form)).encode())
        self._hash.update(sample.tobytes())
        return weight

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def load_model(
    path: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: torch.device | str | None = None,
    quantization: str | None = None,
    progress: Progress | None = None,
) -> tuple[Model, Tokenizer]:
    """The model and tokenizer of a .gguf file or of a folder with config.json and safetensors.

    dtype: what the weights are held in ("fp32", "bf16", "fp16"), also those that are stored in blocks. quantization:
    such a dtype, or a block format ("q8_0", "q4_0", "q4_1") that the matrices are brought into, where the kernels read
    blocks. Neither: as stored, where the kernels can; else blocks are spread out to fp32 on a CPU and to bf16 on a GPU.
    Raises ModelError where the files are not what they should be.
    """
    place = _place(device)
    asked = _asked(dtype, quantization, place)
    with open_checkpoint(Path(path)) as checkpoint, ThreadPoolExecutor(1) as beside:
        # Python sorts the words while C++ packs the weights.
        tokenizer = beside.submit(_tokenizer, checkpoint)
        form = asked or _as_stored(checkpoint.stored_dtype, place)
        fetch = checkpoint.fetcher(form, place, progress)
        # Where weights have four or eight bits, 16 for a key or value are not what costs precision.
        kv_dtype = "bfloat16" if form.formats or form.quantization else form.dtype
        model = Model(checkpoint.arch, fetch, dtype=form.dtype, kv_dtype=kv_dtype, device=place)
        return model, tokenizer.result()


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """With its vocabulary made, which the first prompt wants."""
    tokenizer = checkpoint.tokenizer()
    _ = tokenizer.vocabulary
    return tokenizer


def _place(device: torch.device | str | None) -> str:
    if device is None or str(device) == "cpu":
        return "cpu"
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise ModelError(f"device {device!r} is unknown to torch", hint='"cpu", or "cuda" for a GPU') from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {device!r}: torch sees no GPU here", hint="leave `device` out to run on the CPU")
    return str(place)


def _as_stored(stored: str | None, device: str) -> Form:
    formats = choose(device).kernels.formats
    if stored is not None or formats:
        return Form(stored or "float32", () if stored is not None else formats)
    return Form("float32" if device_kind(device) == "cpu" else "bfloat16")


def _asked(dtype: str | torch.dtype | None, quantization: str | None, device: str) -> Form | None:
    """The form that dtype= or quantization= names; None where neither is given."""
    if dtype is not None and quantization is not None:
        raise ModelError("both dtype and quantization are given", hint="give one: both say how weights are held")
    name = dtype if dtype is not None else quantization
    if name is None:
        return None
    key = dtype_name(name).lower()
    if key in DTYPES:
        return Form(DTYPES[key])
    known = [*DTYPES, *QUANTIZATIONS] if dtype is None else [*DTYPES]
    if dtype is not None or not isinstance(name, str) or key not in QUANTIZATIONS:
        hint = suggestion(key, known)
        raise ModelError(f"weights cannot be held as {name!r} by the kernels there are", hint=hint)
    choice = choose(device)
    if QUANTIZATIONS[key] not in choice.kernels.formats:
        raise ModelError(
            f"quantization={name!r}: the kernels here read no blocks: {choice.reason}",
            hint="leave quantization out; palmette doctor tells why these kernels run",
        )
    return Form("float32", quantization=QUANTIZATIONS[key])
