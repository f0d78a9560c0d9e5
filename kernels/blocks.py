"""Weights in the block formats of GGUF: as bytes, and spread out to float32.

A block is 32 weights in a row. Little endian; d and m are float16; in the 4-bit formats byte i holds weight i in its
low half and weight i + 16 in its high half. Sums and products are those of ggml's reference, so results are bit-equal.
The commonest formats are spread out in torch, many times faster than numpy over small groups of rows; `gguf` knows the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import gguf
import numpy as np
import torch

_Type = gguf.GGMLQuantizationType



@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight [rows, k] in a block format, such as "Q4_1". data: uint8 [rows, bytes of a row], perhaps in a memory
    map."""

    format: str
    data: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        block, size = gguf.GGML_QUANT_SIZES[_Type[self.format]]
        return self.data.shape[0], self.data.shape[1] // size * block

    def spread(self) -> torch.Tensor:
        """All weights, float32 [rows, k]."""
        kind = _Type[self.format]
        if kind in FORMATS:
            return FORMATS[kind](self.data.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])).view(self.shape)
        return torch.from_numpy(np.ascontiguousarray(gguf.dequantize(self.data.numpy(), kind)))

    def take(self, rows: torch.Tensor) -> Blocks:
        """Some of the rows, int64 [n], as a copy."""
        return Blocks(self.format, self.data.index_select(0, rows))


Stored: TypeAlias = torch.Tensor | Blocks
"""A weight as a model's files have it."""


def block_length(format: str) -> int:
    """Weights in a block of a format."""
    return int(gguf.GGML_QUANT_SIZES[_Type[format]][0])


def quantize(weight: torch.Tensor, format: str) -> Blocks:
    """A weight [rows, k], k a multiple of the format's block, in blocks; by gguf's reference."""
    return Blocks(format, torch.from_numpy(gguf.quantize(weight.float().numpy(), _Type[format])))


def q8_0(raw: torch.Tensor) -> torch.Tensor:
    """raw uint8 [blocks, 34]: d, 32 signed bytes q; weight = q * d."""
    return raw[:, 2:].view(torch.int8).float().mul_(_half(raw, 0))


def q4_0(raw: torch.Tensor) -> torch.Tensor:
    """raw uint8 [blocks, 18]: d, 16 bytes of nibbles q; weight = (q - 8) * d."""
    return _nibbles(raw[:, 2:]).sub_(8).mul_(_half(raw, 0))


def q4_1(raw: torch.Tensor) -> torch.Tensor:
    """raw uint8 [blocks, 20]: d, m, 16 bytes of nibbles q; weight = q * d + m."""
    return _nibbles(raw[:, 4:]).mul_(_half(raw, 0)).add_(_half(raw, 2))


FORMATS: dict[_Type, Callable[[torch.Tensor], torch.Tensor]] = {
    _Type.Q8_0: q8_0,
    _Type.Q4_0: q4_0,
    _Type.Q4_1: q4_1,
}
"""type -> function from raw blocks, uint8 [blocks, bytes], to float32 [blocks, 32]."""


def _half(raw: torch.Tensor, at: int) -> torch.Tensor:
    return raw[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(packed), 32)
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4
    return out
