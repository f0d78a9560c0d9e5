"""Which implementation of the operations runs on a device, and why; and whether it gives the same bits each time."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from palmette.errors import ArgumentError, suggestion
from palmette.kernels.blocks import Stored
from palmette.kernels.pages import fresh
from palmette.kernels.ragged import RaggedBatch
from palmette.kernels.tape import KV, Ops, Step, Tape, run
from palmette.torch_later import Array, dtype_name, is_tensor, torch

if TYPE_CHECKING:
    from palmette.kernels import reference
    from palmette.kernels.cpu.sampling import Sampler

# Names a choice for processors where the best is not wanted: "cpu" (refused where it cannot be) or "reference".
CHOICE: Final = "PALMETTE_KERNELS"


class Kernels(Protocol):
    """What a model asks of an implementation.

    name: of the implementation. formats: block formats that weights may stay in. kv_dtypes: what a cache may hold.
    fixed_order: whether all its sums are taken in an order that depends on nothing but the position, in any dtype.
    """

    name: str
    formats: Collection[str]
    kv_dtypes: Collection[str]
    fixed_order: bool

    def vector(self, parts: Sequence[Array], device: str) -> Array:
        """Parameters of one axis side by side as one, as the implementation's operations take them."""
        ...

    def pack_linear(self, parts: Sequence[Stored], bias: Array | None = None) -> Any:
        """Weights [out_i, in] side by side as one, in the implementation's own layout."""
        ...

    def compile(self, tape: Tape) -> Step:
        """A function that runs a tape, whose linears `pack_linear` made, for a batch and a cache."""
        ...

    def cache(self, shape: tuple[int, ...], dtype: str, device: str) -> Array:
        """Zeros for keys or values."""
        ...

    def build(self, device: str) -> tuple[str, ...]:
        """What its bits depend on besides its name."""
        ...

    def sampler(self) -> Sampler | None:
        """What draws tokens from logits, where the implementation has something of its own."""
        ...


class Reference:
    """Plain torch, on any device."""

    name = "reference"
    formats: Collection[str] = ()
    kv_dtypes: Collection[str] = ("float32", "bfloat16", "float16")
    fixed_order = False

    def vector(self, parts: Sequence[Array], device: str) -> torch.Tensor:
        tensors = [torch.as_tensor(part, device=device) for part in parts]
        return torch.cat(tensors) if len(tensors) > 1 else tensors[0]

    def pack_linear(self, parts: Sequence[Stored], bias: Array | None = None) -> reference.LinearWeight:
        from palmette.kernels import reference

        return reference.pack_linear([part for part in parts if is_tensor(part)], bias)

    def compile(self, tape: Tape) -> Step:
        from palmette.kernels import reference

        ops = Ops(**{field.name: getattr(reference, field.name) for field in fields(Ops)})

        def step(batch: RaggedBatch, kv: KV) -> torch.Tensor:
            assert not isinstance(kv.k, np.ndarray)
            with torch.no_grad():
                return run(tape, ops, batch.on(kv.k.device), kv)

        return step

    def cache(self, shape: tuple[int, ...], dtype: str, device: str) -> torch.Tensor:
        kind = getattr(torch, dtype)
        if device_kind(device) != "cpu" or 0 in shape:
            return torch.zeros(shape, dtype=kind, device=device)
        return torch.frombuffer(fresh(math.prod(shape) * kind.itemsize), dtype=kind).view(shape)

    def build(self, device: str) -> tuple[str, ...]:
        on_cpu = device_kind(device) == "cpu"
        return torch.__version__, torch.backends.cpu.get_cpu_capability() if on_cpu else torch.cuda.get_device_name()

    def sampler(self) -> Sampler | None:
        return None


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernels for a device, and in words why these. cost: what is lost by not having better ones, or ""."""

    kernels: Kernels
    reason: str
    cost: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
    """Whether a token's logits are the same bits in every batch, chunk and cache state, and in words why."""

    same_bits: bool
    reason: str


def choose(device: torch.device | str) -> Choice:
    """The kernels for a device. ArgumentError where the environment names some that cannot be had."""
    kind = device_kind(device)
    wanted = os.environ.get(CHOICE, "")
    if wanted not in ("", "cpu", "reference"):
        hint = suggestion(wanted, ("cpu", "reference"))
        raise ArgumentError(f"{CHOICE}={wanted}: there are no such kernels", hint=hint)
    if kind != "cpu":
        return Choice(Reference(), f"reference (plain torch) on {kind}: no other kernels are built in")
    if wanted == "reference":
        return Choice(Reference(), f"reference (plain torch): {CHOICE} names it")
    from palmette.kernels.cpu.native_kernels import NativeKernels, NotBuilt

    try:
        native = NativeKernels()
    except NotBuilt as error:
        if wanted == "cpu":
            hint = "install palmette where a C++ compiler is found"
            raise ArgumentError(f"{CHOICE}=cpu: {error}", hint=hint) from error
        cost = "a step takes many times as long, and weights in blocks are spread out to fp32 in memory"
        return Choice(Reference(), f"reference (plain torch): {error}", cost)
    except ValueError as error:
        raise ArgumentError(str(error), hint="leave PALMETTE_CPU out: the best level is taken then") from error
    return Choice(native, f"C++ for {native.level}, of the levels {', '.join(native.levels)} that run here")


def device_kind(device: torch.device | str) -> str:
    """"cuda" of cuda:0."""
    return str(device).partition(":")[0]


def promise(kernels: Kernels, device: torch.device | str, dtype: torch.dtype | str) -> Promise:
    """What kernels promise for weights of a dtype on a device."""
    if kernels.fixed_order:
        return Promise(True, _FIXED)
    kind = device_kind(device)
    if kind != "cpu":
        return Promise(False, f"on {kind} torch chooses the order of its sums by the shape of the batch")
    # See reference.pack_linear.
    if dtype_name(dtype) != "float32":
        return Promise(False, f"torch's sums of {dtype_name(dtype)} are in no fixed order")
    if not torch.backends.mkldnn.is_available():
        return Promise(False, "this build of torch has no oneDNN, whose sums are in a fixed order")
    return Promise(True, _FIXED)


_FIXED: Final = "all sums are taken in an order that depends on nothing but a token's position"
