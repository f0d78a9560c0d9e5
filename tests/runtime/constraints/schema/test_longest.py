"""The longest text of a schema: against all its texts where there are few, against the machine where there are not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.runtime.constraints.compile import ConstraintCompiler
from palmette.runtime.constraints.schema.longest import longest
from palmette.runtime.constraints.schema.normal import normal_form
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Constraint
from palmette.testing import accepts

BYTES = Vocabulary.of_bytes()
COMPILER = ConstraintCompiler(BYTES)
MOST_TEXTS = 4000


def bound(schema) -> int | None:
    return longest(normal_form(json.dumps(schema)))


def texts(schema) -> list[bytes] | None:
    """All texts that the compiled schema allows; None where there are many."""
    found: list[bytes] = []
    open_ones = [(b"", COMPILER.compile(Constraint("json_schema", json.dumps(schema))).start())]
    tried = 0
    while open_ones:
        text, matcher = open_ones.pop()
        tried += 1
        if tried > MOST_TEXTS:
            return None
        if matcher.allows_end():
            found.append(text)
        row = np.zeros(len(BYTES.end_bits), np.int32)
        matcher.fill(row)
        for token in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist():
            if token not in BYTES.end_ids:
                after = matcher.fork()
                assert after.advance(token)
                open_ones.append((text + (BYTES.token_bytes[token] or b""), after))
    return found


def closed(properties, required=(), **more):
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


EXACT = [
    {"type": "null"},
    {"type": "boolean"},
    {"enum": [1, "abc", None, 0.25, [1, 2]]},
    {"const": 'a"\n\u0001\\/é'},
    {"type": "integer", "minimum": -7, "maximum": 12},
    {"type": "integer", "minimum": -0.5, "maximum": 3},
    {"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 100},
    {"type": "integer", "minimum": 1, "maximum": 105, "multipleOf": 10},
    {"type": "integer", "minimum": 8, "maximum": 10, "not": {"const": 10}},
    {"type": "string", "pattern": "^[ab]{1,3}$"},
    {"type": "string", "pattern": "^(é|ab)$"},
    {"type": "string", "pattern": "^(a|bcd)*$", "maxLength": 4},
    {"type": "string", "pattern": "^(éé|a{3,5})$", "minLength": 4},
    {"type": "array", "items": {"enum": [1, 22]}, "maxItems": 3},
    {"type": "array", "items": {"enum": [1, 22]}, "minItems": 1, "maxItems": 1},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 333}], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 22}, "maxItems": 3},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True},
    closed({"a": {"const": 1}, "bé": {"enum": ["x", "yy"]}}, ["a"]),
    closed({"a": {"const": 1}, "bb": {"const": 22}, "c": {"const": 3}}, ["a"], maxProperties=2),
    {"type": "object", "maxProperties": 0},
    {"anyOf": [{"type": "boolean"}, closed({"k": {"type": "boolean"}})]},
    {"$defs": {"x": {"type": "boolean"}}, "type": "array", "items": {"$ref": "#/$defs/x"}, "maxItems": 2},
]


@pytest.mark.parametrize("schema", EXACT, ids=json.dumps)
def test_it_is_the_longest_of_all_texts(schema):
    all_texts = texts(schema)
    assert all_texts
    assert bound(schema) == max(map(len, all_texts))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "string"},
        {"type": "string", "pattern": "^a+$"},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "integer", "minimum": 0},
        {"type": "integer", "maximum": 9},
        {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.5},
        {"type": "array", "items": {"const": 1}},
        {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        {"type": "object", "additionalProperties": {"const": 1}},
        closed({"a": {"type": "string"}}),
        closed({"a": {"$ref": "#"}}),
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": closed({"b": {"$ref": "#/$defs/b"}}), "b": closed({"a": {"$ref": "#/$defs/a"}})},
        },
    ],
    ids=json.dumps,
)
def test_texts_of_any_length_have_no_bound(schema):
    assert bound(schema) is None


def test_what_only_seems_to_lead_back_has_a_bound():
    # The reference stands where nothing may come.
    assert bound({"type": "array", "items": {"$ref": "#"}, "maxItems": 0}) == len("[]")
    assert bound(closed({"a": {"type": "array", "prefixItems": [{"const": 1}, {"$ref": "#"}], "maxItems": 1}})) == len(
        '{"a":[1]}'
    )


def test_a_character_counts_as_its_longest_escape():
    schema = {"type": "string", "maxLength": 2}
    longest_text = '"' + 2 * "\\ud83d\\ude00" + '"'
    assert accepts(longest_text, json_schema=schema) and bound(schema) == len(longest_text)
    controls = {"type": "string", "pattern": "^[\\x00-\\x1f]{2}$"}
    longest_text = '"\\u0001\\u001F"'
    assert accepts(longest_text, json_schema=controls) and bound(controls) == len(longest_text)


def test_a_long_chain_is_no_matter_of_recursion():
    schema: dict = {"const": 1}
    for _ in range(60):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    assert bound(schema) == 121


SMALL = st.recursive(
    st.sampled_from(
        [
            {"type": "null"},
            {"type": "boolean"},
            {"enum": ["a", 12]},
            {"type": "integer", "minimum": 8, "maximum": 11},
            {"type": "string", "pattern": "^x{0,2}$"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda s, n: {"type": "array", "items": s, "maxItems": n}, inner, st.integers(0, 2)),
        st.builds(lambda a, b, need: closed({"a": a, "b": b}, need), inner, inner, st.sampled_from([[], ["a"], ["b"]])),
        st.builds(lambda a, b: closed({"a": a, "b": b}, maxProperties=1), inner, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None)
@given(SMALL)
def test_it_is_the_longest_of_all_texts_of_any_schema(schema):
    all_texts = texts(schema)
    if all_texts:
        assert bound(schema) == max(map(len, all_texts))
