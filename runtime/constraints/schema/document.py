"""From JSON text to a checked document: every subschema at its place, the faults of all of them found at once.

The check is our own table of keywords and the kinds of their values; the meta-schemas, which say the same, take ten
milliseconds to load and as many to run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fractions import Fraction
from time import monotonic
from typing import Any

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema.keywords import KEYWORDS, UNSAID

_MAX_EXPONENT = 2000
_MAX_CHARACTERS = 8 << 20
_MAX_VALUES = 100_000  # of one enum, or names that one object requires
_SURROGATE = re.compile("[\ud800-\udfff]")
MAY_HOLD_SURROGATES = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_DRAFT = re.compile(r"https?://json-schema\.org/(?:draft-0([3467])|draft/(2019-09|2020-12))/(?:hyper-)?schema#?")
_TYPES = frozenset(["null", "boolean", "number", "integer", "string", "array", "object"])


class Faults:
    """What is wrong with a schema; at most so many that a person would read them."""

    most = 100

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], ConstraintError] = {}

    def add(self, pointer: str, message: str, hint: str) -> None:
        if len(self.found) < self.most:
            self.found.setdefault((pointer, message), ConstraintError(message, pointer=pointer, hint=hint))

    def raise_any(self) -> None:
        if self.found:
            first, *more = self.found.values()
            raise ConstraintError(first.message, pointer=first.pointer, hint=first.hint, more=more)


def escape(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name


def parse(text: str) -> Any:
    """The document, with int or Fraction for its numbers. ConstraintError for what is no JSON, has a key twice, or is
    too long to be read without holding up other threads: json.loads is one call."""
    if len(text) > _MAX_CHARACTERS:
        raise ConstraintError(
            f"the schema has {len(text):,} characters, more than {_MAX_CHARACTERS:,}",
            hint="leave out descriptions and examples, or split it",
        )
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_number, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ConstraintError(
            f"the schema is not JSON: {error.msg}", pointer=f"@{error.pos}", hint="give the schema as JSON"
        ) from error
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        if isinstance(error, ConstraintError):
            raise
        raise ConstraintError(
            f"the schema holds a number that is too long: {error}", hint="use fewer digits"
        ) from error


def too_deep() -> ConstraintError:
    return ConstraintError("the schema is nested too deeply", hint="use fewer levels, or $ref")


def _no_constant(name: str) -> Any:
    raise ConstraintError(f"the schema is not JSON: it holds {name}", hint="JSON has finite numbers only")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ConstraintError(f"the key {twice!r} comes twice in one object of the schema", hint="keep one of them")
    return found


def _number(digits: str) -> int | Fraction:
    exponent = digits.lower().partition("e")[2]
    if len(exponent) > 6 or (exponent and abs(int(exponent)) > _MAX_EXPONENT):
        raise ConstraintError(
            f"the number {digits[:40]} cannot be enforced exactly", hint=f"use exponents up to {_MAX_EXPONENT}"
        )
    value = Fraction(digits)
    return value.numerator if value.denominator == 1 else value


def draft_of(document: Any, default: int = UNSAID) -> int | None:
    """The draft that the document declares: 4, 6, 7, 2019, 2020, or 3, which is none of ours; None for a meta-schema
    of someone's own."""
    declared = document.get("$schema") if isinstance(document, dict) else None
    if not isinstance(declared, str):
        return default
    if found := _DRAFT.fullmatch(declared):
        return int((found[1] or found[2])[:4])
    return 2020 if declared.startswith(("http://json-schema.org/schema", "https://json-schema.org/schema")) else None


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Fraction) and not isinstance(value, bool)


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_type(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list) and all(isinstance(n, str) and n in _TYPES for n in names)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "any": (lambda _: True, ""),
    "value": (lambda _: True, ""),
    "values": (lambda v: isinstance(v, list), "a list of values"),
    "string": (lambda v: isinstance(v, str), "a string"),
    "boolean": (lambda v: isinstance(v, bool), "true or false"),
    "count": (is_count, "a whole number of at least 0"),
    "number": (_is_number, "a number"),
    "positive": (lambda v: _is_number(v) and v > 0, "a number above 0"),
    "bound": (lambda v: isinstance(v, int | Fraction), "a number"),
    "strings": (_are_strings, "a list of strings"),
    "type": (_is_type, f"one of {', '.join(sorted(_TYPES))}, or a list of them"),
    "schema": (_is_schema, "a schema, that is an object or a boolean"),
    "schemas": (lambda v: isinstance(v, list) and len(v) > 0, "a list of schemas, not empty"),
    "items": (lambda v: isinstance(v, dict | bool | list), "a schema, or in drafts up to 2019-09 a list of them"),
    "map": (lambda v: isinstance(v, dict), "an object with a schema for each name"),
    "needs": (lambda v: isinstance(v, dict) and all(map(_are_strings, v.values())), "an object of lists of names"),
    "dependencies": (lambda v: isinstance(v, dict), "an object with a schema or a list of names for each name"),
}
_BELOW = frozenset(["schema", "schemas", "items", "map", "dependencies"])
_ROWS = {name: (row.value, *_KINDS[row.value], row.value in _BELOW, row) for name, row in KEYWORDS.items()}


