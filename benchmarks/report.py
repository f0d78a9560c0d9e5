"""Results for people (tables) and for programs (plain data)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from rich.table import Table

from palmette.benchmarks.ablations import FULL, Variant
from palmette.benchmarks.measure import Result
from palmette.benchmarks.workload import Setup, Workload

_PERCENTS = (50, 95, 99)
# Times of runs shorter than this say little of each other, in seconds.
_SHORT = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """A workload and its runs, by variant: the full one first. parallel: programs in progress at once."""

    workload: Workload
    setup: Setup
    parallel: int
    variants: Mapping[Variant, Sequence[Result]]

    def shown(self, variant: Variant) -> Result:
        """Of several runs of one variant, that with the median of programs/s. One that was broken off counts only
        where there is no other."""
        complete = [run for run in self.variants[variant] if run.complete]
        runs = sorted(complete or self.variants[variant], key=lambda run: run.programs_per_second)
        return runs[(len(runs) - 1) // 2]

    def same_answers(self, variant: Variant) -> bool | None:
        """Whether all runs of the variant gave the answers of the first full one; None where one was broken off, where
        there is no other run to compare with, or where the texts are free ones in place of constrained."""
        if variant.free or sum(map(len, self.variants.values())) == 1:
            return None
        runs = [*self.variants[FULL][:1], *self.variants[variant]]
        if not all(run.complete for run in runs):
            return None
        return len({run.answers for run in runs}) == 1


class Row(NamedTuple):
    """A line of the table. ratio: show it of other variants as a multiple of the full one."""

    label: str
    value: Callable[[Result], float]
    form: str
    ratio: bool = True


_ROWS = (
    Row("programs/s", lambda run: run.programs_per_second, ".2f"),
    *(Row(f"latency p{percent}, s", partial(Result.latency, percent=percent), ".2f") for percent in _PERCENTS),
    Row("requests", lambda run: run.requests, ",d"),
    Row("prompt tokens", lambda run: run.prompt_tokens, ",d"),
    Row("cached tokens", lambda run: run.cached_tokens, ",d"),
    Row("forced tokens", lambda run: run.forced_tokens, ",d"),
    Row("generated tokens", lambda run: run.generated_tokens, ",d"),
    Row("forward calls", lambda run: run.forward_calls, ",d"),
    Row("forward tokens", lambda run: run.forward_tokens, ",d"),
    Row("hit rate", lambda run: run.hit_rate, ".1%", ratio=False),
    Row("optimal hit rate", lambda run: run.optimal_hit_rate, ".1%", ratio=False),
    Row("achieved / optimal", lambda run: run.hit_ratio, ".3f", ratio=False),
    Row("preemptions", lambda run: run.preemptions, ",d"),
    Row("evicted tokens", lambda run: run.evicted_tokens, ",d"),
    Row("KV distinct", lambda run: run.distinct_tokens, ",d"),
    Row("KV peak in use", lambda run: run.kv_peak, ",d"),
    Row("KV size", lambda run: run.kv_tokens, ",d"),
)


# Rows of the overview, and what they are called there.
_OVERVIEW = {
    "programs/s": "programs/s",
    "latency p50, s": "p50, s",
    "latency p99, s": "p99, s",
    "forward calls": "calls",
    "forward tokens": "tokens",
    "hit rate": "hits",
    "optimal hit rate": "optimal",
    "achieved / optimal": "ratio",
}


def table(report: Report) -> Table:
    """One workload: the full variant's numbers, and of each other one how many times those they are."""
    full = report.shown(FULL)
    shown = Table(box=None, header_style="dim", pad_edge=False)
    shown.add_column("", no_wrap=True)
    for variant in report.variants:
        name = variant.name.replace("-", "-\n") + ("" if report.shown(variant).complete else "\n(broken\noff)")
        # Names are broken at their hyphens; numbers never, of which the full variant has the long ones.
        shown.add_column(name, justify="right", overflow="fold", no_wrap=variant is FULL)
    for row in _ROWS:
        cells = [_cell(row, report.shown(variant), None if variant is FULL else full) for variant in report.variants]
        shown.add_row(row.label, *cells)
    answers = [{True: "yes", False: "NO", None: "-"}[report.same_answers(variant)] for variant in report.variants]
    shown.add_row("same answers", *answers)
    return shown


