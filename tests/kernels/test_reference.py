"""The reference operations against definitions written as loops over numbers."""

from __future__ import annotations

import math

import pytest
import torch

from palmette.kernels import reference
from palmette.kernels.ragged import RaggedBatch, Segment

pytestmark = pytest.mark.tiny


def naive_attention(q, k_cache, v_cache, segments, scale, window=0, softcap=0.0):
    """One token and one head at a time, in double."""
    out = []
    group = q.shape[1] // k_cache.shape[1]
    row = 0
    for segment in segments:
        slots = [*segment.context, *segment.slots]
        for i in range(len(segment.tokens)):
            seen = slots[: len(segment.context) + i + 1]
            seen = seen[-window:] if window else seen
            heads = []
            for h in range(q.shape[1]):
                scores = [float(q[row, h].double() @ k_cache[s, h // group].double()) * scale for s in seen]
                if softcap:
                    scores = [math.tanh(x / softcap) * softcap for x in scores]
                top = max(scores)
                weights = [math.exp(x - top) for x in scores]
                parts = [w * v_cache[s, h // group].double() for w, s in zip(weights, seen, strict=True)]
                heads.append(sum(parts) / sum(weights))
            out.append(torch.stack(heads))
            row += 1
    return torch.stack(out)


def random_segments(generator, slots, scattered):
    """Segments of 1 to 9 tokens with 0 to 30 slots of context, over disjoint slots; in a row or thrown about."""
    free = torch.randperm(slots, generator=generator).tolist() if scattered else list(range(slots))
    segments = []
    for _ in range(int(torch.randint(1, 8, (1,), generator=generator))):
        context = int(torch.randint(0, 31, (1,), generator=generator))
        # Half of them decodes, as in a real step.
        n = 1 if torch.rand(1, generator=generator) < 0.5 else int(torch.randint(1, 10, (1,), generator=generator))
        taken, free = free[: context + n], free[context + n :]
        segments.append(Segment([0] * n, context, taken[:context], taken[context:]))
    return segments


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (5, 0.0), (1, 0.0), (0, 2.0), (7, 2.0)])
def test_attention_equals_a_loop_over_tokens(scattered, window, softcap):
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        segments = random_segments(generator, 400, scattered)
        batch = RaggedBatch.of(segments).on("cpu")
        assert batch.problems() == []
        heads, kv_heads, size = [(4, 2, 8), (3, 3, 4), (6, 1, 16)][seed % 3]
        k_cache = torch.randn(400, kv_heads, size, generator=generator)
        v_cache = torch.randn(400, kv_heads, size, generator=generator)
        q = torch.randn(len(batch.tokens), heads, size, generator=generator)
        plan = reference.prepare(batch)
        got = reference.attention(q, k_cache, v_cache, plan, scale=0.3, window=window, softcap=softcap)
        expected = naive_attention(q, k_cache, v_cache, segments, 0.3, window, softcap)
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


def test_segments_may_share_context():
    """Two branches read one prefix and write to slots of their own."""
    generator = torch.Generator().manual_seed(1)
    segments = [Segment([0, 0], 3, [5, 2, 9], [1, 3]), Segment([0], 3, [5, 2, 9], [7])]
    k_cache, v_cache = (torch.randn(12, 1, 4, generator=generator) for _ in range(2))
    q = torch.randn(3, 2, 4, generator=generator)
    plan = reference.prepare(RaggedBatch.of(segments).on("cpu"))
    got = reference.attention(q, k_cache, v_cache, plan, scale=0.5)
    torch.testing.assert_close(got.double(), naive_attention(q, k_cache, v_cache, segments, 0.5), rtol=1e-5, atol=1e-6)


def test_a_segment_does_not_depend_on_its_neighbours_nor_on_where_its_slots_lie():
    """Bit for bit: alone, in a batch, in a row, in two stretches, or scattered."""
    generator = torch.Generator().manual_seed(2)
    keys, values = (torch.randn(40, 2, 8, generator=generator) for _ in range(2))
    queries = torch.randn(1, 4, 8, generator=generator)

    def attend(slots, others=()):
        k_cache, v_cache = torch.zeros(200, 2, 8), torch.zeros(200, 2, 8)
        k_cache[slots], v_cache[slots] = keys, values
        segments = [Segment([0], 39, slots[:-1], slots[-1:]), *others]
        q = torch.cat([queries] + [torch.ones(len(s.tokens), 4, 8) for s in others])
        plan = reference.prepare(RaggedBatch.of(segments).on("cpu"))
        return reference.attention(q, k_cache, v_cache, plan, scale=0.35)[:1]

    alone = attend(list(range(40)))
    assert torch.equal(alone, attend([*range(100, 120), *range(50, 70)]))
    assert torch.equal(alone, attend(list(range(1, 81, 2))))
    assert torch.equal(alone, attend(list(range(40)), [Segment([0] * 5, 7, range(90, 97), range(97, 102))]))


def test_rope_turns_pairs_half_a_head_apart():
    inv_freq = torch.tensor([1.0, 0.01])
    positions = torch.tensor([0, 3, 1000])
    x = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(0))
    got = reference.rope(x, reference.rope_angles(positions, inv_freq))
    for t, position in enumerate(positions.tolist()):
        for h in range(2):
            for i in range(2):
                a = complex(float(x[t, h, i]), float(x[t, h, i + 2]))
                angle = position * float(inv_freq[i])
                turned = a * complex(math.cos(angle), math.sin(angle))
                assert float(got[t, h, i]) == pytest.approx(turned.real, abs=1e-4)
                assert float(got[t, h, i + 2]) == pytest.approx(turned.imag, abs=1e-4)
    assert torch.equal(got[..., 4:], x[..., 4:])  # beyond the rotated part nothing changes


def test_norm_gate_embed_and_logits():
    x = torch.tensor([[3.0, -4.0]])
    norm = reference.rms_norm(x, torch.tensor([1.0, 2.0]), 0.5)
    scale = 1 / math.sqrt((9 + 16) / 2 + 0.5)
    torch.testing.assert_close(norm, torch.tensor([[3 * scale, -8 * scale]]))
    half = reference.rms_norm(x.bfloat16(), torch.tensor([1.0, 2.0], dtype=torch.bfloat16), 0.5)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), norm, rtol=0.02, atol=0.01)
    gated = reference.gate(torch.tensor([[1.0, -2.0, 10.0, 100.0]]), "silu")
    torch.testing.assert_close(gated, torch.tensor([[10 / (1 + math.exp(-1)), -200 / (1 + math.exp(2))]]))
    table = torch.eye(3)
    torch.testing.assert_close(reference.embed(table, torch.tensor([2, 0]), 2.0), 2 * table[[2, 0]])
    capped = reference.logits(torch.tensor([[100.0]]), reference.pack_linear([torch.tensor([[1.0]])]), 5.0)
    assert float(capped) == pytest.approx(5.0)


