"""What the conditions say that are no subschemas, and the shapes of values, arrays and objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.conditions import Conditions, Scope
from palmette.runtime.constraints.schema.names import meet, minus
from palmette.runtime.constraints.schema.patterns import Pattern
from palmette.runtime.constraints.schema.references import Site
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    ANYTHING_NODE,
    NOTHING_NODE,
    Arrays,
    Contains,
    Node,
    Numbers,
    Strings,
    Text,
)
from palmette.runtime.constraints.schema.unions import EMPTY, FULL, OPEN, Classes, Entries, Union, besides, only
from palmette.runtime.constraints.schema.values import ARRAY, NUMBER, OBJECT, STRING, kind

# What makes 2**n cases may be so many.
MOST_CASES = 8
_SITES = ("site", "local")


class Graph(Conditions):
    """Conditions and what they say. What a subschema says is in sites.py."""

    def say(self, what: tuple[Any, ...], holds: bool, pointer: str) -> Union:
        """The shapes of a condition, or of its opposite."""
        tag = what[0]
        if tag in _SITES:
            return self.say_site(tag, what[1], what[2], holds)
        if tag == "value":
            return self.is_value(what[1], pointer) if holds else self.is_not_value(what[1], pointer)
        if tag == "values":
            return self.is_one_of(what[1], pointer) if holds else self.is_none_of(what[1], pointer)
        if tag == "either":
            if holds:
                return self.join([self.expand(node) for node in what[1]])
            found = FULL
            for node in what[1]:
                found = self.meet(found, self.expand(self.opposite(node)))
            return found
        if tag == "has":
            shape = Entries({what[1]: ANYTHING_NODE}, {what[1]: None})
            return only(OBJECT, shape) if holds else besides(OBJECT, self.without([what[1]]))
        if tag == "others":
            names, patterns, node = what[1:]
            return self.others(names, patterns, node, holds)
        assert tag == "rest"
        count, node = what[1:]
        if holds:
            return self.array([ANYTHING_NODE] * count, node)
        return self.item_beyond([ANYTHING_NODE] * count, self.opposite(node), pointer)

    def say_site(self, tag: str, site: Site, scope: Scope, holds: bool) -> Union:
        raise NotImplementedError

    # -- values

    def is_value(self, value: Any, pointer: str) -> Union:
        slot = kind(value)
        if slot == STRING:
            return only(STRING, Strings(Text(only=frozenset((value,)))))
        if slot == NUMBER:
            return only(NUMBER, Numbers(only=frozenset((Fraction(value),))))
        if slot == ARRAY:
            nodes = tuple(self.value_node(v, pointer) for v in value)
            return only(ARRAY, Arrays(nodes, NOTHING_NODE, len(nodes), len(nodes)))
        if slot == OBJECT:
            members = {k: self.value_node(v, pointer) for k, v in value.items()}
            return only(OBJECT, Entries(members, dict.fromkeys(members), order=tuple(members), others=()))
        return only(slot, *FULL[slot])

    def is_not_value(self, value: Any, pointer: str) -> Union:
        slot = kind(value)
        shapes: list[Any] = []
        if slot == STRING:
            shapes = [Strings(Text(without=frozenset((value,))))]
        elif slot == NUMBER:
            shapes = [Numbers(without=frozenset((Fraction(value),)))]
        elif slot == ARRAY:
            if value:
                shapes.append(Arrays(most=len(value) - 1))
            shapes.append(Arrays(least=len(value) + 1))
            for i, v in enumerate(value):
                other = self.opposite(self.value_node(v, pointer))
                shapes.append(Arrays((*[ANYTHING_NODE] * i, other), ANYTHING_NODE, i + 1))
        elif slot == OBJECT:
            for name, v in value.items():
                shapes.append(self.without([name]))
                shapes.append(Entries({name: self.opposite(self.value_node(v, pointer))}, {name: None}))
            others = Text(without=frozenset(value)) if value else ANY_TEXT
            shapes.append(Entries({}, {}, some=((others, ANYTHING_NODE),)))
        return besides(slot, *shapes)

    def is_one_of(self, values: Sequence[Any], pointer: str) -> Union:
        strings = frozenset(v for v in values if isinstance(v, str))
        numbers = frozenset(Fraction(v) for v in values if kind(v) == NUMBER)
        parts = [only(STRING, Strings(Text(only=strings)))] if strings else []
        if numbers:
            parts.append(only(NUMBER, Numbers(only=numbers)))
        parts += [self.is_value(v, pointer) for v in values if kind(v) not in (STRING, NUMBER)]
        return self.join(parts) if parts else EMPTY

    def is_none_of(self, values: Sequence[Any], pointer: str) -> Union:
        strings = frozenset(v for v in values if isinstance(v, str))
        numbers = frozenset(Fraction(v) for v in values if kind(v) == NUMBER)
        found = besides(STRING, Strings(Text(without=strings))) if strings else FULL
        if numbers:
            found = self.meet(found, besides(NUMBER, Numbers(without=numbers)))
        for v in values:
            if kind(v) not in (STRING, NUMBER):
                found = self.meet(found, self.is_not_value(v, pointer))
        return found

    # -- arrays and objects

    def array(self, prefix: Sequence[Node], rest: Node, least: int = 0, most: int | None = None, **more: Any) -> Union:
        shape = self.arrays(prefix, rest, least, most, **more)
        return besides(ARRAY, shape) if shape is not None else besides(ARRAY)

    def item_beyond(self, prefix: Sequence[Node], node: Node, pointer: str) -> Union:
        """Arrays with an item of `node` behind the places of the prefix, which may be anything.

        `contains` counts everywhere, so the places before are told apart by whether they are of the node too."""
        count = len(prefix)
        if node == NOTHING_NODE:
            return EMPTY
        if count > MOST_CASES:
            self.faults.add(
                pointer, "the opposite of items behind so many others cannot be enforced", "say it another way"
            )
            return EMPTY
        shapes = []
        other = self.opposite(node)
        for bits in range(1 << count):
            places = [node if bits >> i & 1 else other for i in range(count)]
            if NOTHING_NODE not in places:
                shape = self.arrays(places, ANYTHING_NODE, count + 1, None, [Contains(node, bits.bit_count() + 1)])
                shapes += [shape] if shape is not None else []
        return only(ARRAY, *shapes)

    def without(self, names: Iterable[str]) -> Entries:
        return Entries(dict.fromkeys(names, NOTHING_NODE), {})

    def split(self, patterns: Sequence[tuple[Pattern, Node]], rest: Node) -> Classes:
        """The names that no property has, by what the patterns and, for those that match none, `rest` ask of them."""
        if not patterns:
            return OPEN if rest == ANYTHING_NODE else ((ANY_TEXT, rest),) if rest != NOTHING_NODE else ()
        found: list[tuple[Text, Node, bool]] = [(ANY_TEXT, ANYTHING_NODE, False)]
        for pattern, node in patterns:
            after: list[tuple[Text, Node, bool]] = []
            for text, so_far, matched in found:
                self.tick()
                both = self.both(so_far, node)
                if (inside := meet(text, pattern.narrow)) is not None:
                    after.append((inside, both, True))
                if pattern.wide is not pattern.narrow and (between := meet(text, pattern.wide)) is not None:
                    # Matched in one program's reading and not in another's: both must be content.
                    after += [(part, both, matched) for part in minus([between], pattern.narrow)]
                after += [(part, so_far, matched) for part in minus([text], pattern.wide)]
            found = after
        whole = [(text, node if matched else self.both(node, rest)) for text, node, matched in found]
        return tuple((text, node) for text, node in whole if node != NOTHING_NODE)

    def entries(
        self,
        named: Mapping[str, Node],
        patterns: Sequence[tuple[Pattern, Node]],
        rest: Node,
        required: Sequence[str] = (),
        least: int = 0,
        most: int | None = None,
    ) -> Entries | None:
        """Objects as properties, patternProperties, additionalProperties and required say."""
        members = dict(named)
        for pattern, node in patterns:
            for name in named:
                if texts.contains(pattern.wide, name):
                    members[name] = self.both(members[name], node)
        shape = Entries(members, dict.fromkeys(required), order=tuple(named), least=least, most=most)
        shape.others = self.split(patterns, rest)
        for name in required:
            if name not in members:
                members[name] = shape.other(name)
            if members[name] == NOTHING_NODE:
                return None
        return shape if most is None or most >= max(least, len(shape.required)) else None

    def others(self, names: frozenset[str], patterns: tuple[str, ...], node: Node, holds: bool) -> Union:
        """What unevaluatedProperties asks of the names that are left over."""
        read = [(self.pattern(p, ""), ANYTHING_NODE) for p in patterns]
        if holds:
            shape = self.entries(dict.fromkeys(sorted(names), ANYTHING_NODE), read, node)
            if shape is not None:
                shape.order = ()
            return besides(OBJECT, shape) if shape is not None else besides(OBJECT)
        return self.some_other(names, [p for p, _ in read], self.opposite(node))

    def some_other(self, names: Iterable[str], patterns: Sequence[Pattern], node: Node) -> Union:
        """Objects with a member of `node` that is neither named nor matched by a pattern."""
        if node == NOTHING_NODE:
            return EMPTY
        names = frozenset(names)
        pieces = [Text(without=names) if names else ANY_TEXT]
        for pattern in patterns:
            pieces = minus(pieces, pattern.wide)
        return only(OBJECT, *(Entries({}, {}, some=((piece, node),)) for piece in pieces))
