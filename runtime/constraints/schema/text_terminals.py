"""Sets of strings as llguidance's Lark terminals, over the way JSON writes strings.

Every character is replaced by the ways to write it, the same everywhere: so "all of these, none of those" of strings
is `&` and `~` of what is written, and no name slips through under another spelling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache

from palmette.runtime.constraints.charset import ALL, CharSet, charset, intersection
from palmette.runtime.constraints.regex_language import Branch, Language
from palmette.runtime.constraints.regex_rust import written as regex
from palmette.runtime.constraints.schema.shapes import Text

_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x2F: "/", 0x5C: "\\"}
_RAW = charset([(0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)])
_SURROGATE = re.compile("[\ud800-\udfff]")
_NONE = r"[^\x{0}-\x{10FFFF}]"
# Of a string of which nothing is asked, any character may be written \uXXXX, but for halves of surrogate pairs.
ANY_STRING = (
    r'/"(?:[^"\\\x00-\x1F]|\\(?:["\\\x2Fbfnrt]|u(?:[0-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2})))*"/'
)


def literal(text: str) -> str:
    """A Lark string that stands for `text` as it is."""
    return json.dumps(text, ensure_ascii=False)


def written(text: str) -> str:
    """The one way in which a given string is written, quotes included. Half of a surrogate pair has only an escape."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


def terminal(text: Text) -> str:
    """A Lark expression of the strings, quotes left out."""
    if text.only is not None:
        return "(" + " | ".join(literal(written(s)[1:-1]) for s in sorted(text.only)) + ")"
    asked = [language_expression(language) for language in text.all_of]
    if text.least or text.most is not None or not asked:
        most = "" if text.most is None else str(text.most)
        counted = "*" if not text.least and text.most is None else f"{{{text.least},{most}}}"
        asked.append(f"/{_class(ALL)}{counted}/")
    denied = [language_expression(language) for language in text.none_of]
    if text.without:
        denied.append(_any_of(text.without))
    return "(" + " & ".join([*asked, *(f"~{d}" for d in denied)]) + ")"


def _any_of(strings: Iterable[str]) -> str:
    every = ("".join(_class(((ord(c), ord(c)),)) for c in s) for s in sorted(strings))
    return "/(?:" + "|".join(every) + ")/"


@lru_cache(maxsize=512)
def language_expression(language: Language) -> str:
    """A Lark expression of a language's texts, conditions included."""
    plain = [branch for branch in language.branches if not branch.conditions]
    options = ["/" + regex([branch.body for branch in plain], _class) + "/"] if plain else []
    options += [_branch(branch) for branch in language.branches if branch.conditions]
    return options[0] if len(options) == 1 else "(" + " | ".join(options) + ")"


def _branch(branch: Branch) -> str:
    asked = [f"/{regex([branch.body], _class)}/"]
    for condition in branch.conditions:
        asked.append(("" if condition.holds else "~") + language_expression(condition.language))
    return "(" + " & ".join(asked) + ")"


@lru_cache(maxsize=2048)
def _class(chars: CharSet) -> str:
    raw = intersection(chars, _RAW)
    options = []
    if raw:
        parts = (rf"\x{{{lo:X}}}" if lo == hi else rf"\x{{{lo:X}}}-\x{{{hi:X}}}" for lo, hi in raw)
        options.append("[" + "".join(parts) + "]")
    special = [c for c in (*range(0x20), 0x22, 0x2F, 0x5C) if any(lo <= c <= hi for lo, hi in chars)]
    short = "".join(rf"\x{{{ord(_SHORT[c]):X}}}" for c in special if c in _SHORT)
    if short:
        options.append(rf"\\[{short}]")
    for high in (0, 1):
        digits = "".join(f"{c & 15:X}{c & 15:x}" for c in special if c >> 4 == high)
        if digits:
            options.append(rf"\\u00{high}[{digits}]")
    if not options:
        return _NONE
    return options[0] if len(options) == 1 else "(?:" + "|".join(options) + ")"
