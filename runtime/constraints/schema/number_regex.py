"""Numbers as regexes over the way they are written, exact where doubles are not.

A number is written without an exponent as soon as anything is asked of it: then its digits stand in the order in which
they are compared, and an interval is a short regex. What must hold besides is left to `&` and `~` of llguidance's
terminals, which its lexer decides by derivatives.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, gcd, lcm

from palmette.runtime.constraints.schema.shapes import Numbers

ANY_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
PLAIN_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
INTEGER = "-?(?:0|[1-9][0-9]*)"
NEVER = r"[^\x{0}-\x{10FFFF}]"
_TAIL = r"(?:\.[0-9]+)?"
_NOTHING_MORE = r"(?:\.0+)?"
_SOMETHING = "[0-9]*[1-9][0-9]*"  # digits, not all 0


def step(numbers: Numbers) -> Fraction | None:
    """What all must be a multiple of: the least common multiple of `multiple_of`; None: of nothing."""
    if not numbers.multiple_of:
        return None
    found = numbers.multiple_of[0]
    for m in numbers.multiple_of[1:]:
        # lcm(a/b, c/d) = lcm(a, c) / gcd(b, d) in lowest terms.
        found = Fraction(lcm(found.numerator, m.numerator), gcd(found.denominator, m.denominator))
    return found


def spelling(value: Fraction) -> str:
    """The shortest decimal without an exponent. ValueError for one that has no end, which JSON cannot write."""
    whole, digits = _digits(abs(value))
    return ("-" if value < 0 else "") + whole + ("." + digits if digits else "")


def spellings(value: Fraction) -> str:
    """A regex of all ways to write it without an exponent."""
    whole, digits = _digits(abs(value))
    tail = rf"\.{digits}0*" if digits else _NOTHING_MORE
    return ("-?" if value == 0 else "-" if value < 0 else "") + whole + tail


def within(numbers: Numbers, *, integers: bool) -> list[tuple[str, list[str]]]:
    """The numbers (or the integers) between the bounds: a union, each part a sign and regexes that all must hold of
    what follows it. -0 is among them only where negative numbers are."""
    low, high = numbers.low, numbers.high
    low_open, high_open = numbers.low_open, numbers.high_open
    if integers:
        if low is not None:
            low, low_open = Fraction(floor(low) + 1 if low_open else ceil(low)), False
        if high is not None:
            high, high_open = Fraction(ceil(high) - 1 if high_open else floor(high)), False
    whole = "(?:0|[1-9][0-9]*)"
    free = whole if integers else whole + _TAIL
    parts: list[tuple[str, list[str]]] = []
    if high is None or high > 0 or (high == 0 and not high_open):
        asked = []
        if low is not None and (low > 0 or (low == 0 and low_open)):
            asked.append(at_least(low, low_open, integers))
        if high is not None:
            asked.append(at_most(high, high_open, integers))
        parts.append(("", asked or [free]))
    if low is None or low < 0:
        asked = []
        if high is not None and (high < 0 or (high == 0 and high_open)):
            asked.append(at_least(-high, high_open, integers))
        if low is not None:
            asked.append(at_most(-low, low_open, integers))
        parts.append(("-", asked or [free]))
    return parts


def at_least(bound: Fraction, is_open: bool, integers: bool) -> str:
    """Numbers without a sign from `bound` (>= 0) on, or above it."""
    whole, digits = _digits(bound)
    tail = "" if integers else _TAIL
    options = [f"[1-9][0-9]{{{len(whole)},}}{tail}"]
    for i, digit in enumerate(whole):
        # A number of several digits does not begin with 0.
        if digit < "9":
            options.append(f"{whole[:i]}[{int(digit) + 1}-9][0-9]{{{len(whole) - i - 1}}}{tail}")
    if integers:
        options += [] if is_open else [whole]
    elif not digits:
        options.append(rf"{whole}\.{_SOMETHING}" if is_open else whole + _TAIL)
    else:
        for i, digit in enumerate(digits):
            if digit < "9":
                options.append(rf"{whole}\.{digits[:i]}[{int(digit) + 1}-9][0-9]*")
        options.append(rf"{whole}\.{digits}" + (_SOMETHING if is_open else "[0-9]*"))
    return "(?:" + "|".join(options) + ")"


def at_most(bound: Fraction, is_open: bool, integers: bool) -> str:
    """Numbers without a sign up to `bound` (>= 0), or below it; NEVER where that is none."""
    whole, digits = _digits(bound)
    tail = "" if integers else _TAIL
    options = []
    if len(whole) > 1:
        options.append(f"(?:0|[1-9][0-9]{{0,{len(whole) - 2}}}){tail}")
    for i, digit in enumerate(whole):
        first = 1 if i == 0 and len(whole) > 1 else 0
        if int(digit) > first:
            options.append(f"{whole[:i]}[{first}-{int(digit) - 1}][0-9]{{{len(whole) - i - 1}}}{tail}")
    if digits:
        options.append(whole)
        for i, digit in enumerate(digits):
            if i:
                options.append(rf"{whole}\.{digits[:i]}")
            if digit > "0":
                options.append(rf"{whole}\.{digits[:i]}[0-{int(digit) - 1}][0-9]*")
        options += [] if is_open else [rf"{whole}\.{digits}0*"]
    elif not is_open:
        options.append(whole if integers else whole + _NOTHING_MORE)
    return "(?:" + "|".join(options or [NEVER]) + ")"


def multiples_of_power(value: Fraction) -> str | None:
    """The ways to write a multiple of a power of ten, without an exponent; None for another value."""
    power = 0
    while value >= 10 and value.numerator % 10 == 0:
        value, power = value / 10, power + 1
    while value < 1:
        value, power = value * 10, power - 1
    if value != 1:
        return None
    if power <= 0:
        tail = rf"(?:\.[0-9]{{1,{-power}}}0*)?" if power else _NOTHING_MORE
        return rf"{INTEGER}{tail}"
    return rf"-?(?:0|[1-9][0-9]*0{{{power}}}){_NOTHING_MORE}"


def _digits(value: Fraction) -> tuple[str, str]:
    """Digits before and after the point, without zeros at the far end."""
    twos = fives = 0
    rest = value.denominator
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1:
        raise ValueError(f"{value} has no end as a decimal")
    places = max(twos, fives)
    text = str(value.numerator * 10**places // value.denominator)
    if not places:
        return text, ""
    text = text.rjust(places + 1, "0")
    return text[:-places], text[-places:]
