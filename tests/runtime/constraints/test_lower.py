"""Grammars of normal forms accept what the normal form holds, and no more, but where they say so."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from itertools import count
from typing import Any

import llguidance
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette.runtime.constraints import accepts, llg
from palmette.runtime.constraints.charset import Reading
from palmette.runtime.constraints.regex_language import Language, read_search
from palmette.runtime.constraints.schema.lower import lower, lower_again
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    ANYTHING_NODE,
    NOTHING_NODE,
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
from palmette.runtime.constraints.vocabulary import Vocabulary

BYTES = Vocabulary.of_bytes()
TOKENS = llg.tokenizer(BYTES)
NAMES = ["a", "b", "ab", "/", "x\n"]
PATTERNS = {p: read_search(p, Reading.NARROW) for p in ["^a", "b$", "^.$", "a|b", r"^\n?[^a]*$"]}


def matcher(grammar: str) -> llguidance.LLMatcher:
    root = llguidance.LLMatcher(TOKENS, grammar, log_level=0)
    assert not root.is_error(), root.get_error()
    return root


def takes(root: llguidance.LLMatcher, text: str) -> bool:
    fork = root.deep_copy()
    tokens = BYTES.segment(text.encode())
    assert tokens is not None
    return bool(fork.try_consume_tokens(tokens) == len(tokens) and fork.is_accepting())


def normal(*nodes: tuple[Shape, ...]) -> Normal:
    """The nodes from 2 on; the root is the first of them."""
    return Normal(((Anything(),), (), *nodes), 2)


# -- what a normal form means


def holds_text(text: Text, s: str) -> bool:
    if text.only is not None:
        return s in text.only
    searched = {language: pattern for pattern, language in PATTERNS.items()}

    def found(language: Any) -> bool:
        return re.search(searched[language].replace("$", r"\Z"), s) is not None

    return (
        all(map(found, text.all_of))
        and not any(map(found, text.none_of))
        and s not in text.without
        and text.least <= len(s) <= (len(s) if text.most is None else text.most)
    )


def holds(graph: Normal, node: int, value: Any) -> bool:
    return any(holds_shape(graph, shape, value) for shape in graph.nodes[node])


def holds_shape(graph: Normal, shape: Shape, value: Any) -> bool:
    if isinstance(shape, Anything):
        return True
    if isinstance(shape, Fixed):
        return value is json.loads(shape.text)
    if isinstance(shape, Strings):
        return isinstance(value, str) and holds_text(shape.text, value)
    if isinstance(shape, Numbers):
        return isinstance(value, int | Fraction) and not isinstance(value, bool) and holds_number(shape, value)
    if isinstance(shape, Arrays):
        return isinstance(value, list) and holds_array(graph, shape, value)
    return isinstance(value, dict) and holds_object(graph, shape, value)


def holds_number(shape: Numbers, value: int | Fraction) -> bool:
    if shape.only is not None:
        return value in shape.only
    low, high = shape.low, shape.high
    return (
        (low is None or (value > low if shape.low_open else value >= low))
        and (high is None or (value < high if shape.high_open else value <= high))
        and not any(value % m for m in shape.multiple_of)
        and all(value % m for m in shape.not_multiple_of)
        and value not in shape.without
    )


def holds_array(graph: Normal, shape: Arrays, value: list[Any]) -> bool:
    assert not shape.unique and not shape.repeats
    nodes = [shape.prefix[i] if i < len(shape.prefix) else shape.rest for i in range(len(value))]
    return (
        all(holds(graph, node, v) for node, v in zip(nodes, value, strict=True))
        and shape.least <= len(value) <= (len(value) if shape.most is None else shape.most)
        and all(sum(holds(graph, c.node, v) for v in value) >= c.least for c in shape.contains)
    )


def holds_object(graph: Normal, shape: Objects, value: dict[str, Any]) -> bool:
    named = {member.name: member for member in shape.members}
    if any(m.required and m.name not in value for m in shape.members):
        return False
    for name, v in value.items():
        if name in named:
            if not holds(graph, named[name].node, v):
                return False
        elif not any(holds_text(o.names, name) and holds(graph, o.node, v) for o in shape.others):
            return False
    order = [name for name in named if name in value] + [name for name in value if name not in named]
    assert order == list(value), "values are drawn in order"
    return shape.least <= len(value) <= (len(value) if shape.most is None else shape.most)


def write(value: Any) -> str:
    if isinstance(value, Fraction):
        return str(float(value))
    if isinstance(value, list):
        return "[" + ",".join(map(write, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{write(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


# -- drawn ones


def languages(most: int) -> st.SearchStrategy[tuple[Language, ...]]:
    named = st.lists(st.sampled_from(list(PATTERNS)), max_size=most, unique=True)
    return named.map(lambda patterns: tuple(PATTERNS[p] for p in patterns))


TEXTS = st.one_of(
    st.just(ANY_TEXT),
    st.builds(lambda s: Text(only=frozenset(s)), st.sets(st.sampled_from(NAMES), min_size=1)),
    st.builds(
        Text,
        languages(2),
        languages(1),
        st.frozensets(st.sampled_from(NAMES), max_size=2),
        st.integers(0, 1),
        st.none() | st.integers(1, 3),
    ),
)
BOUNDS = st.none() | st.sampled_from([Fraction(n, 4) for n in (-6, -4, -1, 0, 2, 4, 5)])
NUMBERS = st.one_of(
    st.builds(lambda s: Numbers(only=frozenset(s)), st.sets(BOUNDS.filter(lambda b: b is not None), min_size=1)),
    st.builds(
        Numbers,
        BOUNDS.filter(lambda b: b is None or b <= 0),
        BOUNDS.filter(lambda b: b is None or b > 0),
        st.booleans(),
        st.booleans(),
        st.sampled_from([(), (Fraction(1),), (Fraction(1, 4),), (Fraction(1), Fraction(3, 2))]),
        st.sampled_from([(), (), (Fraction(1),)]),
        st.frozensets(st.sampled_from([Fraction(1), Fraction(5, 4), Fraction(0)]), max_size=1),
    ),
)
LEAVES = st.one_of(st.just(Anything()), st.sampled_from([Fixed("null"), Fixed("true")]), NUMBERS, TEXTS.map(Strings))


@st.composite
def graphs(draw: st.DrawFn) -> Normal:
    leaves = [(leaf,) for leaf in draw(st.lists(LEAVES, min_size=1, max_size=3))]
    numbers = count(2)
    inner = draw(st.integers(1, 3))
    total = inner + len(leaves)
    parts = st.sampled_from([ANYTHING_NODE, NOTHING_NODE, *range(2 + inner, 2 + total)])
    whole: list[tuple[Shape, ...]] = []
    for _ in range(inner):
        node = next(numbers)
        below = parts | st.integers(node, 1 + total)
        array = st.builds(
            Arrays,
            st.lists(below, max_size=2).map(tuple),
            below,
            st.just(0),
            st.none() | st.integers(0, 3),
        )
        having = st.builds(
            lambda node, least: Arrays(contains=(Contains(node, least),)),
            below.filter(lambda node: node != NOTHING_NODE),
            st.integers(1, 2),
        )
        shapes = draw(st.lists(array | having | objects(below) | LEAVES, min_size=1, max_size=2))
        whole.append(tuple(shapes))
    return Normal(((Anything(),), (), *whole, *leaves), 2)


@st.composite
def objects(draw: st.DrawFn, below: st.SearchStrategy[int]) -> Objects:
    names = draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
    members = tuple(Member(name, draw(below)) for name in names)
    listed = frozenset(names)
    language = PATTERNS[draw(st.sampled_from(list(PATTERNS)))]
    kinds = [
        [],
        [Text(without=listed)],
        [Text(all_of=(language,), without=listed), Text(none_of=(language,), without=listed)],
        [Text(all_of=(language,), without=listed)],
    ]
    others = kinds[draw(st.integers(0, len(kinds) - 1))]
    classes = tuple(Others(t, draw(below)) for t in others)
    possible = any(part.node != NOTHING_NODE for part in (*members, *classes))
    least = draw(st.integers(0, 1)) if possible else 0
    return Objects(members, classes, least, draw(st.none() | st.integers(1, 3)))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([Fraction(n, 4) for n in range(-8, 9)]).map(lambda f: int(f) if f.denominator == 1 else f)
    | st.sampled_from([*NAMES, "", "ba", "aab", "\u00e9"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "ba", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def in_order(graph: Normal, value: Any) -> bool:
    """Whether the keys of all objects stand in every shape's order; the others of a shape may stand in any."""
    if isinstance(value, list):
        return all(in_order(graph, v) for v in value)
    if not isinstance(value, dict):
        return True
    for shapes in graph.nodes:
        for shape in shapes:
            if isinstance(shape, Objects):
                named = [member.name for member in shape.members]
                if [n for n in named if n in value] + [n for n in value if n not in named] != list(value):
                    return False
    return all(in_order(graph, v) for v in value.values())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.lists(VALUES, min_size=8, max_size=24))
