"""A normal form as a JSON Schema of plain keywords, where it can be one."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import lru_cache
from typing import Any

import llguidance

from palmette.runtime.constraints.regex_language import Language
from palmette.runtime.constraints.regex_rust import rust_regex
from palmette.runtime.constraints.schema.loosen import as_double, counts
from palmette.runtime.constraints.schema.number_regex import step
from palmette.runtime.constraints.schema.reach import uses
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    ANYTHING_NODE,
    NOTHING_NODE,
    Anything,
    Arrays,
    Fixed,
    Node,
    Normal,
    Numbers,
    Objects,
    Shape,
    Strings,
    Text,
)

# One blank, or a line break and an indent: JSON as people write it, and never white space without end.
WHITESPACE = r" ?|\r?\n[ \t]{0,64}"
_PLAIN = (Arrays(), Objects())
_LITERAL = (Anything, Fixed)
_CONTAINERS = (Arrays, Objects)
_LITERALS = {"null": None, "true": True, "false": False}


# The patterns of formats come again and again.
_rust = lru_cache(maxsize=512)(rust_regex)


class _NotPlain(Exception):
    """The schema needs what plain keywords do not say."""


def json_form(normal: Normal, *, whitespace: bool) -> str | None:
    """llguidance's grammar of it; None where plain keywords do not say it."""
    document = json_document(normal, whitespace=whitespace)
    if document is None:
        return None
    text: Any = json.dumps(document)
    return llguidance.LLMatcher.grammar_from_json_schema(text)


def json_document(normal: Normal, *, whitespace: bool) -> dict[str, Any] | None:
    """The schema as llguidance reads it, with how it is to be written; None where plain keywords do not say it."""
    writer = _Writer(normal)
    try:
        document = writer.document()
    except _NotPlain:
        return None
    guidance: dict[str, Any] = {"whitespace_flexible": whitespace}
    if whitespace:
        guidance["whitespace_pattern"] = WHITESPACE
    if writer.open_names:
        # `"\u0061"` would be taken for another name than `"a"`.
        guidance["json_allowed_escapes"] = 'nrbtf\\"'
    else:
        guidance["json_allow_general_unicode_escapes"] = True
    return {**document, "x-guidance": guidance}


def number_keywords(shape: Numbers) -> dict[str, Any] | None:
    """The keywords that say what the shape does, `only`, `without` and `not_multiple_of` apart; None where its bounds
    or its step are no doubles."""
    out: dict[str, Any] = {"type": "number"}
    common = step(shape)
    if common is not None and common.denominator == 1:
        out["type"] = "integer"
    if common is not None and common != 1:
        out["multipleOf"] = common
    if shape.low is not None:
        out["exclusiveMinimum" if shape.low_open else "minimum"] = shape.low
    if shape.high is not None:
        out["exclusiveMaximum" if shape.high_open else "maximum"] = shape.high
    for key, value in out.items():
        if isinstance(value, Fraction):
            out[key] = as_double(value)
    return None if None in out.values() else out


