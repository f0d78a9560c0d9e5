"""Achieved against optimal hit rate, of every workload on the tiny model: "It holds when" of the issue.

A pool for all tokens that there are, and one for half of them. On a model that gives the same bits in every schedule
the answers are the same in both.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from palmette.benchmarks.ablations import ABLATIONS, FULL
from palmette.benchmarks.measure import measure
from palmette.benchmarks.subject import Subject, load
from palmette.benchmarks.synthetic import Writer
from palmette.benchmarks.workload import Options, Setup
from palmette.benchmarks.workloads import WORKLOADS

pytestmark = pytest.mark.tiny

LARGE_POOL, HALF_POOL = 0.97, 0.90


class Case(NamedTuple):
    """What of a workload is done in a second or two."""

    name: str
    items: int
    scale: float
    options: Options = Options()


CASES = [
    Case("W1", 40, 0.2),
    Case("W3", 8, 0.15),
    Case("W5", 2, 0.03),
    Case("W6", 8, 0.05),
    Case("W7", 4, 0.05),
    Case("W9", 20, 0.1),
    Case("W9", 20, 0.05, Options(long=True)),
    Case("W11", 24, 0.1),
    Case("W12", 8, 0.06),
    Case("W14", 80, 0.1),
    Case("W14", 80, 0.1, Options(mode="warm-up")),
    Case("W15", 64, 0.06),
    Case("W15", 64, 0.06, Options(zipf=True)),
]


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load("tiny")


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join([case.name, *_chosen(case.options)]))
def test_hit_rates(case, subject):
    workload = WORKLOADS[case.name]
    rounds = workload.rounds(Setup(case.items, case.scale, 0, Writer(subject.tokenizer), options=case.options))
    # Twice what all tokens need: nothing is ever evicted.
    large = measure(workload, rounds, subject, FULL, settings={"kv_tokens": 60_000}).result
    assert large.kv_tokens > 2 * large.distinct_tokens
    assert large.evicted_tokens == 0
    assert LARGE_POOL <= large.hit_ratio <= 1

    half = measure(workload, rounds, subject, FULL, settings={"kv_tokens": large.distinct_tokens // 2}).result
    assert half.evicted_tokens > 0
    assert half.answers == large.answers
    assert HALF_POOL <= half.hit_ratio <= 1


def test_the_cache_is_what_makes_the_hits(subject):
    workload = WORKLOADS["W14"]
    rounds = workload.rounds(Setup(40, 0.1, 0, Writer(subject.tokenizer)))
    full, off, flat = (
        measure(workload, rounds, subject, variant, settings={"kv_tokens": 8192}).result
        for variant in (FULL, ABLATIONS["cache-off"], ABLATIONS["flat-cache"])
    )
    assert off.cached_tokens == flat.cached_tokens == 0 < full.cached_tokens
    assert off.forward_tokens == off.prompt_tokens == full.prompt_tokens
    assert full.forward_tokens == full.prompt_tokens - full.cached_tokens
    # Each token of the trie was computed once, but for the tokens that were drawn last.
    assert full.forward_tokens == full.distinct_tokens - full.generated_tokens
    assert off.answers == flat.answers == full.answers
    assert off.optimal_hit_rate == full.optimal_hit_rate > 0.5


def _chosen(options: Options) -> list[str]:
    return [
        str(value) if value is not True else name for name, value in _pairs(options) if value not in (False, "once")
    ]


def _pairs(options: Options) -> list[tuple[str, object]]:
    return [(name, getattr(options, name)) for name in ("long", "mode", "zipf")]
