"""Every operation of a model's tape in plain torch: the definition that the faster kernels are tested against.

Shapes: T rows of the step, H query heads, N key/value heads, G = H / N query heads that share one of them, D head size.
Weights are [out, in] as torch has them. Activations are in the model's dtype, except where float32 is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from palmette.kernels.ragged import RaggedBatch


class LinearWeight(NamedTuple):
    """A weight [out, in] and bias [out] or None. `packed`: the weight in oneDNN's own layout, which `weight` then only
    stands for by its shape."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    packed: bool


def pack_linear(parts: Sequence[torch.Tensor], bias: torch.Tensor | None = None) -> LinearWeight:
    """Weights [out_i, in] side by side as one, in the layout that `linear` wants.

    On a CPU that is oneDNN's for float32: as measured, it gives each row the same bits whatever stands beside it in
    the batch, which MKL's (behind F.linear) does not below four rows, and it is faster from two rows on.
    """
    weight = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return LinearWeight(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), bias, True)
    return LinearWeight(weight.contiguous(), bias, False)


def linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """x [T, in] -> [T, out]."""
    if w.packed and len(x):
        return torch.ops.mkldnn._linear_pointwise(x, w.weight, w.bias, "none", [], "")
    return F.linear(x, w.weight, w.bias) if not w.packed else x.new_empty(0, w.weight.shape[0])


