"""The radix cache by example: match, split, insert, leases, pins, eviction, namespaces; exact, and switched off."""

from __future__ import annotations

import numpy as np
import pytest

from palmette.radix_cache import OutOfSlots, RadixCache, SlotPool


def make(size: int = 64, **settings) -> RadixCache:
    return RadixCache(SlotPool(size), **settings)


def put(cache: RadixCache, tokens: list[int], namespace: str = "") -> np.ndarray:
    """Insert as a request would that runs alone and ends at once; the slots in the tree."""
    with cache.match(tokens, namespace) as prefix:
        slots = np.concatenate([prefix.slots, cache.reserve(len(tokens) - prefix.length)])
        with cache.insert(tokens, slots, namespace, prefix) as whole:
            return whole.slots.copy()


def leased(cache: RadixCache) -> int:
    return cache.cached - cache.evictable


def sound(cache: RadixCache, *private: np.ndarray) -> bool:
    assert cache.check_integrity(private) == []
    return True


# --- match ---


def test_match_finds_the_longest_prefix_and_its_slots():
    cache = make()
    slots = put(cache, [1, 2, 3, 4, 5])
    assert cache.match([1, 2, 3, 9]).slots.tolist() == slots[:3].tolist()
    assert cache.match([1, 2, 3, 4, 5, 6]).slots.tolist() == slots.tolist()
    assert cache.match([9]).length == 0
    assert cache.match([]).length == 0
    assert sound(cache)


def test_match_splits_a_node_where_the_prefix_ends_and_locks_only_that_far():
    cache = make()
    put(cache, [1, 2, 3, 4, 5])
    lease = cache.match([1, 2, 9])
    assert cache.stats.splits == 1
    assert (leased(cache), cache.evictable) == (2, 3)
    assert cache.evict(100) == 3
    assert cache.peek([1, 2, 3]) == 2
    lease.release()
    assert cache.evict(100) == 2
    assert sound(cache)


def test_a_split_under_a_lease_leaves_the_lease_whole():
    cache = make()
    slots = put(cache, [1, 2, 3, 4, 5])
    whole = cache.match([1, 2, 3, 4, 5])
    part = cache.match([1, 2, 3])
    assert whole.slots.tolist() == slots.tolist()
    part.release()
    assert leased(cache) == 5 and cache.evict(100) == 0
    whole.release()
    assert leased(cache) == 0 and sound(cache)


def test_match_takes_arrays_tuples_and_lists_alike():
    cache = make()
    put(cache, [1, 2, 3])
    for tokens in ([1, 2, 3], (1, 2, 3), np.array([1, 2, 3], dtype=np.int32), np.array([1, 2, 3], dtype=np.int64)):
        assert cache.match(tokens).length == 3


@pytest.mark.parametrize(
    ("tokens", "error"), [([1.0], TypeError), ([[1]], TypeError), ("ab", TypeError), ([2**32 + 1], ValueError)]
)
def test_tokens_that_are_no_token_ids_are_refused(tokens, error):
    cache = make()
    put(cache, [1])
    with pytest.raises(error, match="tokens must"):
        cache.match(tokens)


def test_peek_changes_nothing():
    cache = make()
    put(cache, [1, 2, 3])
    before = cache.snapshot(), cache.stats
    assert cache.peek([1, 2, 9]) == 2
    assert (cache.snapshot(), cache.stats) == before


def test_find_says_which_nodes_a_prefix_goes_through():
    cache = make()
    put(cache, [1, 2, 3, 4, 5])
    put(cache, [1, 2, 3, 8])
    top, below = cache._tree.roots[""].children[1], cache._tree.roots[""].children[1].children[4]
    before = cache.snapshot(), cache.stats, cache.version
    assert cache.find([1, 2, 3, 4, 5, 6]) == (5, (top.id, below.id))
    assert cache.find([1, 2, 3, 4]) == (4, (top.id, below.id))
    assert cache.find([1, 2]) == (2, (top.id,))
    assert cache.find([7]) == cache.find([]) == cache.find([1], "other") == (0, ())
    assert (cache.snapshot(), cache.stats, cache.version) == before


