"""JSON Schemas made ready for llguidance: what it would take wrongly is rewritten or refused, with the pointer.

llguidance 1.9 ignores what it does not know, reads numbers as doubles, takes `"\\u0061"` for another key than `"a"`,
counts a key that comes twice as two, and reads classes in patterns as Unicode. None of that gets through here.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from difflib import get_close_matches
from typing import Any

import jsonschema
import llguidance
from jsonschema.validators import validator_for

from palmette.errors import ConstraintError
from palmette.runtime.constraints.charset import Reading
from palmette.runtime.constraints.regex_language import read_search
from palmette.runtime.constraints.regex_rust import rust_regex
from palmette.runtime.constraints.schema_endless import Schema, drop_endless
from palmette.runtime.constraints.schema_keywords import (
    ANNOTATIONS,
    FORMAT_PATTERNS,
    KEPT,
    KEPT_FORMATS,
    REFUSED,
    REFUSED_FORMATS,
)
from palmette.runtime.constraints.schema_references import References, escape

# One blank, or a line break and an indent: JSON as people write it, and never white space without end.
_WHITESPACE = r" ?|\r?\n[ \t]{0,64}"
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_OBJECT_KEYWORDS = ("properties", "patternProperties", "additionalProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def read(text: str) -> Schema:
    """ConstraintError, with the JSON pointer, for what is no schema or cannot be enforced exactly."""
    try:
        document = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
        if not isinstance(document, dict | bool):
            raise ConstraintError(
                f"a JSON schema must be an object or a boolean, not {type(document).__name__}",
                hint='give a schema such as {"type": "object", "properties": {...}}',
            )
        draft = _check(document)
        return _Reader(document, draft).schema
    except json.JSONDecodeError as error:
        raise ConstraintError(
            f"the schema is not JSON: {error.msg}", pointer=f"@{error.pos}", hint="give the schema as JSON"
        ) from error
    except RecursionError:
        raise ConstraintError("the schema is nested too deeply", hint="use fewer levels, or $ref") from None


def grammar(schema: Schema, *, whitespace: bool) -> str:
    """The schema in llguidance's own form. Compact JSON, unless `whitespace`."""
    return _grammar(schema, schema.root, whitespace)


def _grammar(schema: Schema, root: Any, whitespace: bool) -> str:
    document = {"$defs": schema.defs, **root} if schema.defs and isinstance(root, dict) else root
    overrides: dict[str, Any] = {"whitespace_flexible": whitespace}
    if whitespace:
        overrides["whitespace_pattern"] = _WHITESPACE
    if schema.open_names:
        overrides["json_allowed_escapes"] = 'nrbtf\\"'
    else:
        overrides["json_allow_general_unicode_escapes"] = True
    return llguidance.LLMatcher.grammar_from_json_schema(json.dumps(document), overrides=overrides)  # type: ignore[arg-type]


def refusal(message: str, text: str) -> ConstraintError:
    """llguidance's refusal of the schema `text`, with the pointer of the innermost part that it refuses by itself."""
    schema = read(text)
    pointer = ""
    parts = [(where, part) for where, part in schema.parts.items() if isinstance(part, dict)]
    for where, part in sorted(parts, key=lambda item: -item[0].count("/"))[:200]:
        wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(_grammar(schema, part, False))
        if wrong and messages[0].split("\n")[0] == message.split("\n")[0]:
            pointer = where
            break
    first = message.strip().split("\n")[0]
    keyword = next((k for k in ("oneOf", "patternProperties", "allOf", "enum") if k in first), "")
    if "patternProperty" in first:
        keyword = "patternProperties"
    if keyword and isinstance(schema.parts.get(pointer), dict) and keyword in schema.parts[pointer]:
        pointer += "/" + keyword
    hints = {
        "oneOf": "use anyOf, or give each branch a required property with a const of its own",
        "patternProperties": "give patterns of which no name matches two",
    }
    what = "two branches of oneOf may overlap" if keyword == "oneOf" else first
    return ConstraintError(
        f"the schema cannot be enforced: {what}", pointer=pointer, hint=hints.get(keyword, "simplify this part")
    )


def _no_constant(name: str) -> Any:
    raise ConstraintError(f"the schema is not JSON: it holds {name}", hint="JSON has finite numbers only")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ConstraintError(f"the key {twice!r} comes twice in one object of the schema", hint="keep one of them")
    return found


