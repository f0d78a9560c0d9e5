"""A workload in all its variants, several times if need be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from palmette.benchmarks import w14_in_batch
from palmette.benchmarks.ablations import FULL, Variant
from palmette.benchmarks.measure import Result, measure
from palmette.benchmarks.recording import Record
from palmette.benchmarks.report import Report
from palmette.benchmarks.subject import Subject
from palmette.benchmarks.synthetic import Writer
from palmette.benchmarks.workload import Setup, Workload

Begin = Callable[[Variant, int], Callable[[], None]]
"""Told of each run that begins, and how many programs it has; gives what is called at the end of each of them."""


class Outcome(NamedTuple):
    """records: of the first run of the full variant. complete: Ctrl-C did not come."""

    report: Report
    records: list[Record]
    complete: bool


def warm_up(subject: Subject) -> None:
    """A few small programs, so that the first run does not pay for what a process does once. KeyboardInterrupt where
    Ctrl-C comes."""
    workload = w14_in_batch.WORKLOAD
    setup = Setup(items=20, scale=0.01, seed=0, writer=Writer(subject.tokenizer))
    run = measure(workload, workload.rounds(setup), subject, FULL, settings={"kv_tokens": 4096})
    if not run.result.complete:
        raise KeyboardInterrupt


def run(
    workload: Workload,
    setup: Setup,
    subject: Subject,
    variants: Sequence[Variant],
    *,
    settings: Mapping[str, Any],
    parallel: int,
    repeat: int,
    begin: Begin,
) -> Outcome:
    """Every variant with the same arguments. All of them once, then all of them again: what changes on the machine in
    the meantime touches each alike."""
    rounds = workload.rounds(setup)
    programs = sum(map(len, rounds))
    results: dict[Variant, list[Result]] = {}
    records: list[Record] = []
    lengths: dict[object, int] = {}
    for turn in range(repeat):
        for variant in variants:
            try:
                one = measure(
                    workload,
                    rounds,
                    subject,
                    variant,
                    settings=settings,
                    parallel=parallel,
                    seed=setup.seed,
                    progress=begin(variant, programs),
                    lengths=lengths,
                )
            except KeyboardInterrupt:  # before the first program or after the last
                if not results:
                    raise
                return Outcome(Report(workload, setup, parallel, results), records, False)
            results.setdefault(variant, []).append(one.result)
            if variant is FULL and turn == 0:
                records = one.records
            if not one.result.complete:
                return Outcome(Report(workload, setup, parallel, results), records, False)
    return Outcome(Report(workload, setup, parallel, results), records, True)