def test_the_version_changes_with_every_answer_and_else_stays():
    cache = make()
    put(cache, [9])

    versions = [cache.version]

    def changed(act) -> bool:
        act()
        versions.append(cache.version)
        return versions[-1] not in versions[:-1]

    assert changed(lambda: put(cache, [1, 2, 3, 4]))
    assert not changed(lambda: put(cache, [1, 2, 3, 4]))
    assert not changed(lambda: cache.match([1, 2, 3, 4]).release())
    assert not changed(lambda: cache.match([5]).release())
    assert changed(lambda: cache.match([1, 2]).release())  # a split: `find` goes through another node
    assert changed(lambda: cache.evict(1))
    assert not changed(lambda: cache.evict(0))
    assert changed(lambda: cache.clear())
    assert not changed(lambda: cache.clear())


# --- insert ---


def test_insert_after_each_chunk_keeps_one_lease_and_every_slot():
    cache, tokens = make(), list(range(20))
    lease = cache.match(tokens)
    for end in range(7, 28, 7):
        end = min(end, 20)
        slots = np.concatenate([lease.slots, cache.reserve(end - lease.length)])
        lease = cache.insert(tokens[:end], slots, lease=lease)
        assert lease.slots.tolist() == slots.tolist()
        assert (leased(cache), cache.leases, cache.pool.free) == (end, 1, 64 - end)
    lease.release()
    assert (leased(cache), cache.cached, cache.leases) == (0, 20, 0)
    assert cache.stats.inserted_tokens == 20 and cache.stats.duplicate_tokens == 0
    assert sound(cache)


def test_a_sibling_that_computed_the_same_gives_its_slots_back_once():
    cache, tokens = make(), [1, 2, 3, 4, 5, 6]
    a, b = cache.match(tokens), cache.match(tokens)
    a_slots, b_slots = cache.reserve(6), cache.reserve(6)
    a = cache.insert(tokens, a_slots, lease=a)
    assert cache.pool.free == 64 - 12
    b = cache.insert(tokens, b_slots, lease=b)
    assert cache.pool.free == 64 - 6
    assert b.slots.tolist() == a_slots.tolist()
    assert cache.stats.duplicate_tokens == 6
    a.release()
    assert cache.evict(100) == 0
    b.release()
    assert sound(cache) and cache.evict(100) == 6 and cache.pool.free == 64


def test_a_sibling_that_is_half_ahead():
    """Below: the lease's own part, a part that a sibling inserted meanwhile, a part that only this request has."""
    cache = make()
    shared = put(cache, [1, 2])
    mine = cache.match([1, 2, 3, 4, 5, 6])
    own = cache.reserve(4)
    theirs = put(cache, [1, 2, 3, 4, 9])
    free = cache.pool.free
    mine = cache.insert([1, 2, 3, 4, 5, 6], np.concatenate([shared, own]), lease=mine)
    assert mine.slots.tolist() == [*theirs[:4], *own[2:]]
    assert cache.pool.free == free + 2
    assert cache.peek([1, 2, 3, 4, 9]) == 5
    assert sound(cache)


def test_insert_of_what_is_there_already_is_no_news():
    cache = make()
    slots = put(cache, [1, 2, 3])
    lease = cache.insert([1, 2, 3], slots, lease=cache.match([1, 2, 3]))
    assert lease.slots.tolist() == slots.tolist()
    assert (cache.stats.inserted_tokens, cache.stats.duplicate_tokens, cache.leases) == (3, 0, 1)
    assert sound(cache)


def test_recomputed_last_token_of_a_fully_cached_prompt():
    """The last token runs again for its logits, in a slot of its own, which is a duplicate afterwards."""
    cache, tokens = make(), [1, 2, 3, 4]
    slots = put(cache, tokens)
    lease = cache.match(tokens)
    again = cache.reserve(1)
    lease = cache.insert(tokens, np.concatenate([lease.slots[:3], again]), lease=lease)
    assert lease.slots.tolist() == slots.tolist()
    assert cache.pool.free == 60 and cache.stats.duplicate_tokens == 1
    assert sound(cache)


