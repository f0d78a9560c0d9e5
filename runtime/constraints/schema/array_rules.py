"""How an array goes on: which items may come next, and the shortest way to its end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from palmette.runtime.constraints.schema.best_first import shortest_way
from palmette.runtime.constraints.schema.machine_graph import Unsupported, Value, slot
from palmette.runtime.constraints.schema.machine_values import dump, parse
from palmette.runtime.constraints.schema.shapes import NOTHING_NODE, Arrays, Node
from palmette.runtime.constraints.schema.text_machine import MOST_BYTES, too_long

if TYPE_CHECKING:
    from palmette.runtime.constraints.schema.costs import Costs, Goal

_MOST_CONTAINS = 4
_NONE: frozenset[Value] = frozenset()


class ArrayProgress(NamedTuple):
    """length: items so far, counted only as far as it matters. counts: for each `contains`. seen: the items, where they
    must differ or some must be equal. repeated: two were. apart: arrays that this one must not be, as what is left of
    those that it has been up to here."""

    length: int
    counts: tuple[int, ...]
    seen: frozenset[Value]
    repeated: bool
    apart: frozenset[tuple[Value, ...]]


class ItemChoice(NamedTuple):
    """What the next item may be under, and where the array is then but for what the item's value decides."""

    goal: Goal
    then: ArrayProgress


