"""The shortest way to the end of a container, by what may come next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heappop, heappush
from typing import TypeVar

P = TypeVar("P", bound=Hashable)

_MOST_LOOKED_AT = 4000


def shortest_way(
    begin: P, ends: Callable[[P], bool], ways: Callable[[P], Iterable[tuple[bytes, P]]], spend: Callable[[], None]
) -> bytes | None:
    """Of the ways from `begin` to a place that ends one with the fewest bytes (Dijkstra 1959): a comma and what may
    come, again and again. None where there is none, or none among the places that are looked at. spend: called for
    each of these, and may raise."""
    queue: list[tuple[int, int, P, bytes]] = [(0, 0, begin, b"")]
    done: set[P] = set()
    number = 0
    for _ in range(_MOST_LOOKED_AT):
        spend()
        if not queue:
            break
        _, _, at, text = heappop(queue)
        if at in done:
            continue
        done.add(at)
        if ends(at):
            return text
        for item, then in ways(at):
            if then not in done:
                number += 1
                longer = text + b"," + item
                heappush(queue, (len(longer), number, then, longer))
    return None
