"""Prompt lookup: what a text goes on with is guessed from where its last tokens came before, in itself or in the texts
of its siblings (Saxena 2023, "Prompt Lookup Decoding"; Yang et al. 2023, "Inference with Reference").

A text is searched from scratch each time, by comparisons of whole arrays. An index of n-grams would answer sooner, but
would have to be built for each prompt, and few prompts are asked of often enough: of 2,000 tokens that took 1.3 ms,
where a search of them takes 9 us, and one of 32,000 takes 30 us (on the 2-core machine that this was developed on).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

# The longest run of last tokens that is compared, and how many must agree.
_DEPTH = 8
_LEAST = 2
# Requests are siblings where so many first tokens agree (all, if a prompt has fewer): what stands below a root of the
# radix tree. How many families are remembered, and how many tokens of each.
_HEAD = 32
_FAMILIES = 64
_REMEMBERED = 8192
# A token that no text has stands between two of them.
_GAP = -1


class Place(NamedTuple):
    """Where a text may be read on: the index of the next token, and how many tokens before it agree."""

    next: int
    depth: int


def find(text: np.ndarray, tail: np.ndarray) -> Place | None:
    """The place in `text` (int32 [T]), short of its end, behind the longest run of tokens that ends as `tail` (int32
    [>= 2]) does; of several, the last. None where not even two tokens agree."""
    if len(tail) < _LEAST or len(text) <= _LEAST:
        return None
    ends = np.flatnonzero((text[1:-1] == tail[-1]) & (text[:-2] == tail[-2])) + 1
    if not len(ends):
        return None
    depth = _LEAST
    while depth < min(_DEPTH, len(tail)):
        # A run that would begin before the text reads from its other end: it is put out of the way.
        longer = ends[(text[ends - depth] == tail[-depth - 1]) & (ends >= depth)]
        if not len(longer):
            break
        ends, depth = longer, depth + 1
    return Place(int(ends[-1]) + 1, depth)


class Guess(NamedTuple):
    """Tokens that may come next, and how many that came before them agree with the place that says so."""

    tokens: list[int]
    depth: int


def guess(text: np.ndarray, family: Family | None, most: int) -> Guess | None:
    """At most so many tokens that may come behind `text` (int32 [T]), by itself or by its siblings' texts. None where
    neither says anything."""
    tail = text[-_DEPTH:]
    own = find(text, tail)
    if family is not None and (own is None or own.depth < _DEPTH):
        other = find(family.tokens, tail)
        if other is not None and (own is None or other.depth > own.depth):
            found: list[int] = family.tokens[other.next : other.next + most].tolist()
            found = found[: found.index(_GAP)] if _GAP in found else found
            if found:
                return Guess(found, other.depth)
    if own is None:
        return None
    # At the end of what there is, the text goes round: a loop is guessed to go on.
    ahead: list[int] = text[own.next : own.next + most].tolist()
    return Guess((ahead * (most // len(ahead) + 1))[:most], own.depth)


class Family:
    """What requests that begin alike have written lately; `tokens` int32 [T], with gaps between texts."""

    def __init__(self) -> None:
        self._store = np.full(256, _GAP, np.int32)
        self._size = 0

    @property
    def tokens(self) -> np.ndarray:
        return self._store[: self._size]

    def add(self, text: np.ndarray) -> None:
        """One more piece of a text, int32 [n]; the oldest are forgotten."""
        text = text[-_REMEMBERED // 2 :]
        need = len(text) + 1
        if self._size + need > _REMEMBERED:
            kept = self._store[self._size - _REMEMBERED // 4 : self._size]
            self._store[: len(kept)] = kept
            self._size = len(kept)
        if self._size + need > len(self._store):
            self._store = np.concatenate([self._store, np.empty(max(len(self._store), need), np.int32)])
        self._store[self._size : self._size + len(text)] = text
        self._size += need
        self._store[self._size - 1] = _GAP


class Families:
    """The families that were asked of lately. What is written in one namespace is never guessed in another."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, bytes], Family] = OrderedDict()

    def of(self, prompt: np.ndarray, namespace: str) -> Family:
        """The family of a prompt, int32 [P]."""
        key = (namespace, prompt[:_HEAD].tobytes())
        family = self._known.get(key)
        if family is None:
            family = self._known[key] = Family()
            if len(self._known) > _FAMILIES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return family