def test_a_lease_longer_than_what_is_inserted_is_swapped_too():
    cache = make()
    slots = put(cache, [1, 2, 3, 4])
    lease = cache.insert([1, 2, 3], slots[:3], lease=cache.match([1, 2, 3, 4]))
    assert (lease.length, leased(cache), cache.leases) == (3, 3, 1)
    assert sound(cache)


def test_insert_takes_the_new_lease_before_it_lets_go_of_the_old():
    seen: list[int] = []
    cache = make()
    put(cache, [1, 2, 3])
    old = cache.match([1, 2, 3])
    let_go = old._release

    def look(lease):
        seen.append(cache.evictable)
        let_go(lease)
        seen.append(cache.evictable)

    old._release = look
    cache.insert([1, 2, 3, 4], np.concatenate([old.slots, cache.reserve(1)]), lease=old)
    assert seen == [0, 0]


def test_later_changes_to_the_caller_s_arrays_do_not_reach_the_tree():
    cache = make()
    tokens, slots = np.arange(4, dtype=np.int32), cache.reserve(4)
    lease = cache.insert(tokens, slots)
    tokens[:], slots[:] = 77, 0
    assert cache.match([0, 1, 2, 3]).slots.tolist() == [0, 1, 2, 3] == lease.slots.tolist()
    with pytest.raises(ValueError, match="read-only"):
        lease.slots[0] = 1


def test_insert_of_nothing():
    cache = make()
    lease = cache.insert([], cache.reserve(0))
    assert lease.length == 0 and cache.snapshot().nodes == ()
    lease.release()
    assert sound(cache)


def test_bad_inserts_are_refused_and_change_nothing():
    cache = make()
    put(cache, [1, 2, 3])
    other = put(cache, [7, 8], "other")
    lease, mine = cache.match([1, 2, 3, 4]), cache.reserve(2)
    gone = cache.match([1])
    gone.release()
    stranger = make().match([1])
    wrong = cache.match([7, 8], "other")
    head = lease.slots
    before = cache.snapshot(), cache.stats, cache.leases
    for tokens, slots, old, says in [
        ([1, 2, 3, 4], [*head], lease, "4 tokens with 3 slots"),
        ([1, 2, 3, 4], [*head, head[0]], lease, "the cache's"),
        ([1, 2, 3, 4], [*head, other[0]], lease, "the cache's"),
        ([1, 2, 3, 4], [head[1], head[0], head[2], mine[0]], lease, "the cache's"),
        ([1, 2, 3, 4, 5], [*head, mine[0], mine[0]], lease, "listed twice"),
        ([1, 2, 3, 4], [*head, 63], lease, "slot 63 is free"),
        ([1, 2, 3, 4], [*head, 64], lease, "not of this pool"),
        ([1, 2, 3, 4], [*head, mine[0]], gone, "not an active one"),
        ([1, 2, 3, 4], [*head, mine[0]], stranger, "not an active one"),
        ([1, 2, 3, 4], [*head, mine[0]], wrong, "in namespace ''"),
        ([5, 6], [*mine], lease, "not on a prefix"),
    ]:
        with pytest.raises(ValueError, match=says):
            cache.insert(tokens, np.array(slots, dtype=np.int32), lease=old)
        assert (cache.snapshot(), cache.stats, cache.leases) == before
        assert sound(cache, mine)


def test_a_request_cannot_free_the_slots_that_it_shares():
    cache = make()
    put(cache, [1, 2, 3])
    lease = cache.match([1, 2, 3])
    with pytest.raises(ValueError, match="the cache's"):
        cache.pool.release(lease.slots)
    assert sound(cache)


# --- leases ---


def test_a_lease_is_released_once():
    cache = make()
    put(cache, [1, 2])
    a, b = cache.match([1, 2]), cache.match([1, 2])
    a.release()
    a.release()
    assert leased(cache) == 2 and not a.active and b.active
    with b:
        b.release()
    assert leased(cache) == 0 and sound(cache)


def test_a_lease_lets_go_when_its_block_raises():
    cache = make()
    put(cache, [1, 2])
    with pytest.raises(KeyError), cache.match([1, 2]):
        raise KeyError
    assert cache.leases == 0 and leased(cache) == 0


