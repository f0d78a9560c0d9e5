"""Drafts change how many steps a text takes, and nothing else. (test_schedules.py draws schedules with them, too.)"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from palmette.errors import ArgumentError, BackendError
from palmette.runtime.speculation import Speculation

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]
VOCAB = [chr(code) for code in range(32, 127)]
WORDS = "a list of words that come again later, none of them twice: xylophone, quay, brisk, dwarf, jump"
SETTINGS: list[Any] = ["auto", 1, 16]


def told(out: Any) -> list[Any]:
    outs = out if isinstance(out, list) else [out]
    return [(o.text, o.tokens, o.finish_reason, o.matched_stop, o.logprobs, o.prompt_logprobs, o.index) for o in outs]


def prompts(count: int = 5) -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(250) for _ in range(draw.randint(2, 12))] * draw.randint(1, 4) for _ in range(count)]


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.2, "seed": 3, "n": 3, "logprobs": 2},
    {"temperature": 0.2, "seed": 3, "n": 1, "best_of": 3},
    {"temperature": 0.2, "seed": 1, "frequency_penalty": 0.02, "repetition_penalty": 1.01, "logprobs": 0},
    {"temperature": 0.4, "seed": 1, "presence_penalty": 0.1, "logit_bias": {101: 2.0, 32: -2.0}},
    {"temperature": 0, "stop": ("e", "ab"), "min_tokens": 9},
    {"temperature": 0.3, "seed": 2, "stop_token_ids": tuple(range(100, 180)), "min_tokens": 20},
    {"temperature": 0.3, "seed": 2, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "echo": True, "prompt_logprobs": 1},
    {"temperature": 0.3, "seed": 2, "regex": "([a-c]{1,3}-[0-1]+, ){3,9}", "logprobs": 1},
    {"temperature": 0.3, "seed": 2, "regex": "(ring [rs]oses, ){4}end", "logprobs": 1},
    {"temperature": 0.3, "seed": 2, "json_schema": {"type": "array", "items": {"enum": ["aa", "ab"]}, "minItems": 9}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))
def test_answers_are_those_without_drafts(tiny_engine: Make, options: dict[str, Any]) -> None:
    plain = tiny_engine(speculation="off")
    want = [told(plain.generate(prompt, max_tokens=60, **options)) for prompt in prompts()]
    assert plain.stats()["drafted_tokens"] == 0
    for setting in SETTINGS:
        engine = tiny_engine(speculation=setting)
        got = [told(engine.generate(prompt, max_tokens=60, **options)) for prompt in prompts()]
        assert got == want
        stats = engine.stats()
        assert stats["accepted_tokens"] <= stats["drafted_tokens"]
        # What "auto" does is also a question of how long steps take here and now.
        assert setting == "auto" or stats["accepted_tokens"] > 0
        assert stats["steps"] <= plain.stats()["steps"]
        # What was drafted wrongly counts for nothing.
        for name in ("computed_tokens", "sampled_tokens", "forced_tokens", "cached_tokens", "kv_cached"):
            assert stats[name] == plain.stats()[name], name
        engine.flush_cache()
        assert engine.stats()["kv_free"] == 4096
    # Whatever a guess costs, each one that is right saves a step.
    assert engine.stats()["steps"] < plain.stats()["steps"]


@pytest.mark.parametrize("cache", [True, False])
def test_streams_tell_the_same_pieces(tiny_engine: Make, cache: bool) -> None:
    pieces = []
    for setting in ("off", 8):
        engine = tiny_engine(speculation=setting, cache=cache)
        chunks = list(engine.generate(prompts()[0], max_tokens=80, temperature=0, stream=True, stop=("zz",)))
        pieces.append([chunk.text for chunk in chunks])
        assert (engine.stats()["accepted_tokens"] > 0) == (setting == 8)
    assert pieces[0] == pieces[1]


def copying(scripted_engine: Make, **settings: Any) -> tuple[Any, list[int], list[int]]:
    """An engine whose model repeats the prompt with one change, the prompt, the answer."""
    answer = WORDS.replace("brisk", "brash")
    engine, _ = scripted_engine(VOCAB, script=list(answer), rank=["~"], kv_tokens=1024, **settings)
    prompt = [VOCAB.index(char) for char in f"Repeat: {WORDS} "]
    engine.model.prompt = len(prompt)
    return engine, prompt, [VOCAB.index(char) for char in answer]


@pytest.mark.parametrize(("setting", "most"), [("auto", 0.35), (4, 0.3), (16, 0.15)])
def test_copying_takes_far_fewer_steps(scripted_engine: Make, setting: Any, most: float) -> None:
    engine, prompt, answer = copying(scripted_engine, speculation=setting)
    if setting == "auto":
        engine._loop.call(lambda core: _steady(core.speculation))
    out = engine.generate(prompt, max_tokens=len(answer), temperature=0)
    assert list(out.tokens) == answer
    assert engine.stats()["steps"] < most * len(answer)
    usage = out.usage
    assert usage.accepted_tokens >= len(answer) - engine.stats()["steps"] > 0
    assert usage.drafted_tokens == engine.stats()["drafted_tokens"] >= usage.accepted_tokens
    assert engine.stats()["computed_tokens"] == len(prompt) + len(answer) - 1


def _steady(speculation: Speculation) -> None:
    """As if rows cost what they do on the whole, whatever this machine's are busy with."""
    for pace in speculation._paces:
        pace.note = lambda rows, seconds: None  # type: ignore[method-assign]


