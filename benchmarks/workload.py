"""What a workload is: programs, and a recipe for their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias

from palmette.benchmarks.synthetic import Writer
from palmette.interpreter.program import Program
from palmette.interpreter.state import State
from palmette.lang.gen import gen
from palmette.runtime.protocol import Backend

Mode = Literal["once", "batches", "warm-up"]

Round: TypeAlias = list[dict[str, Any]]
"""Arguments of programs that run together, one dict for each program."""


@dataclass(frozen=True, slots=True)
class Options:
    """What some workloads let one choose. long: long answers (W9). mode: who comes when (W14). zipf: some groups are
    asked for much more often than others (W15)."""

    long: bool = False
    mode: Mode = "once"
    zipf: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """What arguments are made from.

    items: how many programs. scale: factor of lengths (see docs/benchmarks.md). folder: where recorded data lie; None:
    synthetic ones.
    """

    items: int
    scale: float
    seed: int
    writer: Writer
    folder: Path | None = None
    options: Options = Options()

    def tokens(self, full: int) -> int:
        """A length of the workload as it was published, scaled."""
        return max(1, round(full * self.scale))

    def random(self, *label: object) -> Random:
        """A source of its own for each use, so that more items do not change those before them."""
        return Random("/".join(map(str, (self.seed, *label))))

    def text(self, *label: object, tokens: int) -> str:
        """Synthetic text of a published length in tokens, scaled. The same for the same label."""
        return self.writer.text(self.random(*label), self.tokens(tokens))


@dataclass(frozen=True, slots=True)
class Manner:
    """How the programs of one run go about it. backend: for programs that they start themselves. sequential: no branch
    begins before the one before it has ended. free: constraints are left out, and each text is as long as `lengths`
    says, which runs under constraints fill in."""

    backend: Backend
    sequential: bool = False
    free: bool = False
    lengths: dict[object, int] = field(default_factory=dict)

    def branched(self, branch: State) -> None:
        """All that a branch is to do has been appended to it."""
        if self.sequential:
            branch.sync()

    def bound(self, s: State, key: object, name: str, regex: str, max_tokens: int) -> None:
        """A text under a regex, or a free one of the same length; key: names it in all runs."""
        if self.free:
            s += gen(name, max_tokens=self.lengths[key], ignore_eos=True)
        else:
            s += gen(name, regex=regex, max_tokens=max_tokens)
            self.lengths[key] = s.result(name).completion_tokens


@dataclass(frozen=True, slots=True)
class Workload:
    """name: as in WORKLOADS.md. about: one line for people. items, scale: the defaults, for two cores and a model of
    135 million parameters. files: the recorded data that it can be made from. takes: the Options that it heeds.

    rounds: what runs one after the other, nearly always one round. Programs that fork, or that are constrained, take
    `manner` beside the arguments that `rounds` gives.
    """

    name: str
    title: str
    about: str
    program: Program
    rounds: Callable[[Setup], list[Round]]
    items: int
    scale: float
    files: tuple[str, ...] = ()
    forks: bool = False
    constrained: bool = False
    takes: tuple[str, ...] = ()

    def recorded(self, folder: Path | None) -> bool:
        """Whether `folder` has all the data that the workload is recorded in."""
        return bool(self.files) and folder is not None and all(any(folder.glob(file)) for file in self.files)
