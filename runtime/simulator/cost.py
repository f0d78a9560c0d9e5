"""How long a step takes, from what a model is and what a machine can do: the roofline.

A step that computes `rows` tokens does

    FLOPs    2 * (elements of all layers' matrices) * rows  +  2 * hidden * vocab * (tokens drawn)
             +  4 * heads * head_dim * (pairs of a row and a token that it sees, over all layers)
    bytes    the layers' weights once, the output matrix once if a token is drawn, an embedding row for each row,
             keys and values: those that each job sees, read once; those of the rows, written

and takes max(FLOPs / peak FLOPs, bytes / peak bandwidth) + overhead (Williams et al. 2009, "Roofline: an insightful
visual performance model"). Activations are left out: they stay on the chip in good kernels. Both peaks are multiplied
by `efficiency`, and by the number of devices that share a model; what these say to each other is taken as free. So the
result is what no engine can be faster than; policies are compared on it, absolute figures are not promised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from palmette.errors import ArgumentError
from palmette.runtime.models.architecture import Architecture, LayerKind, Rope, parameters

# How much of a device's memory is for weights and KV; the rest is for activations and the driver.
_MEMORY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device's peaks. flops: dense FLOPs a second in the type of the weights; overhead_seconds: what a step costs
    before anything is computed (scheduling, launches)."""

    name: str
    flops: float
    bytes_per_second: float
    overhead_seconds: float
    memory_bytes: float


# GPUs: bf16 tensor cores without sparsity, bandwidth and memory, from NVIDIA's data sheets of the SXM modules ("A100
# 80GB" 2021; "H100" 2023, whose 1,979 TFLOPS are with sparsity; "H200" 2024). CPU: two cores of 3 GHz with two AVX2 FMA
# units (2 * 3e9 * 2 * 8 * 2, in fp32) and one channel of DDR4-3200. The overheads are guesses: what a step of an engine
# in Python may cost.
HARDWARE = {
    "a100": Hardware("NVIDIA A100 80GB SXM", 312e12, 2.039e12, 2e-3, 80e9),
    "h100": Hardware("NVIDIA H100 SXM", 989.4e12, 3.35e12, 2e-3, 80e9),
    "h200": Hardware("NVIDIA H200 SXM", 989.4e12, 4.8e12, 2e-3, 141e9),
    "cpu": Hardware("2 CPU cores", 192e9, 25.6e9, 1e-3, 16e9),
}