def test_what_a_sibling_wrote_is_guessed(scripted_engine: Make) -> None:
    engine, _, answer = copying(scripted_engine, speculation=16)
    prompt = [VOCAB.index(char) for char in "Say it."]
    engine.model.prompt = len(prompt)
    options = {"max_tokens": len(answer), "temperature": 0}
    steps = [0]
    for namespace in ("", "", "other"):
        assert list(engine.generate(prompt, namespace=namespace, **options).tokens) == answer
        steps.append(engine.stats()["steps"])
    alone, told, elsewhere = (after - before for before, after in pairwise(steps))
    assert alone > 0.8 * len(answer)
    assert told < 0.15 * len(answer)
    # Nothing is told across namespaces.
    assert elsewhere == alone


def test_free_text_is_left_alone(scripted_engine: Make) -> None:
    """Where guesses come true by chance only, next to nothing is drafted."""
    draw = random.Random(0)
    script = [draw.choice("ab") for _ in range(400)]
    engine, _ = scripted_engine(VOCAB, script=script, speculation="auto", kv_tokens=1024)
    engine._loop.call(lambda core: _steady(core.speculation))
    pace = engine._loop.call(lambda core: core.speculation._paces[1])
    pace.fixed, pace.per_row = 1.0, 2.0  # a row is as good as a step
    out = engine.generate([0, 1], max_tokens=400, temperature=0)
    assert len(out.tokens) == 400
    assert out.usage.drafted_tokens < 20


def test_many_rows_are_not_drafted_for(tiny_engine: Make) -> None:
    engine = tiny_engine(speculation="auto")
    outs = engine.generate([[7, 8] * 6] * 40, max_tokens=20, temperature=0, ignore_eos=True)
    assert len({out.tokens for out in outs}) == 1
    assert sum(out.usage.drafted_tokens for out in outs) == engine.stats()["drafted_tokens"] == 0


def test_drafts_wait_for_room(tiny_engine: Make) -> None:
    """The token budget and the slots are those of the plan first; nobody is preempted for a draft."""
    for settings in ({"max_step_tokens": 1}, {"kv_tokens": 64}, {"kv_tokens": 64, "cache": False}):
        results = []
        for setting in ("off", 16):
            engine = tiny_engine(speculation=setting, **settings)
            outs = engine.generate(
                [[9, number, 9, number] * 3 for number in range(6)], max_tokens=40, temperature=0, ignore_eos=True
            )
            results.append(([told(out) for out in outs], engine.stats()["preemptions"]))
            stats = engine.stats()
            assert stats["kv_free"] + stats["kv_cached"] == stats["kv_tokens"]
            if setting == 16:
                assert (stats["drafted_tokens"] > 0) == ("kv_tokens" in settings)
        assert results[0] == results[1]


