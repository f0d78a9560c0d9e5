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


class TrieAutomaton:
    """Exactly the given strings: the states are the nodes of their trie."""

    start = 0

    def __init__(self, strings: list[bytes]) -> None:
        self._trie = ByteTrie([(s, i) for i, s in enumerate(dict.fromkeys(strings))])
        self.nbytes = self._trie.nbytes

    def step(self, state: int, byte: int) -> int:
        return self._trie.child(state, byte)

    def steps(self, states: np.ndarray, bytes_: np.ndarray) -> np.ndarray:
        return self._trie.children(states, bytes_)

    def final(self, state: int) -> bool:
        return bool(self._trie.end_lo[state] < self._trie.end_hi[state])

    def exits(self, state: int) -> np.ndarray:
        return self._trie.byte[self._trie.lo[state] : self._trie.hi[state]]


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
