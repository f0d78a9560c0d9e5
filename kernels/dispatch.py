"""Which implementation of the operations runs on a device, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from palmette.kernels import reference


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation of every operation of a tape; `reference` documents each. What `pack_linear` and `prepare`
    return is the implementation's own affair."""

    name: str
    pack_linear: Callable[..., Any]
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


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernels for a device, and in words why these."""

    kernels: Kernels
    reason: str


def table(name: str, module: Any) -> Kernels:
    """The kernels that a module defines, each under its own name."""
    names = [field for field in Kernels.__dataclass_fields__ if field != "name"]
    return Kernels(name, **{field: getattr(module, field) for field in names})


def choose(device: torch.device | str) -> Choice:
    """The kernels for a device. Plain torch runs everywhere, and is all there is so far."""
    kind = torch.device(device).type
    return Choice(table("reference", reference), f"reference (plain torch) on {kind}: no other kernels are built in")
