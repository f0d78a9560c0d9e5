"""What the runs came to: medians, the ratios of palmette to each peer, and how far palmette is from the roof."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

from palmette.benchmarks.peers.ceilings import Ceilings
from palmette.benchmarks.peers.roofline import Roof, shape
from palmette.benchmarks.peers.rounds import QUIET, Run
from palmette.benchmarks.peers.workloads import WORKLOADS


class Figure(NamedTuple):
    """key: of Run.figures. more: larger is better."""

    workload: str
    key: str
    label: str
    form: str = ".0f"
    more: bool = True


FIGURES: tuple[Figure, ...] = (
    Figure("A", "decode", "A decode, tokens/s", ".1f"),
    *(Figure("A", f"first_{n}", f"A first token after {n}, ms", ".0f", more=False) for n in (128, 512, 2048)),
    Figure("B32", "rate", "B 32 together, tokens/s"),
    Figure("B64", "rate", "B 64 together, tokens/s"),
    Figure("C", "cold", "C shared prefix, cold, s", ".2f", more=False),
    Figure("C", "warm", "C shared prefix, warm, s", ".2f", more=False),
    Figure("D", "seconds", "D chats, s", ".2f", more=False),
    Figure("E", "rate", "E one schema, tokens/s"),
    Figure("E", "valid", "E valid, %"),
    Figure("E2", "rate", "E 32 schemas, tokens/s"),
    Figure("E2", "valid", "E 32 schemas, valid, %"),
    Figure("F1", "rate", "F by letter, questions/s", ".2f"),
    Figure("F2", "rate", "F by whole option, questions/s", ".2f"),
    Figure("G", "start", "G start to first token, s", ".2f", more=False),
    Figure("G", "memory", "G memory by then, MiB", ".0f", more=False),
)
FIGURES += tuple(
    Figure(name, "memory", f"{name} peak memory, MiB", ".0f", more=False) for name in WORKLOADS if name != "G"
)
OURS = "palmette:"


def series(runs: Iterable[Run], figure: Figure) -> dict[str, dict[int, float]]:
    """By engine and round."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        if run.workload == figure.workload and figure.key in run.figures:
            found.setdefault(run.engine, {})[run.round] = run.figures[figure.key]
    return found


class Ratio(NamedTuple):
    """How many times better than the peer, by the medians of the rounds that both have; least and most of them."""

    value: float
    least: float
    most: float


def ratio(ours: Mapping[int, float], theirs: Mapping[int, float], more: bool) -> Ratio | None:
    """Above 1: ours is better. None where they have no round in common, or one is 0."""

    def better(a: float, b: float) -> float:
        return a / b if more else b / a

    both = [turn for turn in ours if turn in theirs]
    if not both or not all([*ours.values(), *theirs.values()]):
        return None
    each = [better(ours[turn], theirs[turn]) for turn in both]
    middles = [median(side[turn] for turn in both) for side in (ours, theirs)]
    return Ratio(better(*middles), min(each), max(each))


def figures_table(runs: Sequence[Run]) -> Table:
    """Medians, and in brackets least and most."""
    engines = list(dict.fromkeys(run.engine for run in runs))
    shown = Table(box=None, header_style="dim", pad_edge=False)
    shown.add_column("median (min..max)", no_wrap=True)
    for engine in engines:
        shown.add_column(engine, justify="right", overflow="fold")
    for figure in FIGURES:
        found = series(runs, figure)
        if found:
            shown.add_row(figure.label, *(_cell(found.get(engine), figure) for engine in engines))
    return shown


def ratios_table(runs: Sequence[Run]) -> Table:
    """A row for each figure and form of palmette."""
    peers = [name for name in dict.fromkeys(run.engine for run in runs) if not name.startswith(OURS)]
    shown = Table(box=None, header_style="dim", pad_edge=False)
    shown.add_column("times better than", no_wrap=True)
    shown.add_column("", no_wrap=True)
    for peer in peers:
        shown.add_column(peer, justify="right", overflow="fold")
    for figure in FIGURES:
        found = series(runs, figure)
        for ours in (name for name in found if name.startswith(OURS)):
            pairs = [ratio(found[ours], found.get(peer, {}), figure.more) for peer in peers]
            if any(pairs):
                shown.add_row(figure.label, ours.removeprefix(OURS), *map(_ratio_cell, pairs))
    return shown


def roof_table(runs: Sequence[Run], facts: Mapping[str, Mapping[str, Any]], ceilings: Ceilings) -> Table:
    """Of palmette's figures: the bound, and how much of it was reached."""
    shown = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("against the roof", "", "palmette", "bound", "reached"):
        shown.add_column(column, justify="left" if len(column) in (0, 16) else "right", no_wrap=True)
    for figure in FIGURES:
        for ours, values in series(runs, figure).items():
            bound = bound_of(runs, figure, ours, facts.get(ours, {}), ceilings)
            if bound is None:
                continue
            middle = median(values.values())
            reached = middle / bound if figure.more else bound / middle
            cells = (format(middle, figure.form), format(bound, figure.form), f"{reached:.0%}")
            shown.add_row(figure.label, ours.removeprefix(OURS), *cells)
    return shown


def bound_of(
    runs: Sequence[Run], figure: Figure, engine: str, facts: Mapping[str, Any], ceilings: Ceilings
) -> float | None:
    """The median of the bounds of an engine's runs; None for other engines than palmette, for other figures, and where
    the ceilings for its weights were not measured."""
    model = shape(facts)
    if model is None or model.main not in ceilings.macs or model.bytes not in ceilings.read:
        return None
    roof = Roof(model, ceilings)
    bounds = [
        roof.figures(run.workload, run.size, run.figures).get(figure.key)
        for run in runs
        if run.engine == engine and run.workload == figure.workload
    ]
    known = [bound for bound in bounds if bound is not None]
    return median(known) if known else None


def notes(runs: Sequence[Run], told: Iterable[tuple[str, str, str]], peaks: Mapping[str, int]) -> list[str]:
    """What must be known to read the tables."""
    lines = [f"{workload} {engine}: {why}" for engine, workload, why in told]
    disturbed = [run for run in runs if run.others >= QUIET]
    if disturbed:
        worst = max(run.others for run in disturbed)
        lines.append(
            f"In {len(disturbed)} of {len(runs)} runs other processes used {QUIET:g} % or more of a core (at most "
            f"{worst:.0f} %)."
        )
    if peaks:
        shown = ", ".join(f"{engine} {peak / 2**20:,.0f}" for engine, peak in peaks.items())
        lines.append(f"Peak memory over all these runs, MiB: {shown}.")
    return lines


def _cell(values: Mapping[int, float] | None, figure: Figure) -> str:
    if not values:
        return "-"
    middle, least, most = (format(f(values.values()), figure.form) for f in (median, min, max))
    return middle if len(values) == 1 else f"{middle} ({least}..{most})"


def _ratio_cell(found: Ratio | None) -> str:
    if found is None:
        return "-"
    return f"{found.value:.2f} ({found.least:.2f}..{found.most:.2f})"
