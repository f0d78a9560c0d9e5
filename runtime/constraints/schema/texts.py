"""The algebra of sets of strings: what two schemas say of one string, what the opposite says, and what is left of it.

A `Text` is kept as it was said, as languages beside each other and lengths; an automaton is built only where a
question needs one, and what was built is kept for the next. Questions that go over the budget raise TooLarge.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from palmette.runtime.constraints.charset import charset
from palmette.runtime.constraints.determinize import Recognizer
from palmette.runtime.constraints.regex_language import ANYTHING, Branch, Condition, Language
from palmette.runtime.constraints.regex_syntax import Alt, Chars, Node, Seq
from palmette.runtime.constraints.schema.shapes import ANY_TEXT, Text
from palmette.runtime.constraints.schema.text_machine import ExceptMachine, ListedMachine, TextMachine, WalkingMachine

_KEPT = 256  # automata; those of schemas are small, and the budget bounds each
_CHARACTERS = 0x110000 - 0x800  # all that a string in UTF-8 can hold


def intersect(a: Text, b: Text) -> Text | None:
    """The strings of both. None: certainly none; a set that is not None may yet be empty (see `empty`)."""
    if a.only is not None or b.only is not None:
        listed, other = (a, b) if a.only is not None else (b, a)
        assert listed.only is not None
        kept = frozenset(s for s in listed.only if contains(other, s))
        return Text(only=kept) if kept else None
    all_of = tuple(dict.fromkeys(a.all_of + b.all_of))
    none_of = tuple(dict.fromkeys(a.none_of + b.none_of))
    mosts = [most for most in (a.most, b.most) if most is not None]
    least, most = max(a.least, b.least), min(mosts, default=None)
    if (most is not None and least > most) or not set(all_of).isdisjoint(none_of):
        return None
    return Text(all_of, none_of, _within(a.without | b.without, least, most), least, most)


def _within(strings: frozenset[str], least: int, most: int | None) -> frozenset[str]:
    """Those of a length that is possible at all."""
    return frozenset(s for s in strings if len(s) >= least and (most is None or len(s) <= most))


def complement(a: Text) -> tuple[Text, ...]:
    """All strings but those of `a`, as sets of which no two share a string."""
    if a.only is not None:
        return (Text(without=a.only),)
    if a.most is not None and a.most < a.least:
        return (ANY_TEXT,)
    out: list[Text] = []
    if a.least > 0:
        out.append(Text(most=a.least - 1))
    if a.most is not None:
        out.append(Text(least=a.most + 1))
    before = Text(least=a.least, most=a.most)
    for language in a.all_of:
        out.append(replace(before, none_of=(*before.none_of, language)))
        before = replace(before, all_of=(*before.all_of, language))
    for language in a.none_of:
        out.append(replace(before, all_of=(*before.all_of, language)))
        before = replace(before, none_of=(*before.none_of, language))
    if listed := frozenset(s for s in a.without if contains(before, s)):
        out.append(Text(only=listed))
    return tuple(text for text in out if text.all_of == () or set(text.all_of).isdisjoint(text.none_of))


def contains(t: Text, s: str) -> bool:
    """Whether `s` is one of the strings. A lone surrogate is in none: no text in UTF-8 has one."""
    if t.only is not None:
        return s in t.only
    if len(s) < t.least or (t.most is not None and len(s) > t.most) or s in t.without:
        return False
    if any("\ud800" <= c <= "\udfff" for c in s):
        return False
    return all(_recognizer(language).accepts(s) for language in t.all_of) and not any(
        _recognizer(language).accepts(s) for language in t.none_of
    )


@lru_cache(maxsize=_KEPT)
def _recognizer(language: Language) -> Recognizer:
    return Recognizer(language)


def empty(t: Text) -> bool:
    """Whether there is no such string."""
    if t.only is not None:
        return not t.only
    if not t.all_of and not t.none_of and len(t.without) < _CHARACTERS:
        # Any length but none has more strings than are left out.
        return (t.most is not None and t.least > t.most) or (t.most == 0 and "" in t.without)
    try:
        machine(t)
    except ValueError:
        return True
    return False


def disjoint(a: Text, b: Text) -> bool:
    both = intersect(a, b)
    return both is None or empty(both)


def count_at_least(t: Text, n: int) -> bool:
    """Whether there are `n` strings or more."""
    if n <= 0:
        return True
    if t.only is not None:
        return len(t.only) >= n
    return not empty(t) and machine(t).count_at_least(n)


def finite(t: Text, limit: int) -> tuple[str, ...] | None:
    """All strings, the shortest in bytes first, or None when there are more than `limit`."""
    if t.only is not None:
        if len(t.only) > limit:
            return None
        return tuple(sorted(t.only, key=lambda s: (len(s.encode("utf-8", "surrogatepass")), s)))
    if empty(t):
        return ()
    if count_at_least(t, limit + 1):
        return None
    walker = machine(t)
    found: list[str] = []
    # Every beginning leads to some string, so there are never more beginnings than strings.
    level = [(b"", walker.start)]
    while level:
        found += [text.decode() for text, state in level if walker.final(state)]
        level = [(text + bytes([byte]), to) for text, state in level for byte, to in walker.exits(state)]
    return tuple(found)


def shortest(t: Text) -> str:
    """A string of the fewest bytes. ValueError when there is none."""
    walker = machine(t)
    return walker.shortest(walker.start).decode("utf-8", "surrogatepass")


@lru_cache(maxsize=_KEPT)
def machine(t: Text) -> TextMachine:
    """The strings byte by byte. ValueError when there are none."""
    if t.only is not None:
        return ListedMachine(t.only)
    if not t.all_of and not t.none_of and t.without and not t.least and t.most is None:
        return ExceptMachine(frozenset(s for s in t.without if contains(ANY_TEXT, s)))
    return WalkingMachine(language_of(possible_without(t)), t.least, t.most)


def possible_without(t: Text) -> Text:
    """`t` with nothing in `without` that is not one of its strings anyway."""
    if not t.without:
        return t
    rest = replace(t, without=frozenset())
    return replace(t, without=frozenset(s for s in t.without if contains(rest, s)))


def language_of(t: Text) -> Language:
    """The strings of `t`, whatever their length, as one language."""
    conditions = [Condition(language, True) for language in t.all_of[1:]]
    conditions += [Condition(language, False) for language in t.none_of]
    if t.without:
        conditions.append(Condition(Language((Branch(listed(t.without)),)), False))
    base = t.all_of[0] if t.all_of else Language((Branch(ANYTHING),))
    branches = (Branch(b.body, (*b.conditions, *conditions)) for b in base.branches)
    return Language(tuple(branches))


def listed(strings: frozenset[str]) -> Node:
    """A tree of exactly these strings, of which there is one at least."""
    return Alt(tuple(Seq(tuple(Chars(charset([(ord(c), ord(c))])) for c in s)) for s in sorted(strings)))
