"""Which nodes have a finite value, as the least fixed point of what each shape needs.

Only what holds of some finite value counts: a list that must hold such a list has none. Counts are kept too: distinct
items, required members against maxProperties, `contains` against maxItems.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import product
from typing import Any

from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.conditions import Busy
from palmette.runtime.constraints.schema.graph import Graph
from palmette.runtime.constraints.schema.names import is_empty
from palmette.runtime.constraints.schema.numbers import listed
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    ANYTHING_NODE,
    NOTHING_NODE,
    Arrays,
    Fixed,
    Node,
    Numbers,
    Strings,
    Text,
)
from palmette.runtime.constraints.schema.unions import Entries, Union

_MOST_CONTAINS = 5
_MOST_SOME = 8
# Values of a node are listed up to so many, where it matters whether there are enough of them.
_LISTED = 300
_LEVELS = 4


class Finite:
    """`alive`: the nodes, of those reached from the root, that have a value."""

    def __init__(self, graph: Graph, root: Node) -> None:
        self.graph = graph
        self.order: list[Node] = []
        self.alive: set[Node] = {ANYTHING_NODE}
        self._reached: set[Node] = {ANYTHING_NODE, NOTHING_NODE}
        self._empty: dict[int, tuple[Text, bool]] = {}
        self._asking: list[Any] = []
        self._here = ""  # the pointer of the node that is looked at, for faults
        self.reach(root)
        done = -1
        while done != (done := len(self.alive) + len(self.order)):
            graph.tick(0)
            for node in reversed(self.order):
                self._here = graph.pointer(node)
                if node not in self.alive and any(map(self.has_value, _shapes(self.union(node)))):
                    self.alive.add(node)
            # These ask for nodes of their own, which would not be known yet when the shapes are written.
            for shape in list(self._asking):
                self.has_value(shape)

    def union(self, node: Node) -> Union:
        return self.graph.expand(node)

    def reach(self, node: Node) -> None:
        """Takes in the node and all that is below it."""
        todo = [node]
        while todo:
            node = todo.pop()
            if node in self._reached:
                continue
            self._reached.add(node)
            self.order.append(node)
            try:
                union = self.union(node)
            except Busy as busy:
                self.graph.faults.add(
                    busy.pointer or self.graph.pointer(node),
                    "a reference leads back to itself without a value in between",
                    "put the reference below a property or an item",
                )
                self.graph.forget(node)
                continue
            for shape in _shapes(union):
                todo += reversed(list(children(shape)))
                if (isinstance(shape, Arrays) and (shape.contains or shape.repeats)) or (
                    isinstance(shape, Entries) and shape.some
                ):
                    self._asking.append(shape)

    def lives(self, node: Node) -> bool:
        if node not in self._reached:
            self.reach(node)
        return node in self.alive

    def is_endless(self, node: Node) -> bool:
        """Whether a node without a value would have one if all nodes had: only an endless one is lacking then."""
        known, self.alive = self.alive, set(self.order)
        found = any(map(self.has_value, _shapes(self.union(node))))
        self.alive = known
        return found

    def has_value(self, shape: Any) -> bool:
        """Whether the shape has a value made of those that are known already."""
        if isinstance(shape, Entries):
            return self._object(shape)
        if isinstance(shape, Arrays):
            return self._array(shape)
        if isinstance(shape, Strings):
            return not self.no_text(shape.text)
        if isinstance(shape, Numbers):
            return listed(shape, 1) is None
        return True

    def no_text(self, text: Text) -> bool:
        if text is ANY_TEXT:
            return False
        found = self._empty.get(id(text))
        if found is None:
            found = self._empty[id(text)] = (text, is_empty(text))
        return found[1]

    # -- arrays

    def _array(self, shape: Arrays) -> bool:
        if not shape.least and not shape.contains and not shape.repeats:
            return True
        places = [
            shape.prefix[i] if i < len(shape.prefix) else shape.rest
            for i in range(min(shape.least, len(shape.prefix) + 1))
        ]
        if not all(map(self.lives, places)):
            return False
        if shape.contains and not self._contained(shape):
            return False
        if shape.unique and shape.least > 1 and not self._distinct(shape):
            return False
        return not shape.repeats or self._repeated(shape)

    def _at(self, shape: Arrays, place: int) -> Node:
        return shape.prefix[place] if place < len(shape.prefix) else shape.rest

    def _contained(self, shape: Arrays) -> bool:
        """Whether some length and some choice of what each item is gives all the counts."""
        asked = shape.contains
        if len(asked) > _MOST_CONTAINS:
            self.graph.faults.add(self._here, "so many contains of one array cannot be enforced", "use fewer of them")
            return True
        kinds = list(product((False, True), repeat=len(asked)))
        caps = [c.least if c.most is None else c.most + 1 for c in asked]
        limit = max(shape.least, len(shape.prefix)) + sum(c.least for c in asked)
        limit = limit if shape.most is None else min(limit, shape.most)
        counts = {(0,) * len(asked)}
        for length in range(limit + 1):
            enough = any(
                all(n >= c.least and (c.most is None or n <= c.most) for n, c in zip(found, asked, strict=True))
                for found in counts
            )
            if length >= shape.least and enough:
                return True
            if length == limit:
                break
            place = self._at(shape, length)
            can = []
            for chosen in kinds:
                node = place
                for c, holds in zip(asked, chosen, strict=True):
                    node = self.graph.both(node, c.node if holds else self.graph.opposite(c.node))
                if self.lives(node):
                    can.append(chosen)
            after = {
                tuple(min(n + holds, cap) for n, holds, cap in zip(found, chosen, caps, strict=True))
                for found in counts
                for chosen in can
            }
            if after == counts and length >= len(shape.prefix):
                return enough  # and so it stays, whatever the length
            counts = after
            self.graph.tick()
        return False

    def _distinct(self, shape: Arrays) -> bool:
        """Whether the first `least` items can all differ: a matching of places with values."""
        places = [self._at(shape, i) for i in range(min(shape.least, _LISTED))]
        choices = [self.values(node, len(places) + 1) for node in places]
        holder: dict[Hashable, int] = {}

        def place(i: int, tried: set[Hashable]) -> bool:
            for value in choices[i] or ():
                if value not in tried:
                    tried.add(value)
                    if value not in holder or place(holder[value], tried):
                        holder[value] = i
                        return True
            return False

        return all(choices[i] is None or place(i, set()) for i in range(len(places)))

    def _repeated(self, shape: Arrays) -> bool:
        count = len(shape.prefix) + 2 if shape.most is None else min(shape.most, len(shape.prefix) + 2)
        for j in range(1, count):
            if not self.lives(self._at(shape, j)):
                return False
            for i in range(j):
                if self.lives(self.graph.both(self._at(shape, i), self._at(shape, j))):
                    return True
        return False

    # -- objects

    def _object(self, shape: Entries) -> bool:
        for name in shape.required:
            if not self.lives(shape.members[name]):
                return False
        if shape.least > len(shape.required) and not self._enough(shape):
            return False
        return not shape.some or self._some(shape, [*shape.some], {}, [])

    def _enough(self, shape: Entries) -> bool:
        count = sum(self.lives(node) for node in shape.members.values())
        for text, node in shape.others:
            if count >= shape.least:
                return True
            if self.lives(node):
                names = texts.finite(text, shape.least + len(shape.members))
                if names is None:
                    return True
                count += sum(name not in shape.members for name in names)
        return count >= shape.least

    def _some(
        self, shape: Entries, todo: list[tuple[Text, Node]], held: dict[str, Node], new: list[tuple[Text, Node]]
    ) -> bool:
        """Whether each of `todo` finds a member to be: one that is there, or a new one. held: named members that were
        chosen, new: unnamed ones."""
        graph = self.graph
        if len(todo) > _MOST_SOME:
            graph.faults.add(
                self._here, "so many conditions on unnamed properties cannot be enforced", "use fewer of them"
            )
            return True
        extra = len(new) + sum(name not in shape.required for name in held)
        if shape.most is not None and len(shape.required) + extra > shape.most:
            return False
        if not todo:
            return True
        (text, node), *rest = todo
        for name, own in shape.members.items():
            if texts.contains(text, name):
                both = graph.both(held.get(name, own), node)
                if self.lives(both) and self._some(shape, rest, {**held, name: both}, new):
                    return True
        for names, own in shape.others:
            both = graph.both(own, node)
            if self.lives(both) and (found := texts.intersect(names, text)) is not None:
                free = self._unnamed(found, shape)
                if free is not None and self._some(shape, rest, held, [*new, (free, both)]):
                    return True
        for i, (names, own) in enumerate(new):
            both = graph.both(own, node)
            if self.lives(both) and (found := texts.intersect(names, text)) is not None and not self.no_text(found):
                return self._some(shape, rest, held, [*new[:i], (found, both), *new[i + 1 :]])
        return False

    def _unnamed(self, text: Text, shape: Entries) -> Text | None:
        found = texts.intersect(text, Text(without=frozenset(shape.members))) if shape.members else text
        return None if found is None or self.no_text(found) else found

    # -- counting

    def values(self, node: Node, limit: int, levels: int = _LEVELS) -> set[Hashable] | None:
        """All values of a node, or None when there are `limit` or more, or it cannot be told how many."""
        if node == ANYTHING_NODE or not levels:
            return None
        found: set[Hashable] = set()
        for shape in _shapes(self.union(node)):
            if self.has_value(shape):
                more = self._values(shape, limit, levels - 1)
                if more is None:
                    return None
                found |= more
                if len(found) >= limit:
                    return None
        return found

    def _values(self, shape: Any, limit: int, levels: int) -> set[Hashable] | None:
        if isinstance(shape, Fixed):
            return {(shape.text,)}
        if isinstance(shape, Numbers):
            numbers = listed(shape, limit)
            return None if numbers is None else set(numbers)
        if isinstance(shape, Strings):
            strings = texts.finite(shape.text, limit)
            return None if strings is None else set(strings)
        if isinstance(shape, Arrays):
            return self._lists(shape, limit, levels)
        return self._records(shape, limit, levels)

    def _lists(self, shape: Arrays, limit: int, levels: int) -> set[Hashable] | None:
        if shape.contains or shape.unique or shape.repeats:
            return None
        found: set[Hashable] = {("[",)} if shape.least == 0 else set()
        so_far: list[tuple[Hashable, ...]] = [("[",)]
        length = 0
        while shape.most is None or length < shape.most:
            items = self.values(self._at(shape, length), limit, levels)
            if items is None:
                return None
            if not items:
                break
            so_far = [(*head, item) for head in so_far for item in items]
            length += 1
            if length >= shape.least:
                found.update(so_far)
            if len(found) >= limit or len(so_far) >= limit:
                return None
        return found

    def _records(self, shape: Entries, limit: int, levels: int) -> set[Hashable] | None:
        if shape.some or shape.least > len(shape.required) or shape.most is not None:
            return None
        if any(self.lives(node) for _, node in shape.others):
            return None
        so_far: list[tuple[Hashable, ...]] = [()]
        for name, node in shape.members.items():
            if not self.lives(node):
                continue
            items = self.values(node, limit, levels)
            if items is None:
                return None
            absent = [] if name in shape.required else list(so_far)
            so_far = absent + [(*head, (name, item)) for head in so_far for item in items]
            if len(so_far) >= limit:
                return None
        return {frozenset(record) for record in so_far}


def _shapes(union: Union) -> Iterator[Any]:
    for slot in union:
        yield from slot


def children(shape: Any) -> Iterator[Node]:
    """The nodes of a shape's parts."""
    if isinstance(shape, Entries):
        yield from shape.members.values()
        yield from (node for _, node in shape.others)
        yield from (node for _, node in shape.some)
    elif isinstance(shape, Arrays):
        yield from shape.prefix
        yield shape.rest
        yield from (c.node for c in shape.contains)
