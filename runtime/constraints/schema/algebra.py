"""Unions and intersections of shapes, type by type, over nodes that are sets of conditions.

A node is a conjunction: a set of signed conditions, each an int (`condition * 2`, and one more for its opposite). The
shapes here are those of shapes.py, but for objects, whose members are looked up by name while they are put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema.names import meet
from palmette.runtime.constraints.schema.numbers import meet_numbers
from palmette.runtime.constraints.schema.shapes import (
    ANYTHING_NODE,
    NOTHING_NODE,
    Arrays,
    Contains,
    Fixed,
    Node,
    Numbers,
    Strings,
    Text,
)
from palmette.runtime.constraints.schema.unions import (
    FULL,
    OPEN,
    Classes,
    Entries,
    Slot,
    Union,
)
from palmette.runtime.constraints.schema.values import ARRAY, NUMBER, OBJECT, STRING

# Up to so many objects in a union are compared with each other, so that none lies within another.
_COMPARED = 64


@dataclass(frozen=True, slots=True)
class Budget:
    """What reading one schema may take: seconds, nodes of the graph, shapes made on the way, shapes of one node."""

    seconds: float = 5.0
    nodes: int = 100_000
    shapes: int = 100_000
    alternatives: int = 2_000


class Algebra:
    """Nodes and what can be done with shapes over them. `expand` says what a node's shapes are."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.deadline = monotonic() + budget.seconds
        self.keys: list[frozenset[int]] = [frozenset(), frozenset([-1])]
        self._numbers: dict[frozenset[int], Node] = {self.keys[0]: ANYTHING_NODE, self.keys[1]: NOTHING_NODE}
        self._both: dict[tuple[Node, Node], Node] = {}
        self._made = 0

    # -- nodes

    def node(self, key: frozenset[int]) -> Node:
        """The node of the values that meet all of these conditions."""
        found = self._numbers.get(key)
        if found is None:
            if len(key) > 1 and any(c ^ 1 in key for c in key):
                found = NOTHING_NODE
            else:
                found = len(self.keys)
                if found >= self.budget.nodes:
                    raise over(f"more than {self.budget.nodes:,} different subschemas")
                self.keys.append(key)
            self._numbers[key] = found
        return found

    def both(self, a: Node, b: Node) -> Node:
        if a == b or b == ANYTHING_NODE:
            return a
        if a == ANYTHING_NODE:
            return b
        if a == NOTHING_NODE or b == NOTHING_NODE:
            return NOTHING_NODE
        pair = (a, b) if a < b else (b, a)
        found = self._both.get(pair)
        if found is None:
            found = self._both[pair] = self.node(self.keys[a] | self.keys[b])
        return found

    def within(self, a: Node, b: Node) -> bool:
        """Whether all values of `a` are certainly values of `b`."""
        return a in (b, NOTHING_NODE) or b == ANYTHING_NODE or (b != NOTHING_NODE and self.keys[a] >= self.keys[b])

    def is_plain(self, node: Node) -> bool:
        """Whether nothing that the node says leads to another node."""
        raise NotImplementedError

    def vanishes(self, node: Node) -> bool:
        """Whether the node is seen at little cost to have no values."""
        raise NotImplementedError

    def tick(self, made: int = 1) -> None:
        self._made += made
        if self._made > self.budget.shapes:
            raise over(f"more than {self.budget.shapes:,} combinations of its parts")
        if monotonic() > self.deadline:
            raise over(f"more than the {self.budget.seconds:g} s for reading it")

    # -- unions

    def join(self, unions: Sequence[Union]) -> Union:
        if len(unions) == 1:
            return unions[0]
        return tuple(self._join(slot, [u[slot] for u in unions]) for slot in range(7))  # type: ignore[return-value]

    def _join(self, slot: int, parts: list[Slot]) -> Slot:
        parts = [part for part in parts if part]
        if not parts:
            return ()
        full = FULL[slot]
        if slot < NUMBER or any(part is full or part[0] is full[0] for part in parts):
            return full
        if len(parts) == 1:
            return parts[0]
        return self._tidy(slot, [shape for part in parts for shape in part])

    def meet(self, a: Union, b: Union) -> Union:
        if a is FULL:
            return b
        if b is FULL:
            return a
        return tuple(map(self._meet, range(7), a, b))  # type: ignore[return-value]

    def _meet(self, slot: int, a: Slot, b: Slot) -> Slot:
        if not a or not b or a is b:
            return a if a is b else ()
        full = FULL[slot]
        if b is full or b[0] is full[0]:
            return a
        if a is full or a[0] is full[0]:
            return b
        meet = (self._fixed, self._fixed, self._fixed, meet_numbers, self._strings, self._arrays, self._objects)[slot]
        self.tick(len(a) * len(b))
        if slot == OBJECT and len(a) + len(b) > 2:
            found: list[Any] = self._meet_objects(a, b)
        else:
            found = [shape for x in a for y in b if (shape := meet(x, y)) is not None]
        if len(found) < 2:
            return tuple(found)
        tidy = self._tidy(slot, found)
        if len(tidy) > self.budget.alternatives:
            raise over(f"more than {self.budget.alternatives:,} alternatives for one value")
        return tidy

    def _meet_objects(self, a: Slot, b: Slot) -> list[Entries]:
        """What lies within one shape of the other side wholly need not be cut by the others: that keeps the opposites
        of many alternatives from multiplying."""
        found: list[Entries] = []
        kept = [self._within_one(y, a, True) for y in b]
        for x in a:
            if (whole := self._within_one(x, b, False)) is not None:
                found.append(whole)
                continue
            for y, already in zip(b, kept, strict=True):
                if already is None and (shape := self._objects(x, y)) is not None:
                    found.append(shape)
        return [*found, *(shape for shape in kept if shape is not None)]

    def _within_one(self, narrow: Entries, others: Slot, others_first: bool) -> Entries | None:
        """`narrow`, when one of the others covers it, with the names that the other one lists."""
        wide = next((other for other in others if self._covers(other, narrow)), None)
        if wide is None or wide.order == narrow.order[: len(wide.order)]:
            return narrow if wide is not None else None
        first, second = (wide, narrow) if others_first else (narrow, wide)
        return Entries(
            {**narrow.members, **{n: narrow.value(n) for n in wide.order if n not in narrow.members}},
            narrow.required,
            order=tuple(dict.fromkeys((*first.order, *second.order))),
            others=narrow.others,
            least=narrow.least,
            most=narrow.most,
            some=narrow.some,
        )

    def _tidy(self, slot: int, shapes: list[Any]) -> Slot:
        """The union of the shapes, where that is easily seen in fewer of them."""
        if slot == STRING:
            # Also where one is a part of another: but that costs more than it saves.
            finite = [s for s in shapes if s.text.only is not None]
            if len(finite) > 1:
                merged = Strings(Text(only=frozenset().union(*(s.text.only for s in finite))))
                shapes = [merged, *(s for s in shapes if s.text.only is None)]
            return tuple({s.text if s.text.only is None else None: s for s in shapes}.values())
        if slot == NUMBER:
            finite_numbers = [n for n in shapes if n.only is not None]
            if len(finite_numbers) > 1:
                merged_numbers = Numbers(only=frozenset().union(*(n.only for n in finite_numbers)))
                shapes = [merged_numbers, *(n for n in shapes if n.only is None)]
            return tuple(dict.fromkeys(shapes))
        if slot == ARRAY:
            return tuple(dict.fromkeys(shapes))
        if slot == OBJECT:
            shapes = list({shape.signature(): shape for shape in shapes}.values())
            return tuple(self._widest(shapes) if len(shapes) <= _COMPARED else shapes)
        return tuple(shapes[:1])

    def _widest(self, shapes: list[Entries]) -> list[Entries]:
        out: list[Entries] = []
        for shape in shapes:
            if any(self._covers(other, shape) for other in out):
                continue
            out = [other for other in out if not self._covers(shape, other)]
            out.append(shape)
        return out

    def _covers(self, wide: Entries, narrow: Entries) -> bool:
        """Whether all objects of `narrow` are certainly objects of `wide`."""
        if len(wide.required) > len(narrow.required) or wide.some or wide.least > narrow.least:
            return False
        if wide.most is not None and (narrow.most is None or narrow.most > wide.most):
            return False
        if any(name not in narrow.required for name in wide.required):
            return False
        if wide.others is not narrow.others and wide.others is not OPEN and wide.others != narrow.others:
            return False
        return all(self.within(narrow.value(n), node) for n, node in wide.members.items()) and all(
            self.within(node, wide.value(n)) for n, node in narrow.members.items() if n not in wide.members
        )

    # -- two shapes of a type

    def _fixed(self, a: Fixed, b: Fixed) -> Fixed:
        return a

    def _strings(self, a: Strings, b: Strings) -> Strings | None:
        text = meet(a.text, b.text)
        return Strings(text) if text is not None else None

    def _arrays(self, a: Arrays, b: Arrays) -> Arrays | None:
        length = max(len(a.prefix), len(b.prefix))
        prefix = []
        for i in range(length):
            x = a.prefix[i] if i < len(a.prefix) else a.rest
            y = b.prefix[i] if i < len(b.prefix) else b.rest
            prefix.append(self.both(x, y))
        most = a.most if b.most is None else b.most if a.most is None else min(a.most, b.most)
        return self.arrays(
            prefix,
            self.both(a.rest, b.rest),
            max(a.least, b.least),
            most,
            (*a.contains, *b.contains),
            a.unique or b.unique,
            a.repeats or b.repeats,
        )

    def arrays(
        self,
        prefix: Sequence[Node] = (),
        rest: Node = ANYTHING_NODE,
        least: int = 0,
        most: int | None = None,
        contains: Iterable[Contains] = (),
        unique: bool = False,
        repeats: bool = False,
    ) -> Arrays | None:
        """The shape in its plainest form; None when it is seen to be empty."""
        bounds: dict[Node, tuple[int, int | None]] = {}
        for c in contains:
            low, high = bounds.get(c.node, (0, None))
            high = c.most if high is None else high if c.most is None else min(high, c.most)
            bounds[c.node] = (max(low, c.least), high)
        if ANYTHING_NODE in bounds:
            low, high = bounds.pop(ANYTHING_NODE)
            least = max(least, low)
            most = high if most is None else most if high is None else min(most, high)
        if bounds.pop(NOTHING_NODE, (0, None))[0] > 0:
            return None
        prefix = list(prefix)
        for i, node in enumerate(prefix):
            if node == NOTHING_NODE or (i < least and self.vanishes(node)):
                prefix, rest = prefix[:i], NOTHING_NODE
                break
        if most is not None and most <= len(prefix):
            prefix, rest = prefix[:most], NOTHING_NODE
        if rest == NOTHING_NODE:
            most = len(prefix)
        elif least > len(prefix) and self.vanishes(rest):
            return None
        while prefix and prefix[-1] == rest:
            prefix.pop()
        kept = tuple(Contains(n, lo, hi) for n, (lo, hi) in bounds.items() if lo or hi is not None)
        for c in kept:
            least = max(least, c.least)
            if c.most is not None and c.most < c.least:
                return None
        if repeats:
            least = max(least, 2)
        if (most is not None and least > most) or (unique and repeats):
            return None
        return Arrays(tuple(prefix), rest, least, most, kept, unique and (most is None or most > 1), repeats)

    def _objects(self, a: Entries, b: Entries) -> Entries | None:
        members: dict[str, Node] = {}
        required = {**a.required, **b.required} if a.required and b.required else a.required or b.required
        both = self.both
        theirs = b.members
        for name, x in a.members.items():
            y = theirs.get(name)
            if y is None:
                y = b.other(name)
            node = members[name] = both(x, y)
            if name in required and (node == NOTHING_NODE or (node not in (x, y) and self.vanishes(node))):
                return None
        for name, y in theirs.items():
            if name not in members:
                x = a.other(name)
                node = members[name] = both(x, y)
                if name in required and (node == NOTHING_NODE or (node not in (x, y) and self.vanishes(node))):
                    return None
        most = a.most if b.most is None else b.most if a.most is None else min(a.most, b.most)
        if most is not None and max(a.least, b.least, len(required)) > most:
            return None
        order = a.order
        if b.order and b.order != order:
            order = tuple(dict.fromkeys((*order, *b.order)))
        return Entries(
            members,
            required,
            order=order,
            others=self.meet_classes(a.others, b.others),
            least=max(a.least, b.least),
            most=most,
            some=tuple(dict.fromkeys((*a.some, *b.some))) if a.some and b.some else a.some or b.some,
        )

    def meet_classes(self, a: Classes, b: Classes) -> Classes:
        if a is OPEN or a == OPEN:
            return b
        if b is OPEN or b == OPEN or a is b:
            return a
        found = []
        for x, m in a:
            for y, n in b:
                node = self.both(m, n)
                if node == NOTHING_NODE:
                    continue
                text = x if x is y else meet(x, y)
                if text is not None:
                    found.append((text, node))
        return tuple(found)

    def apart(self, slot: int, a: Any, b: Any) -> bool:
        """Whether two shapes of a type are seen to share no value."""
        if slot == OBJECT:
            later = []
            for first, second in ((a, b), (b, a)):
                for name in first.required:
                    x, y = first.members[name], second.value(name)
                    if y == NOTHING_NODE:
                        return True
                    if x != y and (both := self.both(x, y)) not in (x, y):
                        if not self.is_plain(both):
                            later.append(both)
                        elif self.vanishes(both):
                            return True
            if any(map(self.vanishes, later)):
                return True
            return (a.most is not None and a.most < max(b.least, len(b.required))) or (
                b.most is not None and b.most < max(a.least, len(a.required))
            )
        if slot == NUMBER:
            return meet_numbers(a, b) is None
        if slot == STRING:
            return self._strings(a, b) is None
        return slot == ARRAY and self._arrays(a, b) is None

    def slots_apart(self, slot: int, a: Slot, b: Slot) -> bool:
        self.tick(len(a) * len(b))
        return all(self.apart(slot, x, y) for x in a for y in b)


def over(limit: str) -> ConstraintError:
    return ConstraintError(
        f"the schema is too large: reading it takes {limit}",
        hint="use fewer alternatives that combine (anyOf in allOf, oneOf that overlaps), or split the schema",
    )
