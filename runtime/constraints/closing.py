"""Texts under a constraint that are complete before their tokens run out.

From each place in a text the shortest completion is known, and the tokens that spell it: the plan. A token is allowed
only if a plan that is short enough is left behind it. Far from the limit every token is: a place says how long the
completion can be at the most behind any one token, and while there are that many tokens left the matcher inside
answers alone, and the place is not even followed. Near the limit its mask is thinned out:

    few tokens allowed        each is tried
    many (inside a string)    those that are plain text leave a completion that only their length decides; the others
                              are tried along their trie, as many as there is time for, and the rest is left out

The plan's own next token is always among those that are left, so there is always a way.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from palmette.errors import ConstraintError
from palmette.runtime.constraints.closing_tables import Tables, tables_of
from palmette.runtime.constraints.matcher import CompiledConstraint, Matcher
from palmette.runtime.constraints.trie import ByteTrie

_FEW = 96  # tokens that are tried one by one
_MOST_TRIED = 256  # living nodes of a trie, where there are many
_MOST_TRIED_ALONE = 32  # the same where no place is met twice
_MOST_KEPT = 64  # places; each 4 bytes for every token
_FAR = np.iinfo(np.int32).max


class Place(Protocol):
    """Where a text stands; a value."""

    @property
    def key(self) -> Hashable:
        """Equal for places from which the same texts go on."""
        ...

    def after(self, text: bytes) -> Place | None:
        """The place behind `text`; None where no complete text begins so."""
        ...

    def byte(self, byte: int) -> Place | None:
        """`after` for one byte."""
        ...

    def closing(self) -> bytes:
        """A shortest text that completes it."""
        ...

    def bound(self, opens: int) -> int:
        """How many bytes `closing` can have at the most behind one token, which begins so many arrays and objects."""
        ...

    def uniform(self) -> bool:
        """Whether, inside a JSON string, it matters only how many characters follow, not which, until it closes."""
        ...

    def loose(self) -> Place | None:
        """Inside a name of which nearly all may come: a place behind plain text. Behind any other plain text the
        completion has two bytes more at the most."""
        ...

    def alone(self) -> bool:
        """Whether what stands already is part of the place, so that hardly any is met twice."""
        ...


class _Known(NamedTuple):
    """What is known of the place behind the first `tokens` tokens: None where it was lost; plan: tokens that complete
    the text; safe: so many tokens may follow before anybody needs to look again."""

    tokens: int
    place: Place | None
    plan: tuple[int, ...]
    safe: int


class ClosingMatcher:
    """A matcher that completes its text within `limit` tokens. Where the place cannot follow what the matcher inside
    allows, that one goes on alone."""

    def __init__(self, inner: Matcher, place: Place, limit: int, tables: Tables) -> None:
        """ConstraintError when no complete text is that short; ValueError where no tokens spell the shortest."""
        self._inner = inner
        self._tables = tables
        self._limit = limit
        self._spelled: list[bytes] = []
        self._needs = _needs_of(tables)
        plan = tables.spell(place.closing())
        if plan is None:
            raise ValueError("no tokens spell the shortest completion")
        if len(plan) > limit:
            raise too_short(limit, len(plan))
        self._known = [self._judge(0, place, tuple(plan))]

    # -- the matcher

    def fill(self, row: np.ndarray) -> bool:
        said = self._inner.fill(row)
        known = self._near()
        if known is None or known.place is None or not said:
            return said
        vocabulary, left = self._tables.vocabulary, self._left() - 1
        ends = row & vocabulary.end_bits
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        if len(allowed) <= _FEW:
            kept = [t for t in allowed.tolist() if self._plan(known, t, left) is not None]
            row[:] = vocabulary.row(np.array(kept, np.int64))
        else:
            needs = self._needs.of(known.place)
            row &= vocabulary.row(np.flatnonzero(needs <= left))
        if known.plan and left >= 0:
            # Which token of several that spell the same is the tokenizer's own is a question for free text.
            token = known.plan[0]
            if not row.view(np.uint32)[token >> 5] >> np.uint32(token & 31) & np.uint32(1) and self._takes(token):
                row.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))
        row |= ends
        return True

    def advance(self, token: int) -> bool:
        known = self._near()
        plan: tuple[int, ...] | None = ()
        if known is not None and known.place is not None and token not in self._tables.vocabulary.end_ids:
            plan = self._plan(known, token, self._left() - 1)
            if plan is None:
                return False
        if not self._inner.advance(token):
            return False
        spelling = self._tables.vocabulary.token_bytes[token] or b""
        self._spelled.append(spelling)
        if known is not None and known.place is not None and plan is not None and spelling:
            self._known.append(self._judge(len(self._spelled), known.place.after(spelling), plan))
        return True

    def rollback(self, n: int) -> None:
        self._inner.rollback(n)
        del self._spelled[len(self._spelled) - n :]
        while self._known[-1].tokens > len(self._spelled):
            self._known.pop()

    def fork(self) -> ClosingMatcher:
        twin = object.__new__(ClosingMatcher)
        twin._inner = self._inner.fork()
        twin._tables, twin._limit, twin._needs = self._tables, self._limit, self._needs
        twin._spelled, twin._known = self._spelled.copy(), self._known.copy()
        return twin

    def forced(self, recent: Sequence[int] = ()) -> list[int]:
        tokens = self._inner.forced(recent)
        known = self._near()
        if not tokens or known is None or known.place is None:
            # Whoever takes them one by one is stopped where they would not leave enough.
            return tokens
        kept = 0
        for token in tokens:
            if not self.advance(token):
                break
            kept += 1
        self.rollback(kept)
        return tokens[:kept]

    def allows_end(self) -> bool:
        return self._inner.allows_end()

    def done(self) -> bool:
        return self._inner.done()

    def problem(self) -> str:
        return self._inner.problem()

    # -- the limit

    def _left(self) -> int:
        return self._limit - len(self._spelled)

    def _near(self) -> _Known | None:
        """What is known of the place here, or None while there is no need to know."""
        known = self._known[-1]
        behind = len(self._spelled) - known.tokens
        if behind < known.safe:
            return None
        if behind:
            place, text = known.place, b"".join(self._spelled[known.tokens :])
            place = None if place is None else place.after(text)
            plan = None if place is None else self._tables.spell(place.closing())
            known = self._judge(len(self._spelled), place if plan is not None else None, tuple(plan or ()))
            self._known.append(known)
            if known.safe:
                return None
        return known

    def _judge(self, tokens: int, place: Place | None, plan: tuple[int, ...]) -> _Known:
        if place is None:
            return _Known(tokens, None, (), 0)
        # In bytes, of which no token has fewer than one.
        size = len(place.closing())
        more = max(0, place.bound(self._tables.opens) - size)
        spare = self._limit - tokens - size
        return _Known(tokens, place, plan, max(0, (spare - 1) // (more + 1)))

    def _plan(self, known: _Known, token: int, left: int) -> tuple[int, ...] | None:
        """The plan behind a token; None where none is short enough, or nothing complete begins so."""
        assert known.place is not None
        spelling = self._tables.vocabulary.token_bytes[token] if 0 <= token < self._tables.vocabulary.width else None
        if spelling is None or left < 0:
            return None
        if known.plan and known.plan[0] == token:
            return known.plan[1:]
        place = known.place.after(spelling)
        plan = None if place is None else self._tables.spell(place.closing())
        return tuple(plan) if plan is not None and len(plan) <= left else None

    def _takes(self, token: int) -> bool:
        if not self._inner.advance(token):
            return False
        self._inner.rollback(1)
        return True


class _Needs:
    """How many tokens the completion has behind each token, where many are allowed. Kept for a few places, as the
    inside of a string is often the same place."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._kept: dict[Hashable, np.ndarray] = {}

    def of(self, place: Place) -> np.ndarray:
        """int32 [V]; very many where nothing complete begins so, or there was no time to see."""
        found = self._kept.get(place.key)
        if found is None:
            found = self._made(place)
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[place.key] = found
        return found

    def _made(self, place: Place) -> np.ndarray:
        tables = self._tables
        needs = np.full(tables.vocabulary.width, _FAR, np.int32)
        if place.uniform():
            by_size = np.full(int(tables.plain.max(initial=0)) + 1, _FAR, np.int32)
            before = place
            for size in range(1, len(by_size)):
                at = before.byte(0x61)
                if at is None:
                    break
                by_size[size] = self._count(at)
                same, before = at.key == before.key, at
                if same:
                    by_size[size:] = by_size[size]
                    break
            plain = tables.plain >= 0
            needs[plain] = by_size[tables.plain[plain]]
            self._try(place, tables.odd, needs)
        elif (behind := place.loose()) is not None:
            count = self._count(behind)
            needs[tables.plain >= 0] = count if count == _FAR else count + 2
            self._try(place, tables.odd, needs)
        else:
            self._try(place, tables.vocabulary.trie, needs)
        return needs

    def _count(self, place: Place) -> int:
        count = self._tables.count(place.closing())
        return _FAR if count is None else count

    def _try(self, place: Place, trie: ByteTrie, needs: np.ndarray) -> None:
        """Along the trie, breadth first, so that short tokens come first."""
        level: list[tuple[int, Place]] = [(0, place)]
        tried, most = 0, _MOST_TRIED_ALONE if place.alone() else _MOST_TRIED
        while level:
            below: list[tuple[int, Place]] = []
            for node, at in level:
                for child in range(int(trie.lo[node]), int(trie.hi[node])):
                    to = at.byte(int(trie.byte[child]))
                    if to is None:
                        continue
                    tried += 1
                    below.append((child, to))
                    if trie.end_lo[child] < trie.end_hi[child]:
                        needs[trie.ends_at(child)] = self._count(to)
                    if tried >= most:
                        return
            level = below


