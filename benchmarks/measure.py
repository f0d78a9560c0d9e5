"""Runs a workload once, on a new engine, and says what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import palmette as pt
from palmette.benchmarks.ablations import Variant
from palmette.benchmarks.recording import Record, Recorder, digest, texts
from palmette.benchmarks.subject import Subject
from palmette.benchmarks.workload import Manner, Round, Workload
from palmette.interpreter.program import Program
from palmette.runtime.simulator.optimal import optimum


@dataclass(frozen=True, slots=True)
class Result:
    """What one run came to. Times in seconds, all else counts, of tokens where not said otherwise.

    programs: those that ended; latencies: of each, sorted. prompt_tokens: of all requests; cached_tokens of them came
    from the cache; required_tokens: must be computed even by the best cache (see optimum). forward_calls: passes of
    the model; forward_tokens: computed by them. evicted_tokens: dropped from the cache. distinct_tokens: slots of a
    cache that would never have to; kv_tokens: of the cache as it was; kv_peak: of those, the most in use by requests
    at once. answers: equal for equal answers to the same requests. complete: not broken off.
    """

    workload: str
    variant: str
    complete: bool
    programs: int
    seconds: float
    latencies: tuple[float, ...]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    forced_tokens: int
    generated_tokens: int
    required_tokens: int
    distinct_tokens: int
    forward_calls: int
    forward_tokens: int
    preemptions: int
    evicted_tokens: int
    kv_tokens: int
    kv_peak: int
    answers: str

    @property
    def programs_per_second(self) -> float:
        return self.programs / self.seconds

    def latency(self, percent: float) -> float:
        """The latency that so many percent of the programs did not exceed (nearest rank); 0 where none has ended."""
        if not self.latencies:
            return 0.0
        rank = -(-len(self.latencies) * percent // 100)  # rounded up
        return self.latencies[max(0, int(rank) - 1)]

    @property
    def hit_rate(self) -> float:
        """Cached prompt tokens by prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def optimal_hit_rate(self) -> float:
        return 1 - self.required_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def hit_ratio(self) -> float:
        """Achieved by optimal; 1 where there was nothing to hit."""
        return self.hit_rate / self.optimal_hit_rate if self.optimal_hit_rate else 1.0


class Run(NamedTuple):
    result: Result
    records: list[Record]


@pt.function
def timed(s: pt.State, program: Program, arguments: Mapping[str, Any], ended: Callable[[float], None]) -> None:
    """Another program, and how long it took from its beginning to the end of all that it asked for."""
    began = time.perf_counter()
    program(s, **arguments)
    s.sync()
    ended(time.perf_counter() - began)


class Drive(NamedTuple):
    """Seconds of the whole and of each program that ended; complete: Ctrl-C did not come."""

    seconds: float
    latencies: list[float]
    complete: bool


def drive(
    workload: Workload,
    rounds: Sequence[Round],
    manner: Manner,
    *,
    parallel: int,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> Drive:
    """The workload's programs on a backend, greedy. See `measure`."""
    latencies: list[float] = []

    def ended(seconds: float) -> None:
        latencies.append(seconds)
        progress()

    shared = {"manner": manner} if workload.forks or workload.constrained else {}
    complete = False
    began = time.perf_counter()
    try:
        for items in rounds:
            arguments = [
                {"program": workload.program, "arguments": {**item, **shared}, "ended": ended} for item in items
            ]
            timed.run_batch(arguments, backend=manner.backend, num_threads=parallel, temperature=0, seed=seed)
        complete = True
    except KeyboardInterrupt:
        pass
    return Drive(time.perf_counter() - began, latencies, complete)


def measure(
    workload: Workload,
    rounds: Sequence[Round],
    subject: Subject,
    variant: Variant,
    *,
    settings: Mapping[str, Any],
    parallel: int = 64,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
    lengths: dict[object, int] | None = None,
) -> Run:
    """One run. settings: of the engine, see EngineSettings; the variant's count before them. parallel: programs in
    progress at once. progress: called at each program's end. lengths: of constrained texts, filled in by a run under
    constraints for one without.

    Ctrl-C ends the run; the result is then that of the part which is done, and not `complete`. The clock runs while
    programs do.
    """
    engine = pt.Engine.from_model(subject.model, subject.tokenizer, **{"seed": seed, **settings, **variant.settings})
    with engine:
        recorder = Recorder(engine)
        how = Manner(recorder, variant.sequential, variant.free, {} if lengths is None else lengths)
        seconds, latencies, complete = drive(workload, rounds, how, parallel=parallel, seed=seed, progress=progress)
        stats = engine.stats()
    records = recorder.records
    best = optimum(texts(records))
    usages = [record.usage for record in records]
    result = Result(
        workload=workload.name,
        variant=variant.name,
        complete=complete,
        programs=len(latencies),
        seconds=seconds,
        latencies=tuple(sorted(latencies)),
        requests=len(records),
        prompt_tokens=best.prompt,
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        forced_tokens=sum(usage.forced_tokens for usage in usages),
        generated_tokens=sum(usage.completion_tokens for usage in usages),
        required_tokens=best.required,
        distinct_tokens=best.distinct,
        forward_calls=stats["steps"],
        forward_tokens=stats["computed_tokens"],
        preemptions=stats["preemptions"],
        evicted_tokens=stats["cache"]["evicted_tokens"],
        kv_tokens=stats["kv_tokens"],
        kv_peak=stats["kv_peak"],
        answers=digest(records),
    )
    return Run(result, records)
