"""Reads a GGUF file: metadata, and tensors by name out of a memory map.

The layout is that of the GGUF specification, versions 2 and 3, little endian. The `gguf` package's own reader takes
seconds to walk a large vocabulary's arrays; its dequantisers are used.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch

from palmette.errors import ModelError
from palmette.kernels.blocks import Blocks, Stored

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_PLAIN = {
    gguf.GGMLQuantizationType.F32: torch.float32,
    gguf.GGMLQuantizationType.F16: torch.float16,
    gguf.GGMLQuantizationType.BF16: torch.bfloat16,
}


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
        # Where a read was broken off (Ctrl-C), its traceback still holds arrays over the map, which closes with the
        # last of them then. An error here would take the place of the one that is on its way.
        with suppress(BufferError):
            self._map.close()

    def kind_name(self, name: str) -> str:
        """The tensor's type as people call it, such as Q4_K."""
        number = self.tensors[name].kind
        try:
            return gguf.GGMLQuantizationType(number).name
        except ValueError:
            return f"type {number}"

    def check_types(self) -> None:
        """ModelError where a tensor has a type that cannot be read, before any is read."""
        for name, info in self.tensors.items():
            readable = {*_PLAIN, *gguf.quants._type_traits}
            if info.kind not in readable:
                raise ModelError(
                    f"{self.path}: tensor {name} is stored as {self.kind_name(name)}, which cannot be read here",
                    hint="use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K",
                )

    def plain_dtype(self) -> torch.dtype | None:
        """The dtype of the matrices where all are stored unquantised in one type, else None."""
        kinds = {info.kind for info in self.tensors.values() if len(info.shape) > 1}
        return _PLAIN.get(gguf.GGMLQuantizationType(kinds.pop())) if len(kinds) == 1 else None

    def read(self, name: str, formats: Collection[str] = ()) -> Stored:
        """The tensor in its own dtype where it is stored plainly (a copy), as blocks over the memory map where their
        format is one of `formats`, else spread out to float32."""
        info = self.tensors[name]
        kind = gguf.GGMLQuantizationType(info.kind)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        count = int(np.prod(info.shape, dtype=np.int64))
        raw = np.frombuffer(self._map, dtype=np.uint8, count=count // block * size, offset=info.offset)
        if kind in _PLAIN:
            return torch.from_numpy(raw.copy()).view(_PLAIN[kind]).reshape(info.shape)
        blocks = Blocks(kind.name, torch.from_numpy(raw).view(*info.shape[:-1], -1))
        return blocks if kind.name in formats else blocks.spread()

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
        try:
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(info.kind)]
        except ValueError:
            return  # check_types says more about it
        if info.offset + int(np.prod(info.shape, dtype=np.int64)) // block * size > len(self._map):
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


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} is no usable GGUF file: {what}", hint="fetch the file again, or check the path")
