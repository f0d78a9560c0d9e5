"""The shortest value under each node: a least fixed point over the graph, computed as far as anybody asks.

A node costs what the cheapest of its shapes costs, a shape what its brackets and parts do. What a node that leads back
to itself costs is found by going round until nothing becomes cheaper; what has no finite value keeps none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from palmette.runtime.constraints.schema import strings, texts
from palmette.runtime.constraints.schema.array_rules import ArrayRules
from palmette.runtime.constraints.schema.machine_graph import Graph, Value
from palmette.runtime.constraints.schema.machine_numbers import finish, plain, shrunk
from palmette.runtime.constraints.schema.object_rules import ObjectRules
from palmette.runtime.constraints.schema.shapes import NOTHING_NODE, Arrays, Fixed, Node, Numbers, Objects, Text
from palmette.runtime.constraints.schema.text_machine import TextMachine
from palmette.runtime.constraints.schema.machine_values import parse, quoted

# A value under the node that is none of these.
Goal = tuple[Node, frozenset[Value]]
NO_VALUES: frozenset[Value] = frozenset()


@dataclass(slots=True)
class _Round:
    """A fixed point that is being computed: what is known, who asked for it, whom to ask again."""

    known: dict[Node, bytes | None] = field(default_factory=dict)
    askers: dict[Node, set[Node]] = field(default_factory=dict)
    again: list[Node] = field(default_factory=list)
    asking: Node = NOTHING_NODE


class Costs:
    """Shortest values and, through them, the rules of arrays and objects. distinct: no name may come twice."""

    def __init__(self, graph: Graph, *, distinct: bool = True) -> None:
        self.graph = graph
        self.distinct = distinct
        self._settled: dict[Node, bytes | None] = {NOTHING_NODE: None}
        self._goals: dict[Goal, bytes | None] = {}
        self._round: _Round | None = None
        self._machines: dict[Text, TextMachine | None] = {}
        self._rules: dict[Arrays | Objects, ArrayRules | ObjectRules] = {}

    # -- parts

    def machine(self, text: Text) -> TextMachine | None:
        """The strings byte by byte; None where there are none."""
        if text not in self._machines:
            try:
                self._machines[text] = texts.machine(text)
            except ValueError:
                self._machines[text] = None
        return self._machines[text]

    def arrays(self, shape: Arrays) -> ArrayRules:
        found = self._rules.get(shape)
        if found is None:
            found = self._rules[shape] = ArrayRules(shape, self)
        assert isinstance(found, ArrayRules)
        return found

    def objects(self, shape: Objects) -> ObjectRules:
        found = self._rules.get(shape)
        if found is None:
            found = self._rules[shape] = ObjectRules(shape, self)
        assert isinstance(found, ObjectRules)
        return found

    @property
    def settled(self) -> bool:
        """Whether answers are final; inside a fixed point they may yet become cheaper, and nobody may keep them."""
        return self._round is None

    # -- shortest values

    def shortest(self, goal: Goal) -> bytes | None:
        """A shortest value under the node that is none of the goal's. None where there is none."""
        node, avoided = goal
        text = self._shortest(node)
        if text is None or not avoided or parse(text) not in avoided:
            return text
        if goal in self._goals:
            return self._goals[goal]
        found = self._best(node, avoided)
        if self.settled:
            self._goals[goal] = found
        return found

    def several(self, node: Node, limit: int) -> list[Value]:
        """The shortest values under a node, at most `limit` of them: fewer where there are no more."""
        found: list[Value] = []
        while len(found) < limit and (text := self.shortest((node, frozenset(found)))) is not None:
            found.append(parse(text))
        return found

    def _shortest(self, node: Node) -> bytes | None:
        if node in self._settled:
            return self._settled[node]
        if self._round is not None:
            turn = self._round
            turn.askers.setdefault(node, set()).add(turn.asking)
            if node not in turn.known:
                turn.known[node] = None
                turn.again.append(node)
            return turn.known[node]
        turn = self._round = _Round({node: None}, {}, [node])
        try:
            while turn.again:
                turn.asking = now = turn.again.pop()
                waiting = len(turn.again)
                found = self._best(now, NO_VALUES)
                if len(turn.again) > waiting and found is None:
                    # It asked for what nobody knows yet: that first.
                    turn.again.insert(waiting, now)
                before = turn.known[now]
                if found is not None and (before is None or len(found) < len(before)):
                    turn.known[now] = found
                    turn.again += [a for a in turn.askers.get(now, ()) if a not in turn.again]
        finally:
            self._round = None
        self._settled.update(turn.known)
        return self._settled[node]

    def _best(self, node: Node, avoided: frozenset[Value]) -> bytes | None:
        best: bytes | None = None
        for part in self.graph.parts(node):
            text = self.of_part(part, avoided)
            if text is not None and (best is None or len(text) < len(best)):
                best = text
        return best

    def of_part(self, part: Any, avoided: frozenset[Value]) -> bytes | None:
        """A shortest value of a shape that is none of `avoided`."""
        if isinstance(part, Fixed):
            return None if (part.text,) in avoided else part.text.encode()
        if isinstance(part, Numbers):
            return self._number(part, avoided)
        if isinstance(part, Arrays):
            rules = self.arrays(part)
            return _behind(b"[", rules.tail(rules.start(avoided), True))
        if isinstance(part, Objects):
            members = self.objects(part)
            return _behind(b"{", members.tail(members.start(avoided), True))
        machine = self.machine(part.text)
        if machine is None:
            return None
        out = frozenset(v.encode("utf-8", "surrogatepass") for v in avoided if isinstance(v, str))
        content = strings.shortest(machine, machine.start, out)
        return None if content is None else b'"' + quoted(content) + b'"'

    def _number(self, part: Numbers, avoided: frozenset[Value]) -> bytes | None:
        if plain(part) and not avoided:
            return b"0"
        left = shrunk(part, numbers_of(avoided))
        digits = None if left is None else finish(left, "")
        return None if digits is None else digits.encode()


def numbers_of(values: frozenset[Value]) -> frozenset[Any]:
    return frozenset(v for v in values if not isinstance(v, str | tuple))


def _behind(bracket: bytes, tail: bytes | None) -> bytes | None:
    return None if tail is None else bracket + tail
