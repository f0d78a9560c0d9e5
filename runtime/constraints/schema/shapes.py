"""The normal form of a schema: a graph of nodes, each the union of shapes of one JSON type.

Whatever a schema says with allOf, oneOf, not, if, dependencies, unevaluated* and $ref is said here by unions of
conjunctions alone, so that what comes after (the grammar, the monitor, the shortest value) has six things to know:

    node   =  shape | shape | ...          no shape: nothing is valid; the shapes may overlap
    shape  =  Fixed | Numbers | Strings | Arrays | Objects | Anything
    parts of Arrays and Objects are nodes again, and a node may lead back to itself

Numbers are exact (Fraction), names and strings are those that JSON spells, not their spellings.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from palmette.runtime.constraints.regex_language import Language

Node = int

# Node 0 is any JSON value, node 1 none, in every graph.
ANYTHING_NODE: Node = 0
NOTHING_NODE: Node = 1


@dataclass(frozen=True, slots=True)
class Text:
    """A set of strings: in all languages of `all_of`, in none of `none_of`, not among `without`, and of `least` to
    `most` characters (code points). `only`: where given, a finite set that the rest has been applied to already."""

    all_of: tuple[Language, ...] = ()
    none_of: tuple[Language, ...] = ()
    without: frozenset[str] = frozenset()
    least: int = 0
    most: int | None = None
    only: frozenset[str] | None = None


ANY_TEXT = Text()


@dataclass(frozen=True, slots=True)
class Anything:
    """Every JSON value."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """null, true, false: `text` is the literal."""

    text: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers between the bounds that are multiples of each of `multiple_of`, of none of `not_multiple_of`, and not
    among `without`. An integer is a multiple of 1 (1.0 is one). `only`: a finite set; the rest is applied already."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    multiple_of: tuple[Fraction, ...] = ()
    not_multiple_of: tuple[Fraction, ...] = ()
    without: frozenset[Fraction] = frozenset()
    only: frozenset[Fraction] | None = None


@dataclass(frozen=True, slots=True)
class Strings:
    text: Text = ANY_TEXT


class Contains(NamedTuple):
    """Between `least` and `most` of an array's items are valid under `node`."""

    node: Node
    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays of `least` to `most` items: the first ones under `prefix`, all others under `rest` (NOTHING_NODE: no more
    than the prefix). `unique`: no two items are equal; `repeats`: some two are."""

    prefix: tuple[Node, ...] = ()
    rest: Node = ANYTHING_NODE
    least: int = 0
    most: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: bool = False
    repeats: bool = False


class Member(NamedTuple):
    """A property that the shape names. Not required and under NOTHING_NODE: it must not be there."""

    name: str
    node: Node
    required: bool = False


class Others(NamedTuple):
    """What is asked of the values of members whose names are in `names`."""

    names: Text
    node: Node


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects of `least` to `most` members, no name twice.

    members: named one by one, in the order in which they are written. others: classes of further names, which no two
    share and none shares with `members`; a name in no class must not be there. some: for each of these at least one
    member exists whose name is in `names` and whose value is under `node`."""

    members: tuple[Member, ...] = ()
    others: tuple[Others, ...] = (Others(ANY_TEXT, ANYTHING_NODE),)
    least: int = 0
    most: int | None = None
    some: tuple[Others, ...] = ()


Shape = Anything | Fixed | Numbers | Strings | Arrays | Objects


@dataclass(frozen=True, slots=True)
class Normal:
    """nodes[n]: the shapes of node n, none of which is empty (nodes[1] is the only node with none). pointers[n]: where
    in the schema the node's parts come from, for messages."""

    nodes: tuple[tuple[Shape, ...], ...]
    root: Node
    pointers: tuple[tuple[str, ...], ...] = ()
