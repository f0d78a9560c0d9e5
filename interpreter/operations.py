"""What a state's queue holds: operations, lowered and checked, each of which ends exactly once."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from palmette.runtime.protocol import Constraint, SamplingParams, SelectMethod

if TYPE_CHECKING:
    from palmette.interpreter.strand import Strand

# contextlib calls the ends of our context managers.
_OURS = ("palmette.interpreter", "palmette.lang", "contextlib")


class Where(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def source(self) -> str:
        return linecache.getline(self.file, self.line).strip()


def caller() -> Where:
    """The innermost line on the stack that is not palmette's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back
    return Where(frame.f_code.co_filename, frame.f_lineno)


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """A waitable. Whatever becomes of it (done, failed, cancelled, dropped), `finish` is called, on the loop."""

    where: Where
    finished: bool = False
    waiters: list[Callable[[], None]] = field(default_factory=list)

    def finish(self) -> None:
        self.finished = True
        # Taken one by one: a waiter may be added by another thread meanwhile, which then sees `finished` itself.
        while self.waiters:
            self.waiters.pop()()

    def subscribe(self, wake: Callable[[], None]) -> None:
        self.waiters.append(wake)
        if self.finished:
            wake()


@dataclass(slots=True, eq=False)
class Start(Operation):
    """A branch's first: done once its parent has come to the fork."""


@dataclass(slots=True, eq=False)
class Write(Operation):
    text: str
    trusted: bool = False


@dataclass(slots=True, eq=False)
class BeginRole(Operation):
    role: str


@dataclass(slots=True, eq=False)
class EndRole(Operation):
    pass


@dataclass(slots=True, eq=False)
class OpenScope(Operation):
    pass


@dataclass(slots=True, eq=False)
class CloseScope(Operation):
    name: str


@dataclass(slots=True, eq=False)
class Assign(Operation):
    name: str
    value: Any


@dataclass(slots=True, eq=False)
class Fork(Operation):
    children: tuple[Strand, ...]


@dataclass(slots=True, eq=False)
class Generate(Operation):
    name: str | None
    params: SamplingParams
    constraint: Constraint | None
    parse: Callable[[str], Any] | None
    type_name: str | None


@dataclass(slots=True, eq=False)
class Choose(Operation):
    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod
    temperature: float
    seed: int | None


class Arrival(NamedTuple):
    """A branch to be joined, and the last of its operations at the time of the join."""

    strand: Strand
    last: Operation


@dataclass(slots=True, eq=False)
class Join(Operation):
    arrivals: tuple[Arrival, ...]
