"""Zeroed memory for caches."""

from __future__ import annotations

import mmap


def fresh(size: int) -> mmap.mmap | bytearray:
    """So many zero bytes, which the system hands over page by page when they are first used. Pages of the common size:
    a token's KV lies in as many places as there are layers, so that with pages of 2 MB, as numpy asks for, the first
    token alone took 0.3 s and 120 MB (SmolLM2), while steps were no quicker. MemoryError where there are not so many.
    """
    if size == 0:
        return bytearray()
    try:
        return mmap.mmap(-1, size)
    except OSError as error:
        raise MemoryError(f"the system grants no {size} bytes") from error
