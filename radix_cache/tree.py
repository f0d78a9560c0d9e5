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

from collections.abc import Iterator
from typing import NamedTuple

from palmette.radix_cache.arrays import EMPTY, Ints, common_prefix, join
from palmette.radix_cache.eviction import EvictionOrder, EvictionPolicy


class Node:
    """A run of tokens, int32[length], and the slot of each. A root has none, no parent, and at least one child.

    leases: active leases that end at this node. locked_children: how many children are locked.
    ticket: the node's place in the eviction order, 0 for none (the order writes it).
    """

    __slots__ = (
        "children", "created", "hits", "id", "last_used", "leases", "locked_children", "namespace", "parent", "slots",
        "ticket", "tokens",
    )  # fmt: skip

    def __init__(self, id: int, parent: Node | None, namespace: str, tokens: Ints, slots: Ints, tick: int) -> None:
        self.id = id
        self.parent = parent
        self.namespace = namespace
        self.tokens = tokens
        self.slots = slots
        self.children: dict[int, Node] = {}
        self.leases = 0
        self.locked_children = 0
        self.created = tick
        self.last_used = tick
        self.hits = 0
        self.ticket = 0

    @property
    def length(self) -> int:
        return self.tokens.size

    @property
    def key(self) -> int:
        return int(self.tokens[0])

    @property
    def locked(self) -> bool:
        return self.leases + self.locked_children > 0


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
    (nothing below an unlocked node is locked, so all of them can go, leaf by leaf), `size` nodes, `splits` made."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.roots: dict[str, Node] = {}
        self.order: EvictionOrder[Node] = EvictionOrder(policy)
        self.cached = 0
        self.evictable = 0
        self.size = 0
        self.splits = 0
        self._ids = 0

    def walk(self, tokens: Ints, namespace: str) -> Walk:
        """The longest prefix of `tokens` that the namespace holds. Changes nothing."""
        path: list[Node] = []
        length = cut = 0
        node = self.roots.get(namespace)
        while node is not None and length < tokens.size:
            child = node.children.get(int(tokens[length]))
            if child is None:
                break
            cut = common_prefix(child.tokens, tokens[length:])
            path.append(child)
            length += cut
            if cut < child.length:
                break
            node = child
        return Walk(path, cut, length)

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
        # Copies: a view would keep the whole run in memory for as long as either half lives.
        tokens, slots = lower.tokens[:at].copy(), lower.slots[:at].copy()
        upper = self._node(lower.parent, lower.namespace, tokens, slots, lower.created)
        upper.last_used, upper.hits = lower.last_used, lower.hits
        upper.locked_children = int(lower.locked)
        lower.parent.children[upper.key] = upper
        was_placed = bool(lower.ticket)
        self.order.discard(lower)
        lower.parent = upper
        lower.tokens, lower.slots = lower.tokens[at:].copy(), lower.slots[at:].copy()
        upper.children[lower.key] = lower
        if was_placed:
            self.order.add(lower)  # anew, since a policy may look at the length
        self.splits += 1
        return upper

    def grow(self, parent: Node | None, namespace: str, tokens: Ints, slots: Ints, tick: int) -> Node:
        """A new leaf under `parent` (None: the namespace's root, made if missing), locked by one lease. Copies the
        arrays, which the caller may go on to change."""
        if parent is None:
            parent = self.roots.get(namespace)
            if parent is None:
                self._ids += 1
                parent = self.roots[namespace] = Node(self._ids, None, namespace, EMPTY, EMPTY, tick)
        leaf = self._node(parent, namespace, tokens.copy(), slots.copy(), tick)
        parent.children[leaf.key] = leaf
        self.cached += leaf.length
        self.evictable += leaf.length
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

    def evict(self, want: int) -> Ints:
        """Drop at least `want` tokens from the leaves that the policy ranks lowest, fewer only if no more can go.
        The last leaf to go loses no more of its end than is needed. The slots that became free, int32[n]."""
        freed: list[Ints] = []
        while want > 0 and (leaf := self.order.pop()) is not None:
            keep = max(leaf.length - want, 0)
            want -= leaf.length - keep
            freed.append(leaf.slots[keep:])
            if keep:
                leaf.tokens, leaf.slots = leaf.tokens[:keep].copy(), leaf.slots[:keep].copy()
                self.order.add(leaf)
                self.cached -= freed[-1].size
                self.evictable -= freed[-1].size
            else:
                self._remove(leaf)
        return join(freed)

    def drop_unlocked(self, namespace: str | None) -> Ints:
        """Remove all nodes that are not locked, of one namespace or (None) of all. Their slots, int32[n]."""
        freed: list[Ints] = []
        roots = self.roots.values() if namespace is None else [self.roots[namespace]] if namespace in self.roots else []
        # Children come after their parents in a walk, so backwards each is a leaf by the time it is removed.
        doomed = [node for root in list(roots) for node in self.below(root) if not node.locked]
        for node in reversed(doomed):
            freed.append(node.slots)
            self._remove(node)
        return join(freed)

    def below(self, root: Node) -> Iterator[Node]:
        """All nodes under `root` without it, level by level, so parents before their children."""
        level = list(root.children.values())
        while level:
            yield from level
            level = [child for node in level for child in node.children.values()]

    def _node(self, parent: Node, namespace: str, tokens: Ints, slots: Ints, tick: int) -> Node:
        self._ids += 1
        self.size += 1
        return Node(self._ids, parent, namespace, tokens, slots, tick)

    def _remove(self, leaf: Node) -> None:
        """Take out an unlocked leaf, and its namespace's root with the last one."""
        parent = leaf.parent
        assert parent is not None
        self.order.discard(leaf)
        del parent.children[leaf.key]
        self.size -= 1
        self.cached -= leaf.length
        self.evictable -= leaf.length
        if parent.children:
            return
        if parent.parent is None:
            del self.roots[parent.namespace]
        elif not parent.locked:
            self.order.add(parent)
