"""Every operation of a model's tape in plain torch: the definition that the faster kernels are tested against.

Shapes: T rows of the step, H query heads, N key/value heads, G = H / N query heads that share one of them, D head size.
Weights are [out, in] as torch has them. Activations are in the model's dtype, except where float32 is named.
"""

from __future__ import annotations

import math
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


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearWeight:
    """The weight in the layout that `linear` wants.

    On a CPU that is oneDNN's for float32: as measured, it gives each row the same bits whatever stands beside it in
    the batch, which MKL's (behind F.linear) does not below four rows, and it is faster from two rows on.
    """
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

_MOST_SLICES = 8  # a context in more stretches than this is gathered by its index


class Run(NamedTuple):
    """One segment as attention sees it: its rows, and where its slots lie.

    stretches: (first slot, count) of each stretch of slots in a row, where these are few; else (), and `slots` tells.
    """

    row: int
    q_len: int
    kv_len: int
    stretches: tuple[tuple[int, int], ...]
    slots: torch.Tensor


class AttentionPlan(NamedTuple):
    """What attention of a step needs and every layer shares. masks: by (run, window), made when first needed."""

    runs: tuple[Run, ...]
    dtype: torch.dtype
    masks: dict[tuple[int, int], torch.Tensor]


def prepare(batch: RaggedBatch, dtype: torch.dtype) -> AttentionPlan:
    """Find the stretches of slots in a row, which are sliced where they lie and need no gather."""
    starts, kv_starts = batch.seg_start.tolist(), batch.kv_start.tolist()
    slots = batch.kv_slots
    # A stretch begins where a slot does not follow its neighbour, and with each segment.
    begins = torch.ones(len(slots), dtype=torch.bool, device=slots.device)
    begins[1:] = slots[1:] != slots[:-1] + 1
    begins[batch.kv_start[:-1]] = True
    at = begins.nonzero().flatten()
    firsts, edges = slots[at].tolist(), [*at.tolist(), len(slots)]
    runs: list[Run] = []
    piece = 0
    for s in range(len(starts) - 1):
        end = piece
        while end < len(firsts) and edges[end] < kv_starts[s + 1]:
            end += 1
        few = end - piece <= _MOST_SLICES
        stretches = tuple((firsts[p], edges[p + 1] - edges[p]) for p in range(piece, end)) if few else ()
        mine = slots[kv_starts[s] : kv_starts[s + 1]]
        runs.append(Run(starts[s], starts[s + 1] - starts[s], len(mine), stretches, mine))
        piece = end
    return AttentionPlan(tuple(runs), dtype, {})


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

    Segments go one by one, also the decodes: one gather of all of them into a padded table was measured at twice the
    time (16 streams of 300 tokens: the table leaves the caches), and this way no segment's result depends on another.
    """
    rows, heads, size = q.shape
    kv_heads = k_cache.shape[1]
    q = q.view(rows, kv_heads, heads // kv_heads, size)
    out = torch.empty_like(q)
    for number, run in enumerate(plan.runs):
        skip = max(0, run.kv_len - run.q_len + 1 - window) if window else 0  # nobody in the run sees these
        k, v = _fetch(k_cache, run, skip), _fetch(v_cache, run, skip)
        mask = None if run.q_len == 1 else _mask(plan, number, window, skip)
        mine = slice(run.row, run.row + run.q_len)
        out[mine] = _attend(q[mine], k, v, mask, scale, softcap)
    return out.view(rows, heads, size)


def _fetch(cache: torch.Tensor, run: Run, skip: int) -> torch.Tensor:
    """Keys or values of the run's slots after the first `skip`, [L, N, D]; a view where the slots are in a row."""
    if not run.stretches:
        return cache.flatten(1).index_select(0, run.slots[skip:]).view(-1, *cache.shape[1:])
    if len(run.stretches) == 1:
        first, count = run.stretches[0]
        return cache[first + skip : first + count]
    return torch.cat([cache[first : first + count] for first, count in run.stretches])[skip:]


def _mask(plan: AttentionPlan, number: int, window: int, skip: int) -> torch.Tensor:
    """Additive mask [n, L - skip] of a run: 0 where query i (the last n of L are the queries) sees key j, else -inf."""
    if (number, window) not in plan.masks:
        run = plan.runs[number]
        device = run.slots.device
        queries = torch.arange(run.kv_len - run.q_len, run.kv_len, device=device)[:, None]
        keys = torch.arange(skip, run.kv_len, device=device)[None, :]
        hidden = keys > queries
        if window:
            hidden |= keys <= queries - window
        mask = torch.zeros(hidden.shape, dtype=plan.dtype, device=device).masked_fill_(hidden, -math.inf)
        plan.masks[number, window] = mask
    return plan.masks[number, window]


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float, softcap: float
) -> torch.Tensor:
    """q [n, N, G, D], k and v [L, N, D], mask [n, L] or None -> [n, N, G, D]."""
    if softcap:
        scores = torch.einsum("qngd,knd->ngqk", q * scale, k)
        scores = torch.tanh(scores / softcap) * softcap
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1, dtype=torch.float32).to(v.dtype)
        return torch.einsum("ngqk,knd->qngd", weights, v)
    # The group axis of K and V has stride 0: shared, not copied.
    wide = (q.shape[1], q.shape[2], k.shape[0], k.shape[2])
    k, v = (t.transpose(0, 1).unsqueeze(1).expand(wide) for t in (k, v))
    return F.scaled_dot_product_attention(q.permute(1, 2, 0, 3), k, v, attn_mask=mask, scale=scale).permute(2, 0, 1, 3)
