"""Patterns and formats of a schema as sets of strings.

One program reads a pattern as JavaScript does, another as Python: `narrow` are the strings in which all find it, `wide`
those in which any does (charset.Reading). A string asked to match is taken from the narrow set, one asked not to from
outside the wide one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from palmette.errors import ConstraintError
from palmette.runtime.constraints.charset import Reading
from palmette.runtime.constraints.regex_language import Branch, Language, read_search
from palmette.runtime.constraints.schema.shapes import ANY_TEXT, Text

_EVERYWHERE = frozenset(["", ".*", "^", "$", "^.*", ".*$", "(.*)"])
_NAMED_GROUP = re.compile(r"(?<!\\)((?:\\\\)*)\(\?<(?=[A-Za-z_])")


class Pattern:
    """The strings that match for certain, and, made when it is asked for, those that match in someone's reading."""

    __slots__ = ("_make", "_wide", "narrow")

    def __init__(self, narrow: Text, wide: Text | Callable[[], Text]) -> None:
        self.narrow = narrow
        self._wide = None if callable(wide) else wide
        self._make = wide if callable(wide) else None

    @property
    def wide(self) -> Text:
        """The very object `narrow` where they are the same."""
        if self._wide is None:
            assert self._make is not None
            made = self._make()
            self._wide = self.narrow if made == self.narrow else made
        return self._wide


ANY_PATTERN = Pattern(ANY_TEXT, ANY_TEXT)


@lru_cache(maxsize=2000)
def read_pattern(pattern: str) -> Pattern:
    """ConstraintError, its pointer a place in the pattern, for what is no pattern or cannot be enforced."""
    if pattern in _EVERYWHERE:
        return ANY_PATTERN
    python = _NAMED_GROUP.sub(r"\1(?P<", pattern)  # JavaScript's spelling of a named group
    return Pattern(_text(python, Reading.NARROW), lambda: _text(python, Reading.WIDE))


def _text(pattern: str, reading: Reading) -> Text:
    try:
        language = read_search(pattern, reading, conditions=True)
    except ConstraintError as error:
        # No string matches it: that is a set of strings too.
        if "no text matches" in error.message:
            return Text(only=frozenset())
        raise
    if len(language.branches) == 1 and language.branches[0].conditions:
        branch = language.branches[0]
        return Text(
            all_of=(
                Language((Branch(branch.body),)),
                *(c.language for c in branch.conditions if c.holds),
            ),
            none_of=tuple(c.language for c in branch.conditions if not c.holds),
        )
    return Text(all_of=(language,))


# Dates that exist.
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
# A leap second is written at midnight UTC only; its other spellings are left out.
_TIME = rf"({_CLOCK}:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]{_CLOCK})|23:59:60(\.[0-9]+)?[Zz])"
_DAYS = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
_HOURS = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
# Labels of letters, digits and hyphens; "--" in the third place is left to names that only a decoder can judge.
_LABEL = "([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_H = "[0-9A-Fa-f]{1,4}"
_LAST = f"({_H}:{_H}|{_IPV4})"
_IPV6 = "|".join(
    [
        f"({_H}:){{6}}{_LAST}",
        f"::({_H}:){{5}}{_LAST}",
        f"({_H})?::({_H}:){{4}}{_LAST}",
        f"(({_H}:)?{_H})?::({_H}:){{3}}{_LAST}",
        f"(({_H}:){{0,2}}{_H})?::({_H}:){{2}}{_LAST}",
        f"(({_H}:){{0,3}}{_H})?::{_H}:{_LAST}",
        f"(({_H}:){{0,4}}{_H})?::{_LAST}",
        f"(({_H}:){{0,5}}{_H})?::{_H}",
        f"(({_H}:){{0,6}}{_H})?::",
    ]
)


def _uri(letters: str, private: str = "") -> tuple[str, str]:
    """A URI and a relative reference (RFC 3986, with the letters of RFC 3987 where given)."""
    unreserved = f"[A-Za-z0-9._~{letters}-]"
    pct = "%[0-9A-Fa-f]{2}"
    char = rf"({unreserved}|{pct}|[!$&'()*+,;=:@])"
    no_colon = rf"({unreserved}|{pct}|[!$&'()*+,;=@])"
    host = rf"(\[({_IPV6})\]|({unreserved}|{pct}|[!$&'()*+,;=])*)"
    authority = rf"(({unreserved}|{pct}|[!$&'()*+,;=:])*@)?{host}(:[0-9]*)?"
    tail = rf"(\?({char}|[/?{private}])*)?(#({char}|[/?])*)?"
    slashes = rf"(/{char}*)*"
    rooted = rf"//{authority}{slashes}|/({char}+{slashes})?"
    absolute = rf"[A-Za-z][A-Za-z0-9+.-]*:({rooted}|{char}+{slashes}|){tail}"
    return absolute, rf"({rooted}|{no_colon}+{slashes}|){tail}"


