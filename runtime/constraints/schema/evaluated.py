"""unevaluatedProperties and unevaluatedItems: the ways in which a subschema can hold, each with what it evaluates.

Of a value that holds in several ways (both branches of anyOf), the one that evaluates most leaves least over; and what
a lesser way leaves over, with all of it allowed, is allowed by the greater one too. So the union of the ways, each with
the condition on its own leftovers, says exactly what the drafts say, and no way needs the others to fail. Where the
opposite is asked, they do need it (`exact`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

from palmette.runtime.constraints.schema.algebra import Budget
from palmette.runtime.constraints.schema.conditions import Busy, Scope
from palmette.runtime.constraints.schema.document import Faults
from palmette.runtime.constraints.schema.graph import MOST_CASES, Graph
from palmette.runtime.constraints.schema.references import References, Site
from palmette.runtime.constraints.schema.shapes import ANYTHING_NODE, NOTHING_NODE, Node
from palmette.runtime.constraints.schema.unions import EMPTY, Union


class Evaluated(NamedTuple):
    """Names, patterns of names (or all of them), the first items (or all), and items of certain nodes."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    all_names: bool = False
    items: int = 0
    all_items: bool = False
    contained: frozenset[Node] = frozenset()

    def __or__(self, other: tuple[Any, ...]) -> Evaluated:
        b = Evaluated(*other)
        return Evaluated(
            self.names | b.names,
            self.patterns | b.patterns,
            self.all_names or b.all_names,
            max(self.items, b.items),
            self.all_items or b.all_items,
            self.contained | b.contained,
        )


NONE = Evaluated()
Way = tuple[Node, Evaluated]


