"""How long the operations of a tree of a million tokens take: bounds by the clock, so with slack, and of the best of
several repeats. (test_cost.py counts instead, and says more about how the work grows.)"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from palmette.radix_cache import RadixCache, SlotPool

REPEATS = 9
CHANCE = np.random.default_rng(0)


def some(n: int) -> np.ndarray:
    return CHANCE.integers(0, 50_000, n, dtype=np.int32)


def best(operation: Callable[..., object], *arguments: Callable[[], object]) -> float:
    """The shortest time of several calls, in ms, each with fresh arguments that are made outside of that time."""
    times = []
    for _ in range(REPEATS):
        given = [argument() for argument in arguments]
        start = time.perf_counter()
        operation(*given)
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


SYSTEMS = [some(512) for _ in range(40)]


def grown(tokens: int, shortest: int, longest: int) -> RadixCache:
    """A tree of about so many tokens: 40 system prompts of 512 tokens, and under each of them leaves of a length
    between the two; and about 80,000 free slots."""
    cache = RadixCache(SlotPool(tokens + 80_000))
    leases = [cache.insert(system, cache.reserve(512)) for system in SYSTEMS]
    lengths = CHANCE.integers(shortest, longest, 1 + tokens // shortest).tolist()
    for i, n in enumerate(lengths):
        if cache.cached >= tokens:
            break
        prompt, slots = np.concatenate([SYSTEMS[i % 40], some(n)]), cache.reserve(n)
        cache.insert(prompt, np.concatenate([leases[i % 40].slots, slots])).release()
    for lease in leases:
        lease.release()
    return cache


@pytest.fixture(scope="module")
def million() -> RadixCache:
    cache = grown(1_000_000, 50, 200)
    assert cache.cached >= 1_000_000
    return cache


@pytest.fixture
def talk(million) -> np.ndarray:
    """A conversation of 4,000 tokens after a system prompt that the tree has, in 40 turns that went in one by one."""
    tokens = np.concatenate([SYSTEMS[0], some(3_488)])
    lease = million.match(tokens)
    for end in range(600, 4_001, 100):
        slots = np.concatenate([lease.slots, million.reserve(end - lease.length)])
        lease = million.insert(tokens[:end], slots, lease=lease)
    lease.release()
    return tokens


def serve(cache: RadixCache, tokens: np.ndarray, own: np.ndarray) -> None:
    """The tree's part in a request whose `own` tokens at the end are not cached."""
    with cache.match(tokens) as prefix:
        assert prefix.length == tokens.size - own.size
        cache.insert(tokens, np.concatenate([prefix.slots, own]), lease=prefix).release()


@pytest.mark.parametrize("cached", [0, 512, 2_050, 4_000])
def test_match_and_insert_of_4000_tokens_take_less_than_a_millisecond(million, talk, cached):
    taken = best(
        lambda tokens, own: serve(million, tokens, own),
        lambda: np.concatenate([talk[:cached], some(4_000 - cached)]),
        lambda: million.reserve(4_000 - cached),
    )
    assert taken < 1


def test_peek_and_find_take_a_fraction_of_that(million, talk):
    assert best(lambda: million.peek(talk)) < 0.3
    assert best(lambda: million.find(talk)) < 0.3
    assert million.find(talk).length == 4_000 and len(million.find(talk).nodes) >= 35


def test_eviction_of_10000_tokens_takes_less_than_five_milliseconds(million):
    assert best(lambda: million.evict(10_000)) < 5


def test_eviction_from_small_leaves():
    """Of 16 tokens: 600 and more nodes to take out, and the most that chat turns would come to."""
    cache = grown(200_000, 12, 20)
    taken = best(lambda: cache.evict(10_000))
    assert cache.check_integrity() == []
    assert taken < 10


def test_slots_for_a_step_take_little(million):
    """For 256 requests that decode, with free slots and without."""
    assert best(lambda: million.reserve(256)) < 0.1
    million.reserve(million.pool.free)
    assert best(lambda: million.reserve(256)) < 0.5


def test_what_a_step_asks_often_takes_next_to_nothing(million):
    lease, pins = million.match(SYSTEMS[1]), [million.pin(system) for system in SYSTEMS]
    assert best(lambda: million.exclusive(lease)) < 0.05
    assert best(lambda: (million.version, million.pinned, million.evictable)) < 0.05
    for pin in [lease, *pins]:
        pin.release()
