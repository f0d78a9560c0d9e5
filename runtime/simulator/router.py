"""Which of many engines gets a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from zlib import crc32

import numpy as np

from palmette.runtime.simulator.trace import Arrival


class Router(Protocol):
    """static: whether the place depends on nothing but the arrival and its index in the trace."""

    static: bool

    def place(self, index: int, arrival: Arrival, loads: np.ndarray) -> int:
        """The number of the engine that gets the arrival. loads[i]: unfinished requests at engine i, int [replicas]."""
        ...


class RoundRobin:
    """One after the other."""

    static = True

    def place(self, index: int, arrival: Arrival, loads: np.ndarray) -> int:
        return index % len(loads)


class LeastLoaded:
    """The one with the fewest unfinished requests, the first of equals."""

    static = False

    def place(self, index: int, arrival: Arrival, loads: np.ndarray) -> int:
        return int(loads.argmin())


class PrefixAffinity:
    """Prompts whose first `tokens` are the same go to the same engine, however much that one has to do."""

    static = True

    def __init__(self, tokens: int = 256) -> None:
        self.tokens = tokens

    def place(self, index: int, arrival: Arrival, loads: np.ndarray) -> int:
        head = arrival.prompt[: self.tokens].tobytes()
        return crc32(head, crc32(arrival.namespace.encode())) % len(loads)


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-affinity": PrefixAffinity,
}
