"""A decoder as data: what its config says, and which tensors it therefore has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions over the first `dim` elements of a head.

    scaling "linear" divides every frequency by `factor`; "llama3" divides the low ones by it, keeps the high ones, and
    blends between, measured against `original_context` (the method of Llama 3.1's published model code).
    divisors: one number per frequency to divide by, where the file gives them itself.
    """

    theta: float
    dim: int
    scaling: Literal["none", "linear", "llama3"] = "none"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original_context: int = 8192
    divisors: tuple[float, ...] | None = None

    def inv_freq(self) -> np.ndarray:
        """float32 [dim / 2], radians per position."""
        # Rounded to float32 after each operation, as the models were trained: in double alone the last bits differ.
        steps = np.arange(0, self.dim, 2, dtype=np.float32) / np.float32(self.dim)
        powers = np.power(np.float64(np.float32(self.theta)), steps.astype(np.float64)).astype(np.float32)
        base = np.float32(1.0) / powers
        if self.divisors is not None:
            return base / np.array(self.divisors, np.float32)
        if self.scaling == "linear":
            return base / self.factor
        if self.scaling == "llama3":
            wavelength = 2 * math.pi / base
            low_wave, high_wave = self.original_context / self.low, self.original_context / self.high
            blend = (self.original_context / wavelength - self.low) / (self.high - self.low)
            mixed = (1 - blend) * base / self.factor + blend * base
            slow = np.where(wavelength > low_wave, base / self.factor, mixed)
            return np.where(wavelength < high_wave, base, slow)
        return base


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What may differ from layer to layer. window: how many tokens, its own included, a token sees; 0: all."""

    rope: Rope
    window: int = 0


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only transformer of the Llama kind.

    vocab: rows of the embedding, the width of the logits. max_context: positions the model was made for.
    attention_scale: factor on q·k. qkv_bias, out_bias, mlp_bias: which linears have one. qk_norm: RMS norm of each
    query and key head before the rotation. post_norms: norms of what attention and MLP return, too (Gemma).
    norm_offset: added to every norm's weight (Gemma stores weight - 1). tied: the embedding is the output matrix.
    """

    family: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context: int
    layers: tuple[LayerKind, ...]
    norm_eps: float = 1e-5
    attention_scale: float = 0.0
    activation: Activation = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    tied: bool = False

    def describe(self) -> str:
        """One line for people: what kind of model this is."""
        windows = sum(1 for layer in self.layers if layer.window)
        return (
            f"{self.family}: {len(self.layers)} layers, {self.hidden} wide, {self.heads} heads on {self.kv_heads}, "
            f"vocabulary {self.vocab}, context {self.max_context}" + (f", {windows} windowed layers" if windows else "")
        )


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor that an architecture needs, by our name for it, and its shape (linears are [out, in])."""

    name: str
    shape: tuple[int, ...]
    layer: int = -1
    norm: bool = False


def parameters(arch: Architecture) -> Iterator[Parameter]:
    """Every tensor of the model, each once, in the order of the tape."""
    hidden, wide = arch.hidden, arch.intermediate
    q, kv = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    yield Parameter("embed", (arch.vocab, hidden))
    for i in range(len(arch.layers)):
        yield Parameter("attn_norm", (hidden,), i, True)
        for name, size in (("q", q), ("k", kv), ("v", kv)):
            yield Parameter(name, (size, hidden), i)
            if arch.qkv_bias:
                yield Parameter(f"{name}_bias", (size,), i)
        if arch.qk_norm:
            yield Parameter("q_norm", (arch.head_dim,), i, True)
            yield Parameter("k_norm", (arch.head_dim,), i, True)
        yield Parameter("o", (hidden, q), i)
        if arch.out_bias:
            yield Parameter("o_bias", (hidden,), i)
        if arch.post_norms:
            yield Parameter("post_attn_norm", (hidden,), i, True)
        yield Parameter("mlp_norm", (hidden,), i, True)
        for name, shape in (("gate", (wide, hidden)), ("up", (wide, hidden)), ("down", (hidden, wide))):
            yield Parameter(name, shape, i)
            if arch.mlp_bias:
                yield Parameter(f"{name}_bias", (shape[0],), i)
        if arch.post_norms:
            yield Parameter("post_mlp_norm", (hidden,), i, True)
    yield Parameter("norm", (hidden,), norm=True)
    if not arch.tied:
        yield Parameter("head", (arch.vocab, hidden))
