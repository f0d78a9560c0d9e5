"""The machine over the bytes of a JSON text: alive exactly while a valid value can come of it, and how it closes."""

from __future__ import annotations

import json
import random
import re
import threading
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette.runtime.constraints.charset import Reading
from palmette.runtime.constraints.determinize import TooLarge
from palmette.runtime.constraints.regex_language import read_search
from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.machine import Machine, State
from palmette.runtime.constraints.schema.machine_graph import Unsupported
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    Anything,
    Arrays,
    Contains,
    Fixed,
    Member,
    Normal,
    Numbers,
    Objects,
    Others,
    Shape,
    Strings,
    Text,
)


class Members(list[tuple[str, Any]]):
    """An object as it was written."""


def load(text: bytes) -> Any:
    return json.loads(text, parse_float=Fraction, parse_int=Fraction, object_pairs_hook=Members)


def key(value: Any) -> Any:
    """Equal for equal values."""
    if isinstance(value, Members):
        return ("object", frozenset((name, key(v)) for name, v in value))
    if isinstance(value, list):
        return ("array", tuple(map(key, value)))
    return (type(value).__name__, value)


def valid(normal: Normal, node: int, value: Any) -> bool:
    return any(fits(normal, shape, value) for shape in normal.nodes[node])


def fits(normal: Normal, shape: Shape, value: Any) -> bool:
    if isinstance(shape, Anything):
        return True
    if isinstance(shape, Fixed):
        return (value is None or isinstance(value, bool)) and json.dumps(value) == shape.text
    if isinstance(shape, Numbers):
        return isinstance(value, Fraction) and number(shape, value)
    if isinstance(shape, Strings):
        return isinstance(value, str) and texts.contains(shape.text, value)
    if isinstance(shape, Arrays):
        return isinstance(value, list) and not isinstance(value, Members) and array(normal, shape, value)
    return isinstance(value, Members) and members(normal, shape, value)


def number(s: Numbers, v: Fraction) -> bool:
    if s.only is not None:
        return v in s.only
    low = s.low is None or (v > s.low if s.low_open else v >= s.low)
    high = s.high is None or (v < s.high if s.high_open else v <= s.high)
    return (
        low
        and high
        and v not in s.without
        and all((v / m).denominator == 1 for m in s.multiple_of)
        and all((v / m).denominator != 1 for m in s.not_multiple_of)
    )


def array(normal: Normal, s: Arrays, items: list[Any]) -> bool:
    if len(items) < s.least or (s.most is not None and len(items) > s.most):
        return False
    nodes = [*s.prefix, *[s.rest] * len(items)]
    if not all(valid(normal, node, item) for node, item in zip(nodes, items, strict=False)):
        return False
    for c in s.contains:
        count = sum(valid(normal, c.node, item) for item in items)
        if count < c.least or (c.most is not None and count > c.most):
            return False
    equal = len({key(item) for item in items}) < len(items)
    return not (s.unique and equal) and not (s.repeats and not equal)


def members(normal: Normal, s: Objects, pairs: Members) -> bool:
    found = dict(pairs)
    if len(found) < len(pairs) or len(pairs) < s.least or (s.most is not None and len(pairs) > s.most):
        return False
    listed = {m.name: m for m in s.members}
    for name, value in pairs:
        nodes = [listed[name].node] if name in listed else []
        if name not in listed:
            nodes = [o.node for o in s.others if texts.contains(o.names, name)]
        if not nodes or not valid(normal, nodes[0], value):
            return False
    if any(m.required and m.name not in found for m in s.members):
        return False
    return all(any(texts.contains(o.names, n) and valid(normal, o.node, v) for n, v in pairs) for o in s.some)


INTEGER = Numbers(multiple_of=(Fraction(1),))
SIGNS = b'{}[]",:0123456789.-+eE truefalsnbpq\\/u\n\xc3\xa9\xf0\x9f\x98\x80'
ATOMS = ["null", "true", "0", "1", "2", "-1", "10", "0.5", '""', '"a"', '"b"', '"ab"']


