"""The contract "same tokens": a request's tokens and log-probabilities are those that it gives alone, bit for bit,
under any schedule; and a schedule leaves nothing behind.

The engine's core is stepped by hand here, so that a schedule is data: who arrives and who gives up at which step.
PALMETTE_SCHEDULES=3000 tries so many instead of 300.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette.radix_cache.eviction import POLICIES as EVICTION
from palmette.runtime.core import EngineCore
from palmette.runtime.intake import Intake
from palmette.runtime.job import Job
from palmette.runtime.models.tiny import tiny_model
from palmette.runtime.policies import POLICIES
from palmette.runtime.protocol import (
    Constraint,
    Delta,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Output,
    SamplingParams,
    ScoreRequest,
)

pytestmark = pytest.mark.tiny

CONSTRAINTS = [
    Constraint("regex", "[a-f]{2,6}-[0-9]+"),
    Constraint("choices", ("alpha", "alphabet", "beta")),
    Constraint("regex", "begin [xyz]{3} end"),
    Constraint("json_schema", '{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"]}'),
]
STEMS = [b"The quick brown fox jumps over the lazy dog and runs.", b"The quick red fox", b"Zebra"]
PAGE = b"One page of text that is longer than a tile of attention: " * 3


@cache
def parts() -> Any:
    return tiny_model(3)


@cache
def request(number: int) -> GenerateRequest | ScoreRequest:
    """The number-th of endlessly many random requests; many share beginnings."""
    draw = random.Random(number)
    stem = PAGE[: draw.randint(70, len(PAGE))] if draw.random() < 0.1 else draw.choice(STEMS)
    tokens = tuple(stem[: draw.randint(1, len(stem))]) + tuple(draw.randrange(256) for _ in range(draw.randint(0, 4)))
    about: dict[str, Any] = {
        "namespace": draw.choice(["", "", "tenant"]),
        "priority": draw.randint(0, 3),
        "tenant": draw.choice(["a", "b"]),
    }
    if draw.random() < 0.2:
        choices = tuple(draw.sample(["yes", "yesterday", "no", "not at all", "ye", "x"], draw.randint(1, 4)))
        return ScoreRequest(tokens, choices, temperature=draw.choice([0.0, 1.0]), seed=draw.randrange(99), **about)
    params: dict[str, Any] = {
        "max_tokens": draw.choice([0, 1, 2, 5, 9, 16]),
        "temperature": draw.choice([0.0, 0.7, 1.3]),
        "seed": draw.randrange(99),
        "n": draw.choice([1, 1, 1, 2, 3]),
        "stop": draw.choice([(), (), ("e",), ("xy", "a")]),
        "logprobs": draw.choice([None, 0, 2]),
    }
    extras: list[dict[str, Any]] = [
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"frequency_penalty": 0.5, "presence_penalty": 0.3},
        {"repetition_penalty": 1.3},
        {"logit_bias": {101: 3.0, 32: -2.0}},
        {"ignore_eos": True},
        {"stop_token_ids": (97, 98)},
        {"stop_regex": ("[aeiou][^a-m]", "e+x?y")},
        {"min_tokens": min(2, params["max_tokens"])},
        {"echo": True},
        {"logprobs": 1, "logprob_token_ids": (97, 250)},
        {"prompt_logprobs": 2},
        {"prompt_logprobs": 0, "logprobs_start": len(tokens) // 2},
    ]
    for extra in draw.sample(extras, draw.choice([0, 0, 1, 2])):
        params |= extra
    constraint = draw.choice(CONSTRAINTS) if draw.random() < 0.3 else None
    return GenerateRequest(tokens, SamplingParams(**params), constraint, stream=draw.random() < 0.3, **about)


@dataclass
class HandLoop:
    """In the place of the engine's thread: jobs go straight to the core."""

    core: EngineCore
    closed: bool = False

    def check(self) -> None:
        pass

    def add(self, job: Job) -> None:
        self.core.add(job)

    def wake(self) -> None:
        pass


