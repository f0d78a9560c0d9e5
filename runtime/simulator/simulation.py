"""A trace against one engine or a thousand.

What happens is a queue of events in order of time: steps end, requests arrive, steps begin; at the same time in that
order, as an engine looks into its inbox between two steps. With the end of a family's last request its program leaves
the engines that it was at. Where a request goes by itself to its engine, and no request waits for one of another engine
or is of a family that goes to several, the engines are simulated one after the other, so that only one cache is in
memory.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from palmette.errors import ArgumentError
from palmette.runtime.settings import EngineSettings
from palmette.runtime.shares import Decision
from palmette.runtime.simulator.cost import Cost
from palmette.runtime.simulator.job import SimulatedJob
from palmette.runtime.simulator.replica import Replica, Totals
from palmette.runtime.simulator.router import RoundRobin, Router
from palmette.runtime.simulator.trace import Arrival, check

# Kinds of events, in the order in which they happen at the same time.
_END, _ARRIVE, _BEGIN = range(3)
# After how many ended requests progress is reported.
_REPORT = 100


class Served(NamedTuple):
    """What became of an arrival. arrival: its index in the trace. Times in seconds since the start. cached: prompt
    tokens that were not computed. output: tokens made. problem: why it was refused, "" where it was not."""

    arrival: int
    tenant: str
    replica: int
    arrived: float
    first_token: float
    ended: float
    prompt: int
    cached: int
    output: int
    preemptions: int
    problem: str


class Run(NamedTuple):
    """A simulated trace: what became of each arrival, in order of the trace, and what the engines did."""

    served: list[Served]
    totals: Totals
    replicas: int


class Simulation:
    """Engines of the same settings and cost, over which `router` spreads a trace.

    settings: as an Engine's; without kv_tokens there, each engine has room for as many as the cost model says. leaping:
    whether steps without decisions are taken together; the outcome is the same. log: told of every decision of every
    engine. progress: told now and then how many more requests have ended.
    """

    def __init__(
        self,
        cost: Cost,
        settings: EngineSettings | None = None,
        *,
        replicas: int = 1,
        router: Router | None = None,
        leaping: bool = True,
        log: Callable[[Decision], None] | None = None,
        progress: Callable[[int], None] = lambda ended: None,
    ) -> None:
        if replicas < 1:
            raise ArgumentError(f"replicas={replicas} serve nobody", hint="at least 1")
        self.settings = settings or EngineSettings()
        if self.settings.cache_dir is not None:
            raise ArgumentError("a simulation keeps no KV on disk", hint="leave cache_dir out")
        self.cost = cost
        self.kv_tokens = self.settings.kv_tokens or cost.kv_tokens()
        self.replicas = replicas
        self.router = router or RoundRobin()
        self.leaping = leaping
        self.log = log
        self.progress = progress

    def run(self, trace: Sequence[Arrival]) -> Run:
        """Let the trace happen."""
        check(trace)
        with _set_aside():
            return self._run(trace)

    def _run(self, trace: Sequence[Arrival]) -> Run:
        totals, served = Totals(), []
        for indices, places in self._parts(trace):
            queue = _Queue(self, trace, indices, places)
            queue.run()
            served += queue.served
            for replica in queue.replicas.values():
                totals.add(replica.close())
        return Run(sorted(served), totals, self.replicas)

    def replica(self, ended: Callable[[SimulatedJob, float], None], tokens: int) -> Replica:
        """A new engine, for requests that have and make so many tokens, all together."""
        return Replica(
            self.settings,
            self.cost,
            kv_tokens=self.kv_tokens,
            slots=min(self.kv_tokens, tokens),
            max_context=self.cost.max_context,
            ended=ended,
            leaping=self.leaping,
            log=self.log,
        )

    def _parts(self, trace: Sequence[Arrival]) -> Iterable[tuple[Sequence[int], Sequence[int] | None]]:
        """Indices of arrivals that can be simulated apart from the others, and for each of the trace its engine, or
        None where the router has to see what the engines have to do."""
        everything = range(len(trace))
        if not self.router.static:
            return [(everything, None)]
        loads = np.zeros(self.replicas, np.int64)
        places = [self.router.place(index, arrival, loads) for index, arrival in enumerate(trace)]
        if any(a.after is not None and places[a.after] != places[i] for i, a in enumerate(trace)):
            return [(everything, places)]
        at: dict[str, int] = {}
        if any(a.family and at.setdefault(a.family, place) != place for a, place in zip(trace, places, strict=True)):
            return [(everything, places)]
        apart: dict[int, list[int]] = defaultdict(list)
        for index in everything:
            apart[places[index]].append(index)
        return [(indices, places) for indices in apart.values()]


@contextmanager
def _set_aside() -> Iterator[None]:
    """What there is already is left out when garbage in cycles is looked for: to walk all objects of a process again
    and again, torch's among them, took a fifth of the time."""
    if gc.get_freeze_count():
        yield  # somebody else's, who would not have it undone
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Queue:
    """The events of some arrivals of a trace."""

    def __init__(
        self, simulation: Simulation, trace: Sequence[Arrival], indices: Sequence[int], places: Sequence[int] | None
    ) -> None:
        self.replicas: dict[int, Replica] = {}
        self.served: list[Served] = []
        self._simulation = simulation
        self._trace = trace
        self._places = places
        self._loads = np.zeros(simulation.replicas, np.int64)
        # (time, kind, index of the arrival or number of the replica, for an end: which of the replica's it is; for a
        # beginning: 1 where it is only to be if a hold keeps everybody out until then)
        self._events: list[tuple[float, int, int, int]] = []
        self._ends: dict[int, int] = defaultdict(int)
        self._beginning: set[int] = set()
        self._followers: dict[int, list[int]] = defaultdict(list)
        # Of each family: how many requests have not ended, and at which replicas it was.
        self._left: Counter[str] = Counter(trace[index].family for index in indices)
        self._visited: dict[str, dict[int, None]] = defaultdict(dict)
        self._tokens = 0
        for index in indices:
            arrival = trace[index]
            self._tokens += len(arrival.prompt) + arrival.asked
            if arrival.after is None:
                self._events.append((arrival.time, _ARRIVE, index, 0))
            else:
                self._followers[arrival.after].append(index)
        heapify(self._events)

    def run(self) -> None:
        """All events, and those that they lead to."""
        while self._events:
            now, kind, number, which = heappop(self._events)
            if kind == _ARRIVE:
                self._arrive(number, now)
            elif kind == _BEGIN:
                replica = self.replicas[number]
                if which and replica.held_until != now:
                    continue
                self._beginning.discard(number)
                self._ends_at(number, replica.interrupt(now) if replica.busy else replica.begin(now))
                if replica.held_until is not None:
                    heappush(self._events, (replica.held_until, _BEGIN, number, 1))
            elif which == self._ends[number]:
                self.replicas[number].end()
                self._begin(number, now)
        self._simulation.progress(len(self.served) % _REPORT)

    def _arrive(self, index: int, now: float) -> None:
        arrival = self._trace[index]
        if self._places is not None:
            number = self._places[index]
        else:
            number = self._simulation.router.place(index, arrival, self._loads)
        if number not in self.replicas:
            self.replicas[number] = self._simulation.replica(partial(self._ended, number), self._tokens)
        self._loads[number] += 1
        self._visited[arrival.family][number] = None
        self.replicas[number].add(arrival, index, now)
        self._look(number, now)

    def _look(self, number: int, now: float) -> None:
        """Something has come to a replica: it looks at it as soon as it can."""
        replica = self.replicas[number]
        if replica.busy:
            self._ends_at(number, replica.interrupt(now))
        else:
            self._begin(number, now)

    def _begin(self, number: int, now: float) -> None:
        if number not in self._beginning:
            self._beginning.add(number)
            heappush(self._events, (now, _BEGIN, number, 0))

    def _ends_at(self, number: int, end: float | None) -> None:
        """A replica's steps end then; an earlier word on that does not hold any more. None: nothing is new."""
        if end is not None:
            self._ends[number] += 1
            heappush(self._events, (end, _END, number, self._ends[number]))

    def _ended(self, number: int, job: SimulatedJob, now: float) -> None:
        self._loads[number] -= 1
        self.served.append(
            Served(
                job.index,
                job.tenant,
                number,
                job.started,
                job.first_token or now,
                now,
                job.prompt_length,
                job.cached,
                job.length - job.prompt_length,
                job.preemptions,
                job.problem,
            )
        )
        self._left[job.family] -= 1
        if job.family and not self._left[job.family]:
            for visited in self._visited.pop(job.family):
                self.replicas[visited].leave(job.family)
                self._look(visited, now)
        for index in self._followers.pop(job.index, ()):
            heappush(self._events, (now + self._trace[index].time, _ARRIVE, index, 0))
        if len(self.served) % _REPORT == 0:
            self._simulation.progress(_REPORT)
