"""One engine in a simulation: the real scheduler and cache, and a cost model in the place of the model.

A step mirrors EngineCore.step: plan, compute, then each job of the plan in turn commits, draws and, where it is done,
ends. Computing is time that passes; what arrives meanwhile waits for the step's end, as in the engine's inbox. Where
nothing but holds keeps everybody out, it goes as in EngineLoop: programs have a little time to ask, then one gives way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias, cast

from palmette.errors import ContextLengthError
from palmette.radix_cache.arrays import Ints
from palmette.radix_cache.cache import RadixCache
from palmette.radix_cache.eviction import POLICIES as EVICTION
from palmette.radix_cache.slots import SlotPool
from palmette.runtime.settings import EngineSettings
from palmette.runtime.shares import Decision, Share
from palmette.runtime.simulator.cost import Charge, Cost
from palmette.runtime.simulator.job import SimulatedJob
from palmette.runtime.simulator.leap import LeapingScheduler
from palmette.runtime.simulator.trace import Arrival

SimulatedShare: TypeAlias = tuple[SimulatedJob, int]
"""What a Share of the scheduler's is here, since it was given no other jobs."""

# As an engine's (runtime/loop.py): how long it stands idle at most before a hold gives way.
GRACE_SECONDS = 0.02


@dataclass(slots=True)
class Totals:
    """What replicas have done; they only grow, but peak_kv_tokens, the most slots that jobs and holds had at a time.

    steps: computed; plans: those that the scheduler was asked for. busy_seconds: spent in steps. flops, bytes: of the
    cost model. dropped_holds: what was kept for programs and gave way to others. refused: requests that can never fit.
    """

    steps: int = 0
    plans: int = 0
    busy_seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    evicted_tokens: int = 0
    dropped_holds: int = 0
    refused: int = 0
    peak_kv_tokens: int = 0

    def add(self, other: Totals) -> None:
        """Count another replica in."""
        for name in self.__slots__:
            if name != "peak_kv_tokens":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.peak_kv_tokens = max(self.peak_kv_tokens, other.peak_kv_tokens)


@dataclass(slots=True)
class Step:
    """Steps in progress: one with its plan, or several that need none (shares is None). ends: when each ends."""

    shares: Sequence[SimulatedShare] | None
    ends: list[float]
    charge: Charge


class UncheckedPool(SlotPool):
    """The engine's slots, without the look at each one that comes back: it would take a sixth of a simulation, in which
    nothing reads what a slot holds."""

    def require(self, slots: Ints, state: int) -> Ints:
        return slots