def normal(*shapes: tuple[Shape, ...]) -> Normal:
    """Node 2 is the root."""
    return Normal(((Anything(),), (), *shapes), 2)


def between(low: int | None, high: int | None, **more: Any) -> Numbers:
    return Numbers(None if low is None else Fraction(low), None if high is None else Fraction(high), **more)


def names(*strings: str) -> Text:
    return Text(only=frozenset(strings))


def pattern(regex: str) -> Text:
    return Text(all_of=(read_search(regex, Reading.NARROW),))


def small_texts() -> list[str]:
    """Many small JSON texts, compact and in one spelling each."""
    arrays = ["[" + ",".join(items) + "]" for n in range(3) for items in product(ATOMS[:9], repeat=n)]
    arrays += ["[" + ",".join(items) + "]" for items in product(["0", "1", "true", '"a"'], repeat=3)]
    pairs = [f'"{name}":{value}' for name in "abp" for value in ["0", "1", "true", '"a"', "[]", "[0]", "[1,1]"]]
    objects = ["{}", *("{" + p + "}" for p in pairs)]
    objects += ["{" + ",".join(two) + "}" for two in permutations(pairs, 2) if two[0][1] != two[1][1]]
    nested = ["[" + o + "]" for o in objects[:20]] + [
        '[{"a":0},{"a":1}]',
        '[{"a":0},{"a":0}]',
        "[[0],[0]]",
        "[[0],[1]]",
    ]
    return ATOMS + arrays + objects + nested


SMALL = [(text, load(text.encode())) for text in small_texts()]


def check_walks(machine: Machine, of: Normal, chance: random.Random, walks: int = 6, length: int = 30) -> None:
    """No dead ends, and all closings lead to valid values."""
    for _ in range(walks):
        state, text = machine.start(), b""
        for _ in range(length):
            if re.search(rb"[eE][+-]?[0-9]{3}", text):
                break  # a power that the judge would have to write out
            closing = state.closing()
            end = state.walk(closing)
            assert end is not None and end.complete, (text, closing)
            assert state.complete == (closing == b"")
            assert valid(of, of.root, load(text + closing)), (text, closing)
            after = {b: to for b in SIGNS if (to := state.step(b)) is not None}
            if not after:
                assert state.complete
                break
            byte = chance.choice([*after])
            # One byte more may cost nothing, or be the one that the closing began with, but never be a dead end.
            state, text = after[byte], text + bytes([byte])


def accepts(machine: Machine, text: str) -> bool:
    state: State | None = machine.start().walk(text.encode())
    return state is not None and state.complete


def check_language(machine: Machine, of: Normal) -> None:
    """Accepted are exactly the valid ones of the small texts, each object's members in one order at the least; and the
    shortest is no longer than any."""
    shortest = machine.shortest()
    missing: dict[Any, str] = {}
    found = set()
    for text, value in SMALL:
        if shortest is not None and accepts(machine, text):
            assert valid(of, of.root, value), text
            found.add(key(value))
        elif valid(of, of.root, value):
            missing[key(value)] = text
            assert shortest is not None and len(shortest) <= len(text)
    assert not missing.keys() - found, missing


