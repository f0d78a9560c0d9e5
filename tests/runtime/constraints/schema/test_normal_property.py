"""Random schemas and values: the normal form takes a value exactly when `jsonschema` does."""

from __future__ import annotations

import json
import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema.algebra import Budget
from palmette.runtime.constraints.schema.normal import normal_form
from palmette.runtime.constraints.schema.shapes import Normal

# More of them: PALMETTE_SCHEMAS=20000.
SCHEMAS = int(os.environ.get("PALMETTE_SCHEMAS", "400"))
BUDGET = Budget(seconds=4, shapes=20_000)
NAMES = ["a", "b", "c", "ab"]
STRINGS = ["", "a", "b", "ab", "ba", "abc", "cc"]
NUMBERS: list[Any] = [-2, -1, 0, 1, 2, 3, 4, 6, 0.5, 1.5, 2.5]
PATTERNS = ["a", "^a", "b$", "^[ab]*$", "^.$", "^(?!a)", "c"]
VALIDATORS: dict[str, Any] = {
    "http://json-schema.org/draft-07/schema#": jsonschema.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
}


def value(draw: random.Random, depth: int = 2) -> Any:
    kind = draw.choice("nbisao" if depth else "nbis")
    if kind == "n":
        return None
    if kind == "b":
        return draw.random() < 0.5
    if kind == "i":
        return draw.choice(NUMBERS)
    if kind == "s":
        return draw.choice(STRINGS)
    if kind == "a":
        return [value(draw, depth - 1) for _ in range(draw.choice([0, 1, 1, 2, 2, 3]))]
    return {draw.choice(NAMES): value(draw, depth - 1) for _ in range(draw.choice([0, 1, 1, 2, 2, 3]))}


class Schemas:
    """Draws schemas of one draft. Of a wide choice of keywords a few at a time, so that they meet each other."""

    def __init__(self, draw: random.Random, draft: str) -> None:
        self.draw = draw
        self.new = "2020-12" in draft
        self.later = "draft-07" not in draft

    def schema(self, depth: int) -> Any:
        draw = self.draw
        if draw.random() < 0.12:
            return draw.random() < 0.6
        if draw.random() < 0.12:
            return {"$ref": draw.choice(["#", "#/definitions/x", "#/definitions/y"])} if depth < 3 else {}
        out: dict[str, Any] = {}
        if draw.random() < 0.5:
            types = ["null", "boolean", "integer", "number", "string", "array", "object"]
            out["type"] = draw.choice([draw.choice(types), draw.sample(types, 2)])
        for _ in range(draw.choice([0, 1, 1, 2, 3])):
            out.update(self.keyword(depth))
        return out

    def some(self, depth: int, least: int = 1) -> list[Any]:
        return [self.schema(depth - 1) for _ in range(self.draw.randint(least, 3))]

    def tagged(self, depth: int) -> list[dict[str, Any]]:
        """Objects with tags, as people write the branches of oneOf."""
        draw = self.draw
        return [
            {
                "properties": {
                    "a": {"enum": draw.sample(STRINGS, draw.choice([1, 1, 2]))},
                    "b": draw.choice([{"const": draw.choice(NUMBERS)}, self.schema(depth - 1)]),
                    "c": self.schema(depth - 1),
                },
                "required": draw.sample(["a", "b", "c"], draw.choice([0, 1, 1, 2])),
            }
            for _ in range(draw.randint(2, 4))
        ]

    def keyword(self, depth: int) -> dict[str, Any]:
        draw = self.draw
        plain: list[Callable[[], dict[str, Any]]] = [
            lambda: {"const": value(draw)},
            lambda: {"enum": [value(draw) for _ in range(draw.randint(1, 4))]},
            lambda: {draw.choice(["minimum", "exclusiveMinimum"]): draw.choice(NUMBERS)},
            lambda: {draw.choice(["maximum", "exclusiveMaximum"]): draw.choice(NUMBERS)},
            lambda: {"multipleOf": draw.choice([1, 2, 3, 0.5, 1.5])},
            lambda: {"minLength": draw.randint(0, 3)},
            lambda: {"maxLength": draw.randint(0, 3)},
            lambda: {"pattern": draw.choice(PATTERNS)},
            lambda: {"minItems": draw.randint(0, 3)},
            lambda: {"maxItems": draw.randint(0, 3)},
            lambda: {"uniqueItems": True},
            lambda: {"required": draw.sample(NAMES, draw.randint(0, 2))},
            lambda: {"minProperties": draw.randint(0, 3)},
            lambda: {"maxProperties": draw.randint(0, 3)},
        ]
        if self.later:
            plain.append(lambda: {"dependentRequired": {draw.choice(NAMES): draw.sample(NAMES, 1)}})
        if not depth or draw.random() < 0.25:
            return draw.choice(plain)()
        below = lambda: self.schema(depth - 1)  # noqa: E731
        deep: list[Callable[[], dict[str, Any]]] = [
            lambda: {"properties": {n: below() for n in draw.sample(NAMES, draw.randint(1, 3))}},
            lambda: {"properties": {n: below() for n in draw.sample(NAMES, draw.randint(1, 3))}},
            lambda: {"patternProperties": {p: below() for p in draw.sample(PATTERNS, draw.randint(1, 2))}},
            lambda: {"additionalProperties": below()},
            lambda: {"propertyNames": below()},
            lambda: {"items": below()},
            lambda: {"contains": below()},
            lambda: {"allOf": self.some(depth)},
            lambda: {"anyOf": self.some(depth)},
            lambda: {"oneOf": self.some(depth)},
            lambda: {"oneOf": self.tagged(depth)},
            lambda: {"not": below()},
            lambda: {"if": below(), draw.choice(["then", "else"]): below()},
            lambda: {"if": below(), "then": below(), "else": below()},
        ]
        if self.later:
            deep += [
                lambda: {"dependentSchemas": {draw.choice(NAMES): below()}},
                lambda: {"unevaluatedProperties": below()},
                lambda: {"unevaluatedItems": below()},
                lambda: {"contains": below(), "minContains": draw.randint(0, 2), "maxContains": draw.randint(0, 2)},
            ]
        else:
            deep.append(lambda: {"dependencies": {draw.choice(NAMES): draw.choice([below(), draw.sample(NAMES, 1)])}})
        if self.new:
            deep.append(lambda: {"prefixItems": self.some(depth)})
        else:
            deep.append(lambda: {"items": self.some(depth), "additionalItems": below()})
        return draw.choice(deep)()


