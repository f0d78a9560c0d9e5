"""benchmarks/constraints on a few cases of its own, with an engine that answers at once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from palmette.benchmarks.constraints import __main__ as command
from palmette.benchmarks.constraints import engines
from palmette.benchmarks.constraints.data import Case
from palmette.benchmarks.constraints.judge import judge
from palmette.benchmarks.constraints.orders import reordered
from palmette.runtime.constraints.vocabulary import Vocabulary

BYTES = Vocabulary.of_bytes()
PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "additionalProperties": False}


class Sloppy:
    """Takes any of a list of texts, whatever the specification."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = [text.encode() for text in texts]

    def compile(self, kind: str, spec: Any) -> engines.Compiled:
        if spec is False:
            raise engines.Refused("nothing is valid", "false")
        return Texts(self.texts)


class Texts:
    def __init__(self, texts: list[bytes], text: bytes = b"") -> None:
        self.texts, self.text = texts, text

    def start(self) -> engines.Cursor:
        return Texts(self.texts)

    def feed(self, tokens: list[int], masks: list[float]) -> bool:
        masks += [0.0] * len(tokens)
        self.text += bytes(tokens)
        return any(text.startswith(self.text) for text in self.texts)

    def ends(self) -> bool:
        return self.text in self.texts

    def fork(self) -> engines.Cursor | None:
        return Texts(self.texts, self.text)


def test_faults_are_told_apart() -> None:
    tests = ((True, {"b": 1, "a": 2}), (True, {"a": 3}), (False, {"a": "x"}), (False, 5))
    engine = Sloppy(['{"a":2,"b":1}', '{"a":"x"}', "5"])
    tally = judge(engine, "json_schema", [Case("one", "p", PAIR, tests), Case("two", "p", False, ())], BYTES)["p"]
    assert (tally.cases, tally.compiled, tally.tests) == (2, 1, 4)
    assert tally.accepted == tally.rejected == ["one"] and not tally.order and not tally.right
    assert tally.refusals == {"false": 1}
    order = judge(engine, "json_schema", [Case("one", "p", PAIR, tests[:1])], BYTES)["p"]
    assert order.order == ["one"] and not order.rejected
    # jsonschema holds a number for valid here, so that the label is in question
    disputed = judge(engine, "json_schema", [Case("one", "p", {"type": "integer"}, ((False, 5),))], BYTES)["p"]
    assert disputed.disputed == ["one"] and not disputed.accepted


def test_keys_are_put_in_the_schema_s_order() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/x"}], "properties": {"c": {"items": {"$ref": "#/$defs/x"}}}}
    schema["$defs"] = {"x": {"properties": {"a": {}, "b": {}}, "required": ["d"]}}
    found = reordered(schema, {"z": 1, "d": 1, "b": 1, "a": 1, "c": [{"b": 1, "a": 1}]})
    assert list(found) == ["c", "a", "b", "d", "z"] and list(found["c"][0]) == ["a", "b"]


def test_the_command_reads_its_files_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = [
        {"name": "one", "draft": "draft7", "optional": False, "schema": PAIR, "tests": [{"valid": True, "data": {}}]},
        {"name": "two", "draft": "draft7", "optional": True, "schema": {"type": "strin"}, "tests": []},
        {"name": "three", "draft": "draft2020-12", "optional": False, "schema": {"$ref": "http://x.y/z"}}
        | {"tests": [{"valid": True, "data": 1}, {"valid": False, "data": "x"}]},
    ]
    remotes = [{"uri": "http://x.y/z", "schema": {"type": "integer"}}]
    for name, records in (("json_schema_test_suite", suite), ("json_schema_test_suite_remotes", remotes)):
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as out:
            out.writelines(json.dumps(record) + "\n" for record in records)
    assert command.main(["suite", "--data", str(tmp_path), "--engine", "palmette,llguidance", "--names"]) == 0
    text = capsys.readouterr().out
    palmette, llguidance = text.split("llguidance, suite draft2020-12\n")
    assert "palmette, suite draft2020-12\n  compiled                    1 of 1 (100.00 %)" in palmette
    assert "all tests right             1 of 1 (100.00 %)" in palmette and "refused: two: " in palmette
    assert llguidance.splitlines()[0] == "  compiled                    0 of 1 (0.00 %)"


def test_what_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["regexes", "--data", str(tmp_path)]) == 1
    assert "there is no regexes.jsonl" in capsys.readouterr().err
    (tmp_path / "regexes.jsonl").write_text(
        '{"name": "a", "kind": "k", "pattern": "a+", "accept": ["a"], "reject": []}'
    )
    assert command.main(["regexes", "--data", str(tmp_path), "--engine", "other"]) == 1
    assert command.main(["regexes", "--data", str(tmp_path), "--limit", "1"]) == 0
    assert "1 of 1 (100.00 %)" in capsys.readouterr().out
