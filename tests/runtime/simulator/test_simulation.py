"""Simulations: steps taken together, many engines, closed loops, and how fast it all goes."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from palmette.errors import ArgumentError
from palmette.runtime.policies import POLICIES
from palmette.runtime.settings import EngineSettings
from palmette.runtime.simulator import (
    HARDWARE,
    ROUTERS,
    SHAPES,
    Arrival,
    CostModel,
    FixedCost,
    Range,
    Simulation,
    chat,
    shared_prefix,
)
from palmette.runtime.simulator.router import LeastLoaded, PrefixAffinity, RoundRobin

pytestmark = pytest.mark.tiny

COST = CostModel(SHAPES["llama-3-8b"], HARDWARE["h100"])
SMALL = EngineSettings(kv_tokens=900, max_running=12, max_step_tokens=64)


class Watched(Simulation):
    """Keeps its engines, to look into them."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.made = []

    def replica(self, ended, tokens):
        self.made.append(super().replica(ended, tokens))
        return self.made[-1]


def arrival(at, tokens, output=3, **more):
    return Arrival(float(at), np.array(tokens, np.int32), output, **more)


def busy_trace(seed=0, requests=150, **more):
    """More than SMALL can hold at a time; outputs end before what was asked for."""
    options = {"rate": 150.0, "groups": 12, "prefix": Range(60, 90), "suffix": Range(5, 40), "output": Range(0, 60)}
    return shared_prefix(requests, **{**options, "max_tokens": 60, "tenants": 3, "seed": seed, **more})


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_taken_together_change_nothing(policy):
    trace = busy_trace()
    settings = replace(SMALL, policy=policy)
    runs = []
    for leaping in (True, False):
        simulation = Watched(COST, settings, leaping=leaping)
        runs.append(simulation.run(trace))
        cache = simulation.made[0].scheduler.cache
        assert cache.check_integrity() == [] and cache.pool.free + cache.cached == 900
        assert cache.leases == 0
    together, singly = runs
    assert together.served == singly.served
    assert together.totals.plans < 0.75 * singly.totals.plans
    counts = ("steps", "computed_tokens", "recomputed_tokens", "preemptions", "evicted_tokens", "peak_kv_tokens")
    for name in counts:
        assert getattr(together.totals, name) == getattr(singly.totals, name), name
    for name in ("busy_seconds", "flops", "bytes"):
        assert getattr(together.totals, name) == pytest.approx(getattr(singly.totals, name), rel=1e-9)
    assert together.totals.evicted_tokens > 0 and together.totals.preemptions > 0


@pytest.mark.parametrize("eviction", ["lfu", "size", "priority"])
def test_steps_taken_together_evict_the_same(eviction):
    settings = replace(SMALL, eviction=eviction)
    trace = busy_trace(4)
    assert Simulation(COST, settings).run(trace).served == Simulation(COST, settings, leaping=False).run(trace).served


def talk(requests=120, **more):
    """Conversations, of whose texts SMALL can hold a few."""
    options = {"rate": 40.0, "turns": 3, "think": 0.2, "system": Range(40, 40), "user": Range(5, 40)}
    return chat(requests, **{**options, "output": Range(10, 60), "max_tokens": 60, "seed": 5, **more})


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_taken_together_change_nothing_where_programs_hold_what_they_said(policy):
    trace, settings = talk(), replace(SMALL, policy=policy)
    together, singly = (Simulation(COST, settings, leaping=leaping).run(trace) for leaping in (True, False))
    assert together.served == singly.served
    assert together.totals.dropped_holds == singly.totals.dropped_holds > 0
    assert together.totals.peak_kv_tokens == singly.totals.peak_kv_tokens
    assert together.totals.plans < 0.9 * singly.totals.plans
    assert Simulation(COST, replace(settings, hints=False)).run(trace).served != together.served


@pytest.mark.parametrize("router", ROUTERS)
def test_a_program_that_ends_leaves_every_engine_that_it_was_at(router):
    simulation = Watched(COST, SMALL, replicas=3, router=ROUTERS[router]())
    simulation.run(talk())
    for replica in simulation.made:
        cache = replica.scheduler.cache
        assert cache.leases == 0 and cache.check_integrity() == []


