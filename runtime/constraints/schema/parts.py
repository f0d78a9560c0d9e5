"""The parts of a subschema: what its keywords hold, read into nodes, patterns and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from palmette.runtime.constraints.schema.conditions import Scope
from palmette.runtime.constraints.schema.document import escape
from palmette.runtime.constraints.schema.evaluated import Ways
from palmette.runtime.constraints.schema.keywords import words
from palmette.runtime.constraints.schema.patterns import Pattern, read_format
from palmette.runtime.constraints.schema.references import Site
from palmette.runtime.constraints.schema.shapes import (
    ANYTHING_NODE,
    NOTHING_NODE,
    Contains,
    Node,
    Numbers,
)
from palmette.runtime.constraints.schema.values import ARRAY, NUMBER, OBJECT, STRING

SLOTS = {
    "null": (0,),
    "boolean": (1, 2),
    "number": (NUMBER,),
    "string": (STRING,),
    "array": (ARRAY,),
    "object": (OBJECT,),
}
ONE = (Fraction(1),)
ARRAY_WORDS = words("items prefixItems additionalItems minItems maxItems contains uniqueItems")


class Parts(Ways):
    """The parts of subschemas, for what they say (sites.py) and what their opposites say (opposites.py)."""

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
        named = view.get("properties")
        if not named:
            return {}
        return {name: self.child(site, scope, f"properties/{escape(name)}", value) for name, value in named.items()}

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

    def cases(self, view: dict[str, Any], site: Site, scope: Scope) -> Iterator[tuple[str, Node]]:
        """Names, and the subschema of the object that holds when it has the name."""
        for key in ("dependentSchemas", "dependencies"):
            for name, value in view.get(key, {}).items():
                if isinstance(value, dict | bool):
                    yield name, self.child(site, scope, f"{key}/{escape(name)}", value)

    def branches(self, view: dict[str, Any], site: Site, scope: Scope, key: str) -> list[Node]:
        return [self.child(site, scope, f"{key}/{i}", value) for i, value in enumerate(view[key])]

    def targets(self, view: dict[str, Any], site: Site, scope: Scope) -> list[Node]:
        """The nodes of the subschemas that the references of this one lead to."""
        return [self.site_node(target, scope) for target in self.target_sites(view, site, scope)]
