"""`type=`: what text a Python type allows, and how the text becomes a value of it."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any, Literal, get_args, get_origin

from palmette.errors import ConstraintError

# Bounded, so that a sampled number ends by itself: 19 digits hold every 64-bit integer.
_INT = r"-?(?:0|[1-9][0-9]{0,18})"
_FLOAT = _INT + r"(?:\.[0-9]{1,17})?"
_NAMES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True, slots=True)
class OutputType:
    """A type as a constraint and a parser. `kind` and `spec` are those of a constraint, None for free text; `parse`
    turns a complete text into the value and raises ValueError for any other text."""

    name: str
    kind: Literal["regex", "choices", "json_schema"] | None
    spec: str | tuple[str, ...]
    parse: Callable[[str], Any]


def output_type(given: object) -> OutputType:
    """The output type for `int`, `float`, `bool`, `str` (or their names), Literal, Enum, dataclass, pydantic model,
    and whatever else pydantic's TypeAdapter has a JSON schema for. TypeError for anything else."""
    if isinstance(given, str):
        if given not in _NAMES:
            raise TypeError(f"type={given!r} names no type; give the type itself, or one of {', '.join(_NAMES)}")
        given = _NAMES[given]
    try:
        hash(given)
    except TypeError:
        return _build(given)
    return _cached(given)


def json_value(text: str) -> Any:
    """Parses JSON text strictly (no NaN or Infinity)."""
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@functools.lru_cache(maxsize=256)
def _cached(given: Any) -> OutputType:
    return _build(given)


def _build(given: Any) -> OutputType:
    if given is str:
        return OutputType("str", None, "", str)
    if given is int:
        return OutputType("int", "regex", _INT, int)
    if given is float:
        return OutputType("float", "regex", _FLOAT, float)
    if given is bool:
        return _options("bool", {"True": True, "False": False})
    if get_origin(given) is Literal:
        return _options(str(given), _by_text([(_spelling(value), value) for value in _literals(given)], given))
    if isinstance(given, type) and issubclass(given, enum.Enum) and not issubclass(given, enum.Flag):
        return _options(given.__name__, _by_text([(_spelling(m.value, m.name), m) for m in given], given))
    return _adapted(given)


def _literals(given: Any) -> list[Any]:
    values: list[Any] = []
    for value in get_args(given):
        values.extend(_literals(value) if get_origin(value) is Literal else [value])
    return values


def _spelling(value: object, otherwise: str | None = None) -> str:
    """How an option is written: enum members by value, or by name where the value is no plain scalar."""
    if isinstance(value, enum.Enum):
        return _spelling(value.value, value.name)
    if value is None or isinstance(value, str | int | float | bool):
        return str(value)
    return otherwise if otherwise is not None else repr(value)


def _by_text(pairs: list[tuple[str, Any]], given: object) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text, value in pairs:
        if text in options:
            raise ConstraintError(
                f"two options of {given!r} are both written {text!r}", hint="give them spellings that differ"
            )
        options[text] = value
    if not options:
        raise ConstraintError(f"{given!r} has no options", hint="a type needs at least one value")
    return options


def _options(name: str, options: dict[str, Any]) -> OutputType:
    return OutputType(name, "choices", tuple(options), _OneOf(options))


@dataclass(frozen=True, slots=True, eq=False)
class _OneOf:
    """Parses the spelling of one of several values. A class, so that results that hold it can be pickled."""

    values: Mapping[str, Any]

    def __call__(self, text: str) -> Any:
        if text not in self.values:
            raise ValueError(f"{text!r} is none of {', '.join(self.values)}")
        return self.values[text]


def _adapted(given: Any) -> OutputType:
    if isinstance(given, FunctionType | BuiltinFunctionType):
        raise TypeError(f"type={given!r} is a function, not a type")
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

    name = getattr(given, "__name__", None) or str(given)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(given)
        schema = adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
        raise TypeError(f"type={name} has no JSON schema: {_first_line(error)}") from error
    except (PydanticUserError, NameError, AttributeError) as error:
        raise TypeError(f"type={name} is no type that pydantic understands: {_first_line(error)}") from error
    text = json.dumps(_closed(schema), ensure_ascii=False, separators=(",", ":"))
    return OutputType(name, "json_schema", text, adapter.validate_json)


def _closed(schema: Any) -> Any:
    """The schema with objects of named fields closed, unless the type itself allows more (`extra="allow"`).

    pydantic drops keys that a model does not have, so a generator that invents some only wastes its tokens.
    """
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for keyword in ("$defs", "properties"):
        if isinstance(result.get(keyword), dict):
            result[keyword] = {key: _closed(value) for key, value in result[keyword].items()}
    for keyword in ("items", "additionalProperties"):
        if keyword in result:
            result[keyword] = _closed(result[keyword])
    for keyword in ("prefixItems", "anyOf", "oneOf", "allOf"):
        if isinstance(result.get(keyword), list):
            result[keyword] = [_closed(value) for value in result[keyword]]
    if "properties" in result:
        result.setdefault("additionalProperties", False)
    return result


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
