"""An architecture and its weights to a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from palmette.kernels.blocks import Blocks, Stored
from palmette.kernels.dispatch import Kernels
from palmette.kernels.tape import (
    Add,
    Angles,
    Attend,
    Embed,
    Gate,
    Linear,
    LinearAdd,
    Logits,
    Norm,
    Op,
    PickRows,
    RotateAndWrite,
    Tape,
)
from palmette.runtime.models.architecture import Architecture
from palmette.torch_later import Array

Fetch = Callable[[str, int], Stored]
"""(our name, layer or -1) -> the tensor in the model's dtype on its device, or blocks that its kernels can read, for
matrices. Asked once for each parameter."""


def lower(arch: Architecture, fetch: Fetch, kernels: Kernels, device: str) -> Tape:
    """The tape of the model. Reads every tensor of `parameters(arch)` exactly once."""

    def vector(names: Sequence[str], layer: int) -> Array:
        parts = [fetch(name, layer) for name in names]
        return kernels.vector([part for part in parts if not isinstance(part, Blocks)], device)

    def bias(names: Sequence[str], layer: int, there: bool) -> Array | None:
        return vector([f"{name}_bias" for name in names], layer) if there else None

    def norm_weight(name: str, layer: int) -> Array:
        weight = vector([name], layer)
        return weight + arch.norm_offset if arch.norm_offset else weight

    embedding = fetch("embed", -1)
    ops: list[Op] = [Embed(embedding, arch.embed_scale)]
    ropes = list(dict.fromkeys(layer.rope for layer in arch.layers))
    ops.extend(Angles(kernels.vector([rope.inv_freq()], device), f"angles{r}") for r, rope in enumerate(ropes))
    scale = arch.attention_scale or arch.head_dim**-0.5
    for i, layer in enumerate(arch.layers):
        qkv = ("q", "k", "v")
        ops += [
            Norm(norm_weight("attn_norm", i), arch.norm_eps, "x", "h"),
            Linear(kernels.pack_linear([fetch(name, i) for name in qkv], bias(qkv, i, arch.qkv_bias)), "h", "qkv"),
            RotateAndWrite(
                i,
                f"angles{ropes.index(layer.rope)}",
                arch.heads,
                arch.kv_heads,
                arch.head_dim,
                norm_weight("q_norm", i) if arch.qk_norm else None,
                norm_weight("k_norm", i) if arch.qk_norm else None,
                arch.norm_eps,
            ),
            Attend(i, scale, layer.window, arch.attention_softcap),
        ]
        out = kernels.pack_linear([fetch("o", i)], bias(("o",), i, arch.out_bias))
        post = norm_weight("post_attn_norm", i) if arch.post_norms else None
        ops += _into_residual(out, post, arch.norm_eps)
        ops.append(Norm(norm_weight("mlp_norm", i), arch.norm_eps, "x", "h"))
        pair = ("gate", "up")
        ops += [
            Linear(kernels.pack_linear([fetch(name, i) for name in pair], bias(pair, i, arch.mlp_bias)), "h", "g"),
            Gate(arch.activation),
        ]
        down = kernels.pack_linear([fetch("down", i)], bias(("down",), i, arch.mlp_bias))
        post = norm_weight("post_mlp_norm", i) if arch.post_norms else None
        ops += _into_residual(down, post, arch.norm_eps)
    # Rows without wanted logits end here: norm and head see only the others.
    ops += [PickRows(), Norm(norm_weight("norm", -1), arch.norm_eps, "x", "h")]
    head = embedding if arch.tied else fetch("head", -1)
    ops.append(Logits(kernels.pack_linear([head]), arch.logit_softcap, "h"))
    return tuple(ops)


def _into_residual(weight: object, post_norm: Array | None, eps: float) -> list[Op]:
    """The linear that ends a block (its input is `a`), added to the residual, by way of a norm where there is one."""
    if post_norm is None:
        return [LinearAdd(weight, "a")]
    return [Linear(weight, "a", "h"), Norm(post_norm, eps, "h", "h"), Add("h")]