CASES: dict[str, Normal] = {
    "anything": normal((Anything(),)),
    "integer": normal((INTEGER,)),
    "range": normal((between(-1, 10, multiple_of=(Fraction(1),)),)),
    "open range": normal((between(0, 1, low_open=True, high_open=True),)),
    "multiple": normal((between(8, None, multiple_of=(Fraction(7),)),)),
    "hundredths": normal((between(None, -3, multiple_of=(Fraction(1, 100),), not_multiple_of=(Fraction(1, 2),)),)),
    "not one": normal((Numbers(without=frozenset({Fraction(0), Fraction(1)})),)),
    "listed": normal((Strings(names("a", "ab", 'x"y', "é")), Fixed("null"), Numbers(only=frozenset({Fraction(1, 2)})))),
    "length": normal((Strings(Text(least=1, most=2)),)),
    "pattern": normal((Strings(pattern("^(ab|a\n|\U0001f600)+$")),)),
    "without": normal((Strings(Text(most=1, without=frozenset({"", "a"}))),)),
    "array": normal((Arrays((3,), 4, 1, 3),), (INTEGER,), (Fixed("true"), Strings())),
    "unique": normal(
        (Arrays(rest=3, least=2, most=3, unique=True),), (Fixed("true"), between(0, 1, multiple_of=(Fraction(1),)))
    ),
    "unique strings": normal((Arrays(rest=3, unique=True),), (Strings(Text(most=1)),)),
    "unique pairs": normal(
        (Arrays(rest=3, least=2, unique=True),),
        (Arrays((4, 4), 1, 1, 2),),
        (between(0, 1, multiple_of=(Fraction(1),)),),
    ),
    "unique objects": normal(
        (Arrays(rest=3, least=2, unique=True),),
        (Objects((Member("a", 4, True), Member("b", 4)), ()),),
        (between(0, 1, multiple_of=(Fraction(1),)),),
    ),
    "scarce": normal(
        (Arrays((3, 4), 0, 2, 3, unique=True),),
        (between(0, 1, multiple_of=(Fraction(1),)),),
        (Numbers(only=frozenset({Fraction(0)})),),
    ),
    "repeats": normal((Arrays((3,), 0, 0, 3, repeats=True),), (between(0, 1, multiple_of=(Fraction(1),)),)),
    "contains": normal((Arrays(rest=0, contains=(Contains(3, 1, 1),)),), (INTEGER,)),
    "contains two": normal(
        (Arrays(rest=4, most=3, contains=(Contains(3, 2, None), Contains(5, 0, 1))),),
        (INTEGER,),
        (Anything(),),
        (Fixed("true"),),
    ),
    "contains one of few": normal(
        (Arrays(rest=3, least=2, contains=(Contains(4, 0, 1),)),),
        (Numbers(only=frozenset({Fraction(1), Fraction(10)})),),
        (Numbers(only=frozenset({Fraction(1)})),),
    ),
    "object": normal((Objects((Member("a", 3, True), Member("b", 4)), ()),), (INTEGER,), (Fixed("true"),)),
    "object least": normal((Objects((Member("a", 3), Member("b", 3)), (Others(names("p"), 3),), least=2),), (INTEGER,)),
    "object most": normal(
        (Objects((Member("a", 3), Member("b", 3)), (Others(Text(without=frozenset({"a", "b"})), 3),), most=1),),
        (INTEGER,),
    ),
    "forbidden": normal((Objects((Member("a", 1),), (Others(Text(without=frozenset({"a"})), 0),)),)),
    "some": normal((Objects(some=(Others(names("p", "b"), 3),), most=2),), (INTEGER,)),
    "alternatives": normal(
        (
            Objects((Member("a", 3, True), Member("b", 3, True)), ()),
            Objects((Member("a", 4, True),), (Others(names("p"), 4),)),
        ),
        (INTEGER,),
        (Fixed("true"), Strings()),
    ),
    "tree": normal((Objects((Member("a", 3, True), Member("b", 4)), ()),), (INTEGER,), (Arrays(rest=2),)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_machine_accepts_exactly_what_is_valid(name: str) -> None:
    machine = Machine(CASES[name], whitespace=False)
    check_language(machine, CASES[name])
    check_walks(machine, CASES[name], random.Random(name))


NODES = st.integers(0, 5)
COUNTS = st.integers(0, 2)
MOSTS = st.none() | st.integers(0, 3)


def numbers() -> st.SearchStrategy[Shape]:
    few = st.sampled_from([Fraction(v) for v in ("0", "1", "2", "-1", "10", "0.5", "1.5")])
    steps = st.lists(st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3, 10)]), max_size=1).map(
        tuple
    )
    return st.builds(
        Numbers,
        st.none() | few,
        st.none() | few,
        st.booleans(),
        st.booleans(),
        steps,
        steps,
        st.frozensets(few, max_size=2),
    ) | st.frozensets(few, min_size=1, max_size=3).map(lambda only: Numbers(only=only))


