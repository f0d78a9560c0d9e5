"""The slot pool: what it hands out, and that it refuses what is not the caller's to give."""

from __future__ import annotations

import numpy as np
import pytest

from palmette.errors import PalmetteError
from palmette.radix_cache import OutOfSlots, SlotPool
from palmette.radix_cache.slots import SlotState


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_a_fresh_pool_hands_out_the_lowest_slots_first():
    pool = SlotPool(5)
    first = pool.alloc(2)
    assert first.dtype == np.int32
    assert first.tolist() == [0, 1]
    assert pool.alloc(3).tolist() == [2, 3, 4]
    assert pool.free == 0


def test_released_slots_come_back_in_the_order_they_had():
    pool = SlotPool(6)
    pool.alloc(4)
    pool.release(ints(3, 1))
    assert pool.free == 4
    assert pool.alloc(4).tolist() == [3, 1, 4, 5]


def test_too_many_are_refused_and_none_is_taken():
    pool = SlotPool(4)
    pool.alloc(1)
    with pytest.raises(OutOfSlots, match="4 KV slots asked for, 3 of 4 are free") as caught:
        pool.alloc(4)
    assert isinstance(caught.value, PalmetteError) and caught.value.hint
    assert pool.free == 3
    assert pool.alloc(0).tolist() == []
    assert pool.alloc(3).tolist() == [1, 2, 3]


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_without_slots_is_refused(size):
    with pytest.raises(ValueError, match="at least one slot"):
        SlotPool(size)


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="-1"):
        SlotPool(4).alloc(-1)


@pytest.mark.parametrize(
    ("slots", "says"),
    [
        ([0, 3], "slot 3 is free"),
        ([0, 4], "slot 4 is not of this pool of 4"),
        ([0, -1], "slot -1 is not of this pool"),
        ([0, 1, 0], "slot 0 is listed twice"),
        ([0, 2], "slot 2 is the cache's"),
    ],
)
def test_a_bad_release_changes_nothing(slots, says):
    pool = SlotPool(4)
    pool.alloc(3)
    pool.adopt(ints(2))
    with pytest.raises(ValueError, match=says):
        pool.release(ints(*slots))
    assert pool.free == 1
    assert pool.which(SlotState.PRIVATE).tolist() == [0, 1]
    assert pool.alloc(1).tolist() == [3]
    assert pool.problems() == []


def test_a_second_release_is_refused():
    pool = SlotPool(4)
    slots = pool.alloc(2)
    pool.release(slots)
    with pytest.raises(ValueError, match="slot 0 is free"):
        pool.release(slots)
    assert pool.free == 4


def test_only_the_cache_s_slots_can_be_reclaimed():
    pool = SlotPool(4)
    slots = pool.alloc(2)
    with pytest.raises(ValueError, match="held outside the cache"):
        pool.reclaim(slots)
    pool.adopt(slots)
    with pytest.raises(ValueError, match="the cache's, not held outside"):
        pool.adopt(slots)
    pool.reclaim(slots)
    assert pool.free == 4


def test_problems_are_seen():
    pool = SlotPool(4)
    pool.alloc(2)
    assert pool.problems() == []
    pool._state[0] = SlotState.FREE
    assert len(pool.problems()) == 1


@pytest.mark.parametrize("bad", [[[0]], [0.5], ["a"], [True]])
def test_what_is_no_row_of_integers_is_refused(bad):
    pool = SlotPool(4)
    pool.alloc(2)
    with pytest.raises(TypeError, match="slots must be"):
        pool.release(np.array(bad))
