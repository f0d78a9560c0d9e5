"""The conditions that nodes are made of, and the shapes of a node as the intersection of what its conditions say.

A condition is a subschema (with the resources it was reached through, where a dynamic reference asks for them), or a
part that a rewrite needs: a value, an alternative of nodes, the names or items that are left over (graph.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from fractions import Fraction
from typing import Any

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema.algebra import Algebra, Budget
from palmette.runtime.constraints.schema.document import Faults, escape
from palmette.runtime.constraints.schema.keywords import (
    ANNOTATION,
    DRAFTS,
    KEYWORDS,
    UNSAID,
    foreign,
    misplaced,
    unknown,
    words,
)
from palmette.runtime.constraints.schema.patterns import (
    ANY_PATTERN,
    REFUSED_FORMATS,
    Pattern,
    read_format,
    read_pattern,
)
from palmette.runtime.constraints.schema.references import References, Resource, Site
from palmette.runtime.constraints.schema.shapes import (
    ANYTHING_NODE,
    NOTHING_NODE,
    Node,
)
from palmette.runtime.constraints.schema.unions import EMPTY, FULL, Union
from palmette.runtime.constraints.schema.values import canonical

Scope = tuple[str, ...]
# A key that makes vanishes() follow required parts so many levels down.
_LOOK_AHEAD = 4
_NOT_VALIDATION = words(
    "$ref $dynamicRef $recursiveRef properties patternProperties additionalProperties items prefixItems "
    "additionalItems contains propertyNames allOf anyOf oneOf not if then else dependentSchemas dependencies "
    "unevaluatedProperties unevaluatedItems"
)
_SCALAR = words(
    "type enum const minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf "
    "minItems maxItems minProperties maxProperties required uniqueItems"
)


_SIMPLE = (str, int, Fraction)
# What counts only beside others, or only with some values.
_DEPENDENT = words("then else minContains maxContains additionalItems uniqueItems format")
# By draft, the keywords that it knows, and whether they assert something.
_KNOWN = {
    draft: {
        key: row.becomes != ANNOTATION
        for key, row in KEYWORDS.items()
        if row.becomes == ANNOTATION or not foreign(key, draft)
    }
    for draft in (*DRAFTS, UNSAID)
}


class Busy(Exception):
    """A condition was met again while its own shapes were made."""

    def __init__(self, pointer: str) -> None:
        super().__init__(pointer)
        self.pointer = pointer


class Conditions(Algebra):
    """Conditions by number, and what was found out about nodes. What a condition says is in graph.py and sites.py."""

    def __init__(self, references: References, faults: Faults, budget: Budget, *, formats: bool, scoped: bool) -> None:
        super().__init__(budget)
        self.references = references
        self.faults = faults
        self.formats = formats
        self.scoped = scoped
        self.conditions: list[tuple[Any, ...]] = []
        self.pointers: list[str] = []
        self.views: dict[str, dict[str, Any]] = {}
        self.said: dict[str, dict[str, Any]] = {}
        self._condition_of: dict[Hashable, Node] = {}
        self._unions: dict[int, Union] = {}
        self._expanded: dict[Node, Union] = {ANYTHING_NODE: FULL, NOTHING_NODE: EMPTY}
        self._open: set[int] = set()
        self._vanishing: dict[Node, bool] = {ANYTHING_NODE: False, NOTHING_NODE: True}
        self._plainly: dict[int, bool] = {}
        self._depth = 0

    # -- conditions

    def condition(self, key: Hashable, what: tuple[Any, ...], pointer: str) -> Node:
        """The node of the condition `what`, which is the same as every other with the same key."""
        found = self._condition_of.get(key)
        if found is None:
            found = self._condition_of[key] = self.node(frozenset((2 * len(self.conditions),)))
            self.conditions.append(what)
            self.pointers.append(pointer)
        return found

    def value_node(self, value: Any, pointer: str) -> Node:
        return self.condition(("value", canonical(value)), ("value", value), pointer)

    def either(self, nodes: Iterable[Node], pointer: str) -> Node:
        """The node of the values of any of the nodes."""
        parts = tuple(dict.fromkeys(n for n in nodes if n != NOTHING_NODE))
        if ANYTHING_NODE in parts:
            return ANYTHING_NODE
        if len(parts) <= 1:
            return parts[0] if parts else NOTHING_NODE
        return self.condition(("either", frozenset(parts)), ("either", parts), pointer)

    def opposite(self, node: Node) -> Node:
        """The node of all other values."""
        if node in (ANYTHING_NODE, NOTHING_NODE):
            return NOTHING_NODE if node == ANYTHING_NODE else ANYTHING_NODE
        key = self.keys[node]
        if len(key) == 1:
            (c,) = key
            return self.node(frozenset((c ^ 1,)))
        return self.either([self.node(frozenset((c ^ 1,))) for c in sorted(key)], self.pointer(node))

    def pointer(self, node: Node) -> str:
        return next((self.pointers[c >> 1] for c in sorted(self.keys[node]) if c >= 0), "")

    def site_node(self, site: Site, scope: Scope) -> Node:
        """The node of a subschema."""
        seen: set[str] = set()
        while True:
            if not site.value or site.value is True:
                return NOTHING_NODE if site.value is False else ANYTHING_NODE
            view = self.view(site)
            if not view:
                return ANYTHING_NODE
            scope = self.enter(scope, site.resource)
            if len(view) > 1 or "$ref" not in view:
                break
            if site.pointer in seen:
                raise Busy(site.pointer)
            seen.add(site.pointer)
            target = self.references.resolve(view["$ref"], site)
            if target is None:
                return ANYTHING_NODE
            site = target
        return self.condition(self._plain(view, site) or (site.pointer, scope), ("site", site, scope), site.pointer)

    def _plain(self, view: dict[str, Any], site: Site) -> Hashable:
        """What the subschema says, where that is short: the same words elsewhere are the same condition."""
        if len(view) > 3:
            return None
        words: list[Hashable] = [site.resource.draft]
        for key, value in view.items():
            kind = type(value)
            if kind is list and len(value) <= 8 and all(isinstance(v, str) for v in value):
                value = tuple(value)
            elif kind not in _SIMPLE or key[0] == "$":
                return None
            words += (key, value)
        return tuple(words)

    def enter(self, scope: Scope, resource: Resource) -> Scope:
        return scope if not self.scoped or resource.uri in scope else (*scope, resource.uri)

    def has(self, name: str, pointer: str) -> Node:
        """The node of the objects that have the property."""
        return self.condition(("has", name), ("has", name), pointer)

    def view(self, site: Site) -> dict[str, Any]:
        """The keywords of a subschema that assert something in its draft; faults for what is none."""
        found = self.views.get(site.pointer)
        if found is None:
            found = self.views[site.pointer] = self._view(site)
        return found

    def _view(self, site: Site) -> dict[str, Any]:
        value, draft = site.value, site.resource.draft
        self.said[site.pointer] = value
        known = _KNOWN[draft]
        found = {key: said for key, said in value.items() if known.get(key, False)}
        alone = draft <= 7 and "$ref" in found  # until draft 7, whatever stands beside a $ref is ignored
        if len(found) < len(value):
            for key in value.keys() - known.keys():
                wrong = unknown(key) if key not in KEYWORDS else None if alone else misplaced(key, draft)
                if wrong:
                    self.faults.add(f"{site.pointer}/{escape(key)}", *wrong)
        if alone:
            return {"$ref": found["$ref"]}
        if not site.resource.asserts:
            found = {key: said for key, said in found.items() if key in _NOT_VALIDATION}
        if found.keys().isdisjoint(_DEPENDENT):
            return found
        if "if" not in found:
            found.pop("then", None)
            found.pop("else", None)
        if "contains" not in found:
            found.pop("minContains", None)
            found.pop("maxContains", None)
        if "additionalItems" in found and not isinstance(found.get("items"), list):
            del found["additionalItems"]
        if found.get("uniqueItems") is False:
            del found["uniqueItems"]
        if "format" in found and not self._asserted(found["format"], site):
            del found["format"]
        return found

    def _asserted(self, name: str, site: Site) -> bool:
        if not self.formats:
            return False
        if name in REFUSED_FORMATS:
            self.faults.add(
                f"{site.pointer}/format",
                f"the format {name!r} cannot be enforced",
                "use pattern, or leave the format out",
            )
        return read_format(name) is not None

    def pattern(self, pattern: str, pointer: str) -> Pattern:
        try:
            return read_pattern(pattern)
        except ConstraintError as error:
            message = f"pattern {pattern!r} {error.pointer}: {error.message}".replace(" :", ":")
            self.faults.add(pointer, message, error.hint)
            return ANY_PATTERN

    # -- shapes

    def expand(self, node: Node) -> Union:
        """The shapes of a node. Busy when it asks for itself."""
        found = self._expanded.get(node)
        if found is None:
            found = FULL
            key = self.keys[node]
            if len(key) == 1:
                (c,) = key
                found = self._expanded[node] = self.union(c)
                return found
            # What a value is comes before what it is not, which is most often of many shapes.
            for c in sorted(key, key=lambda c: (c & 1, c)):
                found = self.meet(found, self.union(c))
                if found == EMPTY:
                    break
            self._expanded[node] = found
        return found

    def union(self, c: int) -> Union:
        """The shapes of a signed condition."""
        found = self._unions.get(c)
        if found is None:
            if c in self._open:
                raise Busy(self.pointers[c >> 1])
            self._open.add(c)
            try:
                self.tick()
                found = self._unions[c] = self.say(self.conditions[c >> 1], not c & 1, self.pointers[c >> 1])
            except ConstraintError as error:
                error.pointer = error.pointer or self.pointers[c >> 1]
                raise
            finally:
                self._open.discard(c)
        return found

    def is_plain(self, node: Node) -> bool:
        """Whether nothing that the node says leads to another node."""
        return all(self._is_plain(c >> 1) for c in self.keys[node])

    def _is_plain(self, number: int) -> bool:
        found = self._plainly.get(number)
        if found is None:
            tag, what, *_ = self.conditions[number] if number >= 0 else ("value", None)
            if tag == "value":
                found = not isinstance(what, list | dict)
            else:
                found = tag == "site" and all(
                    key in _SCALAR and not isinstance(value, dict) for key, value in self.views[what.pointer].items()
                )
            self._plainly[number] = found
        return found

    def forget(self, node: Node) -> None:
        """After a fault: the node says nothing."""
        self._expanded[node] = FULL

    def vanishes(self, node: Node) -> bool:
        found = self._vanishing.get(node)
        if found is None:
            if self._depth >= _LOOK_AHEAD and node not in self._expanded and not self.is_plain(node):
                return False
            self._depth += 1
            try:
                found = self.expand(node) == EMPTY
            except Busy:
                return False
            finally:
                self._depth -= 1
            self._vanishing[node] = found
        return found

    def say(self, what: tuple[Any, ...], holds: bool, pointer: str) -> Union:
        """The shapes of a condition, or of its opposite."""
        raise NotImplementedError
