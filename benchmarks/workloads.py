"""All workloads, by name."""

from __future__ import annotations

from palmette.benchmarks import (
    w01_mmlu,
    w03_react,
    w05_tree_of_thought,
    w06_skeleton,
    w07_judge,
    w08_fields,
    w08b_object,
    w09_chat,
    w11_gsm8k,
    w12_chains,
    w14_in_batch,
    w15_shared_prefix,
)
from palmette.benchmarks.workload import Workload
from palmette.errors import ArgumentError, suggestion

WORKLOADS: dict[str, Workload] = {
    module.WORKLOAD.name: module.WORKLOAD
    for module in (
        w01_mmlu,
        w03_react,
        w05_tree_of_thought,
        w06_skeleton,
        w07_judge,
        w08_fields,
        w08b_object,
        w09_chat,
        w11_gsm8k,
        w12_chains,
        w14_in_batch,
        w15_shared_prefix,
    )
}


def named(names: list[str]) -> list[Workload]:
    """The workloads of these names, upper or lower case, in the order given, each once; "all" for all of them."""
    chosen: dict[str, Workload] = {}
    by_name = {name.upper(): workload for name, workload in WORKLOADS.items()}
    for name in names:
        if name.lower() == "all":
            chosen.update(WORKLOADS)
        elif name.upper() in by_name:
            chosen[by_name[name.upper()].name] = by_name[name.upper()]
        else:
            raise ArgumentError(f"there is no workload {name!r}", hint=suggestion(name, [*WORKLOADS, "all"]))
    return list(chosen.values())
