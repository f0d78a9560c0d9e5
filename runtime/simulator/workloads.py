"""Synthetic traces: what real ones have of structure, at any size, the same for the same seed.

Lengths are ranges (low, high) of tokens, drawn uniformly, both ends included. Open arrivals are a Poisson process of
`rate` requests a second; with rate=inf all arrive at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from palmette.errors import ArgumentError
from palmette.runtime.simulator.trace import Arrival

VOCABULARY = 32_000


class Range(NamedTuple):
    """Token counts from low to high."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high + 1))


_PREFIX, _SUFFIX, _OUTPUT = Range(1536, 1536), Range(464, 464), Range(100, 200)
_PROMPT, _SYSTEM, _USER = Range(1000, 3000), Range(500, 500), Range(50, 300)


def shared_prefix(
    requests: int,
    *,
    rate: float,
    groups: int = 64,
    prefix: Range = _PREFIX,
    suffix: Range = _SUFFIX,
    output: Range = _OUTPUT,
    max_tokens: int | None = None,
    zipf: float = 0.0,
    tenants: int = 1,
    seed: int = 0,
) -> list[Arrival]:
    """Requests in groups, each with a prompt prefix of its own (a system prompt, a document) and then something new.

    zipf: how unequal the groups are: group k is asked with weight 1 / k ** zipf; 0 is uniform. tenants: groups belong
    to so many in turn.
    """
    rng = np.random.default_rng(seed)
    heads = [_tokens(rng, prefix) for _ in range(groups)]
    weights = 1.0 / np.arange(1, groups + 1) ** zipf
    chosen = rng.choice(groups, size=requests, p=weights / weights.sum())
    return [
        Arrival(
            time,
            np.concatenate([heads[group], _tokens(rng, suffix)]),
            output.draw(rng),
            tenant=_tenant(group, tenants),
            max_tokens=max_tokens,
        )
        for time, group in zip(_times(rng, requests, rate), chosen.tolist(), strict=True)
    ]


def independent(
    requests: int,
    *,
    rate: float,
    prompt: Range = _PROMPT,
    output: Range = _OUTPUT,
    max_tokens: int | None = None,
    tenants: int = 1,
    seed: int = 0,
) -> list[Arrival]:
    """Requests that share nothing."""
    rng = np.random.default_rng(seed)
    return [
        Arrival(time, _tokens(rng, prompt), output.draw(rng), tenant=_tenant(index, tenants), max_tokens=max_tokens)
        for index, time in enumerate(_times(rng, requests, rate))
    ]


def chat(
    requests: int,
    *,
    rate: float,
    turns: int = 4,
    system: Range = _SYSTEM,
    user: Range = _USER,
    output: Range = _OUTPUT,
    max_tokens: int | None = None,
    think: float = 10.0,
    tenants: int = 1,
    seed: int = 0,
) -> list[Arrival]:
    """Conversations of `turns` requests behind one system prompt. `rate` of them begin in a second; the next turn's
    prompt is all that was said, and comes when the user has read the answer: after an exponential time of mean `think`
    seconds."""
    rng = np.random.default_rng(seed)
    head = _tokens(rng, system)
    trace: list[Arrival] = []
    for number, start in enumerate(_times(rng, math.ceil(requests / turns), rate)):
        said = head
        for turn in range(min(turns, requests - len(trace))):
            said = np.concatenate([said, _tokens(rng, user)])
            reply = _tokens(rng, output)
            trace.append(
                Arrival(
                    float(rng.exponential(think)) if turn else start,
                    said,
                    len(reply),
                    tenant=_tenant(number, tenants),
                    family=f"conversation {number}",
                    max_tokens=max_tokens,
                    reply=reply,
                    after=len(trace) - 1 if turn else None,
                )
            )
            said = np.concatenate([said, reply])
    return trace


WORKLOADS: dict[str, Callable[..., list[Arrival]]] = {
    "shared-prefix": shared_prefix,
    "chat": chat,
    "independent": independent,
}


def _tokens(rng: np.random.Generator, length: Range) -> np.ndarray:
    return rng.integers(0, VOCABULARY, length.draw(rng), dtype=np.int32)


def _times(rng: np.random.Generator, count: int, rate: float) -> list[float]:
    if not rate > 0:
        raise ArgumentError(f"rate={rate} lets nothing arrive", hint="requests a second, above 0; inf: all at once")
    times: list[float] = np.cumsum(rng.exponential(1.0 / rate, count)).tolist()
    return times


def _tenant(number: int, tenants: int) -> str:
    return "" if tenants == 1 else f"tenant {number % tenants}"
