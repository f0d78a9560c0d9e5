"""Sets of numbers: intersection and emptiness, exact."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce

from palmette.runtime.constraints.schema.shapes import Numbers
from palmette.runtime.constraints.schema.values import lcm, ranges_of_multiples

# So many candidates are tried one by one before a bounded set counts as not empty.
_TRIED = 100_000


def holds(numbers: Numbers, value: Fraction | int) -> bool:
    """Whether the value is in the set."""
    if numbers.only is not None:
        return value in numbers.only
    low, high = numbers.low, numbers.high
    if low is not None and (value < low or (numbers.low_open and value == low)):
        return False
    if high is not None and (value > high or (numbers.high_open and value == high)):
        return False
    if value in numbers.without:
        return False
    return all(_divides(m, value) for m in numbers.multiple_of) and not any(
        _divides(m, value) for m in numbers.not_multiple_of
    )


def _divides(step: Fraction, value: Fraction | int) -> bool:
    return (step.denominator == 1 == step.numerator and value.denominator == 1) or (value / step).denominator == 1


def meet_numbers(a: Numbers, b: Numbers) -> Numbers | None:
    if a.only is not None or b.only is not None:
        few, other = (a, b) if a.only is not None else (b, a)
        assert few.only is not None
        kept = frozenset(v for v in few.only if holds(other, v))
        return Numbers(only=kept) if kept else None
    low, low_open = a.low, a.low_open
    if b.low is not None and (low is None or (b.low, b.low_open) > (low, low_open)):
        low, low_open = b.low, b.low_open
    high, high_open = a.high, a.high_open
    if b.high is not None and (high is None or (b.high, not b.high_open) < (high, not high_open)):
        high, high_open = b.high, b.high_open
    steps = a.multiple_of if a.multiple_of == b.multiple_of else (*a.multiple_of, *b.multiple_of)
    found = Numbers(
        low,
        high,
        low_open,
        high_open,
        (reduce(lcm, steps),) if len(steps) > 1 else steps,
        a.not_multiple_of
        if a.not_multiple_of == b.not_multiple_of
        else tuple(dict.fromkeys((*a.not_multiple_of, *b.not_multiple_of))),
        a.without | b.without,
    )
    return None if is_empty(found) else found


def is_empty(numbers: Numbers) -> bool:
    count = count_up_to(numbers, 1)
    return count == 0


def count_up_to(numbers: Numbers, limit: int) -> int:
    """How many numbers there are, at most `limit`."""
    found = listed(numbers, limit)
    return limit if found is None else min(limit, len(found))


def listed(numbers: Numbers, limit: int) -> list[Fraction] | None:
    """All of the set, or None when there are `limit` or more."""
    if numbers.only is not None:
        return sorted(numbers.only) if len(numbers.only) < limit else None
    low, high = numbers.low, numbers.high
    if (
        low is not None
        and high is not None
        and (low > high or (low == high and (numbers.low_open or numbers.high_open)))
    ):
        return []
    if not numbers.multiple_of:
        if low is None or high is None or low < high:
            return None
        found = [Fraction(low)] if holds(numbers, low) else []
        return found if len(found) < limit else None
    step = reduce(lcm, numbers.multiple_of)
    if any((step / m).denominator == 1 for m in numbers.not_multiple_of):
        return []
    if low is None or high is None:
        return None  # one more than a multiple of all the others' ratios is never among them
    first, last = ranges_of_multiples(Fraction(low), Fraction(high), step)
    found = []
    for k in range(first, min(last, first + _TRIED) + 1):
        if holds(numbers, k * step):
            found.append(k * step)
            if len(found) >= limit:
                return None
    return found if last <= first + _TRIED else None
