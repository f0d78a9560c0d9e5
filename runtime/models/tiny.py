"""A small random model over bytes, for tests: everything of a real one but sense."""

from __future__ import annotations

from typing import Any

import torch

from palmette.runtime.models.architecture import Architecture, LayerKind, Parameter, Rope, parameters
from palmette.runtime.models.model import Model
from palmette.runtime.tokenizer import Tokenizer


def tiny_architecture(*, layers: int = 2, window: int = 0, vocab: int = 260, **overrides: Any) -> Architecture:
    """A Llama of 32 wide, 4 heads on 2; keyword arguments replace fields of the record."""
    kind = LayerKind(Rope(theta=10000.0, dim=8), window)
    values: dict[str, Any] = {
        "family": "llama",
        "hidden": 32,
        "intermediate": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "vocab": vocab,
        "max_context": 2048,
        "layers": (kind,) * layers,
    }
    return Architecture(**{**values, **overrides})


def random_weights(arch: Architecture, seed: int = 0) -> dict[tuple[str, int], torch.Tensor]:
    """float32 weights by (our name, layer): norms near 1, the rest of a size that keeps logits in a few units."""
    generator = torch.Generator().manual_seed(seed)

    def draw(parameter: Parameter) -> torch.Tensor:
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.norm:
            return 1.0 - arch.norm_offset + 0.1 * noise
        return noise * (1.0 if parameter.name == "embed" else 1.5 * parameter.shape[-1] ** -0.5)

    return {(p.name, p.layer): draw(p) for p in parameters(arch)}


def tiny_model(
    seed: int = 0,
    *,
    vocab: int | None = None,
    layers: int = 2,
    specials: tuple[str, ...] = ("<eos>", "<|im_start|>", "<|im_end|>"),
    chat_template: str | None = None,
    **overrides: Any,
) -> tuple[Model, Tokenizer]:
    """A random Llama and a byte tokenizer (256 bytes, then `specials`). vocab: width of the logits; default: one more
    than the tokens, so that code which forgets padding rows is found out. Other keywords: fields of Architecture."""
    width = vocab if vocab is not None else 257 + len(specials)
    tokenizer = Tokenizer.of_bytes(specials, chat_template=chat_template, width=width)
    arch = tiny_architecture(layers=layers, vocab=width, **overrides)
    weights = random_weights(arch, seed)
    return Model(arch, lambda name, layer: weights[name, layer]), tokenizer
