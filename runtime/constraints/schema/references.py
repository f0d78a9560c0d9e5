"""Where references lead: within the schema's own document, to those the caller gives, to the standard meta-schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any
from urllib.parse import unquote, urljoin

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema.document import Faults, check, children, draft_of, escape, parse


class Resource:
    """A schema with a URI of its own. at: its pointer in its document; asserts: whether its meta-schema's vocabularies
    have validation among them."""

    __slots__ = ("anchors", "asserts", "at", "draft", "dynamic", "prefix", "recursive", "uri", "value")

    def __init__(self, uri: str, value: Any, at: str, draft: int, prefix: str) -> None:
        self.uri = uri
        self.value = value
        self.at = at
        self.draft = draft
        self.prefix = prefix
        self.asserts = True
        self.anchors: dict[str, Site] = {}
        self.dynamic: set[str] = set()
        self.recursive = isinstance(value, dict) and value.get("$recursiveAnchor") is True


class Site:
    """A subschema at its place. pointer: from the root of its document, behind the URI where that is another one."""

    __slots__ = ("pointer", "resource", "value")

    def __init__(self, value: Any, pointer: str, resource: Resource) -> None:
        self.value = value
        self.pointer = pointer
        self.resource = resource


class References:
    """Finds the subschemas that references lead to; the root is `root`."""

    def __init__(self, document: Any, documents: Mapping[str, Any], faults: Faults, deadline: float) -> None:
        self._given = documents
        self._faults = faults
        self._deadline = deadline
        self._resources: dict[str, Resource] = {}
        self._resource_at: dict[str, Resource] = {}
        self.root = self._add("", document, "")

    def _add(self, uri: str, document: Any, prefix: str) -> Resource:
        """Takes in a document; prefix: of the pointers into it."""
        draft = draft_of(document)
        custom = None
        if draft is None:
            assert isinstance(document, dict)
            custom = self._meta(document["$schema"])
            draft = (custom and draft_of(custom, 2020)) or 2020
        if draft == 3:
            raise ConstraintError(
                "schemas of draft 3 cannot be enforced",
                pointer=f"{prefix}/$schema",
                hint="write it in draft 4 or later",
            )
        named = check(document, prefix, draft, self._faults, self._deadline)
        resource = Resource(uri, document, prefix, draft, prefix)
        if isinstance(document, dict):
            own = document.get("id" if draft == 4 else "$id")
            if isinstance(own, str) and not own.startswith("#") and not (draft <= 7 and "$ref" in document):
                resource.uri = join(uri, own).partition("#")[0]
            vocabularies = custom.get("$vocabulary") if isinstance(custom, dict) else None
            if isinstance(vocabularies, dict):
                resource.asserts = any(name.endswith("/validation") for name in vocabularies)
        self._resources.setdefault(uri, resource)
        self._resources.setdefault(resource.uri, resource)
        self._resource_at[prefix] = resource
        self._anchor(document, prefix, resource)
        if named:
            self._index(document, prefix, resource)
        return resource

    def _meta(self, uri: str) -> Any:
        given = self._given.get(uri, self._given.get(uri.rstrip("#")))
        return _parsed(given) if given is not None else None

    def _index(self, document: Any, at: str, resource: Resource) -> None:
        """Finds the resources and anchors inside a document."""
        todo: list[tuple[Any, str, Resource]] = [(document, at, resource)]
        while todo:
            here, where, inside = todo.pop()
            if not isinstance(here, dict):
                continue
            if where != at:
                inside = self._inner(here, where, inside)
                self._anchor(here, where, inside)
            if "$ref" in here and inside.draft <= 7:
                here = {k: v for k, v in here.items() if k in ("definitions", "$defs")}
            for key, value in here.items():
                todo += [(v, p, inside) for v, p in children(key, value, where)]

    def _inner(self, here: dict[str, Any], where: str, inside: Resource) -> Resource:
        own = here.get("id" if inside.draft == 4 else "$id")
        if not isinstance(own, str) or own.startswith("#") or ("$ref" in here and inside.draft <= 7):
            return inside
        uri = join(inside.uri, own).partition("#")[0]
        draft = draft_of(here, inside.draft)
        found = Resource(uri, here, where, inside.draft if draft in (None, 3) else draft, inside.prefix)
        found.asserts = inside.asserts
        self._resources.setdefault(uri, found)
        self._resource_at[where] = found
        return found

    def _anchor(self, here: Any, where: str, resource: Resource) -> None:
        if not isinstance(here, dict):
            return
        for key in ("$anchor", "$dynamicAnchor", "$id", "id"):
            name = here.get(key)
            if not isinstance(name, str):
                continue
            if key in ("$id", "id"):
                fragment = name.partition("#")[2]
                if not fragment or fragment.startswith("/") or resource.draft > 7:
                    continue
                name = fragment
            resource.anchors.setdefault(name, Site(here, where, resource))
            if key == "$dynamicAnchor":
                resource.dynamic.add(name)

    def site(self, value: Any, pointer: str, parent: Resource) -> Site:
        """The subschema `value`, found below one of `parent`."""
        if len(self._resource_at) > 1:
            parent = self._resource_at.get(pointer, parent)
        return Site(value, pointer, parent)

    def resource(self, uri: str) -> Resource | None:
        found = self._resources.get(uri)
        if found is None:
            given = self._given.get(uri, self._given.get(uri + "#"))
            value = _parsed(given) if given is not None else _standard(uri)
            if value is not None:
                self._add(uri, value, uri + "#")
                found = self._resources[uri]
        return found

    def resolve(self, ref: str, site: Site) -> Site | None:
        """The subschema that `ref`, which stands in `site`, leads to; None, with a fault, for nowhere."""
        at = f"{site.pointer}/$ref"
        base, _, fragment = join(site.resource.uri, ref).partition("#")
        resource = site.resource if base == site.resource.uri else self.resource(base)
        if resource is None:
            self._faults.add(
                at, f"the reference {ref!r} leads out of the schema", "put its target under $defs, or give its document"
            )
            return None
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = resource.anchors.get(fragment)
            if found is None:
                self._nowhere(ref, at)
            return found
        return self._walk(resource, fragment, ref, at)

    def _walk(self, resource: Resource, fragment: str, ref: str, at: str) -> Site | None:
        here, where = resource.value, resource.at
        for part in fragment.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(here, dict) and part in here:
                here = here[part]
            elif isinstance(here, list) and part.isdecimal() and int(part) < len(here):
                here = here[int(part)]
            else:
                self._nowhere(ref, at)
                return None
            where = f"{where}/{escape(part)}"
            resource = self._resource_at.get(where, resource)
        if not isinstance(here, dict | bool):
            self._faults.add(at, f"the reference {ref!r} leads to no schema", "point it at a schema")
            return None
        return Site(here, where, resource)

    def _nowhere(self, ref: str, at: str) -> None:
        self._faults.add(at, f"the reference {ref!r} leads nowhere", "define its target under $defs")


def join(base: str, ref: str) -> str:
    """The URI of `ref` beside `base` (RFC 3986), also where the base is a URN."""
    if not ref or ref.startswith("#"):
        return base.partition("#")[0] + ref
    return urljoin(base, ref)


def _parsed(document: Any) -> Any:
    """A document of the caller's with the numbers that the reader works with."""
    return parse(json.dumps(document, default=_digits)) if isinstance(document, dict | list) else document


def _digits(value: Any) -> float:
    if isinstance(value, Fraction):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _standard(uri: str) -> Any:
    """A meta-schema of json-schema.org."""
    if not uri.startswith(("http://json-schema.org/", "https://json-schema.org/")):
        return None
    from jsonschema_specifications import REGISTRY

    for name in (uri, uri + "#"):
        if name in REGISTRY:
            return _parsed(REGISTRY.contents(name))
    return None
