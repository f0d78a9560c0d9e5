"""Texts end complete within their tokens, whatever is drawn: every limit from the shortest text up."""

from __future__ import annotations

import json
import random
import re
from fractions import Fraction
from typing import Any

import jsonschema
import numpy as np
import pytest

from palmette.benchmarks.constraints.closing import MORE, close
from palmette.benchmarks.constraints.data import Case
from palmette.errors import ConstraintError
from palmette.runtime.constraints import ConstraintCompiler, Matcher, Vocabulary, closing
from palmette.runtime.constraints.closing import ClosingMatcher
from palmette.runtime.constraints.closing_places import SchemaPlace
from palmette.runtime.constraints.closing_tables import tables_of
from palmette.runtime.constraints.llg import LlgConstraint
from palmette.runtime.constraints.matcher import CompiledConstraint
from palmette.runtime.constraints.schema.machine import Machine
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    Anything,
    Arrays,
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


def toy() -> Vocabulary:
    """Bytes, and tokens that cross every edge of JSON."""
    words = '{" "} ":" "," ":[ [[ ]] "]} }} ]} true, false null, 12 00 .5 a" ab aa, abc \\u 0061 \\" the id [{" "x'
    pieces = [bytes([b]) for b in range(256)] + [w.encode() for w in words.split(" ")]
    pieces += ["水".encode(), "\U0001f600".encode(), b"\xf0\x9f\x98"]
    return Vocabulary([*pieces, None], width=len(pieces) + 8, end_ids=frozenset({len(pieces)}), encode=list)


VOCABULARIES = {"bytes": Vocabulary.of_bytes(), "toy": toy()}


def draw(matcher: Matcher, vocabulary: Vocabulary, chance: random.Random, limit: int) -> bytes:
    """The text that is written within `limit` tokens: forced ones where there are such, all others evenly drawn."""
    tokens: list[int] = []
    row = np.zeros(vocabulary.words, np.int32)
    while len(tokens) < limit and not matcher.done():
        forced = matcher.forced(tokens) if chance.random() < 0.5 else []
        for token in forced[: limit - len(tokens)]:
            assert matcher.advance(token)
            tokens.append(token)
        if forced:
            continue
        matcher.fill(row)
        options = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        assert options, f"nothing is allowed behind {vocabulary.text(tokens)!r}"
        token = chance.choice(options)
        if chance.random() < 0.7:  # rarely the end
            token = chance.choice([t for t in options if t not in vocabulary.end_ids] or options)
        assert matcher.advance(token), (vocabulary.text(tokens), token)
        if token in vocabulary.end_ids:
            break
        tokens.append(token)
    assert matcher.allows_end(), (limit, vocabulary.text(tokens))
    return vocabulary.text(tokens)


def shortest(compiled: CompiledConstraint, banned: frozenset[int] = frozenset()) -> int:
    """What the refusal of no token at all says to be needed."""
    with pytest.raises(ConstraintError) as refused:
        closing.start(compiled, 0, banned=banned)
    return int(re.search(r"has (\d+) tokens", refused.value.message)[1])  # type: ignore[index]


REGEXES = [
    r"[a-c]+@[a-c]{2,5}\.(com|org)",
    r"(a|bc{30})x",
    r"\d{4}-\d\d-\d\d",
    r"(ab|水)*!",
    r".{3,20}end",
    r"yes|no|perhaps not",
]


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("pattern", REGEXES)
def test_regexes_end_within_every_limit(pattern: str, name: str) -> None:
    vocabulary = VOCABULARIES[name]
    compiled = ConstraintCompiler(vocabulary).compile(Constraint("regex", pattern))
    least = shortest(compiled)
    for limit in [*range(least, least + 12), least + 25, least + 40]:
        for seed in range(3):
            text = draw(closing.start(compiled, limit), vocabulary, random.Random(seed), limit)
            assert re.fullmatch(pattern, text.decode())