_URI, _RELATIVE = _uri("")
_LETTERS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\U00010000-\U0001fffd\U00020000-\U0002fffd"
_IRI, _IRI_RELATIVE = _uri(_LETTERS, "\ue000-\uf8ff")
_POINTER = r"(/([^~/]|~[01])*)*"
_VARCHAR = "([A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
_VARSPEC = rf"{_VARCHAR}(\.?{_VARCHAR})*(:[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE = (
    rf"([!#$&()*+,\-./0-9:;=?@A-Z\[\]_a-z~{_LETTERS}]|%[0-9A-Fa-f]{{2}}|\{{[+#./;?&]?{_VARSPEC}(,{_VARSPEC})*\}})*"
)
_ANY = "(?s:.*)"

# The strings that have the format for certain, and those that may have it in someone's reading.
_FORMATS: dict[str, tuple[str, str]] = {
    "date": (_DATE, _DATE),
    "time": (_TIME, "[0-9]{2}:.*"),
    "date-time": (rf"{_DATE}[Tt]{_TIME}", "[0-9]{4}-.*"),
    "duration": (rf"P({_DAYS}({_HOURS})?|{_HOURS}|[0-9]+W)", "P.*"),
    "email": (rf"{_ATOM}(\.{_ATOM})*@{_HOST}", "(?s:.*)@(?s:.*)"),
    "idn-email": (
        rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{_LETTERS}-]+(\.[A-Za-z0-9{_LETTERS}_-]+)*@{_HOST}",
        "(?s:.*)@(?s:.*)",
    ),
    "hostname": (_HOST, r"[^\s/@]*"),
    "ipv4": (_IPV4, _IPV4),
    "ipv6": (_IPV6, r"[0-9A-Fa-f:.]+(%.*)?"),
    "uuid": ("[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",) * 2,
    "uri": (_URI, "[A-Za-z](?s:.*):(?s:.*)"),
    "uri-reference": (f"({_URI})|({_RELATIVE})", _ANY),
    "iri": (_IRI, "(?s:.*):(?s:.*)"),
    "iri-reference": (f"({_IRI})|({_IRI_RELATIVE})", _ANY),
    "json-pointer": (_POINTER, _POINTER),
    "relative-json-pointer": (rf"(0|[1-9][0-9]*)(#|{_POINTER})",) * 2,
    "uri-template": (_TEMPLATE, _ANY),
}
_HOST_LENGTH = 253
REFUSED_FORMATS = frozenset(["idn-hostname"])


_RANGE = "[a-z]-z|[A-Z]-Z|[0-9]-9|0-[0-9]|a-[a-z]|A-[A-Z]"


def _piece(depth: int) -> str:
    r"""Regexes that every reader takes, their groups nested up to `depth`: no look-around, classes without oddities."""
    atom = r"[^\\^$.*+?()\[\]{}|/\r\n]|\\[dDwWsSnrtfv\\^$.*+?()\[\]{}|/]|\."
    atom += rf"|\[\^?({_RANGE}|[^\\\[\]^\r\n-]|\\[dwsnrt\\\]\[^-])+\]"
    if depth:
        atom += rf"|\((\?:)?{_piece(depth - 1)}\)"
    count = r"([*+?]|\{[0-9]{1,2}(,)?\}|\{[0-9],[1-9][0-9]\})\??"
    branch = rf"(({atom})({count})?)*"
    return rf"({branch}(\|{branch})*)"


@lru_cache(maxsize=64)
def read_format(name: str) -> Pattern | None:
    """None for a format that no draft knows, or that cannot be asserted (REFUSED_FORMATS)."""
    if name == "regex":
        return Pattern(_text(rf"^\^?{_piece(2)}\$?$", Reading.NARROW), ANY_TEXT)
    if name not in _FORMATS:
        return None
    exact, loose = _FORMATS[name]
    narrow = _text(f"^({exact})$", Reading.NARROW)
    if name == "hostname":
        rare = read_pattern(r"(^|\.)..--").wide
        narrow = Text(narrow.all_of, rare.all_of, most=_HOST_LENGTH)
    elif name == "email":
        narrow = Text(narrow.all_of, most=_HOST_LENGTH)
    if loose == exact:
        return Pattern(narrow, narrow)
    return Pattern(narrow, ANY_TEXT if loose == _ANY else lambda: _text(f"^({loose})$", Reading.WIDE))
