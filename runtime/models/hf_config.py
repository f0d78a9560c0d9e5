"""Hugging Face's config.json to an architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palmette.errors import ModelError
from palmette.runtime.models.architecture import Activation, Architecture, LayerKind, Rope

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def architecture(config: Mapping[str, Any], path: Path) -> Architecture:
    """The record of a config. ModelError where it is of a family, or has a setting, that is not known here."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"{path}: model_type {family!r} is not known here", hint="known are: " + ", ".join(FAMILIES))
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unnamed")
        raise ModelError(
            f"{path}: the weights are quantised by {method!r}, which is not known here",
            hint="use the unquantised checkpoint, or a GGUF file",
        )

    def need(key: str) -> Any:
        if config.get(key) is None:
            raise ModelError(f"{path} lacks {key}", hint="fetch the file again")
        return config[key]

    gemma = family == "gemma3_text"
    heads, hidden = need("num_attention_heads"), need("hidden_size")
    head_dim = config.get("head_dim") or hidden // heads
    name = config.get("hidden_act") or config.get("hidden_activation") or ("gelu_pytorch_tanh" if gemma else "silu")
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ModelError(f"{path}: activation {name!r} is not known here", hint=f"known are: {known}")
    scalar = config.get("query_pre_attn_scalar", 256 if gemma else None)
    return Architecture(
        family=family,
        hidden=hidden,
        intermediate=need("intermediate_size"),
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        vocab=need("vocab_size"),
        max_context=config.get("max_position_embeddings", 2048),
        layers=_layers(config, family, head_dim, path),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        attention_scale=scalar**-0.5 if gemma else 0.0,
        activation=_ACTIVATIONS[name],
        qkv_bias=family == "qwen2" or bool(config.get("attention_bias")),
        out_bias=family != "qwen2" and bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
        qk_norm=family in ("qwen3", "gemma3_text"),
        post_norms=gemma,
        norm_offset=1.0 if gemma else 0.0,
        embed_scale=hidden**0.5 if gemma else 1.0,
        attention_softcap=config.get("attn_logit_softcapping") or 0.0,
        logit_softcap=config.get("final_logit_softcapping") or 0.0,
        tied=bool(config.get("tie_word_embeddings", gemma)),
    )


def _layers(config: Mapping[str, Any], family: str, head_dim: int, path: Path) -> tuple[LayerKind, ...]:
    count = config.get("num_hidden_layers")
    if not isinstance(count, int):
        raise ModelError(f"{path} lacks num_hidden_layers", hint="fetch the file again")
    window = config.get("sliding_window") or 0
    if "use_sliding_window" in config and not config["use_sliding_window"]:
        window = 0
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = _layer_types(config, family, count, window)
    if len(kinds) != count or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ModelError(
            f"{path}: layer_types {sorted(set(kinds))} for {count} layers are not known here",
            hint="known are: full_attention, sliding_attention",
        )
    ropes = {kind: _rope(config, kind, head_dim, family, path) for kind in set(kinds)}
    return tuple(LayerKind(ropes[kind], window if kind == "sliding_attention" else 0) for kind in kinds)


def _layer_types(config: Mapping[str, Any], family: str, count: int, window: int) -> list[str]:
    """What the families' configs mean where they do not list the layers."""
    if family == "gemma3_text":
        every = config.get("sliding_window_pattern", 6)
        return ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)]
    if not window or family == "llama":
        return ["full_attention"] * count
    # Qwen windows only the layers from this one on.
    first = config.get("max_window_layers", 0) if family in ("qwen2", "qwen3") else 0
    return ["sliding_attention" if i >= first else "full_attention" for i in range(count)]


def _rope(config: Mapping[str, Any], kind: str, head_dim: int, family: str, path: Path) -> Rope:
    # Newer configs have rope_parameters, for all layers or by kind of layer; older ones rope_theta and rope_scaling.
    given = config.get("rope_parameters") or {}
    if kind in given:
        given = given[kind]
    older = dict(config.get("rope_scaling") or {})
    theta = given.get("rope_theta") or config.get("rope_theta") or (1e6 if family == "gemma3_text" else 10000.0)
    if family == "gemma3_text" and kind == "sliding_attention" and "rope_theta" not in given:
        theta, older = config.get("rope_local_base_freq", 10000.0), {}
    scaling = {**older, **given}
    method = scaling.get("rope_type") or scaling.get("type") or "default"
    part = scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    dim = int(head_dim * part)
    if method == "default":
        return Rope(theta, dim)
    if method == "linear":
        return Rope(theta, dim, "linear", factor=float(scaling["factor"]))
    if method == "llama3":
        return Rope(
            theta,
            dim,
            "llama3",
            factor=float(scaling["factor"]),
            low=float(scaling["low_freq_factor"]),
            high=float(scaling["high_freq_factor"]),
            original_context=int(scaling["original_max_position_embeddings"]),
        )
    raise ModelError(f"{path}: rope scaling {method!r} is not known here", hint="known are: default, linear, llama3")
