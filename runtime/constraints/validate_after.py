"""`on_unsupported="validate"`: what of a schema cannot be enforced is dropped, and the text checked when it is there.

Only keywords are dropped that are refused for being what they are, in a schema that is well-formed, and that jsonschema
knows how to check. Below a `not` or an `if` less would be allowed without them: there the whole `not` or `if` goes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema.keywords import KEYWORDS, words
from palmette.runtime.protocol import Constraint

T = TypeVar("T")

_DROPPABLE = words(
    "pattern format not if allOf anyOf oneOf contains minContains maxContains uniqueItems multipleOf minimum maximum "
    "exclusiveMinimum exclusiveMaximum minLength maxLength minItems maxItems minProperties maxProperties "
    "propertyNames patternProperties additionalProperties additionalItems dependencies dependentSchemas "
    "dependentRequired unevaluatedProperties unevaluatedItems"
)
_TURNED = ("not", "if")
_MOST_ROUNDS = 32  # each finds what hid behind what was dropped before
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """Where a text is invalid (a JSON pointer into it), and why."""

    pointer: str
    message: str


class Check:
    """The whole schema, for texts that were written under what is left of it. dropped: pointers to what is not."""

    def __init__(self, validator: Any, dropped: tuple[str, ...], retries: int) -> None:
        self._validator = validator
        self.dropped = dropped
        self.retries = retries

    def problem(self, text: str) -> Problem | None:
        """None where the text is valid."""
        from jsonschema.exceptions import best_match
        from referencing.exceptions import Unresolvable

        try:
            error = best_match(self._validator.iter_errors(json.loads(text)))
        except (ValueError, RecursionError, Unresolvable) as failed:
            return Problem("", f"it cannot be checked: {failed}"[:_SHOWN])
        if error is None:
            return None
        return Problem("".join(f"/{_escape(str(name))}" for name in error.absolute_path), error.message[:_SHOWN])

    def failure(self, problem: Problem, attempts: int) -> ConstraintError:
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        return ConstraintError(
            f"the text is not valid under its schema after {times}: {problem.message}",
            pointer=problem.pointer,
            hint=f"what could not be enforced is {', '.join(self.dropped)}: say it another way, or raise retries and "
            "temperature",
        )


def compiled_or_looser(constraint: Constraint, compile: Callable[[Constraint], T]) -> tuple[T, Check | None]:
    """`compile(constraint)`; where that is refused and may be dropped, what is compiled of the rest, and the check.

    The ConstraintError of the whole, where anything in it is refused for another reason.
    """
    strict = Constraint(constraint.kind, constraint.spec, constraint.whitespace)
    try:
        return compile(strict), None
    except ConstraintError as error:
        if constraint.on_unsupported != "validate" or constraint.kind != "json_schema":
            raise
        first = error
    validator = _validator(strict, first)
    schema = json.loads(str(strict.spec))
    dropped: dict[str, None] = {}
    faults: Iterable[ConstraintError] = first.faults
    for _ in range(_MOST_ROUNDS):
        places = [_place(schema, fault.pointer, validator) for fault in faults]
        if None in places:
            raise first
        for place in dict.fromkeys(places):
            assert place is not None
            _drop(schema, place)
            dropped[place] = None
        try:
            looser = replace(strict, spec=json.dumps(schema, ensure_ascii=False))
            return compile(looser), Check(validator, tuple(dropped), constraint.retries)
        except ConstraintError as error:
            faults = error.faults
    raise first


def _validator(constraint: Constraint, refused: ConstraintError) -> Any:
    """jsonschema's validator of the whole. It fetches nothing. `refused`, where the schema is no schema."""
    import jsonschema
    from jsonschema_specifications import REGISTRY

    try:
        schema = json.loads(str(constraint.spec))
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
    except (ValueError, RecursionError, jsonschema.SchemaError):
        raise refused from None
    return kind(schema, format_checker=kind.FORMAT_CHECKER, registry=REGISTRY)


def _place(schema: Any, pointer: str, validator: Any) -> str | None:
    """What is to be dropped for a fault at the pointer; None where nothing may be."""
    names = [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]
    if not pointer.startswith("/"):
        return None  # the whole, or a place in another document
    here, keyword, turned = schema, "", None
    subschema = True
    for depth, name in enumerate(names):
        if isinstance(here, list) and name.isdecimal() and int(name) < len(here):
            after = here[int(name)]
        elif isinstance(here, dict) and name in here:
            after = here[name]
        else:
            return None
        if subschema:
            keyword = name
            if keyword not in KEYWORDS:
                return None
            if keyword in _TURNED and turned is None:
                turned = "".join(f"/{_escape(each)}" for each in names[: depth + 1])
            value = KEYWORDS[keyword].value
            last_keyword = depth == len(names) - 1
            # In a map or a list of schemas the next name says which.
            subschema = value == "schema" or (value == "items" and not isinstance(after, list))
        else:
            last_keyword = False
            subschema = True
        here = after
    if not last_keyword or not _checkable(keyword, here, validator):
        return None
    return turned or pointer


def _checkable(keyword: str, value: Any, validator: Any) -> bool:
    """Whether jsonschema can see to it afterwards."""
    if keyword not in _DROPPABLE or (keyword not in validator.VALIDATORS):
        return False
    if keyword == "pattern":
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError):
            return False
    return keyword != "format" or value in validator.format_checker.checkers


def _drop(schema: Any, pointer: str) -> None:
    *path, last = [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]
    for name in path:
        if isinstance(schema, dict):
            schema = schema.get(name)
        elif isinstance(schema, list) and name.isdecimal():
            schema = schema[int(name)]
    # Two faults may lie in what was dropped for the first.
    if isinstance(schema, dict):
        schema.pop(last, None)


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
