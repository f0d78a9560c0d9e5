"""From a regex's tree to a byte automaton, within a budget of states and time.

1. Every character class of the tree becomes a position, counted repeats written out (Glushkov 1961). What may come
   next is a set of positions, held as the bits of an int.
2. The sets that can be reached are the states (subset construction), over blocks of characters that no class tells
   apart. A language with conditions runs all its parts side by side and decides at the end.
3. States that lead nowhere are dropped, equal ones merged (Moore 1956), and each step over characters is written
   out in the bytes of UTF-8, equal tails shared.

outlines-core's Index over the 256 bytes would do 1 to 3 for plain patterns (CONSTRAINTS.md §4.3), but can neither be
bounded nor stopped: `[ab]*a[ab]{30}` would take the whole machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import numpy as np

from palmette.runtime.constraints.automaton import TableAutomaton
from palmette.runtime.constraints.charset import CharSet, utf8
from palmette.runtime.constraints.regex_language import Language
from palmette.runtime.constraints.regex_syntax import Alt, Chars, Node, Repeat, Seq

_MAX_POSITIONS = 20_000
_MOORE_ROUNDS = 24
_MOORE_STATES = 4000


class TooLarge(Exception):
    """The automaton went over its budget; `limit` says which in words, `expired`: it was the time."""

    def __init__(self, limit: str, *, expired: bool = False) -> None:
        super().__init__(limit)
        self.limit = limit
        self.expired = expired


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of the tree as positions: bits of those that begin and end its texts."""

    nullable: bool
    first: int
    last: int


class _Positions:
    """The positions of one tree: `classes[p]`, `follow[p]` (bits of the positions that may come after p)."""

    def __init__(self, node: Node) -> None:
        if _count(node) > _MAX_POSITIONS:
            raise TooLarge(f"{_MAX_POSITIONS:,} character positions")
        self.classes: list[CharSet] = []
        self.follow: list[int] = []
        span = self._span(node)
        self.first, self.last, self.nullable = span.first, span.last, span.nullable

    def _span(self, node: Node) -> _Span:
        if isinstance(node, Chars):
            self.classes.append(node.chars)
            self.follow.append(0)
            bit = 1 << (len(self.classes) - 1)
            return _Span(False, bit, bit)
        if isinstance(node, Seq):
            span = _Span(True, 0, 0)
            for item in node.items:
                span = self._join(span, self._span(item))
            return span
        if isinstance(node, Alt):
            spans = [self._span(option) for option in node.options]
            first = last = 0
            for span in spans:
                first, last = first | span.first, last | span.last
            return _Span(any(span.nullable for span in spans), first, last)
        assert isinstance(node, Repeat)
        span = _Span(True, 0, 0)
        for _ in range(node.least - (node.most is None and node.least > 0)):
            span = self._join(span, self._span(node.body))
        if node.most is None:
            loop = self._span(node.body)
            for p in _bits(loop.last):
                self.follow[p] |= loop.first
            return self._join(span, _Span(loop.nullable or node.least == 0, loop.first, loop.last))
        # x{0,3} as (x(x(x)?)?)?, built from the inside, so that a position is followed by one copy only.
        rest = _Span(True, 0, 0)
        for _ in range(node.most - node.least):
            rest = self._join(self._span(node.body), rest)
            rest = _Span(True, rest.first, rest.last)
        return self._join(span, rest)

    def _join(self, a: _Span, b: _Span) -> _Span:
        if b.first:
            for p in _bits(a.last):
                self.follow[p] |= b.first
        return _Span(
            a.nullable and b.nullable,
            a.first | (b.first if a.nullable else 0),
            b.last | (a.last if b.nullable else 0),
        )


