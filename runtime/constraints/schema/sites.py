"""What a subschema says of a value, keyword by keyword, as unions of shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from palmette.runtime.constraints.schema.conditions import Scope
from palmette.runtime.constraints.schema.keywords import words
from palmette.runtime.constraints.schema.names import classes
from palmette.runtime.constraints.schema.opposites import Opposites
from palmette.runtime.constraints.schema.parts import ARRAY_WORDS, ONE, SLOTS
from palmette.runtime.constraints.schema.references import Site
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    ANYTHING_NODE,
    Node,
    Numbers,
    Strings,
    Text,
)
from palmette.runtime.constraints.schema.unions import EMPTY, FULL, Entries, Slot, Union, besides, only, size
from palmette.runtime.constraints.schema.values import ARRAY, NUMBER, OBJECT, STRING

_NUMBER_WORDS = words("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf")
_STRING_WORDS = words("minLength maxLength pattern format")
_OBJECT_WORDS = words("properties patternProperties additionalProperties required minProperties maxProperties")
_TYPE_WORDS = _NUMBER_WORDS | _STRING_WORDS | ARRAY_WORDS | _OBJECT_WORDS
_RULE_WORDS = words("const enum propertyNames dependentRequired dependencies not")
_IN_PLACE_WORDS = words("$ref $dynamicRef $recursiveRef allOf anyOf oneOf if dependentSchemas dependencies")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")


def _types(names: list[str]) -> Union:
    slots = [shape if any(i in SLOTS.get(n, ()) for n in names) else () for i, shape in enumerate(FULL)]
    if "integer" in names and "number" not in names:
        slots[NUMBER] = (Numbers(multiple_of=ONE),)
    return tuple(slots)  # type: ignore[return-value]


_OF_TYPE = {name: _types([name]) for name in (*SLOTS, "integer")}


class Reader(Opposites):
    """The graph of a schema's subschemas."""

    def say_site(self, tag: str, site: Site, scope: Scope, holds: bool) -> Union:
        view = self.view(site)
        keys = view.keys()
        if tag == "site" and not keys.isdisjoint(_UNEVALUATED):
            return self.with_leftovers(site, scope, holds)
        if not holds:
            return self.join([EMPTY, *self.failures(view, site, scope, in_place=tag == "site")])
        found = self._by_type(view, site, scope)
        if not keys.isdisjoint(_RULE_WORDS):
            for part in self.rules(view, site, scope):
                found = self.meet(found, part)
        if tag == "site" and not keys.isdisjoint(_IN_PLACE_WORDS):
            for part in self.in_place(view, site, scope):
                found = self.meet(found, part)
        return found

    # -- what holds

    def _by_type(self, view: dict[str, Any], site: Site, scope: Scope) -> Union:
        """What the keywords say that speak of one type each."""
        keys = view.keys()
        union = self._types(view["type"]) if "type" in view else FULL
        if keys.isdisjoint(_TYPE_WORDS):
            return union
        slots = list(union)
        if slots[NUMBER] and not keys.isdisjoint(_NUMBER_WORDS):
            meets = [self.meet(only(NUMBER, *slots[NUMBER]), only(NUMBER, n)) for n in self._numbers_of(view)]
            slots[NUMBER] = meets[0][NUMBER]
            for more in meets[1:]:
                slots[NUMBER] = self.meet(only(NUMBER, *slots[NUMBER]), more)[NUMBER]
        if slots[STRING] and not keys.isdisjoint(_STRING_WORDS):
            shape: Strings | None = Strings(Text(least=view.get("minLength", 0), most=view.get("maxLength")))
            if shape.text.most is not None and shape.text.least > shape.text.most:  # type: ignore[union-attr]
                shape = None
            for pattern in self._patterns_of(view, site):
                shape = self._strings(shape, Strings(pattern.narrow)) if shape is not None else None
            slots[STRING] = (shape,) if shape is not None else ()
        if slots[ARRAY] and not keys.isdisjoint(ARRAY_WORDS):
            prefix, rest = self._items(view, site, scope)
            array = self.arrays(
                prefix,
                rest,
                view.get("minItems", 0),
                view.get("maxItems"),
                self._contains(view, site, scope),
                unique=view.get("uniqueItems", False),
            )
            slots[ARRAY] = (array,) if array is not None else ()
        if slots[OBJECT] and not keys.isdisjoint(_OBJECT_WORDS):
            entries = self.entries(
                self._named(view, site, scope),
                [(pattern, node) for _, pattern, node in self._by_pattern(view, site, scope)],
                self._below(view, site, scope, "additionalProperties", ANYTHING_NODE),
                view.get("required", ()),
                view.get("minProperties", 0),
                view.get("maxProperties"),
            )
            slots[OBJECT] = (entries,) if entries is not None else ()
        return tuple(slots)  # type: ignore[return-value]

    def _types(self, said: str | list[str]) -> Union:
        if isinstance(said, str):
            return _OF_TYPE.get(said, EMPTY)
        return _types(said)

    def rules(self, view: dict[str, Any], site: Site, scope: Scope) -> Iterator[Union]:
        """What must hold besides, without subschemas of the same value."""
        if "const" in view:
            yield self.is_value(view["const"], f"{site.pointer}/const")
        if "enum" in view:
            yield self.is_one_of(view["enum"], f"{site.pointer}/enum")
        if "propertyNames" in view:
            node = self._below(view, site, scope, "propertyNames", ANYTHING_NODE)
            if node != ANYTHING_NODE:
                allowed = classes(s.text for s in self.expand(node)[STRING])
                if not any(text is ANY_TEXT for text in allowed):
                    yield besides(OBJECT, Entries({}, {}, others=tuple((t, ANYTHING_NODE) for t in allowed)))
        for name, needed in view.get("dependentRequired", {}).items():
            yield self._needs(name, needed)
        for name, needed in view.get("dependencies", {}).items():
            if isinstance(needed, str | list):
                yield self._needs(name, [needed] if isinstance(needed, str) else needed)
        if "not" in view:
            yield self.expand(self.opposite(self._below(view, site, scope, "not", ANYTHING_NODE)))

    def _needs(self, name: str, needed: list[str]) -> Union:
        if all(n == name for n in needed):
            return FULL
        names = [name, *needed]
        return besides(OBJECT, self.without([name]), Entries(dict.fromkeys(names, ANYTHING_NODE), dict.fromkeys(names)))

    def in_place(self, view: dict[str, Any], site: Site, scope: Scope) -> Iterator[Union]:
        """What the subschemas of the same value say."""
        for target in self.targets(view, site, scope):
            yield self.expand(target)
        for i, value in enumerate(view.get("allOf", [])):
            yield self.expand(self.child(site, scope, f"allOf/{i}", value))
        if "anyOf" in view:
            yield self.join([EMPTY, *(self.expand(node) for node in self.branches(view, site, scope, "anyOf"))])
        if "oneOf" in view:
            yield self._exactly_one(self.branches(view, site, scope, "oneOf"))
        if "if" in view:
            test = self._below(view, site, scope, "if", ANYTHING_NODE)
            then = self._below(view, site, scope, "then", ANYTHING_NODE)
            other = self._below(view, site, scope, "else", ANYTHING_NODE)
            if then != ANYTHING_NODE or other != ANYTHING_NODE:
                yield self.join(
                    [self.expand(self.both(test, then)), self.expand(self.both(self.opposite(test), other))]
                )
        for name, node in self.cases(view, site, scope):
            has = self.has(name, site.pointer)
            yield self.join([self.expand(self.opposite(has)), self.meet(self.expand(has), self.expand(node))])

    def _exactly_one(self, nodes: list[Node]) -> Union:
        """Each branch without those that it may share a value with, type by type."""
        unions = [self.expand(node) for node in nodes]
        parts = [list(union) for union in unions]
        for slot in range(7):
            full = [i for i, union in enumerate(unions) if union[slot] and union[slot][0] is FULL[slot][0]]
            there = [i for i, union in enumerate(unions) if union[slot]]
            if not full:
                overlapping = self._overlaps(slot, unions, there)
            else:  # what is a value of one such branch is none of the others' alone
                overlapping = {full[0]: [i for i in there if i != full[0]]} if len(full) == 1 else {}
                for i in there:
                    if [i] != full:
                        parts[i][slot] = ()
            for i, others in overlapping.items():
                node = nodes[i]
                for j in others:
                    node = self.both(node, self.opposite(nodes[j]))
                parts[i][slot] = self.expand(node)[slot]
        return self.join([EMPTY, *(tuple(part) for part in parts)])  # type: ignore[list-item]

    def _overlaps(self, slot: int, unions: list[Union], there: list[int]) -> dict[int, list[int]]:
        """For each of `there` the others with which it may share a value of this type."""
        found: dict[int, list[int]] = {}
        if slot == OBJECT and self._tagged([unions[i][OBJECT] for i in there]):
            return found
        for i in there:
            for j in there:
                if j < i and not self.slots_apart(slot, unions[i][slot], unions[j][slot]):
                    found.setdefault(i, []).append(j)
                    found.setdefault(j, []).append(i)
        return found

    def _tagged(self, parts: list[Slot]) -> bool:
        """Whether all are objects told apart by one property, a string of its own in each."""
        if len(parts) < 2 or any(len(part) != 1 for part in parts):
            return False
        shapes = [part[0] for part in parts]
        for name in shapes[0].required:
            values: set[str] = set()
            for shape in shapes:
                if name not in shape.required or not self.is_plain(shape.members[name]):
                    break
                tag = self.expand(shape.members[name])
                own = tag[STRING][0].text.only if size(tag) == 1 == len(tag[STRING]) else None
                if own is None or not values.isdisjoint(own):
                    break
                values |= own
            else:
                return True
        return False
