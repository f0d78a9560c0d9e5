"""An instance with its keys where a generator that follows the schema would write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from palmette.benchmarks.constraints.engines import Compiled, Cursor
from palmette.runtime.constraints.vocabulary import Vocabulary

_BESIDE = ("allOf", "anyOf", "oneOf")
_INSIDE = ("if", "then", "else")
_MOST = 2000  # subschemas looked at for one object
_STEPS = 3000  # pieces of text that are tried to find an order


def takes_in_some_order(compiled: Compiled, instance: Any, vocabulary: Vocabulary) -> bool:
    """Whether the engine takes the instance with the keys of its objects in some order, its own being tried first.
    Orders are tried key by key, by copies of the matcher; False, too, when too many have been."""
    steps = _STEPS

    def write(cursor: Cursor, text: str) -> Cursor | None:
        nonlocal steps
        steps -= 1
        copy = cursor.fork() if steps >= 0 else None
        tokens = vocabulary.spell(text.encode())
        return copy if copy is not None and tokens is not None and copy.feed(tokens, []) else None

    def value(cursor: Cursor, v: Any) -> Iterator[Cursor]:
        if isinstance(v, list) and v:
            yield from items(cursor, v, 0)
        elif isinstance(v, dict) and v:
            yield from members(cursor, v, "{")
        elif (after := write(cursor, json.dumps(v, ensure_ascii=False))) is not None:
            yield after

    def items(cursor: Cursor, v: list[Any], i: int) -> Iterator[Cursor]:
        before = write(cursor, ",[]"[0 if 0 < i < len(v) else 1 if i < len(v) else 2])
        if before is not None and i == len(v):
            yield before
        elif before is not None:
            for after in value(before, v[i]):
                yield from items(after, v, i + 1)

    def members(cursor: Cursor, left: dict[str, Any], before: str) -> Iterator[Cursor]:
        if not left and (closed := write(cursor, "}")) is not None:
            yield closed
        for name, v in left.items():
            named = write(cursor, f"{before}{json.dumps(name, ensure_ascii=False)}:")
            for after in value(named, v) if named is not None else ():
                yield from members(after, {n: w for n, w in left.items() if n != name}, ",")

    cursor = compiled.start()
    if cursor.fork() is None:
        tokens = vocabulary.spell(json.dumps(instance, ensure_ascii=False, separators=(",", ":")).encode())
        return tokens is not None and cursor.feed(tokens, []) and cursor.ends()
    return any(after.ends() for after in value(cursor, instance))


def reordered(schema: Any, instance: Any) -> Any:
    """The same value; in each object first the names of `properties` (of the schema, then of what it refers to and
    combines), then those of `required`, then the others."""
    return _value(schema, [schema], instance, 0)


def _value(root: Any, schemas: list[Any], instance: Any, depth: int) -> Any:
    if not isinstance(instance, dict | list) or depth > 50:
        return instance
    spread: list[dict[str, Any]] = []
    for schema in schemas:
        _spread(root, schema, spread)
    if isinstance(instance, list):
        return [_value(root, _items(spread, i), v, depth + 1) for i, v in enumerate(instance)]
    names: dict[str, None] = {}
    for part in spread:
        names.update(dict.fromkeys(_dict(part.get("properties"))))
    for part in spread:
        if isinstance(required := part.get("required"), list):
            names.update(dict.fromkeys(filter(_is_text, required)))
    listed = [name for name in names if name in instance]
    out = {}
    for name in [*listed, *(name for name in instance if name not in names)]:
        below = [p for part in spread if (p := _dict(part.get("properties")).get(name)) is not None]
        if not below:
            below = [p for part in spread for p in _dict(part.get("patternProperties")).values()]
            below += [part["additionalProperties"] for part in spread if "additionalProperties" in part]
        out[name] = _value(root, below, instance[name], depth + 1)
    return out


def _spread(root: Any, schema: Any, out: list[dict[str, Any]]) -> None:
    """The schema and all that speaks of the same instance."""
    if not isinstance(schema, dict) or len(out) >= _MOST or any(schema is known for known in out):
        return
    out.append(schema)
    if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#"):
        _spread(root, _find(root, ref[1:]), out)
    for key in _BESIDE:
        for part in schema[key] if isinstance(schema.get(key), list) else []:
            _spread(root, part, out)
    for key in _INSIDE:
        _spread(root, schema.get(key), out)
    for key in ("dependentSchemas", "dependencies"):
        for part in _dict(schema.get(key)).values():
            _spread(root, part, out)


def _items(spread: list[dict[str, Any]], i: int) -> list[Any]:
    out = []
    for part in spread:
        first = part.get("prefixItems", part.get("items"))
        if isinstance(first, list):
            if i < len(first):
                out.append(first[i])
            else:
                out.append(part.get("items" if "prefixItems" in part else "additionalItems"))
        else:
            out.append(part.get("items"))
    return out


def _find(root: Any, pointer: str) -> Any:
    for name in unquote(pointer).split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and name.isdecimal() and int(name) < len(root):
            root = root[int(name)]
        elif isinstance(root, dict) and name in root:
            root = root[name]
        else:
            return None
    return root


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
