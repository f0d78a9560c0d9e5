"""`palmette simulate`: what scheduling policies would do with a trace, side by side."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from palmette.cli.output import console, print_json, show_error
from palmette.cli.values import check_output, choice
from palmette.errors import ArgumentError
from palmette.radix_cache.eviction import POLICIES as EVICTION
from palmette.runtime.models.architecture import Architecture
from palmette.runtime.models.hf_config import architecture
from palmette.runtime.policies import POLICIES
from palmette.runtime.settings import EngineSettings
from palmette.runtime.simulator import (
    HARDWARE,
    ROUTERS,
    SHAPES,
    WORKLOADS,
    Arrival,
    CostModel,
    Optimum,
    Range,
    Report,
    Simulation,
    best_possible,
    read_trace,
    report,
    write_trace,
)

# Of so many tenants the table shows what each got; of more, only --json does.
_TENANTS = 8
# Times in the table: heading, field of the report, unit, factor.
_TIMES = (
    ("first token", "first_token", "s", 1.0),
    ("latency", "latency", "s", 1.0),
    ("token to token", "per_token", "ms", 1000.0),
)


@dataclass(frozen=True, slots=True)
class Scene:
    """The command line. trace: a file, or else `workload` is made up with those of its `lengths` that are not None.
    settings: of every engine, without the policy."""

    trace: Path | None
    workload: str
    requests: int
    rate: float
    shape: str
    hardware: str
    devices: int
    dtype_bytes: float
    efficiency: float
    replicas: int
    router: str
    policies: Sequence[str]
    lengths: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    save: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a scene. kv_tokens: of each engine; done: the report of each policy that was run to the end;
    seconds: how long each took to simulate."""

    scene: Scene
    cost: CostModel
    kv_tokens: int
    trace: Sequence[Arrival]
    best: Optimum
    done: dict[str, Report] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def run_simulate(scene: Scene, *, as_json: bool) -> None:
    """Simulate the trace under each policy, and print the reports. Ctrl-C ends it with those that are done, status
    130. ArgumentError where no request fits in the KV cache."""
    for policy in scene.policies:
        choice("--policy", policy, POLICIES)
    if "eviction" in scene.settings:
        choice("--eviction", scene.settings["eviction"], EVICTION)
    if str(scene.save) == "-":
        raise typer.BadParameter("the figures go to the output; give a file", param_hint="--save")
    check_output("--save", scene.save)
    cost = CostModel(
        _shape(scene.shape),
        choice("--hardware", scene.hardware, HARDWARE),
        weight_bytes=scene.dtype_bytes,
        devices=scene.devices,
        efficiency=scene.efficiency,
    )
    router = choice("--router", scene.router, ROUTERS)
    settings = [EngineSettings(policy=policy, **scene.settings) for policy in scene.policies]
    trace = _trace(scene)
    written = scene.save is None or _save(scene.save, trace)
    kv_tokens = scene.settings.get("kv_tokens") or cost.kv_tokens()
    outcome = Outcome(scene, cost, kv_tokens, trace, best_possible(trace))
    complete = True
    try:
        for one in settings:
            with _progress(one.policy, len(trace)) as advance:
                simulation = Simulation(cost, one, replicas=scene.replicas, router=router(), progress=advance)
                begun = time.perf_counter()
                run = simulation.run(trace)
                outcome.seconds[one.policy] = time.perf_counter() - begun
            figures = outcome.done[one.policy] = report(run, outcome.best, cost)
            # No policy can change that, so there is nothing to compare.
            if figures.refused == len(trace):
                raise ArgumentError(
                    f"none of the {len(trace):,} requests fits in a KV cache of {kv_tokens:,} tokens",
                    hint="give a larger --kv-tokens, or shorter prompts and outputs",
                )
    except KeyboardInterrupt:
        complete = False
    if as_json:
        print_json(_data(outcome))
    elif outcome.done:
        _show(outcome)
    if not complete:
        said = f"interrupted: {len(outcome.done)} of {len(settings)} policies are done"
        console(err=True).print(said, soft_wrap=True)
        raise typer.Exit(130)
    if not written:
        raise typer.Exit(1)


