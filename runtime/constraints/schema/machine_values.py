"""JSON values as they are compared: equal ones are equal and can be hashed."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from palmette.runtime.constraints.schema.machine_graph import Value
from palmette.runtime.constraints.schema.machine_numbers import spell

_ESCAPES = {0x22: b'\\"', 0x5C: b"\\\\", 0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0C: b"\\f", 0x0D: b"\\r"}
NULL, TRUE, FALSE = ("null",), ("true",), ("false",)


def parse(text: bytes) -> Value:
    """The value of a JSON text, whose exponents are small."""
    return canonical(json.loads(text, parse_float=Fraction, parse_int=Fraction, object_pairs_hook=_Pairs))


class _Pairs(list[tuple[str, Any]]):
    """An object's members, told from an array."""


def canonical(value: Any) -> Value:
    if isinstance(value, _Pairs):
        return ("{", frozenset((name, canonical(v)) for name, v in value))
    if isinstance(value, dict):
        return ("{", frozenset((name, canonical(v)) for name, v in value.items()))
    if isinstance(value, list):
        return ("[", tuple(map(canonical, value)))
    if value is None or isinstance(value, bool):
        return NULL if value is None else TRUE if value else FALSE
    return value if isinstance(value, str) else Fraction(value)


def quoted(content: bytes) -> bytes:
    """The inside of a string as JSON writes it in the fewest bytes."""
    if b'"' not in content and b"\\" not in content and min(content, default=0x20) >= 0x20:
        return content
    return b"".join(_ESCAPES.get(b) or (b"\\u%04x" % b if b < 0x20 else bytes([b])) for b in content)


def dump(value: Value) -> bytes:
    """A compact JSON text of the value. ValueError for a number whose decimals never end."""
    if isinstance(value, Fraction):
        spelled = spell(value)
        if spelled is None:
            raise ValueError(f"{value} has no decimal digits")
        return spelled.encode()
    if isinstance(value, str):
        return b'"' + quoted(value.encode("utf-8", "surrogatepass")) + b'"'
    if value[0] == "[":
        return b"[" + b",".join(map(dump, value[1])) + b"]"
    if value[0] == "{":
        return b"{" + b",".join(dump(k) + b":" + dump(v) for k, v in sorted(value[1], key=lambda p: p[0])) + b"}"
    return str(value[0]).encode()
