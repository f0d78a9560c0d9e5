"""The C++ sampler against runtime/sampler.py, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from palmette.kernels.cpu.library import LibraryMissing, Team, load
from palmette.kernels.cpu.sampling import NO_NUMBERS, NOTHING_ALLOWED, Ask, Outcome, Sampler
from palmette.runtime.protocol import SamplingParams
from palmette.runtime.sampler import Row, pick, sample, uniform

try:
    LEVELS = load().levels
except LibraryMissing as missing:
    pytest.skip(f"no C++ kernels: {missing}", allow_module_level=True)

pytestmark = pytest.mark.tiny


@pytest.fixture(scope="module", params=LEVELS)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    made = Team(load(), 2, request.param)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sampler(team: Team) -> Sampler:
    return Sampler(team)


def ask(row: Row) -> Ask:
    p = row.params
    at = uniform(row.seed, row.position)
    banned = tuple(row.banned)
    return Ask(p.temperature, p.top_k, p.top_p, p.min_p, at, row.mask, banned, p.logprobs, p.logprob_token_ids)


def random_mask(generator: np.random.Generator, width: int) -> np.ndarray:
    """Few tokens, about half, or all but some."""
    allowed = generator.random((width + 31) // 32 * 32) < generator.choice([3 / width, 0.5, 0.99])
    return np.packbits(allowed, bitorder="little").view(np.int32)


def random_rows(generator: np.random.Generator, count: int, width: int) -> list[Row]:
    """Any settings together."""
    rows = []
    for i in range(count):
        params = SamplingParams(
            temperature=float(generator.choice([0.0, 1.0, 1.0, 0.7, 3.0, 1e-3])),
            top_k=int(generator.choice([-1, -1, 1, 3, 40, width // 2, width, 10 * width])),
            top_p=float(generator.choice([1.0, 1.0, 0.95, 0.5, 0.1, 1e-9, 0.9999])),
            min_p=float(generator.choice([0.0, 0.0, 0.1, 0.9, 1.0])),
            logprobs=[None, 0, 1, 5, 60][int(generator.integers(5))],
            logprob_token_ids=tuple(generator.integers(0, width, int(generator.integers(0, 3))).tolist()),
        )
        mask = random_mask(generator, width) if generator.random() < 0.4 else None
        banned = tuple(generator.integers(0, width, int(generator.integers(0, 3))).tolist())
        rows.append(Row(params, int(generator.integers(1 << 60)), i, mask, banned))
    return rows


def random_logits(generator: np.random.Generator, count: int, width: int) -> torch.Tensor:
    """Flat and steep rows, rows with ties, rows with -inf."""
    logits = generator.standard_normal((count, width)) * generator.choice([0.01, 1.0, 4.0, 20.0], (count, 1))
    logits = np.where(generator.random((count, 1)) < 0.4, logits.round(), logits)
    logits[generator.random((count, width)) < np.where(generator.random((count, 1)) < 0.3, 0.5, 0.0)] = -np.inf
    return torch.from_numpy(logits.astype(np.float32))


def close(value: float, wanted: float) -> bool:
    return value == wanted or abs(value - wanted) <= 3e-6 * max(1.0, abs(wanted))


@pytest.mark.parametrize(("width", "times"), [(1, 2), (12, 8), (64, 5), (97, 5), (1031, 5), (5000, 2)])
def test_tokens_and_log_probabilities_are_those_of_the_runtime(sampler: Sampler, width: int, times: int) -> None:
    for seed in range(times):
        generator = np.random.default_rng([width, seed])
        rows, logits = random_rows(generator, 60, width), random_logits(generator, 60, width)
        mine = logits.clone()
        got = sampler.sample(mine, [ask(row) for row in rows])
        wanted = sample(logits, rows)
        assert torch.equal(mine, logits)  # masked and banned in the same places
        for row, outcome, drawn in zip(rows, got, wanted, strict=True):
            assert max(outcome.token, -1) == drawn.token, row
            if drawn.logprob is None:
                assert outcome.found is None
                continue
            assert outcome.found is not None
            assert close(outcome.found.logprob, drawn.logprob.logprob)
            for ours, theirs in ((outcome.found.top, drawn.logprob.top), (outcome.found.asked, drawn.logprob.asked)):
                assert [token for token, _ in ours] == [token for token, _ in theirs], row
                assert all(close(a, b) for (_, a), (_, b) in zip(ours, theirs, strict=True))


def test_all_points_of_the_unit_interval_draw_the_same(sampler: Sampler) -> None:
    """One distribution with ties under each filter, at 0, just below 1, and between."""
    width = 300
    values = torch.from_numpy(np.random.default_rng(3).standard_normal(width).astype(np.float32)).mul(2).round()
    points = [0.0, math.nextafter(1.0, 0.0), *np.linspace(0, 0.999, 150).tolist()]
    for filters in ({}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.9, "min_p": 0.02}):
        got = sampler.sample(values.repeat(len(points), 1), [Ask(at=at, **filters) for at in points])
        params = SamplingParams(**filters)
        weights = torch.exp(values.double() - values.double().max()).repeat(len(points), 1)
        assert [outcome.token for outcome in got] == pick(weights, [params] * len(points), points)


def test_a_row_draws_the_same_in_any_company(team: Team, sampler: Sampler) -> None:
    generator = np.random.default_rng(1)
    rows, logits = random_rows(generator, 40, 777), random_logits(generator, 40, 777)
    asks = [ask(row) for row in rows]
    together = sampler.sample(logits.clone(), asks)
    for threads in (1, 3):
        other = Team(team.library, threads, team.level)
        assert Sampler(other).sample(logits.clone(), asks) == together
        other.close()
    assert [sampler.sample(logits[i : i + 1].clone(), [asks[i]])[0] for i in range(40)] == together
    wide = torch.full((40, 900), 99.0)
    wide[:, :777] = logits
    assert sampler.sample(wide[:, :777], asks) == together  # rows may lie apart


def test_rows_without_a_token(sampler: Sampler) -> None:
    logits = torch.zeros(5, 70)
    logits[0, 3], logits[1, 69], logits[2] = float("nan"), float("inf"), -float("inf")
    logits[4, 5] = float("nan")
    allowed = np.zeros(3, np.int32)
    fine = np.array([0b10, 0, 0], np.int32)
    asks = [Ask(logprobs=1), Ask(temperature=0.0), Ask(logprobs=2), Ask(mask=allowed, logprobs=1), Ask(mask=fine)]
    got = sampler.sample(logits, asks)
    nothing = [Outcome(NO_NUMBERS, None)] * 2 + [Outcome(NOTHING_ALLOWED, None)] * 2
    assert got == [*nothing, Outcome(1, None)]  # a NaN that the mask hides is no matter


def test_what_does_not_fit_is_refused(sampler: Sampler) -> None:
    with pytest.raises(ValueError, match="2 rows are asked"):
        sampler.sample(torch.zeros(1, 8), [Ask(), Ask()])
    with pytest.raises(ValueError, match="a mask of 70 tokens"):
        sampler.sample(torch.zeros(1, 70), [Ask(mask=np.zeros(2, np.int32))])
    with pytest.raises(ValueError, match="beyond the vocabulary"):
        sampler.sample(torch.zeros(1, 8), [Ask(banned=(8,))])
    with pytest.raises(TypeError, match="float32"):
        sampler.sample(torch.zeros(1, 8).double(), [Ask()])
    assert sampler.sample(torch.zeros(0, 8), []) == []
