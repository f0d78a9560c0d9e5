"""A model's step as one call: the tape lowered to pal_op records, run in C++ for a ragged batch."""

from __future__ import annotations

import ctypes
import time
import weakref
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import Any, Final

import numpy as np

from palmette.kernels.blocks import Blocks, Stored
from palmette.kernels.cpu.crew import Crew
from palmette.kernels.cpu.library import Team, address, in_a_row, pointer
from palmette.kernels.cpu.linear import FORMATS, Weight, format_of
from palmette.kernels.ragged import RaggedBatch
from palmette.kernels.tape import (
    Add,
    Angles,
    Attend,
    Embed,
    Gate,
    Linear,
    LinearAdd,
    Logits,
    Norm,
    PickRows,
    RotateAndWrite,
    Tape,
)
from palmette.kernels.tape import Op as Operation
from palmette.torch_later import Array, as_numpy, dtype_name, torch

# The order of the enums in palmette_cpu.h.
CODES: Final = {
    kind: code
    for code, kind in enumerate(
        (Embed, Angles, Norm, Linear, LinearAdd, Add, RotateAndWrite, Attend, Gate, PickRows, Logits)
    )
}
GATES: Final = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
_REGISTERS: Final = {"x": 0, "h": 1, "qkv": 2, "a": 3, "g": 4}
_ANGLES: Final = 8
# uint16 is bfloat16 in numpy's arrays.
_KV_TYPES: Final = {"float32": 0, "bfloat16": 1, "uint16": 1, "int8": 2}


class Op(ctypes.Structure):
    """pal_op of palmette_cpu.h."""

    _fields_ = (
        *((name, c_int32) for name in ("code", "layer", "src", "dst", "heads", "kv_heads", "head_dim", "rot")),
        *((name, c_int32) for name in ("window", "kind")),
        *((name, c_float) for name in ("eps", "scale", "softcap", "unused")),
        ("rows", c_int64),
        ("columns", c_int64),
        ("weight", c_void_p),
        ("weight2", c_void_p),
    )


class Cache(ctypes.Structure):
    """pal_kv of palmette_cpu.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("k", "v", "k_scale", "v_scale")),
        ("dtype", c_int32),
        ("unused", c_int32),
        *((name, c_int64) for name in ("layers", "slots", "layer_stride", "slot_stride", "kv_heads", "head_dim")),
    )


class Batch(ctypes.Structure):
    """pal_batch of palmette_cpu.h."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "segments", "outputs")),
        *((name, c_void_p) for name in ("tokens", "positions", "slots", "seg_start", "kv_start", "kv_slots")),
        ("out_rows", c_void_p),
        ("logits", c_void_p),
    )