class Now:
    """An executor that does everything at once."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future


@dataclass
class Asked:
    """A request in flight, and what came of it."""

    request: GenerateRequest | ScoreRequest
    events: list[Event] = field(default_factory=list)
    group: Any = None
    score: Any = None
    jobs: list[Job] = field(default_factory=list)

    def cancel(self) -> None:
        if self.group is not None and not self.group.ended:
            self.group.cancel()
        for job in self.jobs:
            job.cancelled = True

    @property
    def ended(self) -> bool:
        return self.score.done() if self.score is not None else any(not isinstance(e, Delta) for e in self.events)

    def answer(self) -> Any:
        """All that may not depend on the schedule; an error by its words."""
        if self.score is not None:
            error = self.score.exception()
            return repr(error) if error else compared(self.score.result())
        *deltas, last = self.events
        assert all(isinstance(event, Delta) for event in deltas)
        if isinstance(last, Failed):
            return repr(last.error)
        assert isinstance(last, Finished)
        for out in last.outputs if self.request.stream else ():
            mine = [event for event in deltas if isinstance(event, Delta) and event.index == out.index]
            assert "".join(delta.text for delta in mine) == out.text
            assert [token for delta in mine for token in delta.tokens] == list(out.tokens)
        return [compared(out) for out in last.outputs]


def compared(result: Any) -> Any:
    skipped = {"usage", "prefill_seconds", "seconds"}
    return {name: getattr(result, name) for name in result.__dataclass_fields__ if name not in skipped}


class Rig:
    """A core that is stepped by hand."""

    def __init__(self, *, hopeful: bool = False, **core_settings: Any) -> None:
        model, tokenizer = parts()
        self.steps = 0
        self.core = EngineCore(model, token_count=tokenizer.n_tokens, **core_settings)
        self.intake = Intake(
            model,
            tokenizer,
            HandLoop(self.core),  # type: ignore[arg-type]
            kv_tokens=core_settings["kv_tokens"],
            seed=0,
        )
        self.intake._workers.shutdown()
        self.intake._workers = Now()  # type: ignore[assignment]
        if hopeful:
            # As if all outputs had been short lately: too much is let in, and preemption has to make up for it.
            for _ in range(64):
                self.core.scheduler.outlook.lengths.record(1)

    def ask(self, what: GenerateRequest | ScoreRequest) -> Asked:
        asked = Asked(what)
        if isinstance(what, ScoreRequest):
            asked.score, asked.jobs = self.intake.score(what)
        else:
            asked.group = self.intake.generate(what, asked.events.append)
        return asked

    def step(self) -> None:
        self.core.step()
        self.steps += 1
        # The check recounts everything, which takes as long as a step of this model.
        if self.steps % 4 == 0 or not self.core.busy:
            assert self.core.check_integrity() == []

    def finish(self) -> None:
        limit = self.steps + 20_000
        while self.core.busy:
            self.step()
            assert self.steps < limit, "the core does not come to an end"

    def leak(self) -> int:
        """Slots that are missing once everything is dropped."""
        self.core.cache.clear()
        return self.core.cache.pool.size - self.core.cache.pool.free

    def close(self) -> None:
        self.core.close()


@cache
def alone(number: int) -> Any:
    rig = Rig(kv_tokens=2000, max_running=1, max_step_tokens=100_000, cache=False)
    asked = rig.ask(request(number))
    rig.finish()
    rig.close()
    answer = asked.answer()
    # Stop tokens that a constraint cannot do without leave nothing to draw: that is the caller's fault, and an answer.
    assert not isinstance(answer, str) or answer.startswith("ConstraintError"), answer
    return answer


@st.composite
def schedules(draw: st.DrawFn) -> dict[str, Any]:
    """Arrivals as (step, number of the request, steps until its caller gives up or None), and settings."""
    arrivals = draw(
        st.lists(
            st.tuples(
                st.integers(0, 12),
                st.integers(0, 299),
                st.one_of(st.none(), st.none(), st.none(), st.integers(0, 15)),
            ),
            min_size=1,
            max_size=9,
        )
    )
    return {
        "arrivals": arrivals,
        "twice": draw(st.booleans()),
        "tight": draw(st.sampled_from([0, 0, 10, 80, 1000])),
        "hopeful": draw(st.booleans()),
        "max_step_tokens": draw(st.sampled_from([1, 7, 7, 64, 64, 100_000, 100_000])),
        "max_running": draw(st.sampled_from([1, 3, 64, 64])),
        "policy": draw(st.sampled_from(sorted(POLICIES))),
        "eviction": draw(st.sampled_from(sorted(EVICTION))),
        "cache": draw(st.sampled_from([True, True, True, False, "flat"])),
        "dedupe": draw(st.booleans()),
    }


@cache
def slots_needed(number: int) -> int:
    """The KV slots of a request's greediest job."""
    rig = Rig(kv_tokens=2000)
    asked = rig.ask(request(number))
    peak = max(job.peak for job in (asked.group.jobs if asked.group else asked.jobs))
    rig.finish()
    rig.close()
    return peak


