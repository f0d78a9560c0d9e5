"""The nodes of a normal form and, made as they are asked for, those that follow from them: meets and complements.

A schema machine asks what holds for a value under two nodes at once (an item that is also counted by `contains`), or
for one that is not under a node. What comes out is a node again, in the same six shapes, so that whoever reads nodes
knows nothing of where they come from. There are finitely many meets and complements of finitely many nodes, and each
is made once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from threading import Lock
from typing import Any

from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    ANYTHING_NODE,
    NOTHING_NODE,
    Anything,
    Arrays,
    Contains,
    Fixed,
    Member,
    Node,
    Normal,
    Numbers,
    Objects,
    Others,
    Shape,
    Strings,
    Text,
)

# Values, so that equal ones are equal and can be hashed: null, true and false are ("null",) and so on, numbers
# Fractions, strings str, arrays ("[", items), objects ("{", frozenset of (name, value)).
Value = Any

Part = Fixed | Numbers | Strings | Arrays | Objects
FIXED = ("null", "true", "false")
ANY_PARTS: tuple[Part, ...] = (*map(Fixed, FIXED), Numbers(), Strings(), Arrays(), Objects())
_MOST_NODES = 50_000


class Unsupported(Exception):
    """The complement of a shape that the shapes cannot say, or more nodes than the budget."""


class Graph:
    """Nodes are ints: those of the normal form, and behind them those that were made."""

    def __init__(self, normal: Normal) -> None:
        self._parts: list[tuple[Part, ...] | None] = [_spread(shapes) for shapes in normal.nodes]
        self._recipes: dict[Node, tuple[Any, ...]] = {}
        self._made: dict[tuple[Any, ...], Node] = {}
        self._lock = Lock()

    def parts(self, node: Node) -> tuple[Part, ...]:
        """The shapes of a node, none of them Anything; some may turn out to be empty."""
        found = self._parts[node]
        if found is None:
            kind, *of = self._recipes[node]
            found = getattr(self, "_" + kind)(*of)
            self._parts[node] = found
        return found

    def _node(self, *key: Any, recipe: tuple[Any, ...] | None = None) -> Node:
        node = self._made.get(key)
        if node is not None:
            return node
        with self._lock:
            node = self._made.get(key)
            if node is None:
                node = len(self._parts)
                if node >= _MOST_NODES:
                    raise Unsupported(f"more than {_MOST_NODES} combinations of parts")
                self._parts.append(None)
                self._recipes[node] = recipe or key
                # Last: whoever finds it here reads it.
                self._made[key] = node
        return node

    # -- the algebra

    def meet(self, a: Node, b: Node) -> Node:
        """The values under both."""
        if a == b or b == ANYTHING_NODE:
            return a
        if a == ANYTHING_NODE:
            return b
        if NOTHING_NODE in (a, b):
            return NOTHING_NODE
        # Of whatever meets it was put together: the nodes of a meet are a set, so that there are finitely many.
        of = tuple(dict.fromkeys((*self._of_meet(a), *self._of_meet(b))))
        return of[0] if len(of) == 1 else self._node("meet", frozenset(of), recipe=("meet", of))

    def _of_meet(self, node: Node) -> tuple[Node, ...]:
        recipe = self._recipes.get(node)
        return recipe[1] if recipe and recipe[0] == "meet" else (node,)

    def complement(self, node: Node) -> Node:
        """The values that are not under the node. Unsupported, at once or when its parts are read."""
        if node in (ANYTHING_NODE, NOTHING_NODE):
            return ANYTHING_NODE + NOTHING_NODE - node
        recipe = self._recipes.get(node)
        return recipe[1] if recipe and recipe[0] == "complement" else self._node("complement", node)

    def only(self, value: Value) -> Node:
        """The one value."""
        return self._node("only", value)

    # -- what the made nodes are

    def _meet(self, of: tuple[Node, ...]) -> tuple[Part, ...]:
        found = self.parts(of[0])
        for node in of[1:]:
            both = (self._both(p, q) for p in found for q in self.parts(node))
            found = tuple(dict.fromkeys(part for part in both if part is not None))
        return found

    def _both(self, p: Part, q: Part) -> Part | None:
        if isinstance(p, Fixed) and isinstance(q, Fixed):
            return p if p == q else None
        if isinstance(p, Numbers) and isinstance(q, Numbers):
            return _numbers(p, q)
        if isinstance(p, Strings) and isinstance(q, Strings):
            text = texts.intersect(p.text, q.text)
            return None if text is None else Strings(text)
        if isinstance(p, Arrays) and isinstance(q, Arrays):
            return self._arrays(p, q)
        if isinstance(p, Objects) and isinstance(q, Objects):
            return self._objects(p, q)
        return None

    def _arrays(self, p: Arrays, q: Arrays) -> Arrays | None:
        size = max(len(p.prefix), len(q.prefix))
        least, most = max(p.least, q.least), _least_of(p.most, q.most)
        if most is not None and least > most:
            return None
        return Arrays(
            tuple(self.meet(slot(p, i), slot(q, i)) for i in range(size)),
            self.meet(p.rest, q.rest),
            least,
            most,
            tuple(dict.fromkeys(p.contains + q.contains)),
            p.unique or q.unique,
            p.repeats or q.repeats,
        )

    def _objects(self, p: Objects, q: Objects) -> Objects | None:
        least, most = max(p.least, q.least), _least_of(p.most, q.most)
        if most is not None and least > most:
            return None
        mine, theirs = {m.name: m for m in p.members}, {m.name: m for m in q.members}
        members = []
        for name in _in_both_orders([*mine], [*theirs]):
            a, b = mine.get(name), theirs.get(name)
            node = self.meet(a.node if a else node_of_name(p, name), b.node if b else node_of_name(q, name))
            members.append(Member(name, node, bool((a and a.required) or (b and b.required))))
        named = frozenset(mine) | frozenset(theirs)
        others = []
        for a_class in p.others:
            for b_class in q.others:
                names = texts.intersect(a_class.names, b_class.names)
                names = None if names is None else leave_out(names, named)
                if names is not None and not texts.empty(names):
                    others.append(Others(names, self.meet(a_class.node, b_class.node)))
        return Objects(tuple(members), tuple(others), least, most, tuple(dict.fromkeys(p.some + q.some)))

    def _complement(self, node: Node) -> tuple[Part, ...]:
        found: tuple[Part, ...] = ANY_PARTS
        for part in self.parts(node):
            opposite = self._opposite(part)
            found = tuple(
                dict.fromkeys(both for p in found for q in opposite if (both := self._both(p, q)) is not None)
            )
        return found

    def _opposite(self, part: Part) -> list[Part]:
        """What is not of the shape, as shapes; they may overlap."""
        out: list[Part] = [
            other
            for other in ANY_PARTS
            if type(other) is not type(part) or (isinstance(other, Fixed) and other != part)
        ]
        if isinstance(part, Numbers):
            out += _not_numbers(part)
        elif isinstance(part, Strings):
            out += [Strings(text) for text in texts.complement(part.text)]
        elif isinstance(part, Arrays):
            out += self._not_arrays(part)
        elif isinstance(part, Objects):
            out += self._not_objects(part)
        return out

    def _not_arrays(self, a: Arrays) -> list[Arrays]:
        out: list[Arrays] = []
        if a.least:
            out.append(Arrays(most=a.least - 1))
        if a.most is not None:
            out.append(Arrays(least=a.most + 1))
        for i, node in enumerate(a.prefix):
            if node != ANYTHING_NODE:
                out.append(Arrays((ANYTHING_NODE,) * i + (self.complement(node),), least=i + 1))
        if a.rest == NOTHING_NODE:
            out.append(Arrays(least=len(a.prefix) + 1))
        elif a.rest != ANYTHING_NODE:
            if a.prefix:
                raise Unsupported("the opposite of an array with items behind a prefix")
            out.append(Arrays(contains=(Contains(self.complement(a.rest)),)))
        for c in a.contains:
            if c.least:
                out.append(Arrays(contains=(Contains(c.node, 0, c.least - 1),)))
            if c.most is not None:
                out.append(Arrays(contains=(Contains(c.node, c.most + 1),)))
        if a.unique:
            out.append(Arrays(repeats=True))
        if a.repeats:
            out.append(Arrays(unique=True))
        return out

    def _not_objects(self, o: Objects) -> list[Objects]:
        out: list[Objects] = []
        if o.least:
            out.append(Objects(most=o.least - 1))
        if o.most is not None:
            out.append(Objects(least=o.most + 1))
        for m in o.members:
            other = Others(Text(without=frozenset({m.name})), ANYTHING_NODE)
            if m.required:
                out.append(Objects((Member(m.name, NOTHING_NODE),), (other,)))
            if m.node != ANYTHING_NODE:
                out.append(Objects((Member(m.name, self.complement(m.node), True),), (other,)))
        free: Text | None = leave_out(ANY_TEXT, frozenset(m.name for m in o.members))
        rest = [] if free is None else [free]
        for c in o.others:
            if c.node != ANYTHING_NODE:
                out.append(Objects(some=(Others(c.names, self.complement(c.node)),)))
            rest = [
                left
                for r in rest
                for q in texts.complement(c.names)
                if (left := texts.intersect(r, q)) is not None and not texts.empty(left)
            ]
        out += [Objects(some=(Others(names, ANYTHING_NODE),)) for names in rest]
        for s in o.some:
            free_names = tuple(Others(names, ANYTHING_NODE) for names in texts.complement(s.names))
            refused = self.complement(s.node)
            mine = () if refused == NOTHING_NODE else (Others(s.names, refused),)
            out.append(Objects((), (*mine, *free_names)))
        return out

    def _only(self, value: Value) -> tuple[Part, ...]:
        if isinstance(value, Fraction):
            return (Numbers(only=frozenset({value})),)
        if isinstance(value, str):
            return (Strings(Text(only=frozenset({value}))),)
        if value[0] == "[":
            items = value[1]
            return (Arrays(tuple(map(self.only, items)), NOTHING_NODE, len(items), len(items)),)
        if value[0] == "{":
            members = tuple(Member(name, self.only(v), True) for name, v in sorted(value[1], key=lambda p: p[0]))
            return (Objects(members, (), len(members), len(members)),)
        return (Fixed(value[0]),)


def _spread(shapes: tuple[Shape, ...]) -> tuple[Part, ...]:
    out: list[Part] = []
    for shape in shapes:
        out += ANY_PARTS if isinstance(shape, Anything) else (shape,)
    return tuple(dict.fromkeys(out))


def slot(a: Arrays, i: int) -> Node:
    """The node of item `i`."""
    return a.prefix[i] if i < len(a.prefix) else a.rest


def node_of_name(o: Objects, name: str) -> Node:
    """The node of a member that is not listed."""
    for c in o.others:
        if texts.contains(c.names, name):
            return c.node
    return NOTHING_NODE


def leave_out(text: Text, strings: Iterable[str]) -> Text | None:
    """The strings of `text` but some; None when none are left for certain."""
    gone = frozenset(s for s in strings if texts.contains(text, s))
    if not gone:
        return text
    if text.only is not None:
        return replace(text, only=text.only - gone) if text.only - gone else None
    return replace(text, without=text.without | gone)


def _least_of(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _in_both_orders(a: list[str], b: list[str]) -> list[str]:
    """The names of both lists: the first keeps its order, and what only the second has goes before that name of the
    first which follows it there."""
    out, known = list(a), set(a)
    at = len(out)
    for name in reversed(b):
        if name in known:
            at = out.index(name)
        else:
            out.insert(at, name)
    return out


def _numbers(p: Numbers, q: Numbers) -> Numbers | None:
    if p.only is not None or q.only is not None:
        kept = [v for v in (p.only if p.only is not None else q.only or ()) if has_number(p, v) and has_number(q, v)]
        return Numbers(only=frozenset(kept)) if kept else None
    low, low_open = max(((s.low, s.low_open) for s in (p, q) if s.low is not None), default=(None, False))
    high, high_closed = min(((s.high, not s.high_open) for s in (p, q) if s.high is not None), default=(None, True))
    if low is not None and high is not None and (low > high or (low == high and (low_open or not high_closed))):
        return None
    return Numbers(
        low,
        high,
        low_open,
        not high_closed,
        tuple(dict.fromkeys(p.multiple_of + q.multiple_of)),
        tuple(dict.fromkeys(p.not_multiple_of + q.not_multiple_of)),
        p.without | q.without,
    )


def has_number(s: Numbers, v: Fraction) -> bool:
    """Whether the number is one of the shape."""
    if s.only is not None:
        return v in s.only
    return (
        (s.low is None or v > s.low or (v == s.low and not s.low_open))
        and (s.high is None or v < s.high or (v == s.high and not s.high_open))
        and all((v / m).denominator == 1 for m in s.multiple_of)
        and not any((v / m).denominator == 1 for m in s.not_multiple_of)
        and v not in s.without
    )


def _not_numbers(s: Numbers) -> list[Numbers]:
    if s.only is not None:
        return [Numbers(without=s.only)]
    out = []
    if s.low is not None:
        out.append(Numbers(high=s.low, high_open=not s.low_open))
    if s.high is not None:
        out.append(Numbers(low=s.high, low_open=not s.high_open))
    out += [Numbers(not_multiple_of=(m,)) for m in s.multiple_of]
    out += [Numbers(multiple_of=(m,)) for m in s.not_multiple_of]
    if s.without:
        out.append(Numbers(only=s.without))
    return out
