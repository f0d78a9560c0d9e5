"""Many steps at once, where the scheduler has nothing to decide.

While every running job computes the one token that it drew last, nobody can be let in, no hold gives way and slots do
not run out, a step serves all running jobs, in the order in which they are, and leaves that order as it is. So the
steps up to the first end of a job differ in nothing but lengths, and are taken together. What the scheduler would have
logged is logged, step by step; the slots are the same ones, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from palmette.runtime.holds import IDLE_STEPS, Holds
from palmette.runtime.policies import FirstCome
from palmette.runtime.scheduler import Scheduler
from palmette.runtime.shares import Decision
from palmette.runtime.simulator.job import SimulatedJob


class _Holds(Holds):
    def gives_way_at(self, asks: Callable[[str], bool]) -> float:
        """The step in which `release_idle` will find something, if nobody asks anew."""
        since = (hold.since for family, hold in self._held.items() if not asks(family))
        return next(since, math.inf) + IDLE_STEPS


class LeapingScheduler(Scheduler):
    """The engine's scheduler, which decides nothing else here, of SimulatedJobs; and which can be told that steps
    passed in which it had nothing to decide."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._holds: _Holds = _Holds()
        # Most policies keep no account of what is made: then they need not hear of every token.
        self.charges = type(self.policy).served is not FirstCome.served

    @property
    def jobs(self) -> list[SimulatedJob]:
        """The running ones."""
        return cast(list[SimulatedJob], self.running)

    def steps_ahead(self) -> int:
        """How many steps can be taken together; 0 where the scheduler has to be asked."""
        jobs = self.jobs
        if not 0 < len(jobs) <= self.max_step_tokens or not self.shut:
            return 0
        least = self.room // len(jobs)
        for job in jobs:
            if not job.drawn or job.computed != job.length - 1:
                return 0
            left = job.draws - job.drawn
            if left < least:
                least = left
        return min(least, self._steps_held(least))

    def _steps_held(self, least: int) -> int:
        """For how many steps, of `least`, no hold gives way."""
        if self._blocked is None or not self._short or not len(self._holds):
            return least
        if len(self.running) == 1:
            return 0  # one will very soon
        asking = {job.family for job in (*self.running, *self.waiting)}
        until = self._holds.gives_way_at(asking.__contains__) - 1 - self._steps
        return int(max(0, min(least, until)))

    def take(self, steps: int, *, at_once: bool) -> None:
        """Take so many steps, of those that `steps_ahead` allowed. Those jobs that are done are left to the caller.
        at_once: whether slots may be reserved for all steps together."""
        jobs = self.jobs
        count = len(jobs)
        # As `plan` does in each step.
        self._steps += steps
        self._held_steps = 0
        if at_once:
            slots = self.cache.reserve(steps * count).reshape(steps, count).T
        else:
            slots = np.stack([self._reserve(jobs) for _ in range(steps)], 1)
        pool = self.cache.pool
        self.counters.kv_peak = max(self.counters.kv_peak, pool.size - pool.free - self.cache.evictable)
        for job, taken in zip(jobs, slots, strict=True):
            at = job.computed
            job.slots[at : at + steps] = taken
            if self.charges:
                self.policy.served(job, 0, steps)
            job.decode(steps)

    def _reserve(self, jobs: Sequence[SimulatedJob]) -> np.ndarray:
        """The slots of one step, as the scheduler would give and log them: int32 [jobs]."""
        slots = self.reserve(len(jobs))
        if self.log is not None:
            for job in jobs:
                self.log(Decision("compute", job.number, 1))
        return slots
