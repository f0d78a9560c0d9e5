"""The engine and the simulation of it decide the same, event by event: who is let in with how many cached tokens, what
each step computes, who gives way, what is evicted, who ends when; and when a hold of a program gives way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.radix_cache.eviction import POLICIES as EVICTION
from palmette.runtime.core import EngineCore
from palmette.runtime.holds import Holds
from palmette.runtime.intake import Intake
from palmette.runtime.job import Job
from palmette.runtime.loop import _GRACE_SECONDS
from palmette.runtime.models.tiny import tiny_model
from palmette.runtime.policies import POLICIES
from palmette.runtime.protocol import GenerateRequest, SamplingParams
from palmette.runtime.settings import EngineSettings
from palmette.runtime.shares import Decision
from palmette.runtime.simulator import Arrival, FixedCost, Simulation
from palmette.runtime.simulator.replica import GRACE_SECONDS
from palmette.runtime.tokenizer import Tokenizer

pytestmark = pytest.mark.tiny

VOCABULARY = 64
# Tokens that end an output, for requests that may end early.
ENDS = tuple(range(8))


class Babbler:
    """A model whose next token depends on the last one and its position only; quick, and different in every place."""

    vocab_width = VOCABULARY
    sampler = None
    max_context = 512
    kv_bytes_per_token = 4
    sampler = None

    def new_kv(self, slots: int) -> Any:
        return None

    def forward(self, batch: Any, kv: Any) -> torch.Tensor:
        logits = torch.zeros(len(batch.out_rows), VOCABULARY)
        wanted = (batch.tokens * 31 + batch.positions * 17)[batch.out_rows] % VOCABULARY
        logits[torch.arange(len(wanted)), wanted] = 30.0
        return logits


def babbler() -> tuple[Any, Tokenizer]:
    return Babbler(), Tokenizer.of_bytes((), width=VOCABULARY)


@dataclass(frozen=True)
class Wish:
    """A request of a test. time: number of the step before which it arrives; with `after`, steps after the end of that
    one, whose tokens its prompt goes on from. early: whether it may end before `max_tokens`."""

    time: int
    prompt: tuple[int, ...]
    max_tokens: int
    early: bool = False
    priority: int = 0
    tenant: str = ""
    namespace: str = ""
    after: int | None = None
    family: str = ""


@dataclass
class Engine:
    """The real engine's core, driven step by step as EngineLoop would, with steps of a second; nothing else decides
    when a request arrives. ended: when each did, in the order in which their callers heard of it."""

    parts: tuple[Any, Any]
    options: EngineSettings
    jobs: dict[int, Job] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    log: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        model, tokenizer = self.parts
        names = ("max_running", "max_step_tokens", "policy", "cache", "eviction", "dedupe", "hints", "kv_tokens")
        self.core = EngineCore(
            model, token_count=model.vocab_width, **{name: getattr(self.options, name) for name in names}
        )
        self.core.scheduler.log = self.log.append
        self.handed: list[Job] = []
        self.heard: list[int] = []
        self.held_until: float | None = None
        loop = SimpleNamespace(check=lambda: None, add=self.handed.append)
        self.intake = Intake(model, tokenizer, loop, kv_tokens=self.options.kv_tokens, seed=0)  # type: ignore[arg-type]

    def add(self, index: int, wish: Wish, prompt: tuple[int, ...]) -> None:
        params = SamplingParams(
            max_tokens=wish.max_tokens,
            temperature=1.0,
            seed=index,
            ignore_eos=True,
            stop_token_ids=ENDS if wish.early else (),
        )
        about = {name: getattr(wish, name) for name in ("namespace", "priority", "tenant", "family")}
        self.intake.generate(GenerateRequest(prompt, params, **about), lambda event: self.heard.append(index))
        job = self.handed.pop()
        job.number = len(self.jobs)
        self.jobs[index] = job
        self.core.add(job)

    def run(self, wishes: Sequence[Wish]) -> list[Arrival]:
        """All of it; the trace that it was, with what the model wrote."""
        due = {index: float(wish.time) for index, wish in enumerate(wishes) if wish.after is None}
        left = Counter(wish.family for wish in wishes)
        prompts: dict[int, tuple[int, ...]] = {}
        time = 0.0
        while due or self.core.busy:
            if not self.core.busy:
                time = max(time, min(due.values()))
            for index in sorted((index for index in due if due[index] <= time), key=lambda index: (due[index], index)):
                before = wishes[index].after
                said = () if before is None else self.said(before)
                prompts[index] = said + wishes[index].prompt
                self.add(index, wishes[index], prompts[index])
                del due[index]
            time = self.step(time, due)
            for index in self.heard:
                self.ended[index] = time
                due |= {i: time + wish.time for i, wish in enumerate(wishes) if wish.after == index}
                family = wishes[index].family
                left[family] -= 1
                if family and not left[family]:
                    self.core.scheduler.leave(family)
            self.heard.clear()
        assert self.core.check_integrity() == []
        assert self.core.cache.leases == 0
        self.core.close()
        return [self.arrival(wish, prompts[index], self.jobs[index]) for index, wish in enumerate(wishes)]

    def step(self, time: float, due: dict[int, float]) -> float:
        """What EngineLoop does next; when it looks at its inbox again."""
        told = len(self.log)
        patient = self.held_until is None or time < self.held_until
        if not self.core.step(patient=patient):
            self.held_until = self.held_until or time + _GRACE_SECONDS
            return min([self.held_until, *due.values()])
        self.held_until = None
        # A hold that gives way takes no time.
        return time + any(decision.kind == "compute" for decision in self.log[told:])

    def said(self, index: int) -> tuple[int, ...]:
        job = self.jobs[index]
        return tuple(job.tokens[: job.length].tolist())

    def arrival(self, wish: Wish, prompt: tuple[int, ...], job: Job) -> Arrival:
        reply = job.tokens[job.prompt_length : job.length]
        return Arrival(
            float(wish.time),
            np.array(prompt, np.int32),
            len(reply),
            tenant=wish.tenant,
            priority=wish.priority,
            namespace=wish.namespace,
            max_tokens=wish.max_tokens,
            reply=reply,
            after=wish.after,
            family=wish.family,
        )


def compare(wishes: Sequence[Wish], options: EngineSettings, parts: tuple[Any, Any]) -> list[Decision]:
    """The decisions of both, which must be the same."""
    engine = Engine(parts, options)
    trace = engine.run(wishes)
    steps = FixedCost(1.0, max_context=parts[0].max_context)
    for leaping in (False, True):
        log: list[Decision] = []
        run = Simulation(steps, options, leaping=leaping, log=log.append).run(trace)
        assert run.totals.dropped_holds == engine.core.scheduler.counters.dropped_holds
        for place, (ours, theirs) in enumerate(zip(log, engine.log, strict=False)):
            assert ours == theirs, (place, leaping)
        assert len(log) == len(engine.log)
        for one in run.served:
            job = engine.jobs[one.arrival]
            assert (one.ended, one.cached, one.preemptions) == (engine.ended[one.arrival], job.cached, job.preemptions)
    return engine.log


def crowd(seed: int, count: int = 60) -> list[Wish]:
    """Requests of three families and of two tenants, some that go on from others, more than fit at a time. The first
    ones make few tokens, which the scheduler learns to expect; the last third does not."""
    rng = np.random.default_rng(seed)
    stems = [tuple(rng.integers(0, VOCABULARY, size).tolist()) for size in (40, 25, 9)]
    wishes = []
    for index in range(count):
        stem = stems[rng.integers(3)]
        long, follows = index > count * 2 // 3, index > 2 and rng.random() < 0.2
        tail = tuple(rng.integers(0, VOCABULARY, rng.integers(1, 12)).tolist())
        wishes.append(
            Wish(
                time=int(rng.integers(30, 50) if long else rng.integers(0, 30)),
                prompt=tail if follows else stem[: rng.integers(3, len(stem) + 1)] + tail,
                max_tokens=int(rng.integers(15, 50) if long else rng.integers(0, 5)),
                early=bool(rng.random() < 0.3),
                priority=int(rng.integers(0, 3)),
                tenant=str(rng.integers(2)),
                after=index - 1 if follows and wishes[-1].after is None else None,
            )
        )
    return wishes


TIGHT = EngineSettings(kv_tokens=150, max_running=6, max_step_tokens=16)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_crowd_in_a_small_pool(policy):
    log = compare(crowd(1), replace(TIGHT, policy=policy), babbler())
    assert {decision.kind for decision in log} == {"admit", "compute", "preempt", "evict", "finish"}


def programs(seed: int, count: int = 12) -> list[Wish]:
    """Programs of some requests each that go on from each other, the next one soon or after a long while, and requests
    of nobody's."""
    rng = np.random.default_rng(seed)
    stem = tuple(rng.integers(0, VOCABULARY, 12).tolist())
    wishes: list[Wish] = []
    for number in range(count):
        alone = rng.random() < 0.25
        for turn in range(1 if alone else rng.integers(2, 5)):
            tail = tuple(rng.integers(0, VOCABULARY, rng.integers(1, 8)).tolist())
            pause = rng.choice([0, 1, 3, 50]) if turn else rng.integers(0, 25)
            wishes.append(
                Wish(
                    time=int(pause),
                    prompt=tail if turn else stem[: rng.integers(0, 12)] + tail,
                    max_tokens=int(rng.integers(1, 14)),
                    early=bool(rng.random() < 0.3),
                    priority=int(rng.integers(0, 3)),
                    tenant=str(rng.integers(2)),
                    after=len(wishes) - 1 if turn else None,
                    family="" if alone else f"program {number}",
                )
            )
    return wishes


