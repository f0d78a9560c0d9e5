"""type=: the constraint that a type makes, and the value that a text becomes."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from typing import Literal, Optional

import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import palmette as pt
from palmette.lang.types import output_type


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_64_bit_integer_can_be_written(value):
    kind = output_type(int)
    assert re.fullmatch(kind.spec, str(value), re.ASCII)
    assert kind.parse(str(value)) == value


@pytest.mark.parametrize("text", ["", "-", "007", "1.0", "+1", " 1", "1e3"])
def test_what_is_no_integer_is_none(text):
    assert not re.fullmatch(output_type(int).spec, text, re.ASCII)


@given(st.from_regex(output_type(float).spec, fullmatch=True))
def test_every_float_text_parses(text):
    assert isinstance(output_type(float).parse(text), float)


def test_bool_str_and_names():
    assert output_type("bool").spec == ("True", "False")
    assert output_type(bool).parse("False") is False
    assert output_type(str).kind is None and output_type("str").parse("a") == "a"
    with pytest.raises(ValueError):
        output_type(bool).parse("Tru")


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2
    ODD = (1, 2)


def test_literals_and_enums_are_choices_of_their_values():
    literal = output_type(Literal["a", 2, None, True])
    assert literal.spec == ("a", "2", "None", "True")
    assert [literal.parse(text) for text in literal.spec] == ["a", 2, None, True]
    colours = output_type(Colour)
    assert colours.spec == ("red", "2", "ODD")
    assert [colours.parse(text) for text in colours.spec] == list(Colour)
    with pytest.raises(pt.ConstraintError, match="both written '1'"):
        output_type(Literal[1, "1"])


@dataclasses.dataclass
class Address:
    street: str
    number: int = 1


class Person(pydantic.BaseModel):
    name: str
    age: int | None
    home: Address
    friends: list[Person] = []
    mood: Colour = Colour.RED


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Address, '{"street":"A","number":3}', Address("A", 3)),
        (list[int], "[1,2]", [1, 2]),
        (Optional[float], "null", None),  # noqa: UP045 - the old spelling must work as well
        (dict[str, bool], '{"a":true}', {"a": True}),
        (
            Person,
            '{"name":"N","age":null,"home":{"street":"S"},"friends":[]}',
            Person(name="N", age=None, home=Address("S")),
        ),
    ],
)
def test_other_types_are_json_by_pydantic(kind, text, value):
    made = output_type(kind)
    assert made.kind == "json_schema"
    jsonschema.validate(json.loads(text), json.loads(made.spec))
    assert made.parse(text) == value
    with pytest.raises(ValueError):
        made.parse(text[:-1])
    assert output_type(kind) is made or kind in (list[int], dict[str, bool])


class Opaque:
    pass


@pytest.mark.parametrize("wrong", [Opaque, 3, lambda: None])
def test_what_has_no_schema_is_refused(wrong):
    with pytest.raises(TypeError, match="type="):
        output_type(wrong)


class Leaf(pydantic.BaseModel):
    name: str


class Open(pydantic.BaseModel, extra="allow"):
    leaf: Leaf
    table: dict[str, int]


def test_objects_are_closed_unless_the_type_allows_more():
    def accepts(kind, value):
        schema = json.loads(output_type(kind).spec)
        return jsonschema.Draft202012Validator(schema).is_valid(value)

    leaf = {"name": "x"}
    assert accepts(Leaf, leaf) and not accepts(Leaf, {**leaf, "more": 1})
    assert accepts(list[Leaf], [leaf]) and not accepts(list[Leaf], [{**leaf, "more": 1}])
    whole = {"leaf": leaf, "table": {"a": 1}, "more": 1}
    assert accepts(Open, whole) and not accepts(Open, {**whole, "leaf": {**leaf, "more": 1}})
    assert accepts(Leaf | None, None) and not accepts(Leaf | None, {**leaf, "more": 1})
