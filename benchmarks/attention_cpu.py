"""How quick the C++ attention is, beside what the processor could do and beside another build of the library: `python
-m palmette.benchmarks.attention_cpu [--threads N] [--seconds S] [--against LIBRARY] [CASE ...]`.

SmolLM2-135M's heads (9 queries, 3 of keys, 64 elements) over bf16 KV in slots that are thrown about. The builds take
turns, call by call; a figure is the least of a case's times, in ms and in multiply-adds a second (those that the causal
mask leaves). `ceiling` is the bare fp32 multiplication loop, timed between the calls. With one thread times are of the
processor, not of the clock on the wall, so that what else runs on the machine counts less.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import torch

from palmette.kernels.cpu.library import Library, Team, load, pointer
from palmette.kernels.cpu.linear import FORMATS
from palmette.kernels.cpu.step import Op, batch_record, cache_record
from palmette.kernels.ragged import RaggedBatch, Segment
from palmette.kernels.tape import KV

HEADS, KV_HEADS, SIZE = 9, 3, 64
CEILING_ROUNDS = 60_000


class Case(NamedTuple):
    """`requests` of which each has `context` positions behind it and brings `new` ones."""

    requests: int
    context: int
    new: int

    @property
    def products(self) -> int:
        seen = self.context * self.new + self.new * (self.new + 1) // 2
        return 2 * HEADS * SIZE * self.requests * seen


CASES = {
    "prefill-512": Case(1, 0, 512),
    "prefill-2048": Case(1, 0, 2048),
    "prefill-8192": Case(1, 0, 8192),
    "chunk-512-at-1536": Case(1, 1536, 512),
    "decode-1-at-300": Case(1, 300, 1),
    "decode-1-at-2000": Case(1, 2000, 1),
    "decode-32-at-300": Case(32, 300, 1),
    "decode-32-at-2000": Case(32, 2000, 1),
}


def prepared(case: Case) -> Callable[[Team], None]:
    """The case as one call of the library, everything else done before."""
    length = case.context + case.new
    slots = torch.randperm(case.requests * length)
    shape = (1, len(slots), KV_HEADS, SIZE)
    kv = KV(torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16())
    lists = slots.view(case.requests, length).tolist()
    tokens = [0] * case.new
    batch = RaggedBatch.of([Segment(tokens, case.context, s[: case.context], s[case.context :]) for s in lists])
    q = torch.randn(case.requests * case.new, HEADS, SIZE)
    out = torch.empty_like(q)
    record, cache, work = Op(heads=HEADS, scale=SIZE**-0.5), cache_record(kv), batch_record(batch, None)

    def call(team: Team) -> None:
        team.library.check(
            team.library.dll.pal_attention(
                team.handle, ctypes.byref(record), ctypes.byref(cache), ctypes.byref(work), pointer(q), True,
                pointer(out),
            )
        )  # fmt: skip
        assert kv is not None and batch is not None  # the records point into them

    return call


def measure(case: Case, teams: list[Team], seconds: float) -> tuple[list[float], float]:
    """Each team's least time in seconds, and the processor's most multiply-adds a second meanwhile."""
    clock = process_time if teams[0].threads == 1 else perf_counter
    call, least, top = prepared(case), [9e9] * len(teams), 0.0

    def timed(work: Callable[[], object]) -> float:
        start = clock()
        work()
        return clock() - start

    def ceiling() -> None:
        nonlocal top
        start = clock()
        done = teams[0].library.dll.pal_ceiling(teams[0].handle, FORMATS.index("F32"), CEILING_ROUNDS)
        top = max(top, teams[0].threads * done / (clock() - start))

    for team in teams:
        call(team)
    end, rounds = perf_counter() + seconds, 0
    while rounds < 3 or perf_counter() < end:
        ceiling()
        for i, team in enumerate(teams):
            least[i] = min(least[i], timed(lambda team=team: call(team)))  # type: ignore[misc]
        rounds += 1
    return least, top


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", choices=[*CASES, []], help=", ".join(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case")
    parser.add_argument("--against", type=Path, help="another build of the library")
    given = parser.parse_args()
    libraries = [load(), *([Library(given.against)] if given.against else [])]
    teams = [Team(library, given.threads) for library in libraries]
    print(f"{given.threads} thread(s), {teams[0].level}")
    for name in given.cases or CASES:
        least, top = measure(CASES[name], teams, given.seconds)
        cells = [f"{s * 1e3:9.3f} ms {CASES[name].products / s / 1e9:5.1f} GMAC/s" for s in least]
        ratio = f", {least[1] / least[0]:.2f} x as quick as that" if given.against else ""
        print(f"{name:18} {' against '.join(cells)}{ratio}; ceiling {top / 1e9:.0f}", flush=True)


if __name__ == "__main__":
    main()
