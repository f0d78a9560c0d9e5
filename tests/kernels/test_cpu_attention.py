"""The C++ attention and the operations around it against the reference, at each level that this machine runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.kernels import reference
from palmette.kernels.cpu import ops
from palmette.kernels.cpu.library import LibraryMissing, Team, load
from palmette.kernels.ragged import RaggedBatch, Segment

try:
    LEVELS = load().levels
except LibraryMissing as missing:
    pytest.skip(f"no C++ kernels: {missing}", allow_module_level=True)

pytestmark = pytest.mark.tiny

SLOTS = 1600


class Cache(NamedTuple):
    """Two layers; attention is asked of the second."""

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    def plain(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The second layer as float32, as rounded."""
        if self.k_scale is None or self.v_scale is None:
            return self.k[1].float(), self.v[1].float()
        return self.k[1] * self.k_scale[1][..., None], self.v[1] * self.v_scale[1][..., None]


@pytest.fixture(scope="module", params=LEVELS)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    made = Team(load(), 1, request.param)
    yield made
    made.close()


def cache(heads: int, size: int, kind: str = "fp32", seed: int = 0) -> Cache:
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(2, SLOTS, heads, size, generator=generator) for _ in range(2))
    if kind == "fp32":
        return Cache(k, v)
    if kind == "bf16":
        return Cache(k.bfloat16(), v.bfloat16())
    scales = [t.abs().amax(-1) / 127 for t in (k, v)]
    return Cache(*((t / s[..., None]).round().to(torch.int8) for t, s in zip((k, v), scales, strict=True)), *scales)


