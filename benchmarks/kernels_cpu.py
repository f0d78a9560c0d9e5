"""How quick the C++ matmul is, beside torch's and beside what the processor could do: `python -m
palmette.benchmarks.kernels_cpu [threads ...]`.

The linears of SmolLM2-135M's 30 layers (106 M weights, each layer its own, so that they come from memory as in a model)
and its head, on random weights. A cell is the sum over the matrices of each one's best time, so that what else runs on
the machine counts little; in brackets GMAC/s. `ceiling` is the bare multiplication loop of the format, GMAC/s; `read`
the weights' bytes over the time for one row, GB/s, to hold against torch reading through a large tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import gguf
import numpy as np
import torch

from palmette.kernels import reference
from palmette.kernels.blocks import Blocks, Stored
from palmette.kernels.cpu.library import Team, load
from palmette.kernels.cpu.linear import FORMATS, Weight, linear

LAYERS = 30
HEAD = (49152, 576)
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
ROWS = (1, 8, 32, 64, 512)
MEASURED = ("F32", "BF16", "Q8_0", "Q4_0", "Q4_1")
SECONDS = 1.0
CEILING_ROUNDS = 20_000

Call = Callable[[], object]


def best(calls: Sequence[Call], seconds: float = SECONDS) -> float:
    """The sum of each call's least time; the calls run one after the other, again and again."""
    least, end, rounds = [9e9] * len(calls), perf_counter() + seconds, 0
    while rounds < 3 or perf_counter() < end:
        for i, call in enumerate(calls):
            start = perf_counter()
            call()
            least[i] = min(least[i], perf_counter() - start)
        rounds += 1
    return sum(least)


def random_weight(format: str, shape: tuple[int, int]) -> Stored:
    """Blocks are random bytes below 60, so that no scale is infinite."""
    if format in ("F32", "BF16"):
        return torch.randn(shape).to(torch.float32 if format == "F32" else torch.bfloat16)
    length, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format]]
    return Blocks(format, np.random.default_rng(0).integers(0, 60, (shape[0], shape[1] // length * size), np.uint8))


def ceiling(team: Team, format: str, seconds: float = SECONDS) -> float:
    """Multiply-adds a second of the bare inner loop, by all threads at once: the best of calls of a few milliseconds,
    for so long that new threads have found a core each and the clock has risen."""
    top, end = 0.0, perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        done = team.library.dll.pal_ceiling(team.handle, FORMATS.index(format), CEILING_ROUNDS)
        top = max(top, team.threads * done / (perf_counter() - start))
    return top


def reading() -> float:
    """Bytes a second that torch's sum gets through."""
    large = torch.ones(64 << 20)
    return large.nbytes / best([large.sum])


def row(name: str, calls: Callable[[int], list[Call]], head: Callable[[int], Call], size: int, top: float) -> str:
    weights = LAYERS * sum(n * k for n, k in SHAPES)
    cells = []
    for rows in ROWS:
        seconds = best(calls(rows))
        cells.append(f"{seconds * 1e3:8.2f} ({weights * rows / seconds / 1e9:5.1f})")
        if rows == ROWS[0]:
            read = f"{size / seconds / 1e9:5.1f}"
    heads = "".join(f"{best([head(rows)]) * 1e3:8.2f}" for rows in (1, 64))
    return f"| {name:9} |{' |'.join(cells)} |{heads} | {read} | {f'{top / 1e9:5.0f}' if top else '    -'} |"


def measure(threads: int) -> None:
    torch.set_num_threads(threads)
    team = Team(load(), threads)
    shapes = [shape for _ in range(LAYERS) for shape in SHAPES]
    print(f"\n{threads} thread(s), {team.level}; torch's sum reads {reading() / 1e9:.1f} GB/s")
    print(f"| ms (GMAC/s) |{' |'.join(f'{rows:>9} rows ' for rows in ROWS)} | head 1, 64 ms | read | ceiling |")
    inputs = {(rows, k): torch.randn(rows, k) for rows in ROWS for k in {k for _, k in SHAPES}}

    def show(name: str, call: Callable[..., object], weights: list[Any], head: Any, size: int, top: float) -> None:
        def calls(rows: int) -> list[Call]:
            return [partial(call, inputs[rows, k], w) for w, (_, k) in zip(weights, shapes, strict=True)]

        print(row(name, calls, lambda rows: partial(call, inputs[rows, HEAD[1]], head), size, top), flush=True)

    packed = [reference.pack_linear([torch.randn(shape)]) for shape in (*shapes, HEAD)]
    show("torch F32", reference.linear, packed[:-1], packed[-1], 4 * sum(n * k for n, k in shapes), 0.0)
    del packed
    outs = {(rows, n): torch.empty(rows, n) for rows in ROWS for n in {n for n, _ in (*SHAPES, HEAD)}}

    def ours(x: torch.Tensor, w: Weight) -> object:
        return linear(team, x, w, outs[len(x), w.n])

    for format in MEASURED:
        weights = [Weight(team, [random_weight(format, shape)]) for shape in shapes]
        head = Weight(team, [random_weight(format, HEAD)])
        show(format, ours, weights, head, sum(w.bytes for w in weights), ceiling(team, format))


if __name__ == "__main__":
    for count in [int(word) for word in sys.argv[1:]] or [1, 2]:
        measure(count)
