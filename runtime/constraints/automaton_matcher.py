"""The matcher of every constraint that is an automaton over bytes: regexes and choices."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np

from palmette.runtime.constraints.automaton import Automaton, forced_run, walk
from palmette.runtime.constraints.closing_places import AutomatonPlace, Ends
from palmette.runtime.constraints.endings import Endings
from palmette.runtime.constraints.forcing import canonical
from palmette.runtime.constraints.token_masks import allowed_tokens
from palmette.runtime.constraints.vocabulary import Vocabulary

RowKey = tuple[object, ...]


class RowCache:
    """Mask rows by what may follow, least recently used out first; one budget for all constraints of a compiler, which
    share the rows of states that the tokens of its vocabulary cannot tell apart."""

    def __init__(self, limit: int) -> None:
        """limit: bytes."""
        self._limit = limit
        self._rows: OrderedDict[RowKey, np.ndarray] = OrderedDict()
        self._lock = Lock()
        self.nbytes = 0

    def get(self, key: RowKey) -> np.ndarray | None:
        with self._lock:
            row = self._rows.get(key)
            if row is not None:
                self._rows.move_to_end(key)
            return row

    def put(self, key: RowKey, row: np.ndarray) -> None:
        with self._lock:
            old = self._rows.pop(key, None)
            self.nbytes += row.nbytes - (0 if old is None else old.nbytes)
            self._rows[key] = row
            while self.nbytes > self._limit and len(self._rows) > 1:
                _, out = self._rows.popitem(last=False)
                self.nbytes -= out.nbytes


class AutomatonConstraint:
    """A compiled constraint over an automaton. Rows are made on the first visit of a state (CONSTRAINTS.md §4.3)."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary, rows: RowCache) -> None:
        self.automaton = automaton
        self.vocabulary = vocabulary
        self._rows = rows
        # Here, and not at the first mask: that one is asked for in the engine's loop.
        _ = vocabulary.trie.signatures, vocabulary.trie.spans
        self._keys: dict[int, RowKey] = {automaton.start: self._key(automaton.start)}
        self._place: AutomatonPlace | None = None

    @property
    def nbytes(self) -> int:
        return self.automaton.nbytes + 200 * len(self._keys)

    def start(self) -> AutomatonMatcher:
        return AutomatonMatcher(self, self.automaton.start)

    def place(self) -> AutomatonPlace:
        if self._place is None:
            self._place = AutomatonPlace(Ends(self.automaton), self.automaton.start)
        return self._place

    def endings(self) -> Endings:
        return Endings(self.start(), self.vocabulary)

    def accepts(self, text: bytes) -> bool:
        state = walk(self.automaton, self.automaton.start, text)
        return state >= 0 and self.automaton.final(state) and self.vocabulary.segment(text) is not None

    def _key(self, state: int) -> RowKey:
        return (*self.automaton.row_key(state, self.vocabulary.longest), self.automaton.final(state))

    def row(self, state: int) -> np.ndarray:
        """The mask row of a state, int32 [words]; not to be written to."""
        key = self._keys.get(state)
        if key is None:
            key = self._keys[state] = self._key(state)
        row = self._rows.get(key)
        if row is None:
            row = self.vocabulary.row(allowed_tokens(self.automaton, state, self.vocabulary.trie))
            if key[-1]:
                row |= self.vocabulary.end_bits
            self._rows.put(key, row)
        return row


class AutomatonMatcher:
    """A state of the automaton, and those before it."""

    __slots__ = ("_ended", "_of", "_past", "_state")

    def __init__(self, of: AutomatonConstraint, state: int) -> None:
        self._of = of
        self._state = state
        self._past: list[int] = []
        self._ended = False

    def fill(self, row: np.ndarray) -> bool:
        row[:] = self._of.vocabulary.end_bits if self._ended else self._of.row(self._state)
        return True

    def advance(self, token: int) -> bool:
        vocabulary = self._of.vocabulary
        if token in vocabulary.end_ids:
            if not self.allows_end():
                return False
            # A second end token changes nothing, but it is a token that rollback counts.
            self._past.append(self._state if not self._ended else -1)
            self._ended = True
            return True
        spelling = vocabulary.token_bytes[token] if 0 <= token < vocabulary.width else None
        if self._ended or spelling is None:
            return False
        state = walk(self._of.automaton, self._state, spelling)
        if state < 0:
            return False
        self._past.append(self._state)
        self._state = state
        return True

    def rollback(self, n: int) -> None:
        if not 0 <= n <= len(self._past):
            raise ValueError(f"cannot roll back {n} of {len(self._past)} tokens")
        for _ in range(n):
            state = self._past.pop()
            if state >= 0:
                self._state = state
                self._ended = False

    def fork(self) -> AutomatonMatcher:
        twin = AutomatonMatcher(self._of, self._state)
        twin._past = self._past.copy()
        twin._ended = self._ended
        return twin

    def forced(self, recent: Sequence[int] = ()) -> list[int]:
        if self._ended:
            return []
        automaton, vocabulary = self._of.automaton, self._of.vocabulary
        run, after = forced_run(automaton, self._state)
        if not run:
            return []
        return canonical(
            vocabulary,
            recent,
            run,
            lambda node: len(allowed_tokens(automaton, after, vocabulary.trie, node)) > 0,
            final=not len(automaton.exits(after)),
        )

    def allows_end(self) -> bool:
        return self._ended or self._of.automaton.final(self._state)

    def done(self) -> bool:
        return self._ended or (self._of.automaton.final(self._state) and not len(self._of.automaton.exits(self._state)))

    def problem(self) -> str:
        return ""