def _llama(
    layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    kv_heads: int,
    *,
    vocab: int = 128_256,
    max_context: int = 131_072,
    tied: bool = False,
) -> Architecture:
    rope = Rope(theta=5e5, dim=hidden // heads)
    return Architecture(
        family="llama",
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        layers=(LayerKind(rope),) * layers,
        vocab=vocab,
        max_context=max_context,
        tied=tied,
    )


# From the models' published configs.
SHAPES = {
    "smollm2-135m": _llama(30, 576, 1536, 9, 3, vocab=49_152, max_context=8192, tied=True),
    "llama-3-8b": _llama(32, 4096, 14_336, 32, 8),
    "llama-3-70b": _llama(80, 8192, 28_672, 64, 8),
}


class Charge(NamedTuple):
    """What steps cost, one entry for each."""

    seconds: Sequence[float]
    flops: Sequence[float]
    bytes: Sequence[float]


class Cost(Protocol):
    """Says what steps cost, and what fits."""

    @property
    def max_context(self) -> int:
        """The most tokens of a request."""
        ...

    def kv_tokens(self) -> int:
        """How many tokens' KV an engine has room for."""
        ...

    def step(self, starts: Sequence[int], counts: Sequence[int], draws: int) -> Charge:
        """One step, in which job j computes counts[j] tokens behind starts[j]; `draws` of the jobs draw a token."""
        ...

    def decodes(self, starts: Sequence[int], steps: int) -> Charge:
        """So many steps in a row, in each of which every job computes one token and draws one; before the first, job j
        has starts[j]."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCost:
    """Every step takes the same time: to look at the schedule alone, or to compare it with an engine's, step by step.
    capacity: tokens of KV."""

    seconds: float = 1.0
    capacity: int = 32_768
    max_context: int = 1 << 20

    def kv_tokens(self) -> int:
        return self.capacity

    def step(self, starts: Sequence[int], counts: Sequence[int], draws: int) -> Charge:
        return self.decodes(starts, 1)

    def decodes(self, starts: Sequence[int], steps: int) -> Charge:
        return Charge([self.seconds] * steps, [0.0] * steps, [0.0] * steps)


class CostModel:
    """The roofline of a model on hardware; see the module. weight_bytes, kv_bytes: of one element, kv_bytes by default
    as weight_bytes. devices: how many hold the model together. efficiency: which part of the peaks is reached."""

    def __init__(
        self,
        arch: Architecture,
        hardware: Hardware,
        *,
        weight_bytes: float = 2,
        kv_bytes: float | None = None,
        devices: int = 1,
        efficiency: float = 1.0,
    ) -> None:
        if not 0 < efficiency <= 1:
            raise ArgumentError(f"efficiency={efficiency} makes no sense", hint="a part of the peaks, above 0 to 1")
        self.arch = arch
        self.max_context = arch.max_context
        self.hardware = hardware
        self.devices = devices
        self.peak_flops = hardware.flops * devices
        self.peak_bytes = hardware.bytes_per_second * devices
        self._efficiency = efficiency
        sizes = [(p, int(np.prod(p.shape))) for p in parameters(arch)]
        self.weights = sum(size for _, size in sizes) * weight_bytes
        self._layer_bytes = sum(size for p, size in sizes if p.layer >= 0) * weight_bytes
        self._layer_flops = 2 * sum(size for p, size in sizes if p.layer >= 0 and len(p.shape) == 2)
        self._head_flops = 2 * arch.vocab * arch.hidden
        self._head_bytes = arch.vocab * arch.hidden * weight_bytes
        self._embedding_bytes = arch.hidden * weight_bytes
        self._pair_flops = 4 * arch.heads * arch.head_dim
        # Of one token in one layer: a key and a value.
        self._kv_bytes = 2 * arch.kv_heads * arch.head_dim * (weight_bytes if kv_bytes is None else kv_bytes)
        self._layers = len(arch.layers)
        self.kv_bytes_per_token = self._kv_bytes * self._layers
        self._windows = Counter(layer.window for layer in arch.layers)

    def kv_tokens(self) -> int:
        """How many tokens' KV fit beside the weights. ArgumentError where not even these fit."""
        left = self.hardware.memory_bytes * self.devices * _MEMORY_SHARE - self.weights
        if left < self.kv_bytes_per_token:
            raise ArgumentError(
                f"weights of {self.weights / 1e9:.0f} GB leave no room for KV on {self.devices} x {self.hardware.name}",
                hint="more devices, or a smaller model",
            )
        return int(left // self.kv_bytes_per_token)

    def step(self, starts: Sequence[int], counts: Sequence[int], draws: int) -> Charge:
        """See Cost."""
        first, rows = np.array(starts), np.array(counts)
        end = first + rows
        seen = read = 0
        for window, layers in self._windows.items():
            seen += layers * int((_triangle(end, window) - _triangle(first, window)).sum())
            read += layers * int((np.minimum(end, window - 1 + rows) if window else end).sum())
        seconds, flops, moved = self._roofline(int(rows.sum()), draws, seen, read)
        return Charge([seconds], [flops], [moved])

    def decodes(self, starts: Sequence[int], steps: int) -> Charge:
        """See Cost."""
        jobs = len(starts)
        seen = self._seen(starts, steps)
        # Where a job computes one token, it reads what it sees.
        each = [self._roofline(jobs, jobs, pairs, pairs) for pairs in seen]
        seconds, flops, moved = zip(*each, strict=True)
        return Charge(seconds, flops, moved)

    def _seen(self, starts: Sequence[int], steps: int) -> list[int]:
        """Pairs of a row and a token that it sees, over all layers, in each of the steps."""
        if not any(self._windows):
            layers, total, jobs = self._windows[0], sum(starts), len(starts)
            return [layers * (total + jobs * step) for step in range(1, steps + 1)]
        seen = np.zeros(steps, np.int64)
        lengths = np.array(starts)[None, :] + np.arange(1, steps + 1)[:, None]
        for window, layers in self._windows.items():
            seen += layers * (np.minimum(lengths, window) if window else lengths).sum(1)
        return seen.tolist()

    def _roofline(self, rows: int, draws: int, seen: int, read: int) -> tuple[float, float, float]:
        """Seconds, FLOPs and bytes of a step. seen: pairs of a row and a token, over all layers; read: tokens whose KV
        is read, likewise."""
        flops = self._layer_flops * rows + self._head_flops * draws + self._pair_flops * seen
        moved = self._layer_bytes + self._embedding_bytes * rows + self._kv_bytes * (read + rows * self._layers)
        if draws:
            moved += self._head_bytes
        bound = max(flops / self.peak_flops, moved / self.peak_bytes)
        return bound / self._efficiency + self.hardware.overhead_seconds, flops, moved


def _triangle(length: np.ndarray, window: int) -> np.ndarray:
    """How many tokens the rows of texts of these lengths see, all together: 1 + 2 + ..., no row more than `window`."""
    if not window:
        return np.asarray(length * (length + 1) // 2)
    short = np.minimum(length, window)
    return np.asarray(short * (short + 1) // 2 + (length - short) * window)
