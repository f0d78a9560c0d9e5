"""Masks of a grammar and a machine together: valid values only, all of them, and no dead ends."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import jsonschema
import numpy as np
import pytest

from palmette.runtime.constraints import ConstraintCompiler, Vocabulary, closing
from palmette.runtime.constraints.llg import LlgConstraint
from palmette.runtime.constraints.schema.monitor import MonitoredConstraint
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
    Strings,
    Text,
)
from palmette.runtime.protocol import Constraint

INTEGER = Numbers(multiple_of=(Fraction(1),))


def toy() -> Vocabulary:
    words = '{" "} ":" "," ":[ [[ ]] "]} }} ]} true, false null, 12 00 .5 a" ab aa, abc 1, ,1 ,"a" [{" "x'
    pieces = [bytes([b]) for b in range(256)] + [w.encode() for w in words.split(" ")]
    return Vocabulary([*pieces, None], width=len(pieces) + 8, end_ids=frozenset({len(pieces)}), encode=list)


VOCABULARIES = {"bytes": Vocabulary.of_bytes(), "toy": toy()}


def listed(*values: int) -> Numbers:
    return Numbers(only=frozenset(map(Fraction, values)))


def normal(*shapes: Any) -> Normal:
    return Normal(((Anything(),), (), *shapes), 2)


NAMES = {"type": "object", "additionalProperties": {"type": "integer"}}
# name -> (schema, the grammar's part of it, normal form).
CASES: dict[str, tuple[Any, Any, Normal]] = {
    "unique few": (
        {"type": "array", "items": {"enum": [1, 2, 12]}, "uniqueItems": True, "minItems": 2},
        {"type": "array", "items": {"enum": [1, 2, 12]}, "minItems": 2},
        normal((Arrays(rest=3, least=2, unique=True),), (listed(1, 2, 12),)),
    ),
    "unique strings": (
        {"type": "array", "items": {"type": "string", "maxLength": 3}, "uniqueItems": True},
        {"type": "array", "items": {"type": "string", "maxLength": 3}},
        normal((Arrays(rest=3, unique=True),), (Strings(Text(most=3)),)),
    ),
    "unique anything": (
        {"type": "array", "uniqueItems": True, "minItems": 2},
        {"type": "array", "minItems": 2},
        normal((Arrays(rest=0, least=2, unique=True),)),
    ),
    "contains": (
        {
            "type": "array",
            "items": {"enum": [1, 12, True]},
            "contains": {"type": "integer"},
            "minContains": 2,
            "maxContains": 2,
            "maxItems": 3,
        },
        {"type": "array", "items": {"enum": [1, 12, True]}, "maxItems": 3},
        normal((Arrays(rest=3, most=3, contains=(Contains(4, 2, 2),)),), (listed(1, 12), Fixed("true")), (INTEGER,)),
    ),
    "least": (
        NAMES | {"minProperties": 2, "maxProperties": 3},
        NAMES,
        normal((Objects(others=(Others(ANY_TEXT, 3),), least=2, most=3),), (INTEGER,)),
    ),
    "overlap": (
        {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]},
        {"type": "integer"},
        normal(
            (
                Numbers(high=Fraction(2), multiple_of=(Fraction(1),)),
                Numbers(low=Fraction(6), multiple_of=(Fraction(1),)),
            )
        ),
    ),
    "pairs": (
        {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "uniqueItems": True,
            "items": {
                "type": "object",
                "properties": {"a": {"enum": [1, 2]}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
        {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"a": {"enum": [1, 2]}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
        normal(
            (Arrays(rest=3, least=2, most=3, unique=True),), (Objects((Member("a", 4, True),), ()),), (listed(1, 2),)
        ),
    ),
}


def monitored(name: str, vocabulary: Vocabulary) -> MonitoredConstraint:
    _, wide, of = CASES[name]
    llg = ConstraintCompiler(vocabulary).compile(Constraint("json_schema", json.dumps(wide)))
    assert isinstance(llg, LlgConstraint)
    return MonitoredConstraint(llg, of, vocabulary)


def options_of(matcher: Any, vocabulary: Vocabulary) -> list[int]:
    row = np.zeros(vocabulary.words, np.int32)
    matcher.fill(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("name", CASES)
def test_only_valid_values_are_written(name: str, vocabulary: str) -> None:
    words, schema = VOCABULARIES[vocabulary], CASES[name][0]
    compiled = monitored(name, words)
    for seed in range(12):
        chance, tokens = random.Random(seed), list[int]()
        matcher = compiled.start() if seed % 3 else closing.start(compiled, 30)
        ended = False
        for _ in range(60 if seed % 3 else 30):
            options = options_of(matcher, words)
            assert options, words.text(tokens)
            assert set(matcher.forced(tokens)[:1]) <= set(options)
            assert bool(words.end_ids.intersection(options)) == matcher.allows_end()
            token = chance.choice(options)
            assert matcher.advance(token)
            if ended := token in words.end_ids:
                break
            tokens.append(token)
        if ended or seed % 3 == 0:
            assert matcher.allows_end()
            text = words.text(tokens)
            jsonschema.validate(json.loads(text), schema)
            assert compiled.accepts(text)


@pytest.mark.parametrize("name", CASES)
def test_a_mask_has_exactly_the_tokens_that_can_be_taken(name: str) -> None:
    words = VOCABULARIES["toy"]
    matcher, chance = monitored(name, words).start(), random.Random(name)
    for _ in range(25):
        options = options_of(matcher, words)
        for token in range(words.width):
            taken = matcher.advance(token)
            if taken:
                matcher.rollback(1)
            # llguidance may leave out what its own tokens would not write.
            assert token not in options or taken, token
        plain = [t for t in options if t not in words.end_ids]
        if not plain:
            break
        assert matcher.advance(chance.choice(plain))


@pytest.mark.parametrize("name", ["unique few", "contains", "pairs"])
def test_every_value_of_a_small_language_can_be_written(name: str) -> None:
    words, (schema, wide, _) = VOCABULARIES["bytes"], CASES[name]
    found: set[str] = set()
    level: list[tuple[Any, bytes]] = [(monitored(name, words).start(), b"")]
    while level:
        below = []
        for matcher, text in level:
            for token in options_of(matcher, words):
                if token in words.end_ids:
                    found.add(text.decode())
                else:
                    twin = matcher.fork()
                    assert twin.advance(token)
                    below.append((twin, text + bytes([token])))
        level = below
    items = [1, 2, 12] if name == "unique few" else [1, 12, True] if name == "contains" else [{"a": 1}, {"a": 2}]
    every: list[list[Any]] = [[]]
    for _ in range(3):
        every += [[*some, item] for some in every for item in items]
    valid = {
        json.dumps(value, separators=(",", ":"))
        for value in every
        if jsonschema.Draft202012Validator(schema).is_valid(value)
        and jsonschema.Draft202012Validator(wide).is_valid(value)
    }
    assert found == valid


FILTERED = {
    **{name: schema for name, (schema, *_) in CASES.items()},
    "lists that differ from one": {
        "type": "array",
        "prefixItems": [{"type": "array", "items": {"type": "string"}}, {"const": ["a"]}],
        "uniqueItems": True,
        "minItems": 2,
    },
    "unique objects": {
        "type": "array",
        "items": {"type": "object", "additionalProperties": {"type": "string"}},
        "uniqueItems": True,
        "minItems": 2,
    },
    "names by pattern": {
        "type": "object",
        "patternProperties": {"^a": {"type": "string", "minLength": 1}, "^b.?$": {"type": "null"}},
        "minProperties": 2,
    },
}


@pytest.mark.parametrize("name", FILTERED)
def test_what_is_decided_in_bulk_is_what_each_token_by_itself_is(name: str) -> None:
    pieces = ['a"', 'ab"', 'a","', '","a', '":"', 'b":"a', '"],["', '"}', '"}]', '\\"a', 'n"', "u00"]
    pieces += ["\\", '\\ud83d\\ude00"', "na", "\\udc00", '\\\\",', '":"","']
    words = [bytes([b]) for b in range(256)] + [p.encode() for p in pieces] + ["é".encode()[:1] + b'"', b"\xf0\x9f"]
    vocabulary = Vocabulary([*words, None], width=len(words) + 1, end_ids=frozenset({len(words)}), encode=list)
    compiled = ConstraintCompiler(vocabulary).compile(Constraint("json_schema", json.dumps(FILTERED[name])))
    if not isinstance(compiled, MonitoredConstraint):
        pytest.skip("a grammar says all of it")
    every = np.arange(len(words))
    for seed in range(4):
        chance, state = random.Random(seed), compiled.begin
        for _ in range(25):
            living = compiled.filter.living(state, every).tolist()
            assert living == [t for t in every.tolist() if state.walk(words[t]) is not None], state.closing()
            if not living:
                break
            likely = [t for t in living if words[t][:1] in b'",:]}[{\\'] if chance.random() < 0.7 else []
            after = state.walk(words[chance.choice(likely or living)])
            assert after is not None
            state = after
