"""Requests under a constraint end by themselves, valid, for every max_tokens that a valid text fits into."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jsonschema
import pytest

import palmette as pt
from palmette.errors import ConstraintError
from palmette.runtime.constraints.closing_places import SchemaPlace
from palmette.runtime.constraints.llg import LlgConstraint
from palmette.runtime.constraints.schema.machine import Machine
from palmette.runtime.constraints.schema.shapes import (
    Anything,
    Arrays,
    Fixed,
    Member,
    Normal,
    Numbers,
    Objects,
    Strings,
)
from palmette.runtime.protocol import Constraint, Finished, GenerateRequest, Output, SamplingParams

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]
HOT = {"temperature": 2.0}


def needed(engine: Any, **constraint: Any) -> int:
    """What the refusal of a limit of one token says."""
    with pytest.raises(ConstraintError) as refused:
        engine.generate("x", max_tokens=1, **constraint)
    return int(re.search(r"has (\d+) tokens", refused.value.message)[1])  # type: ignore[index]


@pytest.mark.parametrize("pattern", [r"[a-c]+@[a-c]{2,4}\.(com|org)", r"(ab|x{12})y", r"(.|\n){2,9}!"])
def test_regexes_end_for_every_limit(tiny_engine: Make, pattern: str) -> None:
    engine = tiny_engine(kv_tokens=1024)
    least = needed(engine, regex=pattern)
    for limit in range(least, least + 12):
        out = engine.generate("x", regex=pattern, max_tokens=limit, seed=limit, **HOT)
        assert out.finish_reason == "constraint" and re.fullmatch(pattern, out.text)
        assert len(out.tokens) <= limit


def test_choices_end_for_every_limit(tiny_engine: Make) -> None:
    engine, options = tiny_engine(kv_tokens=1024), ["no", "north", "northernmost", "yes of course"]
    assert needed(engine, choices=options) == 2
    for limit in range(2, 14):
        for out in engine.generate("x", choices=options, max_tokens=limit, n=4, seed=limit, **HOT):
            assert out.text in options and len(out.text) <= limit and out.finish_reason == "constraint"


SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    },
    "required": ["id", "next"],
    "additionalProperties": False,
}
NORMAL = Normal(
    (
        (Anything(),),
        (),
        (Objects((Member("id", 3, True), Member("tags", 4), Member("next", 5, True)), ()),),
        (Numbers(multiple_of=(Fraction(1),)),),
        (Arrays(rest=6),),
        (Fixed("null"), Objects((Member("id", 3, True), Member("tags", 4), Member("next", 5, True)), ())),
        (Strings(),),
    ),
    2,
)


@pytest.fixture
def schema_engine(tiny_engine: Make, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An engine whose schemas know their completions."""
    engine = tiny_engine(kv_tokens=2048)
    machine = Machine(NORMAL, whitespace=False, distinct=False)
    compile, growth = engine._intake._compiler.compile, machine.growth()

    def closing(constraint: Any) -> Any:
        compiled = compile(constraint)
        assert isinstance(compiled, LlgConstraint)
        return LlgConstraint(compiled.root, "", compiled.vocabulary, lambda: SchemaPlace(machine.start(), growth))

    monkeypatch.setattr(engine._intake._compiler, "compile", closing)
    return engine


def test_schemas_end_for_every_limit(schema_engine: Any) -> None:
    least = needed(schema_engine, json_schema=SCHEMA)
    assert least == len('{"id":0,"next":null}')
    for limit in [*range(least, least + 20), 60, 120, 200]:
        out = schema_engine.generate("x", json_schema=SCHEMA, max_tokens=limit, seed=limit, **HOT)
        assert out.finish_reason == "constraint" and len(out.tokens) <= limit
        jsonschema.validate(json.loads(out.text), SCHEMA)


