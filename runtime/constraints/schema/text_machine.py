"""Strings byte by byte, with exact look-ahead: a state is alive only if some string can still be completed.

Lengths are counted beside the automaton of the patterns. Whether a state and a count can still be completed is asked
of the lengths that texts from the state on have: the set of states with a text of k characters follows from that for
k - 1, so the sets repeat from some k on, and finding the repetition makes every answer exact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from threading import Lock
from time import monotonic
from typing import Any, Protocol

import numpy as np

from palmette.runtime.constraints.automaton import Automaton, TrieAutomaton
from palmette.runtime.constraints.automaton_characters import build
from palmette.runtime.constraints.determinize import Characters, TooLarge
from palmette.runtime.constraints.regex_language import Language

MAX_STATES = 20_000
SECONDS = 2.0
_MAX_CELLS = 50_000_000  # of the lengths' bits; and a fourth of it of the costs' ints
_FAR = 1 << 29
# Of a shortest value. References that each ask for two of the next double it with every one of them, and no model
# writes as much.
MOST_BYTES = 1 << 20


def too_long() -> TooLarge:
    return TooLarge(f"{MOST_BYTES:,} bytes for the shortest value")


class TextMachine(Protocol):
    """A set of strings, not empty, as an automaton over their UTF-8. States are hashable; what they hold is private."""

    @property
    def start(self) -> Hashable: ...

    def step(self, state: Any, byte: int) -> Any | None:
        """The state after one more byte; None when no string goes on so."""
        ...

    def exits(self, state: Any) -> Iterator[tuple[int, Any]]:
        """The bytes that may follow, ascending, each with the state after it."""
        ...

    def final(self, state: Any) -> bool:
        """Whether the string may end here."""
        ...

    def shortest(self, state: Any) -> bytes:
        """The fewest bytes that complete the string; of equally few, readable ones."""
        ...

    def longest(self) -> int:
        """No shortest completion, whatever the state, has more bytes than this."""
        ...

    def free(self, state: Any) -> bool:
        """Whether the string can be completed after any characters whatsoever. Asked between two characters; within
        one the answer is False."""
        ...

    def universal(self, state: Any) -> bool:
        """Whether the string may go on as any string whatsoever, or end."""
        ...

    def count_at_least(self, n: int) -> bool:
        """Whether there are `n` strings or more."""
        ...


def _exits(automaton: Automaton, state: int) -> Iterator[tuple[int, int]]:
    for byte in automaton.exits(state).tolist():
        yield byte, automaton.step(state, byte)


class ListedMachine:
    """The given strings and no others."""

    def __init__(self, strings: frozenset[str]) -> None:
        """ValueError when there are none."""
        if not strings:
            raise ValueError("the set of strings is empty")
        self._count = len(strings)
        self._trie = TrieAutomaton(sorted(s.encode("utf-8", "surrogatepass") for s in strings))
        self.start = self._trie.start

    def step(self, state: int, byte: int) -> int | None:
        to = self._trie.step(state, byte)
        return to if to >= 0 else None

    def exits(self, state: int) -> Iterator[tuple[int, int]]:
        return _exits(self._trie, state)

    def final(self, state: int) -> bool:
        return self._trie.final(state)

    def shortest(self, state: int) -> bytes:
        return self._trie.shortest_end(state)

    def longest(self) -> int:
        return self._trie.longest_end()

    def free(self, state: int) -> bool:
        return False

    def universal(self, state: int) -> bool:
        return False

    def count_at_least(self, n: int) -> bool:
        return self._count >= n


# UTF-8 as an automaton (RFC 3629): per state the bytes that may follow, each range with the state after it; 0 stands
# between characters.
_UTF8: tuple[tuple[tuple[int, int, int], ...], ...] = (
    (
        *((0x00, 0x7F, 0), (0xC2, 0xDF, 1), (0xE0, 0xE0, 4), (0xE1, 0xEC, 2), (0xED, 0xED, 5), (0xEE, 0xEF, 2)),
        *((0xF0, 0xF0, 6), (0xF1, 0xF3, 3), (0xF4, 0xF4, 7)),
    ),
    ((0x80, 0xBF, 0),),
    ((0x80, 0xBF, 1),),
    ((0x80, 0xBF, 2),),
    ((0xA0, 0xBF, 1),),
    ((0x80, 0x9F, 1),),
    ((0x90, 0xBF, 2),),
    ((0x80, 0x8F, 2),),
)
_NEXT = [{b: to for lo, hi, to in ranges for b in range(lo, hi + 1)} for ranges in _UTF8]
_READABLE = sorted(range(256), key=lambda b: (not 0x61 <= b <= 0x7A, not 0x41 <= b <= 0x5A, not 0x30 <= b <= 0x39, b))
_Except = tuple[int, int, int, int]
_PRINTABLE = 95  # the characters of one byte that every reader shows


class ExceptMachine:
    """All strings but the given ones.

    A state: (first, last, size, u), the text's `size` bytes being the beginning of those from `first` to before `last`
    of the strings, in order (0, 0, 0: of none), and u where it stands in UTF-8.
    """

    def __init__(self, strings: frozenset[str]) -> None:
        self._out = sorted(s.encode("utf-8", "surrogatepass") for s in strings)
        self.start = (0, len(self._out), 0, 0)
        # Of so many printable characters there are more texts than strings that are left out.
        self._further = 1
        while _PRINTABLE**self._further <= len(strings):
            self._further += 1

    def step(self, state: _Except, byte: int) -> _Except | None:
        first, last, size, u = state
        to = _NEXT[u].get(byte)
        if to is None:
            return None
        first += first < last and len(self._out[first]) == size
        first = bisect_left(self._out, byte, first, last, key=lambda s: s[size])
        last = bisect_right(self._out, byte, first, last, key=lambda s: s[size])
        return (first, last, size + 1, to) if first < last else (0, 0, 0, to)

    def exits(self, state: _Except) -> Iterator[tuple[int, _Except]]:
        for byte in _NEXT[state[3]]:
            to = self.step(state, byte)
            assert to is not None
            yield byte, to

    def final(self, state: _Except) -> bool:
        first, last, size, u = state
        return u == 0 and not (first < last and len(self._out[first]) == size)

    def shortest(self, state: _Except) -> bytes:
        level = {state: b""}
        seen = {state}
        while True:
            for at, text in level.items():
                if self.final(at):
                    return text
            following: dict[_Except, bytes] = {}
            for at, text in level.items():
                for byte in _READABLE:
                    to = self.step(at, byte)
                    if to is not None and to not in seen:
                        seen.add(to)
                        following[to] = text + bytes([byte])
            level = following

    def longest(self) -> int:
        return 3 + self._further

    def free(self, state: _Except) -> bool:
        return state[3] == 0

    def universal(self, state: _Except) -> bool:
        first, last, _, u = state
        return u == 0 and first == last

    def count_at_least(self, n: int) -> bool:
        return True


class _Lengths:
    """Per state of an automaton over characters, how many characters its texts have."""

    def __init__(self, automaton: Characters, most: int | None) -> None:
        """most: greater lengths are never asked for, unless all lengths are known."""
        source, column = np.nonzero(automaton.table >= 0)
        pairs = np.unique(np.column_stack([source, automaton.table[source, column]]), axis=0)
        source, target = pairs[:, 0], pairs[:, 1]
        n = len(automaton.table)
        here, rows, seen = automaton.final, [], dict[bytes, int]()
        while (packed := np.packbits(here).tobytes()) not in seen and (most is None or len(rows) <= most):
            seen[packed] = len(rows)
            rows.append(here)
            if len(rows) * n > _MAX_CELLS:
                raise TooLarge(f"{_MAX_CELLS:,} possible lengths")
            after = np.zeros(n, bool)
            after[source[here[target]]] = True
            here = after
        self._before = seen.get(packed, len(rows))  # from here on the rows repeat,
        self._period = max(1, len(rows) - self._before)  # so many at a time
        # Bit k of bits[q]: q has a text of k characters. Two periods, so that any stretch of one lies within them.
        columns = np.packbits(np.array(rows + rows[self._before :]), axis=0, bitorder="little")
        self.bits = [int.from_bytes(columns[:, q].tobytes(), "little") for q in range(n)]

    def some(self, bits: int, least: int, most: int | None) -> bool:
        """Whether a state with these bits has a text of `least` to `most` characters."""
        if least > self._before:
            back = (least - self._before) // self._period * self._period
            least, most = least - back, None if most is None else most - back
        last = max(least, self._before) + self._period - 1
        most = last if most is None else min(most, last)
        return most >= least and (bits >> least) & ((1 << (most - least + 1)) - 1) != 0


class WalkingMachine:
    """The strings of a language that have `least` to `most` characters.

    A state: that of the automaton, and where lengths are asked for the characters so far (not counted beyond
    `least` where there is no `most`), as state + count * states.
    """

    def __init__(self, language: Language, least: int, most: int | None) -> None:
        """ValueError when there are none; TooLarge."""
        self._bytes = build(language, max_states=MAX_STATES, deadline=monotonic() + SECONDS)
        self._characters = automaton = self._bytes.characters
        self._n, self._width = len(self._bytes), self._bytes.width
        self._least, self._most = least, most
        self._counted = least > 0 or most is not None
        self._free: np.ndarray | None = None
        self._lock = Lock()
        self.start = self._bytes.start
        if self._counted:
            self._lengths = _Lengths(automaton, most)
            if not self._alive(self.start, 0):
                raise ValueError("the set of strings is empty")
            # The fewest bytes of a text of so many characters from each state on; the last entry is no state's.
            first = np.full(len(automaton.table) + 1, _FAR, np.int32)
            first[:-1][automaton.final] = 0
            self._costs = [first]
            self._pace = 0

    def _alive(self, state: int, count: int) -> bool:
        """state: of the byte automaton."""
        done = count + (state % self._width > 0)
        most = None if self._most is None else self._most - done
        return any(
            self._lengths.some(self._lengths.bits[q], max(0, self._least - done), most)
            for _, q in self._bytes.between(state)
        )

    def step(self, state: int, byte: int) -> int | None:
        if not self._counted:
            to = self._bytes.step(state, byte)
            return to if to >= 0 else None
        count, at = divmod(state, self._n)
        to = self._bytes.step(at, byte)
        if to < 0:
            return None
        if to % self._width == 0 and (self._most is not None or count < self._least):
            count += 1
        return to + count * self._n if self._alive(to, count) else None

    def exits(self, state: int) -> Iterator[tuple[int, int]]:
        for byte in self._bytes.exits(state % self._n).tolist():
            if (to := self.step(state, byte)) is not None:
                yield byte, to

    def final(self, state: int) -> bool:
        count, at = divmod(state, self._n)
        return self._bytes.final(at) and (not self._counted or count >= self._least)

    def longest(self) -> int:
        if not self._counted:
            return self._bytes.longest_end()
        # Of n states, each pair of a state and a length modulo a period is met once at the most.
        characters = self._least + len(self._characters.table) ** 2
        return 4 * (characters if self._most is None else min(self._most, characters))

    def free(self, state: int) -> bool:
        if self._most is not None:
            return False
        if self._free is None:
            self._free = self._all_free()
        q, u = divmod(state % self._n, self._width)
        return u == 0 and bool(self._free[q])

    def universal(self, state: int) -> bool:
        return len(self._characters.table) == 1 and not self._counted and self.final(state) and self.free(state)

    def _all_free(self) -> np.ndarray:
        """The states between characters from which every character leads to such a state again; bool."""
        table, ranges = self._characters.table, self._characters.ranges
        free = np.zeros(len(table) + 1, bool)
        if sum(hi - lo + 1 for part in ranges for lo, hi in part) == 0x110000 - 0x800:
            free[:-1] = True
            while (still := free[table].all(axis=1)).sum() != free.sum():
                free[:-1] = still & free[:-1]
        return free[:-1]

    def shortest(self, state: int) -> bytes:
        if not self._counted:
            return self._bytes.shortest_end(state)
        count, inside = divmod(state, self._n)
        best: tuple[int, bytes, int, int] | None = None
        for begun, at in self._bytes.between(inside):
            done = count + bool(begun)
            k = max(0, self._least - done)
            if not self._alive(at * self._width, done):
                continue
            while (self._most is None or k <= self._most - done) and (best is None or k + len(begun) < best[0]):
                cost = len(begun) + int(self._cost(k)[at])
                if cost < (_FAR if best is None else best[0]):
                    best = (cost, begun, at, k)
                k += 1
        assert best is not None, "a living state has a completion"
        size, text, at, k = best
        if size > MOST_BYTES:
            raise too_long()
        out = bytearray(text)
        while k:
            ways = self._bytes.spelling.costs + self._cost(k - 1)[self._characters.table[at]]
            symbol = int(np.argmin(ways))
            to = int(self._characters.table[at, symbol])
            # Where costs grow evenly, the same step is the best one again.
            times = max(1, k - len(self._costs)) if to == at and self._pace else 1
            out += self._bytes.spelling.signs[symbol] * times
            at, k = to, k - times
        return bytes(out)

    def _cost(self, k: int) -> np.ndarray:
        """The fewest bytes of a text of k characters from each state on; int32 [states + 1], the last no state's."""
        with self._lock:
            table, signs, costs = self._characters.table, self._bytes.spelling.costs, self._costs
            while len(costs) <= k and not self._pace:
                if (k + 1) * len(table) > _MAX_CELLS // 4:
                    raise TooLarge(f"{_MAX_CELLS // 4:,} lengths of completions")
                cost = np.full(len(table) + 1, _FAR, np.int32)
                if len(signs):
                    cost[:-1] = np.minimum((costs[-1][table] + signs).min(axis=1), _FAR)
                # Once all grow by the same, they do so for good: a row follows from the one before alone.
                more = np.unique((cost - costs[-1])[cost < _FAR])
                if len(more) == 1 and ((cost < _FAR) == (costs[-1] < _FAR)).all():
                    self._pace = int(more[0])
                costs.append(cost)
            if k < len(costs):
                return costs[k]
            return np.minimum(costs[-1] + self._pace * (k - len(costs) + 1), _FAR)

    def count_at_least(self, n: int) -> bool:
        if self._most is None and self._endless():
            return True
        level, found = {self.start: 1}, 0
        while level:
            found += sum(times for state, times in level.items() if self.final(state))
            # Each beginning of a string leads to one at least, and to others than every other beginning does.
            longer = sum(times for state, times in level.items() if not self.final(state))
            if found + longer >= n:
                return True
            following: dict[int, int] = {}
            for state, times in level.items():
                for _, to in self.exits(state):
                    following[to] = following.get(to, 0) + times
            level = following
        return False

    def _endless(self) -> bool:
        """Whether the language has texts of any length, as all do whose automaton has a cycle."""
        table = self._characters.table
        entries = np.bincount(table[table >= 0], minlength=len(table))
        gone = list(np.flatnonzero(entries == 0))
        for q in gone:  # grows as it is walked
            for to in table[q][table[q] >= 0]:
                entries[to] -= 1
                if not entries[to]:
                    gone.append(to)
        return len(gone) < len(table)
