"""What is made of a run: quantiles, hit rates, shares, fairness; and that policies differ as they should."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from palmette.runtime.settings import EngineSettings
from palmette.runtime.simulator import (
    HARDWARE,
    SHAPES,
    Arrival,
    CostModel,
    FixedCost,
    Range,
    Simulation,
    best_possible,
    chat,
    independent,
    report,
    shared_prefix,
)
from palmette.runtime.simulator.report import Quantiles

pytestmark = pytest.mark.tiny

COST = CostModel(SHAPES["llama-3-8b"], HARDWARE["h100"])


def figures(trace, cost=COST, **settings):
    return report(Simulation(cost, EngineSettings(**settings)).run(trace), best_possible(trace), COST)


def test_figures_of_a_run_that_can_be_worked_out():
    trace = [Arrival(float(at), np.arange(10), 4, tenant=tenant) for at, tenant in ((1, "a"), (8, "b"))]
    found = figures(trace, FixedCost(0.5))
    assert (found.requests, found.refused, found.replicas) == (2, 0, 1)
    # The first runs from 1 to 3, the other from 8 to 10.
    assert found.seconds == 9.0 and found.busy_share == pytest.approx(4 / 9)
    assert found.requests_per_second == pytest.approx(2 / 9)
    assert found.output_tokens_per_second == pytest.approx(8 / 9)
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (20, 9, 8)
    assert found.computed_tokens == 11 + 6 and found.steps == 8
    assert found.optimal_hit_rate == 0.5 and found.hit_share == pytest.approx(0.9)
    assert found.first_token == Quantiles(0.5, 0.5, 0.5, 0.5) and found.latency.p99 == 2.0
    assert found.per_token.mean == pytest.approx(0.5)
    assert found.peak_kv_tokens == 13
    assert {name: tenant.cached_tokens for name, tenant in found.tenants.items()} == {"a": 0, "b": 9}


def test_the_example_in_the_guide_runs(capsys):
    guide = Path(__file__).resolve().parents[3] / "docs" / "simulator.md"
    (code,) = re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    exec(code, {})
    hit_rate, optimal, p99 = map(float, capsys.readouterr().out.split())
    assert 0.6 < hit_rate <= optimal < 1 < p99


def test_refused_requests_are_counted_and_nothing_else():
    trace = [Arrival(0.0, np.arange(100), 4), Arrival(0.0, np.arange(5), 4)]
    found = figures(trace, FixedCost(1.0), kv_tokens=50)
    assert (found.requests, found.refused, found.prompt_tokens) == (2, 1, 5)


def test_quantiles():
    assert Quantiles.of([]) == Quantiles(0.0, 0.0, 0.0, 0.0)
    assert Quantiles.of(list(range(101))) == Quantiles(50.0, 50.0, 95.0, 99.0)


@pytest.mark.parametrize("workload", [shared_prefix, chat])
def test_with_room_enough_nearly_everything_that_can_be_cached_is(workload):
    found = figures(workload(300, rate=20.0), max_running=256, max_step_tokens=2048)
    assert 0.97 <= found.hit_share <= 1.0
    assert found.evicted_tokens == 0 and found.preemptions == 0
    assert 0 < found.compute_share < found.bandwidth_share < found.busy_share <= 1.0


def test_nothing_shared_nothing_cached():
    found = figures(independent(50, rate=20.0))
    assert found.optimal_hit_rate < 0.001 and found.cached_tokens == 0


def test_longest_prefix_first_keeps_more_than_first_come_in_a_small_pool():
    sizes = {"groups": 20, "prefix": Range(400, 400), "suffix": Range(50, 50), "output": Range(20, 40)}
    trace = shared_prefix(400, rate=float("inf"), **sizes)
    share = {
        policy: figures(trace, policy=policy, kv_tokens=4000, max_running=16, max_step_tokens=512).hit_share
        for policy in ("fcfs", "lpm", "random")
    }
    assert share["lpm"] > share["fcfs"] + 0.1 and share["lpm"] > share["random"]


def test_fair_share_does_not_let_one_tenant_push_the_others_aside():
    # One tenant asks for everything at once, the other a little at a time.
    flood = independent(200, rate=float("inf"), prompt=Range(200, 200), output=Range(20, 20), seed=1)
    trickle = independent(60, rate=30.0, prompt=Range(200, 200), output=Range(20, 20), seed=2)
    trace = [
        Arrival(one.time, one.prompt, one.output, tenant=tenant)
        for tenant, part in (("flood", flood), ("trickle", trickle))
        for one in part
    ]
    waits = {}
    for policy in ("fcfs", "fair"):
        found = figures(trace, policy=policy, kv_tokens=3000, max_running=8, max_step_tokens=256)
        waits[policy] = found.tenants["trickle"].first_token.p95
    assert waits["fair"] < 0.2 * waits["fcfs"]
    both = [Arrival(0.0, one.prompt, one.output, tenant=f"t{i * 5 // 400}") for i, one in enumerate(flood * 2)]
    fairness = {policy: figures(both, policy=policy, max_running=8).fairness for policy in ("fcfs", "fair")}
    assert fairness["fair"] > 0.99 > 0.9 > fairness["fcfs"]
