"""What a run says: throughput, latencies, hit rate, use of the hardware, fairness."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from palmette.runtime.simulator.cost import CostModel
from palmette.runtime.simulator.optimal import Optimum, Text, optimum
from palmette.runtime.simulator.simulation import Run, Served
from palmette.runtime.simulator.trace import Arrival


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of some seconds: mean, and the values that 50, 95 and 99 of 100 do not exceed."""

    mean: float
    p50: float
    p95: float
    p99: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Quantiles:
        """All 0 for none."""
        values = np.asarray(seconds) if len(seconds) else np.zeros(1)
        return Quantiles(float(values.mean()), *map(float, np.percentile(values, (50, 95, 99))))


@dataclass(frozen=True, slots=True)
class TenantReport:
    """What a tenant got. contended_tokens: of its requests that ended while every tenant still had some to come: prompt
    tokens that were not cached, and output."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    contended_tokens: int
    first_token: Quantiles
    latency: Quantiles


@dataclass(frozen=True, slots=True)
class Report:
    """A run in figures.

    seconds: from the first arrival to the last end. Rates are per second of these, over all replicas. hit_rate: cached
    prompt tokens / prompt tokens; optimal_hit_rate: the same if everything that was ever asked had stayed (optimal.py);
    hit_share: the first by the second. first_token, latency, per_token: seconds from arrival to the first token, to the
    end, and from one token to the next. dropped_holds: how often what was kept for a program gave way to others.
    compute_share, bandwidth_share: part of the hardware's peaks that was reached over `seconds`; busy_share: part of
    these in which a step ran. fairness: Jain's index of the tenants' contended tokens, 1.0 where all got the same,
    1 / tenants where one got all.
    """

    requests: int
    refused: int
    replicas: int
    seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    hit_rate: float
    optimal_hit_rate: float
    hit_share: float
    steps: int
    preemptions: int
    evicted_tokens: int
    dropped_holds: int
    peak_kv_tokens: int
    first_token: Quantiles
    latency: Quantiles
    per_token: Quantiles
    busy_share: float
    compute_share: float
    bandwidth_share: float
    fairness: float
    tenants: dict[str, TenantReport]


def best_possible(trace: Sequence[Arrival]) -> Optimum:
    """The optimum of a trace: the same for every policy, so it is counted once."""
    return optimum(
        Text(
            arrival.prompt if arrival.reply is None else np.concatenate([arrival.prompt, arrival.reply]),
            len(arrival.prompt),
            arrival.namespace,
        )
        for arrival in trace
    )


def report(run: Run, best: Optimum, cost: CostModel | None = None) -> Report:
    """The figures of a run, of whose trace `best` is the optimum. cost: what the hardware could do, for its shares."""
    good = [one for one in run.served if not one.problem]
    totals = run.totals
    start = min((one.arrived for one in run.served), default=0.0)
    seconds = max((one.ended for one in run.served), default=0.0) - start
    each = (lambda amount: amount / seconds) if seconds > 0 else (lambda amount: 0.0)
    prompt, cached = sum(one.prompt for one in good), sum(one.cached for one in good)
    output = sum(one.output for one in good)
    hit_rate = cached / prompt if prompt else 0.0
    tenants = _tenants(good)
    return Report(
        requests=len(run.served),
        refused=totals.refused,
        replicas=run.replicas,
        seconds=seconds,
        requests_per_second=each(len(good)),
        output_tokens_per_second=each(output),
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        computed_tokens=totals.computed_tokens,
        recomputed_tokens=totals.recomputed_tokens,
        hit_rate=hit_rate,
        optimal_hit_rate=best.hit_rate,
        hit_share=hit_rate / best.hit_rate if best.hit_rate else 1.0,
        steps=totals.steps,
        preemptions=totals.preemptions,
        evicted_tokens=totals.evicted_tokens,
        dropped_holds=totals.dropped_holds,
        peak_kv_tokens=totals.peak_kv_tokens,
        first_token=Quantiles.of([one.first_token - one.arrived for one in good]),
        latency=Quantiles.of([one.ended - one.arrived for one in good]),
        per_token=Quantiles.of([(one.ended - one.first_token) / (one.output - 1) for one in good if one.output > 1]),
        # Two ways to add up the same times may differ in their last bits.
        busy_share=min(1.0, each(totals.busy_seconds) / run.replicas),
        compute_share=each(totals.flops) / (cost.peak_flops * run.replicas) if cost else 0.0,
        bandwidth_share=each(totals.bytes) / (cost.peak_bytes * run.replicas) if cost else 0.0,
        fairness=_jain([tenant.contended_tokens for tenant in tenants.values()]),
        tenants=tenants,
    )


def _tenants(served: Sequence[Served]) -> dict[str, TenantReport]:
    of: dict[str, list[Served]] = defaultdict(list)
    for one in served:
        of[one.tenant].append(one)
    contended = min((max(one.ended for one in theirs) for theirs in of.values()), default=0.0)
    return {
        name: TenantReport(
            requests=len(theirs),
            prompt_tokens=sum(one.prompt for one in theirs),
            cached_tokens=sum(one.cached for one in theirs),
            output_tokens=sum(one.output for one in theirs),
            contended_tokens=sum(one.prompt - one.cached + one.output for one in theirs if one.ended <= contended),
            first_token=Quantiles.of([one.first_token - one.arrived for one in theirs]),
            latency=Quantiles.of([one.ended - one.arrived for one in theirs]),
        )
        for name, theirs in sorted(of.items())
    }


def _jain(amounts: Sequence[float]) -> float:
    """Jain, Chiu and Hawe 1984, "A quantitative measure of fairness": (sum)² / (n * sum of squares)."""
    squares = sum(amount**2 for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else 1.0
