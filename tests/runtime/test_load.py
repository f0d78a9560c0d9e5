"""Two thousand requests at once into a KV cache of two thousand tokens: each ends exactly once, nothing is lost."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from palmette.errors import ContextLengthError, PalmetteError
from palmette.runtime.engine import Engine
from palmette.runtime.group import Group
from palmette.runtime.protocol import (
    Constraint,
    Delta,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    SamplingParams,
    ScoreRequest,
    ScoreResult,
)
from palmette.runtime.score import ScoreJob
from palmette.runtime.shares import Decision

pytestmark = pytest.mark.tiny

SHARED = [tuple(random.Random(page).choices(range(256), k=120)) for page in range(5)]
IMPOSSIBLE: list[tuple[GenerateRequest, type[BaseException]]] = [
    (GenerateRequest(tuple([1] * 2500)), ContextLengthError),
    (GenerateRequest((1, 2, 999_999)), PalmetteError),
    (GenerateRequest((1,), SamplingParams(max_tokens=3), Constraint("regex", "(")), PalmetteError),
    (GenerateRequest((1,), SamplingParams(temperature=-1.0)), PalmetteError),
]


def usual(draw: random.Random) -> GenerateRequest:
    prompt = draw.choice(SHARED)[: draw.choice([1, 40, 120])] + tuple(draw.choices(range(256), k=draw.randint(0, 6)))
    constraint = Constraint("regex", "[a-z]{3,9}") if draw.random() < 0.1 else None
    limit = draw.choice([0, 3, 8, 60] if constraint else [0, 1, 3, 8, 60])
    params = SamplingParams(
        # Most end long before they have to, so the scheduler reckons with less than some come to need.
        max_tokens=limit,
        stop=draw.choice([("e", "\ufffd"), ("e", "\ufffd"), ()]),
        temperature=draw.choice([0.0, 1.0]),
        n=draw.choice([1, 1, 1, 3]),
        logprobs=draw.choice([None, 1]),
    )
    return GenerateRequest(
        prompt,
        params,
        constraint,
        stream=draw.random() < 0.5,
        priority=draw.randint(0, 2),
        tenant=draw.choice("ab"),
    )


class Ends:
    """Counts how often the engine ends what it was asked: by the events and futures that it answers with, whoever
    listens to them, and by the scheduler's own word on each job."""

    def __init__(self, engine: Engine) -> None:
        self.answers: Counter[int] = Counter()
        self.jobs: Counter[int] = Counter()
        self.asked = 0
        self._generate, self._score = engine._intake.generate, engine._intake.score
        engine._intake.generate = self.generate  # type: ignore[method-assign]
        engine._intake.score = self.score  # type: ignore[method-assign]
        engine._loop.call(lambda core: setattr(core.scheduler, "log", self.decided))

    def generate(self, request: GenerateRequest, emit: Callable[[Event], None]) -> Group:
        number, self.asked = self.asked, self.asked + 1

        def count(event: Event) -> None:
            self.answers[number] += not isinstance(event, Delta)
            emit(event)

        return self._generate(request, count)

    def score(self, request: ScoreRequest) -> tuple[Future[ScoreResult], list[ScoreJob]]:
        number, self.asked = self.asked, self.asked + 1
        future, jobs = self._score(request)
        # A future takes no second answer: the engine would break down over it.
        future.add_done_callback(lambda _: self.answers.update([number]))
        return future, jobs

    def decided(self, decision: Decision) -> None:
        if decision.kind == "finish":
            self.jobs[decision.number] += 1


@pytest.mark.parametrize("policy", ["lpm", "priority"])
def test_each_of_2000_requests_ends_exactly_once(tiny_engine: Callable[..., Engine], policy: str) -> None:
    draw = random.Random(7)
    engine = tiny_engine(kv_tokens=2000, max_running=256, policy=policy)
    ends = Ends(engine)
    kinds: Counter[str] = Counter()

    async def one() -> None:
        """Ask by events, and give up after some of them; or by an iterator that is closed early; or for a score."""
        kind = draw.choice(["whole", "whole", "abort", "disconnect", "impossible", "score"])
        kinds[kind] += 1
        if kind == "score":
            result = await engine.score_async(ScoreRequest(draw.choice(SHARED)[:50], ("yes", "no", "not"), seed=1))
            assert result.choice in ("yes", "no", "not")
            return
        request, expected = draw.choice(IMPOSSIBLE) if kind == "impossible" else (usual(draw), None)
        if kind == "disconnect":
            iterator = engine.submit(request)
            first = asyncio.ensure_future(anext(iterator))
            await asyncio.wait([first], timeout=draw.choice([0, 1, 60]))
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await iterator.aclose()  # type: ignore[attr-defined]
            return
        loop, last, done = asyncio.get_running_loop(), list[Event](), asyncio.Event()

        def take(event: Event) -> None:
            if not isinstance(event, Delta):
                last.append(event)
                loop.call_soon_threadsafe(done.set)

        group = engine._intake.generate(request, take)
        if kind == "abort":
            await asyncio.sleep(draw.random() * 2)
            engine._intake.cancel(group)
        await asyncio.wait_for(done.wait(), 120)
        if expected is not None:
            assert isinstance(last[0], Failed)
            assert isinstance(last[0].error, expected)
        elif kind == "whole":
            assert isinstance(last[0], Finished)
            assert {out.finish_reason for out in last[0].outputs} <= {"stop", "length", "constraint"}

    async def everybody() -> None:
        await asyncio.gather(*(one() for _ in range(2000)))

    asyncio.run(everybody())
    assert min(kinds.values()) > 250
    # Those whose callers went away end within a step, and a second end would come from the engine's thread as well.
    deadline = time.monotonic() + 60
    stats = engine.stats()
    while (stats["running"] or stats["waiting"] or len(ends.answers) < ends.asked) and time.monotonic() < deadline:
        stats = engine.stats()
    assert ends.answers == Counter(range(2000))
    assert set(ends.jobs.values()) == {1} and len(ends.jobs) == stats["requests"]
    assert stats["requests"] == stats["finished"] + stats["failed"] + stats["cancelled"]
    assert min(stats["cancelled"], stats["preemptions"], stats["recomputed_tokens"]) > 0, stats
    assert stats["cache"]["evicted_tokens"] > 0
    assert engine.check_integrity() == []
    engine.flush_cache()
    assert engine.stats()["kv_free"] == 2000
