"""Who is let in, and what a step computes: the scheduler by itself, with jobs that only count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from palmette.radix_cache.cache import RadixCache
from palmette.radix_cache.slots import SlotPool
from palmette.runtime.protocol import Usage
from palmette.runtime.request import Job, Span
from palmette.runtime.scheduler import Scheduler, common_prefix

pytestmark = pytest.mark.tiny


class Counted(Job):
    """A job that asks for its prompt and then for `new` tokens, all 0."""

    def __init__(self, prompt: Sequence[int], new: int = 1, namespace: str = "") -> None:
        super().__init__(prompt, namespace, len(prompt) + new)
        self.new = new

    @property
    def shareable(self) -> np.ndarray:
        return self.tokens[: self.length - 1]

    @property
    def peak(self) -> int:
        return self.prompt_length + self.new - 1

    def spans(self, n: int) -> list[Span]:
        return []

    def usage(self) -> Usage:
        return Usage()

    def fail(self, error: BaseException) -> None:
        raise error


def scheduler(slots: int = 1000, **settings: object) -> Scheduler:
    options = {"max_running": 8, "max_step_tokens": 16, "policy": "lpm", **settings}
    return Scheduler(RadixCache(SlotPool(slots)), **options)  # type: ignore[arg-type]


def step(s: Scheduler) -> list[tuple[Job, int]]:
    """Plan, and do what the core does: compute, share prompts, draw a token, end."""
    plan = s.plan()
    for job, n in plan:
        prefilling = job.prefilling
        job.computed += n
        if prefilling:
            size = min(job.computed, job.prompt_length)
            job.lease = s.cache.insert(job.tokens[:size], job.slots[:size], job.namespace, lease=job.lease)
            job.slots[:size] = job.lease.slots
        if job.remaining == 0:
            job.length += 1
            if job.length - job.prompt_length >= job.new:  # type: ignore[attr-defined]
                done = np.arange(job.computed)
                job.lease = s.cache.insert(job.tokens[done], job.slots[done], job.namespace, lease=job.lease)
                s.finish(job)
    assert s.cache.check_integrity([job.slots[job.lease.length : job.computed] for job in s.running if job.lease]) == []
    return [(job, n) for job, n in plan]


def test_a_step_mixes_decodes_and_prefill_chunks_within_its_budget() -> None:
    s = scheduler()
    first = Counted([1, 2, 3], new=9)
    s.waiting.append(first)
    step(s)
    long = Counted(list(range(10, 50)))
    s.waiting.append(long)
    for chunk in (15, 15, 10):
        assert step(s) == [(first, 1), (long, chunk)]
    assert step(s) == [(first, 1)]


def test_prefill_is_not_starved_by_decodes() -> None:
    s = scheduler(max_step_tokens=4)
    decodes = [Counted([i], new=50) for i in range(6)]
    s.waiting.extend(decodes)
    for _ in range(4):
        step(s)
    before = [job.computed for job in decodes]
    s.waiting.append(Counted(list(range(100, 110))))
    s.max_running = 16
    steps = 0
    while s.waiting or any(job.prompt_length == 10 for job in s.running):
        step(s)
        steps += 1
        assert steps < 30
    served = [job.computed - start for job, start in zip(decodes, before, strict=True)]
    assert max(served) - min(served) <= 1


def test_admission_leaves_room_for_all_that_running_jobs_may_ask() -> None:
    s = scheduler(slots=50)
    s.waiting.extend(Counted([i] * 5, new=16) for i in range(4))
    step(s)
    assert len(s.running) == 2
    while s.running or s.waiting:
        step(s)
    assert s.cache.pool.free + s.cache.evictable == 50


def test_siblings_wait_until_the_common_part_is_in_the_tree() -> None:
    s = scheduler(max_step_tokens=16)
    prefix = list(range(40))
    jobs = [Counted([*prefix, 100 + i, 1]) for i in range(3)]
    s.waiting.extend(jobs)
    assert step(s) == [(jobs[0], 16)]
    assert step(s) == [(jobs[0], 16)]
    assert step(s) == [(jobs[0], 10)]
    assert step(s) == [(jobs[1], 2), (jobs[2], 2)]
    # Another namespace shares nothing.
    s.waiting.append(Counted([*prefix, 1], namespace="other"))
    assert step(s)[0][1] == 16


def test_lpm_takes_the_longest_cached_prefix_but_nobody_is_passed_over_for_ever() -> None:
    s = scheduler(max_running=1)
    cached = list(range(12))
    s.waiting.append(Counted([*cached, 99]))
    step(s)
    cold, warm = Counted([50] * 5), Counted([*cached, 98])
    s.waiting.extend([cold, warm])
    assert step(s)[0][0] is warm
    for number in range(100):
        s.waiting.append(Counted([*cached, 100 + number]))
        if step(s)[0][0] is cold:
            break
    assert 0 < number < 40
    fcfs = scheduler(max_running=1, policy="fcfs")
    fcfs.waiting.extend([cold := Counted([50] * 5), Counted([*cached, 98])])
    assert step(fcfs)[0][0] is cold


def test_common_prefix() -> None:
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2])) == 2
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 5, 3])) == 1
    assert common_prefix(np.array([], int), np.array([1])) == 0