def _save(path: Path, trace: Sequence[Arrival]) -> bool:
    try:
        write_trace(path, trace)
    except OSError as error:
        show_error(ArgumentError(f"--save: {path} cannot be written: {error.strerror}", hint="write elsewhere"))
        return False
    return True


def _trace(scene: Scene) -> list[Arrival]:
    given = {name: value for name, value in scene.lengths.items() if value is not None}
    if scene.trace is not None:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise typer.BadParameter(f"these say how to make a trace up, and {scene.trace} is one", param_hint=names)
        if not scene.trace.exists() or scene.trace.is_dir():
            problem = "is a folder" if scene.trace.is_dir() else "does not exist"
            raise typer.BadParameter(f"{scene.trace} {problem}; give a file of JSON lines", param_hint="TRACE.jsonl")
        trace = read_trace(scene.trace)
        if not trace:
            raise ArgumentError(f"there is no request in {scene.trace}", hint="one JSON object on each line")
        return trace
    make: Callable[..., list[Arrival]] = choice("--workload", scene.workload, WORKLOADS)
    if not scene.rate > 0:
        raise typer.BadParameter(
            f"{scene.rate:g} lets nothing arrive; give requests a second, above 0, or inf", param_hint="--rate"
        )
    takes = signature(make).parameters
    for name in given:
        if name not in takes:
            heeding = [workload for workload, other in WORKLOADS.items() if name in signature(other).parameters]
            raise typer.BadParameter(
                f"{scene.workload} has none; of {', '.join(heeding)} only", param_hint=f"--{name.replace('_', '-')}"
            )
    ranges = {name for name, parameter in takes.items() if isinstance(parameter.default, Range)}
    values = {name: _range(name, value) if name in ranges else value for name, value in given.items()}
    return make(scene.requests, rate=scene.rate, **values)


def _range(name: str, text: str) -> Range:
    """`LOW:HIGH`, or one number for both."""
    low, _, high = text.partition(":")
    if low.isdecimal() and (high or low).isdecimal() and int(low) <= int(high or low):
        return Range(int(low), int(high or low))
    raise typer.BadParameter(f"{text!r} is neither a number of tokens nor LOW:HIGH", param_hint=f"--{name}")


def _shape(name: str) -> Architecture:
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        try:
            return architecture(json.loads(path.read_text(encoding="utf-8")), path)
        except ValueError as error:
            raise ArgumentError(f"{path} is no JSON: {error}", hint="give a model's config.json") from None
    found: Architecture = choice("--model-shape", name, SHAPES)
    return found


