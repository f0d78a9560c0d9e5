"""Token ids and slot numbers as int32 arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int32]

EMPTY: Ints = np.empty(0, dtype=np.int32)
EMPTY.flags.writeable = False


def as_ints(values: Sequence[int] | npt.NDArray[np.integer[Any]], what: str) -> Ints:
    """`values` as int32[n]; an int32 array is taken as it is, without a copy.

    Raises TypeError for what is no flat row of integers, and ValueError for what does not fit 32 bits: a key that
    wrapped round would be found under somebody else's tokens.
    """
    given = np.asarray(values)
    if given.ndim != 1:
        raise TypeError(f"{what} must be a flat sequence of integers, not of shape {given.shape}")
    if given.size == 0:
        return EMPTY
    if given.dtype == np.int32:
        return given
    if given.dtype.kind not in "iu":
        raise TypeError(f"{what} must be integers, not {given.dtype}")
    ints: Ints = given.astype(np.int32)
    if not np.array_equal(ints, given):
        raise ValueError(f"{what} must fit in 32 bits")
    return ints


def common_prefix(a: Ints, b: Ints) -> int:
    """How many leading elements of `a` and `b` are equal."""
    n = min(a.size, b.size)
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def join(parts: Sequence[Ints]) -> Ints:
    """The parts in a row."""
    if not parts:
        return EMPTY
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
