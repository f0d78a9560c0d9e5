"""The pool of KV slots: who may write where.

A slot is the room for the keys and values of one token in every layer. The pool only counts; the tensors are elsewhere.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from palmette.errors import PalmetteError
from palmette.radix_cache.arrays import EMPTY, Ints, as_ints, join


class OutOfSlots(PalmetteError):
    """More slots were asked for than are free. The scheduler catches it: it waits, or it preempts a request."""


class SlotState(IntEnum):
    """FREE -alloc-> PRIVATE (whoever asked for it owns it) -adopt-> CACHED (the cache owns it); both end as FREE."""

    FREE = 0
    PRIVATE = 1
    CACHED = 2


# As plain numbers, since numpy is slow to see that an enumeration's members are numbers.
_FREE, _PRIVATE, _CACHED = map(int, SlotState)
_SAID = {_FREE: "free", _PRIVATE: "held outside the cache", _CACHED: "the cache's"}


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
        self._state = np.full(size, _FREE, dtype=np.uint8)
        # Where a slot stood in the list that was checked last: finds doubles in a list without sorting it.
        self._seen_at: Ints = np.zeros(size, dtype=np.int32)
        self._places: Ints = np.arange(size, dtype=np.int32)

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
        self._state[slots] = _PRIVATE
        return slots

    def release(self, slots: Ints) -> None:
        """Take private slots back. Raises ValueError, and takes none, where one is not the caller's to give: free
        already, the cache's, listed twice, or of no such pool."""
        self._take_back(self.require(slots, _PRIVATE))

    def adopt(self, slots: Ints, surplus: Ints = EMPTY) -> None:
        """Make private slots the cache's, and take those in `surplus` back. For the cache; raises as `release` does,
        of both lists as of one."""
        both = self.require(join([slots, surplus]) if surplus.size else slots, _PRIVATE)
        self._state[both[: slots.size]] = _CACHED
        if surplus.size:
            self._take_back(both[slots.size :])

    def reclaim(self, slots: Ints) -> None:
        """Take slots back that are the cache's. For the cache; raises as `release` does."""
        self._take_back(self.require(slots, _CACHED))

    def require(self, slots: Ints, state: int) -> Ints:
        """`slots` as int32[n]. Raises ValueError unless they are distinct, of this pool, and in `state`."""
        slots = as_ints(slots, "slots")
        n = slots.size
        if not n:
            return slots
        try:
            # Unsigned, so that a negative number is out of bounds and does not index from the end.
            sound = bool((self._state[slots.view(np.uint32)] == state).all()) and n <= self.size
        except IndexError:
            sound = False
        if sound:
            places = self._places[:n]
            self._seen_at[slots] = places
            sound = bool((self._seen_at[slots] == places).all())
        if not sound:
            raise ValueError(self._fault(slots, state))
        return slots

    def _fault(self, slots: Ints, state: int) -> str:
        """The first thing that is wrong with slots that `require` refuses."""
        foreign = (slots < 0) | (slots >= self.size)
        if foreign.any():
            return f"slot {slots[foreign][0]} is not of this pool of {self.size}"
        wrong = self._state[slots] != state
        if wrong.any():
            slot = slots[wrong][0]
            return f"slot {slot} is {_SAID[int(self._state[slot])]}, not {_SAID[state]}"
        distinct, count = np.unique(slots, return_counts=True)
        return f"slot {distinct[count > 1][0]} is listed twice"

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
        self._state[slots] = _FREE
        self._stack[self._free : self._free + slots.size] = slots[::-1]
        self._free += slots.size
