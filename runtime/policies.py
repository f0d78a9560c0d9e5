"""In which order waiting requests are let in, and which running ones give way when KV slots run out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from palmette.radix_cache.cache import Found
from palmette.runtime.job import Job
from palmette.runtime.sampler import mix64

Look: TypeAlias = Callable[[Job], Found]
"""What the tree has of a job's tokens; cheap where it was asked before and the tree is as it was."""


class Policy(Protocol):
    """Jobs are told apart by nothing but their own fields, so that a simulation orders them as the engine does.

    ages: whether jobs that others were let in before too often go first. looks: how many jobs `order` puts in order by
    what the tree has of them; 0 where it does not ask.
    """

    ages: bool
    looks: int

    def order(self, waiting: Sequence[Job], look: Look) -> Iterable[Job]:
        """The waiting jobs (given in order of arrival), the first to be let in first."""
        ...

    def rank(self, job: Job) -> tuple[int, int]:
        """Seniority: of the running jobs, the one with the greatest rank loses its slots first."""
        ...

    def arrived(self, job: Job, waiting: Sequence[Job]) -> None:
        """A job begins to wait."""
        ...

    def served(self, job: Job, prompt: int, output: int) -> None:
        """So many prompt tokens were let in for a job, or so many output tokens made."""
        ...


class FirstCome:
    """Whoever came first."""

    ages = False
    looks = 0

    def order(self, waiting: Sequence[Job], look: Look) -> Iterable[Job]:
        return waiting

    def rank(self, job: Job) -> tuple[int, int]:
        return (0, job.number)

    def arrived(self, job: Job, waiting: Sequence[Job]) -> None:
        pass

    def served(self, job: Job, prompt: int, output: int) -> None:
        pass


class Shuffled(FirstCome):
    """No order at all, but the same one each time: what other policies are compared with."""

    ages = True

    def order(self, waiting: Sequence[Job], look: Look) -> Iterable[Job]:
        return sorted(waiting, key=lambda job: mix64(job.number))


class LongestPrefix(FirstCome):
    """The longest cached prefix first (Zheng et al. 2024, "SGLang", section 3: with all requests known, that is
    depth-first order over their tree, which computes every prefix once)."""

    ages = True
    looks = 1024

    def order(self, waiting: Sequence[Job], look: Look) -> Iterable[Job]:
        return sorted(waiting, key=lambda job: -look(job).length)


class DepthFirst(FirstCome):
    """Depth first over the tree: on from where the last job was let in, else at each node into the branch that most
    waiting jobs go through; a branch's own jobs after those that go on below it."""

    ages = True
    looks = 256

    def __init__(self) -> None:
        self._last: Job | None = None

    def order(self, waiting: Sequence[Job], look: Look) -> Iterable[Job]:
        paths = {job.id: look(job).nodes for job in waiting}
        weight = Counter(node for path in paths.values() for node in path)
        here = frozenset(look(self._last).nodes) if self._last is not None else frozenset()

        # A branch that was begun is finished first. The end of a path comes after all that goes on from it.
        turns = {node: (-count, node) for node, count in weight.items()}
        turns |= {node: (-len(waiting) - 1, node) for node in here if node in turns}
        turn = turns.__getitem__
        return sorted(waiting, key=lambda job: [*map(turn, paths[job.id]), (0, job.number)])

    def served(self, job: Job, prompt: int, output: int) -> None:
        if prompt:
            self._last = job


class ByPriority(FirstCome):
    """The highest priority first, equals in order of arrival. A job of higher priority takes the place of a running
    one of lower priority where there is no other."""

    ages = True

    def order(self, waiting: Sequence[Job], look: Look) -> Iterable[Job]:
        return sorted(waiting, key=lambda job: -job.priority)

    def rank(self, job: Job) -> tuple[int, int]:
        return (-job.priority, job.number)


class FairShare(FirstCome):
    """The tenant that was served least first, each tenant's jobs in order of arrival: the virtual token counter of
    Sheng et al. 2024 ("Fairness in serving large language models"). A prompt token counts 1, an output token 2, and
    cached prompt tokens nothing. Tenants with work waiting stay within a constant of each other in what they got."""

    ages = False
    looks = 0

    PROMPT, OUTPUT = 1, 2
    # How many tenants are remembered before those that have nothing to their account are forgotten.
    _MOST = 4096

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self._last = ""

    def order(self, waiting: Sequence[Job], look: Look) -> Iterable[Job]:
        queues: dict[str, deque[Job]] = {}
        for job in waiting:
            queues.setdefault(job.tenant, deque()).append(job)
        return self._in_turn(queues) if len(queues) > 1 else waiting

    def _in_turn(self, queues: dict[str, deque[Job]]) -> Iterator[Job]:
        # As if each job's prompt were charged when its turn comes, so that one look orders several.
        counters = {tenant: self.counters.get(tenant, 0) for tenant in queues}
        while queues:
            tenant = min(queues, key=lambda name: (counters[name], queues[name][0].number))
            job = queues[tenant].popleft()
            counters[tenant] += self.PROMPT * job.prompt_length
            if not queues[tenant]:
                del queues[tenant]
            yield job

    def arrived(self, job: Job, waiting: Sequence[Job]) -> None:
        """A tenant that had nothing waiting saved up no claim while it was away: it begins level with the least served
        of those that wait, or with the last one that did."""
        tenants = {other.tenant for other in waiting if other is not job}
        if job.tenant not in tenants:
            level = min((self.counters.get(name, 0) for name in tenants), default=self.counters.get(self._last, 0))
            if len(self.counters) > self._MOST:
                # Who is level with a newcomer, or below, loses nothing by being taken for one.
                self.counters = {name: count for name, count in self.counters.items() if count > level}
            self.counters[job.tenant] = max(self.counters.get(job.tenant, 0), level)

    def served(self, job: Job, prompt: int, output: int) -> None:
        cost = self.PROMPT * prompt + self.OUTPUT * output
        self.counters[job.tenant] = self.counters.get(job.tenant, 0) + cost
        if prompt:
            self._last = job.tenant  # it left the line


POLICIES: dict[str, Callable[[], Policy]] = {
    "lpm": LongestPrefix,
    "fcfs": FirstCome,
    "dfs": DepthFirst,
    "priority": ByPriority,
    "fair": FairShare,
    "random": Shuffled,
}
