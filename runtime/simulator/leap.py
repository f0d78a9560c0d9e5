"""Many steps at once, where the scheduler has nothing to decide.

While every running job computes the one token that it drew last, nobody can be let in, and slots do not run out, a
step serves all running jobs, in the order in which they are, and leaves that order as it is. So the steps up to the
first end of a job differ in nothing but lengths, and are taken together. What the scheduler would have logged is
logged, step by step; the slots are the same ones, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palmette.runtime.scheduler import Scheduler
from palmette.runtime.shares import Decision
from palmette.runtime.simulator.job import SimulatedJob


def steps_ahead(scheduler: Scheduler, jobs: Sequence[SimulatedJob]) -> int:
    """How many steps can be taken together; 0 where the scheduler has to be asked. `jobs` are the running ones."""
    if not 0 < len(jobs) <= scheduler.max_step_tokens or not scheduler.shut:
        return 0
    if not all([job.decoding for job in jobs]):
        return 0
    return min(min([job.draws_left for job in jobs]), scheduler.room // len(jobs))


def take(scheduler: Scheduler, jobs: Sequence[SimulatedJob], steps: int, *, at_once: bool) -> None:
    """Take so many steps, of those that `steps_ahead` allowed. Those jobs that are done are left to the caller.
    at_once: whether slots may be reserved for all steps together."""
    count = len(jobs)
    if at_once:
        slots = scheduler.cache.reserve(steps * count).reshape(steps, count).T
    else:
        slots = np.stack([_reserve(scheduler, jobs) for _ in range(steps)], 1)
    pool = scheduler.cache.pool
    in_use = pool.size - pool.free - scheduler.cache.evictable
    scheduler.counters.kv_peak = max(scheduler.counters.kv_peak, in_use)
    served = scheduler.policy.served
    for job, taken in zip(jobs, slots, strict=True):
        job.slots[job.computed : job.computed + steps] = taken
        served(job, 0, steps)
        job.decode(steps)


def _reserve(scheduler: Scheduler, jobs: Sequence[SimulatedJob]) -> np.ndarray:
    """The slots of one step, as the scheduler would give and log them: int32 [jobs]."""
    slots = scheduler.reserve(len(jobs))
    if scheduler.log is not None:
        for job in jobs:
            scheduler.log(Decision("compute", job.number, 1))
    return slots
