"""The C++ kernels as a model wants them: weights packed, a tape as one call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

import torch

from palmette.kernels.blocks import Stored
from palmette.kernels.cpu.library import LibraryMissing as NotBuilt
from palmette.kernels.cpu.library import Team, load
from palmette.kernels.cpu.linear import FORMATS, Weight
from palmette.kernels.cpu.sampling import Sampler
from palmette.kernels.cpu.step import Step
from palmette.kernels.tape import Step as Run
from palmette.kernels.tape import Tape

__all__ = ["NativeKernels", "NotBuilt"]


class NativeKernels:
    """Its threads are as many as torch has when they are first needed. NotBuilt where there is no library."""

    formats: Collection[str] = tuple(name for name in FORMATS if name.startswith("Q"))
    # int8 wants scales beside it, for which a model's cache has no place yet.
    kv_dtypes: Collection[torch.dtype] = (torch.float32, torch.bfloat16)
    fixed_order = True

    def __init__(self) -> None:
        library = load()
        self.level, self.levels = library.level, library.levels
        self.name = f"cpu {self.level}"

    @cached_property
    def team(self) -> Team:
        return Team(load(), torch.get_num_threads(), self.level)

    def pack_linear(self, parts: Sequence[Stored], bias: torch.Tensor | None = None) -> Weight:
        return Weight(self.team, parts, None if bias is None else bias.float())

    def compile(self, tape: Tape) -> Run:
        alone = Team(load(), 1, self.level) if self.team.threads > 1 else None
        return Step(self.team, tape, alone).run

    def sampler(self) -> Sampler:
        return Sampler(self.team)
