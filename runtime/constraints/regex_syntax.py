"""The syntax of Python's `re`, read into a tree that knows where each part stood.

Only patterns that `re.compile` takes are read, so this parser need not tell what is wrong with the others.
The rules are those of the `re` documentation; characters are decided on the spot: flags and classes leave plain sets.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace

from palmette.errors import ConstraintError
from palmette.runtime.constraints.charset import (
    ALL,
    CharSet,
    Reading,
    any_character,
    charset,
    complement,
    fold,
    shorthand,
    union,
)


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of the set; the empty set matches nothing at all."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Seq:
    """The items one after another; none of them: the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`body` from `least` to `most` times (None: any number). mark: "" greedy, "?" lazy, "+" possessive."""

    body: Node
    least: int
    most: int | None
    mark: str
    at: int


@dataclass(frozen=True, slots=True)
class Atomic:
    """(?>body)"""

    body: Node
    at: int


@dataclass(frozen=True, slots=True)
class Assertion:
    r"""A place between characters. kind: "^" (also \A), "$", "\Z", "\b", "\B", "(?=", "(?!"; body of the last two."""

    kind: str
    at: int
    body: Node | None = None


Node = Chars | Seq | Alt | Repeat | Atomic | Assertion

_OCTAL = "01234567"
_CONTROL = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_BLANK = " \t\n\r\v\f"


@dataclass(frozen=True, slots=True)
class _Flags:
    ignore_case: bool = False
    dot_all: bool = False
    verbose: bool = False
    multi_line: bool = False
    reading: Reading = Reading.ASCII


_FLAG_OF = {"i": "ignore_case", "s": "dot_all", "x": "verbose", "m": "multi_line"}


def _set_flags(flags: _Flags, letters: str, on: bool) -> _Flags:
    for letter in letters:
        if letter in "au":
            flags = replace(flags, reading=Reading.ASCII if letter == "a" else Reading.UNICODE)
        else:
            flags = replace(flags, **{_FLAG_OF[letter]: on})
    return flags


def refused(what: str, at: int, hint: str) -> ConstraintError:
    return ConstraintError(f"{what} cannot be enforced", pointer=f"@{at}", hint=hint)


def parse(pattern: str, reading: Reading = Reading.ASCII) -> Node:
    """The tree of a pattern that `re.compile` accepts. ConstraintError for what no automaton can do."""
    return _Parser(pattern).alternatives(_Flags(reading=reading))


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0

    def peek(self, n: int = 1) -> str:
        return self.text[self.at : self.at + n]

    def take(self, n: int = 1) -> str:
        taken = self.text[self.at : self.at + n]
        self.at += n
        return taken

    def while_in(self, letters: str, most: int) -> str:
        start = self.at
        while self.at < len(self.text) and self.at - start < most and self.text[self.at] in letters:
            self.at += 1
        return self.text[start : self.at]

    def until(self, end: str) -> str:
        stop = self.text.index(end, self.at)
        inside = self.text[self.at : stop]
        self.at = stop + len(end)
        return inside

    def alternatives(self, flags: _Flags) -> Node:
        """Up to the closing parenthesis, which is left."""
        options = []
        while True:
            node, flags = self.sequence(flags)
            options.append(node)
            if self.peek() != "|":
                break
            self.at += 1
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def sequence(self, flags: _Flags) -> tuple[Node, _Flags]:
        """Up to a bar or closing parenthesis. The flags too: those of a leading (?...) hold for all that follows."""
        items: list[Node] = []
        while self.at < len(self.text) and self.peek() not in "|)":
            at = self.at
            c = self.take()
            if flags.verbose and c in _BLANK:
                continue
            if flags.verbose and c == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end + 1
                continue
            if c in "*+?{" and (count := self.count(c)) is not None:
                mark = self.while_in("?+", 1)
                items.append(Repeat(items.pop(), *count, mark, at))
            elif c == "(":
                node, flags = self.group(flags, at)
                if node is not None:
                    items.append(node)
            else:
                items.append(self.atom(c, flags, at))
        return (items[0] if len(items) == 1 else Seq(tuple(items))), flags

    def count(self, c: str) -> tuple[int, int | None] | None:
        """The bounds of a repeat that begins with c, or None when a brace is just a brace."""
        if c != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[c]
        start = self.at
        least = most = self.while_in("0123456789", 1 << 30)
        if self.peek() == ",":
            self.at += 1
            most = self.while_in("0123456789", 1 << 30)
        elif not least:
            self.at = start
            return None
        if self.peek() != "}":
            self.at = start
            return None
        self.at += 1
        return int(least or 0), int(most) if most else None

    def atom(self, c: str, flags: _Flags, at: int) -> Node:
        if c == ".":
            return Chars(ALL if flags.dot_all else any_character(flags.reading))
        if c in "^$":
            if flags.multi_line:
                raise refused(f"{c!r} with the flag (?m)", at, "leave the flag out: a whole text is asked for")
            return Assertion(c, at)
        if c == "[":
            return self.char_class(flags)
        if c == "\\":
            return self.escape(flags, at)
        return self.literal(ord(c), flags)

    def literal(self, code: int, flags: _Flags) -> Node:
        chars = charset([(code, code)])
        return Chars(fold(chars, flags.reading) if flags.ignore_case else chars)

    def escape(self, flags: _Flags, at: int) -> Node:
        c = self.take()
        if c == "A":
            return Assertion("^", at)
        if c in "Zz":
            return Assertion(r"\Z", at)
        if c in "bB":
            return Assertion("\\" + c, at)
        if c in "dDsSwW":
            return Chars(shorthand(c, flags.reading))
        if c in "123456789":
            rest = self.peek(2)
            if not (c in _OCTAL and len(rest) == 2 and rest[0] in _OCTAL and rest[1] in _OCTAL):
                raise refused("a back-reference", at, "write out the texts that may be repeated, or check afterwards")
            return self.literal(int(c + self.take(2), 8), flags)
        return self.literal(self.code_of(c), flags)

    def code_of(self, c: str) -> int:
        """The character that an escape with this letter stands for."""
        if c in "xuU":
            return int(self.take({"x": 2, "u": 4, "U": 8}[c]), 16)
        if c == "N":
            self.at += 1
            return ord(unicodedata.lookup(self.until("}")))
        if c in _OCTAL:
            return int(c + self.while_in(_OCTAL, 2), 8)
        return _CONTROL.get(c, ord(c))

    def char_class(self, flags: _Flags) -> Node:
        negated = self.peek() == "^"
        self.at += negated
        if negated:
            flags = replace(flags, reading=flags.reading.opposite())
        parts: list[CharSet] = []
        first = True
        while first or self.peek() != "]":
            first = False
            low = self.class_item(flags)
            if isinstance(low, int) and self.peek() == "-" and self.peek(2) != "-]":
                self.at += 1
                high = self.class_item(flags)
                assert isinstance(high, int)  # `re` refuses a range that ends in a class
                parts.append(charset([(low, high)]))
            else:
                parts.append(charset([(low, low)]) if isinstance(low, int) else low)
        self.at += 1
        chars = union(*parts)
        if flags.ignore_case:
            chars = fold(chars, flags.reading)
        return Chars(complement(chars) if negated else chars)

    def class_item(self, flags: _Flags) -> int | CharSet:
        c = self.take()
        if c != "\\":
            return ord(c)
        c = self.take()
        return shorthand(c, flags.reading) if c in "dDsSwW" else self.code_of(c)

    def group(self, flags: _Flags, at: int) -> tuple[Node | None, _Flags]:
        """After the opening parenthesis. None for what leaves nothing: a comment, or flags for all that follows."""
        if self.peek() != "?":
            return self.inside(flags), flags
        self.at += 1
        c = self.take()
        if c == "#":
            self.until(")")
            return None, flags
        if c == ":":
            return self.inside(flags), flags
        if c == ">":
            return Atomic(self.inside(flags), at), flags
        if c in "=!":
            # What must not follow is read the other way round, as the inside of a negated class is.
            inner = flags if c == "=" else replace(flags, reading=flags.reading.opposite())
            return Assertion("(?" + c, at, self.inside(inner)), flags
        if c == "<":
            raise refused("a look-behind", at, "say what comes before as a part of the pattern")
        if c == "(":
            raise refused("a conditional group", at, "write both cases as alternatives")
        if c == "P":
            if self.take() == "=":
                raise refused("a back-reference", at, "write out the texts that may be repeated, or check afterwards")
            self.until(">")
            return self.inside(flags), flags
        self.at -= 1
        flags_on = self.while_in("aiLmsux", 1 << 30)
        inner = _set_flags(flags, flags_on, True)
        if self.peek() == "-":
            self.at += 1
            inner = _set_flags(inner, self.while_in("imsx", 1 << 30), False)
        if self.take() == ")":
            return None, inner
        return self.inside(inner), flags

    def inside(self, flags: _Flags) -> Node:
        node = self.alternatives(flags)
        self.at += 1
        return node
