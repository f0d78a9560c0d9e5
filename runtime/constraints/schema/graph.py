"""The graph of conditions: what each says of a value, as a union of shapes whose parts are conditions again.

A condition is a subschema (with the resources it was reached through, where a dynamic reference asks for them), or a
part that a rewrite needs: a value, an alternative of nodes, the names or items that are left over.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema.algebra import (
    ANY_ENTRIES,
    EMPTY,
    FULL,
    OPEN,
    Algebra,
    Budget,
    Classes,
    Entries,
    Union,
    besides,
    only,
)
from palmette.runtime.constraints.schema.document import Faults, escape
from palmette.runtime.constraints.schema.keywords import (
    ANNOTATION,
    KEYWORDS,
    UNSAID,
    foreign,
    misplaced,
    unknown,
)
from palmette.runtime.constraints.schema.names import meet, minus
from palmette.runtime.constraints.schema.patterns import ANY_PATTERN, REFUSED_FORMATS, Pattern, read_format, read_pattern
from palmette.runtime.constraints.schema.references import References, Resource, Site
from palmette.runtime.constraints.schema import texts
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
from palmette.runtime.constraints.schema.values import ARRAY, NUMBER, OBJECT, STRING, canonical, kind

Scope = tuple[str, ...]
# A key that makes vanishes() follow required parts so many levels down.
_LOOK_AHEAD = 4
_NOT_VALIDATION = frozenset(
    "$ref $dynamicRef $recursiveRef properties patternProperties additionalProperties items prefixItems additionalItems "
    "contains propertyNames allOf anyOf oneOf not if then else dependentSchemas unevaluatedProperties unevaluatedItems "
    "dependencies".split()
)
_SCALAR = frozenset(
    "type enum const minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf "
    "minItems maxItems minProperties maxProperties required uniqueItems".split()
)
# What an object's conditions with 2**n cases may have for n.
MOST_CASES = 8


class Busy(Exception):
    """A condition was met again while its own shapes were made."""

    def __init__(self, pointer: str) -> None:
        super().__init__(pointer)
        self.pointer = pointer


class Graph(Algebra):
    """Conditions, and the shapes of the nodes made of them. What a subschema says is in sites.py."""

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
        self._condition_of: dict[Hashable, int] = {}
        self._unions: dict[int, Union] = {}
        self._expanded: dict[Node, Union] = {ANYTHING_NODE: FULL, NOTHING_NODE: EMPTY}
        self._open: set[int] = set()
        self._vanishing: dict[Node, bool] = {ANYTHING_NODE: False, NOTHING_NODE: True}
        self._plainly: dict[int, bool] = {}
        self._depth = 0

    # -- conditions

    def condition(self, key: Hashable, what: tuple[Any, ...], pointer: str) -> Node:
        """The node of the condition `what`, which is the same as every other with the same key."""
        number = self._condition_of.get(key)
        if number is None:
            number = self._condition_of[key] = len(self.conditions)
            self.conditions.append(what)
            self.pointers.append(pointer)
        return self.node(frozenset((2 * number,)))

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
            if site.value is True or site.value == {}:
                return ANYTHING_NODE
            if site.value is False:
                return NOTHING_NODE
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
            if isinstance(value, list) and len(value) <= 8 and all(isinstance(v, str) for v in value):
                value = tuple(value)
            elif not isinstance(value, str | int | Fraction) or isinstance(value, bool) or key[0] == "$":
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
        found: dict[str, Any] = {}
        self.said[site.pointer] = value
        alone = draft <= 7 and "$ref" in value
        for key, said in value.items():
            row = KEYWORDS.get(key)
            if row is None:
                if wrong := unknown(key):
                    self.faults.add(f"{site.pointer}/{escape(key)}", *wrong)
            elif row.becomes == ANNOTATION or (alone and key != "$ref"):
                continue  # until draft 7, whatever stands beside a $ref is ignored
            elif draft != UNSAID and foreign(key, draft):
                if wrong := misplaced(key, draft):
                    self.faults.add(f"{site.pointer}/{escape(key)}", *wrong)
            elif site.resource.asserts or key in _NOT_VALIDATION:
                found[key] = said
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
            # What a value is comes before what it is not, which is most often of many shapes.
            for c in sorted(self.keys[node], key=lambda c: (c & 1, c)):
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
        tag = what[0]
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
            return self.others(*what[1:], holds)
        if tag == "rest":
            count, node = what[1:]
            if holds:
                return self.array([ANYTHING_NODE] * count, node)
            return self.item_beyond([ANYTHING_NODE] * count, self.opposite(node), pointer)
        assert tag == "site" or tag == "local"
        return self.say_site(tag, what[1], what[2], holds)

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
            self.faults.add(pointer, "the opposite of items behind so many others cannot be enforced", "say it another way")
            return EMPTY
        shapes = []
        other = self.opposite(node)
        for bits in range(1 << count):
            places = [node if bits >> i & 1 else other for i in range(count)]
            if NOTHING_NODE not in places:
                shape = self.arrays(
                    places, ANYTHING_NODE, count + 1, None, [Contains(node, bits.bit_count() + 1)]
                )
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


__all__ = ["ANY_ENTRIES", "Busy", "Graph", "Scope"]
