"""The sampler against plain definitions, on made-up logits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from palmette.runtime.protocol import SamplingParams
from palmette.runtime.sampler import Row, Tally, sample, sample_seed, token_logprobs, uniform


def row(position: int = 0, seed: int = 1, mask: np.ndarray | None = None, **params: object) -> Row:
    return Row(SamplingParams(**params), seed, position, mask)  # type: ignore[arg-type]


def tally(times: dict[int, int], prompt: Sequence[int] = ()) -> Tally:
    result = Tally(prompt)
    for token, count in times.items():
        for _ in range(count):
            result.add(token)
    return result


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
    counted = Row(params, 1, 0, tally=tally({1: 2}))
    assert sample(torch.tensor([[1.0, 3.0, 0.9]]), [counted])[0].token == 0  # 3 - 2*1 - 0.5 < 1
    repeated = Row(SamplingParams(temperature=0, repetition_penalty=2.0), 1, 0, tally=tally({}, prompt=[1]))
    assert sample(torch.tensor([[1.6, 3.0, 0.0]]), [repeated])[0].token == 0  # 3 / 2 < 1.6
    biased = Row(SamplingParams(temperature=0, logit_bias={2: 10.0}), 1, 0)
    assert sample(torch.tensor([[1.0, 3.0, 0.0]]), [biased])[0].token == 2


@st.composite
def featured_rows(draw: st.DrawFn, width: int) -> Row:
    """Any settings together, most of them off."""
    tokens = st.integers(0, width - 1)
    params = SamplingParams(
        temperature=draw(st.sampled_from([1.0, 0.0, 0.7, 3.0, 1e-3])),
        top_k=draw(st.sampled_from([-1, -1, 1, 3, width, 10 * width])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.3, 1e-9])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.2, 1.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.5, -2.0])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.5])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.5])),
        logit_bias=draw(st.dictionaries(tokens, st.floats(-5, 5), max_size=3)),
        logprobs=draw(st.sampled_from([None, None, 0, 1, 4])),
        logprob_token_ids=tuple(draw(st.lists(tokens, max_size=2))),
    )
    mask = None
    if draw(st.integers(0, 2)) == 0:
        bits = np.zeros((width + 31) // 32 * 32, bool)
        bits[draw(st.lists(tokens, max_size=6))] = True
        mask = np.packbits(bits, bitorder="little").view(np.int32)
    came = tally(draw(st.dictionaries(tokens, st.integers(1, 3), max_size=4)), draw(st.lists(tokens, max_size=4)))
    return Row(
        params,
        draw(st.integers(-(2**63), 2**64 - 1)),
        draw(st.integers(0, 10_000)),
        mask,
        draw(st.sets(tokens, max_size=2)),
        came,
    )


def bits_of(drawn: Any) -> Any:
    """The outcome with its floats as hexadecimal: == would call 0.0 and -0.0 equal."""
    if drawn.logprob is None:
        return drawn.token
    entry = drawn.logprob
    pairs = [(token, value.hex()) for token, value in (*entry.top, *entry.asked)]
    return drawn.token, entry.token, entry.logprob.hex(), pairs


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(1, 8), st.sampled_from([3, 50, 97, 1031]), st.booleans())
def test_a_row_draws_the_same_in_any_company(data: st.DataObject, count: int, width: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    logits = torch.randn(count, width, generator=generator) * 3
    if ties:
        logits = logits.round()
    rows = [data.draw(featured_rows(width)) for _ in range(count)]
    together = [bits_of(drawn) for drawn in sample(logits.clone(), rows)]
    alone = [bits_of(sample(logits[i : i + 1].clone(), [rows[i]])[0]) for i in range(count)]
    assert together == alone
    order = data.draw(st.permutations(range(count)))
    shuffled = sample(logits[list(order)].clone(), [rows[i] for i in order])
    assert [bits_of(drawn) for drawn in shuffled] == [alone[i] for i in order]


def reference(logits: np.ndarray, asked: Row) -> np.ndarray:
    """The weights that a row is drawn from, one plain step after the other."""
    params, values = asked.params, logits.astype(np.float64)
    assert asked.tally is not None
    times = dict(zip(asked.tally.ids.tolist(), asked.tally.times.tolist(), strict=True))
    for token, count in times.items():
        values[token] *= 1 / params.repetition_penalty if values[token] > 0 else params.repetition_penalty
        if count:
            values[token] -= params.frequency_penalty * count + params.presence_penalty
    for token, bias in params.logit_bias.items():
        values[token] += bias
    values[list(asked.banned)] = -np.inf
    if asked.mask is not None:
        bits = np.unpackbits(asked.mask.view(np.uint8), bitorder="little")[: len(values)]
        values[bits == 0] = -np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.exp((values - values.max()) / params.temperature)
    order = sorted(range(len(values)), key=lambda token: (-weights[token], token))
    kept = order if params.top_k == -1 else order[: params.top_k]
    total, reached, among = sum(weights[kept]), 0.0, []
    for token in kept:
        if not among or reached < params.top_p * total:
            among.append(token)
        reached += weights[token]
    return np.array([w if t in among and w >= params.min_p else 0.0 for t, w in enumerate(weights)])


@settings(deadline=None, max_examples=60)
@given(st.data(), st.booleans())
def test_what_is_drawn_is_what_the_definitions_leave(data: st.DataObject, ties: bool) -> None:
    width = 12
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    logits = torch.randn(1, width, generator=generator)
    logits = (logits * 2).round() if ties else logits
    asked = data.draw(featured_rows(width).filter(lambda row: row.params.temperature >= 0.7))
    count = 400
    rows = [Row(asked.params, asked.seed, at, asked.mask, asked.banned, asked.tally) for at in range(count)]
    drawn = Counter(outcome.token for outcome in sample(logits.repeat(count, 1), rows))
    weights = reference(logits[0].numpy(), asked)
    if not weights.any():
        assert set(drawn) == {-1}
        return
    shares = weights / weights.sum()
    for token, share in enumerate(shares):
        assert (drawn[token] == 0) if share == 0 else abs(drawn[token] / count - share) < 0.13


class Operations(TorchDispatchMode):
    """Counts tensor operations; `tolist` makes two of the kind `resolve_` that do nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.name().startswith("aten::resolve_")
        return func(*args, **(kwargs or {}))