class _Writer:
    def __init__(self, normal: Normal) -> None:
        self.normal = normal
        self.open_names = False
        self._named: dict[str, Any] = {}
        self._written: dict[Node, Any] = {}
        # What is used in several places, among it all that leads back to itself, is written once: so are patterns,
        # as llguidance reads each as often as it is written, and that is most of its time.
        self._once: set[Node] = set()
        self._patterned: dict[Text, int] = {}
        self._names: dict[Text, str] = {}
        for node, n in uses(normal).items():
            for shape in normal.nodes[node]:
                if isinstance(shape, Strings):
                    if shape.text.all_of:
                        self._patterned[shape.text] = self._patterned.get(shape.text, 0) + n
                elif n > 1 and isinstance(shape, _CONTAINERS) and shape not in _PLAIN:
                    self._once.add(node)

    def document(self) -> dict[str, Any]:
        root = self.node(self.normal.root)
        if root is False:
            raise _NotPlain
        head = {"$defs": self._named} if self._named else {}
        return head if root is True else {**head, **root}

    def node(self, node: Node) -> Any:
        if node in self._once:
            name = str(node)
            if name not in self._named:
                self._named[name] = None  # it may lead back to itself
                self._named[name] = self.shapes(self.normal.nodes[node])
            return {"$ref": f"#/$defs/{name}"}
        found = self._written.get(node)
        if found is None:
            found = self._written[node] = self.shapes(self.normal.nodes[node])
        return found

    def shapes(self, shapes: tuple[Shape, ...]) -> Any:
        if len(shapes) == 1 and not isinstance(shapes[0], _LITERAL):
            return self.shape(shapes[0])
        if not shapes:
            return False
        if any(isinstance(shape, Anything) for shape in shapes):
            return True
        options: list[Any] = []
        types: list[str] = []
        fixed = [shape.text for shape in shapes if isinstance(shape, Fixed)]
        if "true" in fixed and "false" in fixed:
            types.append("boolean")
            fixed = [text for text in fixed if text == "null"]
        for text in fixed:
            if text == "null":
                types.append("null")
            else:
                options.append({"const": _LITERALS[text]})
        for shape in shapes:
            if isinstance(shape, Fixed):
                continue
            if (written := self.shape(shape)).keys() == {"type"}:
                types.append(written["type"])
            else:
                options.append(written)
        if types:
            types = list(dict.fromkeys(types))
            options.append({"type": types[0] if len(types) == 1 else types})
        return options[0] if len(options) == 1 else {"anyOf": options}

    def shape(self, shape: Shape) -> dict[str, Any]:
        if isinstance(shape, Numbers):
            return self.numbers(shape)
        if isinstance(shape, Strings):
            text = shape.text
            if not text.all_of or self._patterned[text] < 2:
                return self.text(text)
            name = self._names.get(text)
            if name is None:
                name = self._names[text] = f"t{len(self._names)}"
                self._named[name] = self.text(text)
            return {"$ref": f"#/$defs/{name}"}
        if isinstance(shape, Arrays):
            return self.array(shape)
        assert isinstance(shape, Objects)
        return self.object(shape)

    def numbers(self, shape: Numbers) -> dict[str, Any]:
        if shape.only is not None:
            values = [as_double(value) for value in sorted(shape.only)]
            if None in values:
                raise _NotPlain
            return {"enum": values}
        keywords = number_keywords(shape)
        if keywords is None or shape.without or shape.not_multiple_of:
            raise _NotPlain
        return keywords

    def text(self, text: Text) -> dict[str, Any]:
        if text.only is not None:
            return {"enum": sorted(text.only)}
        if text.none_of or text.without:
            raise _NotPlain
        out: dict[str, Any] = {"type": "string"}
        if text.least:
            out["minLength"] = text.least
        if text.most is not None:
            out["maxLength"] = text.most
        first, *more = map(self.pattern, text.all_of) if text.all_of else [None]
        if first is not None:
            out["pattern"] = first
        if more:
            out["allOf"] = [{"pattern": pattern} for pattern in more]
        return out

    @staticmethod
    def pattern(language: Language) -> str:
        rust = _rust(language)
        if rust is None:
            raise _NotPlain
        return f"^{rust}$"

    def array(self, shape: Arrays) -> dict[str, Any]:
        if shape.contains:
            raise _NotPlain
        out: dict[str, Any] = {"type": "array"}
        if shape.prefix:
            out["prefixItems"] = [self.node(node) for node in shape.prefix]
        if shape.rest != ANYTHING_NODE:
            out["items"] = self.node(shape.rest)
        if shape.least:
            out["minItems"] = shape.least
        if shape.most is not None:
            out["maxItems"] = shape.most
        return out

    def object(self, shape: Objects) -> dict[str, Any]:
        if counts(shape) != (0, None):
            raise _NotPlain
        out: dict[str, Any] = {"type": "object"}
        if shape.members:
            out["properties"] = {member.name: self.node(member.node) for member in shape.members}
        if required := [member.name for member in shape.members if member.required]:
            out["required"] = required
        self.others(shape, out)
        return out

    def others(self, shape: Objects, out: dict[str, Any]) -> None:
        members = {member.name for member in shape.members}
        classes, rest = [], []
        for other in shape.others:
            text = other.names
            if text.all_of and not text.none_of and not text.without and text.only is None:
                classes.append(other)
            else:
                rest.append(other)
        left = {language for other in classes for language in other.names.all_of}
        for other in rest:
            # The names that are in no class, here or forbidden, and are not listed.
            names = Text(none_of=other.names.none_of, without=other.names.without)
            if len(rest) > 1 or other.names != names or not names.without <= members or not left <= set(names.none_of):
                raise _NotPlain
            for language in names.none_of:
                if language not in left:
                    out.setdefault("patternProperties", {})[self.pattern(language)] = False
        for other in classes:
            text = other.names
            if len(text.all_of) > 1 or text.least or text.most is not None:
                raise _NotPlain
            out.setdefault("patternProperties", {})[self.pattern(text.all_of[0])] = self.node(other.node)
        if not rest:
            out["additionalProperties"] = False
        elif rest[0].node != ANYTHING_NODE:
            out["additionalProperties"] = self.node(rest[0].node)
        open_classes = [other for other in shape.others if other.node != NOTHING_NODE]
        if open_classes and (shape.members or len(shape.others) > 1 or open_classes[0].names != ANY_TEXT):
            self.open_names = True
