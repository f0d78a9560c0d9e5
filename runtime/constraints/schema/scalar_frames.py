"""The frames of numbers and strings."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from palmette.runtime.constraints.schema import strings
from palmette.runtime.constraints.schema.frames import Frame, Pop, shortest_of
from palmette.runtime.constraints.schema.machine_numbers import finish, plain
from palmette.runtime.constraints.schema.machine_values import quoted
from palmette.runtime.constraints.schema.shapes import Numbers
from palmette.runtime.constraints.schema.strings import Avoided
from palmette.runtime.constraints.schema.text_machine import TextMachine

if TYPE_CHECKING:
    from palmette.runtime.constraints.schema.machine import Machine

_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE](?:[+-]?[0-9]*))?)?|[eE](?:[+-]?[0-9]*))?)?")
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LONGEST = 1000  # digits of a number of which more than the form matters
_HIGH = re.compile("[eE][+-]?[0-9]{3}")
_INTEGERS = Numbers(multiple_of=(Fraction(1),))
# Texts after which all plain numbers, and all integers, go on alike; the first of each line stands for it.
_ALIKE = (
    ("0", re.compile("-?0")),
    ("1", re.compile("-?[1-9][0-9]*")),
    ("1.", re.compile(r"-?[0-9]+\.")),
    ("1.0", re.compile(r"-?[0-9]+\.[0-9]+")),
    ("1e", re.compile(r"-?[0-9.]+[eE]")),
    ("1e-", re.compile(r"-?[0-9.]+[eE][+-]")),
    ("1e0", re.compile(r"-?[0-9.]+[eE][+-]?[0-9]+")),
)


def number_rest(s: Numbers, text: str) -> str | None:
    """The shortest rest of a number of the set that begins so."""
    if plain(s):
        return "" if _WHOLE.fullmatch(text) else "0"
    return None if "e" in text or "E" in text else finish(s, text)


class Number(Frame):
    """Inside a number: its text so far, or one that goes on as it does. A number ends where something else begins."""

    __slots__ = ("alternatives", "text")

    def __init__(
        self, machine: Machine, raw: bytes | None, alternatives: tuple[tuple[Any, Numbers], ...], text: str
    ) -> None:
        super().__init__(machine, raw)
        self.alternatives = alternatives
        self.text = text

    def _finishes(self) -> dict[Any, bytes]:
        ways = ((goal, number_rest(s, self.text)) for goal, s in self.alternatives)
        return shortest_of((goal, None if rest is None else rest.encode()) for goal, rest in ways)

    def complete(self) -> frozenset[Any]:
        return frozenset(goal for goal, rest in self.finish().items() if not rest)

    def _step(self, byte: int) -> Frame | Pop | None:
        text = self.text + chr(byte)
        whole = self.complete()
        if byte < 0x80 and _BEGUN.fullmatch(text) and not (whole and self._too_long(text)):
            return self.machine.number(self.longer(bytes([byte])), self.alternatives, text)
        return Pop(whole, self.raw, True) if whole else None

    def _too_long(self, text: str) -> bool:
        """Whether it could not be reckoned with: no number that is compared has an exponent of three digits."""
        return len(text) > _LONGEST or (self.raw is not None and _HIGH.search(text) is not None)


def alike(alternatives: tuple[tuple[Any, Numbers], ...], text: str) -> str:
    """A text that stands for this one where only its form matters."""
    if all(s == _INTEGERS or plain(s) for _, s in alternatives):
        whole = any(s == _INTEGERS for _, s in alternatives)
        for standing, form in _ALIKE:
            # Of integers only zeros may stand behind the point.
            if form.fullmatch(text) and not (whole and "." in text and text.split(".")[1].strip("0")):
                return standing
    return text


# An alternative of a string: (goal, machine, state, what it must not become).
Strand = tuple[Any, TextMachine, Any, Avoided]

# Where a string is: between or inside plain characters, behind a backslash, behind \u and some hex digits, and the
# same for the second half of a pair, with the first half.
PLAIN, _BACKSLASH, _UNICODE, _SECOND, _SECOND_U, _SECOND_HEX = range(6)
_SIMPLE = {0x22: 0x22, 0x5C: 0x5C, 0x2F: 0x2F, 0x62: 8, 0x66: 12, 0x6E: 10, 0x72: 13, 0x74: 9}
_HEX = frozenset(b"0123456789abcdefABCDEF")


def alive(strand: Strand) -> bool:
    _, machine, state, avoided = strand
    return not avoided or strings.shortest(machine, state, avoided) is not None


def advance(strand: Strand, content: bytes) -> Strand | None:
    """The alternative after more of the string's content; it may be dead all the same for what is avoided."""
    goal, machine, state, avoided = strand
    for byte in content:
        state = machine.step(state, byte)
        if state is None:
            return None
        avoided = strings.step_avoided(avoided, byte)
    return goal, machine, state, avoided


