"""Which request computes how many tokens in a step, who is let in, and who gives way when KV slots run out.

A job is let in where the greatest sum of slots that it and the running jobs are going to hold is sure or likely to be
had (admission.py). Where that was too hopeful, the least senior running jobs are *preempted*: what they computed goes
into the tree, from where they take as much as is still there when they are let in again. The most senior job is never
preempted, so that somebody always gets on. A job whose prompt begins like that of a running job still in prefill waits
until the common part is in the tree, so that it is computed once.

No request starves: under the policies that reorder, a job goes first once others that came later were let in before it
as often as jobs waited when it came, and `line.PATIENCE` times more. So at most that many go before it, whatever
arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from palmette.radix_cache.cache import RadixCache
from palmette.radix_cache.lease import Lease
from palmette.radix_cache.tier import Tier
from palmette.runtime.admission import Outlook
from palmette.runtime.holds import Holds
from palmette.runtime.job import Job
from palmette.runtime.line import Line
from palmette.runtime.policies import POLICIES
from palmette.runtime.shares import Decision, SchedulerCounters, Share, size, spread

# For so many steps a job runs alone before a hold gives way: the next request of a program is likely on its way.
_GRACE_STEPS = 3


class Scheduler:
    """Holds the jobs that wait (`line`) and those that run.

    max_running: jobs in progress. max_step_tokens: tokens that one step computes, over all jobs. policy: a name of
    POLICIES. dedupe: whether a job waits for the one that computes what both begin with. hints: whether
    what a program run (`Job.family`) said is held for its next request. tier: where KV is looked for
    that the tree does not have. log: told of every decision.
    """

    def __init__(
        self,
        cache: RadixCache,
        *,
        max_running: int,
        max_step_tokens: int,
        policy: str = "lpm",
        dedupe: bool = True,
        hints: bool = True,
        tier: Tier | None = None,
        log: Callable[[Decision], None] | None = None,
    ) -> None:
        self.cache = cache
        self.max_running = max_running
        self.max_step_tokens = max_step_tokens
        self.policy = POLICIES[policy]()
        self.line = Line(cache, self.policy, dedupe=dedupe)
        self.tier = tier
        self.log = log
        self.outlook = Outlook(cache)
        self.counters = SchedulerCounters()
        self.running: list[Job] = []
        self._takes_over = policy == "priority"
        self._hints = hints and cache.enabled
        self._holds = Holds()
        self._steps = 0
        self._held_steps = 0
        # The job that could not be let in, and whether that was for want of slots. Nobody is before something changes.
        self._blocked: Job | None = None
        self._short = False

    @property
    def waiting(self) -> Sequence[Job]:
        """The jobs that wait, in order of arrival."""
        return self.line.jobs

    @property
    def shut(self) -> bool:
        """Whether nobody can be let in as long as no job arrives and none ends."""
        if not self.waiting or self._blocked is not None:
            return True
        return len(self.running) >= self.max_running and not self._takes_over

    # -- from outside ------------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """A job begins to wait."""
        self.line.add(job)
        self.policy.arrived(job, self.waiting)
        self._blocked = None

    def finish(self, job: Job) -> None:
        """Take a job out: what it computed goes into the tree, everything else back to the pool."""
        if job in self.running:
            self.running.remove(job)
            self._charge_rest(job)
            self._keep(job)
            if job.generates and job.length > job.prompt_length and not (job.failed or job.cancelled):
                self.outlook.lengths.record(job.length - job.prompt_length)
        elif job in self.waiting:
            self.line.remove(job)
        if job.lease is not None:
            self._let_go(job)
        self._blocked = None
        self._say("finish", job, job.length)

    def _charge_rest(self, job: Job) -> None:
        """The output that was made and will not be computed any more, its last token at least, counts as well."""
        if job.generates:
            charged = max(job.computed, job.lost, job.prompt_length)
            self.policy.served(job, 0, max(0, job.length - charged))

    def leave(self, family: str) -> None:
        """A program run sends no more requests: what was kept for it may go."""
        for job in (*self.running, *self.waiting):
            if job.family == family:
                job.leads = False
        self._release(family)

    # -- a step ------------------------------------------------------------------------------------------------------

    def plan(self) -> list[Share]:
        """Decodes first, then prefill chunks of running jobs, then new jobs, within the token budget."""
        budget = self.max_step_tokens
        self._steps += 1
        self._held_steps = self._held_steps + 1 if self._held_up(running=1) else 0
        if self._held_steps > _GRACE_STEPS:
            self.press()
        elif self._blocked is not None and self._short:
            self._release_idle()
        decodes: list[Job] = []
        prefills: list[Job] = []
        for job in self.running:
            (prefills if job.prefilling else decodes).append(job)
        # Prefills and newcomers keep a quarter of the budget however many jobs decode, so that none of them starves.
        kept = max(1, budget // 4) if budget > 1 and (prefills or self.waiting) else 0
        if budget == 1 and prefills and self.running[0].prefilling:
            kept = 1  # the only token goes to each in turn
        shares = spread(decodes, budget - kept)
        left = budget - size(shares)
        for job in prefills:
            n = min(job.remaining, left)
            if n > 0:
                shares.append(Share(job, n))
                left -= n
        shares, preempted = self._make_room(shares)
        left = budget - size(shares)
        if not preempted:
            left = self._admit_some(shares, left)
        if len(shares) < len(self.running):
            # What newcomers did not need goes to decodes after all, where slots are free for the asking.
            served = {share.job.id for share in shares}
            spare = self.room - size(shares)
            rest = [job for job in decodes if job.id not in served and job.lease is not None]
            shares += spread(rest, min(left, spare))
            # Whoever was served goes behind those that were not.
            served = {share.job.id for share in shares}
            self.running.sort(key=lambda job: job.id in served)
        self._give_slots(shares)
        pool = self.cache.pool
        self.counters.kv_peak = max(self.counters.kv_peak, pool.size - pool.free - self.cache.evictable)
        return shares

    def commit(self, share: Share) -> None:
        """The tokens of a share are computed: a prompt goes into the tree as far as it is, for siblings to take."""
        job, n = share
        before, job.computed = job.computed, job.computed + n
        if before >= job.prompt_length and not job.lost:
            # What nearly all shares are, hundreds in a step.
            self.policy.served(job, 0, n)
            return
        again = max(0, min(job.lost - before, n)) if job.lost else 0
        self.counters.recomputed_tokens += again
        # The tokens behind the prompt are output; each counts when it is computed, once.
        output = min(n - again, job.computed - job.prompt_length)
        if output > 0:
            self.policy.served(job, 0, output)
        if before >= job.prompt_length:
            return
        known = min(job.computed, job.prompt_length)
        job.lease = self.cache.insert(
            job.tokens[:known], job.slots[:known], job.namespace, lease=job.lease, priority=job.priority
        )
        job.slots[:known] = job.lease.slots
        if self.tier is not None and not job.prefilling:
            self.tier.store(job.prompt, job.namespace, job.slots[: job.prompt_length])

    def drop(self, share: Share) -> None:
        """The tokens of a share could not be computed: their slots go back."""
        job, n = share
        self.cache.pool.release(job.slots[job.computed : job.computed + n])

    def give_up(self) -> Job | None:
        """After an empty plan: the job that cannot get its slots though nothing else runs. It never can, as the rest is
        pinned; the caller ends it."""
        return self.running[0] if self.running else self._blocked

    # -- admission ---------------------------------------------------------------------------------------------------

    def _admit_some(self, shares: list[Share], budget: int) -> int:
        """Let waiting jobs in, add their shares; what is left of the budget."""
        if budget <= 0 or self.shut:
            return budget
        planned = size(shares)
        candidates = self.line.order()
        prefilling = [job for job in self.running if job.prefilling]
        owed = self.outlook.owed(self.running)
        while budget > 0 and (candidate := next(candidates, None)) is not None:
            job, late = candidate
            # A late job goes first whatever it costs, or others could be let in before it for ever.
            if not late and self.line.waits_for_sibling(job, prefilling):
                continue
            while len(self.running) >= self.max_running or not self._admit(job, planned, owed):
                if not self._take_over(job, shares):
                    self._blocked, self._short = job, len(self.running) < self.max_running
                    return budget
                planned = size(shares)
                prefilling = [other for other in self.running if other.prefilling]
                owed = self.outlook.owed(self.running)
            owed += job.peak - job.computed
            if job.prefilling:
                prefilling.append(job)
            n = min(job.remaining, budget)
            shares.append(Share(job, n))
            planned += n
            budget -= n
            if self.line.pass_over(job):
                candidates = self.line.order()
        return budget

    def _admit(self, job: Job, planned: int, owed: int) -> bool:
        """Let the job in, with what tree and tier have of its tokens, if the slots that it may need are to be had.
        planned: slots that this step is going to take. owed: those that the running jobs may come to need."""
        lease = self._lease(job, planned, owed)
        if lease is None:
            return False
        if self.tier is not None:
            lease = self._restore(job, lease)
        job.lease = lease
        job.slots[: lease.length] = lease.slots
        job.computed = lease.length
        if not job.preemptions:
            job.cached = min(lease.length, job.prompt_length)
            self.policy.served(job, job.prompt_length - job.cached, 0)
        self.line.remove(job)
        self.running.append(job)
        self._release(job.family)
        self.counters.admissions += 1
        self._say("admit", job, lease.length)
        return True

    def _lease(self, job: Job, planned: int, owed: int) -> Lease | None:
        """What the tree has of the job's tokens, if all that it needs beyond is to be had."""
        # Looked up without a lease first: a job that waits must not count as a use at every step.
        if job.length - self.line.look(job).length > self.room - planned:
            return None
        lease = self.cache.match(job.shareable, job.namespace, priority=job.priority)
        if self.outlook.fits(job, lease.length, self.running, owed, self.room):
            return lease
        lease.release()
        return None

    def _restore(self, job: Job, lease: Lease) -> Lease:
        """Bring what the tier has beyond the lease into slots and tree."""
        assert self.tier is not None
        wanted = job.shareable
        stored = self.tier.find(wanted, job.namespace)
        if stored <= lease.length or stored - lease.length > self.room:
            return lease
        slots = self.reserve(stored - lease.length)
        if not self.tier.load(wanted, job.namespace, lease.length, slots):
            self.cache.pool.release(slots)
            return lease
        self.counters.restored_tokens += len(slots)
        return self.cache.insert(
            wanted[:stored], np.concatenate([lease.slots, slots]), job.namespace, lease=lease, priority=job.priority
        )

    # -- holds (see holds.py) --------------------------------------------------------------------------------------

    @property
    def held_up(self) -> bool:
        """After an empty plan: whether somebody waits for nothing but holds to give way."""
        return self._held_up(running=0)

    def _held_up(self, running: int) -> bool:
        return self._blocked is not None and self._short and len(self._holds) > 0 and len(self.running) == running

    def press(self) -> None:
        """A hold gives way, so that somebody can be let in or go on."""
        if not self._release_idle():
            self._holds.release_shortest(self._blocked.family if self._blocked is not None else "")
            self.counters.dropped_holds += 1
            self._blocked = None

    def _release_idle(self) -> bool:
        """The hold of a program that asks for nothing gives way, if there is one."""
        asking = {job.family for job in (*self.running, *self.waiting)} if len(self._holds) else set()
        if not self._holds.release_idle(self._steps, asking.__contains__):
            return False
        self.counters.dropped_holds += 1
        self._blocked = None
        return True

    def _release(self, family: str) -> None:
        if self._holds.release(family):
            self._blocked = None

    def _let_go(self, job: Job) -> None:
        """A job ends, and lets go of its KV; it is held for what its program is going to ask next."""
        lease, job.lease = job.lease, None
        assert lease is not None
        if self._hints and job.family and job.leads and job.done and not job.failed and not job.cancelled:
            self._holds.keep(job.family, lease, self._steps)
        else:
            lease.release()

    # -- room --------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Slots that are free or can be freed without taking them from anybody."""
        return self.cache.pool.free + self.cache.evictable

    def _make_room(self, shares: list[Share]) -> tuple[list[Share], bool]:
        """Preempt until the slots of the shares are to be had; the shares that are left, and whether any job went."""
        preempted = False
        while size(shares) > self.room:
            if self._release_idle():
                continue
            if len(self.running) > 1:
                shares = self._preempt(max(self.running, key=self._rank), shares)
                preempted = True
            elif len(self._holds):
                self.press()
            else:
                # All else is pinned: as much as there is, and nothing if there is none.
                shares = [share._replace(n=self.room) for share in shares if self.room > 0]
        return shares, preempted

    def _take_over(self, job: Job, shares: list[Share]) -> bool:
        """Where priorities count: preempt a running job of lower priority than `job`, if that helps to let it in."""
        if not self._takes_over:
            return False
        lower: list[Job] = []
        rest: list[Job] = []
        for other in self.running:
            (lower if other.priority < job.priority and not other.overdue else rest).append(other)
        if not lower:
            return False
        # As if they were gone: if that is not enough, they would give way for nothing.
        room = self.room + sum(self.outlook.held_by(other) for other in lower)
        if not self.outlook.fits(job, self.line.look(job).length, rest, self.outlook.owed(rest), room):
            return False
        shares[:] = self._preempt(max(lower, key=self._rank), shares)
        return True

    def _rank(self, job: Job) -> tuple[bool, tuple[int, int]]:
        """Seniority: the greatest loses its slots first. Who waited as long as may be keeps them before all others."""
        return not (self.policy.ages and job.overdue), self.policy.rank(job)

    def _preempt(self, job: Job, shares: list[Share]) -> list[Share]:
        """Put a running job back in line; the shares without its own."""
        self.counters.preemptions += 1
        job.preemptions += 1
        job.lost = max(job.lost, job.computed)
        self._say("preempt", job, job.computed)
        self._keep(job)
        assert job.lease is not None
        job.lease.release()
        job.lease = None
        job.computed = 0
        self.running.remove(job)
        self.line.add(job)
        return [share for share in shares if share.job is not job]

    def _keep(self, job: Job) -> None:
        """What a job computed goes into the tree, as far as it is worth keeping; the rest back to the pool."""
        kept = job.kept()
        if kept is None:
            tokens, slots = job.tokens[: job.computed], job.slots[: job.computed]
        else:
            held = job.lease.length if job.lease is not None else 0
            self.cache.pool.release(job.slots[np.setdiff1d(np.arange(held, job.computed), kept)])
            tokens, slots = job.tokens[kept], job.slots[kept]
        job.lease = self.cache.insert(tokens, slots, job.namespace, lease=job.lease, priority=job.priority)
        if self.tier is not None and job.done and not job.failed:
            self.tier.store(tokens, job.namespace, job.lease.slots)

    def _give_slots(self, shares: Sequence[Share]) -> None:
        slots = self.reserve(size(shares))
        # One at a time is the usual case by far, and costs less as a plain number.
        numbers, at = slots.tolist(), 0
        for job, n in shares:
            if n == 1:
                job.slots[job.computed] = numbers[at]
            else:
                job.slots[job.computed : job.computed + n] = slots[at : at + n]
            at += n
        if self.log is not None:
            for job, n in shares:
                self._say("compute", job, n)

    def reserve(self, n: int) -> np.ndarray:
        missing = n - self.cache.pool.free
        if missing > 0 and self.log is not None:
            self.log(Decision("evict", -1, missing))
        return self.cache.reserve(n)

    def _say(self, kind: str, job: Job, n: int) -> None:
        if self.log is not None:
            self.log(Decision(kind, job.number, n))
