"""What no grammar of ours says is taken out of a normal form, and told of, for the monitor to watch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from palmette.runtime.constraints.schema.number_regex import multiples_of_power, step
from palmette.runtime.constraints.schema.shapes import (
    ANYTHING_NODE,
    NOTHING_NODE,
    Arrays,
    Normal,
    Numbers,
    Objects,
    Shape,
    Strings,
)

# Members are counted by one rule for each place and count.
_MOST_COUNTED = 2000
# Beside a pattern that must not match, llguidance's lexer runs out of its budget in counting characters.
_MOST_LENGTH = 64
# llguidance looks at every remainder before it says that one can become 0: 70 ms for 10,000.
_MOST_STEP = 10_000


@dataclass(frozen=True, slots=True)
class Loose:
    """The grammar allows more than `keyword` does, in what node `node` says."""

    node: int
    keyword: str


def loosen(normal: Normal) -> tuple[Normal, tuple[Loose, ...]]:
    """The same graph with shapes that a grammar says exactly, and what that leaves out."""
    loose: list[Loose] = []
    nodes = []
    changed = False
    for node, shapes in enumerate(normal.nodes):
        out = []
        for shape in shapes:
            kept, keywords = _loosen(shape)
            changed |= kept is not shape
            out.append(kept)
            loose += [Loose(node, keyword) for keyword in keywords]
        nodes.append(tuple(out))
    return (replace(normal, nodes=tuple(nodes)) if changed else normal), tuple(dict.fromkeys(loose))


def as_double(value: Fraction) -> int | float | None:
    """The number as llguidance takes it from JSON; None where it would take another."""
    if value.denominator == 1:
        return int(value) if abs(value) <= 2**53 else None
    near = float(value)
    exact = 1e-15 <= abs(near) < 1e15 and Fraction(f"{near:.14e}") == value
    return near if exact else None


def counts(shape: Objects) -> tuple[int, int | None]:
    """How many members there must and may be, (0, None) where the members that are named see to it."""
    required = sum(member.required for member in shape.members)
    possible = sum(member.node != NOTHING_NODE for member in shape.members)
    least = 0 if shape.least <= required else shape.least
    most = None if shape.most is not None and shape.most >= possible and not _has_others(shape) else shape.most
    return least, most


def _has_others(shape: Objects) -> bool:
    return any(other.node != NOTHING_NODE for other in shape.others)


def _loosen(shape: Shape) -> tuple[Shape, list[str]]:
    if isinstance(shape, Numbers):
        return _numbers(shape)
    if isinstance(shape, Arrays):
        return _arrays(shape)
    if isinstance(shape, Objects):
        return _objects(shape)
    if isinstance(shape, Strings):
        return _strings(shape)
    return shape, []


def _strings(shape: Strings) -> tuple[Strings, list[str]]:
    text = shape.text
    if text.none_of and text.most is not None and text.most > _MOST_LENGTH:
        return Strings(replace(text, most=None)), ["maxLength"]
    return shape, []


def _numbers(shape: Numbers) -> tuple[Numbers, list[str]]:
    if shape.only is not None:
        return shape, []
    loose: list[str] = []
    common = step(shape)
    if common is not None and common != 1:
        # Such a number is a leaf of llguidance's own, of which nothing more can be asked.
        if shape.not_multiple_of or shape.without:
            loose.append("not")
            shape = replace(shape, not_multiple_of=(), without=frozenset())
        if any(bound is not None and as_double(bound) is None for bound in (shape.low, shape.high)):
            loose.append("minimum" if shape.low is not None else "maximum")
            shape = replace(shape, low=None, high=None)
        if as_double(common) is None or common.numerator > _MOST_STEP or _wants_all_places(common):
            loose.append("multipleOf")
            shape = replace(shape, multiple_of=())
    elif any(multiples_of_power(value) is None for value in shape.not_multiple_of):
        loose.append("not")
        kept = tuple(v for v in shape.not_multiple_of if multiples_of_power(v) is not None)
        shape = replace(shape, not_multiple_of=kept)
    return shape, loose


def _wants_all_places(step: Fraction) -> bool:
    """Whether llguidance takes a multiple only with all the decimal places of the step: 1.50 for 0.25, but not 1.5."""
    return 10 % step.denominator != 0 and multiples_of_power(step) is None


def _arrays(shape: Arrays) -> tuple[Arrays, list[str]]:
    if not (shape.unique or shape.repeats or shape.contains):
        return shape, []
    loose = []
    several = shape.most is None or shape.most > 1
    if shape.unique and several:
        loose.append("uniqueItems")
    if shape.repeats:
        loose.append("not uniqueItems")
        shape = replace(shape, least=max(shape.least, 2))
    if shape.contains and not says_contains(shape):
        loose.append("contains")
        shape = replace(shape, contains=(), least=max(shape.least, *(c.least for c in shape.contains)))
    return replace(shape, unique=False, repeats=False), loose


def says_contains(shape: Arrays) -> bool:
    """Whether "any items, then one of these, then any items" is all that is asked."""
    [first, *more] = shape.contains
    return (
        not more
        and first.most is None
        and first.least >= max(1, shape.least)
        and shape.most is None
        and not shape.prefix
        and shape.rest == ANYTHING_NODE
    )


def _objects(shape: Objects) -> tuple[Objects, list[str]]:
    if not shape.some and not shape.least and shape.most is None:
        return shape, []
    loose = []
    if shape.some:
        loose.append("not additionalProperties")
        shape = replace(shape, some=())
    least, most = counts(shape)
    if (least or most is not None) and (len(shape.members) + 1) * (max(least, most or 0) + 1) > _MOST_COUNTED:
        loose += (["minProperties"] if least else []) + (["maxProperties"] if most is not None else [])
        least, most = 0, None
    elif least > 1 and _has_others(shape):
        # A name that is not listed may come twice, and would be counted twice.
        loose.append("minProperties")
    return replace(shape, least=least, most=most), loose
