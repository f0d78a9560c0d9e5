"""The jobs that wait: in which order they may be let in, whose turn was put off too often, who waits for a sibling."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from palmette.radix_cache.arrays import common_prefix
from palmette.radix_cache.cache import Found, RadixCache
from palmette.runtime.job import Job
from palmette.runtime.policies import Policy

# Where the policy reorders, a job goes first once so many that came later were let in before it: as many as waited when
# it came, who would have been before it anyway in a line, and this many more.
PATIENCE = 32
# Where the order depends on the tree: how many jobs are put in order, and of how many it is looked up anew what the
# tree has, when that changed.
_WINDOW = 1024
_LOOKUPS = 64


class Candidate(NamedTuple):
    """A job that may be let in. late: it was passed over so often that nobody may go before it any more."""

    job: Job
    late: bool


class Line:
    """Waiting jobs, in `jobs` by order of arrival.

    dedupe: whether a job waits for a running one that computes what both begin with.
    """

    def __init__(self, cache: RadixCache, policy: Policy, *, dedupe: bool) -> None:
        self.jobs: list[Job] = []
        self._cache = cache
        self._policy = policy
        self._dedupe = dedupe and cache.enabled
        # The numbers of those let in that the others do not know of yet, and how many may be before one is overdue.
        self._let_in: list[int] = []
        self._slack = math.inf
        # By job: what the tree had, at which of its versions; and the sibling it waits for, up to which length.
        self._looks: dict[int, tuple[int, Found]] = {}
        self._siblings: dict[int, tuple[Job, int]] = {}

    def add(self, job: Job) -> None:
        """A job that arrives, or that was preempted and keeps its place."""
        if job.patience is None:
            job.patience = PATIENCE + len(self.jobs)
        if self._let_in:
            self._settle()
        if not job.overdue:
            self._slack = min(self._slack, job.patience - job.passed_over)
        insort(self.jobs, job, key=lambda other: other.number)

    def remove(self, job: Job) -> None:
        job.passed_over += len(self._let_in) - bisect_right(self._let_in, job.number)
        self.jobs.remove(job)
        self._looks.pop(job.id, None)
        self._siblings.pop(job.id, None)

    def order(self) -> Iterator[Candidate]:
        """The jobs in the order in which they may be let in, as it is now."""
        if self._let_in:
            self._settle()
        window = self.jobs[: _WINDOW if self._policy.looks else None]
        if self._policy.looks:
            # The stalest answers are brought up to date, so that in a long line everybody's turn comes.
            for job in sorted(window, key=self._last_look)[:_LOOKUPS]:
                self.look(job)
        late = [job for job in window if job.overdue] if self._policy.ages else []
        rest = [job for job in window if not job.overdue] if late else window
        for job in late:
            yield Candidate(job, True)
        for job in self._policy.order(rest, self._glance):
            yield Candidate(job, False)

    def pass_over(self, job: Job) -> bool:
        """Count that the job was let in before those that came earlier; whether one of them is overdue now."""
        insort(self._let_in, job.number)
        return len(self._let_in) >= self._slack and self._settle()

    def _settle(self) -> bool:
        """Note with each job how many went before it since the last time. That is put off for as long as nobody can
        have become overdue, since hundreds may be let in while thousands wait. Whether somebody has."""
        let_in, self._let_in, self._slack = self._let_in, [], math.inf
        if not self._policy.ages:
            return False
        overdue = False
        for job in self.jobs:
            was = job.overdue
            job.passed_over += len(let_in) - bisect_right(let_in, job.number)
            overdue = overdue or job.overdue > was
            if not job.overdue and job.patience is not None:
                self._slack = min(self._slack, job.patience - job.passed_over)
        return overdue

    def look(self, job: Job) -> Found:
        """What the tree has of a job's tokens."""
        version = self._cache.version
        known = self._looks.get(job.id)
        if known is None or known[0] != version:
            known = self._looks[job.id] = version, self._cache.find(job.shareable, job.namespace)
        return known[1]

    def waits_for_sibling(self, job: Job, running: Sequence[Job]) -> bool:
        """Whether a running job is computing tokens that this one could take from the tree."""
        if not self._dedupe:
            return False
        known = self._siblings.get(job.id)
        if known is not None and _computes(*known):
            return True
        wanted, cached = job.shareable, -1
        for other in running:
            if not other.prefilling or other.namespace != job.namespace:
                continue
            if cached < 0:
                cached = self.look(job).length
            # The next token that is missing tells most strangers from siblings.
            theirs = other.prompt
            if cached >= len(wanted) or cached >= len(theirs) or wanted[cached] != theirs[cached]:
                continue
            shared = common_prefix(wanted, theirs)
            if shared > max(cached, other.computed):
                self._siblings[job.id] = other, shared
                return True
        return False

    def _last_look(self, job: Job) -> int:
        return self._looks[job.id][0] if job.id in self._looks else -1

    def _glance(self, job: Job) -> Found:
        """What the tree had of a job's tokens when it was looked up last."""
        known = self._looks.get(job.id)
        return known[1] if known is not None else self._cache.find(job.shareable, job.namespace)


def _computes(sibling: Job, shared: int) -> bool:
    """Whether a sibling still runs, and is still to compute some of so many first tokens."""
    return sibling.lease is not None and sibling.prefilling and sibling.computed < shared
