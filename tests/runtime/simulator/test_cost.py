"""The roofline, against its formulae written out row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.errors import ArgumentError
from palmette.runtime.models.architecture import LayerKind, Rope
from palmette.runtime.models.tiny import tiny_architecture
from palmette.runtime.simulator.cost import HARDWARE, SHAPES, CostModel

pytestmark = pytest.mark.tiny

H100 = HARDWARE["h100"]


def test_named_shapes_have_the_published_sizes():
    sizes = {name: CostModel(shape, H100).weights / 2 for name, shape in SHAPES.items()}
    assert sizes == pytest.approx({"smollm2-135m": 134.5e6, "llama-3-8b": 8.03e9, "llama-3-70b": 70.6e9}, rel=0.005)
    eight = CostModel(SHAPES["llama-3-8b"], H100)
    assert eight.kv_bytes_per_token == 131_072
    assert eight.kv_tokens() == int((0.9 * 80e9 - eight.weights) // 131_072)
    with pytest.raises(ArgumentError, match="more devices"):
        CostModel(SHAPES["llama-3-70b"], H100).kv_tokens()
    assert CostModel(SHAPES["llama-3-70b"], H100, devices=4).kv_tokens() > 400_000


def test_one_decode_is_bound_by_reading_the_weights_and_a_long_prefill_by_arithmetic():
    cost = CostModel(SHAPES["llama-3-8b"], H100)
    (seconds,), _, (moved,) = cost.step([100], [1], 1)
    # All but the embedding, of which one row is read.
    assert moved == pytest.approx(cost.weights - 128_256 * 4096 * 2, rel=0.01)
    assert seconds == pytest.approx(moved / 3.35e12 + 0.002)
    (seconds,), (flops,), _ = cost.step([0], [8192], 1)
    attention = 4 * 4096 * 32 * 8192 * 8193 / 2
    assert flops == pytest.approx(2 * 6.98e9 * 8192 + 2 * 128_256 * 4096 + attention, rel=0.001)
    assert seconds == pytest.approx(flops / 989.4e12 + 0.002)
    # A chunk that draws nothing needs no output matrix.
    assert cost.step([0], [64], 0).bytes[0] < cost.step([0], [64], 1).bytes[0] - 1e9


def test_devices_and_efficiency():
    one = CostModel(SHAPES["llama-3-8b"], replace(H100, overhead_seconds=0.0))
    two = CostModel(SHAPES["llama-3-8b"], replace(H100, overhead_seconds=0.0), devices=2, efficiency=0.5)
    assert one.step([50], [7], 1).seconds == pytest.approx(two.step([50], [7], 1).seconds)
    with pytest.raises(ArgumentError, match="efficiency"):
        CostModel(SHAPES["llama-3-8b"], H100, efficiency=0)


WINDOWED = tiny_architecture(layers=1, window=5)
MIXED = replace(WINDOWED, layers=(*WINDOWED.layers, LayerKind(Rope(1e4, 8)), LayerKind(Rope(1e4, 8), 9)))
JOBS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=5)


@given(jobs=JOBS, draws=st.integers(0, 2), arch=st.sampled_from([tiny_architecture(), WINDOWED, MIXED]))
def test_a_step_costs_what_its_rows_see(jobs, draws, arch):
    cost = CostModel(arch, H100, weight_bytes=4)
    seen = read = 0
    for layer in arch.layers:
        for start, n in jobs:
            rows = [set(range(max(0, row + 1 - (layer.window or row + 1)), row + 1)) for row in range(start, start + n)]
            seen += sum(map(len, rows))
            read += len(set.union(*rows))
    rows = sum(n for _, n in jobs)
    matrices = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64
    norms = 2 * 32
    _, (flops,), (moved,) = cost.step([start for start, _ in jobs], [n for _, n in jobs], draws)
    layers = len(arch.layers)
    assert flops == 2 * matrices * layers * rows + 2 * 32 * 260 * draws + 4 * 32 * seen
    head = 260 * 32 if draws else 0
    assert moved == 4 * (layers * (matrices + norms) + head + rows * 32 + 2 * 16 * (read + rows * layers))


@settings(max_examples=50)
@given(
    starts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    steps=st.integers(1, 12),
    arch=st.sampled_from([SHAPES["llama-3-8b"], WINDOWED, MIXED]),
)
def test_steps_taken_together_cost_what_they_cost_singly(starts, steps, arch):
    cost = CostModel(arch, H100)
    together = cost.decodes(starts, steps)
    for step in range(steps):
        single = cost.step([start + step for start in starts], [1] * len(starts), len(starts))
        assert (single.seconds[0], single.flops[0], single.bytes[0]) == (
            together.seconds[step],
            together.flops[step],
            together.bytes[step],
        )
