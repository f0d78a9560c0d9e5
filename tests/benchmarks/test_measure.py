"""Running and reporting: what a run counts, what variants are compared by, and what breaks off."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from palmette.benchmarks import suite
from palmette.benchmarks.ablations import ABLATIONS, FULL, variants
from palmette.benchmarks.manifest import commit, size
from palmette.benchmarks.measure import Result, measure
from palmette.benchmarks.report import Report, as_data, heading
from palmette.benchmarks.subject import load
from palmette.benchmarks.synthetic import Writer
from palmette.benchmarks.workload import Setup
from palmette.benchmarks.workloads import WORKLOADS
from palmette.errors import ArgumentError
from palmette.interpreter.backends.mock_codec import MockCodec

pytestmark = pytest.mark.tiny


@pytest.fixture(scope="module")
def subject():
    return load("tiny")


def setup(subject, items=4, scale=0.03):
    return Setup(items, scale, 0, Writer(subject.tokenizer))


def result(**values):
    plain = dict.fromkeys(Result.__dataclass_fields__, 1)
    return Result(**{**plain, "latencies": (1.0,), "complete": True, "answers": "a", **values})


# -- a run -------------------------------------------------------------------------------------------------------------


def test_counts_of_a_run(subject):
    workload = WORKLOADS["W12"]
    made, records = measure(workload, workload.rounds(setup(subject)), subject, FULL, settings={"kv_tokens": 20_000})
    assert (made.workload, made.variant, made.complete) == ("W12", "full", True)
    assert made.programs == len(made.latencies) == 4
    assert made.requests == len(records) == 4 * 6
    assert made.prompt_tokens == sum(len(record.prompt) for record in records)
    assert made.generated_tokens == sum(len(record.output) for record in records) == 4 * (5 * 8 + 1)
    # Of each answer the last token is drawn and never computed, unless it is a prompt's beginning later on.
    assert made.forward_tokens >= made.required_tokens + made.generated_tokens - made.requests
    assert 0 < made.forward_calls < made.forward_tokens
    assert 0 < made.kv_peak <= made.distinct_tokens < made.kv_tokens == 20_000
    assert 0 < made.latencies[0] <= made.latencies[-1] <= made.seconds


def test_variants_answer_alike_and_are_told_apart(subject):
    workload = WORKLOADS["W12"]
    chosen = variants(workload, ["cache-off", "sequential-forks", "no-dedupe"], {})
    outcome = suite.run(
        workload, setup(subject), subject, chosen,
        settings={"kv_tokens": 20_000}, parallel=8, repeat=2, begin=lambda variant, programs: lambda: None,
    )  # fmt: skip
    report = outcome.report
    assert [len(report.variants[variant]) for variant in chosen] == [2] * 4
    assert all(report.same_answers(variant) for variant in chosen)
    full, off, sequential, _ = map(report.shown, chosen)
    assert off.cached_tokens == 0 < full.cached_tokens
    assert sequential.forward_calls > 2 * full.forward_calls
    assert len(outcome.records) == full.requests


def test_ctrl_c_gives_what_is_done(subject):
    workload = WORKLOADS["W5"]
    ended = []

    def progress():
        ended.append(1)
        if len(ended) == 2:
            signal.raise_signal(signal.SIGINT)

    rounds = workload.rounds(setup(subject, items=6))
    made = measure(workload, rounds, subject, FULL, settings={"kv_tokens": 9000}, parallel=2, progress=progress).result
    assert not made.complete
    assert made.programs == 2
    assert 2 * 39 <= made.requests < 6 * 39


# -- variants ----------------------------------------------------------------------------------------------------------


def test_only_what_differs_is_run():
    forks, plain = WORKLOADS["W7"], WORKLOADS["W15"]
    names = [variant.name for variant in variants(forks, ["all"], {})]
    assert names == ["full", *(name for name in ABLATIONS if name not in ("lpm", "free"))]
    assert "free" in [variant.name for variant in variants(WORKLOADS["W8b"], ["all"], {})]
    assert "sequential-forks" not in [variant.name for variant in variants(plain, ["all"], {})]
    ordered = [variant.name for variant in variants(plain, ["all"], {"policy": "fcfs"})]
    assert "lpm" in ordered
    assert "fcfs" not in ordered
    with pytest.raises(ArgumentError, match="cache-of"):
        variants(plain, ["cache-of"], {})


# -- reports -----------------------------------------------------------------------------------------------------------


def report(**variants):
    known = {FULL.name: FULL, **ABLATIONS}
    runs = {known[name.replace("_", "-")]: results for name, results in variants.items()}
    return Report(WORKLOADS["W1"], Setup(1, 1.0, 0, Writer(MockCodec())), 64, runs)


def test_latencies_are_by_nearest_rank():
    hundred = result(latencies=tuple(float(i) for i in range(1, 101)))
    assert [hundred.latency(p) for p in (50, 95, 99, 100)] == [50, 95, 99, 100]
    three = result(latencies=(1.0, 2.0, 9.0))
    assert [three.latency(p) for p in (50, 95, 99)] == [2, 9, 9]
    assert result(latencies=()).latency(50) == 0


def test_hit_ratio():
    made = result(prompt_tokens=100, required_tokens=20, cached_tokens=60)
    assert (made.hit_rate, made.optimal_hit_rate, made.hit_ratio) == pytest.approx((0.6, 0.8, 0.75))
    assert result(prompt_tokens=100, required_tokens=100, cached_tokens=0).hit_ratio == 1


def test_the_run_with_the_median_throughput_is_shown():
    runs = [result(programs=programs) for programs in (5, 1, 3)]
    assert report(full=runs).shown(FULL) is runs[2]
    assert report(full=runs[:2]).shown(FULL) is runs[1]


def test_the_heading_counts_the_runs_that_the_median_is_of():
    broken = result(complete=False)
    assert heading(report(full=[result()] * 3)).endswith(", median of 3 runs")
    assert heading(report(full=[result(), result(), broken])).endswith(", median of 2 runs (1 more broken off)")
    assert heading(report(full=[result(), broken])).endswith("scale 1 (1 more broken off)")
    assert heading(report(full=[result()])).endswith("scale 1")
    only = heading(report(full=[broken]))
    assert only.count("broken off") == 1 and "median" not in only


def test_answers_are_compared_with_the_first_full_run():
    off = ABLATIONS["cache-off"]
    same, other, broken = result(), result(answers="b"), result(complete=False)
    assert report(full=[same], cache_off=[same, same]).same_answers(off) is True
    assert report(full=[same], cache_off=[same, other]).same_answers(off) is False
    assert report(full=[same, other]).same_answers(FULL) is False
    assert report(full=[same], cache_off=[same, broken]).same_answers(off) is None


def test_data_has_ratios_to_the_full_variant():
    half = replace(result(), seconds=2, forced_tokens=0, cached_tokens=0)
    data = as_data([report(full=[replace(result(), forced_tokens=0)], cache_off=[half])], {"date": "today"})
    assert data["manifest"] == {"date": "today"}
    full, off = data["workloads"][0]["variants"]
    assert full["ratios"]["programs/s"] == 1
    assert off["ratios"]["programs/s"] == 0.5
    assert off["ratios"]["cached tokens"] == 0
    assert off["ratios"]["forced tokens"] is None
    assert off["settings"] == {"cache": False}
    assert off["runs"][0]["latency_seconds"] == {"p50": 1.0, "p95": 1.0, "p99": 1.0}


def test_facts_of_files(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"123")
    assert (size(tmp_path), size(tmp_path / "a")) == (8, 5)
    assert commit(tmp_path) == {}
