"""JSON values as the reader holds them: numbers are int or Fraction, equal values have one canonical form."""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction
from typing import Any

# The places of the JSON types in what the reader says by type.
NULL, TRUE, FALSE, NUMBER, STRING, ARRAY, OBJECT = range(7)


def kind(value: Any) -> int:
    if isinstance(value, str):
        return STRING
    if isinstance(value, dict):
        return OBJECT
    if isinstance(value, list):
        return ARRAY
    if value is None:
        return NULL
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return NUMBER


def canonical(value: Any) -> Hashable:
    """Equal for equal JSON values: 1 and 1.0 are, 1 and true are not, and the order of keys does not count."""
    if isinstance(value, bool):
        return (value,)
    if isinstance(value, list):
        return ("[", *map(canonical, value))
    if isinstance(value, dict):
        return frozenset((key, canonical(item)) for key, item in value.items())
    if isinstance(value, float):
        return Fraction(value)
    return value  # type: ignore[no-any-return]


def lcm(a: Fraction, b: Fraction) -> Fraction:
    """The least number that both divide."""
    x, y = a.numerator * b.denominator, b.numerator * a.denominator
    while y:
        x, y = y, x % y
    return Fraction(a.numerator * b.numerator, x)


def ranges_of_multiples(low: Fraction, high: Fraction, step: Fraction) -> tuple[int, int]:
    """The first and last k with low <= k * step <= high."""
    return -((-low / step).__floor__()), (high / step).__floor__()
