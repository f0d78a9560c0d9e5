"""Where the references of a JSON Schema lead, within its own document."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from palmette.errors import ConstraintError


def escape(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


class References:
    """Resolves $ref to JSON pointers."""

    def __init__(self, document: Any, draft: int) -> None:
        self._document = document
        self._id = "id" if draft == 4 else "$id"
        self._base = (self._name(document) or "").rstrip("#")
        # An inner $id would change what the references below it mean.
        self._has_inner = self._count(document) > bool(self._name(document))

    def _name(self, value: Any) -> str | None:
        name = value.get(self._id) if isinstance(value, dict) else None
        return name if isinstance(name, str) and not name.startswith("#") else None

    def _count(self, value: Any) -> int:
        if isinstance(value, dict):
            return bool(self._name(value)) + sum(map(self._count, value.values()))
        return sum(map(self._count, value)) if isinstance(value, list) else 0

    def resolve(self, ref: str, at: str) -> str:
        """The pointer that `ref`, which stands at `at`, leads to. ConstraintError when it leads out or nowhere."""
        base, _, fragment = ref.partition("#")
        if base and base != self._base:
            raise ConstraintError(
                f"the reference {ref!r} leads out of the schema", pointer=at, hint="put its target under $defs"
            )
        if self._has_inner:
            raise ConstraintError(
                "references beside several $id cannot be enforced", pointer=at, hint="leave out the inner $id"
            )
        fragment = unquote(fragment)
        if fragment == "" or fragment.startswith("/"):
            return fragment
        found = _find_anchor(self._document, fragment, "")
        if found is None:
            raise _nowhere(ref, at)
        return found

    def look_up(self, pointer: str, ref: str, at: str) -> Any:
        """The schema at `pointer`, to which `ref` at `at` leads."""
        here = self._document
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(here, dict) and part in here:
                here = here[part]
            elif isinstance(here, list) and part.isdecimal() and int(part) < len(here):
                here = here[int(part)]
            else:
                raise _nowhere(ref, at)
        if not isinstance(here, dict | bool):
            raise ConstraintError(f"the reference {ref!r} leads to no schema", pointer=at, hint="point it at a schema")
        return here


def _nowhere(ref: str, at: str) -> ConstraintError:
    return ConstraintError(f"the reference {ref!r} leads nowhere", pointer=at, hint="define its target under $defs")


def _find_anchor(value: Any, name: str, at: str) -> str | None:
    """The pointer of the subschema that names itself so."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        if name in (value.get("$anchor"), value.get("$dynamicAnchor")):
            return at
        if "#" + name in (value.get("$id"), value.get("id")):
            return at
        parts = list(value.items())
    elif isinstance(value, list):
        parts = [(str(i), v) for i, v in enumerate(value)]
    for key, part in parts:
        found = _find_anchor(part, name, f"{at}/{escape(key)}")
        if found is not None:
            return found
    return None
