"""Grammars as llama.cpp (GBNF) and xgrammar (EBNF) write them, turned into llguidance's Lark.

    root ::= item ("," item)*      # a comment
    item ::= [a-z]+ | "\\"" [^"\\n]{0,9} "\\"" | "(" root ")"

Every terminal becomes single characters: llguidance reads the longest terminal there is, and with longer ones would
refuse "ab" under `"a" "b" | "abc"`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from palmette.errors import ConstraintError
from palmette.runtime.constraints.charset import ALL, CharSet, charset, complement
from palmette.runtime.constraints.regex_rust import rust_class

_RULE = re.compile(r"([A-Za-z_][\w.-]*)[ \t\r\n]*::=")
_BEGINS = re.compile(r"^[ \t]*[A-Za-z_][\w.-]*[ \t]*::=", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_COUNT = re.compile(r"\{[ \t]*(\d+)[ \t]*(?:(,)[ \t]*(\d+)?[ \t]*)?\}")
_ESCAPES = {"n": 10, "r": 13, "t": 9, "b": 8, "f": 12, "v": 11, "a": 7, "0": 0}
_HEX = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class _One:
    """One character of the set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class _Row:
    """The items one after another."""

    items: tuple[_Item, ...]


@dataclass(frozen=True, slots=True)
class _Any:
    """One of the options."""

    options: tuple[_Item, ...]


@dataclass(frozen=True, slots=True)
class _Times:
    body: _Item
    least: int
    most: int | None


_Item = _One | _Rule | _Row | _Any | _Times


def is_gbnf(text: str) -> bool:
    return _BEGINS.search(text) is not None


def to_lark(text: str) -> str:
    """The grammar in llguidance's Lark. ConstraintError with the position ("@" and the offset) of what is wrong."""
    try:
        rules = _Parser(text).rules()
        written = _lark(rules)
    except RecursionError:
        raise ConstraintError("the grammar is nested too deeply", hint="use fewer groups inside groups") from None
    return written


