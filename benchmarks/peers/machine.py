"""What processes use: processor time, and memory. Linux only; elsewhere all is 0."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import perf_counter

_PROC = Path("/proc")


class Others:
    """How much of a core was used, while something ran, by processes that are not of these trees."""

    def __init__(self, roots: Iterable[int]) -> None:
        self._roots = list(roots)
        self._busy, self._own, self._began = busy_seconds(), self._used(), perf_counter()

    def percent(self) -> float:
        """Of one core, since the object was made."""
        others = busy_seconds() - self._busy - (self._used() - self._own)
        return max(0.0, 100 * others / (perf_counter() - self._began))

    def _used(self) -> float:
        # A worker is below the driver too: each process counts once.
        return sum(used_seconds(pid) for pid in {pid for root in self._roots for pid in tree(root)})


def tree(root: int) -> list[int]:
    """A process and all below it."""
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        for children in _PROC.glob(f"{pid}/task/*/children"):
            with suppress(OSError):
                left += map(int, children.read_text().split())
    return found


def busy_seconds() -> float:
    """Of all cores, since the machine started: all but idle and waiting for disks."""
    with suppress(OSError):
        user, nice, system, _, _, irq, softirq, steal = map(int, _PROC.joinpath("stat").read_text().split()[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return 0.0


def used_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def peak_bytes(root: int) -> int:
    """The most memory that each process of the tree has had, since it was last forgotten, added up."""
    total = 0
    for pid in tree(root):
        with suppress(OSError, StopIteration):
            lines = (_PROC / str(pid) / "status").read_text().splitlines()
            total += 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return total


def forget_peak(root: int) -> None:
    """From now on, the most memory is counted anew."""
    for pid in tree(root):
        with suppress(OSError):
            (_PROC / str(pid) / "clear_refs").write_text("5")
