"""The radix cache: what the scheduler sees of the prefix tree. Used from one thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from palmette.radix_cache.arrays import EMPTY, Ints, as_ints, join
from palmette.radix_cache.eviction import LRU, EvictionPolicy
from palmette.radix_cache.integrity import slot_problems, tree_problems
from palmette.radix_cache.lease import Lease, Pin
from palmette.radix_cache.slots import OutOfSlots, SlotPool, SlotState
from palmette.radix_cache.tree import Node, Tree, Walk
from palmette.radix_cache.view import TreeView, topmost

LeaseT = TypeVar("LeaseT", bound=Lease)


class CacheStats(NamedTuple):
    """Counters since the start; none ever shrinks. inserted - evicted - cleared tokens = those cached now.

    lookups: calls of `match`; lookup_tokens: tokens they asked for; hit_tokens: tokens they found.
    duplicate_tokens: slots given to `insert` and released, as the tree had the token already.
    A pin is no lookup.
    """

    lookups: int = 0
    lookup_tokens: int = 0
    hit_tokens: int = 0
    inserted_tokens: int = 0
    duplicate_tokens: int = 0
    evicted_tokens: int = 0
    cleared_tokens: int = 0
    splits: int = 0


class Found(NamedTuple):
    """A prefix that is cached: its length, and the ids of the nodes that it goes through, the top one first. It may end
    inside the last one's run."""

    length: int
    nodes: tuple[int, ...]