def mixed(seed: int, longest: int) -> list[Segment]:
    """Decodes and chunks over disjoint slots that are thrown about; some begin with the slots of the one before."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    free = torch.randperm(SLOTS, generator=generator).tolist()
    segments: list[Segment] = []
    for _ in range(number(2, 7)):
        n = 1 if number(0, 2) else number(1, 60)
        same = list(segments[-1].context)[: number(0, 200)] if segments and number(0, 3) else []
        own = number(0, longest)
        if len(free) < own + n:
            break
        context, free = same + free[:own], free[own:]
        slots, free = free[:n], free[n:]
        segments.append(Segment([0] * n, len(context), context, slots))
    return segments


def expected(q: torch.Tensor, kv: Cache, batch: RaggedBatch, **settings: float) -> torch.Tensor:
    return reference.attention(q, *kv.plain(), reference.prepare(batch.on("cpu")), **settings)  # type: ignore[arg-type]


SHAPES = [(6, 2, 64), (4, 4, 128), (8, 1, 32), (4, 1, 256), (7, 1, 80), (4, 2, 8), (2, 1, 16), (3, 3, 20)]


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (40, 0.0), (1, 0.0), (0, 3.0), (70, 2.0)])
def test_attention_equals_the_reference(team: Team, kind: str, window: int, softcap: float) -> None:
    for seed, (heads, kv_heads, size) in enumerate(SHAPES):
        kv = cache(kv_heads, size, kind, seed)
        batch = RaggedBatch.of(mixed(seed, 700 if seed < 3 else 100))
        assert batch.problems() == []
        q = torch.randn(len(batch.tokens), heads, size, generator=torch.Generator().manual_seed(seed))
        settings = {"scale": size**-0.5, "window": window, "softcap": softcap}
        got = ops.attention(team, q, kv, 1, batch, **settings)  # type: ignore[arg-type]
        torch.testing.assert_close(got, expected(q, kv, batch, **settings), rtol=1e-5, atol=5e-6)


def test_large_scores_do_not_overflow(team: Team) -> None:
    kv = cache(1, 64)
    batch = RaggedBatch.of([Segment([0] * 3, 600, range(600), range(600, 603))])
    q = 60 * torch.randn(3, 2, 64, generator=torch.Generator().manual_seed(1))
    got = ops.attention(team, q, kv, 1, batch, scale=1.0)
    torch.testing.assert_close(got, expected(q, kv, batch, scale=1.0), rtol=1e-3, atol=1e-3)


class Text(NamedTuple):
    """One text of 1,100 tokens with its keys and values in slots of its own."""

    kv: Cache
    q: torch.Tensor
    slots: list[int]


@pytest.fixture(scope="module", params=["fp32", "bf16", "int8"])
def text(request: pytest.FixtureRequest) -> Text:
    generator = torch.Generator().manual_seed(5)
    slots = torch.randperm(SLOTS, generator=generator).tolist()[:1100]
    return Text(cache(2, 64, request.param), torch.randn(1100, 6, 64, generator=generator), slots)


def chunk(text: Text, start: int, end: int) -> Segment:
    return Segment([0] * (end - start), start, text.slots[:start], text.slots[start:end])


def attend(team: Team, text: Text, parts: list[tuple[int, int]], **settings: object) -> list[torch.Tensor]:
    """Results of these chunks of the text, computed in one batch."""
    batch = RaggedBatch.of([chunk(text, a, b) for a, b in parts])
    q = torch.cat([text.q[a:b] for a, b in parts])
    got = ops.attention(team, q, text.kv, 1, batch, scale=0.125, **settings)  # type: ignore[arg-type]
    return list(got.split([b - a for a, b in parts]))


@pytest.mark.parametrize("window", [0, 530])
def test_a_tokens_result_is_the_same_in_any_chunk_batch_and_team(team: Team, text: Text, window: int) -> None:
    whole = attend(team, text, [(0, 1100)], window=window)[0]
    for size in (7, 64, 500):
        for start in range(0, 1100, size if size > 7 else 97):
            end = min(start + size, 1100)
            alone = attend(team, text, [(start, end)], window=window)[0]
            assert torch.equal(alone, whole[start:end]), (size, start)
    tokens = [0, 1, 31, 32, 511, 512, 640, 1023, 1024, 1099]
    for token in tokens:
        assert torch.equal(attend(team, text, [(token, token + 1)], window=window)[0], whole[token : token + 1])
    # The chunks of one text beside each other share what comes before them.
    parts = [(t, t + 1) for t in tokens] + [(3, 90), (512, 560), (600, 601), (900, 1100)]
    for threads in (1, 2, 3):
        others = Team(team.library, threads, team.level)
        for share in (True, False):
            for (a, b), got in zip(parts, attend(others, text, parts, window=window, share=share), strict=True):
                assert torch.equal(got, whole[a:b]), (threads, share, a)
        (split,) = attend(others, text, [(1099, 1100)], window=window)
        assert torch.equal(split, whole[1099:])
        others.close()


@given(
    shape=st.sampled_from([(9, 3, 64), (8, 1, 32), (4, 2, 80), (5, 5, 20), (14, 2, 128), (2, 1, 256)]),
    kind=st.sampled_from(["fp32", "bf16", "int8"]),
    length=st.integers(1, 620),
    cuts=st.lists(st.integers(1, 619), max_size=6),
    window=st.sampled_from([0, 0, 1, 31, 32, 33, 100, 513]),
    softcap=st.sampled_from([0.0, 0.0, 2.0]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_no_way_of_cutting_a_text_changes_a_bit(
    team: Team, shape: tuple[int, int, int], kind: str, length: int, cuts: list[int], window: int, softcap: float,
    threads: int, seed: int,
) -> None:  # fmt: skip
    """One prefill; the same in chunks, each in a step of its own; all chunks in one step; some tokens one by one."""
    heads, kv_heads, size = shape
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(SLOTS, generator=generator).tolist()[:length]
    # Scores differ by many powers of two, so that running maxima are overtaken now and then.
    one = Text(cache(kv_heads, size, kind, seed), 12 * torch.randn(length, heads, size, generator=generator), slots)
    ends = sorted({0, length, *(cut for cut in cuts if cut < length)})
    chunks = list(pairwise(ends))
    (whole,) = attend(team, one, [(0, length)], window=window, softcap=softcap)
    assert torch.isfinite(whole).all()
    other = Team(team.library, threads, team.level)
    together = attend(other, one, chunks, window=window, softcap=softcap)
    for (a, b), got in zip(chunks, together, strict=True):
        assert torch.equal(got, whole[a:b]), (a, b)
        assert torch.equal(attend(team, one, [(a, b)], window=window, softcap=softcap)[0], whole[a:b]), (a, b)
    for token in {0, length // 3, length // 2, *(end - 1 for end in ends[1:])}:
        (alone,) = attend(other, one, [(token, token + 1)], window=window, softcap=softcap)
        assert torch.equal(alone, whole[token : token + 1]), token
    other.close()


@pytest.mark.parametrize("step", [0.02, 0.3, 3.0, -0.02, -0.3, -3.0])
def test_scores_that_rise_or_fall_all_the_way(team: Team, step: float) -> None:
    """Every tile's largest score lies by 32 `step`s above that of the one before, or below it; keys that count for
    nothing beside the largest leave no trace."""
    count = 700
    kv = cache(1, 64)
    kv.k[1] = 0
    kv.k[1, :, 0, 0] = step * torch.arange(SLOTS)
    q = torch.zeros(2, 3, 64)
    q[:, :, 0] = torch.tensor([1.0, 0.5, -1.0])
    batch = RaggedBatch.of([Segment([0, 0], count - 2, range(count - 2), range(count - 2, count))])
    got = ops.attention(team, q, kv, 1, batch, scale=1.0)
    # The reference's scores are as large as 2,000: they have no more than four places behind the point.
    torch.testing.assert_close(got, expected(q, kv, batch, scale=1.0), rtol=1e-4, atol=2e-4)
    assert torch.isfinite(got).all()


def test_shared_beginnings_are_read_once_with_the_same_bits(team: Team, text: Text) -> None:
    """40 branches: 600 slots in common, then 20 each, of which some pairs share 64 more."""
    branches = []
    free = [s for s in range(SLOTS) if s not in set(text.slots[:728])]
    for i in range(40):
        middle = text.slots[600 + 64 * (i % 2) : 664 + 64 * (i % 2)] if i % 3 else []
        own, free = free[:20], free[20:]
        branches.append(Segment([0] * (1 + i % 4), 0, [*text.slots[:600], *middle, *own[4:]], own[: 1 + i % 4]))
    batch = RaggedBatch.of(branches)
    q = text.q[: len(batch.tokens)]
    together = ops.attention(team, q, text.kv, 1, batch, scale=0.125)
    assert torch.equal(together, ops.attention(team, q, text.kv, 1, batch, scale=0.125, share=False))
    torch.testing.assert_close(together, expected(q, text.kv, batch, scale=0.125), rtol=1e-5, atol=5e-6)
    two = Team(team.library, 2, team.level)
    assert torch.equal(together, ops.attention(two, q, text.kv, 1, batch, scale=0.125))
    two.close()
    row = 0
    for branch in branches:
        n = len(branch.tokens)
        alone = ops.attention(team, q[row : row + n], text.kv, 1, RaggedBatch.of([branch]), scale=0.125)
        assert torch.equal(alone, together[row : row + n])
        row += n


def test_slots_that_nobody_names_do_not_matter(team: Team) -> None:
    kv = cache(2, 64)
    segment = Segment([0], 40, range(40), [40])
    q = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(3))
    before = ops.attention(team, q, kv, 1, RaggedBatch.of([segment]), scale=0.1)
    kv.k[:, 41:] = kv.v[:, 41:] = float("nan")
    assert torch.equal(before, ops.attention(team, q, kv, 1, RaggedBatch.of([segment]), scale=0.1))


def test_what_does_not_fit_is_refused(team: Team) -> None:
    kv = cache(2, 64)
    q = torch.zeros(1, 6, 64)
    with pytest.raises(ValueError, match="slot that the cache lacks"):
        ops.attention(team, q, kv, 1, RaggedBatch.of([Segment([0], 1, [SLOTS], [3])]), scale=1.0)
    with pytest.raises(ValueError, match="layers"):
        ops.attention(team, q, kv, 2, RaggedBatch.of([Segment([0], 0, [], [3])]), scale=1.0)
    with pytest.raises(ValueError, match="odd heads"):
        ops.attention(team, q[:, :5], kv, 1, RaggedBatch.of([Segment([0], 0, [], [3])]), scale=1.0)


# ---- what stands around it


@pytest.mark.parametrize("n", [1, 7, 64, 576, 1000])
def test_norm_and_gates(team: Team, n: int) -> None:
    x = 3 * torch.randn(5, 2 * n, generator=torch.Generator().manual_seed(n))
    weight = torch.randn(2 * n, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        ops.rms_norm(team, x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), rtol=2e-6, atol=1e-7
    )
    for kind in ("silu", "gelu", "gelu_tanh"):
        torch.testing.assert_close(ops.gate(team, x, kind), reference.gate(x, kind), rtol=2e-6, atol=2e-6)


def test_embeddings_of_several_types(team: Team) -> None:
    table = torch.randn(50, 24, generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([3, 0, 49, 3])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        weight = table.to(dtype)
        scale = float(torch.tensor(24**0.5, dtype=dtype))
        assert torch.equal(ops.embed(team, weight, tokens, 24**0.5), weight[tokens].float() * scale)
    with pytest.raises(ValueError, match="token that the embedding lacks"):
        ops.embed(team, table, torch.tensor([50]))


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize(("size", "rot", "norms"), [(64, 64, False), (32, 16, True), (20, 6, True)])
def test_rotation_and_what_lands_in_the_cache(team: Team, kind: str, size: int, rot: int, norms: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    heads, kv_heads, count = 4, 2, 9
    kv = cache(kv_heads, size, kind)
    qkv = torch.randn(count, heads + 2 * kv_heads, size, generator=generator)
    inv_freq = 1 / 100 ** (torch.arange(rot // 2) / (rot // 2))
    positions, slots = (
        torch.randint(0, 5000, (count,), generator=generator),
        torch.randperm(60, generator=generator)[:count],
    )
    q_norm, k_norm = (torch.rand(size, generator=generator) + 0.5 for _ in range(2)) if norms else (None, None)
    got = ops.rotate_and_write(
        team, qkv, kv, 1, positions, slots, inv_freq, heads=heads, q_norm=q_norm, k_norm=k_norm, eps=1e-6
    )
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = reference.rms_norm(q, q_norm, 1e-6), reference.rms_norm(k, k_norm, 1e-6)
    angles = reference.rope_angles(positions, inv_freq)
    torch.testing.assert_close(got, reference.rope(q, angles), rtol=1e-5, atol=2e-6)
    for stored, wanted in zip(kv.plain(), (reference.rope(k, angles), v), strict=True):
        if kind == "int8":
            step = wanted.abs().amax(-1, keepdim=True) / 127
            assert ((stored[slots] - wanted).abs() <= 0.5001 * step).all()
        else:
            exact = 1e-5 if kind == "fp32" else 2**-8
            torch.testing.assert_close(stored[slots], wanted, rtol=exact, atol=2e-6)
    others = torch.ones(SLOTS, dtype=torch.bool)
    others[slots] = False
    assert torch.equal(kv.k[1][others], cache(kv_heads, size, kind).k[1][others])
    assert torch.equal(kv.k[0], cache(kv_heads, size, kind).k[0])
