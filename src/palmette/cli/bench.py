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
from palmette.cli.output import console, plain, show_error
from palmette.cli.values import check_output, choice
from palmette.errors import ArgumentError, BackendError, PalmetteError, suggestion

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
    _check_outputs(wishes)
    out = console(err=wishes.json is not None and str(wishes.json) == "-")

    from palmette.benchmarks import suite

    subject: Subject | None = None
    reports: list[Report] = []
    complete = written = True
    try:
        subject = _load(wishes.model)
        suite.warm_up(subject)
        for workload in workloads:
            outcome = _run(workload, wishes, subject, folder)
            reports.append(outcome.report)
            written &= _show(outcome, wishes, out)
            complete = outcome.complete
            if not complete:
                break
    except KeyboardInterrupt:  # between two runs
        complete = False
    written &= _finish(reports, wishes, subject, out)
    if not complete:
        console(err=True).print("interrupted: what is not complete is left out or marked (broken off)", soft_wrap=True)
        raise typer.Exit(130)
    _check(reports, subject)
    if not written:
        raise typer.Exit(1)


def _check_outputs(wishes: Wishes) -> None:
    if str(wishes.json) != "-":
        check_output("--json", wishes.json)
    if str(wishes.trace) == "-":
        raise typer.BadParameter("tables go to the output; give a file", param_hint="--trace")
    check_output("--trace", wishes.trace)
    if wishes.json is not None and wishes.trace is not None and wishes.json.absolute() == wishes.trace.absolute():
        raise typer.BadParameter("both would write the same file; give two", param_hint="--json, --trace")


def _load(name: str) -> Subject:
    from palmette.benchmarks.subject import TINY, load
    from palmette.errors import ModelError

    try:
        return load(name)
    except ModelError as error:
        # The registry does not know the model that only benchmarks have.
        near = suggestion(name, [TINY])
        if near.startswith("did you mean"):
            raise ModelError(error.message, hint=near) from None
        raise


def _chosen(names: list[str], wishes: Wishes) -> list[Workload]:
    if not names:
        raise typer.BadParameter("name workloads, or all; palmette bench --list explains them", param_hint="WORKLOAD")
    from palmette.radix_cache.eviction import POLICIES as EVICTION
    from palmette.runtime.policies import POLICIES
    from palmette.runtime.settings import EngineSettings

    for option, known in (("policy", POLICIES), ("eviction", EVICTION)):
        if option in wishes.settings:
            choice(f"--{option}", wishes.settings[option], known)
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


def _show(outcome: Outcome, wishes: Wishes, out: Console) -> bool:
    """Whether the trace was written; the table is shown in any case."""
    from palmette.benchmarks.recording import arrivals
    from palmette.benchmarks.report import heading, notes, table
    from palmette.runtime.simulator.trace import write_trace

    written = True
    if wishes.trace is not None:
        try:
            write_trace(wishes.trace, arrivals(outcome.records))
        except OSError as error:
            show_error(_not_written("--trace", wishes.trace, error))
            written = False
    out.print(heading(outcome.report), style="bold", soft_wrap=True)
    out.print(table(outcome.report))
    for note in [*notes(outcome.report), *_idle(outcome.report.workload, wishes)]:
        out.print(note, style="dim", soft_wrap=True)
    out.print()
    return written


def _idle(workload: Workload, wishes: Wishes) -> Iterator[str]:
    """Which ablations were asked for and would change nothing."""
    asked = ABLATIONS if "all" in wishes.ablate else dict.fromkeys(wishes.ablate)
    run = {variant.name for variant in variants(workload, wishes.ablate, wishes.settings)}
    for name in asked:
        if name not in run:
            why = f"{workload.name} forks nothing" if ABLATIONS[name].sequential else "it is what the full engine does"
            yield f"--ablate {name} is left out: {why}"


def _not_written(option: str, path: Path, error: OSError) -> PalmetteError:
    return ArgumentError(f"{option}: {path} cannot be written: {error.strerror}", hint="write elsewhere")


def _finish(reports: Sequence[Report], wishes: Wishes, subject: Subject | None, out: Console) -> bool:
    """Whether the JSON is where it was asked for; where it cannot be written, it goes to the output."""
    from palmette.benchmarks.manifest import manifest
    from palmette.benchmarks.report import as_data, overview
    from palmette.cli.doctor import machine

    if len(reports) > 1:
        out.print("All workloads", style="bold")
        out.print(overview(reports))
    if wishes.json is None:
        return True
    # Without a model: Ctrl-C came while it was being loaded.
    found = manifest(subject, machine(), wishes.settings, sys.argv) if subject else {"command": sys.argv}
    text = json.dumps(as_data(reports, found), ensure_ascii=False, indent=2, default=plain)
    if str(wishes.json) == "-":
        print(text)
        return True
    try:
        wishes.json.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        print(text)
        show_error(_not_written("--json", wishes.json, error))
        return False
    return True


def _check(reports: Sequence[Report], subject: Subject | None) -> None:
    differ = [
        f"{report.workload.name} {variant.name}"
        for report in reports
        for variant in report.variants
        if report.same_answers(variant) is False
    ]
    if differ and subject is not None and subject.model.batch_invariant:
        raise BackendError(
            f"answers differ from those of the {FULL.name} engine: {', '.join(differ)}",
            hint="this is a fault of palmette: a schedule must never change an answer; please report it",
        )
