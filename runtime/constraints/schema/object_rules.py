"""How an object goes on: which members may come next, and the shortest way to its end.

Listed members come in the order in which they are listed, and behind them those whose names are in a class.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from palmette.runtime.constraints.schema import strings, texts
from palmette.runtime.constraints.schema.best_first import shortest_way
from palmette.runtime.constraints.schema.machine_graph import Unsupported, Value
from palmette.runtime.constraints.schema.machine_values import parse, quoted
from palmette.runtime.constraints.schema.shapes import NOTHING_NODE, Node, Objects, Text

if TYPE_CHECKING:
    from palmette.runtime.constraints.schema.costs import Costs, Goal

_MOST_SOME = 4
_SCARCE = 32  # names
_NONE: frozenset[Value] = frozenset()


class ObjectProgress(NamedTuple):
    """at: the listed member that may come next. size: members so far, counted only as far as it matters. pending:
    which of `some` have no member yet. used: names of classes so far. apart: objects that this one must not be, as the
    members that are left of those that it has been up to here."""

    at: int
    size: int
    pending: frozenset[int]
    used: frozenset[str]
    apart: frozenset[frozenset[tuple[str, Value]]]


class MemberChoice(NamedTuple):
    """What the next member may be. name: the listed one's, or None for one of `names` that is not in `but`; where the
    object is then, but for what a name of a class and the value decide."""

    name: str | None
    names: Text | None
    but: frozenset[str]
    goal: Goal
    then: ObjectProgress


class ObjectRules:
    """One shape of objects. Compared by identity; `costs` hands out one for each shape."""

    def __init__(self, shape: Objects, costs: Costs) -> None:
        if len(shape.some) > _MOST_SOME:
            raise Unsupported(f"more than {_MOST_SOME} demands on some member of one object")
        self.shape = shape
        self._costs = costs
        self._tails: dict[tuple[ObjectProgress, bool], bytes | None] = {}
        self._open: dict[ObjectProgress, tuple[MemberChoice, ...]] = {}
        # left[i]: how many of the members from i on are required.
        left = [0]
        for member in reversed(shape.members):
            left.append(left[-1] + member.required)
        self._left = left[::-1]

    def start(self, avoided: frozenset[Value]) -> ObjectProgress:
        """avoided: values that the object must not be."""
        apart = frozenset(v[1] for v in avoided if isinstance(v, tuple) and v[0] == "{")
        return ObjectProgress(0, 0, frozenset(range(len(self.shape.some))), frozenset(), apart)

    def needs_values(self, p: ObjectProgress) -> bool:
        """Whether where the object goes on depends on a member's value."""
        return bool(p.apart)

    def can_end(self, p: ObjectProgress) -> bool:
        return self._left[p.at] == 0 and p.size >= self.shape.least and not p.pending and frozenset() not in p.apart

    def named(self, choice: MemberChoice, name: str) -> MemberChoice:
        """The choice once its name is written."""
        if choice.name is not None:
            return choice
        then = choice.then
        if self._costs.distinct:
            then = then._replace(used=then.used | {name})
        return choice._replace(name=name, names=None, but=frozenset(), then=then)

    def after(self, choice: MemberChoice, value: Value) -> ObjectProgress:
        """Where the object is behind a member with this value; None for one that nobody needs to know."""
        then = choice.then
        if value is None or not then.apart:
            return then
        member = (choice.name, value)
        return then._replace(apart=frozenset(rest - {member} for rest in then.apart if member in rest))

    def choices(self, p: ObjectProgress) -> Iterator[MemberChoice]:
        """All that the next member may be, as far as it alone tells."""
        shape = self.shape
        if shape.most is not None and p.size >= shape.most:
            return
        count = p.size + 1 if shape.most is not None or p.size < shape.least else p.size
        for i in range(p.at, len(shape.members)):
            member = shape.members[i]
            if member.node != NOTHING_NODE:
                for inside, pending in self._serving(p.pending, member.node, member.name):
                    then = ObjectProgress(i + 1, count, pending, p.used, p.apart)
                    yield from self._apart(p, member.name, inside, then)
            if member.required:
                return
        for others in shape.others:
            if others.node != NOTHING_NODE:
                yield from self._of_class(p, others.names, others.node, count)

    def _of_class(self, p: ObjectProgress, names: Text, node: Node, count: int) -> Iterator[MemberChoice]:
        graph = self._costs.graph
        end = len(self.shape.members)
        known = frozenset(name for rest in p.apart for name, _ in rest)
        for served in _subsets(p.pending):
            inside, written = node, names
            for i in served:
                both = texts.intersect(written, self.shape.some[i].names)
                if both is None or texts.empty(both):
                    break
                written, inside = both, graph.meet(inside, self.shape.some[i].node)
            else:
                then = ObjectProgress(end, count, p.pending.difference(served), p.used, p.apart)
                for name in known - p.used:
                    if texts.contains(written, name):
                        used = then.used | {name} if self._costs.distinct else then.used
                        yield from self._apart(p, name, inside, then._replace(used=used))
                free = then._replace(apart=frozenset())
                yield MemberChoice(None, written, p.used | known, (inside, _NONE), free)

    def _apart(self, p: ObjectProgress, name: str, node: Node, then: ObjectProgress) -> Iterator[MemberChoice]:
        """The ways in which the member `name` may make the object another than those of `apart`, or not yet."""
        values = frozenset(value for rest in p.apart for key, value in rest if key == name)
        graph = self._costs.graph
        yield MemberChoice(name, None, frozenset(), (node, values), then._replace(apart=frozenset()))
        for value in values:
            yield MemberChoice(name, None, frozenset(), (graph.meet(node, graph.only(value)), _NONE), then)

    def _serving(self, pending: frozenset[int], node: Node, name: str) -> Iterator[tuple[Node, frozenset[int]]]:
        """The node of a member when it serves some of `pending`, and what is pending then."""
        able = frozenset(i for i in pending if texts.contains(self.shape.some[i].names, name))
        for served in _subsets(able):
            inside = node
            for i in served:
                inside = self._costs.graph.meet(inside, self.shape.some[i].node)
            if inside != NOTHING_NODE:
                yield inside, pending.difference(served)

    def open(self, p: ObjectProgress) -> tuple[MemberChoice, ...]:
        """The choices after which the object can be ended, those of classes narrowed to the names after which it
        can."""
        found = self._open.get(p)
        if found is None:
            found = tuple(c for choice in self.choices(p) if (c := self._narrowed(p, choice)) is not None)
            self._open[p] = found
        return found

    def _narrowed(self, p: ObjectProgress, choice: MemberChoice) -> MemberChoice | None:
        if self._costs.shortest(choice.goal) is None:
            return None
        if choice.names is not None:
            bad = [
                name
                for name in self._scarce(p)
                if name not in choice.but and texts.contains(choice.names, name) and not self._opens(choice, name)
            ]
            choice = choice._replace(but=choice.but | frozenset(bad))
            name = self.shortest_name(choice)
            return choice if name is not None and self._opens(choice, name) else None
        return choice if self.tail(self._then(choice), False) is not None else None

    def _opens(self, choice: MemberChoice, name: str) -> bool:
        return self.tail(self._then(self.named(choice, name)), False) is not None

    def _then(self, choice: MemberChoice) -> ObjectProgress:
        """Where the object is behind a value that the goal allows: it allows one value, or none that `apart` knows."""
        then = choice.then
        if not then.apart:
            return then
        text = self._costs.shortest(choice.goal)
        assert text is not None
        return self.after(choice, parse(text))

    def _scarce(self, p: ObjectProgress) -> set[str]:
        """The names that pending demands may need, where these have few."""
        out: set[str] = set()
        if self._costs.distinct:
            for i in p.pending:
                out.update(texts.finite(self.shape.some[i].names, _SCARCE) or ())
        return out

    def shortest_name(self, choice: MemberChoice) -> str | None:
        """The shortest name of a class that may come; None when all are taken."""
        assert choice.names is not None
        machine = self._costs.machine(choice.names)
        if machine is None:
            return None
        out = frozenset(name.encode("utf-8", "surrogatepass") for name in choice.but)
        found = strings.shortest(machine, machine.start, out)
        return None if found is None else found.decode("utf-8", "surrogatepass")

    # -- the way to the end

    def tail(self, p: ObjectProgress, first: bool) -> bytes | None:
        """The shortest rest, its bracket included; None where there is none. first: no member stands before it."""
        key = (p, first)
        if key not in self._tails or not self._costs.settled:
            straight = not p.pending and not p.apart and p.size + self._left[p.at] >= self.shape.least
            found = self._straight(p, first) if straight else self._searched(p, first)
            if not self._costs.settled:
                return found
            self._tails[key] = found
        return self._tails[key]

    def _straight(self, p: ObjectProgress, first: bool) -> bytes | None:
        """Nothing but the required members."""
        out: list[bytes] = []
        for member in self.shape.members[p.at :] if self._left[p.at] else ():
            if member.required:
                value = self._costs.shortest((member.node, _NONE))
                if value is None:
                    return None
                out.append(_member(member.name, value))
        if self.shape.most is not None and p.size + len(out) > self.shape.most:
            return None
        comma = b"" if first or not out else b","
        return comma + b",".join(out) + b"}"

    def _searched(self, p: ObjectProgress, first: bool) -> bytes | None:
        text = shortest_way(p, self.can_end, self._ways, self._costs.spend)
        return None if text is None else (text[1:] if first else text) + b"}"

    def _ways(self, at: ObjectProgress) -> Iterator[tuple[bytes, ObjectProgress]]:
        for choice in self.choices(at):
            then = choice.then
            nearer = then.at > at.at or then.size > at.size or then.pending != at.pending or at.apart
            if not nearer:
                continue
            for name in self._names(at, choice):
                value = self._costs.shortest(choice.goal)
                if value is None:
                    break
                yield _member(name, value), self._then(self.named(choice, name))

    def _names(self, p: ObjectProgress, choice: MemberChoice) -> Iterator[str]:
        """The name of a choice: of a class the shortest, and where that may be wrong, another."""
        if choice.name is not None:
            yield choice.name
            return
        name = self.shortest_name(choice)
        if name is None:
            return
        yield name
        scarce = self._scarce(p)
        if name in scarce:
            other = self.shortest_name(choice._replace(but=choice.but | scarce))
            if other is not None:
                yield other


def _member(name: str, value: bytes) -> bytes:
    return b'"' + quoted(name.encode("utf-8", "surrogatepass")) + b'":' + value


def _subsets(of: frozenset[int]) -> Iterator[tuple[int, ...]]:
    every = sorted(of)
    for size in range(len(every) + 1):
        yield from combinations(every, size)