class Replica:
    """An engine. kv_tokens: size of its KV cache. slots: as many of them as are kept account of, where it is known that
    more will never be in use. max_context: the model's. ended: told of each job that ends, and when. leaping: whether
    steps without decisions are taken together. log: the scheduler's."""

    def __init__(
        self,
        settings: EngineSettings,
        cost: Cost,
        *,
        kv_tokens: int,
        slots: int,
        max_context: int,
        ended: Callable[[SimulatedJob, float], None],
        leaping: bool = True,
        log: Callable[[Decision], None] | None = None,
    ) -> None:
        self.cost = cost
        self.kv_tokens = kv_tokens
        self.max_context = max_context
        self.ended = ended
        self.leaping = leaping
        self.totals = Totals()
        cache = RadixCache(
            UncheckedPool(slots),
            policy=EVICTION[settings.eviction](),
            enabled=bool(settings.cache),
            exact=settings.cache == "flat",
        )
        self.scheduler = LeapingScheduler(
            cache,
            max_running=settings.max_running,
            max_step_tokens=settings.max_step_tokens,
            policy=settings.policy,
            dedupe=settings.dedupe,
            hints=settings.hints,
            log=log,
        )
        # Whether slots for several steps may be asked for as one: nobody hears of each, and evicting bit by bit takes
        # the same leaves in the same order. (Not where a leaf's rank depends on its length, or equals are common.)
        self._at_once = log is None and settings.eviction in ("lru", "fifo")
        self._inbox: list[SimulatedJob] = []
        self._leaving: list[str] = []
        self._arrived = 0
        # When a hold gives way, where that is what everybody waits for.
        self.held_until: float | None = None
        self._step: Step | None = None

    @property
    def busy(self) -> bool:
        """Whether a step is in progress."""
        return self._step is not None

    def add(self, arrival: Arrival, index: int, now: float) -> None:
        """A request comes in. One that can never fit ends at once."""
        prompt = len(arrival.prompt)
        # As Intake: the last token that is drawn needs no slot.
        most = min(self.max_context - prompt, self.kv_tokens - prompt + 1)
        fits = prompt <= self.kv_tokens and prompt + (arrival.asked > 0) <= self.max_context
        job = SimulatedJob(arrival, index, self._arrived, min(arrival.asked, most) if fits else 0, now)
        if fits:
            self._arrived += 1
            self._inbox.append(job)
        else:
            self._refuse(job, now)

    def leave(self, family: str) -> None:
        """A program sends no more requests."""
        self._leaving.append(family)

    def begin(self, now: float) -> float | None:
        """Take in what has arrived and begin the next steps: when they end; None where there is nothing to do, or, with
        `held_until`, nothing before then."""
        for family in self._leaving:
            self.scheduler.leave(family)
        self._leaving.clear()
        for job in self._inbox:
            self.scheduler.add(job)
        self._inbox.clear()
        steps = self.scheduler.steps_ahead() if self.leaping else 0
        if steps:
            starts = [job.computed for job in self.scheduler.jobs]
            return self._go(None, self.cost.decodes(starts, steps), now)
        shares = self._plan(now)
        if not shares:
            return None
        starts, counts, draws = [], [], 0
        for job, n in shares:
            start = job.computed
            starts.append(start)
            counts.append(n)
            draws += n == job.length - start and job.asked > 0
        return self._go(shares, self.cost.step(starts, counts, draws), now)

    def interrupt(self, now: float) -> float | None:
        """Something arrived during steps that were begun together: the end of the one in progress, after which the
        others are to be planned anew. None where that changes nothing."""
        step = self._step
        assert step is not None
        done = bisect_left(step.ends, now) + 1
        if done >= len(step.ends):
            return None
        del step.ends[done:]
        return step.ends[-1]

    def end(self) -> None:
        """The steps that were begun are over: their jobs go on, and end where they are done."""
        step = self._step
        assert step is not None
        self._step = None
        if step.shares is None:
            self._end_together(step)
        else:
            self._end_planned(step, step.shares)

    def close(self) -> Totals:
        """The totals, with what scheduler and cache counted."""
        counters = self.scheduler.counters
        self.totals.preemptions = counters.preemptions
        self.totals.recomputed_tokens = counters.recomputed_tokens
        self.totals.dropped_holds = counters.dropped_holds
        self.totals.peak_kv_tokens = counters.kv_peak
        self.totals.evicted_tokens = self.scheduler.cache.stats.evicted_tokens
        return self.totals

    def _plan(self, now: float) -> list[SimulatedShare]:
        """The scheduler's plan, as EngineLoop comes to it. Jobs that keep it empty, since they never get their slots,
        are refused."""
        scheduler, patient = self.scheduler, self.held_until is None or now < self.held_until
        while scheduler.running or scheduler.waiting:
            self.totals.plans += 1
            shares = scheduler.plan()
            if shares:
                self.held_until = None
                return cast(list[SimulatedShare], shares)
            if scheduler.held_up and patient:
                self.held_until = self.held_until or now + GRACE_SECONDS
                return []
            self.held_until, patient = None, True
            if scheduler.held_up:
                scheduler.press()
                continue
            stuck = scheduler.give_up()
            if stuck is None:
                raise RuntimeError(f"the scheduler lets none of {len(scheduler.waiting)} waiting jobs in")
            self._refuse(cast(SimulatedJob, stuck), now)
            scheduler.finish(stuck)
        self.held_until = None
        return []

    def _go(self, shares: list[SimulatedShare] | None, charge: Charge, now: float) -> float:
        # Added up one by one, so that steps taken together end at the very times of those taken singly.
        self._step = Step(shares, list(accumulate(charge.seconds, initial=now))[1:], charge)
        return self._step.ends[-1]

    def _end_together(self, step: Step) -> None:
        jobs, steps = self.scheduler.jobs.copy(), len(step.ends)
        self.scheduler.take(steps, at_once=self._at_once)
        self._count(step, steps * len(jobs))
        for job in jobs:
            if job.done:
                self._end(job, step.ends[-1])

    def _end_planned(self, step: Step, shares: Sequence[SimulatedShare]) -> None:
        now, charges = step.ends[-1], self.scheduler.charges
        self._count(step, sum([n for _, n in shares]))
        for share in shares:
            job = share[0]
            if job.drawn and job.computed == job.length - 1:
                # What commit and go_on come to, for the many that do nothing but decode.
                if charges:
                    self.scheduler.policy.served(job, 0, 1)
                job.decode(1)
            else:
                self.scheduler.commit(Share(*share))
                if job.remaining == 0:
                    job.first_token = job.first_token or now
                job.go_on(None)
            if job.done:
                self._end(job, now)

    def _count(self, step: Step, tokens: int) -> None:
        totals, steps = self.totals, len(step.ends)
        totals.steps += steps
        totals.computed_tokens += tokens
        totals.busy_seconds += sum(step.charge.seconds[:steps])
        totals.flops += sum(step.charge.flops[:steps])
        totals.bytes += sum(step.charge.bytes[:steps])

    def _end(self, job: SimulatedJob, now: float) -> None:
        self.scheduler.finish(job)
        self.ended(job, now)

    def _refuse(self, job: SimulatedJob, now: float) -> None:
        self.totals.refused += 1
        job.fail(ContextLengthError(f"the request may need {job.peak} KV slots"))
        self.ended(job, now)