def test_exclusive_is_what_would_be_evictable_without_a_lease():
    cache = make()
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 5])
    long, sibling, short = cache.match([1, 2, 3, 4]), cache.match([1, 2, 5]), cache.match([1])
    assert [cache.exclusive(lease) for lease in (long, sibling, short)] == [2, 1, 0]
    twin = cache.match([1, 2, 5])
    assert cache.exclusive(sibling) == cache.exclusive(twin) == 0
    for lease in (twin, sibling, short):
        lease.release()
    assert cache.exclusive(long) == 4 == leased(cache)
    assert cache.exclusive(short) == 0 == cache.exclusive(cache.match([]))
    with pytest.raises(ValueError, match="not an active one of this cache"):
        make().exclusive(long)


# --- pins ---


def test_a_pin_keeps_a_prefix_from_eviction_and_from_clear():
    cache = make()
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 5, 6])
    put(cache, [7, 8])
    pin = cache.pin([1, 2, 3, 9])
    assert (pin.length, cache.pinned, cache.leases) == (3, 3, 1)
    assert cache.evict(100) == 5 and cache.clear() == 0
    assert cache.peek([1, 2, 3, 4]) == 3 and sound(cache)
    pin.unpin()
    pin.unpin()
    assert (pin.active, cache.pinned, cache.evictable) == (False, 0, 3)
    assert cache.clear() == 3 and sound(cache)


def test_pinned_counts_what_is_shared_once_and_leases_not_at_all():
    cache = make()
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 5])
    put(cache, [6], "b")
    lease = cache.match([1, 2, 3, 4])
    assert cache.pinned == 0
    with cache.pin([1, 2, 3]) as a, cache.pin([1, 2, 5]), cache.pin([6], "b"), cache.pin([1]) as b, cache.pin([]):
        assert cache.pinned == 5
        assert repr(a) == "<Pin of 3 tokens>"
        b.release()
        assert cache.pinned == 5
        a.release()
        assert cache.pinned == 4
        lease.release()
        assert cache.evict(100) == 2
    assert cache.pinned == 0 and cache.evict(100) == 4 and sound(cache)


def test_a_pin_is_a_use_and_no_lookup():
    cache = make()
    for tokens in ([1, 1], [2, 2]):
        put(cache, tokens)
    before = cache.stats
    cache.pin([1, 1]).unpin()
    assert cache.stats == before
    cache.evict(2)
    assert [cache.peek([1, 1]), cache.peek([2, 2])] == [2, 0]


# --- eviction ---


def test_least_recently_used_leaf_goes_first():
    cache = make()
    for tokens in ([1, 1], [2, 2], [3, 3]):
        put(cache, tokens)
    cache.match([1, 1]).release()
    assert cache.evict(2) == 2
    assert [cache.peek(t) for t in ([1, 1], [2, 2], [3, 3])] == [2, 0, 2]
    assert cache.evict(2) == 2
    assert [cache.peek(t) for t in ([1, 1], [3, 3])] == [2, 0]


def test_the_last_leaf_loses_no_more_than_is_needed():
    cache = make()
    put(cache, list(range(10)))
    assert cache.evict(3) == 3
    assert cache.peek(list(range(10))) == 7 and cache.pool.free == 57
    assert sound(cache)


def test_parents_go_after_their_children():
    cache = make()
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4])
    assert cache.evict(1) == 1
    assert [cache.peek(t) for t in ([1, 2, 3], [1, 2, 4])] == [2, 3]
    assert cache.evict(10) == 3
    assert cache.snapshot().nodes == () and sound(cache)


def test_eviction_never_touches_what_is_leased():
    cache = make()
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4])
    lease = cache.match([1, 2, 3])
    assert cache.evict(100) == 1
    assert cache.match([1, 2, 3]).slots.tolist() == lease.slots.tolist()
    assert cache.evict(0) == cache.evict(-5) == 0


def test_reserve_evicts_only_what_is_missing():
    cache = make(10)
    put(cache, list(range(6)))
    slots = cache.reserve(5)
    assert slots.size == 5 and cache.cached == 5 and cache.stats.evicted_tokens == 1
    assert sound(cache, slots)


