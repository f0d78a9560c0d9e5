"""The regexes and reported cases that the project shares, where they lie beside the repository."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from palmette.errors import ConstraintError
from palmette.runtime.constraints import accepts

SHARED = Path(__file__).parents[4] / "shared"
REGEXES = SHARED / "data" / "constraints" / "regexes.jsonl"
CASES = SHARED / "cases" / "reported.jsonl"
# Refused: what is not Python's (\p), or not regular.
REFUSED = {"letters-pL", "greek-script", "word-boundary", "lookbehind", "backref"}
# A schema of plain keywords is written in llguidance's own form, which has one spelling of a slash: this is another.
NOT_SPELLED = {("js-21", '"a\\/b"')}


@pytest.mark.skipif(not REGEXES.exists(), reason="the shared data is not here")
def test_shared_regexes_are_decided_as_python_does_or_refused() -> None:
    refused = set()
    for record in map(json.loads, REGEXES.read_text().splitlines()):
        for text in record["accept"] + record["reject"]:
            try:
                found = accepts(text, regex=record["pattern"])
            except ConstraintError as error:
                assert error.pointer.startswith("@") and error.hint
                refused.add(record["name"])
                break
            assert found == bool(re.fullmatch(record["pattern"], text, re.ASCII)), record["name"]
    assert refused <= REFUSED


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
def test_reported_constraint_cases() -> None:
    tried = 0
    for record in map(json.loads, CASES.read_text().splitlines()):
        given: dict[str, Any] = record["input"]
        if given["kind"] != "constraint":
            continue
        many = given.get("many")
        for i, spec in enumerate(many or [given]):
            constraint = {k: spec[k] for k in ("json_schema", "regex", "choices") if k in spec}
            for key, wanted in (("accept", True), ("reject", False)):
                texts = record["expect"].get(key, [])
                for text in texts[i] if many else texts:
                    tried += 1
                    expected = wanted and (record["id"], text) not in NOT_SPELLED
                    assert accepts(text, **constraint) == expected, (record["id"], text)
    assert tried > 50
