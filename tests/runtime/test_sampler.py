"""The sampler against plain definitions, on made-up logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.runtime.protocol import SamplingParams
from palmette.runtime.sampler import Row, sample, sample_seed, uniform


def row(position: int = 0, seed: int = 1, mask: np.ndarray | None = None, **params: object) -> Row:
    return Row(SamplingParams(**params), seed, position, mask)  # type: ignore[arg-type]


def draw_many(logits: list[float], count: int = 4000, **params: object) -> np.ndarray:
    """Shares of the tokens over `count` positions."""
    rows = [row(position, **params) for position in range(count)]
    drawn = sample(torch.tensor([logits]).repeat(count, 1), rows)
    return np.bincount([d.token for d in drawn], minlength=len(logits)) / count


def softmax(values: list[float]) -> np.ndarray:
    weights = np.exp(np.array(values) - max(values))
    return weights / weights.sum()


def test_draws_follow_the_distribution() -> None:
    logits = [1.0, 0.0, 2.0, -1.0]
    assert np.abs(draw_many(logits) - softmax(logits)).max() < 0.03
    assert np.abs(draw_many(logits, temperature=0.5) - softmax([x / 0.5 for x in logits])).max() < 0.03


def test_top_k_top_p_min_p_leave_out_what_they_should() -> None:
    logits = [math.log(p) for p in (0.5, 0.25, 0.15, 0.1)]
    assert set(np.flatnonzero(draw_many(logits, top_k=2))) == {0, 1}
    # 0.5 alone is below 0.6, so the second token is needed to reach it.
    assert set(np.flatnonzero(draw_many(logits, top_p=0.6))) == {0, 1}
    assert set(np.flatnonzero(draw_many(logits, top_p=0.5))) == {0}
    assert set(np.flatnonzero(draw_many(logits, min_p=0.29))) == {0, 1, 2}
    assert np.abs(draw_many(logits, top_k=2)[:2] - [2 / 3, 1 / 3]).max() < 0.03


def test_a_mask_comes_before_top_k() -> None:
    mask = np.array([0b0100], np.int32)
    drawn = sample(torch.tensor([[9.0, 8.0, 1.0]]), [row(mask=mask, top_k=1)])
    assert drawn[0].token == 2


def test_no_allowed_token_is_said() -> None:
    assert sample(torch.zeros(1, 3), [row(mask=np.zeros(1, np.int32), logprobs=1)])[0].token == -1


def test_logprobs_are_of_the_masked_distribution() -> None:
    mask = np.array([0b0011], np.int32)
    drawn = sample(torch.tensor([[1.0, 2.0, 5.0]]), [row(mask=mask, temperature=0, logprobs=3)])[0]
    expected = np.log(softmax([1.0, 2.0]))
    assert drawn.token == 1
    assert drawn.logprob is not None
    assert drawn.logprob.logprob == pytest.approx(expected[1], abs=1e-6)
    assert [token for token, _ in drawn.logprob.top] == [1, 0]


def test_penalties_and_bias() -> None:
    params = SamplingParams(temperature=0, frequency_penalty=1.0, presence_penalty=0.5)
    counted = Row(params, 1, 0, counts={1: 2})
    assert sample(torch.tensor([[1.0, 3.0, 0.9]]), [counted])[0].token == 0  # 3 - 2*1 - 0.5 < 1
    repeated = Row(SamplingParams(temperature=0, repetition_penalty=2.0), 1, 0, counts={}, prompt=np.array([1]))
    assert sample(torch.tensor([[1.6, 3.0, 0.0]]), [repeated])[0].token == 0  # 3 / 2 < 1.6
    biased = Row(SamplingParams(temperature=0, logit_bias={2: 10.0}), 1, 0)
    assert sample(torch.tensor([[1.0, 3.0, 0.0]]), [biased])[0].token == 2


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**63), st.integers(1, 6), st.integers(0, 10_000))
def test_a_row_draws_the_same_in_any_company(seed: int, company: int, position: int) -> None:
    generator = torch.Generator().manual_seed(seed % 1000)
    logits = torch.randn(company + 1, 50, generator=generator)
    rows = [row(position + i, seed + i, top_p=0.9) for i in range(company + 1)]
    together = [d.token for d in sample(logits.clone(), rows)]
    alone = [sample(logits[i : i + 1].clone(), [rows[i]])[0].token for i in range(company + 1)]
    assert together == alone


def test_random_numbers_depend_on_seed_and_position_only() -> None:
    values = [uniform(7, position) for position in range(2000)]
    assert values == [uniform(7, position) for position in range(2000)]
    assert 0.45 < np.mean(values) < 0.55 and min(values) >= 0.0 and max(values) < 1.0
    assert len({sample_seed(7, index) for index in range(100)}) == 100
    assert sample_seed(7, 0) == 7


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {0: 1e308}},
        {"logit_bias": {0: 1e308, 1: 1e308}},
        {"presence_penalty": -1e308},
        {"frequency_penalty": -1e308, "presence_penalty": 1e308},
        {"repetition_penalty": 1e-300},
    ],
)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_settings_beyond_all_measure_saturate(params: dict, temperature: float) -> None:
    asked = Row(SamplingParams(temperature=temperature, logprobs=1, **params), 1, 0, counts={0: 2, 1: 1})
    (drawn,) = sample(torch.tensor([[1.0, 2.0, 0.5, -1.0]]), [asked])
    assert drawn.token in (0, 1)
    assert drawn.logprob is not None and -1.0 < drawn.logprob.logprob <= 0.0