def run(schedule: dict[str, Any]) -> EngineCore:
    """Run a schedule, check every answer, and give the core with its counters."""
    numbers = {number for _, number, _ in schedule["arrivals"]}
    rig = Rig(
        # The greediest job just fits: everybody else has to make room for it.
        kv_tokens=max(slots_needed(number) for number in numbers) + schedule["tight"],
        **{name: schedule[name] for name in schedule.keys() - {"arrivals", "twice", "tight"}},
    )
    for _ in range(1 + schedule["twice"]):
        asked: list[tuple[int, Asked, int | None]] = []
        for now in range(30):
            for step, number, patience in schedule["arrivals"]:
                if step == now:
                    asked.append((number, rig.ask(request(number)), None if patience is None else now + patience))
            for _, each, until in asked:
                if until == now:
                    each.cancel()
            rig.step()
        rig.finish()
        for number, each, until in asked:
            check(each, alone(number), gave_up=until is not None)
    assert rig.leak() == 0
    rig.close()
    return rig.core


def check(asked: Asked, expected: Any, *, gave_up: bool) -> None:
    assert asked.ended, asked.request
    got = asked.answer()
    if not gave_up or got == expected:
        assert got == expected, asked.request
    elif isinstance(got, list) and isinstance(expected, str):
        assert {mine["finish_reason"] for mine in got} == {"cancelled"}
    elif isinstance(got, list):
        for mine, whole in zip(got, expected, strict=True):
            # What was there by then is a beginning of the whole.
            assert whole["text"].startswith(mine["text"].rstrip("\ufffd"))
            if mine["finish_reason"] == "cancelled" and mine["logprobs"] is not None:
                assert whole["logprobs"][: len(mine["logprobs"])] == mine["logprobs"]
    else:
        assert "cancelled" in got


@settings(
    max_examples=int(os.environ.get("PALMETTE_SCHEDULES", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(schedules())
def test_tokens_and_logprobs_do_not_depend_on_the_schedule(schedule: dict[str, Any]) -> None:
    run(schedule)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_preemption_and_eviction_change_nothing(policy: str) -> None:
    """The random schedules above would prove little if none of them ran out of slots."""
    long = [n for n in range(400) if isinstance(what := request(n), GenerateRequest) and what.params.max_tokens == 16]
    schedule = {
        "arrivals": [(place % 10, number, None) for place, number in enumerate(long[:40])],
        "twice": True,
        "tight": 0,
        "hopeful": True,
        "max_step_tokens": 64,
        "max_running": 16,
        "policy": policy,
        "eviction": "lru",
        "cache": True,
        "dedupe": True,
    }
    core = run(schedule)
    assert core.scheduler.counters.preemptions > 5
    assert core.scheduler.counters.recomputed_tokens > 0
    assert core.cache.stats.evicted_tokens > 100
    assert core.cache.stats.hit_tokens > 100


def test_a_priority_takes_the_place_of_a_lower_one() -> None:
    rig = Rig(kv_tokens=64, max_running=1, policy="priority")
    low = rig.ask(GenerateRequest((1, 2, 3), SamplingParams(max_tokens=20, ignore_eos=True, seed=1), priority=0))
    for _ in range(5):
        rig.step()
    high = rig.ask(GenerateRequest((7, 8), SamplingParams(max_tokens=4, ignore_eos=True, seed=1), priority=1))
    while not high.ended:
        rig.step()
    assert not low.ended
    rig.finish()
    last = low.events[-1]
    assert isinstance(last, Finished)
    output: Output = last.outputs[0]
    assert output.usage.preemptions == 1
    assert len(output.tokens) == 20
    assert rig.leak() == 0
    rig.close()
