"""Between the tree and the store on disk: KV of slots as bytes, and back.

A token's row is its keys and values in all layers, [layers, 2, kv_heads, head_dim] in the cache's dtype, so that rows
of any tokens can be put together.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from palmette.errors import ArgumentError
from palmette.kernels.tape import KV
from palmette.radix_cache.disk import DiskTier
from palmette.torch_later import torch

if TYPE_CHECKING:
    from palmette.runtime.models.model import Model
    from palmette.runtime.settings import EngineSettings


def open_disk(model: Model, settings: EngineSettings) -> DiskTier | None:
    """The store that an engine's settings name, for KV of this model; None where they name none. ArgumentError where
    it cannot be opened."""
    if settings.cache_dir is None:
        return None
    try:
        return DiskTier(
            Path(settings.cache_dir).expanduser(),
            fingerprint=model.fingerprint,
            bytes_per_token=model.kv_bytes_per_token,
            max_bytes=settings.cache_dir_bytes,
        )
    except ArgumentError as error:
        raise ArgumentError(
            f"Engine(): cache_dir={str(settings.cache_dir)!r}: {error.message}", hint=error.hint
        ) from None


class KVTier:
    """A `Tier` on disk. Used by the engine's thread; writing goes on behind it."""

    def __init__(self, disk: DiskTier, kv: KV) -> None:
        self.disk = disk
        self._kv = kv

    def find(self, tokens: np.ndarray, namespace: str) -> int:
        """See radix_cache.tier.Tier."""
        return self.disk.find(tokens, namespace)

    def load(self, tokens: np.ndarray, namespace: str, start: int, slots: np.ndarray) -> bool:
        """See radix_cache.tier.Tier."""
        rows = self.disk.read(tokens, namespace, start, start + len(slots))
        if rows is None:
            return False
        put_rows(self._kv, slots, rows)
        return True

    def store(self, tokens: np.ndarray, namespace: str, slots: np.ndarray) -> None:
        """See radix_cache.tier.Tier. What is stored already is not copied."""
        self.disk.write(tokens, namespace, lambda start, end: take_rows(self._kv, slots[start:end]))


def take_rows(kv: KV, slots: np.ndarray) -> np.ndarray:
    """The rows of the slots: uint8 [n, bytes of a row]."""
    if isinstance(kv.k, np.ndarray):
        some = np.stack([kv.k[:, slots], kv.v[:, slots]], 1)
        return np.ascontiguousarray(np.moveaxis(some, 2, 0)).reshape(len(slots), -1).view(np.uint8)
    index = torch.from_numpy(slots.astype(np.int64)).to(kv.k.device)
    both = torch.stack([kv.k.index_select(1, index), kv.v.index_select(1, index)], 1)
    rows = both.movedim(2, 0).contiguous().cpu()
    return rows.view(len(slots), -1).view(torch.uint8).numpy()


def put_rows(kv: KV, slots: np.ndarray, rows: np.ndarray) -> None:
    """Write rows, as `take_rows` gave them, into the slots."""
    layers, _, heads, size = kv.k.shape
    if isinstance(kv.k, np.ndarray):
        some = np.ascontiguousarray(rows).view(kv.k.dtype).reshape(len(slots), layers, 2, heads, size)
        kv.k[:, slots], kv.v[:, slots] = np.moveaxis(some[:, :, 0], 0, 1), np.moveaxis(some[:, :, 1], 0, 1)
        return
    index = torch.from_numpy(slots.astype(np.int64)).to(kv.k.device)
    # A copy, since rows that lie in a mapped file cannot be written to, which torch warns of.
    both = torch.from_numpy(np.array(rows)).view(kv.k.dtype).view(len(slots), layers, 2, heads, size)
    both = both.movedim(0, 2).to(kv.k.device)
    kv.k.index_copy_(1, index, both[:, 0])
    kv.v.index_copy_(1, index, both[:, 1])
