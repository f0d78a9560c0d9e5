"""Sets of strings against Python's `re`, over alphabets small enough to try every string."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette.runtime.constraints.determinize import TooLarge
from palmette.runtime.constraints.regex_language import read_regex
from palmette.runtime.constraints.schema.shapes import ANY_TEXT, Text
from palmette.runtime.constraints.schema.text_machine import ExceptMachine, WalkingMachine
from palmette.runtime.constraints.schema.texts import (
    complement,
    contains,
    count_at_least,
    disjoint,
    empty,
    finite,
    intersect,
    language_of,
    machine,
    shortest,
)

ALPHABET = "abé😀"
WORDS = ["".join(word) for n in range(5) for word in product(ALPHABET, repeat=n)]

_atoms = st.sampled_from(["a", "b", "é", "😀", "[ab]", "[^a]", "[aé]", "."])
_patterns = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=5,
)


@st.composite
def texts(draw: st.DrawFn) -> tuple[Text, frozenset[str]]:
    """A set, and which of WORDS are in it."""
    if draw(st.integers(0, 5)) == 0:
        only = frozenset(draw(st.lists(st.sampled_from(WORDS), max_size=4)))
        return Text(only=only), only
    all_of = draw(st.lists(_patterns, max_size=2))
    none_of = draw(st.lists(_patterns, max_size=2))
    without = frozenset(draw(st.lists(st.sampled_from(WORDS[:30]), max_size=3)))
    least, most = draw(st.integers(0, 3)), draw(st.none() | st.integers(0, 4))
    text = Text(tuple(read_regex(p) for p in all_of), tuple(read_regex(p) for p in none_of), without, least, most)
    words = frozenset(
        w
        for w in WORDS
        if all(re.fullmatch(p, w) for p in all_of)
        and not any(re.fullmatch(p, w) for p in none_of)
        and w not in without
        and least <= len(w) <= (len(w) if most is None else most)
    )
    return text, words


few = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@given(texts())
@few
def test_a_set_contains_what_re_says(drawn: tuple[Text, frozenset[str]]) -> None:
    text, words = drawn
    assert {w for w in WORDS if contains(text, w)} == words


@given(texts(), texts())
@few
def test_intersection(a: tuple[Text, frozenset[str]], b: tuple[Text, frozenset[str]]) -> None:
    both = intersect(a[0], b[0])
    assert {w for w in WORDS if both is not None and contains(both, w)} == a[1] & b[1]
    if a[1] & b[1]:
        assert not disjoint(a[0], b[0])
    elif not disjoint(a[0], b[0]):
        # They share a string that is longer, or has other characters.
        common = shortest(both)
        assert common not in WORDS and contains(a[0], common) and contains(b[0], common)


@given(texts())
@few
def test_the_complement_is_what_is_left_and_its_parts_share_nothing(drawn: tuple[Text, frozenset[str]]) -> None:
    text, words = drawn
    parts = complement(text)
    for w in WORDS:
        assert sum(contains(part, w) for part in parts) == (w not in words)
    for part in parts:
        assert disjoint(part, text)


@given(texts())
@few
def test_emptiness_counts_and_lists(drawn: tuple[Text, frozenset[str]]) -> None:
    text, words = drawn
    if empty(text):
        assert not words and finite(text, 0) == () and not count_at_least(text, 1)
        return
    assert contains(text, shortest(text))
    assert count_at_least(text, max(1, len(words)))
    every = finite(text, 60)
    assert count_at_least(text, 61) == (every is None)
    if every is not None:
        assert {w for w in every if set(w) <= set(ALPHABET) and len(w) < 5} == words
        assert all(contains(text, w) for w in every) and len(set(every)) == len(every)
        assert count_at_least(text, len(every)) and not count_at_least(text, len(every) + 1)


@given(texts())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_machine_takes_the_strings_and_dies_with_no_completion(drawn: tuple[Text, frozenset[str]]) -> None:
    text, words = drawn
    if empty(text):
        with pytest.raises(ValueError):
            machine(text)
        return
    walker = machine(text)
    spelled = {w.encode(): w in words for w in WORDS if len(w) < 4}
    beginnings = {w[:n]: None for w in spelled for n in range(len(w) + 1)}
    states = {b"": walker.start}
    for written in sorted(beginnings, key=len):
        longer = [w.encode() for w in words if w.encode().startswith(written)]
        if written not in states:
            assert not longer
            continue
        state = states[written]
        # Alive means that a string can be completed, and this is the shortest there is.
        rest = walker.shortest(state)
        assert contains(text, (written + rest).decode())
        assert all(len(written) + len(rest) <= len(w) for w in longer)
        if written in spelled:
            assert walker.final(state) == spelled[written]
        if walker.free(state):
            assert text.most is None and all(walker.step(state, b) is not None for b in b'a"\\ \x00\xc3\xf0')
        following = dict(walker.exits(state))
        for byte in {b for w in spelled for b in w}:
            to = walker.step(state, byte)
            assert following.get(byte) == to
            if to is not None:
                states[written + bytes([byte])] = to


@given(texts())
@few
def test_the_shortest_string_is_the_shortest(drawn: tuple[Text, frozenset[str]]) -> None:
    text, words = drawn
    if not empty(text):
        assert len(shortest(text).encode()) <= min((len(w.encode()) for w in words), default=1 << 30)


def test_lengths_beside_a_pattern_are_looked_ahead_at() -> None:
    # Only lengths that are multiples of 7 or 11 exist; of 13 to 15 characters there is 14 only.
    text = Text((read_regex("(?:[ab]{7})*|(?:c{11})*"),), least=12, most=15)
    walker = machine(text)
    assert walker.step(walker.start, ord("c")) is None
    state = walker.start
    for _ in range(14):
        assert not walker.final(state)
        state = walker.step(state, ord("a"))
    assert walker.final(state) and list(walker.exits(state)) == []
    assert empty(replace(text, least=15, most=20))
    assert not empty(replace(text, least=15, most=21))


def test_long_lengths_are_counted_not_written_out() -> None:
    text = Text(least=100_000, most=200_000)
    walker = machine(text)
    assert walker.shortest(walker.start) == b"a" * 100_000
    assert not walker.free(walker.start)
    state = walker.start
    for byte in "é😀".encode():
        state = walker.step(state, byte)
    assert len(walker.shortest(state)) == 99_998
    assert len(shortest(Text((read_regex("(?:a|b)*c"),), least=5000))) == 5000


def test_a_free_state_stays_alive_whatever_comes() -> None:
    assert machine(ANY_TEXT).free(machine(ANY_TEXT).start)
    assert machine(Text(none_of=(read_regex("a+"),), without=frozenset({"x"}))).free(0)
    assert not machine(Text((read_regex("[^x]*"),))).free(0)
    after = machine(Text((read_regex("a(?s:.)*"),), least=3))
    assert not after.free(after.start) and after.free(after.step(after.start, ord("a")))


def test_over_the_budget_is_said_not_suffered() -> None:
    with pytest.raises(TooLarge):
        empty(Text((read_regex("[ab]*a[ab]{30}"), read_regex("[ab]*b[ab]{29}"))))


@given(st.lists(st.sampled_from(WORDS), max_size=12, unique=True), st.sampled_from(WORDS))
@few
def test_all_strings_but_some_are_walked_as_their_automaton_walks_them(out: list[str], word: str) -> None:
    """The machine for names that are not listed against the automaton for sets of any kind."""
    fast = ExceptMachine(frozenset(out))
    slow = WalkingMachine(language_of(Text(without=frozenset(out))), 0, None)
    here: Any = fast.start
    there: Any = slow.start
    for byte in [*word.encode(), None]:
        assert [b for b, _ in fast.exits(here)] == [b for b, _ in slow.exits(there)]
        assert fast.final(here) == slow.final(there)
        rest, at = fast.shortest(here), here
        assert len(rest) == len(slow.shortest(there)) <= fast.longest()
        for b in rest:
            at = fast.step(at, b)
        assert fast.final(at)
        if byte is not None:
            here, there = fast.step(here, byte), slow.step(there, byte)
    assert fast.final(here) == (word not in out)
    assert fast.step(fast.start, 0xFF) is None and machine(Text(without=frozenset("a"))).count_at_least(1 << 40)
