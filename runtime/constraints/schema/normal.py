"""From a JSON Schema to its normal form (shapes.py), or a refusal with all of its faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import Any

from palmette.errors import ConstraintError
from palmette.runtime.constraints.determinize import TooLarge
from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.algebra import Budget, over
from palmette.runtime.constraints.schema.conditions import Busy
from palmette.runtime.constraints.schema.document import MAY_HOLD_SURROGATES, Faults, check_strings, parse, too_deep
from palmette.runtime.constraints.schema.finite import Finite
from palmette.runtime.constraints.schema.keywords import ANNOTATION, KEYWORDS
from palmette.runtime.constraints.schema.references import References
from palmette.runtime.constraints.schema.shapes import (
    ANYTHING_NODE,
    NOTHING_NODE,
    Anything,
    Arrays,
    Contains,
    Member,
    Node,
    Normal,
    Objects,
    Others,
    Shape,
    Text,
)
from palmette.runtime.constraints.schema.sites import Reader
from palmette.runtime.constraints.schema.unions import FULL, Entries


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A keyword at its place (`pointer` is that of its subschema), and what became of it: "enforced", "rewritten" or
    "annotation"."""

    pointer: str
    keyword: str
    becomes: str


class Reading:
    """A schema as read: its normal form, and what became of each keyword that was reached."""

    def __init__(self, normal: Normal, reader: Reader) -> None:
        self.normal = normal
        self._reader = reader

    @cached_property
    def occurrences(self) -> tuple[Occurrence, ...]:
        return tuple(
            Occurrence(at, key, KEYWORDS[key].becomes if key in view else ANNOTATION)
            for at, view in sorted(self._reader.views.items())
            for key in self._reader.said[at]
        )


def normal_form(
    text: str, *, documents: Mapping[str, Any] | None = None, formats: bool = True, budget: Budget | None = None
) -> Normal:
    """The schema's normal form. documents: those that references may lead to, by URI. formats: whether `format` asserts
    (formats that no draft knows never do).

    ConstraintError, with all faults that were found (each with its JSON pointer), for what is no schema, cannot be
    enforced exactly, has no valid value, or takes more than the budget.
    """
    return read(text, documents=documents, formats=formats, budget=budget).normal


def read(
    text: str, *, documents: Mapping[str, Any] | None = None, formats: bool = True, budget: Budget | None = None
) -> Reading:
    """normal_form, and what became of each keyword."""
    budget = budget or Budget()
    faults = Faults()
    try:
        document = parse(text)
        if not isinstance(document, dict | bool):
            raise ConstraintError(
                f"a JSON schema must be an object or a boolean, not {type(document).__name__}",
                hint='give a schema such as {"type": "object", "properties": {...}}',
            )
        given = documents or {}
        references = References(document, given, faults, monotonic() + budget.seconds)
        if ("\\u" in text or not text.isascii()) and MAY_HOLD_SURROGATES.search(text):
            check_strings(document, faults)
        faults.raise_any()
        scoped = bool(given) or "$dynamicRef" in text or "$recursiveRef" in text or "json-schema.org/draft/20" in text
        reader = Reader(references, faults, budget, formats=formats, scoped=scoped)
        root = reader.site_node(references.site(document, "", references.root), (references.root.uri,))
        finite = Finite(reader, root)
        faults.raise_any()
        normal = _Writer(reader, finite).write(root)
        faults.raise_any()
        return Reading(normal, reader)
    except RecursionError:
        raise too_deep() from None
    except Busy as busy:
        raise ConstraintError(
            "a reference leads back to itself without a value in between",
            pointer=busy.pointer,
            hint="put the reference below a property or an item",
        ) from None
    except TooLarge as large:
        raise over(f"more than {large.limit} for its patterns") from large


