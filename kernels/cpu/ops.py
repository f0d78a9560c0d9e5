"""The operations of a step one by one, on tensors. What they mean, kernels/reference.py says.

All take float32 on the CPU. A token's result has the same bits as in a whole step (kernels/cpu/step.py), in any company
and with any number of threads.
"""

from __future__ import annotations

import ctypes
from typing import Any

from palmette.kernels.blocks import Stored
from palmette.kernels.cpu.library import Team, floats, pointer
from palmette.kernels.cpu.step import GATES, Op, batch_record, cache_record, embedding
from palmette.kernels.ragged import RaggedBatch
from palmette.torch_later import Array, torch


def rms_norm(team: Team, x: Array, weight: Array, eps: float) -> torch.Tensor:
    """x [..., n] / sqrt(mean(x^2) + eps) * weight [n]."""
    rows = floats(x)
    factors = floats(weight, (rows.shape[-1],))
    out = torch.empty_like(rows)
    n = len(factors)
    dll = team.library.dll
    count = rows.numel() // n
    team.library.check(dll.pal_rms_norm(team.handle, pointer(rows), count, n, pointer(factors), eps, pointer(out)))
    return out


def gate(team: Team, x: Array, kind: str) -> torch.Tensor:
    """x [T, 2F] holds gate and up side by side; act(gate) * up, [T, F]. kind: silu, gelu, gelu_tanh."""
    rows = floats(x, (None, None))
    n = rows.shape[1] // 2
    out = torch.empty(len(rows), n)
    dll = team.library.dll
    team.library.check(dll.pal_gate(team.handle, pointer(rows), len(rows), n, GATES[kind], pointer(out)))
    return out


def embed(team: Team, weight: Stored, tokens: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Rows of weight [V, n] for tokens int64 [T], times `scale`; float32."""
    record = Op()
    embedding(record, weight, scale)
    ids = tokens.to(torch.int64).contiguous()
    out = torch.empty(len(ids), int(weight.shape[1]))
    dll = team.library.dll
    team.library.check(dll.pal_embed(team.handle, ctypes.byref(record), pointer(ids), len(ids), pointer(out)))
    return out


def rotate_and_write(
    team: Team,
    qkv: Array,
    kv: Any,
    layer: int,
    positions: torch.Tensor,
    slots: torch.Tensor,
    inv_freq: torch.Tensor,
    *,
    heads: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Queries [T, heads, D] of qkv [T, heads + 2 kv_heads, D], normed where norms [D] are given, and turned; its keys,
    too, and its values are in the cache's `layer` at slots int64 [T] afterwards. kv: as `Step.run` has it."""
    _, _, kv_heads, size = kv.k.shape
    turned = floats(qkv, (len(positions), heads + 2 * kv_heads, size)).clone()
    record = Op(
        layer=layer, heads=heads, kv_heads=kv_heads, head_dim=size, rot=2 * len(inv_freq), eps=eps,
        weight=pointer(q_norm), weight2=pointer(k_norm),
    )  # fmt: skip
    if not 0 <= layer < kv.k.shape[0] or record.rot > size or len(slots) != len(positions):
        raise ValueError("no such layer, more to turn than a head has, or not a slot for each position")
    cache, frequencies = cache_record(kv), floats(inv_freq)
    dll = team.library.dll
    team.library.check(
        dll.pal_rope_write(
            team.handle, ctypes.byref(record), ctypes.byref(cache), pointer(frequencies), pointer(positions),
            pointer(slots), len(positions), pointer(turned),
        )
    )  # fmt: skip
    return turned[:, :heads]


def attention(
    team: Team,
    q: Array,
    kv: Any,
    layer: int,
    batch: RaggedBatch,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    share: bool = True,
) -> torch.Tensor:
    """Softmax attention of q [T, H, D] of every segment to its slots, [T, H, D]. kv: as `Step.run` has it. share:
    whether segments that begin with the same slots read them once (the same bits)."""
    _, _, _, size = kv.k.shape
    queries = floats(q, (len(batch.tokens), None, size))
    if not 0 <= layer < kv.k.shape[0]:
        raise ValueError(f"the cache has {kv.k.shape[0]} layers, none is {layer}")
    out = torch.empty_like(queries)
    record = Op(layer=layer, heads=queries.shape[1], scale=scale, window=window, softcap=softcap)
    cache, work = cache_record(kv), batch_record(batch, None)
    dll = team.library.dll
    team.library.check(
        dll.pal_attention(
            team.handle, ctypes.byref(record), ctypes.byref(cache), ctypes.byref(work), pointer(queries), share,
            pointer(out),
        )
    )  # fmt: skip
    return out
