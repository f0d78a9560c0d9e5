"""Sets of Unicode characters as ranges, with Python's own notions of digit, word, blank and case."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache

import numpy as np

CharSet = tuple[tuple[int, int], ...]
"""Inclusive ranges of code points: ascending, disjoint, not adjacent. Surrogates are never in it: no text has them."""

_LAST = 0x10FFFF
_LOW_SURROGATE, _HIGH_SURROGATE = 0xD800, 0xDFFF


def charset(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The set of any ranges, in any order."""
    out: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if out and lo <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], hi))
        else:
            out.append((lo, hi))
    if any(lo <= _HIGH_SURROGATE and hi >= _LOW_SURROGATE for lo, hi in out):
        parts = [
            part
            for lo, hi in out
            for part in ((lo, min(hi, _LOW_SURROGATE - 1)), (max(lo, _HIGH_SURROGATE + 1), hi))
            if part[0] <= part[1]
        ]
        return tuple(dict.fromkeys(parts))
    return tuple(out)


ALL = charset([(0, _LAST)])
NEWLINE = charset([(10, 10)])
_LINE_ENDS = charset([(10, 10), (13, 13), (0x2028, 0x2029)])  # JavaScript's
_BYTE_ORDER_MARK = charset([(0xFEFF, 0xFEFF)])  # a blank in JavaScript
_ASCII_CLASSES = {
    "d": charset([(0x30, 0x39)]),
    "w": charset([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]),
    "s": charset([(9, 13), (0x20, 0x20)]),
}


def complement(chars: CharSet) -> CharSet:
    out, at = [], 0
    for lo, hi in chars:
        if lo > at:
            out.append((at, lo - 1))
        at = hi + 1
    if at <= _LAST:
        out.append((at, _LAST))
    return charset(out)


def union(*sets: CharSet) -> CharSet:
    return charset(r for s in sets for r in s)


def intersection(a: CharSet, b: CharSet) -> CharSet:
    out, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        lo, hi = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if lo <= hi:
            out.append((lo, hi))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


@lru_cache(maxsize=3)
def _unicode_class(letter: str) -> CharSet:
    # `re` itself says it, in one pass over all characters: many times faster than asking for each.
    last = 0x3000 if letter == "s" else _LAST  # no blank stands further up
    every = np.arange(last + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    return charset((m.start(), m.end() - 1) for m in re.finditer(rf"\{letter}+", every))


class Reading(Enum):
    """Which characters the classes and cases of a pattern mean.

    ASCII, UNICODE: as `re` with that flag. What JSON Schema calls a pattern is read by one program as JavaScript does,
    by another as Python does: NARROW are the characters on which all agree, WIDE those that any of them takes.
    """

    ASCII = "ascii"
    UNICODE = "unicode"
    NARROW = "narrow"
    WIDE = "wide"

    def opposite(self) -> Reading:
        """How the inside of a negated class is read."""
        return {Reading.NARROW: Reading.WIDE, Reading.WIDE: Reading.NARROW}.get(self, self)

    def ascii_only(self) -> bool:
        return self in (Reading.ASCII, Reading.NARROW)


def shorthand(letter: str, reading: Reading) -> CharSet:
    r"""What \d \w \s and \D \W \S stand for."""
    if letter.isupper():
        return complement(shorthand(letter.lower(), reading.opposite()))
    if reading.ascii_only():
        return _ASCII_CLASSES[letter]
    chars = _unicode_class(letter)
    return union(chars, _BYTE_ORDER_MARK) if (letter, reading) == ("s", Reading.WIDE) else chars


def any_character(reading: Reading) -> CharSet:
    """What "." stands for without (?s)."""
    return complement(_LINE_ENDS if reading is Reading.NARROW else NEWLINE)


@lru_cache(maxsize=1)
def _cases() -> dict[int, tuple[int, ...]]:
    """For each cased character the characters that `re` takes for it with IGNORECASE, itself too."""
    groups: dict[int, set[int]] = {}
    for c in range(_LAST + 1):
        relatives = {ord(v) for v in (chr(c).lower(), chr(c).upper(), chr(c).casefold()) if len(v) == 1} | {c}
        if len(relatives) > 1:
            merged = set().union(*(groups.get(r, {r}) for r in relatives))
            for r in merged:
                groups[r] = merged
    # `re` has its own table, which the string methods only come near: each candidate is tried with it.
    found: dict[int, tuple[int, ...]] = {}
    for group in {id(g): g for g in groups.values()}.values():
        text = "".join(map(chr, sorted(group)))
        for c in group:
            found[c] = tuple(map(ord, re.findall(re.escape(chr(c)), text, re.IGNORECASE)))
    return found


def fold(chars: CharSet, reading: Reading) -> CharSet:
    """The set with the other cases of its letters."""
    if reading.ascii_only():
        upper, lower = intersection(chars, ((0x41, 0x5A),)), intersection(chars, ((0x61, 0x7A),))
        return charset([*chars, *((a + 32, b + 32) for a, b in upper), *((a - 32, b - 32) for a, b in lower)])
    cases = _cases()
    extra = [
        (other, other)
        for c, others in cases.items()
        if len(others) > 1 and any(lo <= c <= hi for lo, hi in chars)
        for other in others
    ]
    return charset([*chars, *extra])


def utf8(lo: int, hi: int) -> list[tuple[tuple[int, int], ...]]:
    """The characters lo .. hi (no surrogates among them) as sequences of byte ranges.

    Any two sequences of disjoint ranges have, at each place where they part, first bytes that are equal or disjoint:
    a range of several lead bytes is used only where all bytes may follow each of them.
    """
    for last in (0x7F, 0x7FF, 0xFFFF):
        if lo <= last < hi:
            return utf8(lo, last) + utf8(last + 1, hi)
    if hi <= 0x7F:
        return [((lo, hi),)]
    length = 2 if hi <= 0x7FF else 3 if hi <= 0xFFFF else 4
    for tail in range(1, length):
        block = (1 << 6 * tail) - 1
        if lo & ~block != hi & ~block:
            if lo & block:
                return utf8(lo, lo | block) + utf8((lo | block) + 1, hi)
            if hi & block != block:
                return utf8(lo, (hi & ~block) - 1) + utf8(hi & ~block, hi)
    return [tuple(zip(chr(lo).encode(), chr(hi).encode(), strict=True))]