def drawn(seed: int) -> tuple[dict[str, Any], Any]:
    draw = random.Random(seed)
    draft = draw.choice(list(VALIDATORS))
    schemas = Schemas(draw, draft)
    root = schemas.schema(3)
    schema = root if isinstance(root, dict) else {}
    if schema.get("$ref") != "#":
        schema = {"$schema": draft, "definitions": {"x": schemas.schema(2), "y": schemas.schema(1)}, **schema}
    return schema, draw


def compare(seed: int, evaluate: Callable[[Normal, Any], bool]) -> str:
    """What became of the schema with this number: read, refused, empty, or endless (jsonschema cannot tell either)."""
    schema, draw = drawn(seed)
    if "$schema" not in schema:
        return "endless"
    if "2019-09" in schema["$schema"] and "unevaluatedItems" in str(schema) and "contains" in str(schema):
        return "endless"  # jsonschema counts what `contains` finds as evaluated there, which only 2020-12 does
    validator = VALIDATORS[schema["$schema"]](schema)
    values = [value(draw, 3) for _ in range(40)]
    try:
        wanted = [validator.is_valid(v) for v in values]
    except BaseException as error:
        # A reference to itself runs out of stack; the registry is written in Rust, and panics where Python does so. And
        # jsonschema 4.26 fails on a boolean `items` beside unevaluatedItems in 2019-09.
        if not isinstance(error, RecursionError | TypeError) and type(error).__name__ != "PanicException":
            raise
        return "endless"
    try:
        normal = normal_form(json.dumps(schema), budget=BUDGET)
    except ConstraintError as error:
        if "no value" in error.message or "no finite value" in error.message:
            assert not any(wanted), (seed, schema)
            return "empty"
        return "endless" if "back to itself" in error.message else f"refused: {error.message}"
    assert all(shapes for node, shapes in enumerate(normal.nodes) if node != 1)
    for v, valid in zip(values, wanted, strict=True):
        assert evaluate(normal, v) == valid, (seed, v, valid, json.dumps(schema))
    return "read"


@pytest.mark.parametrize("part", range(4))
def test_random_schemas_mean_what_they_mean_to_jsonschema(part: int, evaluate: Callable[[Normal, Any], bool]) -> None:
    found: dict[str, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(part, SCHEMAS, 4):
            became = compare(seed, evaluate)
            found[became] = found.get(became, 0) + 1
    print(found)
    refused = sum(n for became, n in found.items() if became.startswith("refused"))
    assert found["read"] > 0.6 * SCHEMAS / 4 and refused < 0.1 * SCHEMAS / 4, found