def _count(node: Node) -> int:
    """Positions of the node, counted before they are made."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Seq):
        return sum(map(_count, node.items))
    if isinstance(node, Alt):
        return sum(map(_count, node.options))
    assert isinstance(node, Repeat)
    return _count(node.body) * max(node.least, node.most or 1)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _Part:
    """One tree run over blocks of characters. A state: bits of the positions that may come next, and one more bit,
    the highest, when the text may end here."""

    def __init__(self, node: Node) -> None:
        self.positions = _Positions(node)
        self.end = 1 << len(self.positions.classes)
        self.start = self.positions.first | (self.end if self.positions.nullable else 0)
        self._memo: dict[int, int] = {}

    def by_block(self, blocks: list[int]) -> list[int]:
        """Per block (given by its first character) the positions whose class holds it."""
        masks = [0] * len(blocks)
        for p, chars in enumerate(self.positions.classes):
            for lo, hi in chars:
                for b in range(bisect_right(blocks, lo) - 1, bisect_right(blocks, hi)):
                    masks[b] |= 1 << p
        return masks

    def after(self, taken: int) -> int:
        """The state after a character of all the positions `taken`."""
        state = self._memo.get(taken)
        if state is None:
            state = self.end if taken & self.positions.last else 0
            for p in _bits(taken):
                state |= self.positions.follow[p]
            self._memo[taken] = state
        return state


def _parts(language: Language, into: list[Node]) -> None:
    for branch in language.branches:
        into.append(branch.body)
        for condition in branch.conditions:
            _parts(condition.language, into)


def _alive(language: Language, states: tuple[int, ...], at: int = 0) -> tuple[bool, int]:
    """Whether a text of the language may still come as far as its branches' bodies and the conditions that hold can
    tell, given the states of its parts from `at` on; and where the parts behind it begin."""
    found = False
    for branch in language.branches:
        good, at = states[at] != 0, at + 1
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


def _blocks(parts: list[_Part]) -> tuple[list[int], list[int]]:
    """The first and last characters of the ranges in which no class of any part has an edge."""
    edges = {0, 0xD800, 0xE000}
    for part in parts:
        for chars in dict.fromkeys(part.positions.classes):
            for lo, hi in chars:
                edges.add(lo)
                edges.add(hi + 1)
    edges.discard(0x110000)
    firsts = sorted(edges)
    return firsts, [*(e - 1 for e in firsts[1:]), 0x10FFFF]


class Recognizer:
    """Tells whether a text is in a language, one character after another, with no automaton built."""

    def __init__(self, language: Language) -> None:
        """TooLarge where the language has too many positions."""
        nodes: list[Node] = []
        _parts(language, nodes)
        self._language = language
        self._machine = [_Part(node) for node in nodes]
        self._firsts, _ = _blocks(self._machine)
        self._masks = [part.by_block(self._firsts) for part in self._machine]

    def accepts(self, text: str) -> bool:
        states = [part.start for part in self._machine]
        for c in text:
            block = bisect_right(self._firsts, ord(c)) - 1
            states = [
                part.after(state & masks[block])
                for part, state, masks in zip(self._machine, states, self._masks, strict=True)
            ]
        return _final(self._language, iter([bool(s & p.end) for s, p in zip(states, self._machine, strict=True)]))


class Characters(NamedTuple):
    """A deterministic automaton over characters, from each of whose states some text leads to a final one.

    table: int32 [states, symbols], -1 where there is no step; final: bool [states]; ranges: per symbol the characters
    that it stands for (a character of no symbol has no step anywhere).
    """

    table: np.ndarray
    final: np.ndarray
    start: int
    ranges: list[list[tuple[int, int]]]


def build(language: Language, *, max_states: int, deadline: float) -> TableAutomaton:
    """The automaton of the language over bytes; bounds and errors as for `characters`."""
    return to_bytes(characters(language, max_states=max_states, deadline=deadline), max_states)


def characters(language: Language, *, max_states: int, deadline: float) -> Characters:
    """The automaton of the language, which is not empty as far as its bodies go.

    deadline: by `time.monotonic`. TooLarge when it is passed, or more than max_states are needed. ConstraintError is
    not raised here; a language that its conditions leave empty gives ValueError.
    """
    nodes: list[Node] = []
    _parts(language, nodes)
    parts = [_Part(node) for node in nodes]
    firsts, lasts = _blocks(parts)
    # Ranges that all classes treat alike are one symbol.
    signatures: dict[tuple[int, ...], int] = {}
    ranges_of: list[list[tuple[int, int]]] = []
    masks = [part.by_block(firsts) for part in parts]
    for b, (lo, hi) in enumerate(zip(firsts, lasts, strict=True)):
        signature = tuple(mask[b] for mask in masks)
        if lo == 0xD800 or not any(signature):
            continue
        symbol = signatures.setdefault(signature, len(signatures))
        if symbol == len(ranges_of):
            ranges_of.append([])
        ranges_of[symbol].append((lo, hi))
    symbols = list(signatures)

    start = tuple(part.start for part in parts)
    numbers = {start: 0}
    queue = [start]
    steps: list[list[int]] = []
    for state in queue:  # grows as it is walked
        if len(steps) % 128 == 0 and monotonic() > deadline:
            raise TooLarge("the time for compiling", expired=True)
        row = []
        for symbol_masks in symbols:
            to = tuple(
                part.after(here & allowed) for part, here, allowed in zip(parts, state, symbol_masks, strict=True)
            )
            if not _alive(language, to)[0]:
                row.append(-1)
                continue
            number = numbers.setdefault(to, len(numbers))
            if number == len(queue):
                if number >= max_states:
                    raise TooLarge(f"{max_states:,} states")
                queue.append(to)
            row.append(number)
        steps.append(row)
    table = np.array(steps, np.int32).reshape(len(queue), len(symbols))
    final = np.array(
        [_final(language, iter([bool(s & p.end) for s, p in zip(state, parts, strict=True)])) for state in queue]
    )
    table, final, first = _minimize(*_prune(table, final))
    return Characters(table, final, first, ranges_of)


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
    _, block = np.unique(final, return_inverse=True)
    count = int(block.max()) + 1
    for _ in range(_MOORE_ROUNDS):
        after = np.where(table >= 0, block[table], -1)
        _, refined = np.unique(np.column_stack([block, after]), axis=0, return_inverse=True)
        refined = refined.reshape(-1)
        if int(refined.max()) + 1 == count:
            break
        block, count = refined, int(refined.max()) + 1
    else:
        return table, final, 0
    _, keep = np.unique(block, return_index=True)
    merged = np.where(table[keep] >= 0, block[table[keep]], -1).astype(np.int32)
    return merged, final[keep], int(block[0])


def to_bytes(automaton: Characters, max_states: int) -> TableAutomaton:
    """States 0 .. n-1 are those of the automaton over characters; further ones stand inside a character, and lead to
    states of lower numbers only. TooLarge when there are more than eight times `max_states`."""
    table, final, start, ranges_of = automaton
    spelled = [[sequence for lo, hi in ranges for sequence in utf8(lo, hi)] for ranges in ranges_of]
    n = len(table)
    inner: dict[tuple[tuple[int, int, int], ...], int] = {}

    def node(sequences: list[tuple[tuple[tuple[int, int], ...], int]], depth: int) -> tuple[tuple[int, int, int], ...]:
        """The steps (first byte, last byte, target) of sequences that are alike before `depth`, in order."""
        edges: list[tuple[int, int, int]] = []
        at = 0
        while at < len(sequences):
            sequence, target = sequences[at]
            lo, hi = sequence[depth]
            end = at + 1
            if depth + 1 < len(sequence):
                while end < len(sequences) and sequences[end][0][depth] == (lo, hi):
                    end += 1
                below = node(sequences[at:end], depth + 1)
                target = inner.setdefault(below, n + len(inner))
                if target > 8 * max_states:
                    raise TooLarge(f"{8 * max_states:,} states over bytes")
            if edges and edges[-1][1] == lo - 1 and edges[-1][2] == target:
                edges[-1] = (edges[-1][0], hi, target)
            else:
                edges.append((lo, hi, target))
            at = end
        return tuple(edges)

    rows: list[tuple[tuple[int, int, int], ...]] = []
    for state in range(n):
        targets = table[state].tolist()
        sequences = [(sequence, to) for symbol, to in enumerate(targets) if to >= 0 for sequence in spelled[symbol]]
        sequences.sort(key=lambda pair: (pair[0][0][0], pair[0]))
        rows.append(node(sequences, 0))
    rows += inner
    steps = np.full((len(rows), 256), -1, np.int32)
    for i, edges in enumerate(rows):
        for lo, hi, target in edges:
            steps[i, lo : hi + 1] = target
    return TableAutomaton(steps, np.concatenate([final, np.zeros(len(inner), bool)]), start)