class ArrayRules:
    """One shape of arrays. Compared by identity; `costs` hands out one for each shape."""

    def __init__(self, shape: Arrays, costs: Costs) -> None:
        if len(shape.contains) > _MOST_CONTAINS:
            raise Unsupported(f"more than {_MOST_CONTAINS} contains on one array")
        if shape.repeats and shape.unique:
            raise Unsupported("an array of which two items are equal and no two are")
        self.shape = shape
        self._costs = costs
        self._tails: dict[tuple[ArrayProgress, bool], bytes | None] = {}
        self._open: dict[ArrayProgress, tuple[ItemChoice, ...]] = {}
        self._cap = max(len(shape.prefix), shape.least)
        self._simple = not (shape.contains or shape.unique or shape.repeats)

    def start(self, avoided: frozenset[Value]) -> ArrayProgress:
        """avoided: values that the array must not be."""
        apart = frozenset(v[1] for v in avoided if isinstance(v, tuple) and v[0] == "[")
        return ArrayProgress(0, (0,) * len(self.shape.contains), _NONE, False, apart)

    def needs_values(self, p: ArrayProgress) -> bool:
        """Whether where the array goes on depends on an item's value."""
        return self.shape.unique or (self.shape.repeats and not p.repeated) or bool(p.apart)

    def can_end(self, p: ArrayProgress) -> bool:
        shape = self.shape
        return (
            p.length >= shape.least
            and (p.repeated or not shape.repeats)
            and all(n >= c.least for n, c in zip(p.counts, shape.contains, strict=True))
            and () not in p.apart
        )

    def after(self, choice: ItemChoice, value: Value) -> ArrayProgress:
        """Where the array is once the item has this value; None for one that nobody needs to know."""
        then = choice.then
        if value is None:
            return then
        if self.shape.unique:
            then = then._replace(seen=then.seen | {value})
        elif self.shape.repeats and not then.repeated:
            equal = value in then.seen
            then = then._replace(repeated=equal, seen=_NONE if equal else then.seen | {value})
        if then.apart:
            then = then._replace(apart=frozenset(rest[1:] for rest in then.apart if rest and rest[0] == value))
        return then

    def choices(self, p: ArrayProgress) -> Iterator[ItemChoice]:
        """All that the next item may be under, as far as the item alone tells."""
        shape, graph = self.shape, self._costs.graph
        if shape.most is not None and p.length >= shape.most:
            return
        node = slot(shape, p.length)
        if node == NOTHING_NODE:
            return
        length = p.length + 1 if shape.most is not None or p.length < self._cap else p.length
        heads = frozenset(rest[0] for rest in p.apart if rest)
        for inside, counts in self._counted(p.counts, node):
            then = p._replace(length=length, counts=counts)
            # One choice for all values that are new here, and for each that is not, where it may come, one.
            yield ItemChoice((inside, p.seen | heads), then)
            for value in heads - p.seen if shape.unique else heads | p.seen:
                yield ItemChoice((graph.meet(inside, graph.only(value)), _NONE), then)

    def _counted(self, counts: tuple[int, ...], node: Node) -> Iterator[tuple[Node, tuple[int, ...]]]:
        """For each way in which `contains` may count the item: the node then, and the counts."""
        graph = self._costs.graph
        ways: list[list[tuple[Node | None, int]]] = []
        for n, c in zip(counts, self.shape.contains, strict=True):
            if c.most is None:
                # Not to count an item that counts does no harm, so nothing is asked of one that is not needed.
                ways.append([(None, n)] if n >= c.least else [(c.node, n + 1), (None, n)])
            else:
                ways.append([(c.node, n + 1)] if n < c.most else [])
                ways[-1].append((graph.complement(c.node), n))
        for way in product(*ways):
            inside = node
            for part, _ in way:
                if part is not None:
                    inside = graph.meet(inside, part)
            if inside != NOTHING_NODE:
                yield inside, tuple(n for _, n in way)

    def open(self, p: ArrayProgress) -> tuple[ItemChoice, ...]:
        """The choices after which the array can be ended, each narrowed to the values after which it can."""
        found = self._open.get(p)
        if found is None:
            found = tuple(c for choice in self.choices(p) if (c := self._narrowed(p, choice)) is not None)
            self._open[p] = found
        return found

    def _narrowed(self, p: ArrayProgress, choice: ItemChoice) -> ItemChoice | None:
        if self.shape.unique:
            bad = frozenset(v for v in self._scarce(p) if self.tail(self.after(choice, v), False) is None)
            choice = choice._replace(goal=(choice.goal[0], choice.goal[1] | bad))
        text = self._costs.shortest(choice.goal)
        if text is None:
            return None
        value = parse(text) if self.needs_values(p) else None
        return choice if self.tail(self.after(choice, value), False) is not None else None

    def _scarce(self, p: ArrayProgress) -> set[Value]:
        """The values of items that must come later, where those have so few that this item could take one away."""
        shape = self.shape
        later = {slot(shape, i) for i in range(p.length + 1, shape.least)}
        later |= {c.node for n, c in zip(p.counts, shape.contains, strict=True) if n < c.least}
        if later <= {slot(shape, p.length)} and not shape.contains:
            return set()  # all are alike, so it does not matter which goes first
        limit = max(0, shape.least - p.length) + len(p.seen) + sum(c.least for c in shape.contains) + 1
        out: set[Value] = set()
        for node in later:
            few = self._costs.several(node, limit)
            if len(few) < limit:
                out.update(few)
        return out

    def evenhanded(self, p: ArrayProgress) -> bool:
        """Whether the next item's value does not matter, as long as it is one that may come."""
        return not p.apart and (p.repeated or not self.shape.repeats) and not self._scarce(p)

    # -- the way to the end

    def tail(self, p: ArrayProgress, first: bool) -> bytes | None:
        """The shortest rest, its bracket included; None where there is none. first: no item stands before it."""
        key = (p, first)
        if key not in self._tails or not self._costs.settled:
            found = self._straight(p, first) if self._simple and not p.apart else self._searched(p, first)
            if not self._costs.settled:
                return found
            self._tails[key] = found
        return self._tails[key]

    def _straight(self, p: ArrayProgress, first: bool) -> bytes | None:
        if self.shape.most is not None and self.shape.most < self.shape.least:
            return None
        items: list[bytes] = []
        i = p.length
        while i < self.shape.least:
            text = self._costs.shortest((slot(self.shape, i), _NONE))
            if text is None:
                return None
            count = 1 if i < len(self.shape.prefix) else self.shape.least - i
            if count * (len(text) + 1) > MOST_BYTES:
                raise too_long()
            items += [text] * count
            i += count
        comma = b"" if first or not items else b","
        return comma + b",".join(items) + b"]"

    def _searched(self, p: ArrayProgress, first: bool) -> bytes | None:
        text = shortest_way(p, self.can_end, self._ways, self._costs.spend)
        return None if text is None else (text[1:] if first else text) + b"]"

    def _ways(self, at: ArrayProgress) -> Iterator[tuple[bytes, ArrayProgress]]:
        pending = bool(at.apart) or (self.shape.repeats and not at.repeated)
        for choice in self.choices(at):
            if choice.then == at and not pending:
                continue  # one more item that brings nothing nearer
            for item, value in self._candidates(at, choice):
                then = self.after(choice, value)
                if then != at:
                    yield item, then

    def _candidates(self, p: ArrayProgress, choice: ItemChoice) -> Iterator[tuple[bytes, Value]]:
        """Items for a choice: the shortest, and where it may be wrong to take that, others."""
        text = self._costs.shortest(choice.goal)
        if text is None:
            return
        if not self.needs_values(p):
            yield text, None
            return
        yield text, parse(text)
        if not self.shape.unique:
            return
        node, avoided = choice.goal
        others = self._scarce(p)
        if others:
            limit = len(others) + 1
            taken = avoided | {parse(text)}
            for _ in range(limit):
                text = self._costs.shortest((node, taken))
                if text is None:
                    return
                value = parse(text)
                yield dump(value), value
                taken |= {value}
