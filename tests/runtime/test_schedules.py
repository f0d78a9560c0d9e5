"""Random requests under random schedules give the tokens and log-probabilities that each gives alone, bit for bit,
and leave nothing behind."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette.runtime.engine import Engine
from palmette.runtime.models.tiny import tiny_model
from palmette.runtime.protocol import Constraint, Finished, GenerateRequest, SamplingParams

pytestmark = pytest.mark.tiny

CONSTRAINTS = [
    None,
    None,
    Constraint("regex", "[a-f]{2,6}-[0-9]+"),
    Constraint("choices", ("alpha", "alphabet", "beta")),
    Constraint("regex", "begin [xyz]{3} end"),
]
STEMS = [b"The quick brown fox jumps over the lazy dog and runs.", b"The quick red fox", b"Zebra"]


@cache
def parts() -> Any:
    return tiny_model(3)


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    stem = draw(st.sampled_from(STEMS))
    tokens = tuple(stem[: draw(st.integers(1, len(stem)))]) + tuple(draw(st.lists(st.integers(0, 255), max_size=4)))
    params = SamplingParams(
        max_tokens=draw(st.integers(0, 14)),
        temperature=draw(st.sampled_from([0.0, 0.7, 1.3])),
        top_k=draw(st.sampled_from([-1, 5])),
        seed=draw(st.integers(0, 99)),
        n=draw(st.integers(1, 2)),
        stop=draw(st.sampled_from([(), ("e",), ("xy", "a")])),
        logprobs=draw(st.sampled_from([None, 2])),
    )
    return GenerateRequest(tokens, params, draw(st.sampled_from(CONSTRAINTS)), draw(st.sampled_from(["", "tenant"])))


async def answer(engine: Engine, request: GenerateRequest, cancel: bool) -> Any:
    async for event in engine.submit(request):
        if isinstance(event, Finished) and not cancel:
            return [
                (out.text, out.tokens, out.logprobs, out.finish_reason, out.matched_stop) for out in event.outputs
            ]
        if cancel:
            return None
    return None


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    batch=st.lists(st.tuples(requests(), st.booleans()), min_size=1, max_size=12),
    chunk=st.sampled_from([1, 7, 64, 512]),
    slots=st.sampled_from([90, 200, 2000]),
    running=st.sampled_from([1, 3, 64]),
    policy=st.sampled_from(["lpm", "fcfs"]),
    use_cache=st.booleans(),
)
def test_tokens_and_logprobs_do_not_depend_on_the_schedule(
    batch: list[tuple[GenerateRequest, bool]], chunk: int, slots: int, running: int, policy: str, use_cache: bool
) -> None:
    model, tokenizer = parts()
    with Engine.from_model(model, tokenizer, kv_tokens=2000, max_running=1, cache=False) as quiet:
        alone = [asyncio.run(answer(quiet, request, False)) for request, _ in batch]
    with Engine.from_model(
        model,
        tokenizer,
        kv_tokens=slots,
        max_step_tokens=chunk,
        max_running=running,
        policy=policy,
        cache=use_cache,
    ) as engine:

        async def together() -> list[Any]:
            jobs = (answer(engine, request, cancel and index % 4 == 3) for index, (request, cancel) in enumerate(batch))
            return await asyncio.gather(*jobs)

        for _ in range(2):
            got = asyncio.run(together())
            for index, (request, cancel) in enumerate(batch):
                if not (cancel and index % 4 == 3):
                    assert got[index] == alone[index], request
        assert engine.check_integrity() == []
        while engine.stats()["running"]:
            pass
        engine.flush_cache()
        assert engine.stats()["kv_free"] == slots
