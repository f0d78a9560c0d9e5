"""The eviction policies by name: what each gives up first, and that it pays on the load that it is for."""

from __future__ import annotations

import random

import numpy as np
import pytest

from palmette.radix_cache import LFU, LRU, POLICIES, RadixCache, SizeAware, SlotPool


def make(policy: str, size: int = 64) -> RadixCache:
    return RadixCache(SlotPool(size), policy=POLICIES[policy]())


def put(cache: RadixCache, tokens: list[int], priority: int = 0) -> None:
    with cache.match(tokens, priority=priority) as prefix:
        slots = np.concatenate([prefix.slots, cache.reserve(len(tokens) - prefix.length)])
        cache.insert(tokens, slots, lease=prefix, priority=priority).release()


def use(cache: RadixCache, tokens: list[int], times: int = 1, priority: int = 0) -> None:
    for _ in range(times):
        cache.match(tokens, priority=priority).release()


def order(cache: RadixCache, *prompts: list[int]) -> list[int]:
    """The first tokens of prompts of different beginnings, in the order in which eviction ends them."""
    gone: list[int] = []
    while cache.evict(1):
        gone += [p[0] for p in prompts if p[0] not in gone and not cache.peek(p)]
    assert cache.check_integrity() == [] and cache.pool.free == cache.pool.size
    return gone


A, B, C = [1, 1], [2, 2], [3, 3]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("lru", [2, 3, 1]), ("lfu", [3, 1, 2]), ("fifo", [1, 2, 3]), ("priority", [3, 1, 2]), ("size", [2, 3, 1])],
)
def test_the_same_history_under_each_policy(policy, expected):
    cache = make(policy)
    put(cache, A)
    put(cache, B, priority=1)
    use(cache, B, times=3)
    put(cache, C)
    use(cache, A)
    if policy == "size":
        # Equal sizes rank by when they were last used, once something was evicted in between.
        put(cache, [9] * 3)
        assert cache.evict(3) == 3
        use(cache, A)
    assert order(cache, A, B, C) == expected


def test_lfu_counts_the_matches_of_a_beginning_before_and_after_it_was_split_off():
    cache = make("lfu")
    put(cache, [1, 1, 1, 1])
    use(cache, [1, 1, 1, 1], times=3)
    put(cache, [2, 2])
    use(cache, [2, 2], times=3)
    use(cache, [1, 1])  # the fourth of [1 1], and none of the rest
    cache.evict(2)
    assert (cache.peek([1, 1, 1, 1]), cache.peek([2, 2])) == (2, 2)
    cache.evict(2)
    assert (cache.peek([1, 1]), cache.peek([2, 2])) == (2, 0)


def test_fifo_takes_no_note_of_use_nor_of_a_split():
    cache = make("fifo")
    put(cache, [1, 1, 1, 1])
    put(cache, [2, 2])
    use(cache, [1, 1], times=5)
    assert order(cache, [1, 1], [2, 2]) == [1, 2]


def test_a_node_keeps_the_greatest_priority_it_was_given():
    cache = make("priority")
    put(cache, A)
    put(cache, B)
    put(cache, C, priority=1)
    use(cache, A, priority=2)
    use(cache, A, priority=0)
    assert order(cache, A, B, C) == [2, 3, 1]


def test_only_what_a_priority_went_through_has_it():
    cache = make("priority")
    put(cache, [1, 1, 1, 1])
    use(cache, [1, 1], priority=5)
    put(cache, [2, 2])
    cache.evict(2)
    assert (cache.peek([1, 1, 1, 1]), cache.peek([2, 2])) == (2, 2)
    put(cache, [1, 1, 7, 7], priority=3)
    cache.evict(2)
    assert (cache.peek([1, 1, 7, 7]), cache.peek([2, 2])) == (4, 0)


def test_a_child_may_be_worth_less_than_nothing():
    cache = make("priority")
    put(cache, A)
    put(cache, B, priority=-1)
    assert order(cache, A, B) == [2, 1]


def test_size_aware_gives_up_the_long_before_the_short_though_that_is_older():
    cache = make("size")
    put(cache, [1])
    put(cache, [2] * 20)
    put(cache, [3] * 4)
    assert cache.evict(20) == 20
    assert [cache.peek(p) for p in ([1], [2], [3] * 4)] == [1, 0, 4]
    assert cache.evict(4) == 4
    assert [cache.peek(p) for p in ([1], [3])] == [1, 0]


def test_size_aware_keeps_the_long_that_was_used_since_others_went():
    cache = make("size")
    put(cache, [1] * 3)
    put(cache, [2] * 2)
    put(cache, [9] * 4)
    assert cache.evict(4) == 4 and not cache.peek([9])  # at rank 1/4
    use(cache, [1] * 3)  # now at 1/4 + 1/3, above the 1/2 of the other
    assert cache.evict(2) == 2
    assert (cache.peek([1] * 3), cache.peek([2] * 2)) == (3, 0)


def test_size_aware_lets_the_short_age_too():
    """A short leaf that nobody uses goes at last, however many long ones came after it."""
    cache = make("size", 41)
    put(cache, [1])
    for turn in range(20):
        for i in range(4):
            put(cache, [10 + 4 * turn + i] * 10)
        if not cache.peek([1]):
            break
    assert 2 <= turn < 20


def hits(policy: str, load: list[list[int]], size: int) -> tuple[int, int]:
    """How many prompts of a load were found as a whole, and how many tokens."""
    cache, whole = make(policy, size), 0
    for prompt in load:
        whole += cache.peek(prompt) == len(prompt)
        put(cache, prompt)
    assert cache.check_integrity() == []
    return whole, cache.stats.hit_tokens


def test_each_policy_gains_on_the_load_that_it_is_for():
    chance = random.Random(0)
    hot = [[i] * 10 for i in range(10)]

    # A few prompts come again and again between those that come once: frequency sees it, recency does not.
    scan = [p for i in range(200) for p in (chance.choice(hot), [100 + 2 * i] * 10, [101 + 2 * i] * 10)]
    assert hits("lfu", scan, 120)[1] > 1.3 * hits("lru", scan, 120)[1]

    # What is popular drifts: recency follows, frequency clings to the past.
    drift = [[10 * (i // 80) + chance.randrange(8)] * 10 for i in range(640)]
    assert hits("lru", drift, 100)[1] > 1.2 * hits("lfu", drift, 100)[1]

    # In a popular set that stays, use says something that age does not.
    zipf = [[int(i)] * 10 for i in np.random.default_rng(0).zipf(1.3, 600).clip(max=1000)]
    assert hits("lru", zipf, 100)[1] > 1.1 * hits("fifo", zipf, 100)[1]

    # Short and long ones, used equally often: for the room of a long one, many short ones can stay.
    mixed = [[i] * (2 if i % 2 else 30) for i in (chance.randrange(60) for _ in range(800))]
    assert hits("size", mixed, 200)[0] > 1.5 * hits("lru", mixed, 200)[0]


def test_the_inflation_only_grows():
    cache, seen = make("size", 30), [0.0]
    chance = random.Random(1)
    for _ in range(300):
        put(cache, [chance.randrange(9)] * chance.randrange(1, 6) + [chance.randrange(3)] * chance.randrange(4))
        seen.append(cache._tree.order.inflation)
    assert seen == sorted(seen) and seen[-1] > 1


def test_policies_by_name():
    assert {name: type(make()) for name, make in POLICIES.items()}.items() >= {"lru": LRU, "lfu": LFU}.items()
    assert isinstance(POLICIES["size"](), SizeAware)
    assert isinstance(RadixCache(SlotPool(1))._tree.order._policy, LRU)
