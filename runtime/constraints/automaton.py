"""Automata over bytes: the languages of regexes and choices, in the form in which masks are made from them."""

from __future__ import annotations

from itertools import count
from typing import Protocol

import numpy as np

from palmette.runtime.constraints.trie import ByteTrie


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
        """As many bytes as `shortest_end` has at the most, from any state."""
        ...

    def row_key(self, state: int, length: int) -> tuple[object, ...]:
        """Equal for states, of any automata, from which the same texts of up to `length` bytes can be gone on with."""
        ...


_numbers = count()


class TrieAutomaton:
    """Exactly the given strings: the states are the nodes of their trie."""

    start = 0

    def __init__(self, strings: list[bytes]) -> None:
        self._trie = ByteTrie(zip(strings, count(), strict=False))
        self._given = np.fromiter(map(len, strings), np.int32, len(strings))
        self._lengths: np.ndarray | None = None
        self._number = next(_numbers)
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
        trie = self._trie
        order, lo, hi = trie.spans
        if self._lengths is None:
            # In the order of the strings, so that those below a node lie side by side.
            self._lengths = self._given[trie.ends[order]]
        first = int(lo[state])
        node = int(trie.end_nodes[order[first + int(np.argmin(self._lengths[first : int(hi[state])]))]])
        out = bytearray()
        while node != state:
            out.append(int(trie.byte[node]))
            node = trie.parent(node)
        return bytes(reversed(out))

    def longest_end(self) -> int:
        return int(self._given.max())

    def row_key(self, state: int, length: int) -> tuple[object, ...]:
        return ("choices", self._number, state)


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