def test_forced_tokens_are_computed_with_the_draft(tiny_engine: Make) -> None:
    """Behind a drafted token the constraint may leave no choice: no logits are asked for there."""
    schema = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}},
            "required": ["kind"],
            "additionalProperties": False,
        },
        "minItems": 8,
        "maxItems": 8,
    }
    prompt = list(json.dumps([{"kind": "a"}] * 3, separators=(",", ":")).encode())
    taken, steps = [], []
    for setting in ("off", 16):
        engine = tiny_engine(speculation=setting)
        # The same choice each time, so that the one before is a good guess.
        options = {"json_schema": schema, "temperature": 0, "max_tokens": 200, "logprobs": 0, "logit_bias": {97: 50.0}}
        out = engine.generate(prompt, **options)
        taken.append((told(out), out.usage.forced_tokens, engine.stats()["sampled_tokens"]))
        steps.append(engine.stats()["steps"])
        assert out.usage.forced_tokens > 60
    assert taken[0] == taken[1]
    assert out.usage.accepted_tokens > out.usage.completion_tokens / 3
    assert steps[1] < steps[0]


def test_a_step_that_breaks_gives_the_slots_of_drafts_back(tiny_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(speculation=8)
    forward = type(engine.model).forward
    rows: list[int] = []

    def fail_once(model: Any, batch: Any, kv: Any) -> Any:
        if len(batch.tokens) > 4 and len(rows) > 3:
            rows.clear()
            raise RuntimeError("broken")
        rows.append(len(batch.tokens))
        return forward(model, batch, kv)

    monkeypatch.setattr(type(engine.model), "forward", fail_once)
    with pytest.raises(BackendError, match="broken"):
        engine.generate([5, 6] * 4, max_tokens=200, temperature=0, ignore_eos=True)
    assert engine.check_integrity() == []
    stats = engine.stats()
    assert stats["running"] == 0
    assert stats["kv_free"] + stats["kv_cached"] == 4096


def test_a_request_that_breaks_among_its_draws_gives_its_slots_back(
    tiny_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palmette.runtime.request import GenerateJob

    engine = tiny_engine(speculation=8)
    commit = GenerateJob.commit

    def fail(job: GenerateJob, drawn: Any) -> None:
        if job.draft is not None and job.length > job.draft.start:
            raise RuntimeError("broken")
        commit(job, drawn)

    monkeypatch.setattr(GenerateJob, "commit", fail)
    with pytest.raises(BackendError, match="broken"):
        engine.generate([5, 6] * 4, max_tokens=200, temperature=0, ignore_eos=True)
    assert engine.check_integrity() == []
    assert engine.stats()["kv_free"] + engine.stats()["kv_cached"] == 4096


def test_settings(tiny_engine: Make) -> None:
    with pytest.raises(ArgumentError, match="there is no speculation 'of'") as caught:
        tiny_engine(speculation="of")
    assert "off" in caught.value.hint
    with pytest.raises(ArgumentError, match="speculation"):
        tiny_engine(speculation=0)
    for wrong in (True, None, 1.5):
        with pytest.raises(TypeError, match="speculation"):
            tiny_engine(speculation=wrong)


def test_nothing_is_drafted_where_bits_depend_on_the_batch(tiny_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from palmette.runtime.models.model import Model

    monkeypatch.setattr(Model, "batch_invariant", property(lambda model: False))
    prompt, options = [5, 6] * 4, {"max_tokens": 60, "temperature": 0, "ignore_eos": True}
    for setting, drafts in (("auto", False), (4, True)):
        engine = tiny_engine(speculation=setting)
        engine.generate(prompt, **options)
        assert (engine.stats()["drafted_tokens"] > 0) == drafts
