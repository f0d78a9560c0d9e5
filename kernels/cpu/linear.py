"""Matmul on packed weights: float32, float16, bfloat16 and GGUF's blocks, x float32.

The result of a row depends neither on the other rows nor on the threads: each (row, column) has one order of summation.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Final

import numpy as np

from palmette.kernels.blocks import Blocks, Stored
from palmette.kernels.cpu.library import Library, Part, Team, address, check_floats, floats, load, pointer
from palmette.torch_later import Array, dtype_name, torch

# The order of the enum in palmette_cpu.h.
FORMATS: Final = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
_DTYPES: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class Weight:
    """A packed weight [n, k] with its bias. It belongs to the level of the team that packed it."""

    def __init__(self, team: Team, parts: Sequence[Stored], bias: Array | None = None) -> None:
        if not parts:
            raise ValueError("a weight has at least one part")
        arrays = [_in_a_row(part.data if isinstance(part, Blocks) else part) for part in parts]
        shapes = [part.shape for part in parts]
        self.k = int(shapes[0][1])
        self.n = sum(int(shape[0]) for shape in shapes)
        if any(len(shape) != 2 or shape[1] != self.k for shape in shapes):
            raise ValueError(f"parts of one weight have the same k, and two axes: {[tuple(shape) for shape in shapes]}")
        self.level = team.level
        self.formats = tuple(format_of(part) for part in parts)
        table = (Part * len(parts))()
        for i, (array, name) in enumerate(zip(arrays, self.formats, strict=True)):
            table[i] = Part(FORMATS.index(name), 0, int(shapes[i][0]), address(array))
        if bias is not None:
            check_floats(bias, (self.n,))
        extra = None if bias is None else _in_a_row(bias)
        dll = team.library.dll
        handle = dll.pal_weight_new(team.handle, self.k, table, len(parts), pointer(extra))
        if handle is None:
            raise team.library.error()
        self.handle = ctypes.c_void_p(handle)
        self.bytes = int(dll.pal_weight_bytes(self.handle))
        weakref.finalize(self, dll.pal_weight_free, self.handle)


def linear(team: Team, x: Array, weight: Weight, out: torch.Tensor | None = None, *, add: bool = False) -> torch.Tensor:
    """x [rows, k] -> x @ weight^T + bias [rows, n], float32; with `out` written there, or added to it."""
    rows = floats(x, (None, weight.k))
    if out is None:
        if add:
            raise ValueError("there is nothing to add to without out")
        out = torch.empty(len(rows), weight.n)
    elif floats(out, (len(rows), weight.n)) is not out:
        raise ValueError("out must be contiguous")
    library = team.library
    code = library.dll.pal_linear(team.handle, weight.handle, pointer(rows), len(rows), pointer(out), add)
    library.check(code)
    return out


def spread(blocks: Stored, library: Library | None = None) -> torch.Tensor:
    """All weights of a stored weight [n, k] as float32."""
    library = library or load()
    data = _in_a_row(blocks.data if isinstance(blocks, Blocks) else blocks)
    out = torch.empty(tuple(blocks.shape))
    code = library.dll.pal_dequantize(FORMATS.index(format_of(blocks)), pointer(data), out.numel(), pointer(out))
    library.check(code)
    return out


def format_of(part: Stored) -> str:
    """Its name among FORMATS. ValueError where it has none."""
    name = part.format if isinstance(part, Blocks) else dtype_name(part.dtype)
    name = _DTYPES.get(name, name)
    if name not in FORMATS:
        raise ValueError(f"the kernels do not know weights of {name}; they know {', '.join(FORMATS)}")
    return name


def _in_a_row(values: Array) -> Array:
    return np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values.cpu().contiguous()
