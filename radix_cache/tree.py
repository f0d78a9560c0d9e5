"""The radix tree: nodes, and the changes that keep its counters and its eviction order true.

A node holds a run of tokens and their slots; the path from the root spells a prefix. Children differ in their first
token. The method, a radix tree over token ids with reference counts and leaf-first eviction, is RadixAttention's
(Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2024, section 3).

        root --[5 6 7]--+--[8 9]          5 6 7 8 9    cut at 2:     root --[5 6]--[7]--+--[8 9]
                        +--[3]            5 6 7 3                                       +--[3]

Slots never move: a split divides a run, and whoever holds a lease on it notices nothing. A node is *locked* while a
lease ends at it or below it; it counts its own leases and its locked children, so a lock climbs no further than the
first node that was locked already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from palmette.radix_cache.arrays import EMPTY, Ints, common_prefix, join
from palmette.radix_cache.eviction import EvictionOrder, EvictionPolicy

# Bytes of a token id.
_INT = EMPTY.itemsize


class Node:
    """A run of tokens and the slot of each, int32[length]. A root has none, no parent, and at least one child.

    run: the tokens as the bytes of an int32 array, since a whole run of bytes is compared in one quick call.
    key: the first of them, under which the parent lists the node.
    leases: active leases that end at this node. locked_children: how many children are locked.
    ticket: the node's place in the eviction order, 0 for none (the order writes it).
    """

    __slots__ = (
        "children", "created", "hits", "id", "inflation", "key", "last_used", "leases", "length", "locked_children",
        "namespace", "parent", "priority", "run", "slots", "ticket",
    )  # fmt: skip

    def __init__(self, id: int, parent: Node | None, namespace: str, run: bytes, slots: Ints, tick: int) -> None:
        self.id = id
        self.parent = parent
        self.namespace = namespace
        self.run = run
        self.key = _first(run)
        self.slots = slots
        self.length = slots.size
        self.children: dict[int, Node] = {}
        self.leases = 0
        self.locked_children = 0
        self.created = tick
        self.last_used = tick
        self.hits = 0
        self.priority = 0
        self.inflation = 0.0
        self.ticket = 0

    @property
    def tokens(self) -> Ints:
        """The run as int32[length], read only."""
        return np.frombuffer(self.run, dtype=np.int32)

    @property
    def locked(self) -> bool:
        return self.leases > 0 or self.locked_children > 0

    def keep(self, start: int, end: int) -> None:
        """Shrink to the tokens from `start` to `end`."""
        # A copy: a view would keep all the slots in memory for as long as the node lives.
        self.run, self.slots = self.run[start * _INT : end * _INT], self.slots[start:end].copy()
        self.key = _first(self.run)
        self.length = end - start


def _first(run: bytes) -> int:
    return int.from_bytes(run[:_INT], sys.byteorder, signed=True)


class Walk(NamedTuple):
    """How far a prefix is in the tree: through `path`, of whose last node only the first `cut` tokens matched."""

    path: list[Node]
    cut: int
    length: int

    def slots(self) -> Ints:
        """The slots of the matched tokens, int32[length]."""
        runs = [node.slots for node in self.path]
        if runs:
            runs[-1] = runs[-1][: self.cut]
        return join(runs)


class Tree:
    """The nodes of all namespaces. Counters: `cached` slots in nodes, `evictable` ones of those in unlocked nodes
    (nothing below an unlocked node is locked, so all of them can go, leaf by leaf), `size` nodes, `splits` made, and
    `version`, which is another one whenever a walk may come out otherwise than before."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.roots: dict[str, Node] = {}
        self.order: EvictionOrder[Node] = EvictionOrder(policy)
        self.cached = 0
        self.evictable = 0
        self.size = 0
        self.splits = 0
        self.version = 0
        self._ids = 0

    def walk(self, tokens: Ints, namespace: str) -> Walk:
        """The longest prefix of `tokens` that the namespace holds. Changes nothing."""
        path: list[Node] = []
        length = cut = 0
        size, data, token = tokens.size, tokens.tobytes(), tokens.item
        node = self.roots.get(namespace)
        while node is not None and length < size:
            node = node.children.get(token(length))
            if node is None:
                break
            path.append(node)
            if data.startswith(node.run, length * _INT):
                cut = node.length
                length += cut
            else:
                cut = common_prefix(node.tokens, tokens[length:])
                length += cut
                break
        return Walk(path, cut, length)

    def touch(self, path: Sequence[Node], tick: int, priority: int, *, hits: int = 0) -> None:
        """Note a use of the nodes of a walk, of a priority, and as so many hits. The caller locks them next: what a
        policy looks at may change of no node that is in the eviction order."""
        inflation = self.order.inflation
        for node in path:
            node.last_used = tick
            node.inflation = inflation
            node.hits += hits
            if priority > node.priority:
                node.priority = priority

    def cut(self, walk: Walk) -> Node | None:
        """The node that ends exactly where `walk` does, by a split where that is inside a run; None for no node."""
        if not walk.path:
            return None
        node = walk.path[-1]
        if walk.cut < node.length:
            node = self._split(node, walk.cut)
            walk.path[-1] = node
        return node

    def _split(self, lower: Node, at: int) -> Node:
        """Put a new node for the first `at` tokens of `lower` above it. Leases that end at `lower` still do."""
        assert lower.parent is not None
        upper = self._node(
            lower.parent, lower.namespace, lower.run[: at * _INT], lower.slots[:at].copy(), lower.created
        )
        upper.last_used, upper.inflation = lower.last_used, lower.inflation
        upper.hits, upper.priority = lower.hits, lower.priority
        upper.locked_children = int(lower.locked)
        lower.parent.children[upper.key] = upper
        was_placed = bool(lower.ticket)
        self.order.discard(lower)
        lower.parent = upper
        lower.keep(at, lower.length)
        upper.children[lower.key] = lower
        if was_placed:
            self.order.add(lower)  # anew, since a policy may look at the length
        self.splits += 1
        self.version += 1
        return upper

    def grow(self, parent: Node | None, namespace: str, tokens: Ints, slots: Ints, tick: int, priority: int) -> Node:
        """A new leaf under `parent` (None: the namespace's root, made if missing), locked by one lease. Copies the
        arrays, which the caller may go on to change."""
        if parent is None:
            parent = self.roots.get(namespace)
            if parent is None:
                self._ids += 1
                parent = self.roots[namespace] = Node(self._ids, None, namespace, b"", EMPTY, tick)
        leaf = self._node(parent, namespace, tokens.tobytes(), slots.copy(), tick)
        leaf.inflation, leaf.priority = self.order.inflation, priority
        parent.children[leaf.key] = leaf
        self.cached += leaf.length
        self.evictable += leaf.length
        self.version += 1
        self.lock(leaf)  # which also takes `parent` out of the eviction order, if it was a leaf till now
        return leaf

    def lock(self, node: Node) -> None:
        """Count one more lease that ends at `node`."""
        was_locked = node.locked
        node.leases += 1
        while not was_locked:
            self.order.discard(node)
            self.evictable -= node.length
            if node.parent is None:
                return
            node = node.parent
            was_locked = node.locked
            node.locked_children += 1

    def unlock(self, node: Node) -> None:
        """Count one lease fewer that ends at `node`."""
        node.leases -= 1
        while not node.locked:
            self.evictable += node.length
            if node.parent is None:
                return
            if not node.children:
                self.order.add(node)
            node = node.parent
            node.locked_children -= 1

    def exclusive(self, node: Node) -> int:
        """How many tokens only one lease keeps, of those that end at `node`: those that its `unlock` would free."""
        count, leases, locked_children = 0, 1, 0
        above: Node | None = node
        while above is not None and (above.leases, above.locked_children) == (leases, locked_children):
            count += above.length
            above = above.parent
            leases, locked_children = 0, 1
        return count

    def covered(self, ends: Iterable[Node]) -> int:
        """How many tokens lie on the paths to `ends`, those on several of them counted once."""
        seen: set[Node] = set()
        for end in ends:
            above: Node | None = end
            while above is not None and above not in seen:
                seen.add(above)
                above = above.parent
        return sum(node.length for node in seen)

    def evict(self, want: int) -> Ints:
        """Drop at least `want` tokens from the leaves that the policy ranks lowest, fewer only if no more can go.
        The last leaf to go loses no more of its end than is needed. The slots that became free, int32[n]."""
        freed: list[Ints] = []
        while want > 0 and (leaf := self.order.pop()) is not None:
            if leaf.length <= want:
                want -= leaf.length
                freed.append(leaf.slots)
                self._remove(leaf)
            else:
                keep = leaf.length - want
                freed.append(leaf.slots[keep:])
                leaf.keep(0, keep)
                self.order.add(leaf)
                want = 0
        return self._lost(freed)

    def drop_unlocked(self, namespace: str | None) -> Ints:
        """Remove all nodes that are not locked, of one namespace or (None) of all. Their slots, int32[n]."""
        freed: list[Ints] = []
        roots = self.roots.values() if namespace is None else [self.roots[namespace]] if namespace in self.roots else []
        # Children come after their parents in a walk, so backwards each is a leaf by the time it is removed.
        doomed = [node for root in list(roots) for node in self.below(root) if not node.locked]
        for node in reversed(doomed):
            freed.append(node.slots)
            self.order.discard(node)
            self._remove(node)
        return self._lost(freed)

    def below(self, root: Node) -> Iterator[Node]:
        """All nodes under `root` without it, level by level, so parents before their children."""
        level = list(root.children.values())
        while level:
            yield from level
            level = [child for node in level for child in node.children.values()]

    def _node(self, parent: Node, namespace: str, run: bytes, slots: Ints, tick: int) -> Node:
        self._ids += 1
        self.size += 1
        return Node(self._ids, parent, namespace, run, slots, tick)

    def _remove(self, leaf: Node) -> None:
        """Take out an unlocked leaf that is not in the eviction order, and its namespace's root with the last one."""
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.key]
        self.size -= 1
        if parent.children:
            return
        if parent.parent is None:
            del self.roots[parent.namespace]
        elif not parent.locked:
            self.order.add(parent)

    def _lost(self, runs: list[Ints]) -> Ints:
        """All slots of runs that are no longer in the tree, in a row and counted."""
        slots = join(runs)
        self.cached -= slots.size
        self.evictable -= slots.size
        self.version += bool(runs)
        return slots