def test_samples_stops_and_least_numbers_of_tokens_keep_to_it(schema_engine: Any) -> None:
    options = {"json_schema": SCHEMA, "max_tokens": 40, "n": 6, **HOT}
    for more in ({}, {"stop": '"'}, {"min_tokens": 35}, {"logprobs": 2}):
        for out in schema_engine.generate("x", seed=3, **options, **more):
            jsonschema.validate(json.loads(out.text), SCHEMA)
            assert out.finish_reason == "constraint"


def test_a_healed_first_token_counts_as_one(scripted_engine: Make) -> None:
    pieces = [bytes([b]) for b in range(256)]
    vocab = [*pieces, b"xab", b"xa"]
    for limit in (1, 2, 3):
        # The script wants text without end.
        engine, _ = scripted_engine(vocab, rank=[b"xab", b"b"])
        out = engine.generate("qx", regex="ab*c?", max_tokens=limit, temperature=0, token_healing=True)
        assert out.finish_reason == "constraint" and re.fullmatch("ab*c?", out.text)
        assert out.usage.completion_tokens <= limit and out.healed == 1
    engine, _ = scripted_engine(vocab, rank=[b"xab", b"b"])
    out = engine.generate("qx", regex="ab{3}c", max_tokens=5, temperature=0, token_healing=True)
    assert (out.text, out.healed) == ("abbbc", 1)


PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer"}, "bio": {"type": "string"}},
    "required": ["age", "bio"],
}


def test_a_program_may_ask_for_less_than_the_shortest_text(tiny_engine: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Case rx-15: a legal prefix of exactly max_tokens tokens, and nobody takes it for a value."""
    engine = tiny_engine(kv_tokens=1024)
    least = needed(engine, json_schema=PERSON)

    @pt.function
    def describe(s: Any, limit: int) -> None:
        s += "Describe a person: "
        s += pt.gen("p", json_schema=PERSON, max_tokens=limit, temperature=2.0)

    state = describe.run(limit=5, backend=engine)
    meta = state.get_meta_info("p")
    assert (meta["finish_reason"], meta["completion_tokens"]) == ("length", 5)
    assert '{"age":'.startswith(state["p"]) and state["p"]
    with pytest.raises(pt.TruncatedError):
        state.value("p")
    assert len(caplog.messages) == 1 and f"has {least} tokens, there is room for 5" in caplog.messages[0]

    state = describe.run(limit=least, backend=engine)
    assert state.get_meta_info("p")["finish_reason"] == "constraint"
    jsonschema.validate(state.value("p"), PERSON)
    assert len(caplog.messages) == 1


def test_samples_of_a_program_and_healed_prompts_are_cut_too(scripted_engine: Make, tiny_engine: Make) -> None:
    engine = tiny_engine(kv_tokens=1024)

    @pt.function
    def several(s: Any) -> None:
        s += "x"
        s += pt.gen("p", regex="[ab]{9}c", max_tokens=4, n=3, temperature=2.0)

    samples = several.run(backend=engine).get_meta_info("p")
    assert [(s["finish_reason"], s["completion_tokens"]) for s in samples] == [("length", 4)] * 3
    pieces = [bytes([b]) for b in range(256)]
    engine, _ = scripted_engine([*pieces, b"xab", b"xa"], rank=[b"xab", b"b"])
    tokens = tuple(engine.tokenizer.encode("qx"))
    params = SamplingParams(max_tokens=3, temperature=0.0, token_healing=True)
    request = GenerateRequest(tokens, params, Constraint("regex", "ab{9}c"), cut=True)
    out = outputs_of(engine, request)[0]
    assert (out.text, out.finish_reason, out.healed) == ("abbb", "length", 1)


def outputs_of(engine: Any, request: GenerateRequest) -> tuple[Output, ...]:
    async def events() -> list[Any]:
        return [event async for event in engine.submit(request)]

    last = asyncio.run(events())[-1]
    assert isinstance(last, Finished)
    return last.outputs