def children(key: str, value: Any, pointer: str) -> list[tuple[Any, str]]:
    """The subschemas in the value of a keyword, with their pointers; `value` is of the keyword's kind."""
    row = KEYWORDS.get(key)
    if row is None or row.value not in _BELOW:
        return []
    below = f"{pointer}/{escape(key)}"
    if isinstance(value, list):
        return [(item, f"{below}/{i}") for i, item in enumerate(value)]
    if row.value in ("map", "dependencies"):
        return [
            (item, f"{below}/{escape(name)}")
            for name, item in value.items()
            if not (row.value == "dependencies" and (isinstance(item, str) or _are_strings(item)))
        ]
    return [(value, below)]


def check(document: Any, pointer: str, draft: int, faults: Faults, deadline: float) -> bool:
    """Adds what is wrong anywhere in the document to the faults. Whether it names resources or anchors inside."""
    todo: list[tuple[Any, str]] = [(document, pointer)]
    named = False
    count = 0
    while todo:
        here, at = todo.pop()
        count += 1
        if not count & 1023 and monotonic() > deadline:
            raise ConstraintError("the time for reading the schema is up", pointer=at, hint="use a smaller schema")
        if isinstance(here, bool):
            continue
        if not isinstance(here, dict):
            faults.add(
                at, f"not a valid JSON schema: {_short(here)} is no schema", "a schema is an object or a boolean"
            )
            continue
        if at != pointer and ("$id" in here or "id" in here or "$anchor" in here or "$dynamicAnchor" in here):
            named = True
        for key, value in here.items():
            row = _ROWS.get(key)
            if row is None:
                continue
            kind, fits, wanted, below, known = row
            if not fits(value):
                if draft == UNSAID or known.first <= draft <= known.last:
                    faults.add(
                        f"{at}/{escape(key)}",
                        f"not a valid JSON schema: {_short(value)} is not of the kind that {key} takes",
                        f"give {wanted}",
                    )
                continue
            if kind in ("values", "strings") and len(value) > _MAX_VALUES:
                faults.add(f"{at}/{key}", f"{len(value):,} values are too many", f"list up to {_MAX_VALUES:,}")
            elif kind == "items" and isinstance(value, list) and draft == 2020:
                faults.add(
                    f"{at}/items",
                    f"not a valid JSON schema: {_short(value)} is not of the kind that items takes in draft 2020-12",
                    "use prefixItems, or say which older draft it is with $schema",
                )
            elif kind == "bound" and isinstance(value, bool) and draft not in (4, UNSAID):
                faults.add(
                    f"{at}/{key}",
                    f"not a valid JSON schema: {value} is not of the kind that {key} takes",
                    "give a number",
                )
            elif below:
                todo += children(key, value, at)
    return named


def _short(value: Any) -> str:
    text = json.dumps(value, default=float)
    return text if len(text) <= 60 else text[:57] + "..."


def check_strings(document: Any, faults: Faults) -> None:
    """Adds the strings with half a surrogate pair that a value would have to hold."""
    todo: list[tuple[Any, str]] = [(document, "")]
    while todo:
        here, at = todo.pop()
        if not isinstance(here, dict):
            continue
        for key, value in here.items():
            if key in ("enum", "const", "required", "properties"):
                words = [*value] if key == "properties" and isinstance(value, dict) else value
                if _SURROGATE.search(json.dumps(words, default=float, ensure_ascii=False)):
                    faults.add(
                        f"{at}/{key}", "a string with half a surrogate pair cannot be written", "give whole characters"
                    )
            if key in KEYWORDS:
                todo += children(key, value, at)