def _check(document: Any) -> int:
    """Checks it by its meta-schema. The draft: 4, 6, 7, 2019 or 2020."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind: Any = validator_for(document, default=jsonschema.Draft202012Validator)
    drafts = {
        jsonschema.Draft4Validator: 4,
        jsonschema.Draft6Validator: 6,
        jsonschema.Draft7Validator: 7,
        jsonschema.Draft201909Validator: 2019,
        jsonschema.Draft202012Validator: 2020,
    }
    if kind not in drafts:
        raise ConstraintError(
            "schemas of draft 3 cannot be enforced", pointer="/$schema", hint="write it in draft 4 or later"
        )
    try:
        kind.check_schema(document, format_checker=None)  # patterns are read further on
    except jsonschema.SchemaError as error:
        path = list(error.absolute_path)
        hint = "see the keyword's definition at json-schema.org"
        if path and path[-1] == "items" and isinstance(error.instance, list):
            hint = "use prefixItems, or say which older draft it is with $schema"
        raise ConstraintError(
            f"not a valid JSON schema: {error.message}",
            pointer="".join("/" + escape(str(p)) for p in path),
            hint=hint,
        ) from error
    return drafts[kind]


class _Reader:
    """Reads a document from its root along all that can be reached."""

    def __init__(self, document: Any, draft: int) -> None:
        self.document = document
        self.draft = draft
        self.schema = Schema()
        self._names: dict[str, str] = {}
        self._references = References(document, draft)
        root = self.subschema(document, "")
        if root is False:
            raise ConstraintError("no value is valid under the schema", hint="give a schema that allows something")
        self.schema.root = {} if root is True else root
        drop_endless(self.schema)

    # -- one subschema

    def subschema(self, s: Any, at: str) -> Any:
        if isinstance(s, bool):
            self.schema.parts[at] = s
            return s
        self.known(s, at)
        if "$ref" in s and self.draft <= 7:
            # Until draft 7, whatever stands beside a $ref is ignored.
            s = {"$ref": s["$ref"]}
        out: dict[str, Any] = {}
        extra: list[Any] = []
        for key, value in s.items():
            if key in KEPT:
                self.keyword(key, value, s, f"{at}/{escape(key)}", out, extra)
        if extra:
            out["allOf"] = out.get("allOf", []) + extra
        self.objects(s, out, at)
        self.schema.parts[at] = out
        self.schema.every.append(out)
        return out

    def known(self, s: dict[str, Any], at: str) -> None:
        for key, value in s.items():
            if key in KEPT or key in ANNOTATIONS or key.startswith(("x-", "_")) or self.trivial(key, value, s):
                continue
            where = f"{at}/{escape(key)}"
            if key in REFUSED:
                raise ConstraintError(f"{key} cannot be enforced", pointer=where, hint=REFUSED[key])
            near = get_close_matches(key, sorted(KEPT | set(REFUSED)), n=1, cutoff=0.75)
            raise ConstraintError(
                f"unknown keyword {key!r}",
                pointer=where,
                hint=f"did you mean {near[0]!r}?" if near else 'leave it out, or begin its name with "x-" as a note',
            )

    def trivial(self, key: str, value: Any, s: dict[str, Any]) -> bool:
        """Whether a keyword that cannot be enforced says nothing here."""
        if key in ("unevaluatedProperties", "unevaluatedItems"):
            return value is True or value == {}
        if key in ("dependencies", "dependentRequired", "dependentSchemas"):
            return value == {} or (key == "dependencies" and all(v == [] for v in value.values()))
        if key == "propertyNames":
            return value is True or value in ({}, {"type": "string"})
        if key in ("minContains", "maxContains"):
            return "contains" not in s
        if key in ("then", "else"):
            return "if" not in s
        return key == "if" and "then" not in s and "else" not in s

    def keyword(self, key: str, value: Any, s: dict[str, Any], at: str, out: dict[str, Any], extra: list[Any]) -> None:
        """Adds what `key` says to `out`, or to `extra`, the list of what must hold besides."""
        if key in ("anyOf", "oneOf", "allOf"):
            out[key] = [self.subschema(v, f"{at}/{i}") for i, v in enumerate(value)] + out.get(key, [])
        elif key == "$ref":
            out["$ref"] = self.reference(value, at)
        elif key in ("enum", "const"):
            self.literal(value, at)
            out[key] = value
        elif key in _COUNTS:
            out[key] = int(value)
        elif key in _BOUNDS:
            out[key] = value if isinstance(value, bool) else self.number(value, at)
        elif key == "pattern":
            self.add_pattern(self.pattern(value, at), out, extra)
        elif key == "format":
            self.format(value, at, out, extra)
        elif key == "uniqueItems":
            if value and not (isinstance(s.get("maxItems"), int) and s["maxItems"] <= 1):
                raise ConstraintError(
                    "uniqueItems cannot be enforced", pointer=at, hint="leave it out and drop duplicates afterwards"
                )
        elif key == "required":
            self.literal(value, at)
            out[key] = value
        elif key not in ("items", "prefixItems", "additionalItems", *_OBJECT_KEYWORDS):
            out[key] = value
        if key in ("items", "prefixItems"):
            self.items(s, at.rsplit("/", 1)[0], out)

    def items(self, s: dict[str, Any], at: str, out: dict[str, Any]) -> None:
        items = s.get("items")
        if isinstance(items, list):
            out["prefixItems"] = [self.subschema(v, f"{at}/items/{i}") for i, v in enumerate(items)]
            if "additionalItems" in s:
                out["items"] = self.subschema(s["additionalItems"], f"{at}/additionalItems")
            return
        if "prefixItems" in s:
            if self.draft < 2020:
                raise ConstraintError(
                    "prefixItems is not a keyword of this draft",
                    pointer=f"{at}/prefixItems",
                    hint="use items with a list, or $schema of draft 2020-12",
                )
            out["prefixItems"] = [self.subschema(v, f"{at}/prefixItems/{i}") for i, v in enumerate(s["prefixItems"])]
        if items is not None:
            out["items"] = self.subschema(items, f"{at}/items")

    def objects(self, s: dict[str, Any], out: dict[str, Any], at: str) -> None:
        named, patterns = s.get("properties", {}), s.get("patternProperties", {})
        others = s.get("additionalProperties", True)
        if named:
            self.literal(list(named), f"{at}/properties")
            out["properties"] = {n: self.subschema(v, f"{at}/properties/{escape(n)}") for n, v in named.items()}
        for pattern, value in patterns.items():
            where = f"{at}/patternProperties/{escape(pattern)}"
            rewritten = self.name_pattern(pattern, where, others, named)
            into = out.setdefault("patternProperties", {})
            part = self.subschema(value, where)
            into[rewritten] = {"allOf": [into[rewritten], part]} if rewritten in into else part
        if "additionalProperties" in s:
            out["additionalProperties"] = self.subschema(others, f"{at}/additionalProperties")
        closed = others is False and not patterns
        if (named or patterns) and not closed:
            self.schema.open_names = True
        # A name may come twice among those that are not listed, and would be counted twice.
        least = out.get("minProperties", 0)
        if least <= len(set(s.get("required", []))):
            out.pop("minProperties", None)
        elif least > 1 and not closed:
            raise ConstraintError(
                "minProperties cannot be enforced beside names that are not listed",
                pointer=f"{at}/minProperties",
                hint="list the properties and set additionalProperties: false, or use required",
            )

    # -- values

    def literal(self, value: Any, at: str) -> None:
        if isinstance(value, str):
            if re.search("[\ud800-\udfff]", value):
                raise ConstraintError(
                    "a string with half a surrogate pair cannot be written", pointer=at, hint="give whole characters"
                )
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self.number(value, at)
        elif isinstance(value, list | dict):
            for v in value if isinstance(value, list) else [*value, *value.values()]:
                self.literal(v, at)

    def number(self, value: int | float, at: str) -> int | float:
        """A number that llguidance, which reads doubles and writes 16 digits, takes as it is."""
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        exact = (
            abs(value) <= 2**53
            if isinstance(value, int)
            else math.isfinite(value) and 1e-15 <= abs(value) < 1e15 and float(f"{value:.14e}") == value
        )
        if not exact:
            raise ConstraintError(
                f"the number {value} cannot be enforced exactly", pointer=at, hint="use at most 15 digits"
            )
        return value

    def pattern(self, pattern: str, at: str, reading: Reading = Reading.NARROW) -> str:
        """The pattern for llguidance: anchored, with explicit classes."""
        try:
            rust = rust_regex(read_search(pattern, reading))
        except ConstraintError as error:
            raise ConstraintError(
                f"pattern {pattern!r} {error.pointer}: {error.message}".replace(" :", ":"), pointer=at, hint=error.hint
            ) from error
        assert rust is not None  # a searched-for pattern with conditions is refused when it is read
        return f"^{rust}$"

    def name_pattern(self, pattern: str, at: str, others: Any, named: dict[str, Any]) -> str:
        r"""The pattern of patternProperties, where it matters also which names do not match: what `others` says of
        them must not reach a name that \w, say, takes for a letter in one program and not in another."""
        narrow, wide = self.pattern(pattern, at), self.pattern(pattern, at, Reading.WIDE)
        if narrow == wide or others is True:
            return wide
        if others is not False or not all(name.isascii() for name in named):
            raise ConstraintError(
                f"which names match {pattern!r} is not the same everywhere",
                pointer=at,
                hint=r"give the characters themselves, as [0-9A-Za-z_] for \w and [0-9] for \d",
            )
        return narrow

    def add_pattern(self, pattern: str, out: dict[str, Any], extra: list[Any]) -> None:
        if "pattern" in out:
            extra.append({"pattern": pattern})
        else:
            out["pattern"] = pattern

    def format(self, name: str, at: str, out: dict[str, Any], extra: list[Any]) -> None:
        if name in FORMAT_PATTERNS:
            self.add_pattern(self.pattern(FORMAT_PATTERNS[name], at), out, extra)
        elif name in KEPT_FORMATS:
            out["format"] = name
        elif name in REFUSED_FORMATS:
            raise ConstraintError(
                f"the format {name!r} cannot be enforced", pointer=at, hint="use pattern, or leave the format out"
            )

    def reference(self, ref: str, at: str) -> str:
        """The $ref in the rewritten schema; what it leads to is read once."""
        pointer = self._references.resolve(ref, at)
        if pointer == "":
            return "#"
        if pointer not in self._names:
            target = self._references.look_up(pointer, ref, at)
            name = self._names[pointer] = str(len(self._names))
            self.schema.defs[name] = True  # it may lead back to itself
            self.schema.defs[name] = self.subschema(target, pointer)
        return f"#/$defs/{self._names[pointer]}"