def _wrong(what: str, at: int, hint: str) -> ConstraintError:
    return ConstraintError(f"the grammar is wrong: {what}", pointer=f"@{at}", hint=hint)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def rules(self) -> dict[str, _Item]:
        found: dict[str, _Item] = {}
        named: list[_Rule] = []
        self.named = named
        self.blank()
        while self.at < len(self.text):
            head = _RULE.match(self.text, self.at)
            if head is None:
                raise _wrong("a rule was expected here", self.at, "write rules as in: name ::= ...")
            if head[1] in found:
                raise _wrong(f"the rule {head[1]!r} is defined twice", self.at, "join the two with |")
            self.at = head.end()
            found[head[1]] = self.options()
            if self.at < len(self.text) and self.text[self.at] == ")":
                raise _wrong("this parenthesis was never opened", self.at, "write literal text in double quotes")
        if "root" not in found:
            raise ConstraintError('the grammar has no rule "root"', hint='the text is what "root ::= ..." says')
        for rule in named:
            if rule.name not in found:
                raise _wrong(
                    f"the rule {rule.name!r} is not defined", rule.at, "define it, or write literal text in quotes"
                )
        return found

    def blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def options(self) -> _Item:
        options = [self.row()]
        while self.text[self.at : self.at + 1] == "|":
            self.at += 1
            options.append(self.row())
        return options[0] if len(options) == 1 else _Any(tuple(options))

    def row(self) -> _Item:
        """Up to a bar, a closing parenthesis, the next rule, or the end."""
        items: list[_Item] = []
        self.blank()
        while self.at < len(self.text) and self.text[self.at] not in "|)" and not _RULE.match(self.text, self.at):
            items.append(self.counted(self.item()))
            self.blank()
        return items[0] if len(items) == 1 else _Row(tuple(items))

    def counted(self, item: _Item) -> _Item:
        while True:
            mark = _BLANK.match(self.text, self.at)
            assert mark is not None
            at = mark.end()
            c = self.text[at : at + 1]
            if not c or c not in "*+?{":
                return item
            if c == "{":
                count = _COUNT.match(self.text, at)
                if count is None:
                    raise _wrong("this repeat has no counts", at, "write {m}, {m,} or {m,n}")
                least = int(count[1])
                most = least if count[2] is None else None if count[3] is None else int(count[3])
                if most is not None and most < least:
                    raise _wrong("the least count is larger than the most", at, "write the smaller count first")
                self.at = count.end()
                item = _Times(item, least, most)
            else:
                self.at = at + 1
                item = _Times(item, int(c == "+"), 1 if c == "?" else None)

    def item(self) -> _Item:
        at = self.at
        c = self.text[at]
        if c == '"':
            return self.literal()
        if c == "[":
            return self.char_class()
        if c == ".":
            self.at += 1
            return _One(ALL)
        if c == "(":
            if self.text[at + 1 : at + 2] == "=":
                raise _wrong("a look-ahead cannot be enforced", at, "leave it out")
            self.at += 1
            inner = self.options()
            if self.text[self.at : self.at + 1] != ")":
                raise _wrong("this group is not closed", at, "add the closing parenthesis")
            self.at += 1
            return inner
        name = _NAME.match(self.text, at)
        if name is None:
            hint = "literal text stands in double quotes; tokens cannot be named"
            raise _wrong(f"{c!r} has no meaning here", at, hint)
        self.at = name.end()
        rule = _Rule(name[0], at)
        self.named.append(rule)
        return rule

    def literal(self) -> _Item:
        begin = self.at
        self.at += 1
        items: list[_Item] = []
        while (c := self.text[self.at : self.at + 1]) != '"':
            if not c or c == "\n":
                raise _wrong("this text is not closed", begin, "add the closing quote")
            items.append(_One(charset([(code := self.code(), code)])))
        self.at += 1
        return items[0] if len(items) == 1 else _Row(tuple(items))

    def char_class(self) -> _Item:
        begin = self.at
        self.at += 1
        negated = self.text[self.at : self.at + 1] == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while (c := self.text[self.at : self.at + 1]) != "]":
            if not c or c == "\n":
                raise _wrong("this class is not closed", begin, "add the closing bracket")
            at = self.at
            lo = hi = self.code()
            if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                hi = self.code()
            if hi < lo:
                raise _wrong("this range ends before it begins", at, "write the lower character first")
            ranges.append((lo, hi))
        self.at += 1
        chars = charset(ranges)
        return _One(complement(chars) if negated else chars)

    def code(self) -> int:
        """The code point of a character of a literal or class, which may be escaped."""
        at = self.at
        c = self.text[at]
        self.at += 1
        if c != "\\":
            code = ord(c)
        else:
            c = self.text[self.at : self.at + 1]
            self.at += 1
            if c in _HEX:
                digits = self.text[self.at : self.at + _HEX[c]]
                if len(digits) != _HEX[c] or not re.fullmatch("[0-9a-fA-F]+", digits):
                    raise _wrong(f"\\{c} needs {_HEX[c]} hexadecimal digits", at, "write all digits")
                self.at += len(digits)
                code = int(digits, 16)
            elif c in _ESCAPES:
                code = _ESCAPES[c]
            elif c and not c.isalnum():
                code = ord(c)
            else:
                raise _wrong(f"the escape \\{c} is not known", at, r"known are \n \r \t \\ \" \[ \] \x \u \U")
        if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            raise _wrong("no text in UTF-8 has this character", at, r"write the character itself, or \U and 8 digits")
        return code


def _productive(item: _Item, known: set[str]) -> bool:
    """Whether the item has a text, as far as the rules in `known` have."""
    if isinstance(item, _One):
        return bool(item.chars)
    if isinstance(item, _Rule):
        return item.name in known
    if isinstance(item, _Row):
        return all(_productive(part, known) for part in item.items)
    if isinstance(item, _Any):
        return any(_productive(part, known) for part in item.options)
    return item.least == 0 or _productive(item.body, known)


def _lark(rules: dict[str, _Item]) -> str:
    """Only what leads to some text is written: of anything else a text could begin and never end."""
    known: set[str] = set()
    while more := {name for name, item in rules.items() if name not in known and _productive(item, known)}:
        known |= more
    if "root" not in known:
        raise ConstraintError("no text matches the grammar", hint="a rule must not need itself without end")
    names = {name: "start" if name == "root" else f"r{i}" for i, name in enumerate(rules)}

    def write(item: _Item) -> str:
        if isinstance(item, _One):
            return f"/{rust_class(item.chars)}/"
        if isinstance(item, _Rule):
            return names[item.name]
        if isinstance(item, _Row):
            return "(" + " ".join(map(write, item.items)) + ")" if item.items else '""'
        if isinstance(item, _Any):
            return "(" + " | ".join(write(part) for part in item.options if _productive(part, known)) + ")"
        if item.most == 0 or not _productive(item.body, known):
            return '""'
        most = "" if item.most is None else str(item.most)
        return f"({write(item.body)}){{{item.least},{most}}}"

    return "".join(f"{names[name]}: {write(rules[name])}\n" for name in rules if name in known)
