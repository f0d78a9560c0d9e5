"""What the tree looks like, as plain data for a page or a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from palmette.radix_cache.tree import Node, Tree

FIRST_TOKENS = 8


class NodeView(NamedTuple):
    """One node. `parent` is the id of another node of the view, None at the top of a namespace. Ids are never used
    twice; a split leaves the lower half its id. `first_tokens`: the run's beginning, at most 8 of its `length`.
    `leases` end at this very node; `locked` says that one ends here or below. Ticks are of the cache's clock."""

    id: int
    parent: int | None
    namespace: str
    length: int
    first_tokens: tuple[int, ...]
    leases: int
    locked: bool
    last_used: int
    created: int
    hits: int


class TreeView(NamedTuple):
    """The tree at tick `clock`, parents before their children. `node_count` nodes exist; `nodes` holds the topmost of
    them. Slots: free + private + cached = size; `evictable` is the part of `cached` that no lease holds."""

    nodes: tuple[NodeView, ...]
    node_count: int
    clock: int
    size: int
    free: int
    cached: int
    evictable: int


def topmost(tree: Tree, limit: int) -> Iterator[NodeView]:
    """Views of at most `limit` nodes, level by level over all namespaces."""
    level = [child for root in tree.roots.values() for child in root.children.values()]
    while level and limit > 0:
        yield from map(_view, level[:limit])
        limit -= len(level)
        level = [child for node in level for child in node.children.values()] if limit > 0 else []


def _view(node: Node) -> NodeView:
    at_top = node.parent is None or node.parent.parent is None
    return NodeView(
        id=node.id,
        parent=None if at_top or node.parent is None else node.parent.id,
        namespace=node.namespace,
        length=node.length,
        first_tokens=tuple(node.tokens[:FIRST_TOKENS].tolist()),
        leases=node.leases,
        locked=node.locked,
        last_used=node.last_used,
        created=node.created,
        hits=node.hits,
    )
