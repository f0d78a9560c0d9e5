"""Who is let in, what a step computes, who gives way: the scheduler by itself, with jobs that only count."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.radix_cache.arrays import common_prefix
from palmette.radix_cache.cache import RadixCache
from palmette.radix_cache.slots import SlotPool
from palmette.runtime.admission import Lengths, Need, greatest_growth
from palmette.runtime.holds import IDLE_STEPS
from palmette.runtime.job import Job, Span
from palmette.runtime.line import PATIENCE
from palmette.runtime.policies import POLICIES, FairShare
from palmette.runtime.protocol import Usage
from palmette.runtime.scheduler import Scheduler
from palmette.runtime.shares import Decision

pytestmark = pytest.mark.tiny


class Counted(Job):
    """A job that asks for its prompt and then for `new` tokens, all 0; it ends after `ends` of them."""

    def __init__(self, prompt: Sequence[int], new: int = 1, ends: int | None = None, **about: object) -> None:
        super().__init__(prompt, len(prompt) + new, **about)  # type: ignore[arg-type]
        self.new = new
        self.ends = new if ends is None else ends

    @property
    def shareable(self) -> np.ndarray:
        return self.tokens[: self.length - 1]

    @property
    def peak(self) -> int:
        return self.prompt_length + self.new - 1

    def spans(self, n: int) -> list[Span]:
        return []

    def go_on(self, drawn: object) -> None:
        if self.remaining == 0:
            self.length += 1
            self.done = self.length - self.prompt_length >= self.ends

    def usage(self) -> Usage:
        return Usage()

    def fail(self, error: BaseException) -> None:
        raise error


def scheduler(slots: int = 1000, **settings: object) -> Scheduler:
    options = {"max_running": 8, "max_step_tokens": 16, "policy": "lpm", **settings}
    return Scheduler(RadixCache(SlotPool(slots)), **options)  # type: ignore[arg-type]


def add(s: Scheduler, *jobs: Job) -> None:
    for job in jobs:
        s.add(job)


def step(s: Scheduler) -> list[tuple[Job, int]]:
    """Plan, and do what the core does: compute, share prompts, draw a token, end."""
    plan = s.plan()
    for share in plan:
        s.commit(share)
        share.job.go_on(None)
        if share.job.done:
            s.finish(share.job)
    held = [job.slots[job.lease.length : job.computed] for job in s.running if job.lease]
    assert s.cache.check_integrity(held) == []
    return [(job, n) for job, n in plan]


def finish(s: Scheduler) -> int:
    steps = 0
    while s.running or s.waiting:
        assert step(s), "nobody gets on"
        steps += 1
    return steps


def test_a_step_mixes_decodes_and_prefill_chunks_within_its_budget() -> None:
    s = scheduler()
    first = Counted([1, 2, 3], new=9)
    add(s, first)
    step(s)
    long = Counted(list(range(10, 50)))
    add(s, long)
    for chunk in (15, 15, 10):
        assert step(s) == [(first, 1), (long, chunk)]
    assert step(s) == [(first, 1)]


def test_prefill_is_not_starved_by_decodes() -> None:
    s = scheduler(max_step_tokens=4)
    decodes = [Counted([i], new=50) for i in range(6)]
    add(s, *decodes)
    for _ in range(4):
        step(s)
    before = [job.computed for job in decodes]
    add(s, Counted(list(range(100, 110))))
    s.max_running = 16
    steps = 0
    while s.waiting or any(job.prompt_length == 10 for job in s.running):
        step(s)
        steps += 1
        assert steps < 30
    served = [job.computed - start for job, start in zip(decodes, before, strict=True)]
    assert max(served) - min(served) <= 1


def test_the_greatest_growth_is_that_of_a_run_step_by_step() -> None:
    # Two that end early give back 10 and 3 before the third has grown by 6.
    assert greatest_growth([Need(0, 2, 10), Need(0, 2, 3), Need(0, 8, 0)]) == 6
    assert greatest_growth([Need(5, 0, 9)]) == 5
    assert greatest_growth([]) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12), st.integers(0, 20)), max_size=8))
def test_greatest_growth_by_brute_force(rows: list[tuple[int, int, int]]) -> None:
    needs = [Need(*row) for row in rows]
    most = 0
    for now in range(max((need.later for need in needs), default=0) + 1):
        running = [need for need in needs if need.later >= now]
        ended = [need for need in needs if need.later < now]
        grown = sum(need.now for need in needs) + now * len(running) - sum(need.freed for need in ended)
        most = max(most, grown)
    assert greatest_growth(needs) == max(most, sum(need.now for need in needs))


def test_admission_counts_on_what_ends_earlier() -> None:
    """All four could together ask for 80 of 70 slots, but two are gone before the others have grown."""
    s = scheduler(slots=70, max_step_tokens=64)
    early = [Counted([i] * 10, new=11) for i in range(2)]
    add(s, *early)
    for _ in range(8):
        step(s)
    late = [Counted([10 + i] * 10, new=11) for i in range(2)]
    add(s, *late)
    step(s)
    assert len(s.running) == 4
    finish(s)
    assert s.counters.preemptions == 0
    assert s.cache.pool.free + s.cache.evictable == 70


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12), st.integers(1, 14)), min_size=1, max_size=25),
    slots=st.integers(27, 90),
)
def test_with_known_lengths_nobody_is_ever_preempted(jobs: list[tuple[int, int, int]], slots: int) -> None:
    s = scheduler(slots=slots, max_step_tokens=1000)
    for now in range(21):
        add(s, *(Counted([size, now, *range(size)], new=new) for at, size, new in jobs if at == now))
        if s.running or s.waiting:
            step(s)
    finish(s)
    assert s.counters.preemptions == 0


def test_lengths_that_were_seen_let_more_jobs_in_and_preemption_makes_up_for_hope() -> None:
    def run(seen: int) -> tuple[int, Scheduler]:
        s = scheduler(slots=200, max_step_tokens=64, max_running=64)
        for _ in range(64):
            s.outlook.lengths.record(seen)
        jobs = [Counted([i] * 4, new=100, ends=60 if i == 7 else 5) for i in range(12)]
        add(s, *jobs)
        step(s)
        first = len(s.running)
        finish(s)
        assert all(job.length - job.prompt_length == job.ends for job in jobs)
        return first, s

    cautious, s = run(seen=100)
    assert cautious < 3
    hopeful, s = run(seen=6)
    assert hopeful == 12
    s = scheduler(slots=60, max_step_tokens=64)
    for _ in range(64):
        s.outlook.lengths.record(2)
    told: list[Decision] = []
    s.log = told.append
    jobs = [Counted([i] * 6, new=40) for i in range(5)]
    add(s, *jobs)
    finish(s)
    lost = {decision.number for decision in told if decision.kind == "preempt"}
    assert lost
    assert s.counters.preemptions == sum(job.preemptions for job in jobs)
    # The most senior never gives way.
    assert jobs[0].number not in lost
    assert s.cache.pool.free + s.cache.evictable == 60


def test_lengths_forget_what_is_long_ago() -> None:
    lengths = Lengths()
    for length in [500] * 600 + [3] * 512:
        lengths.record(length)
    job = Counted([1], new=400)
    assert lengths.later(job) == 3
    job.preemptions = 1
    assert lengths.later(job) == job.peak - job.length


def test_siblings_wait_until_the_common_part_is_in_the_tree() -> None:
    s = scheduler(max_step_tokens=16)
    prefix = list(range(40))
    jobs = [Counted([*prefix, 100 + i, 1]) for i in range(3)]
    add(s, *jobs)
    assert step(s) == [(jobs[0], 16)]
    assert step(s) == [(jobs[0], 16)]
    assert step(s) == [(jobs[0], 10)]
    assert step(s) == [(jobs[1], 2), (jobs[2], 2)]
    # Another namespace shares nothing.
    add(s, Counted([*prefix, 1], namespace="other"))
    assert step(s)[0][1] == 16


def admissions(s: Scheduler) -> list[int]:
    """The numbers of the jobs as they are let in; fills up as the scheduler works."""
    order: list[int] = []
    s.log = lambda decision: order.append(decision.number) if decision.kind == "admit" else None
    return order


def test_lpm_takes_the_longest_cached_prefix_and_fcfs_the_first() -> None:
    cached = list(range(12))
    for policy, first in (("lpm", 1), ("fcfs", 0)):
        s = scheduler(max_running=1, policy=policy)
        add(s, Counted([*cached, 99]))
        step(s)
        jobs = [Counted([50] * 5), Counted([*cached, 98])]
        add(s, *jobs)
        assert step(s)[0][0] is jobs[first]


def test_dfs_goes_to_the_end_of_the_heaviest_branch() -> None:
    s = scheduler(max_running=1, max_step_tokens=64, policy="dfs")
    add(s, Counted([1, 2, 3, 4, 9]), Counted([1, 2, 7, 7, 9]))
    finish(s)
    add(s, Counted([5, 5]))
    finish(s)
    light, heavy, deep, top = (
        Counted([1, 2, 7, 7, 8]),
        Counted([1, 2, 3, 4, 5]),
        Counted([1, 2, 3, 4, 6]),
        Counted([1, 2, 8, 8, 8]),
    )
    order = admissions(s)
    add(s, top, light, heavy, deep)
    finish(s)
    assert order == [job.number for job in (heavy, deep, light, top)]


def test_a_higher_priority_goes_first_and_takes_a_place() -> None:
    s = scheduler(max_running=2, policy="priority")
    jobs = [Counted([i], new=9, priority=i) for i in range(4)]
    order = admissions(s)
    add(s, *jobs[:3])
    step(s)
    assert order == [jobs[2].number, jobs[1].number]
    add(s, jobs[3])
    step(s)
    assert {job.number for job in s.running} == {jobs[3].number, jobs[2].number}
    assert jobs[1].preemptions == 1
    finish(s)
    assert order[2:] == [jobs[3].number, jobs[1].number, jobs[0].number]


@pytest.mark.parametrize("max_running", [1, 2, 4])
def test_a_flood_of_higher_priority_does_not_keep_a_job_out_for_ever(max_running: int) -> None:
    """Once it has waited its time it is let in, and nobody takes its place again."""
    s = scheduler(slots=600, max_running=max_running, max_step_tokens=64, policy="priority")
    add(s, *(Counted([1, number], new=8, priority=5) for number in range(6)))
    step(s)
    low = Counted([9] * 5, new=10)
    add(s, low)
    for number in range(400):
        while len(s.waiting) < 3:
            add(s, Counted([2, number], new=8, priority=5))
        step(s)
        if low.done:
            break
    assert low.done
    assert low.preemptions <= 1


@pytest.mark.parametrize("policy", ["priority", "fair"])
def test_whose_turn_it_is_does_not_depend_on_how_many_wait(policy: str) -> None:
    s = scheduler(slots=9000, max_running=1, policy=policy, max_step_tokens=64)
    add(s, Counted([1], tenant="flood"))
    step(s)
    add(s, *(Counted([2, number], tenant="flood") for number in range(1500)))
    first = Counted([3], priority=1, tenant="small")
    add(s, first)
    step(s)
    step(s)
    assert first.done


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "fair"])
@pytest.mark.parametrize("seed", range(3))
def test_at_most_so_many_later_jobs_are_let_in_before_a_job(policy: str, seed: int) -> None:
    """The bound on starvation: whatever keeps arriving, nobody is overtaken more often than was fixed when it came."""
    draw = random.Random(seed)
    s = scheduler(slots=300, max_running=3, max_step_tokens=64, policy=policy)
    order = admissions(s)
    jobs, bounds = [], []
    for _ in range(300):
        for _ in range(draw.choice([0, 1, 2, 3])):
            # Most have what is cached by then and a high priority, so that the others are overtaken all the time.
            usual = draw.random() < 0.9
            page = [7] * 10 if usual else [draw.randrange(100, 9999) for _ in range(10)]
            jobs.append(Counted([*page, draw.randrange(9)], new=draw.randint(1, 3), priority=5 if usual else 0))
            bounds.append(len(s.waiting) + PATIENCE)
            add(s, jobs[-1])
        step(s)
    finish(s)
    place: dict[int, int] = {}
    for at, number in enumerate(order):
        place.setdefault(number, at)
    overtaken = []
    for job in jobs:
        later = [other for other in jobs if other.number > job.number and place[other.number] < place[job.number]]
        overtaken.append(len(later))
    assert all(times <= (0 if policy == "fcfs" else bound) for times, bound in zip(overtaken, bounds, strict=True))
    if policy in ("lpm", "priority"):
        assert max(overtaken) > 3


def test_tenants_with_work_waiting_get_the_same_within_a_bound() -> None:
    """One tenant sends ten times as much, and longer; what both got stays as close as one request's cost allows
    (Sheng et al., theorem 4.4: twice the greatest cost of all that can run at once)."""
    s = scheduler(slots=4000, max_running=4, max_step_tokens=256, policy="fair")
    draw = random.Random(1)
    got = {"small": 0, "flood": 0}

    def cost(job: Job) -> int:
        return FairShare.PROMPT * (min(job.computed, job.prompt_length) - job.cached) + FairShare.OUTPUT * max(
            0, job.computed - job.prompt_length
        )

    jobs: list[Counted] = []
    for now in range(300):
        for tenant, many, long in (("small", 1, 5), ("flood", 3, 30)):
            if now < 250:
                for _ in range(many):
                    prompt = [draw.randrange(1 << 20) for _ in range(draw.randint(1, long))]
                    jobs.append(Counted(prompt, new=draw.randint(1, long), tenant=tenant))
                    add(s, jobs[-1])
        step(s)
        both_wait = {"small", "flood"} <= {job.tenant for job in s.waiting}
        got = {tenant: sum(cost(job) for job in jobs if job.tenant == tenant) for tenant in got}
        if not both_wait and now < 250:
            # Work is only owed to those that wait; from here on the comparison begins anew.
            start = dict(got)
        elif now < 250:
            drift = (got["small"] - start["small"]) - (got["flood"] - start["flood"])
            assert abs(drift) <= 2 * 4 * (30 + 2 * 30)
    assert got["small"] > 0.3 * got["flood"]


def test_fair_shares_beat_first_come_for_whoever_asks_little() -> None:
    def wait(policy: str) -> int:
        s = scheduler(slots=4000, max_running=2, max_step_tokens=64, policy=policy)
        add(s, *(Counted([i, 1, 2], new=8, tenant="flood") for i in range(50)))
        step(s)
        little = Counted([99, 1, 2], tenant="small")
        add(s, little)
        steps = 0
        while not little.done:
            step(s)
            steps += 1
        return steps

    assert wait("fair") < 20 < wait("fcfs")


@pytest.mark.parametrize("new", [1, 2, 5])
def test_each_prompt_token_counts_once_and_each_output_token_twice(new: int) -> None:
    s = scheduler(policy="fair", max_step_tokens=64)
    assert isinstance(s.policy, FairShare)
    add(s, Counted([1] * 7, new=new, tenant="a"))
    finish(s)
    assert s.policy.counters["a"] == 7 + 2 * new


def test_a_tenant_does_not_save_up_claims_while_it_is_away() -> None:
    policy = FairShare()
    policy.served(Counted([1], tenant="busy"), 1000, 0)
    newcomer = Counted([1], tenant="new")
    policy.arrived(newcomer, [Counted([1], tenant="busy"), newcomer])
    assert policy.counters["new"] == 1000


def talk(s: Scheduler, family: str, prompt: list[int]) -> Counted:
    """One request of a program, to its end."""
    job = Counted(prompt, new=2, family=family)
    add(s, job)
    finish(s)
    return job


def test_what_a_program_said_is_kept_for_its_next_request_while_others_can_go() -> None:
    for hints in (True, False):
        s = scheduler(slots=40, max_step_tokens=64, hints=hints)
        prompt = list(range(100, 112))
        talk(s, "program", prompt)
        for page in range(6):
            add(s, Counted([page] * 12))
            finish(s)
        next_turn = talk(s, "program", [*prompt, 0, 1, 2])
        assert (next_turn.cached >= 12) == hints
        s.leave("program")
        assert s.cache.pool.free + s.cache.evictable == 40
        assert s.cache.leases == 0


def test_a_program_that_leaves_before_its_last_request_ends_holds_nothing() -> None:
    s = scheduler(max_step_tokens=64)
    job = Counted([1] * 9, new=4, family="program")
    add(s, job)
    step(s)
    s.leave("program")
    finish(s)
    assert s.cache.leases == 0


def test_holds_keep_others_out_until_nothing_runs_and_the_shortest_gives_way() -> None:
    s = scheduler(slots=50, max_step_tokens=64)
    talk(s, "long", [1] * 20)
    talk(s, "short", [2] * 9)
    running, newcomer = Counted([3] * 8, new=4), Counted([4] * 25)
    add(s, running, newcomer)
    while not running.done:
        step(s)
        assert newcomer in s.waiting
        assert not s.held_up
    assert s.plan() == []
    assert s.held_up
    s.press()
    finish(s)
    assert newcomer.done
    assert s.counters.dropped_holds == 1
    assert s.cache.peek([1] * 20) == 20


def test_programs_that_sleep_do_not_slow_the_others_down() -> None:
    def steps(hints: bool) -> int:
        s = scheduler(slots=2000, max_running=64, max_step_tokens=256, hints=hints)
        for number in range(40):
            talk(s, f"sleeper {number}", [number] * 48)
        add(s, *(Counted([1000 + number] * 20, new=50) for number in range(100)))
        return finish(s)

    with_hints, without = steps(True), steps(False)
    assert with_hints < 1.5 * without


def test_idle_holds_give_way_before_running_work_does() -> None:
    s = scheduler(slots=100, max_running=8, max_step_tokens=64)
    talk(s, "sleeper", [1] * 40)
    for _ in range(IDLE_STEPS):
        s.plan()
    for _ in range(64):
        s.outlook.lengths.record(2)
    # Let in as if they made two tokens each; they make twenty.
    add(s, *(Counted([number] * 10, new=20) for number in (3, 4, 5)))
    finish(s)
    assert s.counters.preemptions == 0
    assert s.counters.dropped_holds == 1


def test_nobody_gives_up_its_place_for_one_that_cannot_come_in_all_the_same() -> None:
    s = scheduler(slots=100, max_running=8, max_step_tokens=128, policy="priority")
    high = Counted([1] * 10, new=41, priority=5)
    low = [Counted([2 + number] * 5, new=6) for number in range(4)]
    add(s, high, *low)
    step(s)
    assert len(s.running) == 5
    add(s, second := Counted([9] * 40, new=30, priority=5))
    step(s)
    assert second in s.waiting
    assert s.counters.preemptions == 0
    finish(s)


def test_jobs_of_one_request_share_its_place_in_the_line() -> None:
    s = scheduler()
    twins = [Counted([1, 2, number]) for number in range(3)]
    for job in twins:
        job.number = twins[0].number
    add(s, *twins)
    s.finish(twins[1])
    assert s.waiting == [twins[0], twins[2]]
    finish(s)
    assert twins[0].done and twins[2].done


def test_a_lack_of_places_drops_no_hold() -> None:
    s = scheduler(slots=1000, max_running=1, policy="priority", max_step_tokens=64)
    for number in range(5):
        talk(s, f"program {number}", [number] * 10)
    add(s, *(Counted([50 + number], new=20) for number in range(3)))
    finish(s)
    assert s.counters.dropped_holds == 0


def test_a_budget_of_one_token_goes_to_each_in_turn() -> None:
    s = scheduler(max_step_tokens=1)
    long = Counted([1], new=300)
    add(s, long)
    prompt = Counted([2] * 20)
    s.running.append(prompt)
    prompt.lease = s.cache.match(prompt.shareable)
    for _ in range(60):
        step(s)
    assert prompt.done
    assert not long.done


def test_programs_that_take_turns_in_a_small_pool_are_brought_to_their_ends() -> None:
    """Ten conversations of five turns, all at once, with room for half of them: most of what they said stays."""

    def run(hints: bool) -> float:
        s = scheduler(slots=10 * 5 * 12 // 2, max_running=64, max_step_tokens=256, hints=hints)
        turns = {number: 0 for number in range(10)}
        said: dict[int, list[int]] = {number: [] for number in turns}
        asked: dict[int, Counted] = {}
        cached = wanted = 0
        while turns or s.running or s.waiting:
            for number in list(turns):
                job = asked.get(number)
                if job is not None and not job.done:
                    continue
                if job is not None:
                    cached, wanted = cached + job.cached, wanted + job.prompt_length
                    said[number] = job.tokens[: job.length].tolist()
                if turns[number] == 5:
                    s.leave(str(number))
                    del turns[number]
                    continue
                turns[number] += 1
                more = [number * 100 + turns[number]] * 10
                asked[number] = Counted([*said[number], *more], new=2, family=str(number))
                add(s, asked[number])
            if (s.running or s.waiting) and not step(s):
                assert s.held_up
                s.press()
        assert s.cache.pool.free + s.cache.evictable == s.cache.pool.size
        # Each turn could have had all of the earlier ones.
        return cached / (wanted * 2 / 3)

    assert run(hints=True) > 0.9 > run(hints=False)


def test_a_step_of_256_running_jobs_is_planned_in_less_than_two_milliseconds() -> None:
    s = scheduler(slots=300_000, max_running=256, max_step_tokens=2048)
    prefix = list(range(500))
    add(s, *(Counted([*prefix[: 400 + i % 100], 1000 + i], new=200) for i in range(300)))
    while len(s.running) < 256 or any(job.prefilling for job in s.running):
        step_without_checks(s)
    best = min(step_without_checks(s) / max(1.0, pace()) for _ in range(30))
    assert len(s.running) == 256
    assert len(s.waiting) == 44
    assert best < 0.002


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs", "fair"])
def test_a_step_of_256_is_as_quick_while_jobs_end_and_a_thousand_wait(policy: str) -> None:
    """Some jobs end at each step and others are let in, from a line of families that begin alike."""
    s = scheduler(slots=300_000, max_running=256, max_step_tokens=2048, policy=policy)
    draw = random.Random(0)
    stems = [[draw.randrange(1000) for _ in range(80)] for _ in range(20)]

    def arrive() -> None:
        while len(s.waiting) < 1000:
            prompt = [*draw.choice(stems), *(draw.randrange(1 << 20) for _ in range(20))]
            s.add(Counted(prompt, new=draw.randint(20, 80), tenant=str(draw.randrange(5))))

    took: list[float] = []
    for _ in range(14):
        times, paces = [], [pace()]
        for _ in range(20):
            arrive()
            times.append(step_without_checks(s))
        paces.append(pace())
        took.append(statistics.median(times) / max(1.0, statistics.mean(paces)))
    assert len(s.running) > 240
    assert s.counters.admissions > 500  # five a step, the first 256 apart
    assert min(took[2:]) < 0.002


def pace() -> float:
    """How many milliseconds some work of a kind with the scheduler's takes: 1.0 on an idle core of the machine that the
    bound was measured on, and more where others share the core, to whom the test is not to listen."""
    begun = time.thread_time()
    table: dict[int, int] = {}
    total = 0
    for number in range(10_000):
        table[number & 255] = total
        total += len(table)
    return (time.thread_time() - begun) * 1e3


def step_without_checks(s: Scheduler) -> float:
    """The seconds that planning and committing took of this thread: others share the machine."""
    begun = time.thread_time()
    plan = s.plan()
    for share in plan:
        s.commit(share)
    taken = time.thread_time() - begun
    for share in plan:
        share.job.go_on(None)
        if share.job.done:
            s.finish(share.job)
    return taken


def test_common_prefix() -> None:
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2])) == 2
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 5, 3])) == 1
    assert common_prefix(np.array([], int), np.array([1])) == 0
