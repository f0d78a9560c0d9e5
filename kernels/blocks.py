"""The commonest block formats of GGUF to float32, in torch: many times faster than numpy over small groups of rows.

A block is 32 weights in a row. Little endian; d and m are float16; in the 4-bit formats byte i holds weight i in its
low half and weight i + 16 in its high half. Sums and products are those of ggml's reference, so results are bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import torch

_Type = gguf.GGMLQuantizationType


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
