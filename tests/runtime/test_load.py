"""Two thousand requests at once into a KV cache of two thousand tokens: each ends exactly once, nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from palmette.errors import ContextLengthError, PalmetteError
from palmette.runtime.engine import Engine
from palmette.runtime.protocol import (
    Constraint,
    Delta,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    SamplingParams,
    ScoreRequest,
)

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
    params = SamplingParams(
        max_tokens=draw.choice([0, 1, 3, 8, 30]),
        temperature=draw.choice([0.0, 1.0]),
        n=draw.choice([1, 1, 1, 3]),
        logprobs=draw.choice([None, 1]),
    )
    constraint = Constraint("regex", "[a-z]{3,9}") if draw.random() < 0.1 else None
    return GenerateRequest(
        prompt,
        params,
        constraint,
        stream=draw.random() < 0.5,
        priority=draw.randint(0, 2),
        tenant=draw.choice("ab"),
    )


@pytest.mark.parametrize("policy", ["lpm", "priority"])
def test_each_of_2000_requests_ends_exactly_once(tiny_engine: Callable[..., Engine], policy: str) -> None:
    draw = random.Random(7)
    engine = tiny_engine(kv_tokens=2000, policy=policy)
    ended: Counter[int] = Counter()
    outcome: dict[int, Any] = {}

    async def one(number: int) -> None:
        """Ask by events, and give up after some of them; or by an iterator that is closed early; or for a score."""
        kind = draw.choice(["whole", "whole", "abort", "disconnect", "impossible", "score"])
        if kind == "score":
            result = await engine.score_async(ScoreRequest(draw.choice(SHARED)[:50], ("yes", "no", "not"), seed=1))
            ended[number] += 1
            outcome[number] = result
        elif kind == "disconnect":
            iterator = engine.submit(usual(draw))
            if draw.random() < 0.5:
                await asyncio.wait_for(anext(iterator), 60)
            await iterator.aclose()
            ended[number] += 1
        else:
            request, expected = draw.choice(IMPOSSIBLE) if kind == "impossible" else (usual(draw), None)
            loop, done = asyncio.get_running_loop(), asyncio.Event()

            def take(event: Event) -> None:
                if not isinstance(event, Delta):
                    ended[number] += 1
                    outcome[number] = event
                    loop.call_soon_threadsafe(done.set)

            group = engine._intake.generate(request, take)
            if kind == "abort":
                await asyncio.sleep(draw.random() * 2)
                engine._intake.cancel(group)
            await asyncio.wait_for(done.wait(), 120)
            if expected is not None:
                assert isinstance(outcome[number], Failed)
                assert isinstance(outcome[number].error, expected)
            elif kind == "whole":
                assert isinstance(outcome[number], Finished)
                assert {out.finish_reason for out in outcome[number].outputs} <= {"stop", "length", "constraint"}

    async def everybody() -> None:
        await asyncio.gather(*(one(number) for number in range(2000)))

    asyncio.run(everybody())
    assert ended == Counter(range(2000))
    # A second answer would come from the engine's thread, which is done once nothing is left.
    stats = engine.stats()
    while stats["running"] or stats["waiting"]:
        stats = engine.stats()
    assert ended == Counter(range(2000))
    assert engine.check_integrity() == []
    engine.flush_cache()
    assert engine.stats()["kv_free"] == 2000
