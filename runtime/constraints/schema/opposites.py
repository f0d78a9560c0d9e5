"""What the opposite of a subschema says: the unions of which any one makes it fail, keyword by keyword."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from palmette.runtime.constraints.schema.conditions import Scope
from palmette.runtime.constraints.schema.names import outside
from palmette.runtime.constraints.schema.parts import ARRAY_WORDS, ONE, SLOTS, Parts
from palmette.runtime.constraints.schema.references import Site
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    ANYTHING_NODE,
    NOTHING_NODE,
    Arrays,
    Contains,
    Numbers,
    Strings,
    Text,
)
from palmette.runtime.constraints.schema.unions import FULL, Entries, Union, only
from palmette.runtime.constraints.schema.values import ARRAY, NUMBER, OBJECT, STRING


class Opposites(Parts):
    """How subschemas fail."""

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
        slots = [() if any(i in SLOTS.get(n, ()) for n in names) else shape for i, shape in enumerate(FULL)]
        if "integer" in names and "number" not in names:
            slots[NUMBER] = (Numbers(not_multiple_of=ONE),)
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
        if not view.keys() & ARRAY_WORDS:
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
