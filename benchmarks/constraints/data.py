"""Schemas with instances, and regexes with strings, as they lie in a folder of data (its README says the format)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.errors import ArgumentError

# MaskBench's splits that are schemas of people, as JSONSchemaBench has them.
REAL = frozenset(
    [
        *("Github_trivial", "Github_easy", "Github_medium", "Github_hard", "Github_ultra"),
        *("Glaiveai2K", "Kubernetes", "JsonSchemaStore", "Snowplow", "WashingtonPost"),
    ]
)


@dataclass(frozen=True, slots=True)
class Case:
    """spec: a JSON Schema or a pattern. tests: what is valid, and instances (of a schema) or texts (of a pattern)."""

    name: str
    part: str
    spec: Any
    tests: tuple[tuple[bool, Any], ...]


def maskbench(folder: Path) -> Iterator[Case]:
    """Parts: "real" for schemas of people, "made" for the rest."""
    for record in _records(folder, "maskbench.jsonl.gz"):
        part = "real" if record["split"] in REAL else "made"
        yield Case(record["name"], part, record["schema"], _tests(record))


def suite(folder: Path) -> Iterator[Case]:
    """Parts: the draft, with " optional" behind it where a group is."""
    for record in _records(folder, "json_schema_test_suite.jsonl.gz"):
        part = record["draft"] + (" optional" if record["optional"] else "")
        schema = record["schema"]
        if record["draft"] == "draft7" and isinstance(schema, dict):
            schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        yield Case(record["name"], part, schema, _tests(record))


def regexes(folder: Path) -> Iterator[Case]:
    for record in _records(folder, "regexes.jsonl"):
        tests = [(True, text) for text in record["accept"]] + [(False, text) for text in record["reject"]]
        yield Case(record["name"], "as people write them", record["pattern"], tuple(tests))


def documents(folder: Path) -> dict[str, Any]:
    """The documents that the suite's references lead to, by URI."""
    return {r["uri"]: r["schema"] for r in _records(folder, "json_schema_test_suite_remotes.jsonl.gz")}


def _tests(record: dict[str, Any]) -> tuple[tuple[bool, Any], ...]:
    return tuple((test["valid"], test["data"]) for test in record["tests"])


def _records(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    path = folder / name
    if not path.exists():
        raise ArgumentError(f"there is no {name} in {folder}", hint="give the folder of the data with --data")
    with gzip.open(path, "rt") if name.endswith(".gz") else path.open() as lines:
        yield from map(json.loads, lines)
