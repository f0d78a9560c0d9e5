"""Constraint pressure: how much probability the mask removed, per token."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import palmette as pt
from palmette.kernels.ragged import RaggedBatch, Segment
from palmette.runtime.protocol import SamplingParams
from palmette.runtime.sampler import Row, sample

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]
PROMPT = [(7 * i + i * i) % 250 for i in range(23)]
REGEX = "[a-f]{2,6}-(left|right)[0-9]+"


def row(mask: list[int] | None, width: int, **params: Any) -> Row:
    bits = np.zeros((width + 31) // 32 * 32, bool)
    if mask is not None:
        bits[mask] = True
    words = None if mask is None else np.packbits(bits, bitorder="little").view(np.int32)
    return Row(SamplingParams(**params), 1, 0, words)


@pytest.fixture(params=["reference", "native"])
def drawn(request: pytest.FixtureRequest) -> Any:
    """Either way to draw."""
    if request.param == "reference":
        yield sample
        return
    from palmette.kernels.cpu.library import LibraryMissing, Team, load
    from palmette.kernels.cpu.sampling import Sampler
    from palmette.runtime.native_sampler import drawn_natively

    try:
        team = Team(load(), 2)
    except LibraryMissing as missing:
        pytest.skip(f"no C++ kernels: {missing}")
    yield drawn_natively(Sampler(team))
    team.close()


def test_it_is_the_share_that_the_mask_removes_before_the_temperature(drawn: Any) -> None:
    logits = torch.randn(5, 70, generator=torch.Generator().manual_seed(1)) * 3
    shares = torch.softmax(logits.double(), -1)
    rows = [
        row([3, 40, 69], 70, pressure=True, temperature=0.5),
        row([3, 40, 69], 70, temperature=0.5),
        row(None, 70, pressure=True),
        row([7], 70, pressure=True, temperature=0, logprobs=1),
        row(list(range(70)), 70, pressure=True, top_k=1),
    ]
    found = [each.pressure for each in drawn(logits.clone(), rows)]
    assert found[0] == pytest.approx(1 - float(shares[0, [3, 40, 69]].sum()), abs=1e-12)
    assert found[1] is None and found[2] == 0.0 and found[4] == 0.0
    assert found[3] == pytest.approx(1 - float(shares[3, 7]), abs=1e-12)


def test_it_is_of_the_logits_with_penalties_and_bias(drawn: Any) -> None:
    logits = torch.zeros(1, 33)
    biased = row([32], 33, pressure=True, logit_bias={32: math.log(32)})
    assert drawn(logits, [biased])[0].pressure == pytest.approx(0.5)


def test_a_row_of_no_numbers_or_nothing_allowed_has_none(drawn: Any) -> None:
    logits = torch.zeros(3, 33)
    logits[0] = float("nan")
    logits[1, :] = -math.inf
    rows = [row([1], 33, pressure=True), row([1], 33, pressure=True), row([], 33, pressure=True)]
    assert [(each.token, each.pressure) for each in drawn(logits, rows)] == [(-1, None)] * 3


def test_a_request_has_it_per_generated_token_as_the_model_says(tiny_engine: Make) -> None:
    engine = tiny_engine()
    options = {"regex": REGEX, "max_tokens": 24, "seed": 5, "temperature": 1.3}
    out = engine.generate(PROMPT, pressure=True, logprobs=0, **options)
    assert out.pressure is not None and len(out.pressure) == len(out.logprobs) == out.usage.completion_tokens
    assert sum(value is None for value in out.pressure) == out.usage.forced_tokens > 0
    assert engine.generate(PROMPT, **options).pressure is None
    # From the logits by hand: log-probabilities are of what the mask has left.
    tokens = [*PROMPT, *out.tokens]
    every = list(range(len(tokens)))
    batch = RaggedBatch.of([Segment(tokens, 0, [], every, every)])
    logits = torch.as_tensor(engine.model.forward(batch, engine.model.new_kv(len(tokens))))
    plain = torch.log_softmax(logits[:, : engine.tokenizer.n_tokens].double(), -1)
    for at, (token, value, entry) in enumerate(zip(out.tokens, out.pressure, out.logprobs, strict=False)):
        if value is not None:
            left = math.exp(float(plain[len(PROMPT) - 1 + at, token]) - entry.logprob)
            assert 1 - value == pytest.approx(left, rel=1e-4)


@pytest.mark.parametrize("speculation", ["off", 4, 16])
def test_drafts_change_nothing(speculation: Any, tiny_engine: Make) -> None:
    engine = tiny_engine(speculation=speculation)
    # A text that repeats itself is guessed, rightly and wrongly.
    prompt = list(b"abcdef-left1212121212 abcdef-left1212121212 ab")
    options = {"regex": "([a-f]{1,6}-(left|right)[12]+ ){1,8}", "max_tokens": 48, "pressure": True, "n": 2}
    plain = tiny_engine(speculation="off").generate(prompt, seed=3, temperature=0.3, **options)
    found = engine.generate(prompt, seed=3, temperature=0.3, **options)
    assert [out.tokens for out in found] == [out.tokens for out in plain]
    assert [out.pressure for out in found] == [out.pressure for out in plain]
    if speculation != "off":
        assert sum(out.usage.drafted_tokens for out in found) > 0


def test_an_unconstrained_text_has_none_removed(tiny_engine: Make) -> None:
    out = tiny_engine().generate(PROMPT, pressure=True, max_tokens=5, seed=1)
    assert set(out.pressure) == {0.0} and len(out.pressure) == out.usage.completion_tokens


def test_a_program_reads_it_from_the_result(tiny_engine: Make) -> None:
    @pt.function
    def pick(s):
        s += "Say: " + pt.gen("x", regex="[ab]{2}", pressure=True) + pt.gen("y", max_tokens=2)

    state = pick.run(backend=tiny_engine(), seed=1)
    found = state.result("x").pressure
    assert len(found) == len(state.result("x").tokens) and all(0.9 < value <= 1 for value in found)
    assert state.get_meta_info("x")["pressure"] == list(found)
    assert state.result("y").pressure is None and "pressure" not in state.get_meta_info("y")


def test_a_backend_that_cannot_tell_says_so() -> None:
    @pt.function
    def pick(s, wanted):
        s += pt.gen("x", pressure=wanted)

    mock = pt.testing.MockBackend({"x": "a"})
    assert pick.run(wanted=False, backend=mock).result("x").pressure is None
    with pytest.raises(pt.CapabilityError, match="pressure"):
        pick.run(wanted=True, backend=mock)["x"]