class Ways(Graph):
    """What is evaluated, way by way."""

    def __init__(self, references: References, faults: Faults, budget: Budget, *, formats: bool, scoped: bool) -> None:
        super().__init__(references, faults, budget, formats=formats, scoped=scoped)
        self._walking: set[tuple[str, Scope]] = set()

    def with_leftovers(self, site: Site, scope: Scope, holds: bool) -> Union:
        """The shapes of a subschema that has unevaluated* keywords."""
        if holds:
            return self.join([EMPTY, *(self.expand(node) for node, _ in self.ways(site, scope, exact=False))])
        view = self.view(site)
        fails = list(self.failures(view, site, scope, in_place=True))
        for node, found in self._in_place_ways(view, site, scope, exact=True):
            for left in self._leftovers(view, site, scope, found):
                fails.append(self.meet(self.expand(node), self.expand(self.opposite(left))))
        return self.join([EMPTY, *fails])

    def ways(self, site: Site, scope: Scope, *, exact: bool) -> list[Way]:
        """The nodes of which each is one way for the subschema to hold."""
        if isinstance(site.value, bool) or not (view := self.view(site)):
            return [(NOTHING_NODE if site.value is False else ANYTHING_NODE, NONE)]
        scope = self.enter(scope, site.resource)
        found: list[Way] = []
        here = (site.pointer, scope)
        if here in self._walking:
            raise Busy(site.pointer)
        self._walking.add(here)
        try:
            in_place = self._in_place_ways(view, site, scope, exact=exact)
        finally:
            self._walking.discard(here)
        for node, evaluated in in_place:
            for left in self._leftovers(view, site, scope, evaluated):
                node = self.both(node, left)
            if "unevaluatedProperties" in view:
                evaluated = evaluated._replace(all_names=True)
            if "unevaluatedItems" in view:
                evaluated = evaluated._replace(all_items=True)
            if node != NOTHING_NODE:
                found.append((node, evaluated))
        return found

    def _leftovers(self, view: dict[str, Any], site: Site, scope: Scope, found: Evaluated) -> Iterator[Node]:
        """The conditions on what is left over."""
        if "unevaluatedProperties" in view and not found.all_names:
            node = self._below(view, site, scope, "unevaluatedProperties", ANYTHING_NODE)
            if node != ANYTHING_NODE:
                what = ("others", found.names, tuple(sorted(found.patterns)), node)
                yield self.condition(what, what, f"{site.pointer}/unevaluatedProperties")
        if "unevaluatedItems" in view and not found.all_items:
            at = f"{site.pointer}/unevaluatedItems"
            node = self._below(view, site, scope, "unevaluatedItems", ANYTHING_NODE)
            node = self.either([node, *sorted(found.contained)], at)
            if node != ANYTHING_NODE:
                yield self.condition(("rest", found.items, node), ("rest", found.items, node), at)

    def _own(self, view: dict[str, Any], site: Site, scope: Scope) -> Evaluated:
        items = view.get("items")
        listed = items if isinstance(items, list) else view.get("prefixItems", [])
        contained = frozenset[Node]()
        if "contains" in view and site.resource.draft >= 2020:
            contained = frozenset([self._below(view, site, scope, "contains", ANYTHING_NODE)])
        return Evaluated(
            frozenset(view.get("properties", ())),
            frozenset(view.get("patternProperties", ())),
            "additionalProperties" in view,
            len(listed),
            "additionalItems" in view or isinstance(items, dict | bool),
            contained,
        )

    def _in_place_ways(self, view: dict[str, Any], site: Site, scope: Scope, *, exact: bool) -> list[Way]:
        at = site.pointer
        local = self.condition(("local", at, scope), ("local", site, scope), at)
        found: list[Way] = [(local, self._own(view, site, scope))]

        def child(path: str, value: Any) -> list[Way]:
            return self.ways(self.references.site(value, f"{at}/{path}", site.resource), scope, exact=exact)

        for target in self.target_sites(view, site, scope):
            found = self._times(found, self.ways(target, scope, exact=exact))
        for i, value in enumerate(view.get("allOf", [])):
            found = self._times(found, child(f"allOf/{i}", value))
        if "anyOf" in view:
            nodes = self.branches(view, site, scope, "anyOf")
            options = [child(f"anyOf/{i}", value) for i, value in enumerate(view["anyOf"])]
            found = self._times(found, self._any(nodes, options, at, exact))
        if "oneOf" in view:
            nodes = self.branches(view, site, scope, "oneOf")
            options = [child(f"oneOf/{i}", value) for i, value in enumerate(view["oneOf"])]
            one: list[Way] = []
            for i, option in enumerate(options):
                for node, evaluated in option:
                    for j, other in enumerate(nodes):
                        if j != i:
                            node = self.both(node, self.opposite(other))
                    one.append((node, evaluated))
            found = self._times(found, one)
        if "if" in view:
            test = self._below(view, site, scope, "if", ANYTHING_NODE)
            holds = child("if", view["if"])
            if "then" in view:
                holds = self._times(holds, child("then", view["then"]))
            fails: list[Way] = [(self.opposite(test), NONE)]
            if "else" in view:
                fails = self._times(fails, child("else", view["else"]))
            found = self._times(found, [*holds, *fails])
        for key in ("dependentSchemas", "dependencies"):
            for name, value in view.get(key, {}).items():
                if isinstance(value, dict | bool):
                    has = self.has(name, at)
                    there = self._times([(has, NONE)], child(f"{key}/{name}", value))
                    found = self._times(found, [*there, (self.opposite(has), NONE)])
        return found

    def _any(self, nodes: list[Node], options: list[list[Way]], at: str, exact: bool) -> list[Way]:
        """At least one of the options: all choices among those that evaluate something, and one of the others."""
        telling = [i for i, option in enumerate(options) if any(e != NONE for _, e in option)]
        plain = [i for i in range(len(options)) if i not in telling]
        if len(telling) > MOST_CASES:
            self.faults.add(
                f"{at}/anyOf", "unevaluated* beside so many alternatives cannot be enforced", "use fewer, or oneOf"
            )
            return [(ANYTHING_NODE, NONE)]
        found: list[Way] = []
        for count in range(len(telling) + 1):
            for chosen in combinations(telling, count):
                some: list[Way] = [(ANYTHING_NODE, NONE)]
                for i in chosen:
                    some = self._times(some, options[i])
                if not count:
                    some = [(self.either([nodes[i] for i in plain], at), NONE)]
                for node, evaluated in some:
                    if exact:
                        for i in telling:
                            if i not in chosen:
                                node = self.both(node, self.opposite(nodes[i]))
                    found.append((node, evaluated))
        return found

    def _times(self, a: list[Way], b: list[Way]) -> list[Way]:
        self.tick(len(a) * len(b))
        found = [(self.both(x, y), e | f) for (x, e), (y, f) in product(a, b)]
        return list(dict.fromkeys(way for way in found if way[0] != NOTHING_NODE))

    # -- what sites.py says

    def _below(self, view: dict[str, Any], site: Site, scope: Scope, key: str, missing: Node) -> Node:
        raise NotImplementedError

    def branches(self, view: dict[str, Any], site: Site, scope: Scope, key: str) -> list[Node]:
        raise NotImplementedError

    def failures(self, view: dict[str, Any], site: Site, scope: Scope, *, in_place: bool) -> Iterator[Union]:
        raise NotImplementedError

    def target_sites(self, view: dict[str, Any], site: Site, scope: Scope) -> list[Site]:
        """Where $ref, $dynamicRef and $recursiveRef lead."""
        found = []
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if key in view and (target := self._target(key, view[key], site, scope)) is not None:
                found.append(target)
        return found

    def _target(self, key: str, ref: str, site: Site, scope: Scope) -> Site | None:
        target = self.references.resolve(ref, site)
        if target is None or key == "$ref":
            return target
        if key == "$recursiveRef":
            if not target.resource.recursive:
                return target
            for uri in scope:
                outer = self.references.resource(uri)
                if outer is not None and outer.recursive:
                    return Site(outer.value, outer.at, outer)
            return target
        name = ref.partition("#")[2]
        if not isinstance(target.value, dict) or target.value.get("$dynamicAnchor") != name:
            return target
        for uri in scope:
            outer = self.references.resource(uri)
            if outer is not None and name in outer.dynamic:
                return outer.anchors[name]
        return target
