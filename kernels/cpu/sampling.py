"""Tokens from logits in C++: masks, temperature, top-k, top-p, min-p, the draw, log-probabilities.

What each means and in which order they come is runtime/sampler.py's affair; this is the same, row by row, without a
sort of the vocabulary. A row's outcome depends on its own logits and settings alone.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from palmette.kernels.cpu.library import Team, pointer
from palmette.torch_later import Array, as_numpy, is_tensor

NOTHING_ALLOWED: Final = -1
NO_NUMBERS: Final = -2

# pal_sample_row and pal_sample_out of palmette_cpu.h.
_ROW: Final = np.dtype(
    [
        *((name, np.uintp) for name in ("mask", "banned", "asked", "asked_values", "top_ids", "top_values")),
        *((name, np.float64) for name in ("temperature", "top_p", "min_p", "uniform")),
        ("top_k", np.int64),
        *((name, np.int32) for name in ("banned_count", "asked_count", "top", "unused")),
    ],
    align=True,
)
_OUT: Final = np.dtype([("token", np.int64), ("logprob", np.float32), ("top_count", np.int32)], align=True)


class Ask(NamedTuple):
    """What is asked of a row of logits.

    at: a number in [0, 1) that decides the draw. top_k: 0 or less is off. mask: int32 words, bit t & 31 of word t >> 5
    set where token t is allowed. banned: ids that are not. logprobs: None is off; else the log-probability of the drawn
    token is told, those of so many best tokens, and those of the ids in `asked`.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    at: float = 0.0
    mask: np.ndarray | None = None
    banned: Sequence[int] = ()
    logprobs: int | None = None
    asked: Sequence[int] = ()


class Found(NamedTuple):
    """Log-probabilities of a row: of its token, of the best ones (best first, equal ones by id; fewer where fewer are
    possible), of those asked for, in their order."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    asked: tuple[tuple[int, float], ...]


class Outcome(NamedTuple):
    """token: the id, NOTHING_ALLOWED where all logits are -inf, NO_NUMBERS where one is NaN or +inf."""

    token: int
    found: Found | None


class Sampler:
    """Draws tokens with the threads of a team; one call at a time. Its memory is kept from call to call."""

    def __init__(self, team: Team) -> None:
        dll = team.library.dll
        handle = dll.pal_sampler_new()
        if handle is None:
            raise MemoryError("no memory for a sampler")
        self._team, self._handle = team, ctypes.c_void_p(handle)
        weakref.finalize(self, dll.pal_sampler_free, self._handle)

    def sample(self, logits: Array, asks: Sequence[Ask]) -> list[Outcome]:
        """One token for each row of `logits`, float32 [R, V] on the CPU; those masked or banned become -inf."""
        if is_tensor(logits) and logits.device.type != "cpu":
            raise TypeError("logits are float32 [R, V] on the CPU")
        table = as_numpy(logits)
        if table.dtype != np.float32 or table.ndim != 2:
            raise TypeError("logits are float32 [R, V] on the CPU")
        count, width = table.shape
        stride = table.strides[0] // table.itemsize
        rows_apart = count < 2 or stride >= width
        if len(asks) != count or (count and not (rows_apart and table.strides[1] == table.itemsize)):
            raise ValueError(f"{len(asks)} rows are asked of logits {table.shape}")
        if not count:
            return []
        rows, out = np.zeros(count, _ROW), np.zeros(count, _OUT)
        for name, field in (("temperature", 0), ("top_k", 1), ("top_p", 2), ("min_p", 3), ("uniform", 4)):
            rows[name] = [ask[field] for ask in asks]
        rows["top"] = [-1 if ask.logprobs is None else min(ask.logprobs, width) for ask in asks]
        kept: list[np.ndarray] = []  # what the rows point to
        _point_to_masks(rows, asks, width, kept)
        _point_to_ids(rows, "banned", [ask.banned for ask in asks], kept)
        most = max(int(rows["top"].max()), 0)
        wanted = [ask.asked if ask.logprobs is not None else () for ask in asks]
        values = _point_to_ids(rows, "asked", wanted, kept)
        top_ids, top_values = np.empty((count, most), np.int64), np.empty((count, most), np.float32)
        if most:
            rows["top_ids"] = top_ids.ctypes.data + np.arange(count) * top_ids.strides[0]
            rows["top_values"] = top_values.ctypes.data + np.arange(count) * top_values.strides[0]
        library = self._team.library
        library.check(
            library.dll.pal_sample(
                self._team.handle, self._handle, pointer(table), count, width, stride,
                rows.ctypes.data, out.ctypes.data,
            )
        )  # fmt: skip
        tokens = out["token"].tolist()
        if most == 0 and not values.size and (rows["top"] < 0).all():
            return [Outcome(token, None) for token in tokens]
        ends = np.cumsum(rows["asked_count"]).tolist()
        outcomes = []
        for i, (token, value, found) in enumerate(zip(tokens, out["logprob"].tolist(), out["top_count"], strict=True)):
            if asks[i].logprobs is None or token < 0:
                outcomes.append(Outcome(token, None))
                continue
            top = tuple(zip(top_ids[i, :found].tolist(), top_values[i, :found].tolist(), strict=True))
            ids = asks[i].asked
            others = tuple(zip(ids, values[ends[i] - len(ids) : ends[i]].tolist(), strict=True))
            outcomes.append(Outcome(token, Found(value, top, others)))
        return outcomes


def _point_to_masks(rows: np.ndarray, asks: Sequence[Ask], width: int, kept: list[np.ndarray]) -> None:
    for i, ask in enumerate(asks):
        if ask.mask is None:
            continue
        words = np.ascontiguousarray(ask.mask)
        if words.dtype != np.int32 or words.ndim != 1 or 32 * len(words) < width:
            raise ValueError(f"a mask of {width} tokens is int32 [{(width + 31) // 32}]")
        kept.append(words)
        rows["mask"][i] = words.ctypes.data


def _point_to_ids(rows: np.ndarray, name: str, lists: Sequence[Sequence[int]], kept: list[np.ndarray]) -> np.ndarray:
    """Let each row point to its ids, and for those asked for to where their values go, which is returned."""
    counts = np.array([len(ids) for ids in lists], np.int32)
    values = np.empty(int(counts.sum()), np.float32)
    if values.size:
        ids = np.concatenate([np.asarray(list(part), np.int64) for part in lists])
        starts = np.cumsum(counts) - counts
        rows[f"{name}_count"] = counts
        rows[name] = ids.ctypes.data + starts * ids.itemsize
        if name == "asked":
            rows["asked_values"] = values.ctypes.data + starts * values.itemsize
        kept += [ids, values]
    return values
