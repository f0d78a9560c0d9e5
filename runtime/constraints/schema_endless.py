"""A rewritten schema, and the parts of it that no finite value satisfies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from palmette.errors import ConstraintError

_SCALARS = frozenset(["string", "number", "integer", "boolean", "null"])
_NOTHING: dict[str, Any] = {"enum": []}


@dataclass
class Schema:
    """A schema as llguidance gets it.

    parts: each subschema that was read, by its pointer in the original, rewritten; every: all of them, also where one
    was read by two ways. defs: those that a $ref leads to,
    by name. open_names: some object has named properties beside others, so that no name may be spelled in two ways.
    """

    root: Any = None
    parts: dict[str, Any] = field(default_factory=dict)
    every: list[dict[str, Any]] = field(default_factory=list)
    defs: dict[str, Any] = field(default_factory=dict)
    open_names: bool = False


def drop_endless(schema: Schema) -> None:
    """Turns parts that only an endless value satisfies (a list that must hold such a list) into ones that nothing
    satisfies, so that no text is led into them. ConstraintError when the root is one.

    The finite ones are found as the least fixed point of what a part needs; whatever is not understood counts as
    finite.
    """
    # Only these can be endless; what the reader adds besides (patterns) cannot.
    open_parts = {id(part): part for part in schema.every}

    def ok(part: Any) -> bool:
        return part is not False and id(part) not in open_parts

    def of_ref(ref: str) -> bool:
        return ok(schema.root if ref == "#" else schema.defs[ref.rsplit("/", 1)[1]])

    def is_finite(part: dict[str, Any]) -> bool:
        if "$ref" in part and not of_ref(part["$ref"]):
            return False
        if not all(map(ok, part.get("allOf", []))):
            return False
        if any(key in part and not any(map(ok, part[key])) for key in ("anyOf", "oneOf")):
            return False
        types = part.get("type", "string")
        types = {types} if isinstance(types, str) else set(types)
        if types & _SCALARS or "enum" in part or "const" in part:
            return True
        named = part.get("properties", {})
        if "object" in types and all(ok(named[name]) for name in part.get("required", []) if name in named):
            return True
        least = part.get("minItems", 0)
        front = part.get("prefixItems", [])
        return "array" in types and all(map(ok, front[:least])) and (least <= len(front) or ok(part.get("items", True)))

    while found := [key for key, part in open_parts.items() if is_finite(part)]:
        for key in found:
            del open_parts[key]
    if not ok(schema.root):
        raise ConstraintError(
            "no finite value satisfies the schema", hint="let a reference to the schema itself be optional"
        )
    for part in open_parts.values():
        part.clear()
        part.update(_NOTHING)