@pytest.mark.parametrize("name", VOCABULARIES)
def test_choices_end_within_every_limit(name: str) -> None:
    vocabulary, options = VOCABULARIES[name], ["a", "abcabc", "abd", "the end of it", "then"]
    compiled = ConstraintCompiler(vocabulary).compile(Constraint("choices", tuple(options)))
    seen = set()
    for limit in range(shortest(compiled), 16):
        for seed in range(20):
            text = draw(closing.start(compiled, limit), vocabulary, random.Random(seed), limit).decode()
            assert text in options
            seen.add(text)
    assert seen == set(options)


INTEGER = (Numbers(multiple_of=(Fraction(1),)),)
CLOSED = {"type": "object", "additionalProperties": False}


def normal(*shapes: Any) -> Normal:
    return Normal(((Anything(),), (), *shapes), 2)


# Each schema with its normal form, as the machine takes it.
SCHEMAS: dict[str, tuple[Any, Normal]] = {
    "object": (
        CLOSED
        | {
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "id": {"type": "null"}},
            "required": ["a"],
        },
        normal(
            (Objects((Member("a", 3, True), Member("b", 4), Member("id", 5)), ()),),
            INTEGER,
            (Strings(),),
            (Fixed("null"),),
        ),
    ),
    "tree": (
        CLOSED
        | {
            "properties": {"id": {"type": "string", "maxLength": 9}, "kids": {"type": "array", "items": {"$ref": "#"}}},
            "required": ["id", "kids"],
        },
        normal(
            (Objects((Member("id", 3, True), Member("kids", 4, True)), ()),),
            (Strings(Text(most=9)),),
            (Arrays(rest=2),),
        ),
    ),
    "lists": (
        {
            "type": "array",
            "items": {"type": "array", "items": {"enum": ["abc", "ab", True]}, "minItems": 1},
            "minItems": 2,
        },
        normal(
            (Arrays(rest=3, least=2),),
            (Arrays(rest=4, least=1),),
            (Strings(Text(only=frozenset({"abc", "ab"}))), Fixed("true")),
        ),
    ),
    "either": (
        {
            "anyOf": [
                {"type": "null"},
                CLOSED | {"properties": {"the": {"type": "string", "minLength": 30}}, "required": ["the"]},
            ]
        },
        normal((Fixed("null"), Objects((Member("the", 3, True),), ())), (Strings(Text(least=30)),)),
    ),
    "names": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        normal((Objects(others=(Others(ANY_TEXT, 3),)),), INTEGER),
    ),
    "anything": (True, normal((Anything(),))),
}


def schema(name: str, vocabulary: Vocabulary) -> LlgConstraint:
    text, of = SCHEMAS[name]
    compiled = ConstraintCompiler(vocabulary).compile(Constraint("json_schema", json.dumps(text)))
    assert isinstance(compiled, LlgConstraint)
    machine = Machine(of, whitespace=False, distinct=False)
    growth = machine.growth()
    return LlgConstraint(compiled.root, "", vocabulary, lambda: SchemaPlace(machine.start(), growth))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_end_within_every_limit(name: str, vocabulary: str) -> None:
    words = VOCABULARIES[vocabulary]
    compiled = schema(name, words)
    least = shortest(compiled)
    for limit in [*range(least, least + 12), least + 60, least + 150]:
        for seed in range(2):
            text = draw(closing.start(compiled, limit), words, random.Random(seed), limit)
            jsonschema.validate(json.loads(text), SCHEMAS[name][0])


def test_far_from_the_limit_the_mask_is_untouched() -> None:
    words = VOCABULARIES["toy"]
    compiled = schema("object", words)
    matcher, free = closing.start(compiled, 5000), compiled.start()
    chance, rows = random.Random(0), np.zeros((2, words.words), np.int32)
    for _ in range(40):
        matcher.fill(rows[0])
        free.fill(rows[1])
        assert (rows[0] == rows[1]).all()
        options = np.flatnonzero(np.unpackbits(rows[0].view(np.uint8), bitorder="little")).tolist()
        token = chance.choice([t for t in options if t not in words.end_ids])
        assert matcher.advance(token) and free.advance(token)
        if free.done():
            break


