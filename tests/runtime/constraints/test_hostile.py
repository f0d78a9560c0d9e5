"""Patterns, choices and grammars that were made to cost time or memory."""

from __future__ import annotations

import json
import threading
import time

import pytest

from palmette.errors import ConstraintError
from palmette.runtime.constraints import ConstraintCompiler, Vocabulary
from palmette.runtime.protocol import Constraint

BYTES = Vocabulary.of_bytes()

REGEXES = {
    "nested plus": r"(a+)+$",
    "two ways": r"(a|aa)+b",
    "any twice": r"(.*)*(.*)*x",
    "words": r"([a-zA-Z]+)*[0-9]",
    "count of counts": r"(a{1000}){1000}",
    "many optional": r"(a?){5000}",
    "optional groups": r"(a?b?c?d?){2000}",
    "exponential": r"[ab]*a[ab]{30}",
    "exponential dots": r".*a.{200}",
    "side by side": r"(?=.*a.{20})(?=.*b.{20})(?!.*c.{20}).*",
    "alternatives": "|".join(f"w{i}x*" for i in range(5000)),
    "wide Unicode": r"(?u)(\w|\d|\s){1,2000}",
    "nested": "(" * 90 + "a" + ")+" * 90,
    "nested deeply": "(" * 20_000 + "a" + ")" * 20_000,
    "long": "a" * 19_000,
    "wide counts": r"(\w{2,30} ){5,50}end",
    "many stars": r".*" * 300,
}
GRAMMARS = {
    "counts": 'root ::= (("a"{100}){100}){100}',
    "ambiguous": 'root ::= (root root | "a" | "")+',
    "nested": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
}
CASES = {name: Constraint("regex", pattern) for name, pattern in REGEXES.items()}
CASES |= {f"grammar {name}": Constraint("grammar", text) for name, text in GRAMMARS.items()}
CASES["choices"] = Constraint("choices", tuple(f"option {i * 7919 % 100_003} of many" for i in range(100_000)))
CASES["long choice"] = Constraint("choices", ("x" * 5_000_000, "y"))


def _doubled(rounds: int) -> dict[str, object]:
    """Each definition asks for two values of the next one: the shortest value has 2**rounds parts."""
    here = [{"$ref": f"#/$defs/d{i + 1}"} for i in range(rounds)]
    found: dict[str, object] = {
        f"d{i}": {"type": "object", "properties": {"a": ref, "b": ref}, "required": ["a", "b"]}
        for i, ref in enumerate(here)
    }
    return {"$defs": {**found, f"d{rounds}": {"type": "null"}}, "$ref": "#/$defs/d0"}


SCHEMAS = {
    "doubling references": json.dumps(_doubled(40)),
    "deep items": '{"items":' * 20_000 + "true" + "}" * 20_000,
    "deep properties": '{"properties":{"a":' * 300 + "true" + "}}" * 300,
    "a million values": json.dumps({"enum": list(range(1_000_000))}),
    "ten megabytes": json.dumps({"default": "x" * 10_000_000}),
    "nested plus": json.dumps({"type": "string", "pattern": "^(a+)+$"}),
    "exponential pattern": json.dumps({"type": "string", "pattern": "^[ab]*a[ab]{30}$"}),
}
CASES |= {f"schema {name}": Constraint("json_schema", text) for name, text in SCHEMAS.items()}


@pytest.mark.parametrize("name", CASES)
def test_nothing_takes_longer_than_its_budget_or_holds_up_others(name: str) -> None:
    """The budget is 5 seconds of this thread's own time. Another thread goes on meanwhile: what is bounded is how much
    this one computes between two of its turns (5 ms is Python's own turn; the machine may be busy)."""
    spent: list[float] = []

    def work() -> None:
        begun = time.thread_time()
        try:
            compiled = ConstraintCompiler(BYTES, timeout=5.0).compile(CASES[name])
            if CASES[name].kind == "json_schema":
                compiled.place()
        except ConstraintError as error:
            assert error.hint
        spent.append(time.thread_time() - begun)

    thread = threading.Thread(target=work)
    thread.start()
    turns = 1
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    thread.join()
    assert len(spent) == 1 and spent[0] < 5
    # On average, so that a single turn that the machine gave to others does not decide.
    assert spent[0] / turns < 0.05