def linear_add(residual: torch.Tensor, x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """residual + linear(x); the residual [T, out] may be changed in place."""
    return residual.add_(linear(x, w))


def add(residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """residual + x; the residual may be changed in place."""
    return residual.add_(x)


def embed(weight: torch.Tensor, tokens: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Rows of weight [V, in] for tokens [T], times `scale` (rounded to the dtype first, as the models do)."""
    rows = F.embedding(tokens, weight)
    return rows if scale == 1.0 else rows * torch.tensor(scale, dtype=rows.dtype, device=rows.device)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; the statistics are float32."""
    if x.dtype == torch.float32:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rope_angles(positions: torch.Tensor, inv_freq: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [T, 1, rot/2], of positions [T] times inv_freq [rot/2]."""
    angles = positions[:, None].float() * inv_freq[None, :]
    return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def rope(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate x [T, heads, D]: element i pairs with i + rot/2, for the first `rot` elements; the rest stay."""
    cos, sin = (t.to(x.dtype) for t in angles)
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    parts = [first * cos - second * sin, second * cos + first * sin]
    if 2 * half < x.shape[-1]:
        parts.append(x[..., 2 * half :])
    return torch.cat(parts, dim=-1)


def write_kv(
    k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Put k, v [T, N, D] into the caches [slots, N, D] at slots [T]."""
    k_cache.index_copy_(0, slots, k)
    v_cache.index_copy_(0, slots, v)


def gate(x: torch.Tensor, kind: str) -> torch.Tensor:
    """x [T, 2F] holds gate and up side by side; act(gate) * up, [T, F]. kind: silu, gelu, gelu_tanh."""
    left, right = x.chunk(2, dim=-1)
    if kind == "silu":
        return F.silu(left).mul_(right)
    return F.gelu(left, approximate="tanh" if kind == "gelu_tanh" else "none").mul_(right)


def logits(x: torch.Tensor, w: LinearWeight, softcap: float = 0.0) -> torch.Tensor:
    """float32 [R, V] of x [R, in]; with a softcap c they become c * tanh(logits / c)."""
    out = linear(x, w).float()
    return torch.tanh(out / softcap) * softcap if softcap else out


# ── attention over slots ──────────────────────────────────────────────────────────────────────────────────────────
#
# A token's result must not depend on what else is computed beside it: not on the chunk that its prompt was cut into,
# nor on how much of it came from the cache, nor on the batch. So the keys are taken in tiles of a fixed size that begin
# at position 0, every tile is a matrix product of its own, and the tiles' sums are added in order of position. Rows are
# padded to a multiple of 8, below which matrix products choose other orders of summation. As measured in float32 on an
# AVX2 machine, that is bit-identical. It costs, against torch's own attention segment by segment (SmolLM2, one thread,
# context 300, side by side): a whole decode step 1.05 to 1.3 times as long, alone and for 16 streams; prefill of 512
# tokens 1.0 to 1.2 times.

_TILE = 64  # keys that are summed together
_ROWS = 8  # rows of a matrix product are padded to a multiple of this
_BLOCK = 64  # queries of one run that go through together
_GATHERED = 1 << 22  # elements of keys that are gathered at a time


class Block(NamedTuple):
    """Queries of one run: rows of the batch, the position of the first, and the run's slots up to the last."""

    rows: range
    first: int
    slots: torch.Tensor


class Group(NamedTuple):
    """B blocks of equal shape: n queries over P slots each (P a multiple of the tile, filled up with any slots).

    rows: int64 [B, n]. slots: int64 [B * P]. hidden: bool [B, 1, R, P], what a row (query and query head of a group,
    padded) may not see.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    hidden: torch.Tensor


class AttentionPlan(NamedTuple):
    """What attention of a step needs and every layer shares. groups: by window and query heads of a key head, made
    when first needed."""

    blocks: tuple[Block, ...]
    groups: dict[tuple[int, int, int], tuple[Group, ...]]


def prepare(batch: RaggedBatch) -> AttentionPlan:
    """Cut the step's segments into blocks of queries."""
    starts, kv_starts = batch.seg_start.tolist(), batch.kv_start.tolist()
    blocks = []
    for s in range(len(starts) - 1):
        slots = batch.kv_slots[kv_starts[s] : kv_starts[s + 1]]
        context = len(slots) - (starts[s + 1] - starts[s])
        for row in range(starts[s], starts[s + 1], _BLOCK):
            end = min(row + _BLOCK, starts[s + 1])
            first = context + row - starts[s]
            blocks.append(Block(range(row, end), first, slots[: first + end - row]))
    return AttentionPlan(tuple(blocks), {})


def attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Softmax attention of every segment to its slots; one call for the whole batch.

    q [T, H, D]; caches [slots, N, D]; result [T, H, D]. Query head h reads key/value head h // G. window W > 0: a token
    sees only itself and the W - 1 before it. softcap c > 0: scores become c * tanh(score / c).
    """
    rows, heads, size = q.shape
    kv_heads = k_cache.shape[1]
    q = (q * scale).view(rows, kv_heads, heads // kv_heads, size)
    out = torch.empty_like(q)
    for group in _groups(plan, window, heads // kv_heads, kv_heads * size):
        out[group.rows] = _attend(q, k_cache, v_cache, group, softcap)
    return out.view(rows, heads, size)


def _attend(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, group: Group, softcap: float
) -> torch.Tensor:
    """Results [B, n, N, G, D] of a group's queries."""
    count, n = group.rows.shape
    _, kv_heads, per_head, size = q.shape
    tiles = group.hidden.shape[-1] // _TILE
    mine = q[group.rows].transpose(1, 2).reshape(count, kv_heads, n * per_head, size)
    mine = F.pad(mine, (0, 0, 0, group.hidden.shape[2] - n * per_head))
    keys = k_cache.index_select(0, group.slots).view(count, -1, kv_heads, size)
    values = v_cache.index_select(0, group.slots).view(count, tiles, _TILE, kv_heads, size)
    # Head by head: so the gathered keys and values are read where they lie, and not copied once more.
    scores = torch.stack([torch.bmm(mine[:, h], keys[:, :, h].transpose(1, 2)) for h in range(kv_heads)], 1).float()
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    scores.masked_fill_(group.hidden, -math.inf)
    weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_().unflatten(-1, (tiles, _TILE))
    sums = weights.sum(-1)
    tiled, flat = weights.transpose(2, 3).to(values.dtype), values.flatten(0, 1)
    parts = torch.stack([torch.bmm(tiled[:, h].flatten(0, 1), flat[:, :, h]) for h in range(kv_heads)])
    parts = parts.view(kv_heads, count, tiles, -1, size).transpose(0, 1).float()
    total, result = sums[..., 0], parts[:, :, 0]
    for tile in range(1, tiles):
        total, result = total + sums[..., tile], result + parts[:, :, tile]
    result = (result / total[..., None])[:, :, : n * per_head].to(q.dtype)
    return result.view(count, kv_heads, n, per_head, size).transpose(1, 2)


def _groups(plan: AttentionPlan, window: int, per_head: int, width: int) -> tuple[Group, ...]:
    """The plan's blocks put together by shape; tiles that no query of a block sees are left out."""
    key = (window, per_head, width)
    if key not in plan.groups:
        alike: dict[tuple[int, int], list[tuple[Block, int]]] = {}
        for block in plan.blocks:
            skip = max(0, block.first + 1 - window) // _TILE * _TILE if window else 0
            padded = -(-(len(block.slots) - skip) // _TILE) * _TILE
            alike.setdefault((len(block.rows), padded), []).append((block, skip))
        groups = []
        for (n, padded), members in alike.items():
            at_once = max(1, _GATHERED // (padded * width))
            for start in range(0, len(members), at_once):
                groups.append(_group(members[start : start + at_once], n, padded, window, per_head))
        plan.groups[key] = tuple(groups)
    return plan.groups[key]


def _group(members: list[tuple[Block, int]], n: int, padded: int, window: int, per_head: int) -> Group:
    device = members[0][0].slots.device
    rows = torch.tensor([list(block.rows) for block, _ in members], device=device)
    slots = torch.stack(
        [F.pad(b.slots[skip:], (0, padded - len(b.slots) + skip), value=b.slots[0]) for b, skip in members]
    )
    firsts = torch.tensor([block.first - skip for block, skip in members], device=device)
    queries = firsts[:, None] + torch.arange(n, device=device)
    queries = queries.repeat_interleave(per_head, dim=1)
    # Rows that only fill up see the first key that the first query sees, so that nothing divides by nothing.
    queries = torch.cat([queries, firsts[:, None].expand(-1, -queries.shape[1] % _ROWS)], dim=1)[:, None, :, None]
    keys = torch.arange(padded, device=device)
    hidden = keys > queries
    if window:
        hidden |= keys <= queries - window
    return Group(rows, slots.flatten(), hidden)
