"""Reads a GGUF file: metadata, and tensors by name out of a memory map.

The layout is that of the GGUF specification, versions 2 and 3, little endian. The `gguf` package's own reader takes
seconds to walk a large vocabulary's arrays; its dequantisers are used.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from palmette.errors import ModelError
from palmette.kernels.blocks import Blocks, Stored, layout
from palmette.torch_later import torch

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# So many bytes of the file stay in memory while it is read: they are needed once, to be packed.
_KEPT = 16 << 20
_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# The commonest types by number; `gguf`, which is slow to import, knows them all.
_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 12: "Q4_K", 14: "Q6_K", 30: "BF16"}


class TensorInfo(NamedTuple):
    """shape as torch has it (outermost first), ggml type number, byte offset in the file."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """metadata: key -> number, str, bool or list. tensors: name -> TensorInfo. Close it when the tensors are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._read = 0
        with path.open("rb") as file:
            try:
                # Private and writable, since torch warns of memory that is not; nobody writes.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except ValueError:
                raise _damaged(path, "it is empty") from None
        try:
            self._read_header()
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            self._map.close()
            raise _damaged(path, f"its header breaks off or makes no sense ({error})") from error
        except ModelError:
            self._map.close()
            raise

    def close(self) -> None:
        # Blocks may lie in the map (an embedding's, or in the traceback of a read that was broken off): it closes with
        # the last of them then. An error here would take the place of the one that is on its way.
        self._let_go(_KEPT)
        with suppress(BufferError):
            self._map.close()

    def _let_go(self, size: int) -> None:
        """Note that so many more bytes are being read; now and then, those before count as this process's memory no
        more. What is asked for again comes back from the file."""
        self._read += size
        if self._read >= _KEPT and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._read = 0

    def kind_name(self, name: str) -> str:
        """The tensor's type as people call it, such as Q4_K."""
        number = self.tensors[name].kind
        return _type_name(number) or f"type {number}"

    def check_types(self) -> None:
        """ModelError where a tensor has a type that cannot be read, before any is read."""
        for name, info in self.tensors.items():
            if not _readable(info.kind):
                raise ModelError(
                    f"{self.path}: tensor {name} is stored as {self.kind_name(name)}, which cannot be read here",
                    hint="use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K",
                )

    def plain_dtype(self) -> str | None:
        """The dtype of the matrices where all are stored unquantised in one type, else None."""
        kinds = {info.kind for info in self.tensors.values() if len(info.shape) > 1}
        return _PLAIN.get(_type_name(kinds.pop()) or "") if len(kinds) == 1 else None

    def read(self, name: str, formats: Collection[str] = ()) -> Stored:
        """The tensor in its own dtype where it is stored plainly (a copy; an array where it is float32 of one axis), as
        blocks over the memory map where their format is one of `formats`, else spread out to float32."""
        info = self.tensors[name]
        kind = self.kind_name(name)
        raw = np.frombuffer(self._map, dtype=np.uint8, count=_bytes(info.shape, kind), offset=info.offset)
        self._let_go(len(raw))
        if kind == "F32" and len(info.shape) == 1:
            return raw.copy().view(np.float32)
        if kind in _PLAIN:
            return torch.from_numpy(raw.copy()).view(getattr(torch, _PLAIN[kind])).reshape(info.shape)
        blocks = Blocks(kind, raw.reshape(*info.shape[:-1], -1))
        return blocks if kind in formats else blocks.spread()

    def _read_header(self) -> None:
        magic, version = self._map[:4], 0
        if magic == b"GGUF":
            (version,) = struct.unpack_from("<I", self._map, 4)
        if magic != b"GGUF" or version not in (2, 3):
            raise _damaged(self.path, "it does not begin as a little-endian GGUF file of version 2 or 3 does")
        tensor_count, field_count = struct.unpack_from("<QQ", self._map, 8)
        self._at = 24
        for _ in range(field_count):
            key = self._string()
            self.metadata[key] = self._value(self._number("I"))
        infos: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(tensor_count):
            name = self._string()
            sizes = tuple(self._number("Q") for _ in range(self._number("I")))
            infos.append((name, sizes[::-1], self._number("I"), self._number("Q")))
        alignment = self.metadata.get("general.alignment", 32)
        data = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in infos:
            if name in self.tensors:
                raise _damaged(self.path, f"it has two tensors named {name}")
            self.tensors[name] = TensorInfo(shape, kind, data + offset)
            self._check_inside(name)

    def _check_inside(self, name: str) -> None:
        info = self.tensors[name]
        kind = _type_name(info.kind)
        if kind is None:
            return  # check_types says more about it
        if info.offset + _bytes(info.shape, kind) > len(self._map):
            raise _damaged(self.path, f"it ends before tensor {name} does")

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._map, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._number("Q")
        end = self._at + length
        if end > len(self._map):
            raise struct.error("a string runs past the end")
        text = self._map[self._at : end].decode("utf-8", errors="surrogateescape")
        self._at = end
        return text

    def _strings(self, count: int) -> list[str]:
        """As `_string`, so many times: a vocabulary and its merges are a hundred thousand."""
        data, at, size = self._map, self._at, len(self._map)
        found = []
        for _ in range(count):
            begin = at + 8
            at = begin + int.from_bytes(data[at:begin], "little")
            if at > size:
                raise struct.error("a string runs past the end")
            found.append(data[begin:at].decode("utf-8", "surrogateescape"))
        self._at = at
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, count = self._number("I"), self._number("Q")
            if inner == _STRING:
                return self._strings(count)
            if inner == _ARRAY:
                return [self._value(inner) for _ in range(count)]
            values = struct.unpack_from(f"<{count}{_SCALARS[inner]}", self._map, self._at)
            self._at += struct.calcsize(f"<{count}{_SCALARS[inner]}")
            return list(values)
        return self._number(_SCALARS[kind])


def _type_name(number: int) -> str | None:
    """None where there is no such type."""
    if number not in _TYPES:
        import gguf

        with suppress(ValueError):
            return gguf.GGMLQuantizationType(number).name
    return _TYPES.get(number)


def _readable(number: int) -> bool:
    if number in _TYPES:
        return True
    import gguf

    return number in gguf.quants._type_traits


def _bytes(shape: tuple[int, ...], kind: str) -> int:
    weights, size = layout(kind)
    return math.prod(shape) // weights * size


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} is no usable GGUF file: {what}", hint="fetch the file again, or check the path")