class _Writer:
    """Numbers the nodes that have values, and writes their shapes in their final form."""

    def __init__(self, reader: Reader, finite: Finite) -> None:
        self.reader = reader
        self.finite = finite
        self.numbers: dict[Node, Node] = {ANYTHING_NODE: ANYTHING_NODE, NOTHING_NODE: NOTHING_NODE}
        self.queue: list[Node] = [ANYTHING_NODE, NOTHING_NODE]

    def write(self, root: Node) -> Normal:
        if not self.finite.lives(root):
            raise self._nothing(root)
        self.to(root)
        shapes: list[tuple[Shape, ...]] = [(Anything(),), ()]
        at = 2
        while at < len(self.queue):
            if not at & 255:
                self.reader.tick(0)
            shapes.append(self.node(self.queue[at]))
            at += 1
        return _shared(shapes, self.numbers[root], [self._pointers(node) for node in self.queue])

    def _pointers(self, node: Node) -> tuple[str, ...]:
        key = self.reader.keys[node]
        if len(key) == 1:
            (c,) = key
            return (self.reader.pointers[c >> 1],) if c >= 0 else ()
        return tuple(dict.fromkeys(self.reader.pointers[c >> 1] for c in sorted(key) if c >= 0))

    def _nothing(self, node: Node) -> ConstraintError:
        """Says where it lies that there is no value."""
        seen: set[Node] = set()
        while node not in seen:
            seen.add(node)
            shapes = [shape for slot in self.reader.expand(node) for shape in slot]
            if len(shapes) != 1 or not isinstance(shapes[0], Entries):
                break
            members = shapes[0].members
            node = next((members[n] for n in shapes[0].required if not self.finite.lives(members[n])), node)
        pointer = self.reader.pointer(node) if node != NOTHING_NODE else ""
        if self.finite.is_endless(node):
            return ConstraintError(
                "no finite value satisfies the schema",
                pointer=pointer,
                hint="let a reference to the schema itself be optional",
            )
        return ConstraintError(
            "no value is valid under the schema", pointer=pointer, hint="give a schema that allows something"
        )

    def to(self, node: Node) -> Node:
        """The number of a node in the normal form."""
        number = self.numbers.get(node)
        if number is None:
            if not self.finite.lives(node):
                number = NOTHING_NODE
            elif self._is_full(node):
                number = ANYTHING_NODE
            else:
                number = len(self.queue)
                self.queue.append(node)
            self.numbers[node] = number
        return number

    def _is_full(self, node: Node) -> bool:
        union = self.reader.expand(node)
        return union is FULL or all(a is b or (a and a[0] is b[0]) for a, b in zip(union, FULL, strict=True))

    def node(self, node: Node) -> tuple[Shape, ...]:
        found: list[Shape] = []
        for slot in self.reader.expand(node):
            for shape in slot:
                if self.finite.has_value(shape):
                    if isinstance(shape, Entries):
                        found.append(self.objects(shape))
                    elif isinstance(shape, Arrays):
                        found.append(self.arrays(shape))
                    else:
                        found.append(shape)
        return tuple(found)

    def arrays(self, shape: Arrays) -> Shape:
        if not shape.prefix and not shape.contains:
            rest = self.to(shape.rest)
            if rest == shape.rest:
                return shape
            return replace(shape, rest=rest, most=0 if rest == NOTHING_NODE else shape.most)
        prefix = [self.to(node) for node in shape.prefix]
        rest, most = self.to(shape.rest), shape.most
        if NOTHING_NODE in prefix:
            prefix, rest = prefix[: prefix.index(NOTHING_NODE)], NOTHING_NODE
        if rest == NOTHING_NODE:
            most = len(prefix)
        contains = []
        for c in shape.contains:
            number = self.to(c.node)
            if number == NOTHING_NODE:
                continue  # none is asked for, or the shape would have no value
            contains.append(Contains(number, c.least, c.most))
        return Arrays(tuple(prefix), rest, shape.least, most, tuple(contains), shape.unique, shape.repeats)

    def objects(self, shape: Entries) -> Shape:
        named, wanted = shape.members, shape.required
        names = dict.fromkeys(n for n in shape.order if n in named)
        names.update(wanted)
        names.update(named)
        listed = set(shape.order)
        members: list[Member] = []
        possible = 0
        numbers = self.numbers
        for name in names:
            node = named[name]
            required = name in wanted
            found = numbers.get(node)
            number = self.to(node) if found is None else found
            if number == NOTHING_NODE or (not required and name not in listed):
                other = self.to(shape.other(name))
                if number == other:
                    continue
            possible += number != NOTHING_NODE
            members.append(Member(name, number, required))
        others: list[Others] = []
        kept = frozenset(m.name for m in members)
        for text, node in shape.others:
            number = self.to(node)
            if number == NOTHING_NODE:
                continue
            if kept:
                without = text.only is None and (text.all_of == () == text.none_of)
                inside = kept if without else frozenset(n for n in kept if texts.contains(text, n))
                if inside:
                    left = texts.intersect(text, Text(without=inside))
                    if left is None:
                        continue
                    text = left
            if not self.finite.no_text(text):
                others.append(Others(text, number))
        most = shape.most
        if most is not None and not others and most >= possible:
            most = None
        some = tuple(Others(text, self.to(node)) for text, node in shape.some)
        least = shape.least if shape.least > len(shape.required) else 0
        return Objects(tuple(members), tuple(others), least, most, some)


def _shared(shapes: list[tuple[Shape, ...]], root: Node, pointers: list[tuple[str, ...]]) -> Normal:
    """Equal nodes made one, as long as there are any."""
    while True:
        first: dict[tuple[Shape, ...], Node] = {}
        to = [first.setdefault(node, i) for i, node in enumerate(shapes)]
        if len(first) == len(shapes):
            return Normal(tuple(shapes), root, tuple(pointers))
        keep = sorted(first.values())
        new = {old: i for i, old in enumerate(keep)}
        number = [new[t] for t in to]
        shapes = [tuple(_renumbered(shape, number) for shape in shapes[old]) for old in keep]
        pointers = [pointers[old] for old in keep]
        root = number[root]


def _renumbered(shape: Shape, to: list[Node]) -> Shape:
    if isinstance(shape, Arrays):
        return replace(
            shape,
            prefix=tuple(to[n] for n in shape.prefix),
            rest=to[shape.rest],
            contains=tuple(c._replace(node=to[c.node]) for c in shape.contains),
        )
    if isinstance(shape, Objects):
        return replace(
            shape,
            members=tuple(Member(m.name, to[m.node], m.required) for m in shape.members),
            others=tuple(Others(o.names, to[o.node]) for o in shape.others),
            some=tuple(Others(o.names, to[o.node]) for o in shape.some),
        )
    return shape