class RadixCache:
    """Prefixes of token ids and the KV slots that hold them, per namespace.

    Time is a logical clock that ticks once per `match`, `pin` and `insert`: the same calls give the same tree.

    Who owns a slot: the pool hands it to a request (`reserve`), which owns it until it gives it back to the pool or
    to `insert`; then it is the cache's until it is evicted. A request that ends in the middle releases its lease, and
    gives back to the pool those slots only that it has not inserted.

    With `enabled=False` nothing is kept or found: `match` gives an empty lease, and the lease that `insert` gives owns
    the slots itself and frees them when released, so that callers need no second path.

    With `exact=True` it is a table of whole prompts, to compare with: tokens are found either all or not at all, so
    that a prompt asked again hits, and another one with the same beginning does not. They need not have been inserted
    as a whole: prompts go in chunk by chunk, and are asked for without their last token.
    """

    def __init__(
        self, pool: SlotPool, *, policy: EvictionPolicy | None = None, enabled: bool = True, exact: bool = False
    ) -> None:
        self.pool = pool
        self.enabled = enabled
        self.exact = exact
        self._tree = Tree(policy or LRU())
        # All active leases, and the node at which each ends: None for one of no tokens, or if not enabled.
        self._leases: dict[Lease, Node | None] = {}
        # Counted when asked for, until a pin comes or goes.
        self._pinned: int | None = 0
        self._clock = 0
        self._counts = dict.fromkeys(CacheStats._fields, 0)

    @property
    def cached(self) -> int:
        """How many slots the tree owns."""
        return self._tree.cached

    @property
    def evictable(self) -> int:
        """How many of them `evict` could free now."""
        return self._tree.evictable

    @property
    def pinned(self) -> int:
        """How many slots lie under pins, those under several of them counted once."""
        if self._pinned is None:
            ends = (node for lease, node in self._leases.items() if isinstance(lease, Pin) and node is not None)
            self._pinned = self._tree.covered(ends)
        return self._pinned

    @property
    def version(self) -> int:
        """Another number whenever `peek` or `find` may answer other than before, for some tokens: so what they said
        may be kept for as long as it stays."""
        return self._tree.version

    @property
    def leases(self) -> int:
        """How many leases are active, pins and those of no tokens included."""
        return len(self._leases)

    @property
    def stats(self) -> CacheStats:
        """The counters as they stand."""
        return CacheStats(**{**self._counts, "splits": self._tree.splits})

    def match(self, tokens: Sequence[int] | Ints, namespace: str = "", *, priority: int = 0) -> Lease:
        """A lease on the longest prefix of `tokens` that is cached; of length 0 where none is. `priority` is for the
        eviction policy of that name: what the lease goes through keeps the greatest that it was given."""
        tokens = as_ints(tokens, "tokens")
        walk = self._walk(tokens, namespace)
        self._counts["lookups"] += 1
        self._counts["lookup_tokens"] += tokens.size
        self._counts["hit_tokens"] += walk.length
        return self._hold(walk, Lease(walk.slots(), namespace, self._let_go), priority, hits=1)

    def pin(self, tokens: Sequence[int] | Ints, namespace: str = "") -> Pin:
        """Keep the longest cached prefix of `tokens`, from eviction and from `clear`, until the pin is released."""
        walk = self._walk(as_ints(tokens, "tokens"), namespace)
        self._pinned = None
        return self._hold(walk, Pin(walk.slots(), namespace, self._let_go))

    def peek(self, tokens: Sequence[int] | Ints, namespace: str = "") -> int:
        """The length of the longest cached prefix. Changes nothing, not even the clock."""
        return self._walk(as_ints(tokens, "tokens"), namespace).length

    def find(self, tokens: Sequence[int] | Ints, namespace: str = "") -> Found:
        """As `peek`, and which nodes the prefix goes through."""
        walk = self._walk(as_ints(tokens, "tokens"), namespace)
        return Found(walk.length, tuple([node.id for node in walk.path]))

    def exclusive(self, lease: Lease) -> int:
        """How many slots would become evictable, or free, if this lease were released and no other. O(nodes that
        no other holds). Raises ValueError for a lease of another cache; one that was released holds nothing."""
        if not lease.active:
            return 0
        if lease not in self._leases:
            raise ValueError(f"{lease!r} is not an active one of this cache")
        node = self._leases[lease]
        return lease.length if node is None else self._tree.exclusive(node)

    def insert(
        self,
        tokens: Sequence[int] | Ints,
        slots: Ints,
        namespace: str = "",
        lease: Lease | None = None,
        *,
        priority: int = 0,
    ) -> Lease:
        """Hand over the KV of `tokens`, one slot each; a new lease on all of them, with the slots to read from now on.

        `lease` is the caller's older one on a beginning of `tokens`. It is released here, once the new one is taken,
        so nothing can be evicted in between. (It may also be longer than `tokens`, and agree with them.)

            tokens      | lease.length | cached since by a sibling | not cached   |
            slots       | the tree's   | the caller's              | the caller's |
            afterwards  | unchanged    | released: duplicates      | the tree's   |

        Wherever the tree has a token already, its own slot stays: the same slot given again is no news, and another
        one is released to the pool as a duplicate. Raises ValueError, and changes nothing, where a slot that is to be
        kept or released is not the caller's (free, the tree's, given twice), or `lease` is not on these tokens.
        `priority` is as in `match`.
        """
        tokens, slots = as_ints(tokens, "tokens"), as_ints(slots, "slots")
        if tokens.size != slots.size:
            raise ValueError(f"{tokens.size} tokens with {slots.size} slots")
        if lease is not None and (lease not in self._leases or lease.namespace != namespace):
            raise ValueError(f"{lease!r} is not an active one of this cache in namespace {namespace!r}")
        if not self.enabled:
            return self._keep_private(slots, namespace, lease)

        walk = self._tree.walk(tokens, namespace)
        canonical = walk.slots()
        if lease is not None:
            n = min(lease.length, tokens.size)
            if not np.array_equal(canonical[:n], lease.slots[:n]):
                raise ValueError(f"{lease!r} is not on a prefix of these tokens")
        given, fresh = slots[: walk.length], slots[walk.length :]
        duplicates = given[given != canonical]
        self.pool.adopt(fresh, duplicates)

        self._clock += 1
        node = self._tree.cut(walk)
        self._tree.touch(walk.path, self._clock, priority)
        if fresh.size:
            node = self._tree.grow(node, namespace, tokens[walk.length :], fresh, self._clock, priority)
        elif node is not None:
            self._tree.lock(node)
        taken = Lease(join([canonical, fresh]), namespace, self._let_go)
        self._leases[taken] = node
        if lease is not None:
            lease.release()
        self._counts["inserted_tokens"] += fresh.size
        self._counts["duplicate_tokens"] += duplicates.size
        return taken

    def evict(self, n: int) -> int:
        """Free `n` slots, or as many as can be if those are fewer; how many. Leaves go first, in the policy's order,
        and the last of them loses only as much of its end as is needed. Nothing under a lease is touched."""
        freed = self._tree.evict(n)
        self.pool.reclaim(freed)
        self._counts["evicted_tokens"] += freed.size
        return freed.size

    def reserve(self, n: int) -> Ints:
        """`n` slots for the caller to write, int32[n]; evicts what is missing. Raises OutOfSlots, and evicts nothing,
        where that would not do."""
        missing = n - self.pool.free
        if missing > self.evictable:
            raise OutOfSlots(
                f"{n} KV slots asked for; {self.pool.free} of {self.pool.size} are free, {self.evictable} evictable",
                hint="use a larger kv_tokens, or let fewer or shorter requests run at once",
            )
        if missing > 0:
            self.evict(missing)
        return self.pool.alloc(n)

    def clear(self, namespace: str | None = None) -> int:
        """Drop all that no lease holds, in one namespace or (None) in all; how many slots that freed."""
        freed = self._tree.drop_unlocked(namespace)
        self.pool.reclaim(freed)
        self._counts["cleared_tokens"] += freed.size
        return freed.size

    def snapshot(self, *, max_nodes: int = 10_000) -> TreeView:
        """The tree as plain data; of more than `max_nodes` nodes, those nearest to the roots."""
        return TreeView(
            nodes=tuple(topmost(self._tree, max_nodes)),
            node_count=self._tree.size,
            clock=self._clock,
            size=self.pool.size,
            free=self.pool.free,
            cached=self.cached,
            evictable=self.evictable,
        )

    def check_integrity(self, private: Iterable[Ints] = ()) -> list[str]:
        """All that is wrong, in words; [] if the cache is sound. `private`: the slots that requests hold and have not
        inserted. Walks everything; changes and raises nothing."""
        problems = [
            *tree_problems(self._tree, self._leases, self._clock),
            *slot_problems(self.pool, self._tree, self._leases, private),
        ]
        stats = self.stats
        if stats.inserted_tokens - stats.evicted_tokens - stats.cleared_tokens != self.cached:
            problems.append(f"{self.cached} slots are cached, but the counters say {stats}")
        return problems

    def _walk(self, tokens: Ints, namespace: str) -> Walk:
        """The longest prefix that may be given out."""
        walk = self._tree.walk(tokens, namespace)
        return Walk([], 0, 0) if self.exact and walk.length < tokens.size else walk

    def _hold(self, walk: Walk, lease: LeaseT, priority: int = 0, *, hits: int = 0) -> LeaseT:
        """A use of what the walk found, which `lease` holds from now on."""
        self._clock += 1
        node = self._tree.cut(walk)
        if node is not None:
            self._tree.touch(walk.path, self._clock, priority, hits=hits)
            self._tree.lock(node)
        self._leases[lease] = node
        return lease

    def _let_go(self, lease: Lease) -> None:
        node = self._leases.pop(lease)
        if isinstance(lease, Pin):
            self._pinned = None
        if node is not None:
            self._tree.unlock(node)
        else:
            self.pool.reclaim(lease.slots)

    def _keep_private(self, slots: Ints, namespace: str, lease: Lease | None) -> Lease:
        """`insert` of a cache that is not enabled: a lease that owns `slots`, in place of the older one. What that one
        owned and the new one does not is freed."""
        old = EMPTY if lease is None else lease.slots
        kept = np.isin(slots, old)
        fresh = slots[~kept]
        self.pool.require(slots[kept], SlotState.CACHED)
        self.pool.require(fresh, SlotState.PRIVATE)
        self.pool.adopt(fresh)
        if lease is not None:
            # Shrunk to what it does not pass on, so that its release frees that and no more.
            lease.slots = old[~np.isin(old, slots)]
            lease.release()
        taken = Lease(slots.copy(), namespace, self._let_go)
        self._leases[taken] = None
        return taken
