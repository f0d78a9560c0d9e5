"""Stops, ends and constraints with models that want something else: toy vocabularies, scripted preferences."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from palmette.errors import BackendError, ConstraintError

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]
OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON_VOCAB = ["\n", " ", "\t", '"', "a", "1", ":", ",", "{", "}", "n", "m", "e", "g"]


def test_a_stop_string_over_tokens_is_never_sent(scripted_engine: Make) -> None:
    vocab = ["x", "mar", "ch-", "apr", "il", " may"]
    engine, prompt = scripted_engine(vocab, script=["mar", "ch-", "apr", "il", " may"])
    options = {"stop": ["march-april"], "temperature": 0, "max_tokens": 10}
    out = engine.generate(prompt, **options)
    assert (out.text, out.tokens, out.finish_reason, out.matched_stop) == ("", (), "stop", "march-april")
    assert out.usage.completion_tokens == 4
    chunks = list(engine.generate(prompt, stream=True, **options))
    assert "".join(chunk.text for chunk in chunks) == ""
    assert chunks[-1].finish_reason == "stop"


def test_a_token_cut_by_a_stop_string_is_spelled_anew(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["x", "a", "b", "ab\n", "\n"], script=["a", "ab\n", "a"])
    out = engine.generate(prompt, stop="\n", temperature=0)
    assert (out.text, out.tokens) == ("aab", (1, 1, 2))


@pytest.mark.parametrize(
    ("vocab", "script", "stop"),
    [
        (["x", " it up\n", "Obs", "erv", " it", " up"], [" it up\n", "Obs", "erv"], "\nObserv"),
        (["x", "a", "aax"], ["a", "a", "a", "x"], "aax"),
        ([b"x", b"\xf0\x9f", b"\x91\x88", b"ab", b"a"], [b"x", b"\xf0\x9f", b"\x91\x88", b"ab", b"x"], "bx"),
    ],
)
def test_streamed_tokens_are_those_of_the_output(
    scripted_engine: Make, vocab: list[Any], script: list[Any], stop: str
) -> None:
    engine, prompt = scripted_engine(vocab, script=script)
    options = {"stop": stop, "temperature": 0, "max_tokens": 9}
    out = engine.generate(prompt, **options)
    chunks = list(engine.generate(prompt, stream=True, **options))
    assert out.finish_reason == "stop"
    assert tuple(token for chunk in chunks for token in chunk.tokens) == out.tokens
    assert "".join(chunk.text for chunk in chunks) == out.text


def test_the_earliest_stop_string_cuts_streamed_and_not(scripted_engine: Make) -> None:
    vocab = ["x", "Thought: look", " it up\n", "Obs", "erv", "ation: x", "Action: find", *" itup"]
    engine, prompt = scripted_engine(vocab, script=vocab[1:7])
    options = {"stop": ["\nObservation", "Observation:"], "temperature": 0, "max_tokens": 20}
    assert engine.generate(prompt, **options).text == "Thought: look it up"
    streamed = "".join(chunk.text for chunk in engine.generate(prompt, stream=True, **options))
    assert streamed == "Thought: look it up"


def test_no_chunk_holds_half_a_character(scripted_engine: Make) -> None:
    vocab = [b"x", *(bytes.fromhex(h) for h in ("20c4", "8f", "c3a1", "62", "656c", "f09f", "9188"))]
    engine, prompt = scripted_engine(vocab, script=[*vocab[1:], "<eos>"])
    chunks = list(engine.generate(prompt, stream=True, temperature=0, max_tokens=9))
    assert "".join(chunk.text for chunk in chunks) == " ďábel👈"
    assert not any("\ufffd" in chunk.text for chunk in chunks)
    assert chunks[-1].finish_reason == "stop"


def test_a_fault_in_one_request_ends_only_that_one(scripted_engine: Make) -> None:
    # The rest of a cut token, " it up", cannot be spelled by this vocabulary.
    engine, prompt = scripted_engine(["x", " it up\n", "y"], script=[" it up\n", "y"])
    with pytest.raises(BackendError, match="no token for"):
        engine.generate(prompt, stop="\n", temperature=0)
    assert engine.generate(prompt, stop="y", temperature=0).text == " it up\n"


def test_the_end_token_is_not_in_the_text(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["x", "a"], script=["a", "<eos>", "a"])
    out = engine.generate(prompt, temperature=0, max_tokens=9)
    assert (out.text, out.tokens, out.finish_reason, out.matched_stop) == ("a", (1,), "stop", 2)
    assert engine.generate(prompt, temperature=0, max_tokens=3, ignore_eos=True).tokens == (1, 2, 1)
    stopped = engine.generate(prompt, temperature=0, max_tokens=9, stop_token_ids=[1])
    assert (stopped.text, stopped.finish_reason, stopped.matched_stop) == ("", "stop", 1)


def test_min_tokens_holds_back_the_end(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["a", "b"], rank=["<eos>", "a", "b"])
    out = engine.generate(prompt, min_tokens=4, max_tokens=10, temperature=0)
    assert (out.text, out.finish_reason) == ("aaaa", "stop")


def test_min_tokens_holds_back_the_end_of_a_structure_that_can_go_on(
    scripted_engine: Make, caplog: pytest.LogCaptureFixture
) -> None:
    engine, prompt = scripted_engine(["a", "b"], rank=["<eos>", "a", "b"])
    options = {"min_tokens": 4, "max_tokens": 10, "temperature": 0}
    out = engine.generate(prompt, regex="[ab]+", **options)
    assert (out.text, out.finish_reason) == ("aaaa", "constraint")
    assert engine.generate(prompt, choices=["a", "ab", "abbab", "b"], **options).text == "abbab"
    assert caplog.messages == []
    # A structure that is complete earlier wins, and says so.
    out = engine.generate(prompt, regex="[ab]{1,3}", **options)
    assert (out.text, out.finish_reason) == ("aaa", "constraint")
    assert caplog.messages == ["min_tokens=4: the constraint was complete after 3 tokens"]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (["Anna", "<eos>"], "Anna"),
        (["Anna", " Lind", "<eos>"], "Anna Lind"),
        (["An", "na", " Li", "nd", "<eos>"], "Anna Lind"),
    ],
)
def test_a_choice_that_begins_another(scripted_engine: Make, script: list[str], text: str) -> None:
    engine, prompt = scripted_engine(["Anna", " Lind", " Li", "nd", "An", "na"], script=script)
    out = engine.generate(prompt, choices=["Anna", "Anna Lind"], max_tokens=6, temperature=0)
    assert (out.text, out.finish_reason) == (text, "constraint")


def test_the_mask_comes_before_top_k(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["@", "#", "{", "}"], rank=["@", "#", "}", "{"])
    out = engine.generate(prompt, regex=r"\{", top_k=1, temperature=0, max_tokens=4)
    assert (out.text, out.finish_reason) == ("{", "constraint")


def test_octets_close_after_three_digits(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(
        ["1", "11", "111", "1.", ".", "0"], rank=["1", "111", "11", ".", "1.", "0", "<eos>"]
    )
    octet = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
    out = engine.generate(prompt, regex=rf"({octet}\.){{3}}{octet}", max_tokens=40, temperature=0)
    assert (out.text, out.finish_reason) == ("111.111.111.111", "constraint")


def test_nothing_follows_a_complete_structure(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["yes", "no", " because"], rank=["yes", " because", "no", "<eos>"])
    out = engine.generate(prompt, regex="yes|no", temperature=0, max_tokens=50)
    assert (out.text, out.finish_reason, out.usage.completion_tokens) == ("yes", "constraint", 1)


def test_a_model_that_loves_white_space_still_writes_json(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(JSON_VOCAB, rank=[*JSON_VOCAB, "<eos>"])
    out = engine.generate(prompt, json_schema=OBJECT, max_tokens=120, temperature=0)
    value = json.loads(out.text)
    assert set(value) == {"name", "age"}
    assert out.finish_reason == "constraint"


def test_a_stop_token_does_not_fire_inside_a_structure(scripted_engine: Make) -> None:
    vocab = ['{"bio":"', "likes", " tea", '"}', "<end>"]
    engine, prompt = scripted_engine(vocab, script=['{"bio":"', "likes", "<end>"], rank=[" tea", '"}', "<end>"])
    schema = {"type": "object", "properties": {"bio": {"type": "string", "maxLength": 9}}, "required": ["bio"]}
    out = engine.generate(
        prompt, json_schema={**schema, "additionalProperties": False}, stop_token_ids=[4], temperature=0, max_tokens=64
    )
    assert json.loads(out.text)["bio"].startswith("likes")


def test_a_stop_string_does_not_cut_an_unfinished_structure(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["a", "b", "."], rank=["a", ".", "b"])
    early = engine.generate(prompt, regex="a.b", stop="a", temperature=0)
    assert (early.text, early.finish_reason) == ("aab", "constraint")
    complete = engine.generate(prompt, regex="a*", stop="aaa", temperature=0)
    assert (complete.text, complete.finish_reason, complete.matched_stop) == ("", "stop", "aaa")


def test_forced_tokens_are_counted_and_computed_together(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(list("abcdefgh"), rank=list("hgfedcba"))
    out = engine.generate(prompt, regex="(abc|bcd)efgh", temperature=0, logprobs=0)
    assert (out.text, out.usage.completion_tokens, out.usage.forced_tokens) == ("bcdefgh", 7, 6)
    assert engine.stats()["sampled_tokens"] == 1
    assert engine.stats()["steps"] == 1
    assert [entry.token for entry in out.logprobs] == list(out.tokens)


def test_an_empty_language_but_for_nothing(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["a"], rank=["a"])
    out = engine.generate(prompt, regex="", max_tokens=8)
    assert (out.text, out.finish_reason, out.usage.completion_tokens) == ("", "constraint", 0)


def test_a_constraint_that_the_vocabulary_cannot_spell(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["a"], rank=["a"])
    with pytest.raises(ConstraintError):
        engine.generate(prompt, regex="ab", max_tokens=8)
    assert engine.generate(prompt, regex="aa", max_tokens=8).text == "aa"


def test_a_cut_structure_ends_by_length_and_a_complete_one_does_not(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["1", "2", "-"], rank=["1"])
    assert engine.generate(prompt, regex="[0-9]{4}-[12]", max_tokens=3, temperature=0).finish_reason == "length"
    out = engine.generate(prompt, regex="[0-9]{1,9}", max_tokens=3, temperature=0)
    assert (out.text, out.finish_reason) == ("111", "constraint")
