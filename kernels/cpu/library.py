"""The shared library of the C++ kernels: where it is, how it is called, and why it is missing where it is.

PALMETTE_CPU_LIBRARY names another build of it; PALMETTE_CPU the level (instruction set) to use instead of the best.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from palmette.torch_later import Array, dtype_name, torch

_NO_MEMORY: Final = 2


class LibraryMissing(Exception):
    """The library is not there or does not load; the text says why."""


class Part(Structure):
    """pal_part of palmette_cpu.h."""

    _fields_: ClassVar = [("format", c_int32), ("unused", c_int32), ("rows", c_int64), ("data", c_void_p)]


# Result and arguments of each function of palmette_cpu.h. Opaque pointers are void*.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "pal_level": (c_char_p, []),
    "pal_levels": (c_char_p, []),
    "pal_error": (c_char_p, []),
    "pal_team_new": (c_void_p, [c_int, c_char_p]),
    "pal_team_free": (None, [c_void_p]),
    "pal_weight_new": (c_void_p, [c_void_p, c_int64, POINTER(Part), c_int, c_void_p]),
    "pal_weight_free": (None, [c_void_p]),
    "pal_weight_bytes": (c_int64, [c_void_p]),
    "pal_linear": (c_int, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int]),
    "pal_dequantize": (c_int, [c_int, c_void_p, c_int64, c_void_p]),
    "pal_ceiling": (c_int64, [c_void_p, c_int, c_int64]),
    "pal_tape_new": (c_void_p, [c_void_p, c_int]),
    "pal_tape_free": (None, [c_void_p]),
    "pal_tape_share": (None, [c_void_p, c_int]),
    "pal_run": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "pal_rms_norm": (c_int, [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_float, c_void_p]),
    "pal_gate": (c_int, [c_void_p, c_void_p, c_int64, c_int64, c_int, c_void_p]),
    "pal_embed": (c_int, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]),
    "pal_rope_write": (c_int, [c_void_p] * 6 + [c_int64, c_void_p]),
    "pal_attention": (c_int, [c_void_p] * 5 + [c_int, c_void_p]),
    "pal_sampler_new": (c_void_p, []),
    "pal_sampler_free": (None, [c_void_p]),
    "pal_sample": (c_int, [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p]),
}


class Library:
    """The loaded library. Its functions are called with pointers that the caller has checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dll = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self.dll, name)
            function.restype, function.argtypes = result, arguments

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that this processor runs, best last."""
        return tuple(self.dll.pal_levels().decode().split())

    @property
    def level(self) -> str:
        """The level that a team gets unless it asks for another. ValueError where PALMETTE_CPU names none to be had."""
        name = self.dll.pal_level()
        if name is None:
            raise self.error()
        return str(name.decode())

    def error(self, code: int = 0) -> Exception:
        """The exception for what just failed in this thread."""
        text = self.dll.pal_error().decode()
        return MemoryError(text) if code == _NO_MEMORY or text.startswith("no memory") else ValueError(text)

    def check(self, code: int) -> None:
        """Raise what a function that returned `code` has to say."""
        if code:
            raise self.error(code)


class Team:
    """Threads that work on one call at a time, the caller among them; they sleep in between. `level`: see Library."""

    def __init__(self, library: Library, threads: int, level: str | None = None) -> None:
        handle = library.dll.pal_team_new(threads, level.encode() if level else None)
        if handle is None:
            raise library.error()
        self.library, self.threads, self.level = library, threads, level or library.level
        self.handle = c_void_p(handle)
        self._close = weakref.finalize(self, library.dll.pal_team_free, self.handle)

    def close(self) -> None:
        """Ends the threads; the team is not to be used any more."""
        self._close()


@cache
def load() -> Library:
    """The library. LibraryMissing says in words why there is none."""
    named = os.environ.get("PALMETTE_CPU_LIBRARY")
    path = Path(named) if named else Path(__file__).with_name("_native.so")
    if not path.is_file():
        hint = "is not a file" if named else "is not there: palmette was installed without a C++ compiler"
        raise LibraryMissing(f"{path} {hint}")
    try:
        return Library(path)
    except (OSError, AttributeError) as error:
        raise LibraryMissing(f"{path} does not load: {error}") from error


def floats(values: Array, shape: Sequence[int | None] = ()) -> torch.Tensor:
    """`values` as a float32 tensor that C++ can read: on the CPU, its elements in a row. TypeError or ValueError if
    it is not float32 or not of this shape (None: any length)."""
    check_floats(values, shape)
    return torch.as_tensor(values).contiguous()


def check_floats(values: Array, shape: Sequence[int | None] = ()) -> None:
    """The errors of `floats`."""
    place = "cpu" if isinstance(values, np.ndarray) else values.device.type
    if dtype_name(values.dtype) != "float32" or place != "cpu":
        raise TypeError(f"float32 on the CPU is wanted, not {dtype_name(values.dtype)} on {place}")
    wanted = [a if b is None else b for a, b in zip(values.shape, shape, strict=False)]
    if shape and list(values.shape) != wanted + list(shape[len(wanted) :]):
        raise ValueError(f"the shape {tuple(values.shape)} is not {tuple(shape)}")


def address(values: Array) -> int:
    """Where the numbers lie; they must be kept alive as long as that is read."""
    return int(values.ctypes.data if isinstance(values, np.ndarray) else values.data_ptr())


def pointer(values: Array | None) -> c_void_p:
    """`address` as C takes it; NULL for None."""
    return c_void_p(address(values) if values is not None else None)


def in_a_row(values: Array) -> bool:
    """Whether the numbers lie one after the other, on the CPU."""
    if isinstance(values, np.ndarray):
        return values.flags.c_contiguous
    return values.device.type == "cpu" and values.is_contiguous()