@lru_cache(maxsize=8)
def _needs_of(tables: Tables) -> _Needs:
    return _Needs(tables)


def start(
    compiled: CompiledConstraint,
    limit: int,
    *,
    begun: Sequence[int] = (),
    banned: frozenset[int] = frozenset(),
    cut: bool = False,
) -> Matcher:
    """A matcher whose text is complete within `limit` tokens, where the constraint knows its completions (what only
    llguidance reads does not, and a vocabulary that lacks single bytes may not spell them: then one without a limit).

    begun: tokens of the text that stand already, beside the limit. banned: tokens that may not be used to complete it.
    When no complete text is that short: ConstraintError, or with `cut` a matcher without a limit, whose text whoever
    counts will cut. RuntimeError when the text may not begin so."""
    matcher, vocabulary = compiled.start(), compiled.vocabulary
    if not all(map(matcher.advance, begun)):
        raise RuntimeError(f"the constraint refused the text {vocabulary.text(begun)!r}, which it had allowed")
    place = compiled.place()
    if place is not None and begun:
        place = place.after(vocabulary.text(begun))
    tables = tables_of(vocabulary, banned)
    plan = None if place is None else tables.spell(place.closing())
    if place is None or plan is None or (cut and len(plan) > limit):
        return matcher
    return ClosingMatcher(matcher, place, limit, tables)


def too_short(limit: int, needed: int) -> ConstraintError:
    return ConstraintError(
        f"the shortest text under the constraint has {needed} tokens, there is room for {limit}",
        hint=f"give max_tokens={needed} or more, and room in context and KV cache for as many, or ask for less",
    )
