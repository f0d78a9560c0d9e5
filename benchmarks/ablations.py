"""Variants of the engine and of the programs, each without one thing that the full one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palmette.benchmarks.workload import Workload
from palmette.errors import ArgumentError, suggestion


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """settings: of the engine, in place of those of the run. sequential: branches one after the other. free: without
    constraints, texts of the same lengths."""

    name: str
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    sequential: bool = False
    free: bool = False


FULL = Variant("full", "everything as it is by default, or as options say")

ABLATIONS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("cache-off", "no prefix is kept", {"cache": False}),
        Variant("flat-cache", "no tree: a prompt is found again as a whole or not at all", {"cache": "flat"}),
        Variant("fcfs", "first come, first served", {"policy": "fcfs"}),
        Variant("random", "requests in random order", {"policy": "random"}),
        Variant(
            "lpm", "longest cached prefix first (the default: for comparison with another --policy)", {"policy": "lpm"}
        ),
        Variant(
            "no-dedupe", "requests that begin alike and arrive together do not wait for each other", {"dedupe": False}
        ),
        Variant("sequential-forks", "no branch begins before the one before it has ended", sequential=True),
        Variant("free", "texts of the same lengths without their constraints", free=True),
        Variant("no-hints", "nothing is held for a program's next request when others want room", {"hints": False}),
        Variant("no-speculation", "nothing is computed before it is drawn", {"speculation": "off"}),
    )
}


def variants(workload: Workload, names: Sequence[str], settings: Mapping[str, Any]) -> list[Variant]:
    """The full variant, then those of these names that differ from it: sequential forks do only where the workload
    forks, free texts only where it is constrained. "all" stands for all of them. ArgumentError for an unknown name."""
    wanted: dict[str, Variant] = {}
    for name in names:
        if name == "all":
            wanted.update(ABLATIONS)
        elif name in ABLATIONS:
            wanted[name] = ABLATIONS[name]
        else:
            raise ArgumentError(f"--ablate: there is no {name!r}", hint=suggestion(name, [*ABLATIONS, "all"]))
    base = {"policy": "lpm", **settings}
    return [FULL] + [
        variant
        for variant in wanted.values()
        if (variant.sequential and workload.forks)
        or (variant.free and workload.constrained)
        or any(base.get(k) != v for k, v in variant.settings.items())
    ]