@pytest.mark.parametrize("policy", POLICIES)
def test_programs_hold_what_they_said_until_it_gives_way(policy):
    """With hints and without, which must not come to the same: a simulation that knew nothing of families would not do
    as an engine does in one of the two."""
    assert GRACE_SECONDS == _GRACE_SECONDS
    options = replace(TIGHT, kv_tokens=90, policy=policy)
    held = compare(programs(2), options, babbler())
    assert held != compare(programs(2), replace(options, hints=False), babbler())
    nobodys = [replace(wish, family="") for wish in programs(2)]
    assert held != compare(nobodys, options, babbler())


def test_holds_give_way_when_they_are_idle_and_when_they_keep_everybody_out(monkeypatch):
    given: Counter[str] = Counter()
    for name in ("release_idle", "release_shortest"):
        real = getattr(Holds, name)

        def counted(self, *arguments, name=name, real=real):
            before = len(self)
            result = real(self, *arguments)
            given[name] += before - len(self)
            return result

        monkeypatch.setattr(Holds, name, counted)
    for seed in range(8):
        compare(programs(seed), replace(TIGHT, kv_tokens=90), babbler())
    # Each by the engine, by a simulation, and by one that leaps.
    assert min(given["release_idle"], given["release_shortest"]) >= 2 * 3
    assert all(count % 3 == 0 for count in given.values())