def notes(report: Report) -> list[str]:
    """What must be known to read the table."""
    shown = [report.shown(variant) for variant in report.variants]
    compared = [run for run in shown if run.complete]
    if len(compared) > 1 and min(run.seconds for run in compared) < _SHORT:
        return [
            f"Runs of less than {_SHORT:g} s: ratios of programs/s and of latencies are mostly noise. "
            "More --items make them longer; --repeat shows a median."
        ]
    return []


def heading(report: Report) -> str:
    """What stands above the table."""
    setup, full = report.setup, report.shown(FULL)
    data = "recorded data" if setup.folder else "synthetic data"
    runs = report.variants[FULL]
    counted = sum(run.complete for run in runs)
    several = f", median of {counted} runs" if counted > 1 else ""
    if 0 < counted < len(runs):
        several += f" ({len(runs) - counted} more broken off)"
    broken = "" if full.complete else " (broken off)"
    return (
        f"{report.workload.name} {report.workload.title}: {full.programs} programs in {full.seconds:.1f} s{broken}, "
        f"{data}, scale {setup.scale:g}{several}"
    )


def overview(reports: Sequence[Report]) -> Table:
    """All workloads, the full variant of each."""
    shown = Table(box=None, header_style="dim", pad_edge=False)
    rows = [row for row in _ROWS if row.label in _OVERVIEW]
    shown.add_column("")
    for row in rows:
        shown.add_column(_OVERVIEW[row.label], justify="right")
    for report in reports:
        run = report.shown(FULL)
        shown.add_row(report.workload.name, *(_number(row, run) for row in rows))
    return shown


def as_data(reports: Sequence[Report], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What --json writes."""
    return {"manifest": dict(manifest), "workloads": [_workload_data(report) for report in reports]}


def _workload_data(report: Report) -> dict[str, Any]:
    full = report.shown(FULL)
    return {
        "name": report.workload.name,
        "title": report.workload.title,
        "data": "recorded" if report.setup.folder else "synthetic",
        "items": report.setup.items,
        "scale": report.setup.scale,
        "seed": report.setup.seed,
        "parallel": report.parallel,
        "options": {name: getattr(report.setup.options, name) for name in report.workload.takes},
        "variants": [
            {
                "name": variant.name,
                "settings": dict(variant.settings),
                "sequential_forks": variant.sequential,
                "complete": all(run.complete for run in runs),
                "same_answers": report.same_answers(variant),
                "ratios": _ratios(report.shown(variant), full) if report.shown(variant).complete else None,
                "runs": [_run_data(run) for run in runs],
            }
            for variant, runs in report.variants.items()
        ],
    }


def _run_data(run: Result) -> dict[str, Any]:
    data = asdict(run)
    del data["workload"], data["variant"], data["latencies"]
    return {
        **data,
        "programs_per_second": run.programs_per_second,
        "latency_seconds": {f"p{percent}": run.latency(percent) for percent in _PERCENTS},
        "hit_rate": run.hit_rate,
        "optimal_hit_rate": run.optimal_hit_rate,
        "hit_ratio": run.hit_ratio,
    }


def _ratios(run: Result, full: Result) -> dict[str, float | None]:
    """Of each number that is shown as a ratio, how many times the full variant's; None where that one is 0."""
    return {row.label: row.value(run) / row.value(full) if row.value(full) else None for row in _ROWS if row.ratio}


def _cell(row: Row, run: Result, full: Result | None) -> str:
    if full is not None and not run.complete:
        return "-"
    if full is None or not row.ratio or not row.value(full):
        return _number(row, run)
    return f"{row.value(run) / row.value(full):.2f}x"


def _number(row: Row, run: Result) -> str:
    return format(row.value(run), row.form)
