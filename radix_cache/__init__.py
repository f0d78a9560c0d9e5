"""The prefix tree over token ids, and the pool of KV slots.

A request asks `RadixCache.match` for the longest prefix that has KV already, computes the rest in slots of its own
(`RadixCache.reserve`), and hands them over with `insert`. What it reads is held by a `Lease`; the rest may be evicted.
"""

from __future__ import annotations

from palmette.radix_cache.cache import CacheStats, RadixCache
from palmette.radix_cache.eviction import LRU, Evictable, EvictionPolicy, Rank
from palmette.radix_cache.lease import Lease
from palmette.radix_cache.slots import OutOfSlots, SlotPool
from palmette.radix_cache.view import NodeView, TreeView

__all__ = [
    "LRU",
    "CacheStats",
    "Evictable",
    "EvictionPolicy",
    "Lease",
    "NodeView",
    "OutOfSlots",
    "RadixCache",
    "Rank",
    "SlotPool",
    "TreeView",
]
