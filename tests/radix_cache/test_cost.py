"""How the work grows, by counting, never by a clock."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import numpy as np
import pytest

from palmette.radix_cache import RadixCache, SlotPool


class Counted(float):
    """A rank that counts how often it is compared."""

    compared = 0

    def __lt__(self, other):
        Counted.compared += 1
        return float.__lt__(self, other)

    def __eq__(self, other):
        Counted.compared += 1
        return float.__eq__(self, other)

    __hash__ = float.__hash__


class CountedLRU:
    """LRU that counts how many leaves it is asked about."""

    def __init__(self) -> None:
        self.asked = 0

    def rank(self, leaf):
        self.asked += 1
        return (Counted(leaf.last_used),)


def bushy(leaves: int, policy=None) -> RadixCache:
    """A tree of `leaves` leaves of 2 tokens under one token, and 8 free slots."""
    cache = RadixCache(SlotPool(2 * leaves + 9), policy=policy)
    root = cache.insert([0], cache.reserve(1))
    for i in range(leaves):
        tokens = np.array([0, i, 7], dtype=np.int32)
        cache.insert(tokens, np.concatenate([root.slots, cache.reserve(2)])).release()
    root.release()
    return cache


def lines(call: Callable[[], object]) -> int:
    """How many lines of the package run during `call`."""
    count = 0

    def local(frame, event, argument):
        nonlocal count
        count += event == "line"
        return local

    def enter(frame, event, argument):
        return local if frame.f_globals.get("__name__", "").startswith("palmette.radix_cache.") else None

    before = sys.gettrace()
    gc.disable()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def test_eviction_of_one_leaf_of_20000_looks_at_few():
    policy = CountedLRU()
    cache = bushy(20_000, policy)
    asked, Counted.compared = policy.asked, 0
    assert cache.evict(2) == 2
    assert policy.asked == asked
    # A pop compares twice a level of the heap, about 15 of them, and each tuple comparison is an == and a <.
    assert 0 < Counted.compared < 100
    assert cache.peek([0, 0]) == 1


@pytest.mark.parametrize(
    "operation",
    [
        lambda cache: cache.evict(2),
        lambda cache: cache.evict(1),
        lambda cache: cache.reserve(9),
        lambda cache: cache.match([0, 50, 7]).release(),
        lambda cache: cache.match([0, 50, 8]).release(),
        lambda cache: cache.insert([0, -1], cache.reserve(2)).release(),
        lambda cache: (cache.evictable, cache.cached, cache.stats),
    ],
    ids=["evict", "trim", "reserve", "match", "split", "insert", "counters"],
)
def test_work_does_not_grow_with_the_tree(operation):
    small, large = bushy(100), bushy(4_000)
    assert 0 < lines(lambda: operation(large)) == lines(lambda: operation(small))


def test_work_does_not_grow_with_the_tokens_of_a_run():
    def life(n: int) -> int:
        cache, tokens = RadixCache(SlotPool(n)), np.arange(n, dtype=np.int32)

        def run() -> None:
            cache.insert(tokens, cache.reserve(n), lease=cache.match(tokens)).release()
            cache.match(tokens[: n // 2]).release()
            cache.evict(n)

        return lines(run)

    assert 0 < life(20) == life(20_000)


def test_leases_that_come_and_go_do_not_fill_the_eviction_order():
    cache = bushy(50)
    for _ in range(5_000):
        cache.match([0, 3, 7]).release()
    assert len(cache._tree.order._heap) < 400
    assert cache.check_integrity() == []
