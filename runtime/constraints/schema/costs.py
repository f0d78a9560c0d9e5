"""The shortest value under each node: a least fixed point over the graph, computed as far as anybody asks.

A node costs what the cheapest of its shapes costs, a shape what its brackets and parts do. What a node that leads back
to itself costs is found by going round until nothing becomes cheaper; what has no finite value keeps none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from palmette.runtime.constraints.determinize import TooLarge
from palmette.runtime.constraints.schema import strings, texts
from palmette.runtime.constraints.schema.array_rules import ArrayRules
from palmette.runtime.constraints.schema.machine_graph import Graph, Part, Unsupported, Value
from palmette.runtime.constraints.schema.machine_numbers import finish, longest, plain, shrunk
from palmette.runtime.constraints.schema.machine_values import parse, quoted
from palmette.runtime.constraints.schema.object_rules import ObjectRules
from palmette.runtime.constraints.schema.shapes import (
    NOTHING_NODE,
    Arrays,
    Fixed,
    Node,
    Numbers,
    Objects,
    Strings,
    Text,
)
from palmette.runtime.constraints.schema.text_machine import MOST_BYTES, TextMachine, too_long

# A value under the node that is none of these.
Goal = tuple[Node, frozenset[Value]]
_FEW = 64
NO_VALUES: frozenset[Value] = frozenset()

# What may be looked at where nobody says how much.
_MOST_WORK = 200_000


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
        # Those that are being sought.
        self._open: set[Goal] = set()
        self._left = _MOST_WORK
        self._round: _Round | None = None
        # Requests under one schema ask from several threads; a fixed point is one thread's.
        self._lock = RLock()
        self._machines: dict[Text, TextMachine | None] = {}
        self._uniform: set[Any] = set()
        self._cofinite: set[Any] = set()
        self._rules: dict[Arrays | Objects, ArrayRules | ObjectRules] = {}

    # -- parts

    def machine(self, text: Text) -> TextMachine | None:
        """The strings byte by byte; None where there are none."""
        if text not in self._machines:
            try:
                self._machines[text] = machine = texts.machine(text)
                if not (text.all_of or text.none_of or text.only is not None):
                    if not text.without:
                        self._uniform.add(machine)
                    if text.least == 0 and text.most is None and len(text.without) < _FEW:
                        self._cofinite.add(machine)
            except ValueError:
                self._machines[text] = None
        return self._machines[text]

    def uniform(self, machine: Any) -> bool:
        """Whether the machine asks for a length and nothing else."""
        return machine in self._uniform

    def cofinite(self, machine: Any) -> bool:
        """Whether these are all strings but a few."""
        return machine in self._cofinite

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

    def begin(self, work: int) -> None:
        """From here on so many shapes and ways may be looked at."""
        self._left = work

    def spend(self) -> None:
        """TooLarge when that is used up: who asks for the next byte of a text does not wait for seconds."""
        self._left -= 1
        if self._left < 0:
            raise TooLarge("the budget of ways to an end")

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
        with self._lock:
            return self._sought(goal)

    def _sought(self, goal: Goal) -> bytes | None:
        """`shortest` of a goal that something is avoided in."""
        if goal in self._open:
            raise Unsupported("values that may not be those before them, within each other")
        self._open.add(goal)
        try:
            found = self._best(*goal)
        finally:
            self._open.discard(goal)
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
        with self._lock:
            return self._found(node)

    def _found(self, node: Node) -> bytes | None:
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
        if best is not None and len(best) > MOST_BYTES:
            raise too_long()
        return best

    def of_part(self, part: Any, avoided: frozenset[Value]) -> bytes | None:
        """A shortest value of a shape that is none of `avoided`."""
        self.spend()
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

    def growth(self, nodes: int) -> int:
        """How many bytes longer a shortest completion becomes at the most when a value under one of the first `nodes`
        nodes is begun, or goes on in another way than the shortest."""
        return max((self._growth(part) for node in range(nodes) for part in self.graph.parts(node)), default=0)

    def _growth(self, part: Part) -> int:
        if isinstance(part, Numbers):
            return longest(part)
        if isinstance(part, Fixed):
            return len(part.text)
        if isinstance(part, Strings):
            return self._text_growth(part.text)
        whole = self.of_part(part, NO_VALUES)
        if whole is None:
            return 0
        if isinstance(part, Arrays):
            items = [self._shortest(node) or b"" for node in (*part.prefix, part.rest)]
            return len(whole) + 2 * max(map(len, items)) + 2
        members = [6 * len(m.name) + len(self._shortest(m.node) or b"") for m in part.members]
        members += [self._text_growth(o.names) + len(self._shortest(o.node) or b"") for o in part.others]
        return len(whole) + max(members, default=0) + 4

    def _text_growth(self, text: Text) -> int:
        machine = self.machine(text)
        # A character may need an escape of six bytes.
        return 2 + (0 if machine is None else machine.longest() * (1 if machine in self._uniform else 6))

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
