"""Numbers as regexes, held against exact arithmetic."""

from __future__ import annotations

import re
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.runtime.constraints.schema.number_regex import (
    multiples_of_power,
    spelling,
    spellings,
    step,
    within,
)
from palmette.runtime.constraints.schema.shapes import Numbers

DECIMALS = st.builds(lambda n, places: Fraction(n, 10**places), st.integers(-2000, 2000), st.integers(0, 4))
WRITTEN = st.builds(
    lambda sign, whole, digits: sign + str(whole) + ("." + digits if digits else ""),
    st.sampled_from(["", "-"]),
    st.integers(0, 2000),
    st.text("019", max_size=4),
)


def matches(numbers: Numbers, text: str, *, integers: bool) -> bool:
    for sign, asked in within(numbers, integers=integers):
        rest = text.removeprefix(sign)
        if text.startswith(sign) and not rest.startswith("-") and all(re.fullmatch(rx, rest) for rx in asked):
            return True
    return False


@settings(max_examples=500)
@given(st.none() | DECIMALS, st.none() | DECIMALS, st.booleans(), st.booleans(), WRITTEN | DECIMALS.map(spelling))
def test_intervals_hold_the_numbers_between_their_bounds(
    low: Fraction | None, high: Fraction | None, low_open: bool, high_open: bool, text: str
) -> None:
    if low is not None and high is not None and low >= high:
        low, high = high, low
        low_open = high_open = low_open and low < high
    value = Fraction(text)
    if value == 0:
        text = text.removeprefix("-")  # -0 is written only where negative numbers are
    inside = (low is None or (value > low if low_open else value >= low)) and (
        high is None or (value < high if high_open else value <= high)
    )
    numbers = Numbers(low, high, low_open, high_open)
    assert matches(numbers, text, integers=False) == inside
    assert matches(numbers, text, integers=True) == (inside and "." not in text)


@given(DECIMALS, WRITTEN)
def test_spellings_are_those_of_equal_value(value: Fraction, text: str) -> None:
    assert Fraction(spelling(value)) == value
    assert re.fullmatch(spellings(value), spelling(value))
    assert bool(re.fullmatch(spellings(value), text)) == (Fraction(text) == value)


@given(st.integers(-3, 3), WRITTEN)
def test_multiples_of_powers_of_ten(power: int, text: str) -> None:
    value = Fraction(10) ** power
    pattern = multiples_of_power(value)
    assert pattern is not None
    assert bool(re.fullmatch(pattern, text)) == (Fraction(text) % value == 0)
    assert multiples_of_power(value * 3) is None


@given(st.lists(st.fractions(Fraction(1, 20), 50, max_denominator=20), min_size=1, max_size=3), DECIMALS)
def test_the_step_is_the_least_common_multiple(values: list[Fraction], scale: Fraction) -> None:
    common = step(Numbers(multiple_of=tuple(values)))
    assert common is not None and all(common % value == 0 for value in values)
    x = common * scale.numerator
    assert all(x % value == 0 for value in values)
    small = common / 2
    assert any(small % value for value in values)