@pytest.mark.parametrize("name", ["object", "tree", "names"])
def test_forks_and_rollbacks_stand_where_they_say(name: str) -> None:
    words, chance = VOCABULARIES["toy"], random.Random(name)
    compiled = schema(name, words)
    limit = shortest(compiled) + 30
    matcher = closing.start(compiled, limit)
    taken: list[int] = []
    rows = np.zeros((2, words.words), np.int32)
    for _ in range(100):
        if taken and chance.random() < 0.3:
            n = chance.randrange(len(taken) + 1)
            matcher.rollback(n)
            del taken[len(taken) - n :]
        if chance.random() < 0.3:
            matcher = matcher.fork()
        fresh = closing.start(compiled, limit)
        assert all(fresh.advance(t) for t in taken)
        matcher.fill(rows[0])
        fresh.fill(rows[1])
        assert (rows[0] == rows[1]).all()
        assert matcher.forced(taken) == fresh.forced(taken)
        options = np.flatnonzero(np.unpackbits(rows[0].view(np.uint8), bitorder="little")).tolist()
        options = [t for t in options if t not in words.end_ids]
        if options and not matcher.done() and len(taken) < limit:
            taken.append(chance.choice(options))
            assert matcher.advance(taken[-1])


def test_what_stands_already_is_beside_the_limit() -> None:
    words = Vocabulary.of_bytes()
    compiled = ConstraintCompiler(words).compile(Constraint("regex", "abc+d"))
    matcher = closing.start(compiled, 2, begun=list(b"ab"))
    assert draw(matcher, words, random.Random(0), 2) == b"cd"
    with pytest.raises(ConstraintError, match="has 2 tokens, there is room for 1"):
        closing.start(compiled, 1, begun=list(b"ab"))


def test_a_text_is_not_completed_with_tokens_that_end_it() -> None:
    words = VOCABULARIES["toy"]
    compiled = schema("lists", words)
    both = frozenset({words.trie.ends_at(words.trie.find(b"]]"))[0].item()})
    assert shortest(compiled, both) == shortest(compiled) + 1
    assert isinstance(closing.start(compiled, 40, banned=both), ClosingMatcher)


def test_the_fewest_tokens_are_counted() -> None:
    tables = tables_of(VOCABULARIES["toy"])
    assert tables.spell(b'"]}]}') is not None and tables.count(b'"]}]}') == 2
    assert VOCABULARIES["toy"].text(tables.spell(b"abcab") or []) == b"abcab" and tables.count(b"abcab") == 2
    assert tables.count(b"") == 0


DRAWN = {
    "person": {"properties": {"age": {"type": "integer"}, "bio": {"type": "string"}}, "required": ["age", "bio"]},
    "unique": {"type": "array", "items": {"type": ["string", "integer"]}, "uniqueItems": True, "minItems": 3},
    "names": {"type": "object", "minProperties": 2, "additionalProperties": {"type": "boolean"}},
    "date": {"type": "string", "format": "date"},
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"v": {"type": "number", "minimum": 0.5}, "next": {"$ref": "#/$defs/node"}},
                "required": ["v"],
                "additionalProperties": False,
            }
        },
    },
}


@pytest.mark.parametrize("name", DRAWN)
def test_schemas_as_they_are_compiled_end_valid_within_every_limit(name: str) -> None:
    """What `benchmarks.constraints closing` asks of many schemas."""
    case = Case(name, "drawn", {"type": "object"} | DRAWN[name] if name == "person" else DRAWN[name], ())
    for vocabulary in VOCABULARIES.values():
        found = close([case], vocabulary)
        assert (found.schemas, found.unknown, found.examples) == (1, [], []) and found.drawn == len(MORE)
