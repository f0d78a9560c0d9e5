"""How many KV slots the running jobs will come to need: the greatest sum as they grow and end.

The rule is that of LightLLM (Gong et al. 2025, "Past-Future Scheduler for LLM Serving under SLA Guarantees"): how much
longer a job will run is drawn from the lengths of outputs that ended lately, those longer than its own so far; then the
peak over the ends of all jobs is exact arithmetic, and no ratio has to be tuned. The arithmetic takes each job to make
a token in every step from now on: one whose prompt is still computed over several steps begins later, and may be at its
longest together with another. Whatever turns out too low, that or a predicted length, is made good by preemption. Draws
are a function of the job's number, so that the same requests give the same decisions.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from palmette.radix_cache.cache import RadixCache
from palmette.runtime.job import Job
from palmette.runtime.sampler import uniform

# Lengths of outputs that are remembered, and how many it takes before they are believed.
_REMEMBERED = 512
_ENOUGH = 32


class Need(NamedTuple):
    """What a job will ask for. now: slots of tokens that it knows already; later: of those that it is going to make;
    freed: slots that it holds alone, and gives back at its end."""

    now: int
    later: int
    freed: int


def greatest_growth(needs: Sequence[Need]) -> int:
    """How many more slots than now will be held at the worst moment, if each job makes one token a step.

        just before the job with the k-th least to make ends, all that outlast it have made as much as it:

            sum of now  +  (jobs that still run) * later_k  -  what the k - 1 that ended before gave back

    The tokens of `now` are taken as held to the end of all: siblings may read them from the tree.
    """
    if not needs:
        return 0
    table = np.array(sorted(needs, key=lambda need: need.later), np.int64)
    now, later, freed = table.T
    alive = np.arange(len(needs), 0, -1)
    # At its end a job gives back what it made, too: that is not counted for those that run on.
    gone = np.concatenate([[0], np.cumsum(freed)[:-1]])
    return int(now.sum() + max(0, (alive * later - gone).max()))


class Lengths:
    """Output lengths that were seen, and what they say of jobs that run."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._sorted: list[int] = []

    def record(self, length: int) -> None:
        """An output ended after so many tokens."""
        self._order.append(length)
        insort(self._sorted, length)
        if len(self._order) > _REMEMBERED:
            del self._sorted[bisect_right(self._sorted, self._order.popleft()) - 1]

    def later(self, job: Job) -> int:
        """How many tokens a job is going to make that it does not know yet: what is asked for, or fewer where outputs
        as long as its own have ended earlier. A job that was preempted is not bet on again."""
        most = max(0, job.peak - job.length)
        made = job.length - job.prompt_length
        if most == 0 or not job.generates or job.preemptions or len(self._sorted) < _ENOUGH:
            return most
        first = bisect_right(self._sorted, made)
        if first == len(self._sorted):
            return most
        drawn = self._sorted[first + int(uniform(job.number, 0) * (len(self._sorted) - first))]
        return min(most, drawn - made)


class Outlook:
    """Whether slots are going to suffice. `lengths`: of the outputs that ended."""

    def __init__(self, cache: RadixCache) -> None:
        self.lengths = Lengths()
        self._cache = cache

    def fits(self, job: Job, cached: int, running: Sequence[Job], owed: int, room: int) -> bool:
        """Whether `room` slots do for a job, of which `cached` tokens are there, beside those that run and are `owed`
        so many."""
        if job.peak - cached + owed <= room:
            return True
        needs = [Need(job.length - cached, self.lengths.later(job), 0)]
        needs += (Need(other.remaining, self.lengths.later(other), self.held_by(other)) for other in running)
        return greatest_growth(needs) <= room

    def owed(self, running: Sequence[Job]) -> int:
        """The most slots that jobs can take beyond those that they have."""
        return sum([job.peak - job.computed for job in running])

    def held_by(self, job: Job) -> int:
        """Slots that nobody but the job holds."""
        if job.lease is None:
            return job.computed
        return job.computed - job.lease.length + self._cache.exclusive(job.lease)