class Step:
    """A tape that C++ runs. One call at a time; memory for a step is kept from call to call.

    tape: its linears are `Weight`s of the team's level; its embedding is float32, float16, bfloat16 or blocks.
    alone: a team of one of the same level, for steps that one thread does sooner (crew.py). ValueError where
    operations do not fit together.
    """

    def __init__(self, team: Team, tape: Tape, alone: Team | None = None) -> None:
        self._team = team
        self._alone = alone
        self._crew = Crew()
        self._kept: list[Any] = []  # what the records point to
        records = (Op * len(tape))()
        rot: dict[str, int] = {}
        for record, op in zip(records, tape, strict=True):
            self._fill(record, op, rot)
        dll = team.library.dll
        handle = dll.pal_tape_new(records, len(tape))
        if handle is None:
            raise team.library.error()
        self._handle = c_void_p(handle)
        self.vocab = int(tape[-1].weight.n)
        weakref.finalize(self, dll.pal_tape_free, self._handle)

    def run(self, batch: RaggedBatch, kv: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Logits, float32 [R, vocab], of the batch's out_rows; K and V of all its tokens are in `kv` afterwards.

        kv.k, kv.v: [layers, slots, kv_heads, head_dim] of float32, bfloat16, or int8 with kv.k_scale and kv.v_scale,
        float32 [layers, slots, kv_heads]. out: where the logits go, if not to a new array. ValueError where batch or
        cache do not fit the model; nothing is written then.
        """
        count = len(batch.out_rows)
        if out is None:
            out = np.empty((count, self.vocab), np.float32)
        elif out.shape != (count, self.vocab) or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(f"the logits are float32 [{count}, {self.vocab}] in a row")
        record = batch_record(batch, out)
        cache = cache_record(kv)
        if self._alone is None:
            self._run(self._team, cache, record)
            return out
        rows = len(batch.tokens)
        team = self._alone if self._crew.alone(rows) else self._team
        begun = time.perf_counter()
        self._run(team, cache, record)
        self._crew.note(rows, time.perf_counter() - begun)
        return out

    def _run(self, team: Team, cache: Cache, record: Batch) -> None:
        library = team.library
        library.check(library.dll.pal_run(team.handle, self._handle, ctypes.byref(cache), ctypes.byref(record)))

    def share(self, on: bool) -> None:
        """Whether requests that begin with the same slots read these once: faster, and the same bits. On at first."""
        self._team.library.dll.pal_tape_share(self._handle, on)

    def _fill(self, record: Op, op: Operation, rot: dict[str, int]) -> None:
        if type(op) not in CODES:
            raise ValueError(f"the C++ kernels know no operation {type(op).__name__}")
        record.code = CODES[type(op)]
        match op:
            case Embed():
                self._fill_embedding(record, op.weight, op.scale)
            case Angles():
                record.rot = rot[op.out] = 2 * len(op.inv_freq)
                record.dst, record.weight = _register(op.out), self._floats(op.inv_freq)
            case Norm():
                record.src, record.dst, record.eps = _register(op.src), _register(op.out), op.eps
                record.columns, record.weight = len(op.weight), self._floats(op.weight)
            case Linear():
                record.src, record.dst, record.weight = _register(op.src), _register(op.out), self._packed(op.weight)
            case LinearAdd() | Logits():
                record.src, record.weight = _register(op.src), self._packed(op.weight)
                record.softcap = getattr(op, "softcap", 0.0)
            case Add():
                record.src = _register(op.src)
            case RotateAndWrite():
                record.layer, record.src, record.rot = op.layer, _register(op.angles), rot[op.angles]
                record.heads, record.kv_heads, record.head_dim, record.eps = op.heads, op.kv_heads, op.head_dim, op.eps
                if op.q_norm is not None:
                    record.weight, record.weight2 = self._floats(op.q_norm), self._floats(op.k_norm)
            case Attend():
                record.layer, record.scale, record.window, record.softcap = op.layer, op.scale, op.window, op.softcap
            case Gate():
                record.src, record.dst, record.kind = _register("g"), _register("a"), GATES[op.kind]

    def _fill_embedding(self, record: Op, weight: Stored, scale: float) -> None:
        embedding(record, weight, scale)
        self._kept.append(weight)

    def _floats(self, values: Array) -> int:
        self._kept.append(np.ascontiguousarray(as_numpy(values), np.float32))
        return address(self._kept[-1])

    def _packed(self, weight: Weight) -> c_void_p:
        if weight.level != self._team.level:
            raise ValueError(f"a weight is packed for {weight.level}, the team runs {self._team.level}")
        self._kept.append(weight)
        return weight.handle


def embedding(record: Op, weight: Stored, scale: float) -> None:
    """Describe an embedding [V, n] in a record; the weight must stay alive. The scale is rounded to the weight's type
    first, as the models do; blocks count as float32."""
    blocks = isinstance(weight, Blocks)
    data = weight.data if isinstance(weight, Blocks) else weight
    if not in_a_row(data):
        raise ValueError("the rows of an embedding lie one after the other, on the CPU")
    record.kind = FORMATS.index(format_of(weight))
    record.rows, record.columns = weight.shape
    record.weight = address(data)
    plain = blocks or isinstance(data, np.ndarray)
    record.scale = scale if plain else float(torch.tensor(scale, dtype=data.dtype))


def cache_record(kv: Any) -> Cache:
    """The record of a cache with the fields that `Step.run` names."""
    k, v = kv.k, kv.v
    if k.shape != v.shape or k.dtype != v.dtype or not (in_a_row(k) and in_a_row(v)):
        raise ValueError("keys and values are two contiguous tensors of one shape and type")
    kind = dtype_name(k.dtype)
    if kind not in _KV_TYPES:
        raise ValueError(f"a cache holds {', '.join(_KV_TYPES)}, not {kind}")
    layers, slots, heads, size = k.shape
    scales = [getattr(kv, "k_scale", None), getattr(kv, "v_scale", None)] if kind == "int8" else [None, None]
    for scale in scales:
        if scale is not None and (scale.shape != k.shape[:3] or dtype_name(scale.dtype) != "float32"):
            raise ValueError(f"the scales of a cache are float32 {tuple(k.shape[:3])}")
    return Cache(
        pointer(k),
        pointer(v),
        *map(pointer, scales),
        dtype=_KV_TYPES[kind],
        layers=layers,
        slots=slots,
        layer_stride=slots * heads * size,
        slot_stride=heads * size,
        kv_heads=heads,
        head_dim=size,
    )


def batch_record(batch: RaggedBatch, logits: Array | None) -> Batch:
    """The record of a batch; its arrays must stay alive."""
    names = ("tokens", "positions", "slots", "seg_start", "kv_start", "kv_slots", "out_rows")
    arrays = [getattr(batch, name) for name in names]
    for name, array in zip(names, arrays, strict=True):
        if dtype_name(array.dtype) != "int64" or not in_a_row(array):
            raise ValueError(f"{name} is int64 in a row on the CPU")
    rows, segments = len(batch.tokens), len(batch.seg_start) - 1
    if not len(batch.positions) == len(batch.slots) == rows or len(batch.kv_start) != segments + 1:
        raise ValueError("the batch's arrays differ in length")
    if int(batch.kv_start[-1]) != len(batch.kv_slots):
        raise ValueError("kv_start does not span kv_slots")
    return Batch(rows, segments, len(batch.out_rows), *map(pointer, arrays), pointer(logits))


def _register(name: str) -> int:
    if name.startswith("angles"):
        return _ANGLES + int(name.removeprefix("angles"))
    return _REGISTERS[name]
