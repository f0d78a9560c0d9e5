"""Whole programs, on palmette and on a server driven by a plain client, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

import palmette as pt
from palmette.benchmarks.measure import drive
from palmette.benchmarks.subject import Subject
from palmette.benchmarks.synthetic import Writer
from palmette.benchmarks.workload import Manner, Setup, Workload
from palmette.benchmarks.workloads import WORKLOADS
from palmette.runtime.protocol import Backend

# In the order of WORKLOADS.md; those that ask for nothing but texts.
USUAL = ("W1", "W3", "W5", "W7", "W8", "W8b", "W9", "W12", "W14")
_PALMETTE = "palmette"


class Run(NamedTuple):
    """rate: programs a second."""

    workload: str
    engine: str
    round: int
    rate: float


def compare(
    names: Sequence[str],
    subject: Subject,
    peers: Mapping[str, Backend],
    *,
    settings: Mapping[str, Any],
    parallel: int,
    runs: int,
    told: Callable[[str], None],
) -> list[Run]:
    """Each workload `runs` times on a new engine of palmette and then on each peer, on new texts each time, so that no
    cache has seen them. KeyboardInterrupt where Ctrl-C comes."""
    done: list[Run] = []
    for name in names:
        workload = WORKLOADS[name]
        for turn in range(1, runs + 1):
            setup = Setup(workload.items, workload.scale, turn, Writer(subject.tokenizer))
            with pt.Engine.from_model(subject.model, subject.tokenizer, **settings) as engine:
                done.append(_one(workload, setup, _PALMETTE, engine, parallel, turn))
            told(f"{name} {turn} {_PALMETTE}: {done[-1].rate:.3f} programs/s")
            for peer, backend in peers.items():
                done.append(_one(workload, setup, peer, backend, parallel, turn))
                told(f"{name} {turn} {peer}: {done[-1].rate:.3f} programs/s")
    return done


def _one(workload: Workload, setup: Setup, engine: str, backend: Backend, parallel: int, turn: int) -> Run:
    rounds = workload.rounds(setup)
    took = drive(workload, rounds, Manner(backend), parallel=parallel, seed=turn)
    if not took.complete:
        raise KeyboardInterrupt
    return Run(workload.name, engine, turn, len(took.latencies) / took.seconds)


def table(runs: Sequence[Run]) -> Table:
    """Medians, and of each peer how many times more programs a second palmette runs, with least and most of rounds."""
    engines = list(dict.fromkeys(run.engine for run in runs))
    shown = Table(title="Programs a second")
    shown.add_column("")
    for engine in engines:
        shown.add_column(engine, justify="right")
        if engine != _PALMETTE:
            shown.add_column(f"palmette / {engine}", justify="right")
    for name in dict.fromkeys(run.workload for run in runs):
        of = {
            engine: {run.round: run.rate for run in runs if (run.workload, run.engine) == (name, engine)}
            for engine in engines
        }
        cells = [f"{name} {WORKLOADS[name].title}"]
        for engine in engines:
            cells.append(f"{median(of[engine].values()):.3g}" if of[engine] else "-")
            if engine != _PALMETTE:
                cells.append(_ratios(of[_PALMETTE], of[engine]))
        shown.add_row(*cells)
    return shown


def _ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    both = [ours[turn] / theirs[turn] for turn in ours if turn in theirs]
    if not both:
        return "-"
    return f"{median(ours.values()) / median(theirs.values()):.2f}x ({min(both):.2f}..{max(both):.2f})"
