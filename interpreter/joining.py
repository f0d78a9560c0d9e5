"""How branches come together: waiting for them, and laying their variables side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from palmette.interpreter.operations import Arrival
from palmette.interpreter.results import BranchConflict, Result

if TYPE_CHECKING:
    from palmette.interpreter.strand import Strand


class Joined(NamedTuple):
    """One variable of all branches, in their order; None where a branch has none."""

    values: list[Any]
    results: list[Result]


async def arrived(arrivals: Sequence[Arrival], loop: asyncio.AbstractEventLoop) -> None:
    """Waits until all branches have come to their last operation, or one has failed."""
    left = set(range(len(arrivals)))
    done: asyncio.Future[None] = loop.create_future()

    def arrive(index: int) -> None:
        left.discard(index)
        strand = arrivals[index].strand
        failed = strand.error is not None and not strand.dropped
        if (failed or not left) and not done.done():
            done.set_result(None)

    for index, arrival in enumerate(arrivals):
        arrival.last.subscribe(partial(arrive, index))
    await done


def merge(strands: Sequence[Strand], own: Collection[str]) -> dict[str, Joined]:
    """The branches' variables side by side.

    BranchConflict where one is the parent's `own`, since a value would be lost. What an earlier join gathered is not:
    a program that forks in a loop gathers the same names again and again.
    """
    names = list(dict.fromkeys(name for strand in strands if not strand.dropped for name in strand.written))
    for name in names:
        if name in own:
            writers = [index for index, strand in enumerate(strands) if name in strand.written]
            raise BranchConflict(
                f"branch {', '.join(map(str, writers))} set {name!r}, which the parent has already",
                hint="give the variable another name in the branches; a join never overwrites what the parent made",
            )
    joined: dict[str, Joined] = {}
    for name in names:
        has = [name in strand.written and not strand.dropped for strand in strands]
        joined[name] = Joined(
            [strand.memory.variables[name] if ok else None for strand, ok in zip(strands, has, strict=True)],
            [strand.memory.results[name] if ok else None for strand, ok in zip(strands, has, strict=True)],
        )
    return joined
