"""The C++ kernels as a model wants them: weights packed, a tape as one call."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from palmette.kernels.blocks import Stored
from palmette.kernels.cpu.library import LibraryMissing as NotBuilt
from palmette.kernels.cpu.library import Team, load
from palmette.kernels.cpu.linear import FORMATS, Weight
from palmette.kernels.cpu.sampling import Sampler
from palmette.kernels.cpu.step import Step
from palmette.kernels.pages import fresh
from palmette.kernels.tape import Step as Run
from palmette.kernels.tape import Tape
from palmette.torch_later import Array, as_numpy, thread_count

__all__ = ["NativeKernels", "NotBuilt"]


class NativeKernels:
    """Nothing of it needs torch; weights may be its tensors. Threads are as many as torch has, or would have, when they
    are first needed. NotBuilt where there is no library."""

    formats: Collection[str] = tuple(name for name in FORMATS if name.startswith("Q"))
    # int8 wants scales beside it, for which a model's cache has no place yet.
    kv_dtypes: Collection[str] = ("float32", "bfloat16")
    fixed_order = True

    def __init__(self) -> None:
        library = load()
        self.level, self.levels = library.level, library.levels
        self.name = f"cpu {self.level}"

    @cached_property
    def team(self) -> Team:
        return Team(load(), thread_count(), self.level)

    def vector(self, parts: Sequence[Array], device: str) -> np.ndarray:
        return np.concatenate([_float32(part) for part in parts])

    def pack_linear(self, parts: Sequence[Stored], bias: Array | None = None) -> Weight:
        return Weight(self.team, parts, bias)

    def compile(self, tape: Tape) -> Run:
        alone = Team(load(), 1, self.level) if self.team.threads > 1 else None
        return Step(self.team, tape, alone).run

    def cache(self, shape: tuple[int, ...], dtype: str, device: str) -> np.ndarray:
        kind = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        return np.frombuffer(fresh(math.prod(shape) * kind.itemsize), kind).reshape(shape)

    def build(self, device: str) -> tuple[str, ...]:
        return ()

    def sampler(self) -> Sampler:
        return Sampler(self.team)


def _float32(part: Array) -> np.ndarray:
    return part.astype(np.float32) if isinstance(part, np.ndarray) else as_numpy(part.float())
