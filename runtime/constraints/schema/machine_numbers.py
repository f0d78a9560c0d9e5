"""Numbers digit by digit: how a number that has begun can be completed to one of a set, in the fewest digits.

Numbers are written plainly, with no exponent, wherever a set is bounded in any way; only where every number is
allowed may there be one. What follows digits that stand is an interval for each count of further digits before the
point, and a grid for each count of them behind it, so the question is which grid points lie in the intervals:

    "-12"   ->   -12.xx    [12, 13)        0 more digits before the point
                 -12x.xx   [120, 130)      1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import gcd, lcm

from palmette.runtime.constraints.schema.machine_graph import has_number
from palmette.runtime.constraints.schema.shapes import Numbers

_MORE_DIGITS = 20  # beyond those of the bounds
_MOST_TRIES = 10_000
_SPELLED = re.compile(r"(-?)([0-9]*)(?:(\.)([0-9]*))?")


def plain(s: Numbers) -> bool:
    """Whether every number is in the set, and may be written with an exponent."""
    return s == Numbers()


def value_of(text: str | bytes) -> Fraction:
    """The number that a JSON text spells."""
    return Fraction(text if isinstance(text, str) else text.decode())


def spell(value: Fraction) -> str | None:
    """The decimal digits of a number, or None where they never end."""
    twos = fives = 0
    rest = value.denominator
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1:
        return None
    places = max(twos, fives)
    return _decimal(value, places)


def _decimal(value: Fraction, places: int) -> str:
    digits = str(abs(value.numerator) * (10**places // value.denominator)).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return sign + (digits[:-places] + "." + digits[-places:] if places else digits)


def finish(s: Numbers, text: str) -> str | None:
    """The shortest continuation (maybe none: "") that makes of `text`, the beginning of a plain number or "", a number
    of the set. None where there is none within the digits that are looked at."""
    if not text:
        ways = [(way, "-" * sign + way) for sign in (0, 1) if (way := _finish(s, sign == 1, "", None)) is not None]
        return min(ways, key=lambda pair: len(pair[1]))[1] if ways else None
    match = _SPELLED.fullmatch(text)
    if match is None:
        return None
    sign, digits, point, places = match.groups()
    if len(digits) > 1 and digits[0] == "0":
        return None
    return _finish(s, bool(sign), digits, places if point else None)


def _finish(s: Numbers, negative: bool, digits: str, places: str | None) -> str | None:
    if s.only is not None:
        return _listed(s.only, negative, digits, places)
    low, low_open, high, high_open = s.low, s.low_open, s.high, s.high_open
    if negative:
        low, low_open, high, high_open = (
            None if high is None else -high,
            high_open,
            None if low is None else -low,
            low_open,
        )
    if low is None or low < 0:
        low, low_open = Fraction(0), False
    if high is not None and (high < low or (high == low and (low_open or high_open))):
        return None
    room = _room(s)
    best: str | None = None
    for more, first, last in _intervals(digits, places, room):
        if last <= low or (high is not None and first > high):
            if high is not None and first > high:
                break
            continue
        if best is not None and more >= len(best):
            break
        done = len(places) if places is not None else 0
        for extra in range(0 if places is None or done else 1, room + 1):
            cost = more + extra + (1 if places is None and extra else 0)
            if best is not None and cost >= len(best):
                break
            grid = Fraction(1, 10 ** (done + extra))
            found = _first(s, negative, grid, max(first, low), low_open, min(last, high) if high is not None else last)
            # `last` itself is beyond the interval, `high` may be in the set.
            if found is not None and found < last and (high is None or found < high or not high_open):
                best = _decimal(found, done + extra)[len(digits) + (1 + done if places is not None else 0) :]
                break
            if _settled(s, done + extra):
                break
    return best


def _settled(s: Numbers, places: int) -> bool:
    """Whether more decimal places lead to no further numbers, all being multiples of something."""
    return any((m * 10**places).denominator == 1 for m in s.multiple_of)


def _room(s: Numbers) -> int:
    """How many further digits are looked at, before the point and behind it."""
    known = [v for v in (s.low, s.high, *s.multiple_of, *s.not_multiple_of) if v is not None]
    sizes = [len(str(abs(v.numerator))) + len(str(v.denominator)) for v in known]
    return _MORE_DIGITS + max(sizes, default=0) + len(str(len(s.without)))


def longest(s: Numbers) -> int:
    """No shortest rest of a number of the set has more characters."""
    if plain(s):
        return 1
    if s.only is not None:
        return max((len(spell(v) or "") for v in s.only), default=0)
    return 2 * _room(s) + 2


def _intervals(digits: str, places: str | None, room: int) -> Iterator[tuple[int, Fraction, Fraction]]:
    """What magnitudes, first <= x < last, can follow: with so many more digits before the point."""
    if places is not None:
        x = Fraction(int(digits + places), 10 ** len(places))
        yield 0, x, x + Fraction(1, 10 ** len(places))
    elif not digits:
        for more in range(1, room + 1):
            yield more, Fraction(0 if more == 1 else 10 ** (more - 1)), Fraction(10**more)
    else:
        d = int(digits)
        for more in range(room + 1 if d else 1):
            yield more, Fraction(d * 10**more), Fraction((d + 1) * 10**more)


def _lattice(s: Numbers, grid: Fraction) -> Fraction:
    """The step of the numbers that are multiples of all that is asked, and of `grid`."""
    step = grid
    for m in s.multiple_of:
        step = Fraction(lcm(step.numerator, m.numerator), gcd(step.denominator, m.denominator))
    return step


def _first(
    s: Numbers, negative: bool, grid: Fraction, low: Fraction, low_open: bool, high: Fraction
) -> Fraction | None:
    """The least magnitude on the grid from `low` to `high` (it too) that is in the set but for the upper bound."""
    step = _lattice(s, grid)
    if any((step / m).denominator == 1 for m in s.not_multiple_of):
        return None
    at = -(-low // step)
    for _ in range(_MOST_TRIES):
        found = at * step
        if found > high:
            return None
        signed = -found if negative else found
        good = signed not in s.without and not any((found / m).denominator == 1 for m in s.not_multiple_of)
        # The lower bound is asked of the magnitude, whose interval may begin above it.
        bound = s.high if negative else s.low
        is_open = s.high_open if negative else s.low_open
        above = bound is None or not is_open or signed != bound
        if good and above:
            return found
        at += 1
    return None


def _listed(only: Iterable[Fraction], negative: bool, digits: str, places: str | None) -> str | None:
    written = digits if places is None else f"{digits}.{places}"
    best: str | None = None
    for value in only:
        spelled = spell(value)
        if spelled is None or (value < 0) > negative or (value > 0 and negative):
            continue
        spelled = spelled.lstrip("-")
        if spelled.startswith(written):
            rest = spelled[len(written) :]
        elif places is not None and _zeros_behind(spelled, written):
            rest = "" if places else "0"
        else:
            continue
        if best is None or len(rest) < len(best):
            best = rest
    return best


def _zeros_behind(spelled: str, written: str) -> bool:
    longer = spelled if "." in spelled else spelled + "."
    return written.startswith(longer) and not written[len(longer) :].strip("0")


def shrunk(s: Numbers, values: frozenset[Fraction]) -> Numbers | None:
    """The set without some values; None when nothing is left for certain."""
    gone = frozenset(v for v in values if has_number(s, v))
    if not gone:
        return s
    if s.only is not None:
        return Numbers(only=s.only - gone) if s.only - gone else None
    return Numbers(s.low, s.high, s.low_open, s.high_open, s.multiple_of, s.not_multiple_of, s.without | gone)