def operations(rows: list[Row], width: int = 64) -> int:
    logits = torch.randn(len(rows), width, generator=torch.Generator().manual_seed(0))
    with Operations() as mode:
        sample(logits, rows)
    return mode.count


FEATURES: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 0.7, "top_p": 0.5},
    {"temperature": 0.7, "min_p": 0.1},
    {"frequency_penalty": 0.5},
    {"presence_penalty": 0.5},
    {"repetition_penalty": 1.5},
    {"logit_bias": {1: 2.0, 5: -1.0}},
    {"logprobs": 0},
    {"logprobs": 3},
    {"logprobs": 0, "logprob_token_ids": (3, 4)},
    {"mask": True},
    {"banned": True},
]


def row_with(feature: dict[str, Any], at: int) -> Row:
    params = {name: value for name, value in feature.items() if name not in ("mask", "banned")}
    return Row(
        SamplingParams(**{"temperature": 0, **params}),
        at,
        at,
        np.full(2, 0x0F0F0F0F, np.int32) if "mask" in feature else None,
        {at % 7} if "banned" in feature else (),
        tally({at % 5: 1, 9: 2}, prompt=[7, at % 11]),
    )


@pytest.mark.parametrize("feature", FEATURES, ids=str)
def test_a_feature_costs_the_same_operations_for_any_number_of_rows_and_none_where_it_is_off(
    feature: dict[str, Any],
) -> None:
    nothing = operations([row_with({}, 0)])
    assert nothing == operations([row_with({}, at) for at in range(64)]) == 1
    assert nothing < operations([row_with(feature, at) for at in range(64)]) <= nothing + 60
    for beside in (0, 3):
        plain = [row_with({}, at) for at in range(beside)]
        two = operations([*plain, *(row_with(feature, at) for at in range(2))])
        assert two == operations([*plain, *(row_with(feature, at) for at in range(64))])


