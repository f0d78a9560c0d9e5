"""Which request computes how many tokens in a step, and who is let in.

Admission never over-commits: a job is let in only if the most slots that it and all running jobs may still ask for
are free or can be evicted. A job whose prompt begins like that of a running job still in prefill waits until the
common part is in the tree, so that it is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from palmette.radix_cache.cache import RadixCache
from palmette.runtime.request import Job

POLICIES = ("lpm", "fcfs")

# A job that others were let in before this many times goes first, whatever the policy says.
_PATIENCE = 32
# How many waiting jobs a step looks at.
_WINDOW = 256


class Share(NamedTuple):
    """A job and the number of its next tokens that this step computes."""

    job: Job
    n: int


class Scheduler:
    """Holds waiting and running jobs. `policy`: "lpm" lets in the longest cached prefix first, "fcfs" the first come.

    max_running: jobs in progress. max_step_tokens: tokens that one step computes, over all jobs.
    """

    def __init__(self, cache: RadixCache, *, max_running: int, max_step_tokens: int, policy: str = "lpm") -> None:
        self.cache = cache
        self.max_running = max_running
        self.max_step_tokens = max_step_tokens
        self.policy = policy
        self.waiting: list[Job] = []
        self.running: list[Job] = []

    def plan(self) -> list[Share]:
        """Decodes first, then prefill chunks of running jobs, then new jobs, within the token budget."""
        budget = self.max_step_tokens
        decodes = [job for job in self.running if not job.prefilling]
        prefills = [job for job in self.running if job.prefilling]
        # Prefills and newcomers keep a quarter of the budget however many jobs decode, so that none of them starves.
        kept = max(1, budget // 4) if budget > 1 and (prefills or self.waiting) else 0
        shares = _spread(decodes, budget - kept)
        budget -= sum(share.n for share in shares)
        for job in prefills:
            n = min(job.remaining, budget)
            if n > 0:
                shares.append(Share(job, n))
                budget -= n
        for job in self._candidates():
            if budget <= 0 or len(self.running) >= self.max_running:
                break
            if self._waits_for_sibling(job):
                continue
            if not self._admit(job):
                break
            n = min(job.remaining, budget)
            shares.append(Share(job, n))
            budget -= n
        # What they did not need goes to decodes after all.
        shares += _spread([job for job in decodes if not any(share.job is job for share in shares)], budget)
        # Whoever was served goes behind those that were not.
        served = {share.job.id for share in shares}
        self.running.sort(key=lambda job: job.id in served)
        for share in shares:
            self._give_slots(share)
        return shares

    def finish(self, job: Job) -> None:
        """Take a job out: what it computed goes into the tree, everything else back to the pool."""
        if job in self.running:
            self.running.remove(job)
        elif job in self.waiting:
            self.waiting.remove(job)
        if job.lease is not None:
            job.lease.release()
            job.lease = None

    def _admit(self, job: Job) -> bool:
        """Let the job in, with what the tree has of its tokens, if all that it may ask for is sure to be had."""
        promised = sum(other.owed for other in self.running)
        room = self.cache.pool.free + self.cache.evictable - promised
        # Looked up without a lease first: a job that waits must not count as a use at every step.
        if job.peak - self.cache.peek(job.shareable, job.namespace) > room:
            return False
        lease = self.cache.match(job.shareable, job.namespace)
        if job.peak - lease.length > self.cache.pool.free + self.cache.evictable - promised:
            lease.release()
            return False
        job.lease = lease
        job.slots[: lease.length] = lease.slots
        job.computed = lease.length
        job.cached = min(lease.length, job.prompt_length)
        for other in self.waiting:
            if other is job:
                break
            other.passed_over += 1
        self.waiting.remove(job)
        self.running.append(job)
        return True

    def _candidates(self) -> Sequence[Job]:
        """Waiting jobs in the order in which they may be let in."""
        window = self.waiting[:_WINDOW]
        if self.policy == "fcfs" or len(window) < 2 or len(self.running) >= self.max_running:
            return window
        late = [job for job in window if job.passed_over >= _PATIENCE]
        rest = [job for job in window if job.passed_over < _PATIENCE]
        rest.sort(key=lambda job: -self.cache.peek(job.shareable, job.namespace))
        return late + rest

    def _waits_for_sibling(self, job: Job) -> bool:
        """Whether a running job is computing tokens that this one could take from the tree."""
        cached = -1
        for other in self.running:
            if not other.prefilling or other.namespace != job.namespace or not self.cache.enabled:
                continue
            shared = common_prefix(job.shareable, other.prompt)
            if cached < 0:
                cached = self.cache.peek(job.shareable, job.namespace)
            if shared > max(cached, other.computed):
                return True
        return False

    def _give_slots(self, share: Share) -> None:
        start = share.job.computed
        share.job.slots[start : start + share.n] = self.cache.reserve(share.n)


def _spread(jobs: Sequence[Job], budget: int) -> list[Share]:
    """One token each while the budget lasts, then whatever the jobs have more (forced tokens), first come first."""
    served = list(jobs[: max(0, budget)])
    spare = budget - len(served)
    shares = []
    for job in served:
        n = 1 + min(job.remaining - 1, spare)
        spare -= n - 1
        shares.append(Share(job, n))
    return shares


def common_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """Length of the longest common prefix of two int arrays."""
    size = min(len(left), len(right))
    differs = np.flatnonzero(left[:size] != right[:size])
    return int(differs[0]) if len(differs) else size
