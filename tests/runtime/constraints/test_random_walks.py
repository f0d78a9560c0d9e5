"""Whatever is drawn from the masks and ends by itself satisfies its constraint: judged by `jsonschema` and `re`."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from jsonschema.validators import validator_for

from palmette.errors import ConstraintError
from palmette.runtime.constraints import ConstraintCompiler, Matcher, Vocabulary
from palmette.runtime.protocol import Constraint

DATA = Path(__file__).parents[4] / "shared" / "data" / "constraints" / "maskbench.jsonl.gz"


def toy() -> Vocabulary:
    """Bytes, and tokens that cross every edge of JSON."""
    words = '{" "} ":" "," ": {" ": [ ["a"]} "}] }} ]} true, false, null, 12 00 -1 e+ .5 , " a" \\u 0061 \\" the id 20'
    pieces = [bytes([b]) for b in range(256)] + [w.encode() for w in words.split(" ")]
    pieces += ["\u6c34".encode(), "\U0001f600".encode(), b"\xf0\x9f\x98", b" \n", b"  "]
    return Vocabulary([*pieces, None], width=len(pieces) + 8, end_ids=frozenset({len(pieces)}))


VOCABULARIES = {"bytes": Vocabulary.of_bytes(), "toy": toy()}
CLOSERS = frozenset(b'"}],')


def walk(matcher: Matcher, vocabulary: Vocabulary, chance: random.Random, limit: int) -> bytes | None:
    """The text of tokens drawn at random, mostly evenly; None when the end was not drawn within `limit` tokens."""
    tokens: list[int] = []
    row = np.zeros(vocabulary.words, np.int32)
    hurry = chance.choice([0.1, 0.3, 0.7])
    for _ in range(limit):
        matcher.fill(row)
        options = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        assert options, "nothing is allowed, not even the end"
        ends = [t for t in options if t in vocabulary.end_ids]
        closers = [t for t in options if t in CLOSERS]
        if ends and chance.random() < 0.5:
            assert matcher.allows_end() and matcher.advance(ends[0])
            return vocabulary.text(tokens)
        token = chance.choice(closers) if closers and chance.random() < hurry else chance.choice(options)
        assert matcher.advance(token)
        if token in ends:
            return vocabulary.text(tokens)
        tokens.append(token)
    return None


def plain(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}, "required": ["v"]}
SCHEMAS: dict[str, Any] = {
    "anything": True,
    "string": {"type": "string"},
    "short string": {"type": "string", "minLength": 2, "maxLength": 4},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "range": {"type": "integer", "minimum": -250, "maximum": 37},
    "open range": {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
    "draft 4 range": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer",
        "minimum": 5,
        "exclusiveMinimum": True,
    },
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 8},
    "enum": {"enum": [True, None, 'a"b', "c\\d", "e.f", 3, 1.5, [1, {"k": "\u6c34"}], 9007199254740992]},
    "const": {"const": {"a": [1, 2.5, "x"], "b": {}}},
    "typed enum": {"type": ["string", "null"], "enum": ["low", "high", 3, None]},
    "object": {"type": "object"},
    "named and other": {"type": "object", "properties": {"a": {"type": "integer"}, "b/c": {"type": "null"}}},
    "named and typed other": {
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "additionalProperties": {"type": "boolean"},
    },
    "closed": plain(the=plain(id={"type": "boolean"}), n={"type": ["integer", "null"]}),
    "optional": {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "id": {}}, "required": ["b"]},
    "required only": {"type": "object", "required": ["id", "the"]},
    "strange names": plain(**{"price (USD)": {"type": "null"}, "a.b": {"type": "boolean"}, 'x"*|\\y': {}}),
    "patterns": {"patternProperties": {"^x_": {"type": "integer"}, r"^\d+$": {"type": "null"}}},
    "patterns closed": {
        "type": "object",
        "patternProperties": {"^a": {"type": "integer"}},
        "additionalProperties": False,
        "minProperties": 1,
    },
    "counts": {"type": "object", "minProperties": 1, "maxProperties": 2},
    "counts closed": {**plain(a={}, b={}), "minProperties": 2},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    "tuple": {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 1},
    "old tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "items": [{"type": "integer"}, {"type": "null"}],
        "additionalItems": {"type": "boolean"},
    },
    "any of": {"anyOf": [{"type": "integer", "minimum": 10}, {"type": "string", "maxLength": 1}, plain(a={})]},
    "one of": {"oneOf": [plain(kind={"const": "a"}, v={"type": "integer"}), plain(kind={"const": "b"})]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"x": {"type": "integer", "minimum": 10}}, "required": ["x"]},
            {"properties": {"y": {"enum": ["a", "b"]}, "x": {"maximum": 12}}, "required": ["y"]},
        ]
    },
    "recursive": {**NODE, "$defs": {"node": NODE}},
    "self": {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    "anchor": {"$ref": "#foo", "$defs": {"a": {"$anchor": "foo", "type": "integer"}}, "minimum": 3},
    "old ref": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"a": {"$ref": "#/definitions/a~1b%25", "type": "string"}},
        "definitions": {"a/b%": {"type": "integer"}},
        "required": ["a"],
    },
    "pattern": {"type": "string", "pattern": r"^(tmp-)?\d{6,}\s\w$"},
    "searched pattern": {"type": "string", "pattern": "[0-9]x", "maxLength": 6},
    "anchored branches": {"type": "string", "pattern": "^a|b$"},
    "two patterns": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5, "allOf": [{"pattern": "b"}]},
    "pattern of any type": {"pattern": "^x", "maxLength": 3},
    "negated class": {"type": "string", "pattern": r'^[^"\\a-z]\\?\.$'},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "time": {"type": "string", "format": "time"},
    "email": {"type": "string", "format": "email"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "uuid": {"type": "string", "format": "uuid"},
    "date of any type": {"format": "date"},
    "unknown format": {"type": "string", "format": "of-my-own", "maxLength": 3},
    "unique of one": {"type": "array", "uniqueItems": True, "maxItems": 1},
    "notes": {"title": "T", "description": "D", "default": 3, "examples": [1], "x-note": {}, "type": "boolean"},
    "trivial": {"type": "null", "propertyNames": True, "dependentRequired": {}, "uniqueItems": False},
}


def judge(schema: Any) -> Any:
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def check_schema(
    schema: Any, vocabulary: Vocabulary, seed: str, walks: int, limit: int, whitespace: bool = False
) -> int:
    """How many walks ended by themselves, each of which was judged."""
    compiled = ConstraintCompiler(vocabulary).compile(Constraint("json_schema", json.dumps(schema), whitespace))
    validator = judge(schema)
    chance = random.Random(seed)
    ended = 0
    for _ in range(walks):
        text = walk(compiled.start(), vocabulary, chance, limit)
        if text is not None:
            ended += 1
            validator.validate(json.loads(text.decode()))
    return ended


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("name", SCHEMAS)
def test_json_that_ended_by_itself_is_valid(name: str, vocabulary: str) -> None:
    assert check_schema(SCHEMAS[name], VOCABULARIES[vocabulary], name, 12, 150) > 0


@pytest.mark.parametrize("name", ["named and other", "closed", "array", "recursive", "one of"])
def test_json_with_white_space_is_valid_and_not_endless(name: str) -> None:
    assert check_schema(SCHEMAS[name], VOCABULARIES["toy"], name, 12, 300, whitespace=True) > 0


@pytest.mark.skipif(not DATA.exists(), reason="the shared data lies beside the repository only where it is developed")
def test_fifty_real_schemas() -> None:
    chance = random.Random(50)
    with gzip.open(DATA, "rt") as lines:
        records = [line for line in lines if len(line) < 20_000]
    chance.shuffle(records)
    ended = 0
    for line in records[:400]:
        record = json.loads(line)
        try:
            ended += check_schema(record["schema"], VOCABULARIES["toy"], record["name"], 3, 250) > 0
        except ConstraintError:
            continue
        if ended == 50:
            break
    assert ended == 50


REGEXES = [
    r"\d{3}-\d{4}",
    r"(?:yes|no|maybe \w{1,5})!?",
    r"[^\W\d]\w*",
    r"[\u00e0-\u00ff]{2,4}|[\u6c34\U0001f600]+",
    r"(?i)true|false",
    r".{1,300}",
    r"([\w-]{20,40} ?){1,2}",
    r"(?=.*\d)(?!.*aa)[a-c\d]{3,5}",
    r"\b[a-z ]{2,5}\b",
    r"^\s*(a|ab|abc)*\.?$",
    r"(?s).{0,3}",
    r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"',
]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("pattern", REGEXES)
def test_text_of_a_regex_matches_it(pattern: str, vocabulary: str) -> None:
    compiled = ConstraintCompiler(VOCABULARIES[vocabulary]).compile(Constraint("regex", pattern))
    chance = random.Random(pattern)
    ended = 0
    for _ in range(25):
        text = walk(compiled.start(), VOCABULARIES[vocabulary], chance, 80)
        if text is not None:
            ended += 1
            assert re.fullmatch(pattern, text.decode(), re.ASCII), text
    assert ended


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_text_of_choices_is_one_of_them(vocabulary: str) -> None:
    options = ("", "the", "then", "\u6c34", "\u6c34\U0001f600!", "id", "12 00", "\n", "a" * 70)
    compiled = ConstraintCompiler(VOCABULARIES[vocabulary]).compile(Constraint("choices", options))
    chance = random.Random(1)
    seen = {walk(compiled.start(), VOCABULARIES[vocabulary], chance, 80) for _ in range(400)}
    assert seen == {option.encode() for option in options}
