"""%json blocks of a grammar mean what JSON Schemas mean."""

from __future__ import annotations

import pytest

from palmette.errors import ConstraintError
from palmette.runtime.constraints import accepts, validate
from palmette.runtime.protocol import Constraint


def test_blocks_are_read_as_schemas_are() -> None:
    grammar = """
start: "<" call ">" | note
# a comment with %json { in it
note: "%json {" /%json\\/x/
call: %json {
  "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "null"}]}},
  "required": ["a"],
  "type": "object", "additionalProperties": false
}
"""
    for text, expected in (
        ('<{"a":1}>', True),
        ('<{"a":null}>', True),
        ('<{"a":""}>', False),
        ("%json {%json/x", True),
    ):
        assert accepts(text, grammar=grammar) == expected, text


def test_what_plain_keywords_do_not_say_becomes_rules() -> None:
    grammar = 'start: a b\na: %json {"not": {"enum": [1, "x"]}}\nb: %json {"type": "array", "contains": {"const": 1}}\n'
    for text, expected in (("2[1]", True), ('"y"[0,1]', True), ("1[1]", False), ('"x"[1]', False), ("2[0]", False)):
        assert accepts(text, grammar=grammar) == expected, text


def test_whitespace_is_as_the_block_asks() -> None:
    schema = '"type": "array", "items": {"type": "integer"}'
    assert not accepts("[1, 2]", grammar="start: %json {" + schema + "}")
    assert accepts("[1, 2]", grammar="start: %json {" + schema + ', "x-guidance": {"whitespace_flexible": true}}')


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('start: %json {"type": "strin"}', "not a valid JSON schema"),
        ('start: %json {"minLenght": 3}', "unknown keyword"),
        ('start: %json {"type": "array", "uniqueItems": true}', "uniqueItems cannot be enforced inside a grammar"),
        ('start: %json {"not": {"const": 1}}\n%ignore / /', "beside %ignore"),
        ('start: %json {"type": ', "not JSON"),
    ],
)
def test_refusals_name_the_position(grammar: str, words: str) -> None:
    with pytest.raises(ConstraintError, match=words) as caught:
        validate(Constraint("grammar", grammar))
    assert caught.value.pointer == "@7"
    assert caught.value.hint