def test_a_family_whose_requests_go_to_several_engines_is_one():
    """The first request's text is held as long as the family has others to come, wherever they go."""
    told = {"settings": EngineSettings(kv_tokens=30), "replicas": 2, "router": RoundRobin()}
    # The third comes to the first engine while the second, at the other one, is still at work.
    trace = [
        arrival(0, range(10), output=2, family="f"),
        arrival(0, range(20, 25), output=20, family="f"),
        arrival(5, range(50, 70), output=8),
    ]
    run = Simulation(FixedCost(1.0), **told).run(trace)
    assert run.totals.dropped_holds == 1
    trace[1] = arrival(0, range(20, 25), output=20)
    assert Simulation(FixedCost(1.0), **told).run(trace).totals.dropped_holds == 0


def test_everything_is_served_as_the_trace_says():
    trace = busy_trace(2)
    ended = 0

    def progress(more):
        nonlocal ended
        ended += more

    run = Simulation(COST, SMALL, progress=progress).run(trace)
    assert ended == len(trace)
    assert [one.arrival for one in run.served] == list(range(len(trace)))
    for one, asked in zip(run.served, trace, strict=True):
        assert (one.output, one.prompt, one.tenant) == (asked.output, len(asked.prompt), asked.tenant)
        assert asked.time == one.arrived < one.first_token <= one.ended
        assert 0 <= one.cached < one.prompt and not one.problem
    once = sum(one.prompt - one.cached + max(0, one.output - (one.output == 60)) for one in run.served)
    # What the cached tokens of a job that came back spared is no part of `cached`, so this is a bound.
    assert once <= run.totals.computed_tokens <= once + run.totals.recomputed_tokens


def test_a_step_is_what_it_costs_and_arrivals_wait_for_its_end():
    one, two = arrival(0, range(10), output=4), arrival(0.5, range(50, 70), output=2)
    run = Simulation(FixedCost(1.0), EngineSettings(max_step_tokens=12)).run([one, two])
    # Steps begin at 0, 1 ...: the first prefills one; of the second one's 20 tokens 11 fit beside a decode, then 9.
    assert [(a.first_token, a.ended) for a in run.served] == [(1.0, 4.0), (3.0, 4.0)]
    assert run.totals.steps == 4 and run.totals.busy_seconds == 4.0


def test_time_without_work_passes_at_once():
    run = Simulation(FixedCost(0.5)).run([arrival(0, [1], output=1), arrival(1000.25, [2], output=1)])
    assert [a.ended for a in run.served] == [0.5, 1000.75]
    assert run.totals.steps == 2


def test_what_follows_comes_after_the_end_and_finds_the_answer_in_the_cache():
    first = arrival(2, range(20), output=5, reply=[7, 7, 8, 8, 9])
    then = arrival(10, [*range(20), 7, 7, 8, 8, 9, 1], output=1, after=0)
    run = Simulation(FixedCost(1.0)).run([first, then])
    assert run.served[0].ended == 7.0
    assert (run.served[1].arrived, run.served[1].ended) == (17.0, 18.0)
    # All but the last token of the answer, which was never computed, and its own.
    assert run.served[1].cached == 24


def test_outputs_that_the_trace_does_not_spell_are_shared_with_nobody():
    trace = [arrival(0, [1, 2, 3], output=4), arrival(50, [1, 2, 3], output=4)]
    run = Simulation(FixedCost(1.0)).run(trace)
    assert run.served[1].cached == 2
    assert run.totals.computed_tokens == 2 * 6 - 2


def test_what_can_never_fit_is_refused_at_once():
    trace = [arrival(0, range(30)), arrival(1, range(30)), arrival(1, range(8)), arrival(3, [1], after=0)]
    trace[3] = arrival(3, [1], after=1)
    run = Simulation(FixedCost(1.0, capacity=20)).run(trace)
    assert [bool(one.problem) for one in run.served] == [True, True, False, False]
    assert run.totals.refused == 2 and run.served[1].ended == 1.0 and run.served[3].arrived == 4.0
    # As an engine does, an output is cut to what fits the cache.
    cut = Simulation(FixedCost(1.0, capacity=20)).run([arrival(0, range(15), output=50)])
    assert cut.served[0].output == 6
    by_context = Simulation(FixedCost(1.0, max_context=18)).run([arrival(0, range(15), output=50)])
    assert by_context.served[0].output == 3


