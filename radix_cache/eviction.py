"""Which leaf goes first: the policies by name, and the order that the leaves are kept in."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeAlias, TypeVar

Rank: TypeAlias = float | tuple[float, ...]


class Evictable(Protocol):
    """What a policy may look at: an unleased leaf of the tree."""

    @property
    def last_used(self) -> int:
        """Tick of the last match or insert that went through it."""
        ...

    @property
    def created(self) -> int:
        """Tick of the insert that brought its tokens."""
        ...

    @property
    def hits(self) -> int:
        """How many matches went through it."""
        ...

    @property
    def priority(self) -> int:
        """The greatest priority of the matches and inserts that went through it."""
        ...

    @property
    def length(self) -> int:
        """How many tokens, so slots, it holds."""
        ...

    @property
    def inflation(self) -> float:
        """The greatest rank (of a tuple, its first number) that had been evicted when it was last used."""
        ...


class EvictionPolicy(Protocol):
    """Ranks leaves; the lowest rank is evicted first, and equals in the order in which they became evictable.

    A rank is a number, or for all leaves a tuple. It may depend on nothing but the leaf: it is asked for once, when
    the leaf becomes evictable, and a leaf's properties stay as they are while it is.
    """

    def rank(self, leaf: Evictable) -> Rank: ...


class LRU:
    """Least recently used first."""

    def rank(self, leaf: Evictable) -> Rank:
        return leaf.last_used


class LFU:
    """Least often matched first, of equals the least recently used."""

    def rank(self, leaf: Evictable) -> Rank:
        return (leaf.hits, leaf.last_used)


class FIFO:
    """First come, first out, used or not."""

    def rank(self, leaf: Evictable) -> Rank:
        return leaf.created


class Priority:
    """Lowest priority first, of equals the least recently used."""

    def rank(self, leaf: Evictable) -> Rank:
        return (leaf.priority, leaf.last_used)


class SizeAware:
    """What frees most for its recency first: long leaves before short ones that were used about as recently.

    GreedyDual-Size with a cost of one (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", 1997): a leaf of n
    slots ranks at L + 1/n, where L, the inflation, is the rank that eviction had come to when the leaf was last used.
    So a leaf ages as ranks above it are evicted, and a short one, which costs little to keep, lasts through more of
    that. It is right where a hit counts as a hit however long; for tokens saved, LRU is.

    What is other in a prefix tree: an inner node gets its rank when its last child goes, with the L of its own last
    use, which was no earlier than the child's; and what is left of a leaf that lost its end ranks by what is left.
    """

    def rank(self, leaf: Evictable) -> Rank:
        return leaf.inflation + 1 / leaf.length


POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = MappingProxyType(
    {"lru": LRU, "lfu": LFU, "fifo": FIFO, "priority": Priority, "size": SizeAware}
)


class Ticketed(Evictable, Protocol):
    """A leaf that can carry its place in the order: the number of its valid ticket, 0 for none."""

    ticket: int


LeafT = TypeVar("LeafT", bound=Ticketed)


class EvictionOrder(Generic[LeafT]):
    """The evictable leaves by rank: a heap with lazy deletion. `add` and `pop` are O(log n), `discard` is O(1).

    A discarded leaf leaves its entry behind, which no longer bears the leaf's ticket. So that leaves which are leased
    and let go again and again do not fill the heap, it is rebuilt once more than half of it is such waste; that pays
    for itself over the calls that made the waste.

    `inflation` is the greatest rank that was popped, of a tuple its first number.
    """

    _SLACK = 64

    def __init__(self, policy: EvictionPolicy) -> None:
        self.inflation = 0.0
        self._policy = policy
        # (rank, ticket, leaf): tickets are unique, so leaves themselves are never compared.
        self._heap: list[tuple[Rank, int, LeafT]] = []
        self._live = 0
        self._tickets = 0

    def __len__(self) -> int:
        return self._live

    def add(self, leaf: LeafT) -> None:
        """Put `leaf` in its place. It must not be in the order."""
        self._tickets += 1
        leaf.ticket = self._tickets
        self._live += 1
        heapq.heappush(self._heap, (self._policy.rank(leaf), leaf.ticket, leaf))
        if len(self._heap) > 2 * self._live + self._SLACK:
            self._heap = list(self._entries())
            heapq.heapify(self._heap)

    def discard(self, leaf: LeafT) -> None:
        """Take `leaf` out, if it is in."""
        if leaf.ticket:
            leaf.ticket = 0
            self._live -= 1
            if not self._live:
                self._heap.clear()

    def pop(self) -> LeafT | None:
        """Take out the leaf to evict first; None if there is none."""
        while self._heap:
            rank, ticket, leaf = heapq.heappop(self._heap)
            if leaf.ticket == ticket:
                self.discard(leaf)
                first = rank[0] if isinstance(rank, tuple) else rank
                if first > self.inflation:
                    self.inflation = first
                return leaf
        return None

    def _entries(self) -> Iterator[tuple[Rank, int, LeafT]]:
        return (entry for entry in self._heap if entry[2].ticket == entry[1])

    def problems(self, leaves: Iterable[LeafT]) -> list[str]:
        """What is wrong, in words, given the leaves that should be in the order; [] if it is sound."""
        found: list[str] = []
        placed = {id(leaf): rank for rank, _, leaf in self._entries()}
        if len(placed) != self._live:
            found.append(f"the eviction order counts {self._live} leaves and holds {len(placed)}")
        for leaf in leaves:
            rank = placed.pop(id(leaf), None)
            if rank is None:
                found.append(f"an unleased leaf of {leaf.length} tokens is not in the eviction order")
            elif rank != self._policy.rank(leaf):
                found.append(f"a leaf of {leaf.length} tokens changed its rank in the eviction order")
        if placed:
            found.append(f"the eviction order holds {len(placed)} nodes that are no unleased leaves of the tree")
        return found
