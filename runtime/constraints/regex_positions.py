"""The positions of a regex's tree: one for each character class, counted repeats written out, and for each what may
come next (Glushkov 1961)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

from palmette.runtime.constraints.charset import CharSet
from palmette.runtime.constraints.regex_syntax import Alt, Chars, Node, Repeat, Seq

END = -1
"""Stands among what may come next where the text may end."""

_MAX_POSITIONS = 20_000
_MAX_FOLLOWS = 400_000


class TooLarge(Exception):
    """The automaton went over its budget; `limit` says which in words, `expired`: it was the time."""

    def __init__(self, limit: str, *, expired: bool = False) -> None:
        super().__init__(limit)
        self.limit = limit
        self.expired = expired


_Many = tuple["_Many", "_Many"] | list[int]


def _each(many: _Many) -> Iterator[int]:
    """The positions of a sum of lists. Sums are not written out until they are read: a long chain makes many."""
    stack = [many]
    while stack:
        top = stack.pop()
        if isinstance(top, tuple):
            stack += reversed(top)
        else:
            yield from top


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of the tree as positions: those that begin and end its texts."""

    nullable: bool
    first: _Many
    last: _Many


class Positions:
    """The positions of one tree: `classes[p]`, `follow[p]` (what may come after p)."""

    def __init__(self, node: Node, deadline: float) -> None:
        if _count(node) > _MAX_POSITIONS:
            raise TooLarge(f"{_MAX_POSITIONS:,} character positions")
        self.classes: list[CharSet] = []
        self._follow: list[list[int]] = []
        self._deadline = deadline
        self._follows = 0
        span = self._span(node)
        self._link(span.last, [END])
        self.start = frozenset([*_each(span.first), *([END] if span.nullable else [])])
        self.follow: list[frozenset[int]] = [frozenset(follow) for follow in self._follow]

    def _span(self, node: Node) -> _Span:
        if isinstance(node, Chars):
            self.classes.append(node.chars)
            self._follow.append([])
            if len(self.classes) % 256 == 0 and monotonic() > self._deadline:
                raise TooLarge("the time for compiling", expired=True)
            here = [len(self.classes) - 1]
            return _Span(False, here, here)
        if isinstance(node, Seq):
            span = _Span(True, [], [])
            for item in node.items:
                span = self._join(span, self._span(item))
            return span
        if isinstance(node, Alt):
            spans = [self._span(option) for option in node.options]
            first, last = [p for span in spans for p in _each(span.first)], [p for s in spans for p in _each(s.last)]
            return _Span(any(span.nullable for span in spans), first, last)
        assert isinstance(node, Repeat)
        if isinstance(node.body, Chars) and node.most is not None:
            return self._run(node.body.chars, node.least, node.most)
        span = _Span(True, [], [])
        for _ in range(node.least - (node.most is None and node.least > 0)):
            span = self._join(span, self._span(node.body))
        if node.most is None:
            loop = self._span(node.body)
            self._link(loop.last, loop.first)
            return self._join(span, _Span(loop.nullable or node.least == 0, loop.first, loop.last))
        # x{0,3} as (x(x(x)?)?)?, built from the inside, so that a position is followed by one copy only.
        rest = _Span(True, [], [])
        for _ in range(node.most - node.least):
            rest = self._join(self._span(node.body), rest)
            rest = _Span(True, rest.first, rest.last)
        return self._join(span, rest)

    def _run(self, chars: CharSet, least: int, most: int) -> _Span:
        """Counted characters of one class: a chain, made in one go."""
        begin = len(self.classes)
        self.classes += [chars] * most
        self._follow += [[p + 1] for p in range(begin, begin + most - 1)]
        self._follow += [[] for _ in range(most > 0)]
        return _Span(least == 0, [begin][:most], list(range(begin + max(least, 1) - 1, begin + most)))

    def _link(self, last: _Many, first: _Many) -> None:
        following = list(_each(first))
        if not following:
            return
        for p in _each(last):
            self._follow[p] += following
            self._follows += len(following)
            if self._follows > _MAX_FOLLOWS:
                raise TooLarge(f"{_MAX_FOLLOWS:,} pairs of characters")
        if monotonic() > self._deadline:
            raise TooLarge("the time for compiling", expired=True)

    def _join(self, a: _Span, b: _Span) -> _Span:
        self._link(a.last, b.first)
        return _Span(
            a.nullable and b.nullable,
            (a.first, b.first) if a.nullable else a.first,
            (b.last, a.last) if b.nullable else b.last,
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
