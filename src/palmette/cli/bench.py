"""`palmette bench`: workloads in all variants that are asked for, as tables and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from palmette.benchmarks import data
from palmette.benchmarks.ablations import ABLATIONS, FULL, Variant, variants
from palmette.benchmarks.workload import Options, Setup, Workload
from palmette.benchmarks.workloads import WORKLOADS, named
from palmette.cli.output import console, plain
from palmette.errors import ArgumentError, BackendError

if TYPE_CHECKING:
    from palmette.benchmarks.report import Report
    from palmette.benchmarks.subject import Subject
    from palmette.benchmarks.suite import Begin, Outcome


@dataclass(frozen=True, slots=True)
class Wishes:
    """The command line. None: as the workload says, or as the engine does by default."""

    model: str
    items: int | None = None
    scale: float | None = None
    parallel: int = 64
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    ablate: Sequence[str] = ()
    repeat: int = 1
    data: Path | None = None
    synthetic: bool = False
    options: Options = field(default_factory=Options)
    json: Path | None = None
    trace: Path | None = None


def list_workloads() -> None:
    """Print what there is, a line for each."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("name", "workload", "programs", "scale", "what"):
        table.add_column(heading, overflow="fold")
    for workload in WORKLOADS.values():
        table.add_row(workload.name, workload.title, str(workload.items), f"{workload.scale:g}", workload.about)
    out = console()
    out.print(table)
    out.print()
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("--ablate", "what is left out"):
        table.add_column(heading, overflow="fold")
    for variant in ABLATIONS.values():
        table.add_row(variant.name, variant.about)
    out.print(table)


def run_bench(names: list[str], wishes: Wishes) -> None:
    """Run the workloads, print each when it is done, then all together. Ctrl-C ends it with what there is, status 130.

    BackendError where answers differ that must not: with a model that gives the same bits in every schedule.
    """
    workloads = _chosen(names, wishes)
    folder = None if wishes.synthetic else data.find(wishes.data)
    for path in (wishes.json, wishes.trace):
        if path is not None and str(path) != "-" and not path.absolute().parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.absolute().parent}", param_hint="--json, --trace")
    out = console(err=wishes.json is not None and str(wishes.json) == "-")

    from palmette.benchmarks import suite
    from palmette.benchmarks.subject import load

    subject = load(wishes.model)
    suite.warm_up(subject)
    reports: list[Report] = []
    complete = True
    try:
        for workload in workloads:
            outcome = _run(workload, wishes, subject, folder)
            reports.append(outcome.report)
            _show(outcome, wishes, out)
            complete = outcome.complete
            if not complete:
                break
    except KeyboardInterrupt:  # between two runs
        complete = False
    _finish(reports, wishes, subject, out)
    if not complete:
        raise typer.Exit(130)
    _check(reports, subject)


def _chosen(names: list[str], wishes: Wishes) -> list[Workload]:
    if not names:
        raise typer.BadParameter("name workloads, or all; palmette bench --list explains them", param_hint="WORKLOAD")
    from palmette.runtime.settings import EngineSettings

    try:
        workloads = named(names)
        # What is wrong is said before the model is loaded.
        EngineSettings(**wishes.settings)
        for workload in workloads:
            variants(workload, wishes.ablate, wishes.settings)
    except ArgumentError as error:
        raise typer.BadParameter(f"{error.message}; {error.hint}") from None
    heeded = {option for workload in workloads for option in workload.takes}
    for option in ("long", "mode", "zipf"):
        if getattr(wishes.options, option) != getattr(Options(), option) and option not in heeded:
            takers = ", ".join(workload.name for workload in WORKLOADS.values() if option in workload.takes)
            raise typer.BadParameter(f"only {takers} heeds it", param_hint=f"--{option}")
    if wishes.trace is not None and len(workloads) > 1:
        raise typer.BadParameter("a trace is of one workload; name one", param_hint="--trace")
    return workloads


def _run(workload: Workload, wishes: Wishes, subject: Subject, folder: Path | None) -> Outcome:
    from palmette.benchmarks import suite
    from palmette.benchmarks.synthetic import Writer

    setup = Setup(
        items=wishes.items or workload.items,
        scale=wishes.scale or workload.scale,
        seed=wishes.seed,
        writer=Writer(subject.tokenizer),
        folder=folder if workload.recorded(folder) else None,
        options=wishes.options,
    )
    chosen = variants(workload, wishes.ablate, wishes.settings)
    with _progress(workload.name, len(chosen) * wishes.repeat) as begin:
        return suite.run(
            workload,
            setup,
            subject,
            chosen,
            settings=wishes.settings,
            parallel=wishes.parallel,
            repeat=wishes.repeat,
            begin=begin,
        )


@contextmanager
def _progress(name: str, runs: int) -> Iterator[Begin]:
    """A bar on standard error while there is somebody to look at it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name)
        begun = 0

        def begin(variant: Variant, programs: int) -> Any:
            nonlocal begun
            begun += 1
            which = f" {begun}/{runs}" if runs > 1 else ""
            bar.reset(task, total=programs, description=f"{name} {variant.name}{which}")
            return lambda: bar.advance(task)

        yield begin


def _show(outcome: Outcome, wishes: Wishes, out: Console) -> None:
    from palmette.benchmarks.recording import arrivals
    from palmette.benchmarks.report import heading, table
    from palmette.runtime.simulator.trace import write_trace

    if wishes.trace is not None:
        write_trace(wishes.trace, arrivals(outcome.records))
    out.print(heading(outcome.report), style="bold", soft_wrap=True)
    out.print(table(outcome.report))
    out.print()


def _finish(reports: Sequence[Report], wishes: Wishes, subject: Subject, out: Console) -> None:
    from palmette.benchmarks.manifest import manifest
    from palmette.benchmarks.report import as_data, overview
    from palmette.cli.doctor import machine

    if len(reports) > 1:
        out.print("All workloads", style="bold")
        out.print(overview(reports))
    if wishes.json is None:
        return
    found = manifest(subject, machine(), wishes.settings, sys.argv)
    text = json.dumps(as_data(reports, found), ensure_ascii=False, indent=2, default=plain)
    if str(wishes.json) == "-":
        print(text)
    else:
        wishes.json.write_text(text + "\n", encoding="utf-8")


def _check(reports: Sequence[Report], subject: Subject) -> None:
    differ = [
        f"{report.workload.name} {variant.name}"
        for report in reports
        for variant in report.variants
        if report.same_answers(variant) is False
    ]
    if differ and subject.model.batch_invariant:
        raise BackendError(
            f"answers differ from those of the {FULL.name} engine: {', '.join(differ)}",
            hint="this is a fault of palmette: a schedule must never change an answer; please report it",
        )