# -- many engines ------------------------------------------------------------------------------------------------------


class Seeing(RoundRobin):
    """Places as RoundRobin does, but does not say that it needs to see nothing."""

    static = False


def test_engines_one_after_the_other_or_side_by_side_are_the_same():
    trace = busy_trace(3)
    apart = Simulation(COST, SMALL, replicas=4, router=RoundRobin()).run(trace)
    beside = Simulation(COST, SMALL, replicas=4, router=Seeing()).run(trace)
    assert apart.served == beside.served
    assert apart.totals.steps == beside.totals.steps
    assert {one.replica for one in apart.served} == {0, 1, 2, 3}


def test_a_conversation_may_go_from_engine_to_engine():
    trace = chat(60, rate=50.0, turns=3, think=0.2)
    run = Simulation(COST, replicas=4, router=RoundRobin()).run(trace)
    assert [one.replica for one in run.served] == [index % 4 for index in range(60)]
    for one, asked in zip(run.served, trace, strict=True):
        if asked.after is not None:
            assert one.arrived == run.served[asked.after].ended + asked.time


def test_routers():
    loads = np.array([3, 1, 1])
    one, other = arrival(0, range(300)), arrival(0, [*range(256), 9, 9])
    assert LeastLoaded().place(0, one, loads) == 1
    affine = PrefixAffinity()
    assert affine.place(0, one, loads) == affine.place(7, other, loads)
    salted = [affine.place(0, replace_namespace(one, str(i)), loads) for i in range(20)]
    assert set(salted) == {0, 1, 2}


def replace_namespace(one, namespace):
    return Arrival(one.time, one.prompt, one.output, namespace=namespace)


def test_the_least_loaded_engine_gets_the_next_request():
    # The first request keeps engine 0 busy; the others, one at a time, go to engine 1.
    trace = [arrival(0, range(5), output=100), *(arrival(10 * i, [i, 1], output=2) for i in range(1, 5))]
    run = Simulation(FixedCost(1.0), replicas=2, router=LeastLoaded()).run(trace)
    assert [one.replica for one in run.served] == [0, 1, 1, 1, 1]


def test_affinity_keeps_prefixes_where_they_are():
    trace = shared_prefix(400, rate=100.0, groups=40, prefix=Range(300, 300), suffix=Range(20, 20), output=Range(5, 9))
    cached = {}
    for name, router in ROUTERS.items():
        run = Simulation(COST, replicas=10, router=router()).run(trace)
        cached[name] = sum(one.cached for one in run.served)
    assert cached["prefix-affinity"] > 1.5 * max(cached["round-robin"], cached["least-loaded"])


@pytest.mark.parametrize("router", ["prefix-affinity", "least-loaded"])
def test_a_thousand_engines(router):
    trace = shared_prefix(1500, rate=5000.0, groups=500, prefix=Range(300, 300), suffix=Range(9, 9), output=Range(3, 9))
    settings = EngineSettings(kv_tokens=20_000)
    run = Simulation(COST, settings, replicas=1000, router=ROUTERS[router]()).run(trace)
    assert len(run.served) == 1500
    assert len({one.replica for one in run.served}) > (300 if router == "prefix-affinity" else 100)


def test_settings_that_make_no_sense():
    with pytest.raises(ArgumentError, match="replicas=0"):
        Simulation(COST, replicas=0)
    with pytest.raises(ArgumentError, match="cache_dir"):
        Simulation(COST, EngineSettings(cache_dir="x"))


def test_a_thousand_requests_a_second():
    """Prompts of 2,000 tokens in 64 groups, outputs of 100 to 200, some 27 running; processor time, the best of six."""
    trace = shared_prefix(1000, rate=20.0)
    simulation = Simulation(COST, EngineSettings(max_running=256, max_step_tokens=2048))
    best = 0.0
    for _ in range(6):
        begun = time.process_time()
        simulation.run(trace)
        best = max(best, len(trace) / (time.process_time() - begun))
        if best > 1000:
            return
    pytest.fail(f"only {best:.0f} requests a second")