def test_a_reserve_that_cannot_succeed_evicts_nothing():
    cache = make(10)
    put(cache, [1, 2, 3, 4])
    lease = cache.match([1, 2])
    with pytest.raises(OutOfSlots, match="9 KV slots asked for; 6 of 10 are free, 2 evictable"):
        cache.reserve(9)
    assert cache.cached == 4 and lease.active and sound(cache)
    assert cache.reserve(8).size == 8


def test_another_policy_can_be_plugged_in():
    class Longest:
        def rank(self, leaf):
            return (-leaf.length,)

    cache = make(policy=Longest())
    put(cache, [1, 1])
    put(cache, [2, 2, 2, 2])
    put(cache, [3, 3, 3])
    cache.match([2, 2]).release()  # cuts the longest in two, so it ranks last now
    assert cache.evict(3) == 3
    assert [cache.peek(t) for t in ([1, 1], [2, 2, 2, 2], [3, 3, 3])] == [2, 4, 0]
    assert sound(cache)


def test_a_policy_can_count_hits():
    class LFU:
        def rank(self, leaf):
            return (leaf.hits, leaf.last_used)

    cache = make(policy=LFU())
    put(cache, [1])
    put(cache, [2])
    for _ in range(3):
        cache.match([1]).release()
    cache.match([2]).release()
    cache.evict(1)
    assert [cache.peek([1]), cache.peek([2])] == [1, 0]
    assert sound(cache)


# --- namespaces, clear, snapshot, counters ---


def test_namespaces_share_nothing_and_vanish_when_empty():
    cache = make()
    put(cache, [1, 2, 3], "a")
    put(cache, [1, 2, 4], "b")
    assert [cache.peek([1, 2, 3], n) for n in ("a", "b", "", "c")] == [3, 2, 0, 0]
    assert cache.clear("a") == 3
    assert {node.namespace for node in cache.snapshot().nodes} == {"b"}
    assert set(cache._tree.roots) == {"b"}
    assert cache.match([9], "c").length == 0 and "c" not in cache._tree.roots
    cache.evict(3)
    assert cache._tree.roots == {} and sound(cache)


def test_clear_drops_all_but_what_is_leased():
    cache = make()
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4])
    put(cache, [5], "b")
    lease = cache.match([1, 2, 3])
    assert cache.clear("none") == 0
    assert cache.clear() == 2
    assert cache.peek([1, 2, 3]) == 3 and cache.cached == 3 and sound(cache)
    lease.release()
    assert cache.clear() == 3 and cache.pool.free == 64 and sound(cache)


def test_snapshot_is_the_tree_as_plain_data():
    cache = make()
    put(cache, list(range(20)))
    lease = cache.match([*range(12), 99])
    view = cache.snapshot()
    top, below = view.nodes
    assert (top.parent, top.length, top.first_tokens, top.leases, top.locked) == (None, 12, tuple(range(8)), 1, True)
    assert (below.parent, below.length, below.leases, below.locked) == (top.id, 8, 0, False)
    assert (top.last_used, below.last_used, view.clock) == (3, 2, 3)
    assert (view.node_count, view.size, view.free, view.cached, view.evictable) == (2, 64, 44, 20, 8)
    lease.release()


def test_snapshot_of_a_large_tree_keeps_the_top():
    cache = make(200)
    for i in range(30):
        put(cache, [1, i, 5])
        put(cache, [1, i, 6])
    view = cache.snapshot(max_nodes=10)
    assert len(view.nodes) == 10 and view.node_count == 1 + 3 * 30
    ids = {node.id for node in view.nodes}
    assert all(node.parent is None or node.parent in ids for node in view.nodes)
    assert cache.snapshot(max_nodes=0).nodes == ()


def test_counters():
    cache = make()
    put(cache, [1, 2, 3, 4])
    cache.match([1, 2, 9, 9]).release()
    cache.evict(1)
    cache.clear()
    stats = cache.stats
    assert (stats.lookups, stats.lookup_tokens, stats.hit_tokens) == (2, 8, 2)
    assert (stats.inserted_tokens, stats.evicted_tokens, stats.cleared_tokens, stats.splits) == (4, 1, 3, 1)


