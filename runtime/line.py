"""The jobs that wait: in which order they may be let in, whose turn was put off too often, who waits for a sibling."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from palmette.radix_cache.arrays import common_prefix
from palmette.radix_cache.cache import Found, RadixCache
from palmette.runtime.job import Job
from palmette.runtime.policies import Policy

# Where the policy reorders, a job goes first once so many that came later were let in before it: as many as waited when
# it came, who would have been before it anyway in a line, and this many more.
PATIENCE = 32
# Where the order depends on the tree: of how many jobs it is looked up anew at a time what the tree has.
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
        # The ids of those that were passed over as often as they put up with.
        self._late: set[int] = set()
        self._ids: set[int] = set()
        # What the tree had of a job, at which of its versions, the stalest first.
        self._looks: dict[Job, tuple[int, Found]] = {}
        # By job's id the sibling that it waits for, up to which length.
        self._siblings: dict[int, tuple[Job, int]] = {}

    def add(self, job: Job) -> None:
        """A job that arrives, or that was preempted and keeps its place."""
        if job.patience is None:
            job.patience = PATIENCE + len(self.jobs)
        if self._policy.ages and job.overdue:
            self._late.add(job.id)
        else:
            self._slack = min(self._slack, job.patience - job.passed_over + len(self._let_in))
            # Those that were let in before it came back are none of its business when they are counted.
            job.passed_over -= self._let_in_after(job)
        insort(self.jobs, job, key=_number)
        self._ids.add(job.id)

    def remove(self, job: Job) -> None:
        if job.id in self._late:
            self._late.remove(job.id)
        else:
            job.passed_over += self._let_in_after(job)
        at = bisect_left(self.jobs, job.number, key=_number)
        # Both jobs of a healed request have its number.
        while self.jobs[at] is not job:
            at += 1
        del self.jobs[at]
        self._ids.remove(job.id)
        self._looks.pop(job, None)
        self._siblings.pop(job.id, None)

    def order(self) -> Iterator[Candidate]:
        """The jobs in the order in which they may be let in, as it is now."""
        if len(self._let_in) >= self._slack:
            self._settle()
        window = self.jobs[: self._policy.looks or None]
        if self._policy.looks:
            # The stalest answers are brought up to date, so that in a long line everybody's turn comes.
            for job in list(islice(self._looks, _LOOKUPS)):
                self.look(job)
        late = [job for job in window if job.id in self._late] if self._late else []
        rest = [job for job in window if job.id not in self._late] if late else window
        for job in late:
            yield Candidate(job, True)
        for job in self._policy.order(rest, self._glance):
            yield Candidate(job, False)

    def pass_over(self, job: Job) -> bool:
        """Count that the job was let in before those that came earlier; whether one of them is overdue now."""
        if not self._policy.ages:
            return False
        insort(self._let_in, job.number)
        return len(self._let_in) >= self._slack and self._settle()

    def _settle(self) -> bool:
        """Note with each job how many went before it since the last time. That is put off for as long as nobody can
        have become overdue, since hundreds may be let in while thousands wait. Whether somebody has."""
        slack, before = math.inf, len(self._late)
        let_in, total, at = self._let_in, len(self._let_in), 0
        for job in self.jobs:
            # Both lists are in order of arrival.
            while at < total and let_in[at] <= job.number:
                at += 1
            if job.id in self._late:
                continue
            job.passed_over += total - at
            assert job.patience is not None
            left = job.patience - job.passed_over
            if left <= 0:
                self._late.add(job.id)
            elif left < slack:
                slack = left
        self._let_in, self._slack = [], slack
        return len(self._late) > before

    def _let_in_after(self, job: Job) -> int:
        """How many that came after the job were let in and are not counted with it yet."""
        return len(self._let_in) - bisect_right(self._let_in, job.number) if self._let_in else 0

    def look(self, job: Job) -> Found:
        """What the tree has of a job's tokens."""
        version = self._cache.version
        known = self._looks.get(job)
        if known is not None and known[0] == version:
            return known[1]
        found = self._cache.find(job.shareable, job.namespace)
        if job.id in self._ids:
            self._looks.pop(job, None)
            self._looks[job] = version, found
        return found

    def waits_for_sibling(self, job: Job, prefilling: Sequence[Job]) -> bool:
        """Whether one of the jobs in prefill is computing tokens that this one could take from the tree."""
        if not self._dedupe:
            return False
        known = self._siblings.get(job.id)
        if known is not None and _computes(*known):
            return True
        wanted, cached = job.shareable, -1
        for other in prefilling:
            if other.namespace != job.namespace:
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

    def _glance(self, job: Job) -> Found:
        """What the tree had of a job's tokens when it was looked up last."""
        known = self._looks.get(job)
        return known[1] if known is not None else self.look(job)


_number = attrgetter("number")


def _computes(sibling: Job, shared: int) -> bool:
    """Whether a sibling still runs, and is still to compute some of so many first tokens."""
    return sibling.lease is not None and sibling.prefilling and sibling.computed < shared
