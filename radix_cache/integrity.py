"""The checks behind `RadixCache.check_integrity`: they recount everything, trust no counter, and only report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from palmette.radix_cache.arrays import Ints, as_ints, join
from palmette.radix_cache.lease import Lease
from palmette.radix_cache.slots import SlotPool, SlotState
from palmette.radix_cache.tree import Node, Tree


def tree_problems(tree: Tree, leases: Mapping[Lease, Node | None], clock: int) -> Iterator[str]:
    """What is wrong with nodes, links, locks, leases, counters and the eviction order."""
    nodes: list[Node] = []
    for name, root in tree.roots.items():
        if not root.children:
            yield f"namespace {name!r} is empty and still has a root"
        if root.parent is not None or root.length or root.namespace != name:
            yield f"the root of namespace {name!r} is no root"
        yield from _lock_problems(root, 0)
        for node in tree.below(root):
            nodes.append(node)
            if node.namespace != name:
                yield f"{_name(node)} lies in namespace {name!r}"
            for key, child in node.children.items():
                yield from _link_problems(node, key, child)
        for key, child in root.children.items():
            yield from _link_problems(root, key, child)

    ends = Counter(id(node) for node in leases.values() if node is not None)
    for node in nodes:
        yield from _lock_problems(node, ends.pop(id(node), 0))
        if node.last_used > clock or node.created > node.last_used:
            yield f"{_name(node)}: created at {node.created}, last used at {node.last_used}, now is {clock}"
    if ends:
        yield f"{ends.total()} leases end at nodes that are not in the tree"
    for lease, end in leases.items():
        if not lease.active:
            yield f"{lease!r} is still counted"
        if end is not None and not np.array_equal(lease.slots, join(_path_slots(end))):
            yield f"{lease!r} does not have the slots of its path"

    yield from tree.order.problems([node for node in nodes if not node.children and not node.locked])
    for what, counted, found in (
        ("nodes", tree.size, len(nodes)),
        ("cached slots", tree.cached, sum(node.length for node in nodes)),
        ("evictable slots", tree.evictable, sum(node.length for node in nodes if not node.locked)),
    ):
        if counted != found:
            yield f"{counted} {what} are counted, {found} are there"


def slot_problems(
    pool: SlotPool, tree: Tree, leases: Mapping[Lease, Node | None], private: Iterable[Ints]
) -> Iterator[str]:
    """What is wrong with who owns which slot: each is free, the cache's or private, and that exactly once."""
    yield from pool.problems()
    # With the cache off there are no nodes, and the leases themselves own slots.
    runs = [node.slots for root in tree.roots.values() for node in tree.below(root)]
    runs += [lease.slots for lease, node in leases.items() if node is None]
    for owner, slots, state in (
        ("the cache", join(runs), SlotState.CACHED),
        ("requests", join([as_ints(run, "private slots") for run in private]), SlotState.PRIVATE),
    ):
        distinct, count = np.unique(slots, return_counts=True)
        marked = pool.which(state)
        for problem, which in (
            ("twice", distinct[count > 1]),
            ("but the pool does not know it", np.setdiff1d(distinct, marked)),
            ("says the pool, but nobody has it (leaked)", np.setdiff1d(marked, distinct)),
        ):
            if which.size:
                more = ", ..." if which.size > 8 else ""
                listed = ", ".join(map(str, which[:8]))
                yield f"{which.size} slots held by {owner} {problem}: {listed}{more}"


def _link_problems(parent: Node, key: int, child: Node) -> Iterator[str]:
    if child.parent is not parent:
        yield f"{_name(child)} has another parent than the node that lists it"
    if not child.length or child.tokens.size != child.slots.size:
        yield f"{_name(child)} has {child.tokens.size} tokens and {child.slots.size} slots"
    elif child.key != key:
        yield f"{_name(child)} begins with token {child.key} and is listed under {key}"
    if parent.parent is not None and parent.last_used < child.last_used:
        yield f"{_name(child)} was used later than its parent"
    if parent.parent is not None and parent.priority < child.priority:
        yield f"{_name(child)} has a greater priority than its parent"


def _lock_problems(node: Node, leases: int) -> Iterator[str]:
    locked_children = sum(child.locked for child in node.children.values())
    if (node.leases, node.locked_children) != (leases, locked_children):
        yield (
            f"{_name(node)} counts {node.leases} leases and {node.locked_children} locked children, "
            f"it has {leases} and {locked_children}"
        )


def _path_slots(node: Node | None) -> list[Ints]:
    runs: list[Ints] = []
    while node is not None:
        runs.append(node.slots)
        node = node.parent
    return runs[::-1]


def _name(node: Node) -> str:
    return f"node {node.id} of {node.length} tokens in namespace {node.namespace!r}"