# --- the case of a field report ---


def test_reported_case_pc_01_shared_pages_are_counted_once():
    """sgl-project/sglang#35270, at page size 1: its pages begin and end where the runs do, so its figures hold."""
    cache, after = make(32), []

    def note():
        after.append((cache.pool.free, cache.evictable, leased(cache)))
        assert sum(after[-1]) == 32 and sound(cache)

    for tokens in ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 10, 11, 12]):
        # Without a lease and with slots for all: the shared beginning is given back by insert.
        cache.insert(tokens, cache.reserve(8)).release()
        note()
    lease = cache.match([1, 2, 3, 4, 5, 6, 7, 8])
    note()
    cache.evict(100)
    note()
    lease.release()
    note()
    cache.evict(100)
    note()
    assert after == [(24, 8, 0), (20, 12, 0), (20, 4, 8), (24, 0, 8), (24, 8, 0), (32, 0, 0)]
    assert cache.stats.duplicate_tokens == 4


# --- exact ---


def test_exact_finds_tokens_as_a_whole_or_not_at_all():
    cache = make(exact=True)
    prompt = [1, 2, 3, 4]
    put(cache, prompt[:3])
    put(cache, [*prompt, 5, 6])  # as chunks, then with its output
    for asked in (prompt[:-1], prompt, []):
        assert cache.peek(asked) == cache.find(asked).length == cache.match(asked).length == len(asked)
    for other in ([1, 2, 9, 9], [*prompt, 7], [1, 2, 3, 4, 5, 6, 7], [9]):
        assert cache.peek(other) == cache.match(other).length == cache.pin(other).length == 0
        assert cache.find(other) == (0, ())
    assert cache.stats.hit_tokens == 3 + 4
    assert sound(cache)


def test_exact_stores_a_shared_beginning_once_all_the_same():
    cache = make(exact=True)
    put(cache, [1, 2, 3, 4])
    lease = cache.match([1, 2, 3, 9])
    lease = cache.insert([1, 2, 3, 9], cache.reserve(4), lease=lease)
    assert lease.length == 4 and cache.cached == 5 and cache.stats.duplicate_tokens == 3
    assert cache.peek([1, 2, 3, 9]) == 4 and sound(cache)


# --- switched off ---


def test_switched_off_a_lease_owns_its_slots():
    cache, tokens = make(16, enabled=False), list(range(10))
    lease = cache.match(tokens)
    assert lease.length == 0
    for end in (4, 8, 10):
        slots = np.concatenate([lease.slots, cache.reserve(end - lease.length)])
        lease = cache.insert(tokens[:end], slots, lease=lease)
        assert lease.slots.tolist() == slots.tolist()
        assert (cache.pool.free, cache.leases, cache.cached, cache.evictable) == (16 - end, 1, 0, 0)
        assert sound(cache)
    assert cache.peek(tokens) == 0 and cache.match(tokens).length == 0
    assert cache.find(tokens) == (0, ()) and cache.exclusive(lease) == 10
    with cache.pin(tokens) as pin:
        assert pin.length == cache.pinned == 0
    assert cache.evict(5) == cache.clear() == 0
    lease.release()
    lease.release()
    assert cache.pool.free == 16 and sound(cache)


def test_switched_off_slots_that_are_not_passed_on_are_freed():
    cache = make(16, enabled=False)
    lease = cache.insert([1, 2, 3], cache.reserve(3))
    lease = cache.insert([1, 2], lease.slots[:2], lease=lease)
    assert cache.pool.free == 14 and lease.length == 2 and sound(cache)


def test_switched_off_two_equal_requests_share_nothing():
    cache = make(16, enabled=False)
    a = cache.insert([1, 2], cache.reserve(2))
    b = cache.insert([1, 2], cache.reserve(2))
    assert not set(a.slots.tolist()) & set(b.slots.tolist())
    with pytest.raises(ValueError, match="the cache's"):
        cache.insert([1, 2, 3], np.concatenate([a.slots, cache.reserve(1)]), lease=b)
    assert a.active and b.active and cache.pool.free == 11
