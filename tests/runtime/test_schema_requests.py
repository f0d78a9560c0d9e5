"""Requests under JSON Schemas as they are compiled: whatever the model wants, the text ends by itself within max_tokens
and is valid."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jsonschema
import pytest

from palmette.errors import BackendError, ConstraintError
from palmette.runtime.constraints import accepts
from palmette.runtime.constraints import compile as compile_module

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]
SCHEMAS: dict[str, Any] = {
    # Names that are not listed may come twice, and the text has to end then, too.
    "any object": {"type": "object"},
    "open": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    "conditional": {
        "type": "object",
        "properties": {"k": {"enum": ["a", "b"]}},
        "if": {"properties": {"k": {"const": "a"}}, "required": ["k"]},
        "then": {"required": ["x"], "properties": {"x": {"type": "integer"}}},
        "else": {"required": ["y"]},
    },
    "quarters": {"type": "number", "multipleOf": 0.25, "minimum": 1, "maximum": 2},
    "set": {"type": "array", "items": {"enum": [0, 1, 2]}, "uniqueItems": True, "minItems": 2},
    "names": {"type": "object", "propertyNames": {"pattern": "^[a-c]{1,2}$"}, "minProperties": 2},
    "choice": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
    "anything": {},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_end_for_every_limit(tiny_engine: Make, name: str) -> None:
    engine, schema = tiny_engine(kv_tokens=2048), SCHEMAS[name]
    try:
        out = engine.generate("x", json_schema=schema, max_tokens=1)
        least = 1
        assert out.finish_reason == "constraint"
    except ConstraintError as error:
        least = int(re.search(r"has (\d+) tokens", error.message)[1])  # type: ignore[index]
    for limit in [*range(least, least + 16), 60]:
        for out in engine.generate("x", json_schema=schema, max_tokens=limit, temperature=2.0, n=3, seed=limit):
            assert out.finish_reason == "constraint", (limit, out.text)
            assert len(out.tokens) <= limit
            jsonschema.Draft202012Validator(schema).validate(json.loads(out.text))


def test_a_name_that_came_twice_is_completed(scripted_engine: Make) -> None:
    vocab = [bytes([b]) for b in range(256)] + [b'"a":1']
    for schema in ({"type": "object"}, {"type": "object", "properties": {"a": {"type": "integer"}}}):
        # Again and again, where that is allowed.
        engine, prompt = scripted_engine(vocab, rank=[b'"a":1', b",", b"{"])
        for limit in (2, 5, 20, 60):
            out = engine.generate(prompt, json_schema=schema, max_tokens=limit, temperature=0)
            assert out.finish_reason == "constraint"
            jsonschema.validate(json.loads(out.text), schema)


@pytest.mark.parametrize("step", ["0.25", "0.05", "0.75", "0.125", "0.5", "0.01", "1.5"])
def test_a_multiple_is_written_with_as_many_places_as_it_needs(step: str) -> None:
    schema = f'{{"type":"number","multipleOf":{step},"minimum":-1.5,"maximum":4}}'
    for n in range(-80, 200):
        value = Decimal(n) / 40
        text = str(int(value) if value == int(value) else value)
        wanted = Fraction(text) % Fraction(step) == 0 and Decimal("-1.5") <= value <= 4
        assert accepts(text, json_schema=schema) == wanted, text


def test_a_schema_is_read_once_and_not_where_others_wait(tiny_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, read = tiny_engine(), []
    normal_form = compile_module.normal_form

    def reading(*given: Any, **keywords: Any) -> Any:
        read.append(threading.current_thread())
        return normal_form(*given, **keywords)

    monkeypatch.setattr(compile_module, "normal_form", reading)
    wrong = {"type": "strin"}
    asyncio.run(engine.agenerate("x", json_schema={"type": "boolean"}, max_tokens=9))
    with pytest.raises(ConstraintError):
        asyncio.run(engine.agenerate("x", json_schema=wrong, max_tokens=9))
    assert len(read) == 2 and threading.current_thread() not in read


def test_a_request_that_comes_while_the_engine_closes_is_told_so(
    tiny_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    close, answers = engine._loop.close, []

    def closing() -> None:
        answers.append(engine.generate("x", regex="ab", max_tokens=4).text)
        close()

    monkeypatch.setattr(engine._loop, "close", closing)
    engine.close()
    assert answers == ["ab"]
    with pytest.raises(BackendError, match="closed"):
        engine.generate("x", regex="ab", max_tokens=4)