def contents() -> st.SearchStrategy[Text]:
    few = st.frozensets(st.sampled_from(["", "a", "b", "ab", "p"]), min_size=1, max_size=3)
    return few.map(lambda only: Text(only=only)) | st.builds(
        lambda least, most, out: Text(least=least, most=most, without=out), COUNTS, MOSTS, few
    )


def arrays() -> st.SearchStrategy[Shape]:
    contains = st.lists(st.builds(Contains, NODES, st.integers(0, 2), st.none() | st.integers(0, 2)), max_size=1).map(
        tuple
    )
    kinds = st.sampled_from([(False, False), (False, False), (True, False), (False, True)])
    return st.builds(
        lambda prefix, rest, least, most, contains, kind: Arrays(prefix, rest, least, most, contains, *kind),
        st.lists(NODES, max_size=2).map(tuple),
        NODES,
        COUNTS,
        MOSTS,
        contains,
        kinds,
    )


def objects() -> st.SearchStrategy[Shape]:
    members = st.tuples(
        st.none() | st.builds(Member, st.just("a"), NODES, st.booleans()),
        st.none() | st.builds(Member, st.just("b"), NODES, st.booleans()),
    )
    others = st.sampled_from([(), ("p",), None])
    some = st.lists(
        st.builds(Others, st.sampled_from([names("a"), names("b", "p"), names("p"), ANY_TEXT]), NODES), max_size=1
    ).map(tuple)

    def build(
        members: tuple[Member | None, ...],
        other: tuple[str, ...] | None,
        node: int,
        least: int,
        most: int | None,
        some: Any,
    ) -> Objects:
        kept = tuple(m for m in members if m is not None)
        listed = frozenset(m.name for m in kept)
        text = Text(without=listed) if other is None else names(*other)
        return Objects(kept, (Others(text, node),) if other != () else (), least, most, some)

    return st.builds(build, members, others, NODES, COUNTS, MOSTS, some)


SHAPES = (
    st.sampled_from([Fixed("null"), Fixed("true"), Anything(), Strings()])
    | numbers()
    | contents().map(Strings)
    | arrays()
    | objects()
)
NORMALS = st.lists(st.lists(SHAPES, min_size=1, max_size=2).map(tuple), min_size=4, max_size=4).map(
    lambda nodes: normal(*nodes)
)


# Always the same ones: a search for values that avoid each other may take minutes where its parts are drawn badly.
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(NORMALS, st.integers(0, 1000))
def test_drawn_schemas_have_no_dead_ends_and_close_validly(of: Normal, seed: int) -> None:
    try:
        machine = Machine(of, whitespace=False)
        if machine.shortest() is None:
            assert not any(valid(of, of.root, value) for _, value in SMALL)
            return
        check_language(machine, of)
        check_walks(machine, of, random.Random(seed), walks=3)
    except Unsupported:
        pass


def test_equal_values_are_equal_however_they_are_spelled() -> None:
    machine = Machine(CASES["unique"], whitespace=False)
    assert accepts(machine, "[0,1]") and accepts(machine, "[0,true,1]")
    for text in ("[0,0.0]", "[0,-0]", "[1,true,1.00]"):
        assert not accepts(machine, text)
    pairs = Machine(CASES["unique objects"], whitespace=False)
    assert accepts(pairs, '[{"a":0},{"a":1}]') and not accepts(pairs, '[{"a":0},{"\\u0061":0}]')
    assert key(load(b'{"a":1,"b":2}')) == key(load(b'{"b":2,"a":1.0}'))


