"""check_integrity sees each kind of damage: every test breaks one thing and reads the report."""

from __future__ import annotations

import numpy as np
import pytest

from palmette.radix_cache import RadixCache, SlotPool
from palmette.radix_cache.slots import SlotState


@pytest.fixture
def cache() -> RadixCache:
    """Two branches [1 2 | 3] and [1 2 | 4 5] with a lease on the first."""
    cache = RadixCache(SlotPool(16))
    cache.insert([1, 2, 3], cache.reserve(3))
    cache.insert([1, 2, 4, 5], cache.reserve(4)).release()
    assert cache.check_integrity() == []
    return cache


def nodes(cache):
    top = cache._tree.roots[""].children[1]
    return top, top.children[3], top.children[4]


def report(cache, *private) -> str:
    return "\n".join(cache.check_integrity(private))


def test_leaked_slots(cache):
    slots = cache.reserve(2)
    assert "2 slots held by requests says the pool, but nobody has it (leaked): " in report(cache)
    assert cache.check_integrity([slots]) == [] == cache.check_integrity([slots[:1], slots[1:]])


def test_a_private_slot_that_two_hold(cache):
    slots = cache.reserve(2)
    assert "1 slots held by requests twice" in report(cache, slots, slots[:1])


def test_a_private_slot_that_is_free_or_the_tree_s(cache):
    assert "requests but the pool does not know it: 15" in report(cache, np.array([15], dtype=np.int32))
    assert "requests but the pool does not know it" in report(cache, nodes(cache)[0].slots)


def test_a_slot_in_two_nodes(cache):
    top, a, _ = nodes(cache)
    a.slots = top.slots[:1].copy()
    said = report(cache)
    assert "1 slots held by the cache twice" in said and "the cache says the pool, but nobody has it" in said
    assert "does not have the slots of its path" in said


def test_a_tree_slot_that_is_free(cache):
    slot = nodes(cache)[2].slots[0]
    cache.pool._state[slot] = SlotState.FREE
    assert f"the cache but the pool does not know it: {slot}" in report(cache)
    assert "the pool counts" in report(cache)


@pytest.mark.parametrize("counter", ["cached", "evictable", "size"])
def test_counters(cache, counter):
    setattr(cache._tree, counter, getattr(cache._tree, counter) + 1)
    assert "are counted" in report(cache)


def test_statistics(cache):
    cache._counts["inserted_tokens"] = 1
    assert "but the counters say" in report(cache)


def test_links(cache):
    top, a, b = nodes(cache)
    top.children = {7: a, 4: b}
    assert "begins with token 3 and is listed under 7" in report(cache)


def test_parents(cache):
    _, a, b = nodes(cache)
    a.parent = b
    assert "has another parent" in report(cache)


def test_a_node_without_tokens(cache):
    b = nodes(cache)[2]
    b.slots = b.slots[:1]
    assert "has 2 tokens and 1 slots" in report(cache)


def test_locks(cache):
    top, a, b = nodes(cache)
    a.leases += 1
    assert "counts 2 leases and 0 locked children, it has 1 and 0" in report(cache)
    a.leases -= 1
    top.locked_children = 0
    assert "counts 0 leases and 0 locked children, it has 0 and 1" in report(cache)
    top.locked_children = 1
    cache._leases.clear()
    assert "counts 1 leases and 0 locked children, it has 0 and 0" in report(cache)
    del b


def test_a_lease_on_a_node_that_is_gone(cache):
    top, _, _ = nodes(cache)
    del top.children[3]
    assert "1 leases end at nodes that are not in the tree" in report(cache)


def test_eviction_order(cache):
    b = nodes(cache)[2]
    cache._tree.order.discard(b)
    assert "an unleased leaf of 2 tokens is not in the eviction order" in report(cache)
    cache._tree.order.add(b)
    assert cache.check_integrity() == []
    b.last_used -= 1
    assert "changed its rank" in report(cache)
    b.last_used += 1
    cache._tree.order.add(nodes(cache)[1])
    assert "1 nodes that are no unleased leaves" in report(cache)


def test_times(cache):
    top, a, _ = nodes(cache)
    top.last_used = a.last_used - 1
    assert "used later than its parent" in report(cache)
    top.last_used = 10**6
    assert "now is 2" in report(cache)


def test_priorities(cache):
    nodes(cache)[1].priority = 1
    assert "has a greater priority than its parent" in report(cache)


def test_an_empty_namespace(cache):
    root = cache._tree.roots[""]
    cache._tree.roots["x"] = root
    assert "the root of namespace 'x' is no root" in report(cache)
    root.children.clear()
    assert "namespace '' is empty" in report(cache)
