"""The compiler: errors at once, one compilation for many, a bounded cache; and `accepts`."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from palmette.errors import ConstraintError
from palmette.runtime.constraints import ConstraintCompiler, Vocabulary, accepts, validate
from palmette.runtime.constraints.automaton_matcher import AutomatonConstraint
from palmette.runtime.constraints.compile import Expired
from palmette.runtime.constraints.llg import LlgConstraint
from palmette.runtime.protocol import Constraint

BYTES = Vocabulary.of_bytes()

WRONG = [
    (Constraint("choices", ()), "", "no choices"),
    (Constraint("choices", "yes"), "", "list of strings"),
    (Constraint("choices", ("a", 1)), "", "list of strings"),  # type: ignore[arg-type]
    (Constraint("choices", ("a", "\ud800")), "/1", "surrogate"),
    (Constraint("regex", "(a"), "@0", "not a valid regex"),
    (Constraint("regex", ("a",)), "", "must be a string"),
    (Constraint("json_schema", "{"), "@1", "not JSON"),
    (Constraint("json_schema", '{"type":"strin"}'), "/type", "not a valid JSON schema"),
    (Constraint("grammar", "  "), "", "empty"),
    (Constraint("grammar", 'start: "a" B\nB: /[bc/\n'), "@16", "refused"),
    (Constraint("grammar", 'begin: "a"\n'), "", "refused"),
    (Constraint("cfg", "x"), "", "unknown kind"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("constraint", "pointer", "words"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_constraint_is_one_clear_error_at_once(constraint: Constraint, pointer: str, words: str) -> None:
    compiler = ConstraintCompiler(BYTES)
    for attempt in (validate, compiler.compile, compiler.compile):
        with pytest.raises(ConstraintError) as caught:
            attempt(constraint)
        assert words in caught.value.message
        assert caught.value.pointer == pointer
        assert (f"(at {pointer})" in str(caught.value)) == bool(pointer)
        assert caught.value.hint
    assert compiler.stats.misses == compiler.stats.failures == 1, "a failure is kept"


def test_a_kept_failure_is_a_new_error_each_time() -> None:
    compiler = ConstraintCompiler(BYTES)
    errors = []
    for _ in range(3):
        with pytest.raises(ConstraintError) as caught:
            compiler.compile(Constraint("regex", "(a"))
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3 and len({str(error) for error in errors}) == 1


def test_look_aheads_that_contradict_the_rest() -> None:
    with pytest.raises(ConstraintError, match="no text matches"):
        ConstraintCompiler(BYTES).compile(Constraint("regex", "(?=a)b"))


def test_equal_constraints_are_compiled_once_and_shared() -> None:
    compiler = ConstraintCompiler(BYTES)
    one = compiler.compile(Constraint("regex", "[ab]+"))
    assert compiler.compile(Constraint("regex", "[ab]+")) is one
    assert compiler.compile(Constraint("regex", "[ab]*")) is not one
    plain = Constraint("json_schema", '{"type":"array"}')
    spaced = Constraint("json_schema", '{"type":"array"}', whitespace=True)
    assert compiler.compile(plain).accepts(b"[1,2]") and not compiler.compile(plain).accepts(b"[1, 2]")
    assert compiler.compile(spaced).accepts(b"[1, 2]") and compiler.compile(spaced).accepts(b"[\n  1,\n  2\n]")
    assert not compiler.compile(spaced).accepts(b"[1,\n\n2]")
    stats = compiler.stats
    assert (stats.misses, stats.hits, stats.entries) == (4, 4, 4)


def test_single_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = ConstraintCompiler(BYTES)
    calls = []
    compile_ = compiler._compile

    def slow(*args: Any) -> Any:
        calls.append(args)
        time.sleep(0.1)
        return compile_(*args)

    monkeypatch.setattr(compiler, "_compile", slow)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(compiler.compile(Constraint("regex", "a+")))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and len(found) == 8 and len(set(map(id, found))) == 1


def test_the_cache_is_bounded_by_bytes() -> None:
    compiler = ConstraintCompiler(BYTES, cache_bytes=400_000)
    for i in range(60):
        compiled = compiler.compile(Constraint("choices", tuple(f"{i}-{k}-{'x' * 20}" for k in range(20))))
        row = np.zeros(BYTES.words, np.int32)
        compiled.start().fill(row)
        assert compiler.stats.nbytes <= 400_000 + 2 * compiled.nbytes
    stats = compiler.stats
    assert stats.evicted > 0 and stats.entries + stats.evicted == 60
    assert compiler.compile(Constraint("choices", tuple(f"59-{k}-{'x' * 20}" for k in range(20)))) is compiled


def test_mask_rows_are_bounded_and_made_anew() -> None:
    compiler = ConstraintCompiler(BYTES, cache_bytes=2 * 40 * BYTES.words * 4)
    matcher = compiler.compile(Constraint("regex", "[a-z]{200}")).start()
    row = np.zeros(BYTES.words, np.int32)
    for _ in range(2):
        for _ in range(200):
            matcher.fill(row)
            assert np.unpackbits(row.view(np.uint8)).sum() == 26
            assert matcher.advance(ord("q"))
        matcher.rollback(200)
    assert compiler._rows.nbytes <= 40 * BYTES.words * 4


def test_large_regexes_go_to_llguidance_and_mean_the_same() -> None:
    compiler = ConstraintCompiler(BYTES)
    cases = {r".{1,20}x": True, r".{1,10000}": True, r"(\w{2,30} ){5,50}end": True, "[ab]*a[ab]{24}": False}
    for pattern, table in cases.items():
        begun = time.monotonic()
        compiled = compiler.compile(Constraint("regex", pattern))
        assert isinstance(compiled, AutomatonConstraint if table else LlgConstraint)
        assert time.monotonic() - begun < 5
    wide = compiler.compile(Constraint("regex", r".{1,10000}"))
    assert wide.accepts("\u6c34".encode() * 10000) and not wide.accepts("\u6c34".encode() * 10001)
    assert not wide.accepts(b"a\nb") and not wide.accepts(b"")
    words = compiler.compile(Constraint("regex", r"(\w{2,30} ){5,50}end"))
    assert words.accepts(b"a_ " * 5 + b"end") and not words.accepts("\u00e9\u00e9 ".encode() * 5 + b"end")
    tail = compiler.compile(Constraint("regex", "[ab]*a[ab]{24}"))
    assert tail.accepts(b"bba" + b"ab" * 12) and not tail.accepts(b"abb" + b"ab" * 12)


def test_a_large_regex_that_only_a_table_can_do_is_refused_in_time() -> None:
    begun = time.monotonic()
    with pytest.raises(ConstraintError, match="needs more than"):
        ConstraintCompiler(BYTES, timeout=1.0).compile(Constraint("regex", r"(?!x)[ab]*a[ab]{40}"))
    assert time.monotonic() - begun < 3


def test_a_time_out_is_not_kept() -> None:
    compiler = ConstraintCompiler(BYTES, timeout=-1.0)
    for _ in range(2):
        with pytest.raises(ConstraintError, match="time"):
            compiler.compile(Constraint("regex", "(?=a)[ab]+"))
    assert compiler.stats.misses == 2 and compiler.stats.entries == 0


def test_five_thousand_choices_are_quick_and_small() -> None:
    chance = random.Random(5)
    options = tuple({"".join(chance.choices("abcdefghij \u6c34", k=chance.randint(1, 60))) for _ in range(5000)})
    tracemalloc.start()
    begun = time.monotonic()
    compiled = ConstraintCompiler(BYTES).compile(Constraint("choices", options))
    matcher = compiled.start()
    row = np.zeros(BYTES.words, np.int32)
    matcher.fill(row)
    seconds, (_, peak) = time.monotonic() - begun, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 2 and peak < 200 << 20 and compiled.nbytes < 50 << 20
    assert all(compiled.accepts(option.encode()) for option in options[:50])
    assert not compiled.accepts(b"zzz")


def test_accepts_takes_exactly_one_constraint() -> None:
    assert accepts("yes", choices=["yes", "no"]) and accepts(b"no", choices=["yes", "no"])
    assert accepts("2026", regex=r"\d+") and not accepts("x", regex=r"\d+")
    assert accepts('{"a":1}', json_schema={"type": "object"}) and accepts("1", json_schema='{"type":"integer"}')
    assert accepts("ab", grammar='start: "a" "b"\n')
    with pytest.raises(TypeError, match="exactly one"):
        accepts("x")
    with pytest.raises(TypeError, match="regex and choices"):
        accepts("x", regex="x", choices=["x"])
    with pytest.raises(ConstraintError):
        accepts("x", choices=[])


def test_accepts_asks_whether_the_tokens_can_spell_it() -> None:
    tokenizer = SimpleNamespace(vocabulary=Vocabulary([b"ye", b"s", b"1", None], width=4, end_ids=frozenset({3})))
    assert accepts("yes", choices=["yes", "y"], tokenizer=tokenizer)
    assert not accepts("y", choices=["yes", "y"], tokenizer=tokenizer)
    assert accepts("11", json_schema={"type": "integer"}, tokenizer=tokenizer)
    assert not accepts("12", json_schema={"type": "integer"}, tokenizer=tokenizer)


def test_the_constraint_layer_needs_no_torch() -> None:
    code = (
        "import sys, palmette.runtime.constraints as c;"
        "c.accepts('1', json_schema={'type': 'integer'}); c.accepts('1', regex='1');"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'transformers'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_schema_that_takes_too_long_to_read_is_not_kept_as_refused() -> None:
    compiler = ConstraintCompiler(BYTES, timeout=0.0)
    large = {"allOf": [{"properties": {f"p{i}_{j}": {"minLength": i + j}}} for i in range(40) for j in range(40)]}
    with pytest.raises(Expired):
        compiler.compile(Constraint("json_schema", json.dumps(large)))
    with pytest.raises(ConstraintError, match="keyword"):
        compiler.compile(Constraint("json_schema", '{"minLenght": 3}'))
    assert compiler.stats.entries == 1 and compiler.stats.failures == 2


def test_what_is_not_kept_goes_without_what_was_compiled_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = ConstraintCompiler(BYTES, cache_bytes=0)
    compile, lock = compiler._compile, compiler._lock
    slow, other = Constraint("regex", "slow"), Constraint("regex", "other")
    met: list[str] = []

    class Busy:
        """Lets another compilation come between any two parts that hold the lock, once the slow one has failed."""

        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()
            if met == ["failed"]:
                met.append("other")
                compiler.compile(other)

    def slow_one(constraint: Constraint, deadline: float) -> Any:
        if constraint != slow:
            return compile(constraint, deadline)
        met.append("failed")
        raise Expired("too slow", hint="wait")

    monkeypatch.setattr(compiler, "_lock", Busy())
    monkeypatch.setattr(compiler, "_compile", slow_one)
    for _ in range(2):
        met.clear()
        with pytest.raises(Expired):
            compiler.compile(slow)
        assert met == ["failed", "other"]
