"""The C++ matmul against numpy in double, in every weight format, at each level that this machine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gguf
import numpy as np
import pytest
import torch

from palmette.kernels import reference
from palmette.kernels.blocks import Blocks, Stored
from palmette.kernels.cpu.library import LibraryMissing, Team, load
from palmette.kernels.cpu.linear import FORMATS, Weight, linear, spread

try:
    LEVELS = load().levels
except LibraryMissing as missing:
    pytest.skip(f"no C++ kernels: {missing}", allow_module_level=True)

pytestmark = pytest.mark.tiny

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@pytest.fixture(scope="module", params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def teams(level: str) -> Iterator[Callable[[int], Team]]:
    """Teams of a level by their number of threads."""
    made: dict[int, Team] = {}

    def team(threads: int) -> Team:
        if threads not in made:
            made[threads] = Team(load(), threads, level)
        return made[threads]

    yield team
    for each in made.values():
        each.close()


def stored(format: str, n: int, k: int, seed: int = 0) -> Stored:
    """A random weight. Of K formats gguf-py only reads blocks, so their bits are random, their scales small."""
    rng = np.random.default_rng(seed)
    if format in PLAIN:
        return torch.from_numpy(rng.standard_normal((n, k), dtype=np.float32)).to(PLAIN[format])
    kind = gguf.GGMLQuantizationType[format]
    length, size = gguf.GGML_QUANT_SIZES[kind]
    if format.startswith("Q4_K") or format.startswith("Q6_K"):
        raw = rng.integers(0, 256, (n, k // length, size), dtype=np.uint8)
        scales = rng.uniform(-0.01, 0.01, (n, k // length, 2)).astype(np.float16).view(np.uint8)
        if format == "Q4_K":
            raw[..., :4] = scales
        else:
            raw[..., 208:] = scales[..., :2]
        return Blocks(format, raw.reshape(n, -1))
    values = rng.standard_normal((n, k), dtype=np.float32)
    raw = gguf.quantize(values, kind)
    if format == "Q8_0":  # no quantiser writes -128, but a file may hold it
        raw.reshape(n, -1, size)[:, :, 2] = 0x80
    return Blocks(format, raw)


def plain(weight: Stored) -> np.ndarray:
    """The weight as gguf-py or torch spreads it out, float32."""
    if isinstance(weight, Blocks):
        return gguf.dequantize(weight.data, gguf.GGMLQuantizationType[weight.format])
    return weight.float().numpy()


def as_bytes(x: np.ndarray) -> np.ndarray:
    """Activations as the kernels round them: by blocks of 32 to int8, then times their scale."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return (np.rint(blocks * inverse) * (largest / np.float32(127))).reshape(x.shape)


def rows_of(x: np.ndarray, format: str, level: str) -> np.ndarray:
    """The activations that the products are taken with."""
    if format not in PLAIN:
        return as_bytes(x)
    return torch.from_numpy(x).bfloat16().float().numpy() if (format, level) == ("BF16", "avx512bf16") else x


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_equals_the_spread_weight_times_the_rounded_rows(format, level, teams):
    for n, k, rows in ((80, 768, 13), (37, 256, 70), (1, 512, 3), (16, 1280, 1)):
        k = k + 3 if format in PLAIN else k
        weight, x, bias = stored(format, n, k), random(rows, k), random(n, seed=2)
        x[0, :32] = 0
        team = teams(2)
        found = linear(team, x, Weight(team, [weight], bias)).numpy()
        exact = rows_of(x, format, level).astype(np.float64), plain(weight).astype(np.float64).T
        size = np.abs(exact[0]) @ np.abs(exact[1]) + np.abs(bias)
        assert np.max(np.abs(found - (exact[0] @ exact[1] + bias)) / size) < 2e-6, (n, k, rows)


@pytest.mark.parametrize("format", [name for name in FORMATS if name not in PLAIN])
def test_rounding_the_rows_costs_no_more_than_half_a_step(format, teams):
    weight, x = stored(format, 40, 768), random(9, 768)
    team = teams(1)
    exact = x.astype(np.float64) @ plain(weight).astype(np.float64).T
    step = np.abs(x.reshape(9, -1, 32)).max(-1) / 127
    bound = np.repeat(step / 2, 32, axis=1) @ np.abs(plain(weight)).T
    assert np.all(np.abs(linear(team, x, Weight(team, [weight])).numpy() - exact) <= bound * 1.001)


def test_float32_equals_the_reference(teams):
    weight, x, bias = stored("F32", 200, 576), torch.from_numpy(random(19, 576)), torch.from_numpy(random(200, seed=2))
    expected = reference.linear(x, reference.pack_linear([weight], bias))
    found = linear(teams(2), x, Weight(teams(2), [weight], bias))
    assert (found - expected).norm() < 1e-6 * expected.norm()
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_has_the_same_bits_alone_and_in_any_batch_and_team(format, teams):
    k = 515 if format in PLAIN else 512
    parts, x = [stored(format, 150, k), stored(format, 21, k, seed=5)], random(110, k)
    weight = Weight(teams(1), parts, random(171, seed=2))
    whole = linear(teams(1), x, weight)
    for threads in (1, 2, 3):
        team = teams(threads)
        assert torch.equal(linear(team, x, weight), whole)
        for count in range(1, 71):
            start = (7 * count) % (110 - count)
            assert torch.equal(linear(team, x[start : start + count], weight), whole[start : start + count]), count