def test_grammars_hold_what_the_normal_form_holds(graph: Normal, values: list[Any]) -> None:
    lowered = lower(graph, whitespace=False)
    roots = []
    for grammar in (lowered.grammar, lower_again(graph, whitespace=False).grammar):
        root = llguidance.LLMatcher(TOKENS, grammar, log_level=0)
        if root.is_error():
            # A drawn graph may hold nothing, which no schema's normal form does.
            assert not any(holds(graph, graph.root, v) for v in values if in_order(graph, v)), root.get_error()
            continue
        roots.append(root)
    for value in values:
        if in_order(graph, value):
            expected = holds(graph, graph.root, value)
            found = [takes(root, write(value)) for root in roots]
            if lowered.exact or expected:
                assert all(f == expected for f in found), (value, expected, found)


def test_a_searched_for_repeat_is_no_longer_than_it_must_be() -> None:
    # .*x{1,255}.* would be a state for each count, and a name that llguidance gives up on.
    [branch] = read_search("[a-c]{2,255}", Reading.NARROW).branches
    assert branch == read_search("[a-c]{2}", Reading.NARROW).branches[0]
    assert read_search("x*y+", Reading.NARROW) == read_search("y", Reading.NARROW)
    assert read_search("^x*y+", Reading.NARROW) != read_search("^y", Reading.NARROW)


@pytest.mark.parametrize(
    ("value", "right", "wrong"),
    [
        (123456789012345678, ["123456789012345678"], ["1.2345678901234568e+17", "123456789012345679"]),
        (10**22, ["1e22", "1e+22", "1" + "0" * 22], ["1e21", "1e+23"]),
    ],
)
def test_a_long_number_is_written_with_an_exponent_only_where_that_is_the_same(
    value: int, right: list[str], wrong: list[str]
) -> None:
    schema = {"const": value}
    assert all(accepts(text, json_schema=schema) for text in right)
    assert not any(accepts(text, json_schema=schema) for text in wrong)
