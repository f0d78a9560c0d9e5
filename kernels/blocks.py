"""Weights in the block formats of GGUF: as bytes, and spread out to float32.

A block is 32 weights in a row. Little endian; d and m are float16; in the 4-bit formats byte i holds weight i in its
low half and weight i + 16 in its high half. Sums and products are those of ggml's reference, so results are bit-equal.
The commonest formats are spread out in torch, many times faster than numpy over small groups of rows; `gguf` knows the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from palmette.torch_later import Array, torch


class Layout(NamedTuple):
    """Of a block: how many weights it holds, in how many bytes."""

    weights: int
    bytes: int


# Those of the C++ kernels. The package `gguf` knows all, but its import takes as long as reading a file's header.
_LAYOUTS = {
    "F32": Layout(1, 4),
    "F16": Layout(1, 2),
    "BF16": Layout(1, 2),
    "Q8_0": Layout(32, 34),
    "Q4_0": Layout(32, 18),
    "Q4_1": Layout(32, 20),
    "Q4_K": Layout(256, 144),
    "Q6_K": Layout(256, 210),
}


def layout(format: str) -> Layout:
    """Of a format by its name. KeyError where there is no such format."""
    found = _LAYOUTS.get(format)
    if found is None:
        import gguf

        found = Layout(*gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format]])
    return found


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight [rows, k] in a block format, such as "Q4_1". data: uint8 [rows, bytes of a row], perhaps in a memory
    map."""

    format: str
    data: np.ndarray[Any, Any]

    @property
    def shape(self) -> tuple[int, int]:
        weights, size = layout(self.format)
        return self.data.shape[0], self.data.shape[1] // size * weights

    def spread(self) -> torch.Tensor:
        """All weights, float32 [rows, k]."""
        if self.format in FORMATS:
            raw = torch.from_numpy(self.data.reshape(-1, layout(self.format).bytes))
            return FORMATS[self.format](raw).view(self.shape)
        import gguf

        spread = gguf.dequantize(self.data, gguf.GGMLQuantizationType[self.format])
        return torch.from_numpy(np.ascontiguousarray(spread))

    def take(self, rows: np.ndarray[Any, Any]) -> Blocks:
        """Some of the rows, int64 [n], as a copy."""
        return Blocks(self.format, self.data[rows])


Stored: TypeAlias = "Array | Blocks"
"""A weight as a model's files have it: blocks, float32 as an array, or a tensor."""


def quantize(weight: torch.Tensor, format: str) -> Blocks:
    """A weight [rows, k], k a multiple of the format's block, in blocks; by gguf's reference."""
    import gguf

    return Blocks(format, gguf.quantize(weight.float().numpy(), gguf.GGMLQuantizationType[format]))


def q8_0(raw: torch.Tensor) -> torch.Tensor:
    """raw uint8 [blocks, 34]: d, 32 signed bytes q; weight = q * d."""
    return raw[:, 2:].view(torch.int8).float().mul_(_half(raw, 0))


def q4_0(raw: torch.Tensor) -> torch.Tensor:
    """raw uint8 [blocks, 18]: d, 16 bytes of nibbles q; weight = (q - 8) * d."""
    return _nibbles(raw[:, 2:]).sub_(8).mul_(_half(raw, 0))


def q4_1(raw: torch.Tensor) -> torch.Tensor:
    """raw uint8 [blocks, 20]: d, m, 16 bytes of nibbles q; weight = q * d + m."""
    return _nibbles(raw[:, 4:]).mul_(_half(raw, 0)).add_(_half(raw, 2))


FORMATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"Q8_0": q8_0, "Q4_0": q4_0, "Q4_1": q4_1}
"""format -> function from raw blocks, uint8 [blocks, bytes], to float32 [blocks, 32]."""


def _half(raw: torch.Tensor, at: int) -> torch.Tensor:
    return raw[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(packed), 32)
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4
    return out
