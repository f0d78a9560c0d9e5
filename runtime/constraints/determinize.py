"""From a regex's tree to an automaton over characters, within a budget of states and time.

1. Every character class of the tree becomes a position, counted repeats written out (Glushkov 1961). What may come
   next is a set of positions; END is in it where the text may end.
2. The sets that can be reached are the states (subset construction), over symbols: sets of characters that no class
   tells apart. A language with conditions runs all its parts side by side and decides at the end.
3. States that lead nowhere are dropped, equal ones merged (Moore 1956).

outlines-core's Index over the 256 bytes would do that for plain patterns (CONSTRAINTS.md §4.3), but can neither be
bounded nor stopped: `[ab]*a[ab]{30}` would take the whole machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator
from secrets import randbits
from time import monotonic
from typing import NamedTuple, TypeVar

import numpy as np

from palmette.runtime.constraints.charset import CharSet
from palmette.runtime.constraints.regex_language import Language
from palmette.runtime.constraints.regex_positions import END, Positions
from palmette.runtime.constraints.regex_positions import TooLarge as TooLarge
from palmette.runtime.constraints.regex_syntax import Node

_READING_SECONDS = 2.0
_MAX_WORK = 20_000_000  # positions looked at while the states are made
_MOORE_ROUNDS = 24
_MOORE_STATES = 4000

_State = frozenset[int]
_DEAD: _State = frozenset()


class _Part:
    """One tree run over symbols. A state: the positions that may come next, and END when the text may end here."""

    def __init__(self, node: Node, deadline: float) -> None:
        positions = Positions(node, deadline)
        known: dict[CharSet, int] = {}
        self.class_of = [known.setdefault(chars, len(known)) for chars in positions.classes]
        self.classes = list(known)
        self.start, self._follow = positions.start, positions.follow
        self.symbols_of: list[list[int]] = [[] for _ in known]
        self.symbols = 0
        self.work = 0
        self._memo: dict[_State, list[_State]] = {}

    def after(self, state: _State) -> list[_State]:
        """The state after each symbol; kept for when it is asked for again."""
        row = self._memo.get(state)
        if row is None:
            row = self._memo[state] = self.row(state)
        return row

    def row(self, state: _State) -> list[_State]:
        """The state after each symbol."""
        row = [_DEAD] * self.symbols
        groups: dict[int, list[int]] = {}
        for p in state:
            if p != END:
                groups.setdefault(self.class_of[p], []).append(p)
        for c, taken in groups.items():
            to = self._follow[taken[0]]
            if len(taken) > 1:
                to = to.union(*(self._follow[p] for p in taken[1:]))
            self.work += len(taken) + len(to)
            for symbol in self.symbols_of[c]:
                row[symbol] = row[symbol] | to if row[symbol] else to
        return row


def _parts(language: Language, into: list[Node]) -> None:
    for branch in language.branches:
        into.append(branch.body)
        for condition in branch.conditions:
            _parts(condition.language, into)


def _alive(language: Language, states: tuple[_State, ...], at: int = 0) -> tuple[bool, int]:
    """Whether a text of the language may still come as far as its branches' bodies and the conditions that hold can
    tell, given the states of its parts from `at` on; and where the parts behind it begin."""
    found = False
    for branch in language.branches:
        good, at = bool(states[at]), at + 1
        for condition in branch.conditions:
            alive, at = _alive(condition.language, states, at)
            good &= alive or not condition.holds
        found |= good
    return found, at


def _final(language: Language, ends: Iterator[bool]) -> bool:
    """Whether the text is in the language, given for each of its parts, in order, whether it may end here."""
    found = False
    for branch in language.branches:
        good = next(ends)
        for condition in branch.conditions:
            good &= _final(condition.language, ends) is condition.holds
        found |= good
    return found


class _Side(NamedTuple):
    """The parts of a language side by side. firsts: the characters with which blocks begin that no class divides;
    symbols: per block its symbol, or -1; ranges: per symbol the characters that it stands for."""

    parts: list[_Part]
    firsts: list[int]
    symbols: list[int]
    ranges: list[list[tuple[int, int]]]


def _side_by_side(language: Language, deadline: float) -> _Side:
    nodes: list[Node] = []
    _parts(language, nodes)
    parts = [_Part(node, deadline) for node in nodes]
    edges = {0, 0xD800, 0xE000}
    for part in parts:
        for chars in part.classes:
            for lo, hi in chars:
                edges.add(lo)
                edges.add(hi + 1)
    edges.discard(0x110000)
    firsts = sorted(edges)
    holding: list[list[tuple[int, int]]] = [[] for _ in firsts]
    for i, part in enumerate(parts):
        for c, chars in enumerate(part.classes):
            for lo, hi in chars:
                for b in range(bisect_right(firsts, lo) - 1, bisect_right(firsts, hi)):
                    holding[b].append((i, c))
    # Blocks that all classes treat alike are one symbol.
    known: dict[tuple[tuple[int, int], ...], int] = {}
    symbols: list[int] = []
    ranges: list[list[tuple[int, int]]] = []
    for b, (lo, classes) in enumerate(zip(firsts, holding, strict=True)):
        if lo == 0xD800 or not classes:
            symbols.append(-1)
            continue
        symbol = known.setdefault(tuple(classes), len(known))
        if symbol == len(ranges):
            ranges.append([])
            for i, c in classes:
                parts[i].symbols_of[c].append(symbol)
        symbols.append(symbol)
        ranges[symbol].append((lo, firsts[b + 1] - 1 if b + 1 < len(firsts) else 0x10FFFF))
    for part in parts:
        part.symbols = len(ranges)
    return _Side(parts, firsts, symbols, ranges)


class Recognizer:
    """Tells whether a text is in a language, one character after another, with no automaton built."""

    def __init__(self, language: Language) -> None:
        """TooLarge where the language has too many positions."""
        self._language = language
        self._parts, self._firsts, self._symbols, _ = _side_by_side(language, monotonic() + _READING_SECONDS)

    def accepts(self, text: str) -> bool:
        states = [part.start for part in self._parts]
        for c in text:
            symbol = self._symbols[bisect_right(self._firsts, ord(c)) - 1]
            if symbol < 0:
                states = [_DEAD] * len(states)
                break
            states = [part.after(state)[symbol] for part, state in zip(self._parts, states, strict=True)]
            if not any(states):
                break
        return _final(self._language, iter([END in state for state in states]))


class Characters(NamedTuple):
    """A deterministic automaton over characters, from each of whose states some text leads to a final one.

    table: int32 [states, symbols], -1 where there is no step; final: bool [states]; ranges: per symbol the characters
    that it stands for (a character of no symbol has no step anywhere).
    """

    table: np.ndarray
    final: np.ndarray
    start: int
    ranges: list[list[tuple[int, int]]]


def characters(language: Language, *, max_states: int, deadline: float) -> Characters:
    """The automaton of the language, which is not empty as far as its bodies go.

    deadline: by `time.monotonic`. TooLarge when it is passed, or more than max_states are needed. ConstraintError is
    not raised here; a language that its conditions leave empty gives ValueError.
    """
    if monotonic() > deadline:
        raise TooLarge("the time for compiling", expired=True)
    parts, _, _, ranges_of = _side_by_side(language, deadline)
    if len(parts) == 1:
        queue, blocks = _explore(parts, parts[0].start, parts[0].row, bool, max_states, deadline)
        final = np.array([END in state for state in queue])
    else:
        plain = len(parts) == len(language.branches)
        sides, blocks = _explore(
            parts,
            tuple(part.start for part in parts),
            lambda state: zip(*(part.after(here) for part, here in zip(parts, state, strict=True)), strict=True),
            any if plain else lambda state: _alive(language, state)[0],
            max_states,
            deadline,
        )
        final = np.array([_final(language, iter([END in part for part in state])) for state in sides])
    table = np.concatenate([np.empty((0, len(ranges_of)), np.int32), *blocks])
    table, final, first = _minimize(*_prune(table, final))
    return Characters(table, final, first, ranges_of)


_S = TypeVar("_S", bound=Hashable)


def _explore(
    parts: list[_Part],
    start: _S,
    after: Callable[[_S], Iterable[_S]],
    alive: Callable[[_S], bool],
    max_states: int,
    deadline: float,
) -> tuple[list[_S], list[np.ndarray]]:
    """All states that can be reached, and the rows of their table, in pieces. TooLarge."""
    numbers = {start: 0}
    queue = [start]
    blocks: list[np.ndarray] = []
    steps: list[list[int]] = []
    for state in queue:  # grows as it is walked
        if len(steps) == 64:
            # In pieces: one long conversion would hold up all other threads.
            blocks.append(np.array(steps, np.int32))
            steps = []
            if monotonic() > deadline:
                raise TooLarge("the time for compiling", expired=True)
            if sum(part.work for part in parts) > _MAX_WORK:
                raise TooLarge("the memory for compiling")
        row = []
        for to in after(state):
            if not alive(to):
                row.append(-1)
                continue
            number = numbers.setdefault(to, len(numbers))
            if number == len(queue):
                if number >= max_states:
                    raise TooLarge(f"{max_states:,} states")
                queue.append(to)
            row.append(number)
        steps.append(row)
    blocks.append(np.array(steps, np.int32).reshape(len(steps), -1))
    return queue, blocks


def _prune(table: np.ndarray, final: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The table without steps to states from which no final one can be reached. States keep their numbers."""
    n = len(table)
    source, column = np.nonzero(table >= 0)
    target = table[source, column]
    order = np.argsort(target, kind="stable")
    source, target = source[order], target[order]
    lo, hi = np.searchsorted(target, np.arange(n)), np.searchsorted(target, np.arange(n), "right")
    live = final.copy()
    stack = list(np.flatnonzero(final))
    while stack:
        state = stack.pop()
        for before in source[lo[state] : hi[state]]:
            if not live[before]:
                live[before] = True
                stack.append(before)
    if not live[0]:
        raise ValueError("the language is empty")
    return np.where((table >= 0) & live[table], table, -1).astype(np.int32), final


def _minimize(table: np.ndarray, final: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Equal states merged, and the start. Long chains (wide counts) need as many rounds as they have links; those are
    given up, and the table stays as it is."""
    if len(table) > _MOORE_STATES:
        return table, final, 0
    weights = np.random.default_rng(randbits(64)).integers(-(1 << 62), 1 << 62, table.shape[1] + 1)
    block = final.astype(np.int64)
    count = len(np.unique(block))
    for _ in range(_MOORE_ROUNDS):
        after = np.where(table >= 0, block[table], -1)
        # Rows are told apart by random sums; that two different ones get the same is as good as impossible.
        _, refined = np.unique(block * weights[0] + after @ weights[1:], return_inverse=True)
        block, same = refined, count == int(refined.max()) + 1
        count = int(refined.max()) + 1
        if same:
            break
    else:
        return table, final, 0
    _, keep = np.unique(block, return_index=True)
    merged = np.where(table[keep] >= 0, block[table[keep]], -1).astype(np.int32)
    return merged, final[keep], int(block[0])
