"""What a request may ask for, how far, and what is said where the model breaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from palmette.errors import ArgumentError, BackendError, CapabilityError, ContextLengthError
from palmette.kernels.dispatch import Promise
from palmette.runtime import intake
from palmette.runtime.engine import Engine
from palmette.runtime.models.model import Model
from palmette.runtime.models.tiny import tiny_model
from palmette.runtime.protocol import SamplingParams
from palmette.runtime.sampler import Row, sample

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]


# -- more than there is ----------------------------------------------------------------------------------------------


def test_min_tokens_that_cannot_be_reached_are_refused_at_once(tiny_engine: Make) -> None:
    engine = tiny_engine(kv_tokens=64)
    for options in ({"max_tokens": None}, {"max_tokens": 80}, {"max_tokens": 80, "regex": "[a-z]*"}):
        with pytest.raises(ContextLengthError, match=r"min_tokens=61 cannot be reached.* there is room for 60"):
            engine.generate("12345", min_tokens=61, **options)
    assert engine.stats()["computed_tokens"] == 0
    out = engine.generate("12345", min_tokens=60, max_tokens=80, seed=1)
    assert (out.usage.completion_tokens, out.finish_reason) == (60, "length")
    roomy = tiny_engine()
    context = roomy.model.max_context
    if context < 4096:
        with pytest.raises(ContextLengthError, match=f"the context holds {context} tokens"):
            roomy.generate("12345", min_tokens=context, max_tokens=None)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"stop_token_ids": [3, 99999]}, "stop_token_ids"),
        ({"logit_bias": {99999: 1.0}}, "logit_bias"),
        ({"logprobs": 0, "logprob_token_ids": [99999]}, "logprob_token_ids"),
    ],
)
def test_an_id_that_is_no_token_is_told_with_the_size_of_the_vocabulary(
    tiny_engine: Make, options: dict[str, Any], where: str
) -> None:
    engine = tiny_engine()
    size = engine.tokenizer.n_tokens
    with pytest.raises(ArgumentError, match=f"token id 99999 in {where} .* vocabulary of {size} tokens"):
        engine.generate("x", **options)
    for prompt in ([1, size], [1, -1]):
        with pytest.raises(ArgumentError, match=f"token id {prompt[1]} in the prompt .* vocabulary of {size} tokens"):
            engine.generate(prompt, max_tokens=1)
        with pytest.raises(ArgumentError, match=f"vocabulary of {size}"):
            engine.score(prompt, ["a", "b"])


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_log_probabilities_than_tokens_are_refused(tiny_engine: Make, name: str) -> None:
    engine = tiny_engine()
    size = engine.tokenizer.n_tokens
    with pytest.raises(ArgumentError, match=f"{name}={size + 1} asks for more tokens than there are") as caught:
        engine.generate("abc", max_tokens=1, **{name: size + 1})
    assert str(size) in caught.value.hint
    out = engine.generate("abc", max_tokens=1, **{name: size})
    assert len((out.logprobs if name == "logprobs" else out.prompt_logprobs)[-1].top) == size


def test_more_log_probabilities_than_memory_is_meant_for_are_refused(
    tiny_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    monkeypatch.setattr(intake, "_MOST_LOGPROBS", 600)
    with pytest.raises(ArgumentError, match="logprobs=10 may tell 800 log-probabilities, for 80 tokens"):
        engine.generate("abc", max_tokens=20, n=4, logprobs=10)
    with pytest.raises(ArgumentError, match="logprobs=0 may tell 720"):
        engine.generate("abc", max_tokens=20, best_of=12, logprobs=0, logprob_token_ids=[1, 2, 3])
    with pytest.raises(ArgumentError, match="prompt_logprobs=7 may tell 630"):
        engine.generate("x" * 95, max_tokens=1, prompt_logprobs=7, logprobs_start=5)
    assert len(engine.generate("abc", max_tokens=20, n=3, logprobs=10, ignore_eos=True)[2].logprobs) == 20
    assert engine.generate("x" * 95, max_tokens=1, prompt_logprobs=7, logprobs_start=10).prompt_logprobs


# -- control tokens in an echo ---------------------------------------------------------------------------------------


def test_an_echo_shows_the_text_that_decode_does_and_tells_all_tokens(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt = engine.tokenizer.encode_prompt("<|im_start|>user\nhi<|im_end|>\n<|im_start|>")
    assert sum(token >= 256 for token in prompt) == 3
    end = engine.tokenizer.control["<|im_end|>"]
    for options in ({"max_tokens": 0}, {"max_tokens": 6, "logit_bias": {end: 50.0, ord("a"): 50.0}, "n": 2}):
        outs = engine.generate(prompt, echo=True, seed=3, **options)
        for out in outs if isinstance(outs, list) else [outs]:
            assert out.tokens[: len(prompt)] == tuple(prompt)
            assert out.text == engine.tokenizer.decode(out.tokens)
            assert out.text.startswith("user\nhi\n") and "<|" not in out.text
            stream = engine.generate(prompt, echo=True, seed=3, stream=True, **options)
            chunks = [chunk for chunk in stream if chunk.index == out.index]
            assert "".join(chunk.text for chunk in chunks) == out.text
            assert tuple(token for chunk in chunks for token in chunk.tokens) == out.tokens


# -- a model that breaks ---------------------------------------------------------------------------------------------


def test_no_token_allowed_and_no_numbers_are_two_things(tiny_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    everything = list(range(engine.tokenizer.n_tokens))
    with pytest.raises(ArgumentError, match="no token is allowed") as caught:
        engine.generate("x", stop_token_ids=everything, min_tokens=3)
    assert "numbers" not in str(caught.value) and "min_tokens" in caught.value.hint
    forward = engine.model.forward
    for value in (math.nan, math.inf, -math.inf):
        monkeypatch.setattr(engine.model, "forward", lambda batch, kv, v=value: np.full_like(forward(batch, kv), v))
        for options in ({}, {"regex": "[a-z]+"}, {"min_tokens": 2, "ignore_eos": True}, {"stop": "a", "logprobs": 2}):
            with pytest.raises(BackendError, match="the model gives no numbers after ''") as broken:
                engine.generate("x", max_tokens=4, **options)
            assert "allowed" not in str(broken.value) and broken.value.hint
    assert engine.check_integrity() == []


def test_a_row_that_forbids_all_is_told_from_one_of_no_numbers() -> None:
    width, none = 40, torch.zeros(2, dtype=torch.int32).numpy()
    some = torch.tensor([5, 0], dtype=torch.int32).numpy()
    logits = torch.zeros(4, width)
    logits[2:] = torch.tensor([[-math.inf], [math.nan]])
    params = SamplingParams(temperature=0)
    rows = [Row(params, 0, 0, none), Row(params, 0, 0, some), Row(params, 0, 0, some), Row(params, 0, 0)]
    drawn = sample(logits, rows)
    assert [(each.token, each.numbers) for each in drawn] == [(-1, True), (0, True), (-1, False), (-1, False)]


# -- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["yes", 1, 0, "fp32"])
def test_deterministic_takes_true_false_and_none(wrong: Any) -> None:
    with pytest.raises(TypeError, match="deterministic= takes True or False"):
        Engine("no such model", deterministic=wrong)


def test_same_bits_are_promised_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tiny_model()
    monkeypatch.setattr("palmette.runtime.engine.resolve", lambda model: model)
    monkeypatch.setattr("palmette.runtime.engine.load_model", lambda *given, **more: parts)
    for level in (True, False, None):
        Engine("m", kv_tokens=64, deterministic=level).close()
    monkeypatch.setattr(Model, "promise", Promise(False, "sums are in no fixed order"))
    with pytest.raises(CapabilityError, match=r"deterministic=True.*: sums are in no fixed order") as caught:
        Engine("m", kv_tokens=64, deterministic=True)
    assert 'dtype="fp32"' in caught.value.hint
    for level in (False, None):
        Engine("m", kv_tokens=64, deterministic=level).close()