def test_batch_problems_are_found():
    good = [Segment([1, 2], 1, [4], [5, 6])]
    assert RaggedBatch.of(good).problems() == []
    twice = RaggedBatch.of([Segment([1], 0, [], [4]), Segment([1], 0, [], [4])])
    assert twice.problems() == ["two tokens write to one slot"]
    rows = RaggedBatch.of([Segment([1], 0, [], [4], [1])])
    assert rows.problems() == ["out_rows names a row that is not there"]
    batch = RaggedBatch.of(good)
    moved = RaggedBatch(**{n: getattr(batch, n) for n in RaggedBatch.__dataclass_fields__} | {"slots": batch.slots + 1})
    assert any("own slots are not the last" in problem for problem in moved.problems())


@pytest.mark.parametrize(("out", "size"), [(96, 64), (64, 160), (1030, 64)])
def test_a_linears_row_is_the_same_in_any_batch(out: int, size: int) -> None:
    torch.manual_seed(1)
    weight, bias, x = torch.randn(out, size), torch.randn(out), torch.randn(70, size)
    packed = reference.pack_linear([weight], bias)
    whole = reference.linear(x, packed)
    torch.testing.assert_close(whole, torch.nn.functional.linear(x, weight, bias), atol=1e-4, rtol=1e-4)
    assert reference.linear(x[:0], packed).shape == (0, out)
    for count in (1, 2, 3, 7, 16, 33):
        assert torch.equal(reference.linear(x[:count], packed), whole[:count])