class String(Frame):
    """Inside a string, or a name."""

    __slots__ = ("hexes", "high", "mode", "strands")

    def __init__(
        self, machine: Machine, raw: bytes | None, strands: tuple[Strand, ...], mode: int, hexes: str, high: int
    ) -> None:
        """hexes: the digits behind \\u so far; high: the first half of a pair."""
        super().__init__(machine, raw)
        self.strands = strands
        self.mode = mode
        self.hexes = hexes
        self.high = high

    def _step(self, byte: int) -> Frame | Pop | None:
        raw = self.longer(bytes([byte]))
        if self.mode == PLAIN:
            if byte == 0x22:
                goals = frozenset(g for g, m, state, out in self.strands if b"" not in out and m.final(state))
                return Pop(goals, raw, False) if goals else None
            if byte == 0x5C:
                return self._if_possible(raw, _BACKSLASH)
            return self._taken(raw, bytes([byte])) if byte >= 0x20 else None
        if self.mode == _BACKSLASH:
            if byte == 0x75:
                return self._if_possible(raw, _UNICODE)
            return self._taken(raw, bytes([_SIMPLE[byte]])) if byte in _SIMPLE else None
        if self.mode == _SECOND:
            return self._if_possible(raw, _SECOND_U, high=self.high) if byte == 0x5C else None
        if self.mode == _SECOND_U:
            return self._if_possible(raw, _SECOND_HEX, high=self.high) if byte == 0x75 else None
        if byte not in _HEX:
            return None
        hexes = self.hexes + chr(byte).lower()
        if len(hexes) < 4:
            return self._if_possible(raw, self.mode, hexes, self.high)
        unit = int(hexes, 16)
        if self.mode == _SECOND_HEX:
            if not 0xDC00 <= unit <= 0xDFFF:
                return None
            return self._taken(raw, chr(0x10000 + ((self.high - 0xD800) << 10) + unit - 0xDC00).encode())
        if 0xD800 <= unit <= 0xDBFF:
            return self._if_possible(raw, _SECOND, high=unit)
        return None if 0xDC00 <= unit <= 0xDFFF else self._taken(raw, chr(unit).encode())

    def uniform(self) -> bool:
        """Whether nothing but the length is asked of what follows."""
        if self.mode != PLAIN or self.raw is not None or self.within_character():
            return False
        return all(not out and self.machine.costs.uniform(machine) for _, machine, _, out in self.strands)

    def within_character(self) -> bool:
        """Whether a character of several bytes, or an escape, is under way."""
        _, machine, state, _ = self.strands[0]
        rest = machine.shortest(state)
        return self.mode != PLAIN or (bool(rest) and 0x80 <= rest[0] < 0xC0)

    def _taken(self, raw: bytes | None, content: bytes) -> Frame | None:
        """Behind one more character, or byte of one."""
        moved = (advance(strand, content) for strand in self.strands)
        left = tuple(strand for strand in moved if strand is not None and alive(strand))
        return self.machine.frame(String, raw, left, PLAIN, "", 0) if left else None

    def _if_possible(self, raw: bytes | None, mode: int, hexes: str = "", high: int = 0) -> Frame | None:
        """Inside an escape, with the alternatives for which some character can come of it."""
        left = tuple(strand for strand in self.strands if escape_rest(strand, mode, hexes, high) is not None)
        return self.machine.frame(String, raw, left, mode, hexes, high) if left else None

    def _finishes(self) -> dict[Any, bytes]:
        return shortest_of((strand[0], self._rest(strand)) for strand in self.strands)

    def _rest(self, strand: Strand) -> bytes | None:
        if self.mode == PLAIN:
            content = strings.shortest(*strand[1:])
            return None if content is None else quoted(content) + b'"'
        return escape_rest(strand, self.mode, self.hexes, self.high)


def escape_rest(strand: Strand, mode: int, hexes: str, high: int) -> bytes | None:
    """The shortest rest of a string, its quote included, from inside an escape on; None where there is none. (Of the
    many characters behind \\u the first that can come is taken.)"""
    _, machine, state, avoided = strand
    if mode == _BACKSLASH:
        best: bytes | None = None
        for sign, character in _SIMPLE.items():
            moved = advance(strand, bytes([character]))
            rest = None if moved is None else strings.shortest(*moved[1:])
            if rest is not None and (best is None or len(rest) + 1 < len(best)):
                best = bytes([sign]) + quoted(rest)
        if best is not None:
            return best + b'"'
        rest = escape_rest(strand, _UNICODE, "", 0)
        return None if rest is None else b"u" + rest
    first, last = int(hexes.ljust(4, "0"), 16), int(hexes.ljust(4, "f"), 16)
    if mode != _UNICODE:
        before = {_SECOND: b"\\u", _SECOND_U: b"u", _SECOND_HEX: b""}[mode]
        base = 0x10000 + ((high - 0xD800) << 10)
        low, top = max(first, 0xDC00), min(last, 0xDFFF)
        if low > top:
            return None
        found = strings.character_between(machine, state, avoided, base + low - 0xDC00, base + top - 0xDC00)
        if found is None:
            return None
        return before + (b"%04x" % (0xDC00 + (found[0] & 0x3FF)))[len(hexes) :] + quoted(found[1]) + b'"'
    for low, top in ((0x20, 0xD7FF), (0, 0x1F), (0xE000, 0xFFFF)):
        low, top = max(first, low), min(last, top)
        if low <= top:
            found = strings.character_between(machine, state, avoided, low, top)
            if found is not None:
                return (b"%04x" % found[0])[len(hexes) :] + quoted(found[1]) + b'"'
    low, top = max(first, 0xD800), min(last, 0xDBFF)
    if low > top:
        return None
    low, top = 0x10000 + ((low - 0xD800) << 10), 0x10000 + ((top - 0xD800) << 10) + 0x3FF
    found = strings.character_between(machine, state, avoided, low, top)
    if found is None:
        return None
    at = found[0] - 0x10000
    units = (b"%04x" % (0xD800 + (at >> 10)))[len(hexes) :] + b"\\u%04x" % (0xDC00 + (at & 0x3FF))
    return units + quoted(found[1]) + b'"'
