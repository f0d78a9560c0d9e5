"""The pool of KV slots: who may write where.

A slot is the room for the keys and values of one token in every layer. The pool only counts; the tensors are elsewhere.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from palmette.errors import PalmetteError
from palmette.radix_cache.arrays import Ints, as_ints


class OutOfSlots(PalmetteError):
    """More slots were asked for than are free. The scheduler catches it: it waits, or it preempts a request."""


class SlotState(IntEnum):
    """FREE -alloc-> PRIVATE (whoever asked for it owns it) -adopt-> CACHED (the cache owns it); both end as FREE."""

    FREE = 0
    PRIVATE = 1
    CACHED = 2


_SAID = {SlotState.FREE: "free", SlotState.PRIVATE: "held outside the cache", SlotState.CACHED: "the cache's"}


class SlotPool:
    """`size` slots, numbered from 0. Each is free, or held by a request, or the cache's.

    That the pool knows the last two apart makes a request that frees a slot of the prefix it shares fail at once,
    before others read rubbish from that slot.

    Free slots lie on a stack: `_stack[:free]`, the next one to hand out on top.

        _stack:  | 7 | 6 | 2 | . . . . . |      free = 3; alloc(2) gives [2, 6]
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least one slot, not {size}")
        self.size = size
        self._free = size
        self._stack: Ints = np.arange(size - 1, -1, -1, dtype=np.int32)
        self._state = np.full(size, SlotState.FREE, dtype=np.uint8)
        # Where a slot stood in the list that was checked last: finds doubles in a list without sorting it.
        self._seen_at: Ints = np.zeros(size, dtype=np.int32)

    @property
    def free(self) -> int:
        """How many slots can be handed out now."""
        return self._free

    def alloc(self, n: int) -> Ints:
        """Hand out `n` slots, int32[n]. A fresh pool gives the lowest first; later, those released last.

        Raises OutOfSlots, and hands out nothing, where fewer are free.
        """
        if n < 0:
            raise ValueError(f"cannot hand out {n} slots")
        if n > self._free:
            raise OutOfSlots(
                f"{n} KV slots asked for, {self._free} of {self.size} are free",
                hint="use a larger kv_tokens, or let fewer or shorter requests run at once",
            )
        slots = self._stack[self._free - n : self._free][::-1].copy()
        self._free -= n
        self._state[slots] = SlotState.PRIVATE
        return slots

    def release(self, slots: Ints) -> None:
        """Take private slots back. Raises ValueError, and takes none, where one is not the caller's to give: free
        already, the cache's, listed twice, or of no such pool."""
        self._take_back(self.require(slots, SlotState.PRIVATE))

    def adopt(self, slots: Ints) -> None:
        """Make private slots the cache's. For the cache; raises as `release` does."""
        self._state[self.require(slots, SlotState.PRIVATE)] = SlotState.CACHED

    def reclaim(self, slots: Ints) -> None:
        """Take slots back that are the cache's. For the cache; raises as `release` does."""
        self._take_back(self.require(slots, SlotState.CACHED))

    def require(self, slots: Ints, state: SlotState) -> Ints:
        """`slots` as int32[n]. Raises ValueError unless they are distinct, of this pool, and in `state`."""
        slots = as_ints(slots, "slots")
        if not slots.size:
            return slots
        # Checked first, since a negative number would index from the end.
        foreign = (slots < 0) | (slots >= self.size)
        if foreign.any():
            raise ValueError(f"slot {slots[foreign][0]} is not of this pool of {self.size}")
        wrong = self._state[slots] != state
        if wrong.any():
            slot = slots[wrong][0]
            raise ValueError(f"slot {slot} is {_SAID[SlotState(self._state[slot])]}, not {_SAID[state]}")
        order = np.arange(slots.size, dtype=np.int32)
        self._seen_at[slots] = order
        twice = self._seen_at[slots] != order
        if twice.any():
            raise ValueError(f"slot {slots[twice][0]} is listed twice")
        return slots

    def which(self, state: SlotState) -> Ints:
        """All slots in `state`, lowest first. Walks the pool: for checks."""
        return np.flatnonzero(self._state == state).astype(np.int32)

    def problems(self) -> list[str]:
        """What is wrong inside the pool, in words; [] if it is sound."""
        marked = self.which(SlotState.FREE)
        if np.array_equal(np.sort(self._stack[: self._free]), marked):
            return []
        return [f"the pool counts {self._free} free slots and marks {marked.size}, or they are not the same ones"]

    def _take_back(self, slots: Ints) -> None:
        self._state[slots] = SlotState.FREE
        self._stack[self._free : self._free + slots.size] = slots[::-1]
        self._free += slots.size