@contextmanager
def _progress(policy: str, requests: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while there is somebody to look at it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(policy, total=requests)
        yield lambda ended: bar.advance(task, ended)


def _data(outcome: Outcome) -> dict[str, Any]:
    """What `--json` prints."""
    scene, cost = outcome.scene, outcome.cost
    return {
        "model_shape": scene.shape,
        "model": cost.arch.describe(),
        "hardware": asdict(cost.hardware),
        "devices": cost.devices,
        "replicas": scene.replicas,
        "router": scene.router,
        "kv_tokens": outcome.kv_tokens,
        "settings": dict(scene.settings),
        "trace": str(scene.trace) if scene.trace is not None else scene.workload,
        "requests": len(outcome.trace),
        "optimum": outcome.best._asdict(),
        "policies": {
            policy: {**asdict(figures), "simulated_in_seconds": outcome.seconds[policy]}
            for policy, figures in outcome.done.items()
        },
    }


def _show(outcome: Outcome) -> None:
    scene, trace, best = outcome.scene, outcome.trace, outcome.best
    engine = f"{scene.devices} x {outcome.cost.hardware.name}" if scene.devices > 1 else outcome.cost.hardware.name
    out = console()
    out.print(
        f"{scene.shape} on {scene.replicas:,} x ({engine}), KV for {outcome.kv_tokens:,} tokens each, {scene.router}",
        soft_wrap=True,
    )
    out.print(
        f"{len(trace):,} requests of {scene.trace or scene.workload}, {best.prompt:,} prompt tokens; "
        f"optimal hit rate {best.hit_rate:.1%}",
        soft_wrap=True,
    )
    out.print()
    for table in _tables(outcome.done, out):
        out.print(table)
        out.print()
    speed = ", ".join(f"{len(trace) / max(taken, 1e-9):,.0f}" for taken in outcome.seconds.values())
    out.print(f"simulated at {speed} requests a second", style="dim", soft_wrap=True)


def _tables(done: Mapping[str, Report], out: Console) -> Iterator[Table]:
    """As many policies side by side as the console is wide for, the others below."""
    left = list(done)
    while left:
        count = len(left)
        while count > 1 and _width(_table(done, left[:count]), out) > out.width:
            count -= 1
        yield _table(done, left[:count])
        left = left[count:]


def _width(table: Table, out: Console) -> int:
    return Measurement.get(out, out.options.update(max_width=10_000), table).maximum


def _table(done: Mapping[str, Report], policies: Sequence[str]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("", style="cyan", no_wrap=True)
    for policy in policies:
        table.add_column(policy, justify="right", overflow="fold")
    for heading, figure in _rows(next(iter(done.values()))):
        table.add_row(heading, *(figure(done[policy]) for policy in policies))
    return table


def _rows(first: Report) -> Iterator[tuple[str, Callable[[Report], str]]]:
    """The lines of the table: heading, and how a report's figure is written. `first` says which tenants there are."""
    yield "requests/s", lambda r: f"{r.requests_per_second:,.2f}"
    yield "output tokens/s", lambda r: f"{r.output_tokens_per_second:,.0f}"
    for what, name, unit, factor in _TIMES:
        for quantile in ("p50", "p95", "p99"):
            yield f"{what} {quantile} {unit}", _quantile(name, quantile, factor)
    yield "hit rate", lambda r: f"{r.hit_rate:.1%}"
    yield "achieved / optimal", lambda r: f"{r.hit_share:.3f}"
    yield "tokens computed", lambda r: f"{r.computed_tokens:,}"
    yield "computed again", lambda r: f"{r.recomputed_tokens:,}"
    yield "preemptions", lambda r: f"{r.preemptions:,}"
    yield "tokens evicted", lambda r: f"{r.evicted_tokens:,}"
    yield "holds that gave way", lambda r: f"{r.dropped_holds:,}"
    yield "most KV tokens in use", lambda r: f"{r.peak_kv_tokens:,}"
    yield "steps", lambda r: f"{r.steps:,}"
    yield "busy", lambda r: f"{r.busy_share:.1%}"
    yield "of peak FLOPs / bandwidth", lambda r: f"{r.compute_share:.1%} / {r.bandwidth_share:.1%}"
    if first.refused:
        yield "refused, as they never fit", lambda r: f"{r.refused:,}"
    if len(first.tenants) > 1:
        yield "fairness (1: all the same)", lambda r: f"{r.fairness:.3f}"
    if 1 < len(first.tenants) <= _TENANTS:
        for name in first.tenants:
            yield f"{name or 'no tenant'}: first token p95 s", _tenant(name)


def _tenant(name: str) -> Callable[[Report], str]:
    return lambda r: f"{r.tenants[name].first_token.p95:.3f}" if name in r.tenants else ""


def _quantile(name: str, quantile: str, factor: float) -> Callable[[Report], str]:
    return lambda r: f"{factor * getattr(getattr(r, name), quantile):.4g}"