def test_escapes_are_read_as_what_they_stand_for() -> None:
    machine = Machine(CASES["pattern"], whitespace=False)
    for text in ('"ab"', '"\\u0061b"', '"a\\n"', '"\U0001f600"', '"\\ud83d\\ude00ab"', '"\\uD83D\\uDE00"'):
        assert accepts(machine, text), text
    state = machine.start().walk(b'"\\ud83d')
    assert state is not None and json.loads(b'"\\ud83d' + state.closing()) == "\U0001f600"
    for text in (b'"\\ud83d\\ude01', b'"\\n', b'"a\n', b'"\\ude00', b'"\\ud83c', b'"\xed\xa0\xbd', b'"\xc1\xa1'):
        assert machine.start().walk(text) is None, text


def test_invalid_utf8_is_refused_byte_by_byte() -> None:
    state = Machine(normal((Strings(),)), whitespace=False).start().step(0x22)
    assert state is not None
    for bad in (
        b"\x80",
        b"\xc0",
        b"\xc1",
        b"\xe0\x9f",
        b"\xed\xa0",
        b"\xf0\x8f",
        b"\xf4\x90",
        b"\xf5",
        b"\xff",
        b"\x1f",
    ):
        assert state.walk(bad[:-1]) is not None and state.walk(bad) is None, bad
    for good in ("é", "水", "\U0001f600", "\ufffe", "\U0010ffff"):
        assert state.walk(good.encode()) is state, good


def test_white_space_stands_between_the_signs_only() -> None:
    machine = Machine(CASES["object"], whitespace=True)
    assert accepts(machine, ' {\n "a" :\t10 , "b":true } ')
    assert not accepts(machine, '{"a":1 0}') and not accepts(machine, '{"a ":10}')
    assert not accepts(Machine(CASES["object"], whitespace=False), '{"a": 10}')


def test_names_may_come_twice_where_asked() -> None:
    anything = CASES["anything"]
    assert not accepts(Machine(anything, whitespace=False), '{"x":1,"x":2}')
    assert accepts(Machine(anything, whitespace=False, distinct=False), '{"x":1,"x":2}')


def test_equal_places_are_one_state() -> None:
    machine = Machine(CASES["tree"], whitespace=False)
    start = machine.start()
    assert start.walk(b'{"a":12') is start.walk(b'{"a":7')
    assert start.walk(b'{"a":1,"b":[{"a":1},') is start.walk(b'{"a":1,"b":[{"a":2,"b":[]},')


def test_what_is_asked_while_another_thread_searches_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # A list that holds such lists, or one that must hold two numbers: node 3 leads back to itself.
    shapes = ((Anything(),), (), (Numbers(),), (Arrays(rest=3, least=1), Arrays((2, 2), 2, 2)))
    machine = Machine(Normal(shapes, 3), whitespace=False)
    costs = machine.costs
    best, answers, others = costs._best, list[bytes | None](), list[threading.Thread]()

    def ask() -> None:
        answers.append(costs.shortest((3, frozenset())))

    def slow(*given: Any) -> Any:
        if not others:
            others.append(threading.Thread(target=ask))
            others[0].start()
            others[0].join(0.2)
        return best(*given)

    monkeypatch.setattr(costs, "_best", slow)
    assert machine.shortest() == b"[0,0]"
    others[0].join()
    assert answers == [b"[0,0]"]


def test_a_search_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette.runtime.constraints.schema.machine._START_WORK", 3)
    with pytest.raises(TooLarge, match="budget"):
        Machine(CASES["unique pairs"], whitespace=False).start()


def test_lists_that_must_repeat_an_item_within_each_other_are_too_much() -> None:
    """What is not the item before may be another such list, whose items again are not the ones before."""
    lists = Arrays(prefix=(2,), rest=2, repeats=True)
    with pytest.raises(Unsupported, match="within each other"):
        Machine(Normal(((Anything(),), (), (lists, Fixed("null"))), 2), whitespace=False).start()
