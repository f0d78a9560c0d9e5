"""What a subschema says of a value, keyword by keyword, as unions of shapes; and what its opposite says."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from palmette.runtime.constraints.schema.conditions import Scope
from palmette.runtime.constraints.schema.document import escape
from palmette.runtime.constraints.schema.evaluated import Ways
from palmette.runtime.constraints.schema.keywords import words
from palmette.runtime.constraints.schema.names import classes, outside
from palmette.runtime.constraints.schema.patterns import Pattern, read_format
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
from palmette.runtime.constraints.schema.unions import EMPTY, FULL, Entries, Slot, Union, besides, only, size
from palmette.runtime.constraints.schema.values import ARRAY, NUMBER, OBJECT, STRING

_SLOTS = {
    "null": (0,),
    "boolean": (1, 2),
    "number": (NUMBER,),
    "string": (STRING,),
    "array": (ARRAY,),
    "object": (OBJECT,),
}
_ONE = (Fraction(1),)
_NUMBER_WORDS = words("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf")
_STRING_WORDS = words("minLength maxLength pattern format")
_ARRAY_WORDS = words("items prefixItems additionalItems minItems maxItems contains uniqueItems")
_OBJECT_WORDS = words("properties patternProperties additionalProperties required minProperties maxProperties")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")


class Reader(Ways):
    """The graph of a schema's subschemas."""

    def say_site(self, tag: str, site: Site, scope: Scope, holds: bool) -> Union:
        view = self.view(site)
        if tag == "site" and any(key in view for key in _UNEVALUATED):
            return self.with_leftovers(site, scope, holds)
        if not holds:
            return self.join([EMPTY, *self.failures(view, site, scope, in_place=tag == "site")])
        found = self._by_type(view, site, scope)
        for part in self.rules(view, site, scope):
            found = self.meet(found, part)
        if tag == "site":
            for part in self.in_place(view, site, scope):
                found = self.meet(found, part)
        return found

    # -- what holds

    def _by_type(self, view: dict[str, Any], site: Site, scope: Scope) -> Union:
        """What the keywords say that speak of one type each."""
        keys = view.keys()
        slots = list(self._types(view["type"]) if "type" in view else FULL)
        if slots[NUMBER] and keys & _NUMBER_WORDS:
            meets = [self.meet(only(NUMBER, *slots[NUMBER]), only(NUMBER, n)) for n in self._numbers_of(view)]
            slots[NUMBER] = meets[0][NUMBER]
            for more in meets[1:]:
                slots[NUMBER] = self.meet(only(NUMBER, *slots[NUMBER]), more)[NUMBER]
        if slots[STRING] and keys & _STRING_WORDS:
            shape: Strings | None = Strings(Text(least=view.get("minLength", 0), most=view.get("maxLength")))
            if shape.text.most is not None and shape.text.least > shape.text.most:  # type: ignore[union-attr]
                shape = None
            for pattern in self._patterns_of(view, site):
                shape = self._strings(shape, Strings(pattern.narrow)) if shape is not None else None
            slots[STRING] = (shape,) if shape is not None else ()
        if slots[ARRAY] and keys & _ARRAY_WORDS:
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
        if slots[OBJECT] and keys & _OBJECT_WORDS:
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
        names = [said] if isinstance(said, str) else said
        if names == ["object"]:
            return only(OBJECT, *FULL[OBJECT])
        if names == ["string"]:
            return only(STRING, *FULL[STRING])
        slots = [shape if any(i in _SLOTS.get(n, ()) for n in names) else () for i, shape in enumerate(FULL)]
        if "integer" in names and "number" not in names:
            slots[NUMBER] = (Numbers(multiple_of=_ONE),)
        return tuple(slots)  # type: ignore[return-value]

    def _numbers_of(self, view: dict[str, Any]) -> list[Numbers]:
        found = []
        low, high = view.get("exclusiveMinimum"), view.get("exclusiveMaximum")
        if "minimum" in view:
            found.append(Numbers(low=Fraction(view["minimum"]), low_open=low is True))
        if "maximum" in view:
            found.append(Numbers(high=Fraction(view["maximum"]), high_open=high is True))
        if low is not None and not isinstance(low, bool):
            found.append(Numbers(low=Fraction(low), low_open=True))
        if high is not None and not isinstance(high, bool):
            found.append(Numbers(high=Fraction(high), high_open=True))
        if "multipleOf" in view:
            found.append(Numbers(multiple_of=(Fraction(view["multipleOf"]),)))
        return found or [Numbers()]

    def _patterns_of(self, view: dict[str, Any], site: Site) -> list[Pattern]:
        found = []
        if "pattern" in view:
            found.append(self.pattern(view["pattern"], f"{site.pointer}/pattern"))
        if "format" in view and (known := read_format(view["format"])) is not None:
            found.append(known)
        return found

    def child(self, site: Site, scope: Scope, path: str, value: Any) -> Node:
        if value is True:
            return ANYTHING_NODE
        if value is False:
            return NOTHING_NODE
        return self.site_node(self.references.site(value, f"{site.pointer}/{path}", site.resource), scope)

    def _below(self, view: dict[str, Any], site: Site, scope: Scope, key: str, missing: Node) -> Node:
        return self.child(site, scope, key, view[key]) if key in view else missing

    def _named(self, view: dict[str, Any], site: Site, scope: Scope) -> dict[str, Node]:
        return {
            name: self.child(site, scope, f"properties/{escape(name)}", value)
            for name, value in view.get("properties", {}).items()
        }

    def _by_pattern(self, view: dict[str, Any], site: Site, scope: Scope) -> list[tuple[str, Pattern, Node]]:
        found = []
        for pattern, value in view.get("patternProperties", {}).items():
            path = f"patternProperties/{escape(pattern)}"
            read = self.pattern(pattern, f"{site.pointer}/{path}")
            found.append((pattern, read, self.child(site, scope, path, value)))
        return found

    def _items(self, view: dict[str, Any], site: Site, scope: Scope) -> tuple[list[Node], Node]:
        items = view.get("items")
        if isinstance(items, list):
            prefix = [self.child(site, scope, f"items/{i}", v) for i, v in enumerate(items)]
            return prefix, self._below(view, site, scope, "additionalItems", ANYTHING_NODE)
        prefix = [self.child(site, scope, f"prefixItems/{i}", v) for i, v in enumerate(view.get("prefixItems", []))]
        return prefix, self._below(view, site, scope, "items", ANYTHING_NODE)

    def _contains(self, view: dict[str, Any], site: Site, scope: Scope) -> list[Contains]:
        if "contains" not in view:
            return []
        node = self._below(view, site, scope, "contains", ANYTHING_NODE)
        return [Contains(node, view.get("minContains", 1), view.get("maxContains"))]

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

    def cases(self, view: dict[str, Any], site: Site, scope: Scope) -> Iterator[tuple[str, Node]]:
        """Names, and the subschema of the object that holds when it has the name."""
        for key in ("dependentSchemas", "dependencies"):
            for name, value in view.get(key, {}).items():
                if isinstance(value, dict | bool):
                    yield name, self.child(site, scope, f"{key}/{escape(name)}", value)

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

    def branches(self, view: dict[str, Any], site: Site, scope: Scope, key: str) -> list[Node]:
        return [self.child(site, scope, f"{key}/{i}", value) for i, value in enumerate(view[key])]

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

    # -- what fails

    def failures(self, view: dict[str, Any], site: Site, scope: Scope, *, in_place: bool) -> Iterator[Union]:
        """Unions of which any one makes the subschema fail."""
        at = site.pointer
        if "type" in view:
            yield self._other_types(view["type"])
        yield from self._failing_scalars(view, site)
        yield from self._failing_arrays(view, site, scope)
        yield from self._failing_objects(view, site, scope)
        if "const" in view:
            yield self.is_not_value(view["const"], f"{at}/const")
        if "enum" in view:
            yield self.is_none_of(view["enum"], f"{at}/enum")
        if "not" in view:
            yield self.expand(self._below(view, site, scope, "not", ANYTHING_NODE))
        if not in_place:
            return
        for target in self.targets(view, site, scope):
            yield self.expand(self.opposite(target))
        for i, value in enumerate(view.get("allOf", [])):
            yield self.expand(self.opposite(self.child(site, scope, f"allOf/{i}", value)))
        for key in ("anyOf", "oneOf"):
            if key in view:
                nodes = self.branches(view, site, scope, key)
                none = FULL
                for node in nodes:
                    none = self.meet(none, self.expand(self.opposite(node)))
                yield none
                if key == "oneOf":
                    unions = [self.expand(node) for node in nodes]
                    for i, union in enumerate(unions):
                        for other in unions[:i]:
                            yield self.meet(union, other)
        if "if" in view:
            test = self._below(view, site, scope, "if", ANYTHING_NODE)
            for key, when in (("then", test), ("else", self.opposite(test))):
                if key in view:
                    yield self.expand(
                        self.both(when, self.opposite(self._below(view, site, scope, key, ANYTHING_NODE)))
                    )
        for name, node in self.cases(view, site, scope):
            yield self.meet(self.expand(self.has(name, at)), self.expand(self.opposite(node)))

    def _other_types(self, said: str | list[str]) -> Union:
        names = [said] if isinstance(said, str) else said
        slots = [() if any(i in _SLOTS.get(n, ()) for n in names) else shape for i, shape in enumerate(FULL)]
        if "integer" in names and "number" not in names:
            slots[NUMBER] = (Numbers(not_multiple_of=_ONE),)
        return tuple(slots)  # type: ignore[return-value]

    def _failing_scalars(self, view: dict[str, Any], site: Site) -> Iterator[Union]:
        for numbers in self._numbers_of(view):
            if numbers.low is not None:
                yield only(NUMBER, Numbers(high=numbers.low, high_open=not numbers.low_open))
            if numbers.high is not None:
                yield only(NUMBER, Numbers(low=numbers.high, low_open=not numbers.high_open))
            if numbers.multiple_of:
                yield only(NUMBER, Numbers(not_multiple_of=numbers.multiple_of))
        if view.get("minLength", 0) > 0:
            yield only(STRING, Strings(Text(most=view["minLength"] - 1)))
        if "maxLength" in view:
            yield only(STRING, Strings(Text(least=view["maxLength"] + 1)))
        for pattern in self._patterns_of(view, site):
            if pattern.wide is not ANY_TEXT:
                yield only(STRING, *(Strings(text) for text in outside(pattern.wide)))

    def _failing_arrays(self, view: dict[str, Any], site: Site, scope: Scope) -> Iterator[Union]:
        if not view.keys() & _ARRAY_WORDS:
            return
        shapes: list[Arrays | None] = []
        if view.get("minItems", 0) > 0:
            shapes.append(self.arrays(most=view["minItems"] - 1))
        if "maxItems" in view:
            shapes.append(self.arrays(least=view["maxItems"] + 1))
        if view.get("uniqueItems"):
            shapes.append(self.arrays(repeats=True))
        prefix, rest = self._items(view, site, scope)
        for i, node in enumerate(prefix):
            shapes.append(self.arrays([*[ANYTHING_NODE] * i, self.opposite(node)], ANYTHING_NODE, i + 1))
        for c in self._contains(view, site, scope):
            if c.least > 0:
                shapes.append(self.arrays(contains=[Contains(c.node, 0, c.least - 1)]))
            if c.most is not None:
                shapes.append(self.arrays(contains=[Contains(c.node, c.most + 1)]))
        yield only(ARRAY, *(shape for shape in shapes if shape is not None))
        if rest != ANYTHING_NODE:
            yield self.item_beyond([ANYTHING_NODE] * len(prefix), self.opposite(rest), site.pointer)

    def _failing_objects(self, view: dict[str, Any], site: Site, scope: Scope) -> Iterator[Union]:
        missing = {name: self.without([name]) for name in view.get("required", [])}
        shapes: list[Entries] = list(missing.values())
        if view.get("minProperties", 0) > 0:
            shapes.append(Entries({}, {}, most=view["minProperties"] - 1))
        if "maxProperties" in view:
            shapes.append(Entries({}, {}, least=view["maxProperties"] + 1))
        named = self._named(view, site, scope)
        denying: dict[str, Entries] = {}
        for name, node in named.items():
            if (other := self.opposite(node)) != NOTHING_NODE:
                denying[name] = Entries({name: other}, {name: None})
        shapes += denying.values()
        patterns = self._by_pattern(view, site, scope)
        for _, pattern, node in patterns:
            if (other := self.opposite(node)) != NOTHING_NODE:
                shapes.append(Entries({}, {}, some=((pattern.narrow, other),)))
        needs = list(view.get("dependentRequired", {}).items())
        needs += [(n, v) for n, v in view.get("dependencies", {}).items() if isinstance(v, str | list)]
        for name, needed in needs:
            for other_name in [needed] if isinstance(needed, str) else needed:
                if other_name != name:
                    shapes.append(Entries({name: ANYTHING_NODE, other_name: NOTHING_NODE}, {name: None}))
        # A tag, which says of what kind the object is, holds in all the cases but its own and those of earlier tags:
        # objects of another kind then meet one case, not all of them.
        settled: list[Entries] = []
        for name, value in view.get("properties", {}).items():
            if isinstance(value, dict) and ("const" in value or "enum" in value):
                settled += [cases[name] for cases in (denying, missing) if name in cases]
                for shape in shapes:
                    if not any(shape is other for other in settled):
                        shape.members.setdefault(name, named[name])
                        if name in missing:
                            shape.required[name] = None
        yield only(OBJECT, *shapes)
        if "additionalProperties" in view:
            rest = self._below(view, site, scope, "additionalProperties", ANYTHING_NODE)
            yield self.some_other(named, [p for _, p, _ in patterns], self.opposite(rest))
        if "propertyNames" in view:
            names = self._below(view, site, scope, "propertyNames", ANYTHING_NODE)
            wrong = self.expand(self.opposite(names))[STRING]
            yield only(OBJECT, *(Entries({}, {}, some=((s.text, ANYTHING_NODE),)) for s in wrong))

    # -- references

    def targets(self, view: dict[str, Any], site: Site, scope: Scope) -> list[Node]:
        """The nodes of the subschemas that the references of this one lead to."""
        return [self.site_node(target, scope) for target in self.target_sites(view, site, scope)]
