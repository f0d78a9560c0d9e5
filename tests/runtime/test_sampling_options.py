"""What a request may ask of sampling beyond the draw: stops, best_of, log-probabilities of the prompt, echo."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from palmette.kernels.ragged import RaggedBatch, Segment
from palmette.runtime.group import Group
from palmette.runtime.protocol import GenerateRequest, SamplingParams
from palmette.runtime.request import GenerateJob, Prepared, TextTools

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]
PROMPT = [(7 * i + i * i) % 250 for i in range(23)]


def prompt_logits(engine: Any, tokens: list[int]) -> torch.Tensor:
    """Logits behind every token, by one plain forward pass with a cache of its own; padding left out."""
    every = list(range(len(tokens)))
    batch = RaggedBatch.of([Segment(tokens, 0, [], every, every)])
    logits = torch.as_tensor(engine.model.forward(batch, engine.model.new_kv(len(tokens))))
    return logits[:, : engine.tokenizer.n_tokens]


# -- stops -----------------------------------------------------------------------------------------------------------


def test_a_stop_pattern_ends_the_text_before_its_match(scripted_engine: Make) -> None:
    vocab = ["x", "Call ", "0", "79", "46 ", "now", ". ", "Bye"]
    engine, prompt = scripted_engine(vocab, script=["Call ", "0", "79", "46 ", "now", ". ", "Bye"])
    options = {"stop_regex": [r"\d{3,} ", r"B[a-z]+"], "temperature": 0, "max_tokens": 20}
    out = engine.generate(prompt, **options)
    assert (out.text, out.tokens, out.finish_reason, out.matched_stop) == ("Call ", (1,), "stop", r"\d{3,} ")
    chunks = list(engine.generate(prompt, stream=True, **options))
    assert "".join(chunk.text for chunk in chunks) == "Call "
    assert tuple(token for chunk in chunks for token in chunk.tokens) == (1,)
    assert engine.generate(prompt, stop_regex="B[a-z]+", temperature=0).text == "Call 07946 now. "
    both = engine.generate(prompt, stop=["now"], stop_regex="w. B", temperature=0)
    assert (both.text, both.matched_stop) == ("Call 07946 ", "now")


def test_a_stop_pattern_counts_in_a_structure_only_where_it_is_complete(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["a", "b", "1", ";"], rank=["1", "a", ";", "b"], script=["a", "1", "1", ";", "1"])
    options = {"temperature": 0, "max_tokens": 12, "regex": r"a[0-9]+;[0-9]+"}
    assert engine.generate(prompt, **options).text == "a11;" + "1" * 8
    # Every 1 is a match; before the fifth the text is not complete.
    out = engine.generate(prompt, stop_regex="1+", **options)
    assert (out.text, out.finish_reason, out.matched_stop) == ("a11;1", "stop", "1+")
    assert engine.generate(prompt, stop="1", **options).text == "a11;1"


def test_stop_patterns_of_random_texts_stop_where_search_finds_them(tiny_engine: Make) -> None:
    engine = tiny_engine()
    only = dict.fromkeys(b"abcdef", 60.0)
    options = {"max_tokens": 400, "ignore_eos": True, "seed": 5, "logit_bias": only}
    free = engine.generate(PROMPT, **options).text
    for pattern in ["[ab]c", "a.?.?f", "(?:ab|ba)+", "d{2,}e?", "f[^b]*b", "b.b"]:
        ends = (re.search(pattern, free[:end], re.ASCII) for end in range(len(free) + 1))
        first = next(found.start() for found in ends if found)
        out = engine.generate(PROMPT, stop_regex=pattern, **options)
        assert (out.text, out.matched_stop) == (free[:first], pattern)


@pytest.mark.parametrize("stop", [{"stop": "ab"}, {"stop_regex": "a+b"}])
def test_no_stop_counts_within_min_tokens(scripted_engine: Make, stop: dict[str, str]) -> None:
    engine, prompt = scripted_engine(["x", "a", "b"], script=["a", "b", "a", "b", "a", "b"])
    texts = {
        least: engine.generate(prompt, temperature=0, max_tokens=6, min_tokens=least, **stop).text for least in range(6)
    }
    # Where the second token of the pair comes after min_tokens others, it ends the text, which begins before it.
    assert texts == {0: "", 1: "", 2: "ab", 3: "ab", 4: "abab", 5: "abab"}


# -- best of ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"logprobs": 2}, {"regex": "[a-f]{2,4}-[0-9]{2,9} end"}, {"top_k": 3}])
def test_best_of_keeps_the_likeliest_samples_best_first(tiny_engine: Make, extra: dict[str, Any]) -> None:
    engine = tiny_engine()
    options = {"max_tokens": 20, "temperature": 1.3, "seed": 11, "stop": ["e", "k"], **extra}
    every = engine.generate(PROMPT, n=6, **{**options, "logprobs": extra.get("logprobs", 0)})

    def mean(out: Any) -> float:
        return math.fsum(entry.logprob for entry in out.logprobs) / len(out.logprobs)

    ranked = sorted(every, key=mean, reverse=True)
    assert len({mean(out) for out in every}) > 3
    kept = engine.generate(PROMPT, n=2, best_of=6, **options)
    assert [out.text for out in kept] == [out.text for out in ranked[:2]]
    assert [out.tokens for out in kept] == [out.tokens for out in ranked[:2]]
    assert [out.index for out in kept] == [0, 1]
    assert [out.logprobs for out in kept] == [out.logprobs if "logprobs" in extra else None for out in ranked[:2]]
    # No token that was paid for is lost.
    assert kept[0].usage.discarded_tokens == sum(out.usage.completion_tokens for out in ranked[2:])
    assert kept[1].usage.discarded_tokens == 0
    one = engine.generate(PROMPT, best_of=6, **options)
    assert one.text == ranked[0].text
    assert len(engine.generate(PROMPT, best_of=3, n=3, **options)) == 3
    (nothing,) = [engine.generate(PROMPT, best_of=2, max_tokens=0)]
    assert (nothing.text, nothing.usage.discarded_tokens) == ("", 0)


# -- log-probabilities of the prompt ---------------------------------------------------------------------------------


def check_prompt_logprobs(
    engine: Any, prompt: list[int], out: Any, start: int, top: int, asked: tuple[int, ...]
) -> None:
    table = torch.log_softmax(prompt_logits(engine, prompt), -1)
    assert len(out.prompt_logprobs) == len(prompt) - start
    for position, entry in enumerate(out.prompt_logprobs, start):
        if position == 0:
            assert entry is None
            continue
        line = table[position - 1]
        assert entry.token == prompt[position]
        assert entry.logprob == float(line[prompt[position]])
        best = line.sort(descending=True, stable=True).indices[:top].tolist()
        assert entry.top == tuple((token, float(line[token])) for token in best)
        assert entry.asked == tuple((token, float(line[token])) for token in asked)


@pytest.mark.parametrize("chunk", [1, 7, 512])
@pytest.mark.parametrize("start", [0, 1, 2, 9, 22, 23])
def test_prompt_logprobs_are_the_models_cold_and_warm_in_any_chunks(tiny_engine: Make, chunk: int, start: int) -> None:
    engine = tiny_engine(max_step_tokens=chunk)
    asked = (3, 250)
    options = {"prompt_logprobs": 3, "logprobs_start": start, "logprob_token_ids": asked, "max_tokens": 2, "seed": 1}
    cold = engine.generate(PROMPT, **options)
    warm = engine.generate(PROMPT, **options)
    check_prompt_logprobs(engine, PROMPT, cold, start, 3, asked)
    assert cold.prompt_logprobs == warm.prompt_logprobs
    assert cold.tokens == warm.tokens
    # Just what has to be computed again is not taken from the cache.
    assert warm.usage.cached_tokens == min(max(start - 1, 0), len(PROMPT) - 1)


def test_prompt_logprobs_in_company_are_the_same(tiny_engine: Make) -> None:
    engine = tiny_engine(max_step_tokens=16)
    prompts = [PROMPT, PROMPT[:9], [*PROMPT, 7, 9], PROMPT[:1], [5] * 30]
    options = {"prompt_logprobs": 2, "max_tokens": 3, "seed": 3}
    alone = [engine.generate(prompt, **options) for prompt in prompts]
    engine.flush_cache()
    for out, other, prompt in zip(engine.generate(prompts, **options), alone, prompts, strict=True):
        check_prompt_logprobs(engine, prompt, out, 0, 2, ())
        assert out.prompt_logprobs == other.prompt_logprobs
        assert out.tokens == other.tokens


def test_prompt_logprobs_without_a_token(tiny_engine: Make) -> None:
    engine = tiny_engine()
    for _ in range(2):
        out = engine.generate(PROMPT, max_tokens=0, prompt_logprobs=0)
        check_prompt_logprobs(engine, PROMPT, out, 0, 0, ())
        assert (out.text, out.tokens, out.finish_reason, out.logprobs) == ("", (), "length", None)
    assert engine.generate([7], max_tokens=0, prompt_logprobs=1).prompt_logprobs == (None,)
    assert engine.generate([7], max_tokens=0, prompt_logprobs=1, logprobs_start=1).prompt_logprobs == ()
    assert engine.generate(PROMPT, max_tokens=0).prompt_logprobs is None


def test_samples_share_the_prompts_logprobs_which_are_read_once(tiny_engine: Make) -> None:
    engine = tiny_engine()
    outs = engine.generate(PROMPT, n=3, max_tokens=4, prompt_logprobs=1, ignore_eos=True)
    for out in outs:
        check_prompt_logprobs(engine, PROMPT, out, 0, 1, ())
    assert engine.stats()["computed_tokens"] == len(PROMPT) + 2 + 3 * 3
    (kept,) = [engine.generate(PROMPT, best_of=3, max_tokens=4, prompt_logprobs=1)]
    assert kept.prompt_logprobs == outs[0].prompt_logprobs
    assert kept.logprobs is None


def test_settings_and_constraints_leave_the_prompts_logprobs_alone(tiny_engine: Make) -> None:
    engine = tiny_engine()
    plain = engine.generate(PROMPT, max_tokens=3, prompt_logprobs=2)
    for extra in (
        {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "logit_bias": {5: 9.0}, "temperature": 0.3, "top_k": 1},
        {"regex": "forced text [0-9]", "max_tokens": 20},
    ):
        out = engine.generate(PROMPT, prompt_logprobs=2, **{"max_tokens": 3, **extra})
        assert out.prompt_logprobs == plain.prompt_logprobs


def test_a_texts_logprobs_are_the_same_generated_and_as_a_prompt(tiny_engine: Make) -> None:
    engine = tiny_engine()
    out = engine.generate(
        PROMPT, max_tokens=12, ignore_eos=True, seed=2, logprobs=2, logprob_token_ids=[4], temperature=0.8
    )
    again = engine.generate(
        [*PROMPT, *out.tokens],
        max_tokens=0,
        prompt_logprobs=2,
        logprobs_start=len(PROMPT),
        logprob_token_ids=[4],
    )
    assert again.prompt_logprobs == out.logprobs


def test_what_a_preemption_takes_away_is_not_read_twice(tiny_engine: Make) -> None:
    engine = tiny_engine()
    table = prompt_logits(engine, PROMPT)
    request = GenerateRequest(tuple(PROMPT), SamplingParams(prompt_logprobs=1, logprobs_start=4))
    group = Group(request, lambda event: None)
    tools = TextTools(engine.tokenizer.token_bytes, frozenset(), lambda text: [])
    job = GenerateJob(Prepared(group, tuple(PROMPT), 3, 1), 0, tools, 3)

    def compute(n: int) -> list[int]:
        (span,) = job.spans(n)
        job.read(span.rows, table[list(span.rows)])
        job.computed += n
        return list(span.rows)

    assert len(job.shareable) == 3
    assert compute(2) == []
    assert compute(8) == list(range(3, 10))
    # All is lost, but of the log-probabilities only what is missing counts.
    job.computed = 0
    assert len(job.shareable) == 10
    job.computed = 6
    assert compute(10) == list(range(10, 16))
    assert compute(7) == list(range(16, 22))
    assert len(job.shareable) == len(PROMPT) - 1
    job.computed = 0
    assert compute(23) == []
    assert job.prompt_logprobs is not None
    tokens = [entry.token for entry in job.prompt_logprobs.found() if entry is not None]
    assert tokens == PROMPT[4:]


# -- given ids -------------------------------------------------------------------------------------------------------


def test_given_ids_are_told_at_every_position(tiny_engine: Make) -> None:
    engine = tiny_engine()
    asked = [10, 255, 10]
    out = engine.generate(PROMPT, max_tokens=5, ignore_eos=True, logprobs=0, logprob_token_ids=asked, temperature=0)
    table = torch.log_softmax(prompt_logits(engine, [*PROMPT, *out.tokens]), -1)
    for place, entry in enumerate(out.logprobs, len(PROMPT) - 1):
        assert entry.top == ()
        assert entry.asked == tuple((token, float(table[place][token])) for token in asked)


def test_given_ids_under_a_constraint_are_of_what_is_allowed(tiny_engine: Make) -> None:
    engine = tiny_engine()
    options = {"logprobs": 0, "logprob_token_ids": [ord("a"), ord("b"), ord("c")], "temperature": 0, "max_tokens": 9}
    out = engine.generate(PROMPT, regex="c[ab]cc", **options)
    values = [[value for _, value in entry.asked] for entry in out.logprobs]
    assert values[0] == values[2] == values[3] == [-math.inf, -math.inf, 0.0]
    assert math.exp(values[1][0]) + math.exp(values[1][1]) == pytest.approx(1.0)
    assert values[1][2] == -math.inf


# -- echo ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"regex": "begin [xyz]{3}", "max_tokens": 15}, {"max_tokens": 0}, {"n": 2}])
def test_echo_puts_the_prompt_in_front(tiny_engine: Make, extra: dict[str, Any]) -> None:
    engine = tiny_engine()
    prompt = list("Once é".encode())
    options = {"seed": 4, "max_tokens": 9, "ignore_eos": True, **extra}
    plain, told = engine.generate(prompt, **options), engine.generate(prompt, echo=True, **options)
    for out, whole in zip(*(x if isinstance(x, list) else [x] for x in (plain, told)), strict=True):
        assert whole.tokens == (*prompt, *out.tokens)
        assert whole.text == engine.tokenizer.decode([*prompt, *out.tokens])
        assert whole.text.startswith("Once é")
        assert whole.usage.completion_tokens == out.usage.completion_tokens
        chunks = [c for c in engine.generate(prompt, echo=True, stream=True, **options) if c.index == out.index]
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert tuple(token for chunk in chunks for token in chunk.tokens) == whole.tokens
        assert chunks[0].text.startswith("Once é")
        assert chunks[0].tokens[: len(prompt)] == tuple(prompt)


def test_a_character_that_the_prompt_began_is_told_whole(scripted_engine: Make) -> None:
    vocab = [b"\xc3", b"\xb1", b"ab", b"b", b"a"]
    engine, prompt = scripted_engine(vocab, script=[b"\xb1", b"ab", b"ab", b"b", b"b"])
    options = {"echo": True, "temperature": 0, "max_tokens": 5, "stop": ["bbb"]}
    out = engine.generate(prompt, **options)
    assert (out.text, out.tokens, out.matched_stop) == ("ñaba", (0, 1, 2, 4), "bbb")
    chunks = list(engine.generate(prompt, stream=True, **options))
    assert "".join(chunk.text for chunk in chunks) == "ñaba"
    assert tuple(token for chunk in chunks for token in chunk.tokens) == out.tokens


def test_a_stop_in_the_prompt_stops_nothing(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt = list(b"stop st")
    options = {"echo": True, "logit_bias": {ord("o"): 100.0}, "temperature": 0, "max_tokens": 3}
    for stop in ({"stop": "sto"}, {"stop_regex": "st?o"}):
        assert engine.generate(prompt, **options, **stop).text == "stop stooo"
    assert engine.generate(prompt, stop="oo", **options).text == "stop st"
