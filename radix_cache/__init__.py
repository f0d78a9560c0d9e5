"""The prefix tree over token ids, the pool of KV slots, and the tier that keeps KV on the disk.

A request asks `RadixCache.match` for the longest prefix that has KV already, computes the rest in slots of its own
(`RadixCache.reserve`), and hands them over with `insert`. What it reads is held by a `Lease`; the rest may be evicted,
in the order of an `EvictionPolicy`. A `DiskTier` holds the same prefixes as bytes, for the next process.
"""

from __future__ import annotations

from palmette.radix_cache.cache import CacheStats, Found, RadixCache
from palmette.radix_cache.disk import DiskStats, DiskTier
from palmette.radix_cache.eviction import FIFO, LFU, LRU, POLICIES, Evictable, EvictionPolicy, Priority, Rank, SizeAware
from palmette.radix_cache.lease import Lease, Pin
from palmette.radix_cache.slots import OutOfSlots, SlotPool
from palmette.radix_cache.view import NodeView, TreeView

__all__ = [
    "FIFO",
    "LFU",
    "LRU",
    "POLICIES",
    "CacheStats",
    "DiskStats",
    "DiskTier",
    "Evictable",
    "EvictionPolicy",
    "Found",
    "Lease",
    "NodeView",
    "OutOfSlots",
    "Pin",
    "Priority",
    "RadixCache",
    "Rank",
    "SizeAware",
    "SlotPool",
    "TreeView",
]
