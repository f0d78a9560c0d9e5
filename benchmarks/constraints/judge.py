"""Decides every test of every case with an engine, and counts."""

from __future__ import annotations

import json
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import jsonschema
from jsonschema.validators import validator_for

from palmette.benchmarks.constraints.data import Case
from palmette.benchmarks.constraints.engines import Compiled, Engine, Refused
from palmette.benchmarks.constraints.orders import reordered, takes_in_some_order
from palmette.runtime.constraints.vocabulary import Vocabulary


@dataclass
class Tally:
    """Of the cases of one part. Names of cases where a list; accepted: an invalid instance was, of which in `disputed`
    jsonschema holds it for valid too; rejected: a valid one was; order: with its keys in another order it was not;
    right: all tests right as they stand. compiles and masks: seconds."""

    cases: int = 0
    compiled: int = 0
    tested: int = 0
    tests: int = 0
    right: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    disputed: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    compiles: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)


def judge(engine: Engine, kind: str, cases: Iterable[Case], vocabulary: Vocabulary) -> dict[str, Tally]:
    """kind: what the cases' specifications are, "json_schema" or "regex". By part."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    for case in cases:
        tally = tallies[case.part]
        tally.cases += 1
        begun = perf_counter()
        try:
            compiled = engine.compile(kind, case.spec)
        except Refused as error:
            tally.refused.append((case.name, str(error)))
            tally.refusals[error.where or str(error)[:60]] += 1
            continue
        tally.compiles.append(perf_counter() - begun)
        tally.compiled += 1
        tests = [(valid, data) for valid, data in case.tests if _writable(data)]
        if not tests:
            continue
        tally.tested += 1
        tally.tests += len(tests)
        _decide(compiled, kind, case, tests, vocabulary, tally)
    return dict(tallies)


def _decide(
    compiled: Compiled, kind: str, case: Case, tests: list[tuple[bool, Any]], vocabulary: Vocabulary, tally: Tally
) -> None:
    faults = set()
    for valid, data in tests:
        masks: list[float] = []
        taken = _takes(compiled, kind, data, vocabulary, masks)
        if valid:
            tally.masks += masks
        if taken == valid:
            continue
        if not valid:
            faults.add("disputed" if kind == "json_schema" and _valid(case.spec, data) else "accepted")
        elif kind == "json_schema" and takes_in_some_order(compiled, reordered(case.spec, data), vocabulary):
            faults.add("order")
        else:
            faults.add("rejected")
    if not faults:
        tally.right.append(case.name)
    if "rejected" in faults:
        faults.discard("order")
    for fault in faults:
        getattr(tally, fault).append(case.name)


def _takes(compiled: Compiled, kind: str, data: Any, vocabulary: Vocabulary, masks: list[float]) -> bool:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")) if kind == "json_schema" else data
    tokens = vocabulary.spell(text.encode())
    cursor = compiled.start()
    return tokens is not None and cursor.feed(tokens, masks) and cursor.ends()


def _writable(data: Any) -> bool:
    """Not so for half a surrogate pair."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _valid(schema: Any, data: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validator: Any = validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            return bool(validator(schema).is_valid(data))
        except Exception:  # a reference that leads nowhere, a pattern that is none: it has no opinion
            return False
