"""What schemas mean, and what is refused, with the pointer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from palmette.errors import ConstraintError
from palmette.runtime.constraints import accepts, validate
from palmette.runtime.protocol import Constraint

CLOSED = {"type": "object", "additionalProperties": False}


def decide(schema: Any, texts: list[str]) -> list[bool]:
    return [accepts(text, json_schema=schema) for text in texts]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": [True, None, 'a"b', "e.f", 3]}, ["true", "null", '"a\\"b"', "3"], ["True", '"exf"', '"true"', "4"]),
        (
            {**CLOSED, "properties": {"a.b": {}, "x*|y": {"type": "null"}}, "required": ["a.b", "x*|y"]},
            ['{"a.b":[{}],"x*|y":null}'],
            ['{"aXb":1,"x*|y":null}', '{"a.b":1,"y":null}', '{"a.b":}', "{}"],
        ),
        ({"type": "object"}, ["{}", '{"a":{"b":[null,"x"]}}'], ["[]", '"x"', "{a:1}", '{"a":}']),
        (
            {"type": "integer", "minimum": -250, "maximum": 37},
            ["-250", "-9", "0", "37"],
            ["-251", "38", "01", "+3", "4.5", "370", "-"],
        ),
        (
            {"type": "string"},
            ['"one\\ntwo\\t\\u6c34"', '"\u6c34"', '"\\\\n"', '""'],
            ['"a\nb"', '"a\tb"', '"open', '"\\"'],
        ),
        (
            {"type": "string", "format": "date"},
            ['"2024-02-29"', '"1999-12-31"', '"2000-02-29"', '"0004-02-29"'],
            ['"2024-13-01"', '"2024-04-31"', '"2023-02-29"', '"1900-02-29"', '"0000-01-01"', '"24-1-1"'],
        ),
        (
            {"type": "string", "format": "date-time"},
            ['"2024-02-29T23:59:59.5Z"', '"1998-12-31T23:59:60Z"', '"2024-01-01T00:00:00+02:00"'],
            ['"2023-02-29T00:00:00Z"', '"2024-01-01T24:00:00Z"', '"2024-01-01"', '"2024-01-01T00:00:00"'],
        ),
        (
            {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5}},
            ['["ab","abcde"]', "[]"],
            ['["abcdef"]', '["a"]', '["AB"]'],
        ),
        (
            {"patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
            ['{"x_a":1,"other":"s"}', "3"],
            ['{"x_a":"no"}', '{"other":1}'],
        ),
        ({"minLength": 2}, ["7", '"ab"'], ['"a"']),
        # every key has one spelling where names differ in what they allow
        (
            {"type": "object", "properties": {"a": {"type": "integer"}}},
            ['{"a":1,"b":"x"}'],
            ['{"\\u0061":"x"}', '{"a":"x"}', '{"b":1,"\\u0061":"x"}'],
        ),
        ({"patternProperties": {"^a": {"type": "integer"}}}, ['{"a":1}', '{"b":"x"}'], ['{"\\u0061":"x"}']),
        # a key that comes twice is one property
        ({"type": "object", "required": ["a", "b"], "minProperties": 2}, ['{"a":1,"b":2}'], ['{"a":1,"a":2}']),
        ({"type": "string", "minLength": 2}, ['"\U0001f600a"'], ['"\\ud83d\\ude00"']),
        # JavaScript and Python differ in these; what both take is taken
        (
            {"type": "string", "pattern": r"^[^\w]\W.\S$"},
            ['"- -a"'],
            ['"\u00e9 -a"', '"-\u00e9-a"', '"- \u2028a"', '"- -\ufeff"'],
        ),
        (
            {"patternProperties": {r"^\w$": {"type": "integer"}}},
            ['{"a":1,"\u00e9":1,"-":"x"}'],
            ['{"a":"x"}', '{"\u00e9":"x"}'],
        ),
        (
            {"type": "object", "patternProperties": {r"^\w$": {}}, "additionalProperties": False},
            ['{"a":1}'],
            ['{"\u00e9":1}', '{"-":1}'],
        ),
        ({"type": "string", "pattern": r"^\d\w$"}, ['"1a"'], ['"\u0661a"', '"1\u00e9"', '"1a\\n"']),
        (
            {"$ref": "#/definitions/a", "maximum": 1, "definitions": {"a": {"type": "integer"}}, "$schema": "DRAFT7"},
            ["5"],
            ['"x"'],
        ),
        ({"$ref": "#/$defs/a", "maximum": 1, "$defs": {"a": {"type": "integer"}}}, ["1"], ["5", '"x"']),
        ({"$id": "http://x.y/z", "$ref": "http://x.y/z#/$defs/a", "$defs": {"a": {"const": 1}}}, ["1"], ["2"]),
        ({"maxItems": 2.0, "type": "array", "minimum": 1e0}, ["[1,2]"], ["[1,2,3]"]),
        (True, ["1", "{}"], ["", "x"]),
        # a definition that nothing refers to may hold anything
        ({"anyOf": [{"$ref": "#/$defs/a"}, {"const": 1}], "$defs": {"a": {"const": 2}, "b": {"not": {}}}}, ["2"], []),
        # and what only an endless value satisfies is never begun
        (
            {
                **CLOSED,
                "properties": {"a": {"$ref": "#/$defs/e"}, "b": {"$ref": "#"}},
                "$defs": {"e": {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 1}},
            },
            ["{}", '{"b":{"b":{}}}'],
            ['{"a":[]}'],
        ),
        ({**CLOSED, "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}, ['{"a":1,"b":2}'], []),
        ({"properties": {"a/b~": {"not": {}}}}, ["{}", '{"a":1}'], ['{"a/b~":1}']),
        ({"contains": {"const": 1}}, ["[1]", "[0,1,0]", "2"], ["[]", "[0]"]),
        ({"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"const": 3}}, ['"a"', "3"], ['"ab"', "4"]),
        ({"propertyNames": {"pattern": "a"}}, ['{"a":1,"ba":2}', "[]"], ['{"b":1}']),
        ({"dependentRequired": {"a": ["b"]}}, ['{"a":1,"b":1}', '{"b":1}'], ['{"a":1}', '{"a":1,"c":1}']),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, ['{"a":1}'], ['{"b":1}']),
        ({"type": "object", "minProperties": 1}, ['{"a":1}'], ["{}"]),
        # seen to by the monitor
        (
            {"format": "hostname", "type": "string"},
            ['"www.example.com"', '"' + "a." * 126 + 'a"'],
            ['"-a"', '"' + "a." * 127 + 'a"'],
        ),
        ({"type": "object", "minProperties": 2}, ['{"a":1,"b":1}'], ['{"a":1}', '{"a":1,"a":2}']),
        ({"uniqueItems": True}, ['[1,"1",[1]]', "[]"], ["[1,1]", "[1,1.0]", '["a","\\u0061"]', "[[1],[1]]"]),
        ({"contains": {"const": 1}, "maxContains": 1}, ["[0,1]", "[1]"], ["[]", "[1,1]", "[0]"]),
        ({**CLOSED, "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2}, ['{"a":1,"c":1}'], ['{"a":1}']),
        ({"type": "object", "maxProperties": 1}, ["{}", '{"a":1}'], ['{"a":1,"b":1}']),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["1.5", "0.10"], ["1", "-0", "2.0", '"x"']),
        ({"not": {"enum": [1, "a"]}}, ["2", "1.5", "true", '"b"', '"aa"'], ["1", "1.0", '"a"', '"\\u0061"']),
        ({"not": {"type": "string", "pattern": "^a"}}, ['"ba"', "1"], ['"ab"', '"\\u0061b"']),
        (
            {"patternProperties": {"^a": {"type": "integer"}, "b$": {"maximum": 2}}},
            ['{"a":3,"ab":2,"b":1,"b":"x"}', '{"ca":"x"}'],
            ['{"ab":3}', '{"ab":1.5}', '{"b":3}', '{"a":"x"}'],
        ),
        (
            {"patternProperties": {r"^\w$": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
            ['{"a":1,"ab":null}'],
            ['{"a":null}', '{"ab":1}'],
        ),
        # exact where a double is not
        ({"const": 9007199254740993}, ["9007199254740993"], ["9007199254740992"]),
        ({"minimum": 1e300}, ["1" + "0" * 300, '"x"'], ["9" * 300, "1"]),
        ({"type": "integer", "minimum": 1e20}, ["100000000000000000000"], ["99999999999999999999"]),
        ({"not": {"const": "a"}, "type": "string"}, ['"a/b"', '"a\\/b"'], []),
        ({"items": [{"type": "integer"}], "$schema": "DRAFT7"}, ['[1,"x"]'], ['["x"]']),
    ],
)
def test_meaning(schema: Any, good: list[str], bad: list[str]) -> None:
    if isinstance(schema, dict) and schema.get("$schema") == "DRAFT7":
        schema = {**schema, "$schema": "http://json-schema.org/draft-07/schema#"}
    assert decide(schema, good) == [True] * len(good)
    assert decide(schema, bad) == [False] * len(bad)


@pytest.mark.parametrize(
    ("schema", "pointer", "words"),
    [
        ({"properties": {"a": {"minLenght": 3}}}, "/properties/a/minLenght", "unknown keyword"),
        ({"items": {"type": "strin"}}, "/items/type", "not a valid JSON schema"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema", "draft 3"),
        ({"properties": {"p": {"pattern": r"(a)\1"}}}, "/properties/p/pattern", "back-reference"),
        ({"properties": {"p": {"pattern": r"(?=a)b"}}}, "/properties/p/pattern", "look-ahead"),
        ({"patternProperties": {"(": {}}}, "/patternProperties/(", "not a valid regex"),
        ({"enum": ["\ud800"]}, "/enum", "surrogate"),
        ({"$ref": "http://x.y/z"}, "/$ref", "leads out"),
        ({"$ref": "#/$defs/a"}, "/$ref", "leads nowhere"),
        ({"$ref": "#a"}, "/$ref", "leads nowhere"),
        ({"$defs": {"a": 3}, "$ref": "#/$defs/a"}, "/$defs/a", "not a valid JSON schema"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "", "no value is valid"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "", "no finite value"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "", "no finite value"),
        (False, "", "no value is valid"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_pointer(schema: Any, pointer: str, words: str) -> None:
    constraint = Constraint("json_schema", json.dumps(schema))
    with pytest.raises(ConstraintError) as early:
        validate(constraint)
    with pytest.raises(ConstraintError) as late:
        accepts("1", json_schema=schema)
    for caught in (early, late):
        assert words in caught.value.message
        if pointer:
            assert caught.value.pointer == pointer
        assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "object or a boolean"),
        ('"x"', "object or a boolean"),
        ('{"minimum":NaN}', "NaN"),
        ('{"type":"string","type":"null"}', "twice"),
        ('{"allOf":[' * 5000 + "{}" + "]}" * 5000, "nested too deeply"),
    ],
)
def test_what_is_no_schema(text: str, words: str) -> None:
    with pytest.raises(ConstraintError, match=words):
        validate(Constraint("json_schema", text))


def test_a_misspelt_keyword_gets_a_suggestion() -> None:
    with pytest.raises(ConstraintError, match="did you mean 'maxLength'"):
        validate(Constraint("json_schema", '{"type":"string","maxlength":3}'))
