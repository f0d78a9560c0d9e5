"""What this machine can do at most: bytes read a second, multiply-adds a second.

Multiply-adds are those of the bare inner loop of the C++ kernels' formats (kernels_cpu.ceiling). Reading is a loop of
additions in C, compiled here, each thread on its part; without a C compiler it is torch's sum, which is slower.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import numpy as np

_SOURCE = """
#include <stddef.h>
#include <stdint.h>
uint64_t total(const uint64_t *from, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += from[i];
    return sum;
}
"""
_SECONDS = 0.6


class Ceilings(NamedTuple):
    """read: bytes a second, by how many bytes are read again and again (what the caches hold of few is quicker). macs:
    multiply-adds a second, by format. by: what did the reading."""

    read: dict[int, float]
    macs: dict[str, float]
    by: str


def measured(sizes: Iterable[int], formats: Iterable[str], threads: int) -> Ceilings:
    from palmette.benchmarks.kernels_cpu import ceiling
    from palmette.kernels.cpu.library import Team, load

    team = Team(load(), threads)
    # Again and again: a call takes a few milliseconds, and a team that has just been made may not be up by then.
    macs = {format: _most(partial(ceiling, team, format)) for format in dict.fromkeys(formats)}
    with TemporaryDirectory() as folder:
        library = _compiled(Path(folder))
        if library is None:
            import torch

            torch.set_num_threads(threads)
        read = {size: _reading(library, size, threads) for size in dict.fromkeys(sizes)}
    return Ceilings(read, macs, "torch's sum" if library is None else "a loop in C")


def _compiled(folder: Path) -> ctypes.CDLL | None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    source, out = folder / "read.c", folder / "read.so"
    source.write_text(_SOURCE)
    words = [compiler, "-O3", "-march=native", "-funroll-loops", "-shared", "-fPIC", str(source), "-o", str(out)]
    if subprocess.run(words, capture_output=True).returncode:
        return None
    library = ctypes.CDLL(str(out))
    library.total.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.total.restype = ctypes.c_uint64
    return library


def _reading(library: ctypes.CDLL | None, size: int, threads: int) -> float:
    """The best of many passes, in bytes a second."""
    words = np.ones(max(threads, size // 8), np.uint64)
    if library is None:
        import torch

        tensor = torch.from_numpy(words.view(np.float32))
        return tensor.nbytes / _best(tensor.sum)
    parts = np.array_split(words, threads)
    with ThreadPoolExecutor(threads) as pool:

        def once() -> object:
            # ctypes lets go of the GIL, so the threads read at the same time.
            return list(pool.map(lambda part: library.total(part.ctypes.data, len(part)), parts))

        return words.nbytes / _best(once)


def _best(call: Callable[[], object]) -> float:
    """The least seconds that a call took."""

    def quick() -> float:
        began = perf_counter()
        call()
        return began - perf_counter()

    return -_most(quick)


def _most(call: Callable[[], float]) -> float:
    """The most that a call gave, over some time."""
    most, end = -inf, perf_counter() + _SECONDS
    while perf_counter() < end:
        most = max(most, call())
    return most