def test_all_features_at_once_cost_what_they_cost_one_by_one() -> None:
    every = {name: value for feature in FEATURES for name, value in feature.items()}
    alone = [operations([row_with(feature, at) for at in range(2)]) for feature in FEATURES]
    assert operations([row_with(every, at) for at in range(64)]) <= sum(alone)


@pytest.mark.parametrize("head", [1, 4, 32])
def test_top_p_keeps_the_same_however_many_it_looks_at_first(monkeypatch: pytest.MonkeyPatch, head: int) -> None:
    generator = torch.Generator().manual_seed(head)
    logits = torch.randn(60, 300, generator=generator) * torch.linspace(0.01, 9, 60)[:, None]
    rows = [row(i, i, top_p=0.1 + 0.8 * (i % 7) / 7, top_k=[-1, 40][i % 2]) for i in range(60)]
    want = [drawn.token for drawn in sample(logits.clone(), rows)]
    monkeypatch.setattr("palmette.runtime.sampler._HEAD", head)
    assert [drawn.token for drawn in sample(logits.clone(), rows)] == want


def test_log_probabilities_in_blocks_are_those_of_single_rows() -> None:
    logits = torch.randn(200, 300, generator=torch.Generator().manual_seed(1))
    tokens, top = [i % 300 for i in range(200)], [i % 4 for i in range(200)]
    asked = [(5, i % 300) if i % 3 else () for i in range(200)]
    together = token_logprobs(logits, tokens, top, asked)
    alone = [token_logprobs(logits[i : i + 1], [tokens[i]], [top[i]], [asked[i]])[0] for i in range(200)]
    assert together == alone
    plain = torch.log_softmax(logits.double(), -1)
    for i, entry in enumerate(together):
        assert entry.logprob == pytest.approx(float(plain[i, tokens[i]]), abs=1e-5)
        assert [token for token, _ in entry.top] == plain[i].argsort(descending=True)[: top[i]].tolist()
        assert [token for token, _ in entry.asked] == list(asked[i])


def test_equally_probable_tokens_are_told_by_id() -> None:
    (entry,) = token_logprobs(torch.tensor([[0.0, 2.0, 0.0, 2.0, 0.0]]), [0], [4], [()])
    assert [token for token, _ in entry.top] == [1, 3, 0, 2]


def test_a_tally_counts_what_was_generated_and_keeps_the_prompt_apart() -> None:
    came = tally({3: 2, 300: 1}, prompt=[3, 3, 8])
    for token in range(1000, 1050):
        came.add(token)
    times = dict(zip(came.ids.tolist(), came.times.tolist(), strict=True))
    assert times == {3: 2, 8: 0, 300: 1, **dict.fromkeys(range(1000, 1050), 1)}


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
    asked = Row(SamplingParams(temperature=temperature, logprobs=1, **params), 1, 0, tally=tally({0: 2, 1: 1}))
    (drawn,) = sample(torch.tensor([[1.0, 2.0, 0.5, -1.0]]), [asked])
    assert drawn.token in (0, 1)
    assert drawn.logprob is not None and -1.0 < drawn.logprob.logprob <= 0.0


def test_seed_and_position_are_not_interchangeable() -> None:
    """Small numbers are usual for both, and streams of neighbouring seeds must have nothing in common."""
    draws = [[uniform(seed, position) for position in range(60)] for seed in range(60)]
    assert len({draws[i][i] for i in range(60)}) == 60
    assert all(draws[i][j] != draws[j][i] for i in range(60) for j in range(i))
    heads = sum(uniform(length, length) < 0.5 for length in range(2000))
    assert 880 < heads < 1120


def test_a_row_of_no_numbers_ends_alone() -> None:
    logits = torch.zeros(3, 40)
    logits[0, 3], logits[1, 7] = float("nan"), float("inf")
    rows = [row_with({"temperature": t, "logprobs": 0}, at) for at, t in enumerate([0.0, 1.0, 1.0])]
    drawn = sample(logits, rows)
    assert [entry.token < 0 for entry in drawn] == [True, True, False]
