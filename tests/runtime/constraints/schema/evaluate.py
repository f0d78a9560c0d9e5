"""Whether a whole value is among those of a normal form: an evaluator of its own, as simple as can be."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from palmette.runtime.constraints.schema.shapes import (
    Anything,
    Arrays,
    Fixed,
    Normal,
    Numbers,
    Objects,
    Shape,
    Strings,
    Text,
)

Contains = Callable[[Text, str], bool]


def evaluate(normal: Normal, value: Any, contains: Contains) -> bool:
    """contains: whether a Text holds a string."""
    return _node(normal, normal.root, value, contains)


def _node(normal: Normal, node: int, value: Any, contains: Contains) -> bool:
    return any(_shape(normal, shape, value, contains) for shape in normal.nodes[node])


def _shape(normal: Normal, shape: Shape, value: Any, contains: Contains) -> bool:
    if isinstance(shape, Anything):
        return True
    if isinstance(shape, Fixed):
        return value is {"null": None, "true": True, "false": False}[shape.text]
    if isinstance(shape, Numbers):
        return (
            isinstance(value, int | float | Fraction) and not isinstance(value, bool) and _number(shape, exact(value))
        )
    if isinstance(shape, Strings):
        return isinstance(value, str) and contains(shape.text, value)
    if isinstance(shape, Arrays):
        return isinstance(value, list) and _array(normal, shape, value, contains)
    return isinstance(value, dict) and _object(normal, shape, value, contains)


def exact(value: float | Fraction) -> Fraction:
    return Fraction(str(value)) if isinstance(value, float) else Fraction(value)


def _number(shape: Numbers, value: Fraction) -> bool:
    if shape.only is not None:
        return value in shape.only
    if shape.low is not None and not (value > shape.low or (value == shape.low and not shape.low_open)):
        return False
    if shape.high is not None and not (value < shape.high or (value == shape.high and not shape.high_open)):
        return False
    if any((value / m).denominator != 1 for m in shape.multiple_of):
        return False
    return value not in shape.without and all((value / m).denominator != 1 for m in shape.not_multiple_of)


def _array(normal: Normal, shape: Arrays, value: list[Any], contains: Contains) -> bool:
    if len(value) < shape.least or (shape.most is not None and len(value) > shape.most):
        return False
    for i, item in enumerate(value):
        node = shape.prefix[i] if i < len(shape.prefix) else shape.rest
        if not _node(normal, node, item, contains):
            return False
    for c in shape.contains:
        count = sum(_node(normal, c.node, item, contains) for item in value)
        if count < c.least or (c.most is not None and count > c.most):
            return False
    if shape.unique or shape.repeats:
        distinct = len({canonical(item) for item in value}) == len(value)
        return distinct is shape.unique
    return True


def canonical(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return (type(value).__name__, value)
    if isinstance(value, list):
        return ("list", *map(canonical, value))
    if isinstance(value, dict):
        return ("dict", frozenset((k, canonical(v)) for k, v in value.items()))
    return ("number", exact(value))


def _object(normal: Normal, shape: Objects, value: dict[str, Any], contains: Contains) -> bool:
    if len(value) < shape.least or (shape.most is not None and len(value) > shape.most):
        return False
    named = {m.name: m for m in shape.members}
    assert len(named) == len(shape.members)
    if any(m.required and m.name not in value for m in shape.members):
        return False
    for name, item in value.items():
        if name in named:
            assert not any(contains(o.names, name) for o in shape.others), name
            if not _node(normal, named[name].node, item, contains):
                return False
            continue
        classes = [o for o in shape.others if contains(o.names, name)]
        assert len(classes) <= 1, name
        if not classes or not _node(normal, classes[0].node, item, contains):
            return False
    return all(
        any(contains(o.names, name) and _node(normal, o.node, item, contains) for name, item in value.items())
        for o in shape.some
    )