@pytest.mark.parametrize("eviction", EVICTION)
def test_every_order_of_eviction(eviction):
    log = compare(crowd(7, 25), replace(TIGHT, eviction=eviction), babbler())
    assert any(decision.kind == "evict" for decision in log)


@pytest.mark.parametrize("cache", [False, "flat"])
def test_without_the_tree(cache):
    compare(crowd(4, 25), replace(TIGHT, cache=cache), babbler())


def test_a_real_model():
    log = compare(crowd(11, 20), TIGHT, tiny_model(5))
    assert {"admit", "compute", "evict", "finish"} <= {decision.kind for decision in log}


@st.composite
def some_wishes(draw: st.DrawFn) -> list[Wish]:
    stem = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
    wishes: list[Wish] = []
    for index in range(draw(st.integers(1, 12))):
        free = [i for i, wish in enumerate(wishes) if wish.after is None and not any(w.after == i for w in wishes)]
        after = draw(st.sampled_from([None, None, *free])) if index else None
        tail = tuple(draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5)))
        wishes.append(
            Wish(
                time=draw(st.integers(0, 12)),
                prompt=tail if after is not None else stem[: draw(st.integers(0, 12))] + tail,
                max_tokens=draw(st.integers(0, 12)),
                early=draw(st.booleans()),
                priority=draw(st.integers(0, 2)),
                tenant=draw(st.sampled_from(["", "a", "b"])),
                namespace=draw(st.sampled_from(["", "", "other"])),
                after=after,
                family=draw(st.sampled_from(["", "f", "g"])) if after is None else wishes[after].family,
            )
        )
    return wishes


@settings(max_examples=25, deadline=None)
@given(
    wishes=some_wishes(),
    options=st.builds(
        EngineSettings,
        kv_tokens=st.sampled_from([48, 70, 300]),
        max_running=st.sampled_from([1, 3, 16]),
        max_step_tokens=st.sampled_from([1, 5, 8, 64]),
        policy=st.sampled_from(sorted(POLICIES)),
        eviction=st.sampled_from(sorted(EVICTION)),
        cache=st.sampled_from([True, True, False, "flat"]),
        dedupe=st.booleans(),
        hints=st.booleans(),
    ),
)
def test_random_traces(wishes, options):
    compare(wishes, options, babbler())
