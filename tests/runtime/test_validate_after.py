"""on_unsupported="validate": what cannot be enforced is left out, and the text checked when it is there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import palmette as pt
from palmette.runtime.constraints.compile import validate
from palmette.runtime.constraints.validate_after import compiled_or_looser
from palmette.runtime.protocol import Constraint

Make = Callable[..., Any]
PROMPT = [(7 * i + i * i) % 250 for i in range(23)]
# Two equal letters: a back-reference is not enforced. Left out, half of the texts are valid.
TWICE = {"enum": ["aa", "ab", "ba", "bb"], "pattern": "^(.)\\1$"}
NEVER = {"enum": ["ab", "ba"], "pattern": "^(.)\\1$"}
OPTIONS = {"on_unsupported": "validate", "max_tokens": 16}


def looser(schema: Any) -> tuple[Any, tuple[str, ...]]:
    """What of the schema is compiled, and what was left out."""
    compiled: list[Constraint] = []

    def compile(constraint: Constraint) -> None:
        validate(constraint)
        compiled.append(constraint)

    asked = Constraint("json_schema", json.dumps(schema), on_unsupported="validate")
    _, check = compiled_or_looser(asked, compile)
    assert compiled[0].on_unsupported == "refuse"
    return json.loads(compiled[0].spec), check.dropped if check is not None else ()


@pytest.mark.parametrize(
    ("schema", "left", "dropped"),
    [
        ({"type": "string", "pattern": "(a)\\1"}, {"type": "string"}, ("/pattern",)),
        (
            {"properties": {"pattern": {"type": "string", "pattern": "(?<=a)b"}, "b": {"const": 1}}},
            {"properties": {"pattern": {"type": "string"}, "b": {"const": 1}}},
            ("/properties/pattern/pattern",),
        ),
        (
            {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "(a)\\1"}]},
            {"anyOf": [{"type": "null"}, {"type": "string"}]},
            ("/anyOf/1/pattern",),
        ),
        # Less would be allowed without it there.
        ({"type": "string", "not": {"pattern": "(a)\\1"}}, {"type": "string"}, ("/not",)),
        (
            {"if": {"properties": {"a": {"pattern": "(a)\\1"}}}, "then": {"required": ["b"]}, "type": "object"},
            {"then": {"required": ["b"]}, "type": "object"},
            ("/if",),
        ),
        ({"$defs": {"a/b": {"pattern": "(a)\\1"}}, "$ref": "#/$defs/a~1b"}, None, ("/$defs/a~1b/pattern",)),
        ({"type": "integer"}, {"type": "integer"}, ()),
    ],
)
def test_just_what_cannot_be_enforced_is_left_out(schema: Any, left: Any, dropped: tuple[str, ...]) -> None:
    found, gone = looser(schema)
    assert gone == dropped
    assert left is None or found == left


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nul"},
        {"type": "string", "minLenght": 3},
        {"type": "string", "pattern": "("},
        {"$ref": "#/$defs/none"},
        {"$ref": "https://example.com/other.json"},
        {"allOf": [{"type": "null"}, {"type": "string"}]},
        {"const": "\ud800"},
        # Of two faults one is not for this.
        {"properties": {"a": {"pattern": "(a)\\1"}, "b": {"minLenght": 1}}},
    ],
)
def test_what_is_wrong_is_refused_as_ever(schema: Any) -> None:
    with pytest.raises(pt.ConstraintError) as strict:
        validate(Constraint("json_schema", json.dumps(schema)))
    with pytest.raises(pt.ConstraintError) as found:
        looser(schema)
    assert [fault.message for fault in found.value.faults] == [fault.message for fault in strict.value.faults]


@pytest.mark.tiny
def test_texts_are_drawn_until_they_are_valid(tiny_engine: Make) -> None:
    engine = tiny_engine()
    attempts = []
    for seed in range(12):
        out = engine.generate(PROMPT, json_schema=TWICE, seed=seed, retries=20, **OPTIONS)
        assert json.loads(out.text) in ("aa", "bb") and out.validated and out.finish_reason == "constraint"
        again = engine.generate(PROMPT, json_schema=TWICE, seed=seed, retries=20, **OPTIONS)
        assert (again.text, again.tokens, again.attempts) == (out.text, out.tokens, out.attempts)
        assert (out.usage.discarded_tokens > 0) == (out.attempts > 1)
        attempts.append(out.attempts)
    assert min(attempts) == 1 < max(attempts)


@pytest.mark.tiny
def test_only_samples_that_are_not_valid_are_drawn_again(tiny_engine: Make) -> None:
    engine = tiny_engine()
    outs = engine.generate(PROMPT, json_schema=TWICE, seed=1, n=6, temperature=1.5, retries=20, **OPTIONS)
    assert [out.index for out in outs] == list(range(6))
    assert {json.loads(out.text) for out in outs} <= {"aa", "bb"} and all(out.validated for out in outs)
    assert len({out.attempts for out in outs}) > 1
    best = engine.generate(PROMPT, json_schema=TWICE, seed=1, best_of=4, retries=20, **OPTIONS)
    assert json.loads(best.text) in ("aa", "bb") and best.logprobs is None


@pytest.mark.tiny
@pytest.mark.parametrize(("extra", "times"), [({}, 4), ({"retries": 0}, 1), ({"temperature": 0, "retries": 9}, 1)])
def test_after_all_retries_it_fails_and_says_where(extra: dict[str, Any], times: int, tiny_engine: Make) -> None:
    engine = tiny_engine()
    schema = {"type": "object", "properties": {"x": NEVER}, "required": ["x"], "additionalProperties": False}
    with pytest.raises(pt.ConstraintError, match="not valid under its schema after") as found:
        engine.generate(PROMPT, json_schema=schema, **OPTIONS, **extra)
    assert f"after {times} attempt" in found.value.message
    assert found.value.pointer == "/x" and "/properties/x/pattern" in found.value.hint
    # Nothing is left behind: the fixture checks the engine's books.
    assert engine.generate(PROMPT, max_tokens=1).validated is False


@pytest.mark.tiny
def test_the_default_is_to_refuse_and_what_is_enforced_is_not_checked_again(tiny_engine: Make) -> None:
    engine = tiny_engine()
    for extra in ({}, {"on_unsupported": "refuse"}):
        with pytest.raises(pt.ConstraintError, match="back-reference"):
            engine.generate(PROMPT, json_schema=TWICE, **extra)
    out = engine.generate(PROMPT, json_schema={"type": "boolean"}, **OPTIONS)
    assert (out.validated, out.attempts) == (False, 1) and out.text in ("true", "false")
    with pytest.raises(pt.ConstraintError, match="unknown keyword"):
        engine.generate(PROMPT, json_schema={"minLenght": 2}, **OPTIONS)


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("extra", "error", "words"),
    [
        ({"on_unsupported": "validat"}, pt.ArgumentError, "did you mean 'validate'"),
        ({"on_unsupported": 3}, TypeError, "takes a str"),
        ({"retries": 2}, pt.ArgumentError, "no effect by itself"),
        ({"on_unsupported": "validate", "retries": -1}, pt.ArgumentError, "at least 0"),
        ({"on_unsupported": "validate", "stream": True}, pt.ArgumentError, "exclude each other"),
        ({"on_unsupported": "validate", "echo": True}, pt.ArgumentError, "exclude each other"),
        ({"on_unsupported": "validate", "json_schema": None, "regex": "a"}, TypeError, "are for json_schema="),
        ({"on_unsuported": "validate"}, TypeError, "did you mean 'on_unsupported'"),
    ],
)
def test_wrong_calls(extra: dict[str, Any], error: type[Exception], words: str, tiny_engine: Make) -> None:
    with pytest.raises(error) as found:
        tiny_engine().generate(PROMPT, **{"json_schema": TWICE, **extra})
    assert words in str(found.value)


@pytest.mark.tiny
def test_a_request_that_is_given_up_between_two_draws_ends(tiny_engine: Make) -> None:
    engine = tiny_engine()

    async def give_up() -> None:
        task = asyncio.ensure_future(engine.agenerate(PROMPT, json_schema=NEVER, retries=100_000, **OPTIONS))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    engine.generate(PROMPT, max_tokens=1)
    assert engine.stats()["running"] == engine.stats()["waiting"] == 0


@pytest.mark.tiny
def test_a_program_asks_for_it_and_sees_it(tiny_engine: Make) -> None:
    @pt.function
    def ask(s, retries):
        s += "It: " + pt.gen("x", json_schema=TWICE, max_tokens=16, on_unsupported="validate", retries=retries)

    engine = tiny_engine()
    state = ask.run(retries=20, backend=engine, seed=3)
    result = state.result("x")
    assert state.value("x") in ("aa", "bb") and result.validated and result.attempts >= 1
    assert state.get_meta_info("x")["validated"] is True
    # In a stream the text comes at once, when it is valid.
    told = [event.text for event in ask.stream(retries=20, backend=engine, seed=3) if hasattr(event, "text")]
    assert told == ["It: ", state["x"]]


def test_a_gen_takes_it_for_json_only() -> None:
    node = pt.gen("x", json_schema=TWICE, on_unsupported="validate")
    assert node.constraint is not None
    assert (node.constraint.on_unsupported, node.constraint.retries) == ("validate", 3)
    with pytest.raises(TypeError, match="json_schema="):
        pt.gen("x", regex="a", on_unsupported="validate")
    with pytest.raises(pt.ArgumentError, match="unknown"):
        pt.gen("x", json_schema=TWICE, on_unsupported="ignore")
    with pytest.raises(pt.ArgumentError, match="no effect"):
        pt.gen("x", json_schema=TWICE, retries=2)


def test_a_mocks_answer_is_checked_against_the_whole() -> None:
    @pt.function
    def ask(s):
        s += pt.gen("x", json_schema=TWICE, on_unsupported="validate")

    assert ask.run(backend=pt.testing.MockBackend({"x": '"aa"'}))["x"] == '"aa"'
    with pytest.raises(pt.BackendError, match="breaks its json_schema"):
        ask.run(backend=pt.testing.MockBackend({"x": '"ab"'}))["x"]
