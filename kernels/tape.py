"""A model lowered to a flat list of operations, and the loop that runs it.

Operations read and write named registers: `x` the residual stream [T, hidden], `h` a normed copy or a block's result,
`qkv` the projections, `q` the rotated queries, `a` attention's result, `g` gate and up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from palmette.kernels.ragged import RaggedBatch
from palmette.torch_later import Array, torch


@dataclass(frozen=True, slots=True)
class Embed:
    """x = rows of the embedding."""

    weight: Any
    scale: float


@dataclass(frozen=True, slots=True)
class Angles:
    """out = cos and sin of the step's positions; computed once and read by every layer with this rope."""

    inv_freq: Array
    out: str


@dataclass(frozen=True, slots=True)
class Norm:
    """out = RMS norm of src."""

    weight: Array
    eps: float
    src: str
    out: str


@dataclass(frozen=True, slots=True)
class Linear:
    """out = src through a linear (packed by the kernels)."""

    weight: Any
    src: str
    out: str


@dataclass(frozen=True, slots=True)
class LinearAdd:
    """x += src through a linear."""

    weight: Any
    src: str


@dataclass(frozen=True, slots=True)
class Add:
    """x += src."""

    src: str


@dataclass(frozen=True, slots=True)
class RotateAndWrite:
    """q, k, v out of qkv; norm the heads where the model does; rotate q and k; write k and v to the cache."""

    layer: int
    angles: str
    heads: int
    kv_heads: int
    head_dim: int
    q_norm: Array | None
    k_norm: Array | None
    eps: float


@dataclass(frozen=True, slots=True)
class Attend:
    """a = attention of q over the slots of this layer."""

    layer: int
    scale: float
    window: int
    softcap: float


@dataclass(frozen=True, slots=True)
class Gate:
    """a = act(first half of g) * second half."""

    kind: str


@dataclass(frozen=True, slots=True)
class PickRows:
    """x = only the rows whose logits are wanted."""


@dataclass(frozen=True, slots=True)
class Logits:
    """The end of the tape: float32 logits of src."""

    weight: Any
    softcap: float
    src: str


Op = Embed | Angles | Norm | Linear | LinearAdd | Add | RotateAndWrite | Attend | Gate | PickRows | Logits
Tape = tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class KV:
    """The cache of keys and values. k, v: [layers, slots, kv_heads, head_dim]; in arrays bfloat16, which numpy does not
    know, goes as uint16."""

    k: Array
    v: Array

    @property
    def slots(self) -> int:
        return int(self.k.shape[1])


@dataclass(frozen=True, slots=True)
class Ops:
    """Every operation of a tape as a function on tensors; `reference` documents each. What `prepare` returns is the
    implementation's own affair."""

    prepare: Callable[..., Any]
    linear: Callable[..., torch.Tensor]
    linear_add: Callable[..., torch.Tensor]
    add: Callable[..., torch.Tensor]
    embed: Callable[..., torch.Tensor]
    rms_norm: Callable[..., torch.Tensor]
    rope_angles: Callable[..., Any]
    rope: Callable[..., torch.Tensor]
    write_kv: Callable[..., None]
    attention: Callable[..., torch.Tensor]
    gate: Callable[..., torch.Tensor]
    logits: Callable[..., torch.Tensor]


Step: TypeAlias = Callable[[RaggedBatch, KV], Array]
"""Logits, float32 [R, vocab], of a batch's out_rows; K and V of all its tokens are in the cache afterwards."""


def run(tape: Tape, kernels: Ops, batch: RaggedBatch, kv: KV) -> torch.Tensor:
    """A Step, operation by operation."""
    plan = kernels.prepare(batch)
    k_layers, v_layers = kv.k.unbind(0), kv.v.unbind(0)
    reg: dict[str, Any] = {}
    for op in tape:
        match op:
            case Norm():
                reg[op.out] = kernels.rms_norm(reg[op.src], op.weight, op.eps)
            case Linear():
                reg[op.out] = kernels.linear(reg[op.src], op.weight)
            case RotateAndWrite():
                reg["q"] = _rotate_and_write(op, kernels, reg, batch, k_layers[op.layer], v_layers[op.layer])
            case Attend():
                attended = kernels.attention(
                    reg["q"],
                    k_layers[op.layer],
                    v_layers[op.layer],
                    plan,
                    scale=op.scale,
                    window=op.window,
                    softcap=op.softcap,
                )
                reg["a"] = attended.flatten(1)
            case LinearAdd():
                reg["x"] = kernels.linear_add(reg["x"], reg[op.src], op.weight)
            case Gate():
                reg["a"] = kernels.gate(reg["g"], op.kind)
            case Add():
                reg["x"] = kernels.add(reg["x"], reg[op.src])
            case Embed():
                reg["x"] = kernels.embed(op.weight, batch.tokens, op.scale)
            case Angles():
                reg[op.out] = kernels.rope_angles(batch.positions, op.inv_freq)
            case PickRows():
                reg["x"] = reg["x"].index_select(0, batch.out_rows)
            case Logits():
                return kernels.logits(reg[op.src], op.weight, op.softcap)
    raise AssertionError("a tape ends with Logits")


def _rotate_and_write(
    op: RotateAndWrite,
    kernels: Ops,
    reg: dict[str, Any],
    batch: RaggedBatch,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> torch.Tensor:
    both = op.heads + op.kv_heads
    heads = reg["qkv"].view(-1, both + op.kv_heads, op.head_dim)
    turning = heads[:, :both]
    if op.q_norm is not None:
        q = kernels.rms_norm(turning[:, : op.heads], op.q_norm, op.eps)
        k = kernels.rms_norm(turning[:, op.heads :], op.k_norm, op.eps)
        turning = torch.cat([q, k], dim=1)
    # Queries and keys lie side by side, so they are rotated as one.
    turned = kernels.rope(turning, reg[op.angles])
    kernels.write_kv(k_cache, v_cache, batch.slots, turned[:, op.heads :], heads[:, both:])
    return turned[:, : op.heads]
