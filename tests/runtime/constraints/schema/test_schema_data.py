"""The JSON-Schema-Test-Suite and a sample of MaskBench, where the shared data lies beside the repository."""

from __future__ import annotations

import gzip
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema.validators import validator_for

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.algebra import Budget
from palmette.runtime.constraints.schema.normal import normal_form
from palmette.runtime.constraints.schema.patterns import read_format
from palmette.runtime.constraints.schema.shapes import Normal

DATA = Path(__file__).parents[5] / "shared" / "data" / "constraints"
# One in so many of MaskBench's schemas; 1 for all of them.
STEP = int(os.environ.get("PALMETTE_MASKBENCH_STEP", "60"))
# Not of JSONSchemaBench's ten splits (shared/data/constraints/README.md).
OTHERS = {"BFCL", "JME", "MCPspec", "Handwritten", "Synthesized"}
Evaluate = Callable[[Normal, Any], bool]
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the shared data is not here")


def records(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.jsonl.gz") as lines:
        yield from map(json.loads, lines)


def test_the_suite_is_read_and_every_test_decided_as_labelled(evaluate: Evaluate) -> None:
    remotes = {record["uri"]: record["schema"] for record in records("json_schema_test_suite_remotes")}
    groups = 0
    refused = []
    for record in records("json_schema_test_suite"):
        if record["optional"] or record["file"] == "format.json":
            continue
        groups += 1
        schema = record["schema"]
        if record["draft"] == "draft7" and isinstance(schema, dict):
            schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        try:
            normal = normal_form(json.dumps(schema), documents=remotes, formats=False)
        except ConstraintError as error:
            assert error.hint
            if not error.message.startswith("no value is valid") or any(test["valid"] for test in record["tests"]):
                refused.append(record["group"])
            continue
        for test in record["tests"]:
            assert evaluate(normal, test["data"]) is test["valid"], (record["group"], test)
    assert groups > 400
    assert refused == ["patternProperties with Unicode property escape"]


def test_formats_take_what_has_them_and_nothing_else() -> None:
    """`narrow` takes nothing that is labelled invalid, `wide` all that is labelled valid."""
    taken: Counter[str] = Counter()
    for record in records("json_schema_test_suite"):
        name = record["schema"].get("format") if isinstance(record["schema"], dict) else None
        if not record["optional"] or "format" not in record["file"] or not (name and (pattern := read_format(name))):
            continue
        for test in record["tests"]:
            if isinstance(test["data"], str):
                narrow, wide = (texts.contains(t, test["data"]) for t in (pattern.narrow, pattern.wide))
                assert test["valid"] or not narrow, (name, test)
                assert wide or not test["valid"], (name, test)
                taken[name] += narrow
    assert len(taken) > 12 and all(taken.values())


@pytest.mark.timeout(3600 if STEP < 20 else 180)
def test_maskbench_is_read_and_decided_as_labelled(evaluate: Evaluate) -> None:
    """Labels of which `jsonschema` says the opposite are left out, and 1.0 as an integer in draft 4: a value has one
    form here, whatever its spelling."""
    found: Counter[str] = Counter()
    for i, record in enumerate(records("maskbench")):
        if i % STEP or record["split"] in OTHERS:
            continue
        try:
            normal = normal_form(json.dumps(record["schema"]), budget=Budget(seconds=60))
        except ConstraintError as error:
            assert error.hint and (error.pointer or "too large" in error.message or "value" in error.message)
            found["refused"] += 1
            continue
        found["read"] += 1
        for test in record["tests"]:
            if evaluate(normal, test["data"]) is not test["valid"]:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    kind: Any = validator_for(record["schema"], default=jsonschema.Draft202012Validator)
                schema = record["schema"]
                asserted = kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(test["data"])
                agrees = test["valid"] not in (asserted, kind(schema).is_valid(test["data"]))
                draft4 = kind is jsonschema.Draft4Validator and ".0" in json.dumps(test["data"])
                assert agrees or draft4, (record["name"], test)
    assert found["read"] > 0.96 * (found["read"] + found["refused"]) > 0
