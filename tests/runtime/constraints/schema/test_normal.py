"""What normal forms look like, what is refused with which pointer, and what hostile schemas cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from time import monotonic
from typing import Any

import pytest

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema.algebra import Budget
from palmette.runtime.constraints.schema.normal import normal_form, read
from palmette.runtime.constraints.schema.shapes import (
    ANYTHING_NODE,
    NOTHING_NODE,
    Anything,
    Arrays,
    Normal,
    Numbers,
    Objects,
    Strings,
    Text,
)

DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT7 = "http://json-schema.org/draft-07/schema#"
CLOSED = {"type": "object", "additionalProperties": False}
A: dict[str, Any] = {"type": "string"}


def form(schema: Any, **how: Any) -> Normal:
    return normal_form(json.dumps(schema), **how)


def root(schema: Any) -> Any:
    normal = form(schema)
    return normal.nodes[normal.root]


def names(shape: Objects) -> list[str]:
    return [member.name for member in shape.members]


def test_the_first_nodes_are_anything_and_nothing() -> None:
    for schema in (True, {}, {"title": "x"}, {"anyOf": [{"type": "string"}, {"not": {"type": "string"}}]}):
        normal = form(schema)
        assert normal.root == ANYTHING_NODE and normal.nodes == ((Anything(),), ())


def test_keys_stand_in_the_order_in_which_the_schema_lists_them() -> None:
    (shape,) = root(
        {
            **CLOSED,
            "properties": {"z": A, "m": A},
            "required": ["q", "m"],
            "allOf": [{"properties": {"a": A, "z": {"minLength": 1}, "q": A}}],
            "additionalProperties": True,
        }
    )
    assert names(shape) == ["z", "m", "a", "q"]
    (shape,) = root({"type": "object", "properties": {"z": A}, "required": ["b", "z", "a"]})
    assert names(shape) == ["z", "b", "a"] and all(member.required for member in shape.members)


def test_the_order_stays_where_alternatives_cut_an_object() -> None:
    schema = {
        "type": "object",
        "properties": {"z": {}, "y": {}, "a": {}},
        "oneOf": [{"required": ["a"]}, {"required": ["y", "b"], "properties": {"c": {}, "a": {}}}],
        "anyOf": [{"required": ["z"]}, {"minProperties": 2}],
    }
    shapes = root(schema)
    assert len(shapes) > 2
    for shape in shapes:
        assert [name for name in names(shape) if name in "zyac"][:3] == ["z", "y", "a"]


def test_equal_subschemas_are_one_node_and_the_result_is_the_same_each_time() -> None:
    schema = {
        "properties": {"a": {"allOf": [A, {"minLength": 1}]}, "b": {"type": "string", "minLength": 1}},
        "additionalProperties": {"$ref": "#"},
    }
    normal = form(schema)
    (shape,) = [s for s in normal.nodes[normal.root] if isinstance(s, Objects)]
    assert shape.members[0].node == shape.members[1].node
    assert shape.others[0].node == normal.root
    assert form(schema) == normal


def test_whole_surrogate_pairs_are_characters() -> None:
    (shape,) = root({"const": "\U0001f600"})
    assert shape == Strings(Text(only=frozenset(["\U0001f600"])))


def test_numbers_are_exact() -> None:
    (shape,) = root({"type": "number", "minimum": 0.1, "multipleOf": 0.01, "allOf": [{"multipleOf": 0.015}]})
    assert shape == Numbers(low=Fraction(1, 10), multiple_of=(Fraction(3, 100),))
    (shape,) = root({"const": 1.0})
    assert shape == Numbers(only=frozenset([Fraction(1)]))
    (shape,) = root({"$schema": DRAFT4, "type": "integer", "minimum": 3, "exclusiveMinimum": True})
    assert shape == Numbers(low=Fraction(3), low_open=True, multiple_of=(Fraction(1),))


def test_branches_with_a_tag_stay_as_they_are() -> None:
    branches = [
        {"properties": {"kind": {"const": f"k{i}"}, "v": {"type": "integer", "minimum": i}}, "required": ["kind"]}
        for i in range(20)
    ]
    shapes = root({"type": "object", "oneOf": branches})
    assert len(shapes) == 20 and all(len(shape.members) == 2 for shape in shapes)


def test_what_cannot_be_there_is_not() -> None:
    # an array whose third item cannot be, and a property whose value could only be endless
    (shape,) = root({"type": "array", "prefixItems": [A, A, {"enum": []}]})
    assert isinstance(shape, Arrays) and shape.most == 2 and shape.rest == NOTHING_NODE
    (shape,) = root({**CLOSED, "properties": {"a": {"$ref": "#/$defs/e"}, "b": A}, "$defs": {"e": {
        "type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 1}}})  # fmt: skip
    assert names(shape) == ["b"]
    (shape,) = root({"type": ["string", "array"], "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3})
    assert isinstance(shape, Strings)


@pytest.mark.parametrize(
    ("schema", "pointer", "words"),
    [
        ({"properties": {"a": {"minLenght": 3}}}, "/properties/a/minLenght", "unknown keyword"),
        ({"items": {"oneof": []}}, "/items/oneof", "unknown keyword"),
        ({"items": {"type": "strin"}}, "/items/type", "not a valid JSON schema"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}, "/items", "not a valid JSON"),
        ({"minimum": "3"}, "/minimum", "not a valid JSON schema"),
        ({"anyOf": []}, "/anyOf", "not a valid JSON schema"),
        ({"properties": {"a": 3}}, "/properties/a", "is no schema"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema", "draft 3"),
        ({"$schema": DRAFT7, "prefixItems": [{}]}, "/prefixItems", "not a keyword of draft 7"),
        ({"divisibleBy": 2}, "/divisibleBy", "divisibleBy"),
        ({"properties": {"p": {"pattern": r"(a)\1"}}}, "/properties/p/pattern", "back-reference"),
        ({"patternProperties": {"(": {}}}, "/patternProperties/(", "not a valid regex"),
        ({"enum": ["\ud800"]}, "/enum", "surrogate"),
        ({"properties": {"a": {"properties": {"\udc00": {}}}}}, "/properties/a/properties", "surrogate"),
        ({"format": "idn-hostname"}, "/format", "idn-hostname"),
        ({"$ref": "http://x.y/z"}, "/$ref", "leads out"),
        ({"$ref": "#/$defs/a"}, "/$ref", "leads nowhere"),
        ({"$ref": "#a"}, "/$ref", "leads nowhere"),
        ({"$defs": {"a": {"x": [1]}}, "$ref": "#/$defs/a/x"}, "/$ref", "leads to no schema"),
        ({"allOf": [{"$ref": "#"}]}, "", "leads back to itself"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "", "no finite value"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "", "no finite value"),
        (False, "", "no value is valid"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "", "no value is valid"),
        ({"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}, "required": ["a"]},
         "/properties/a", "no value is valid"),
        ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3}, "", "no value is valid"),
        ({"type": "array", "contains": {"const": 1}, "maxItems": 0}, "", "no value is valid"),
        ({"type": "object", "required": ["a", "b"], "maxProperties": 1}, "", "no value is valid"),
        ({**CLOSED, "properties": {"a": {}, "b": {}}, "minProperties": 3}, "", "no value is valid"),
    ],
)  # fmt: skip
def test_faults_have_pointer_message_and_hint(schema: Any, pointer: str, words: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        form(schema)
    assert words in caught.value.message, caught.value
    assert caught.value.pointer == pointer and caught.value.hint


def test_all_faults_are_told_at_once() -> None:
    schema = {"properties": {"a": {"minLenght": 3}, "b": {"pattern": "(?<=x)y"}, "c": {"$ref": "#/nowhere"}}}
    with pytest.raises(ConstraintError) as caught:
        form(schema)
    assert sorted(fault.pointer for fault in caught.value.faults) == [
        "/properties/a/minLenght",
        "/properties/b/pattern",
        "/properties/c/$ref",
    ]
    assert caught.value.pointer == caught.value.faults[0].pointer
    assert all(fault.message in str(caught.value) and fault.hint for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "object or a boolean"),
        ('{"minimum":NaN}', "NaN"),
        ('{"type":"string","type":"null"}', "twice"),
        ('{"minimum":1e999999999}', "exactly"),
        ('{"const":' + "9" * 5000 + "}", "too long"),
        ('{"allOf":[' * 20_000 + "{}" + "]}" * 20_000, "nested too deeply"),
        ('{"items":' * 20_000 + "{}" + "}" * 20_000, "nested too deeply"),
        ('{"not":' * 450 + "{}" + "}" * 450, "nested too deeply"),
    ],
)
def test_what_is_no_schema(text: str, words: str) -> None:
    with pytest.raises(ConstraintError, match=words):
        normal_form(text)


@pytest.mark.parametrize("key", ["visible", "strictProperties", "form", "note", "x-type", "_enum", "@type", "javaName"])
def test_keys_that_nobody_can_have_meant_as_keywords_are_notes(key: str) -> None:
    assert form({key: {"anything": [1]}}).root == ANYTHING_NODE
    reading = read(json.dumps({key: 1, "type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}))
    became = {(o.pointer, o.keyword): o.becomes for o in reading.occurrences}
    assert became == {
        ("", key): "annotation",
        ("", "type"): "enforced",
        ("", "oneOf"): "rewritten",
        ("/oneOf/0", "required"): "enforced",
        ("/oneOf/1", "required"): "enforced",
    }


def test_references_to_documents_of_the_caller_and_to_meta_schemas(evaluate: Callable[[Normal, Any], bool]) -> None:
    normal = form(
        {"$id": "http://x.y/dir/root", "items": {"$ref": "item#/$defs/n"}},
        documents={"http://x.y/dir/item": {"$defs": {"n": {"type": "integer", "minimum": 0.5}}}},
    )
    assert evaluate(normal, [1, 2]) and not evaluate(normal, [0]) and not evaluate(normal, ["x"])
    normal = form({"$ref": DRAFT7})
    assert evaluate(normal, {"type": "object", "properties": {"a": {"minLength": 2}}})
    assert not evaluate(normal, {"properties": {"a": {"minLength": -1}}})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"allOf": [{"anyOf": [{"properties": {f"p{i}": {"const": j}}, "required": [f"p{i}"]} for j in range(3)]}
                    for i in range(30)]}, "alternatives"),
        ({"oneOf": [{"properties": {f"p{i}_{j}": {"const": j} for j in range(4)}} for i in range(30)]}, "too large"),
        ({"dependentRequired": {f"p{i}": [f"q{i}"] for i in range(40)}}, "alternatives"),
        ({"anyOf": [{"properties": {f"p{i}": True}} for i in range(14)], "unevaluatedProperties": False},
         "so many alternatives"),
        ({"patternProperties": {f"[a-{c}].*{c}.*{c}": {"minLength": i} for i, c in enumerate("bcdefghijklmnopqrstuv")}},
         "too large"),
    ],
)  # fmt: skip
def test_hostile_schemas_are_refused_within_the_budget(schema: Any, words: str) -> None:
    start = monotonic()
    with pytest.raises(ConstraintError, match=words) as caught:
        form(schema, budget=Budget(seconds=3))
    assert caught.value.hint and monotonic() - start < 20  # of which 3 are its own on a free machine


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a0", "$defs": {f"a{i}": {"properties": {n: {"$ref": f"#/$defs/a{i + 1}"} for n in "xy"}}
                                         for i in range(60)} | {"a60": {"type": "null"}}},
        {"$ref": "#/$defs/a0", "$defs": {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2}
                                         for i in range(60)} | {"a60": {"type": "null"}}},
        {"enum": list(range(50_000))},
        {"oneOf": [{"properties": {"t": {"const": f"k{i}"}}, "required": ["t"]} for i in range(300)]},
        {"type": "string", "maxLength": 10**9, "pattern": "a{1000}"},
        {"type": "array", "contains": {"const": 1}, "minItems": 10**7},
        {"pattern": "^(a+)+$", "not": {"pattern": "([ab]*a[ab]{30})"}},
    ],
)  # fmt: skip
def test_large_but_harmless_schemas_are_read(schema: Any) -> None:
    assert form(schema).root != NOTHING_NODE
