"""Automata over bytes: the languages of regexes and choices, in the form in which masks are made from them."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from palmette.runtime.constraints.trie import ByteTrie, ranges


class Automaton(Protocol):
    """Deterministic, over bytes, with no dead states: from every state some text leads to a final one.

    States are ints; -1 is "no such text". `start` is the first.
    """

    start: int
    nbytes: int

    def step(self, state: int, byte: int) -> int: ...

    def steps(self, states: np.ndarray, bytes_: np.ndarray) -> np.ndarray:
        """`step` for each pair; int."""
        ...

    def final(self, state: int) -> bool:
        """Whether a text may end here."""
        ...

    def exits(self, state: int) -> np.ndarray:
        """The bytes that may follow, ascending."""
        ...

    def shortest_end(self, state: int) -> bytes:
        """The fewest bytes that lead to a final state; of equally few, readable ones."""
        ...

    def longest_end(self) -> int:
        """The most bytes that `shortest_end` has from any state."""
        ...


def _readable_first() -> list[int]:
    """The bytes, those that read well and need no escape in JSON first."""
    plain = [b for b in range(0x20, 0x7F) if chr(b).isalnum()]
    other = [b for b in range(0x20, 0x7F) if b not in plain and b not in b'"\\']
    return list(dict.fromkeys([*plain, *other, *range(0x80, 0x100), *range(256)]))


_READABLE = np.array(_readable_first())


class TableAutomaton:
    """A table with one column for each class of bytes that no state tells apart."""

    def __init__(self, table: np.ndarray, final: np.ndarray, start: int = 0) -> None:
        """table: int32 [states, 256], -1 where there is no step; final: bool [states]. The start must be alive."""
        columns = [table[:, byte] for byte in range(256)]
        classes: dict[bytes, int] = {}
        self._class = np.array([classes.setdefault(column.tobytes(), len(classes)) for column in columns], np.int32)
        _, first = np.unique(self._class, return_index=True)
        self._table = np.ascontiguousarray(table[:, first], np.int32)
        self._final = final
        self._distance: np.ndarray | None = None
        self.start = start
        self.nbytes = self._table.nbytes + self._class.nbytes + final.nbytes

    def __len__(self) -> int:
        return len(self._table)

    def step(self, state: int, byte: int) -> int:
        return int(self._table[state, self._class[byte]])

    def steps(self, states: np.ndarray, bytes_: np.ndarray) -> np.ndarray:
        return self._table[states, self._class[bytes_]]

    def final(self, state: int) -> bool:
        return bool(self._final[state])

    def exits(self, state: int) -> np.ndarray:
        return np.flatnonzero(self._table[state, self._class] >= 0)

    def shortest_end(self, state: int) -> bytes:
        if self._distance is None:
            self._distance = self._distances()
        out = bytearray()
        while left := int(self._distance[state]):
            after = self._table[state, self._class[_READABLE]]
            nearer = (after >= 0) & (self._distance[after] == left - 1)
            byte = int(_READABLE[np.argmax(nearer)])
            out.append(byte)
            state = self.step(state, byte)
        return bytes(out)

    def longest_end(self) -> int:
        if self._distance is None:
            self._distance = self._distances()
        return int(self._distance.max())

    def _distances(self) -> np.ndarray:
        """Bytes from each state to the nearest final one, breadth first over the steps read backwards; int32."""
        source, column = np.nonzero(self._table >= 0)
        target = self._table[source, column]
        order = np.argsort(target, kind="stable")
        source, target = source[order], target[order]
        every = np.arange(len(self._table))
        lo, hi = np.searchsorted(target, every), np.searchsorted(target, every, "right")
        distance = np.where(self._final, 0, -1).astype(np.int32)
        level, far = np.flatnonzero(self._final), 0
        while len(level):
            far += 1
            before = source[ranges(lo[level], hi[level])[0]]
            level = np.unique(before[distance[before] < 0])
            distance[level] = far
        return distance


class TrieAutomaton:
    """Exactly the given strings: the states are the nodes of their trie."""

    start = 0

    def __init__(self, strings: list[bytes]) -> None:
        self._trie = ByteTrie([(s, i) for i, s in enumerate(dict.fromkeys(strings))])
        self._distance: np.ndarray | None = None
        self.nbytes = self._trie.nbytes

    def step(self, state: int, byte: int) -> int:
        return self._trie.child(state, byte)

    def steps(self, states: np.ndarray, bytes_: np.ndarray) -> np.ndarray:
        return self._trie.children(states, bytes_)

    def final(self, state: int) -> bool:
        return bool(self._trie.end_lo[state] < self._trie.end_hi[state])

    def exits(self, state: int) -> np.ndarray:
        return self._trie.byte[self._trie.lo[state] : self._trie.hi[state]]

    def shortest_end(self, state: int) -> bytes:
        if self._distance is None:
            self._distance = self._distances()
        out = bytearray()
        while self._distance[state]:
            lo, hi = int(self._trie.lo[state]), int(self._trie.hi[state])
            state = lo + int(np.argmin(self._distance[lo:hi]))
            out.append(int(self._trie.byte[state]))
        return bytes(out)

    def longest_end(self) -> int:
        if self._distance is None:
            self._distance = self._distances()
        return int(self._distance.max())

    def _distances(self) -> np.ndarray:
        """Bytes from each node to the nearest end below it, level by level from the deepest; int32."""
        trie = self._trie
        distance = np.zeros(len(trie), np.int32)
        levels = [(0, 1)]
        while (first := int(trie.lo[levels[-1][0]])) < (last := int(trie.hi[levels[-1][1] - 1])):
            levels.append((first, last))
        for first, last in reversed(levels[:-1]):
            inner = np.flatnonzero(trie.lo[first:last] < trie.hi[first:last]) + first
            below = int(trie.lo[inner[0]])
            nearest = np.minimum.reduceat(distance[below : int(trie.hi[last - 1])], trie.lo[inner] - below) + 1
            distance[inner] = np.where(trie.end_lo[inner] < trie.end_hi[inner], 0, nearest)
        return distance


def walk(automaton: Automaton, state: int, text: bytes) -> int:
    """The state after all of `text`, or -1."""
    for byte in text:
        if state < 0:
            break
        state = automaton.step(state, byte)
    return state


def forced_run(automaton: Automaton, state: int, limit: int = 4096) -> tuple[bytes, int]:
    """The bytes that must follow (at most `limit`), and the state after them."""
    run = bytearray()
    while len(run) < limit and not automaton.final(state):
        exits = automaton.exits(state)
        if len(exits) != 1:
            break
        run.append(int(exits[0]))
        state = automaton.step(state, int(exits[0]))
    return bytes(run), state


def allowed_tokens(automaton: Automaton, state: int, trie: ByteTrie, node: int = 0) -> np.ndarray:
    """Ids of the strings of `trie` below `node` whose remaining bytes the automaton can take from `state`.

    Both are walked together, breadth first, and what the automaton refuses is pruned with all that is below it
    (CONSTRAINTS.md §4.3). The strings that end at `node` itself are not among them.
    """
    nodes, states = np.array([node]), np.array([state])
    found = []
    while len(nodes):
        child, owner = ranges(trie.lo[nodes], trie.hi[nodes])
        to = automaton.steps(states[owner], trie.byte[child])
        alive = to >= 0
        nodes, states = child[alive], to[alive]
        first, last = trie.end_lo[nodes], trie.end_hi[nodes]
        found.append(trie.ends[ranges(first, last)[0]])
    return np.concatenate(found)