def test_parts_of_several_formats_lie_side_by_side(level, teams):
    team, x = teams(3), random(11, 512)
    parts = [stored("Q4_K", 48, 512), stored("Q6_K", 17, 512, 1), stored("BF16", 5, 512, 2), stored("Q8_0", 16, 512, 3)]
    bias = random(86, seed=4)
    found = linear(team, x, Weight(team, parts, bias)).numpy()
    start = 0
    for part in parts:
        end = start + len(part.data if isinstance(part, Blocks) else part)
        alone = linear(team, x, Weight(team, [part], bias[start:end].copy())).numpy()
        assert np.array_equal(found[:, start:end], alone)
        start = end
    assert start == found.shape[1]


def test_out_is_written_or_added_to(teams):
    team, x, before = teams(1), random(5, 96), torch.from_numpy(random(5, 35, seed=3))
    weight = Weight(team, [stored("Q8_0", 35, 96)], random(35, seed=2))
    expected, out = linear(team, x, weight), before.clone()
    assert linear(team, torch.from_numpy(x), weight, out, add=True) is out
    assert torch.equal(out, before + expected)
    assert torch.equal(linear(team, x, weight, out), expected)
    assert linear(team, x[:0], weight).shape == (0, 35)


@pytest.mark.parametrize("format", FORMATS)
def test_spread_gives_the_bits_of_gguf(format):
    weight = stored(format, 7, 768)
    assert np.array_equal(spread(weight).numpy(), plain(weight))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_a_number_stays_in_its_row_and_is_seen(bad, teams):
    for format in ("F32", "Q8_0", "Q4_1", "Q6_K"):
        x = random(6, 512)
        weight = Weight(teams(1), [stored(format, 20, 512)])
        clean = linear(teams(1), x, weight)
        x[2, 77] = bad
        found = linear(teams(1), x, weight)
        assert not torch.isfinite(found[2]).any()
        assert torch.equal(found[[0, 1, 3, 4, 5]], clean[[0, 1, 3, 4, 5]])


def test_what_cannot_be_packed_or_multiplied_is_refused(teams):
    team = teams(1)
    with pytest.raises(ValueError, match="no whole number of Q8_0 blocks"):
        Weight(team, [_Odd("Q8_0", np.zeros((4, 51), np.uint8), (4, 48))])
    with pytest.raises(ValueError, match="no whole number of Q4_K blocks of 256"):
        Weight(team, [_Odd("Q4_K", np.zeros((4, 180), np.uint8), (4, 320))])
    with pytest.raises(ValueError, match="do not know weights of Q2_K"):
        Weight(team, [Blocks("Q2_K", np.zeros((4, 84), np.uint8))])
    with pytest.raises(ValueError, match=r"do not know weights of float64"):
        Weight(team, [torch.zeros(4, 8, dtype=torch.float64)])
    with pytest.raises(ValueError, match="the same k"):
        Weight(team, [torch.zeros(4, 8), torch.zeros(4, 9)])
    with pytest.raises(ValueError, match="at least one part"):
        Weight(team, [])
    with pytest.raises(ValueError, match="has no rows"):
        Weight(team, [torch.zeros(0, 8)])
    with pytest.raises(ValueError, match="shape"):
        Weight(team, [torch.zeros(4, 8)], np.zeros(5, np.float32))
    weight = Weight(team, [torch.zeros(4, 8)])
    with pytest.raises(ValueError, match="shape"):
        linear(team, np.zeros((2, 9), np.float32), weight)
    with pytest.raises(TypeError, match="float32"):
        linear(team, np.zeros((2, 8)), weight)
    with pytest.raises(ValueError, match="nothing to add to"):
        linear(team, np.zeros((2, 8), np.float32), weight, add=True)
    with pytest.raises(ValueError, match="contiguous"):
        linear(team, np.zeros((2, 8), np.float32), weight, torch.zeros(4, 2).T)


@pytest.mark.skipif(len(LEVELS) < 2, reason="one level runs here")
def test_a_weight_belongs_to_the_level_that_packed_it():
    team, other = Team(load(), 1, LEVELS[0]), Team(load(), 1, LEVELS[-1])
    weight = Weight(team, [torch.zeros(4, 8)])
    with pytest.raises(ValueError, match=f"packed for {LEVELS[0]}, the team runs {LEVELS[-1]}"):
        linear(other, np.zeros((2, 8), np.float32), weight)


class _Odd(Blocks):
    """Blocks whose k is said to be what no whole number of blocks makes."""

    def __init__(self, format: str, data: torch.Tensor, shape: tuple[int, int]) -> None:
        super().__init__(format, data)
        object.__setattr__(self, "said", shape)

    __slots__ = ("said",)

    @property
    def shape(self) -> tuple[int, int]:
        return self.said
