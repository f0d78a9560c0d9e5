"""The reported cases of constraints that need an engine, run straight from the shared file where it lies beside the
repository. tests/runtime/constraints/test_shared_data.py has those that need none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import palmette as pt
from palmette.errors import ConstraintError
from palmette.runtime import request as request_module
from palmette.runtime.constraints.compile import ConstraintCompiler
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Constraint, Output
from palmette.runtime.tokenizer_library import spelled_bytes

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]
CASES = Path(__file__).parents[3] / "shared" / "cases" / "reported.jsonl"
AREAS = ("regex_choice", "json_schema")
CONSTRAINTS = ("regex", "choices", "json_schema")
# What stubs without a vocabulary of their own speak.
CHARACTERS = [chr(i) for i in range(32, 127)]


def _cases(kind: str) -> list[Any]:
    if not CASES.exists():
        return [pytest.param(None, id="none", marks=pytest.mark.skip(reason="the shared cases are not here"))]
    records = map(json.loads, CASES.read_text().splitlines())
    return [
        pytest.param(record, id=record["id"])
        for record in records
        if record["area"] in AREAS and record["input"]["kind"] == kind
    ]


@pytest.mark.parametrize("case", _cases("mask"))
def test_masks(case: Any) -> None:
    given = case["input"]
    pieces: list[bytes | None] = [bytes.fromhex(piece) for piece in given["vocab_hex"]]
    assert given["eos"] == len(pieces)
    vocabulary = Vocabulary([*pieces, None], width=len(pieces) + 1, end_ids=frozenset({given["eos"]}))
    compiled = ConstraintCompiler(vocabulary).compile(Constraint("regex", given["regex"]))
    assert len(given["prefixes"]) == len(case["expect"]["allowed"])
    for prefix, allowed in zip(given["prefixes"], case["expect"]["allowed"], strict=True):
        matcher = compiled.start()
        assert all(map(matcher.advance, prefix))
        row = np.zeros(vocabulary.words, np.int32)
        matcher.fill(row)
        assert np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() == allowed, prefix


@pytest.mark.parametrize("case", _cases("stub"))
def test_stubs(case: Any, scripted_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    expect = case["expect"]
    checks = 0
    for jump in (True, False):
        if not jump:
            monkeypatch.setattr(request_module, "forced_run", lambda *_: iter(()))
        for i, run in enumerate(case["input"].get("runs", [case["input"]])):
            out, given, texts = _stub(case["input"], run["model"], scripted_engine)
            if "text" in expect:
                assert out.text == (expect["text"][i] if isinstance(expect["text"], list) else expect["text"])
                checks += 1
            assert out.finish_reason == expect.get("finish_reason", "constraint")
            assert "".join(texts) == out.text
            if "json_schema" in given:
                value = json.loads(out.text)
                jsonschema.Draft202012Validator(given["json_schema"]).validate(value)
                checks += 1
            if case["id"] == "rx-21":
                assert out.text == '{"name":"Bob"}'
            if case["id"] == "rx-23":
                assert "likes" in value["bio"]
    assert checks >= 2


def _stub(given: dict[str, Any], model: dict[str, Any], make: Make) -> tuple[Output, dict[str, Any], list[str]]:
    """The output, the request, and the text of each of its tokens."""
    script = model.get("script") or list(model.get("prefer_text", ""))
    if "script_by_text" in model:
        script = ['{"', "name", '":', '"', *model["script_by_text"]["after_opening_quote"]]
    rank = model.get("rank", [])
    vocab: list[Any] = given.get("vocab") or list(dict.fromkeys([*script, *rank, *CHARACTERS]))
    if "tokenizer" in given:
        pieces = [piece for piece in given["tokenizer"]["pieces"] if piece not in ("<unk>", "<s>", "</s>")]
        vocab = spelled_bytes(pieces, byte_level=False, verbatim=(), silent=())
        script = ["<eos>" if piece == "</s>" else vocab[pieces.index(piece)] for piece in script]
    engine, prompt = make([token for token in vocab if token != "<eos>"], script=script, rank=rank)
    request = {name: value for name, value in given["request"].items() if name != "prompt"}
    if "stop_token_ids" in request:
        request["stop_token_ids"] = [vocab.index(name) for name in request["stop_token_ids"]]
    out = engine.generate(prompt, **request)
    return out, request, [(engine.tokenizer.token_bytes[token] or b"").decode() for token in out.tokens]


@pytest.fixture
def backend(tiny_engine: Make) -> Iterator[None]:
    pt.set_default_backend(tiny_engine())
    yield
    pt.set_default_backend(None)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("case", _cases("dsl"))
def test_programs(case: Any) -> None:
    exec(compile(case["input"]["source"], case["id"], "exec"), {"__name__": case["id"]})


@pytest.mark.parametrize("case", _cases("http"))
def test_requests(case: Any, tiny_engine: Make) -> None:
    engine = tiny_engine()
    statuses = []
    for step in case["input"]["steps"]:
        given = step["json"]
        options: dict[str, Any] = {name: given[name] for name in ("max_tokens", *CONSTRAINTS) if name in given}
        if "response_format" in given:
            options["json_schema"] = given["response_format"]["json_schema"]["schema"]
        try:
            engine.generate(given.get("prompt") or given["messages"], **options)
            statuses.append(200)
        except ConstraintError as error:
            assert re.match("@[0-9]+$" if "regex" in options else "/|$", error.pointer)
            assert error.hint
            statuses.append(400)
    assert statuses == case["expect"]["status"]
