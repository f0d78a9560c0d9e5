"""The engines in turns: one run of each, then one more of each, on texts that none of them has seen."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import sleep
from typing import Any, NamedTuple, Protocol

import jsonschema

from palmette.benchmarks.peers.machine import Others
from palmette.errors import BackendError

# Others' share of one core, in per cent, below which the machine counts as quiet; how long is waited for that.
QUIET = 12.0


class Runner(Protocol):
    """Of Worker what is used here."""

    @property
    def pid(self) -> int: ...
    @property
    def start_seconds(self) -> float: ...
    @property
    def facts(self) -> Mapping[str, Any]: ...
    def run(self, workload: str, data: Mapping[str, Any]) -> dict[str, Any]: ...
    def peak_bytes(self) -> int: ...
    def forget_peak(self) -> None: ...
    def close(self) -> None: ...


Start = Callable[[str], Runner]
Make = Callable[[str, int], dict[str, Any]]


class Run(NamedTuple):
    """One run. figures: see table.FIGURES. others: per cent of one core that other processes used meanwhile. size: of
    the texts, see workloads.Author; {} where there are none."""

    workload: str
    engine: str
    round: int
    figures: dict[str, Any]
    others: float
    size: dict[str, Any]


class Plan(NamedTuple):
    """patience: seconds that each run waits for a quiet machine. long: an engine that took more seconds than that for
    a workload runs it no more."""

    engines: Sequence[str]
    workloads: Sequence[str]
    runs: int
    patience: float = 60.0
    long: float = float("inf")


class Session:
    """Engines that are up, and what they have done. `notes`: (engine, workload, why it has no figures)."""

    def __init__(self, plan: Plan, start: Start, make: Make, told: Callable[[str], None]) -> None:
        self._plan, self._start, self._make, self._told = plan, start, make, told
        self._up: dict[str, Runner] = {}
        self.runs: list[Run] = []
        self.notes: list[tuple[str, str, str]] = []
        self.facts: dict[str, dict[str, Any]] = {}
        self.peaks: dict[str, int] = {}

    def go(self) -> None:
        """All workloads. Whatever ends it, the engines are shut down and their peaks known."""
        with self._engines():
            for workload in self._plan.workloads:
                self._starts() if workload == "G" else self._rounds(workload)

    @contextmanager
    def _engines(self) -> Iterator[None]:
        try:
            yield
        finally:
            for name in list(self._up):
                self._stop(name)

    def _rounds(self, workload: str) -> None:
        over: set[str] = set()
        for turn in range(1, self._plan.runs + 1):
            data = self._make(workload, turn)
            for engine in self._plan.engines:
                if engine in over:
                    continue
                try:
                    done = self._one(workload, engine, turn, data)
                except BackendError as error:
                    self._stop(engine)
                    self._note(engine, workload, str(error))
                    done = False
                if not done:
                    over.add(engine)

    def _one(self, workload: str, engine: str, turn: int, data: dict[str, Any]) -> bool:
        """Whether the engine goes on with this workload."""
        runner = self._runner(engine)
        self._wait()
        others = Others([os.getpid(), *(each.pid for each in self._up.values())])
        self._note_peak(engine)
        runner.forget_peak()
        answer = runner.run(workload, data)
        share = others.percent()
        peak = self._note_peak(engine)
        if "refused" in answer:
            self._note(engine, workload, answer["refused"])
            return False
        figures = {**judged(answer["figures"], data.get("schemas")), "memory": peak / 2**20}
        took = figures.pop("took", 0.0)
        self._keep(Run(workload, engine, turn, figures, share, data["size"]))
        return bool(took <= self._plan.long)

    def _starts(self) -> None:
        """Each engine anew, none beside it."""
        for name in list(self._up):
            self._stop(name)
        for turn in range(1, self._plan.runs + 1):
            for engine in self._plan.engines:
                self._wait()
                others = Others([os.getpid()])
                try:
                    runner = self._runner(engine)
                except BackendError as error:
                    self._note(engine, "G", str(error))
                    continue
                figures = {"start": runner.start_seconds, "memory": runner.peak_bytes() / 2**20}
                # The worker's own share is found before it ends: it counts with ours while it is our child.
                self._keep(Run("G", engine, turn, figures, others.percent(), {}))
                self._stop(engine)

    def _runner(self, engine: str) -> Runner:
        if engine not in self._up:
            self._up[engine] = self._start(engine)
            self.facts[engine] = dict(self._up[engine].facts)
        return self._up[engine]

    def _stop(self, engine: str) -> None:
        if engine in self._up:
            self._note_peak(engine)
            self._up.pop(engine).close()

    def _note_peak(self, engine: str) -> int:
        """The engine's peak since it was last forgotten."""
        peak = self._up[engine].peak_bytes()
        self.peaks[engine] = max(self.peaks.get(engine, 0), peak)
        return peak

    def _wait(self) -> None:
        """Until the machine is quiet, at most as long as the plan's patience."""
        left = self._plan.patience
        while left > 0:
            others = Others([os.getpid(), *(each.pid for each in self._up.values())])
            sleep(min(1.0, left))
            left -= 1.0
            if others.percent() < QUIET:
                return

    def _keep(self, run: Run) -> None:
        self.runs.append(run)
        shown = " ".join(f"{name} {value:.4g}" for name, value in run.figures.items() if isinstance(value, int | float))
        self._told(f"{run.workload} {run.round} {run.engine}: {shown} (others {run.others:.0f} %)")

    def _note(self, engine: str, workload: str, why: str) -> None:
        self.notes.append((engine, workload, why))
        self._told(f"{workload} {engine}: {why}")


def judged(figures: Mapping[str, Any], schemas: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """The figures; in place of texts, the per cent of them that are JSON as their schemas say, and the first text."""
    if schemas is None or "texts" not in figures:
        return dict(figures)
    texts: list[str] = figures["texts"]
    valid = sum(_valid(text, schema) for text, schema in zip(texts, schemas, strict=True))
    rest = {name: value for name, value in figures.items() if name != "texts"}
    return {**rest, "valid": 100 * valid / len(texts), "sample": texts[0]}


def _valid(text: str, schema: Mapping[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def as_runs(data: Iterable[Mapping[str, Any]]) -> list[Run]:
    return [Run(**each) for each in data]
