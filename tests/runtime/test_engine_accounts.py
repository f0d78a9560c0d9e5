"""Whose request it is, how soon it is wanted, and what stays in the KV cache: namespaces, tenants, priorities, pins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import palmette as pt
from palmette.errors import ArgumentError, CapabilityError, ContextLengthError, PalmetteError
from palmette.runtime.engine import Engine
from palmette.runtime.models.tiny import tiny_model

pytestmark = pytest.mark.tiny

Make = Callable[..., Engine]
PAGE = "A page that many requests begin with, and that is not short. " * 4


def test_namespaces_share_nothing(tiny_engine: Make) -> None:
    engine = tiny_engine()
    engine.generate(PAGE, max_tokens=1)
    assert engine.generate(PAGE, max_tokens=1).usage.cached_tokens > 100
    assert engine.generate(PAGE, max_tokens=1, namespace="tenant").usage.cached_tokens == 0
    assert engine.generate(PAGE, max_tokens=1, namespace="tenant").usage.cached_tokens > 100


@pytest.mark.parametrize("wrong", [{"tenant": 3}, {"priority": "high"}, {"priority": True}, {"namespace": None}])
def test_accounts_are_checked(tiny_engine: Make, wrong: dict[str, object]) -> None:
    engine = tiny_engine()
    with pytest.raises(TypeError, match=next(iter(wrong))):
        engine.generate("a", max_tokens=1, **wrong)
    with pytest.raises(TypeError, match="did you mean 'priority'"):
        engine.generate("a", max_tokens=1, prioritty=1)


@pytest.mark.parametrize("name", ["policy", "eviction"])
def test_unknown_policies_are_refused_with_a_suggestion(tiny_engine: Make, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"no {name} 'fcsf'"):
        tiny_engine(**{name: "fcsf"})


def test_a_pinned_prefix_survives_flushes_and_pressure(tiny_engine: Make) -> None:
    engine = tiny_engine(kv_tokens=600)
    with engine.pin(PAGE) as pinned:
        assert pinned.tokens == len(engine.tokenizer.encode_prompt(PAGE))
        engine.flush_cache()
        for number in range(8):
            engine.generate(f"{number}" * 300, max_tokens=2)
        assert engine.generate(PAGE + "!", max_tokens=1).usage.cached_tokens == pinned.tokens
        # Requests are promised only what is not pinned.
        with pytest.raises(ContextLengthError, match="besides what is pinned"):
            engine.generate("x" * 500, max_tokens=1)
        assert engine.generate("x" * 300, max_tokens=None, ignore_eos=True).usage.completion_tokens == (
            600 - pinned.tokens - 300 + 1
        )
        assert engine.generate(PAGE + "x" * 300, max_tokens=None, ignore_eos=True).usage.completion_tokens == (
            600 - pinned.tokens - 300 + 1
        )
        with pytest.raises(ArgumentError, match="more than half"):
            engine.pin("y" * 200)
    pinned.release()
    engine.generate("x" * 590, max_tokens=1)
    assert engine.generate(PAGE, max_tokens=1).usage.cached_tokens < 100


def test_pins_take_nothing_from_what_was_promised(tiny_engine: Make) -> None:
    engine = tiny_engine(kv_tokens=600)
    stream = engine.generate(PAGE, max_tokens=None, ignore_eos=True, stream=True)
    next(stream)
    # The request's own beginning, and a part of it, are no others' slots.
    with engine.pin(PAGE), engine.pin(PAGE[:100]):
        with pytest.raises(ArgumentError, match="in progress"):
            engine.pin("z" * 50)
        assert sum(len(chunk.tokens) for chunk in stream) > 300
    with engine.pin(PAGE), engine.pin(PAGE[:200]), engine.pin("z" * 40):
        pass
    assert engine.stats()["kv_evictable"] == engine.stats()["kv_cached"]


def test_a_pin_during_a_compile_takes_no_promised_slots(tiny_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(kv_tokens=600)
    compiling, pinned = threading.Event(), threading.Event()
    compile = engine._intake._compiler.compile

    def slowly(constraint: object) -> object:
        compiling.set()
        assert pinned.wait(20)
        return compile(constraint)  # type: ignore[arg-type]

    monkeypatch.setattr(engine._intake._compiler, "compile", slowly)
    answer: list[object] = []
    asking = threading.Thread(
        target=lambda: answer.append(engine.generate("x", regex="a{300,500}", max_tokens=590, temperature=0))
    )
    asking.start()
    assert compiling.wait(20)
    with engine.pin("b" * 290):
        pinned.set()
        asking.join()
    # There was room for 590 when it was asked for, and for 310 when it was compiled.
    [out] = answer
    assert out.finish_reason == "constraint" and 300 <= len(out.tokens) <= 310  # type: ignore[attr-defined]


def test_a_stream_keeps_its_engine(tiny_engine: Make) -> None:
    def stream() -> object:
        return Engine.from_model(*tiny_model(0), kv_tokens=500).generate(
            "a", max_tokens=9, ignore_eos=True, stream=True
        )

    assert sum(len(chunk.tokens) for chunk in stream()) == 9  # type: ignore[attr-defined]


def test_pins_need_a_cache(tiny_engine: Make) -> None:
    with pytest.raises(CapabilityError, match="cache=False"):
        tiny_engine(cache=False).pin(PAGE)
    with pytest.raises(PalmetteError):
        tiny_engine(kv_tokens=64).pin(PAGE)


def test_a_flat_cache_finds_whole_prompts_only(tiny_engine: Make) -> None:
    engine = tiny_engine(cache="flat")
    first = engine.generate(PAGE, max_tokens=3, temperature=0)
    again = engine.generate(PAGE, max_tokens=3, temperature=0)
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
    assert again.text == first.text
    assert engine.generate(PAGE + "bcd", max_tokens=1).usage.cached_tokens == 0


@pytest.mark.parametrize("busy", [False, True])
def test_what_a_sleeping_program_holds_keeps_nobody_waiting(tiny_engine: Make, busy: bool) -> None:
    """Also while others keep the engine's inbox full."""
    engine = tiny_engine(kv_tokens=100)
    said, over = threading.Event(), threading.Event()

    @pt.function
    def sleeper(s: pt.State) -> None:
        s += "x" * 80 + pt.gen("a", max_tokens=5)
        s["a"]
        said.set()
        over.wait(20)

    def poll() -> None:
        while not over.is_set():
            engine.stats()

    threads = [threading.Thread(target=lambda: sleeper.run(backend=engine))]
    threads += [threading.Thread(target=poll)] if busy else []
    for thread in threads:
        thread.start()
    assert said.wait(20)
    begun = time.monotonic()
    engine.generate("y" * 60, max_tokens=3)
    assert time.monotonic() - begun < 10
    assert engine.stats()["dropped_holds"] == 1
    over.set()
    for thread in threads:
        thread.join()


def test_nothing_is_held_for_programs_that_have_ended(tiny_engine: Make) -> None:
    engine = tiny_engine(kv_tokens=500)

    @pt.function
    def program(s: pt.State) -> None:
        s += "begin " + pt.gen("a", max_tokens=3)
        for branch in s.fork(2):
            branch += pt.gen("b", max_tokens=3)

    state = program.run(backend=engine)
    # A state may be gone on with after its run.
    state += "more" + pt.gen("c", max_tokens=3)
    assert state["c"] is not None

    @pt.function
    def broken(s: pt.State) -> None:
        s += "x" + pt.gen("d", max_tokens=2)
        raise ZeroDivisionError(s["d"])

    with pytest.raises(ZeroDivisionError):
        broken.run(backend=engine)
    deadline = time.monotonic() + 10
    while engine.stats()["kv_evictable"] != engine.stats()["kv_cached"]:
        assert time.monotonic() < deadline


def test_counters_only_grow(tiny_engine: Make) -> None:
    engine = tiny_engine(kv_tokens=300)
    before = engine.stats()
    names = [name for name, value in before.items() if isinstance(value, int) and not name.startswith("kv_")]
    for number in range(6):
        engine.generate(f"{number}" * 100, max_tokens=4, n=2)
        after = engine.stats()
        assert all(after[name] >= before[name] for name in names if name not in ("running", "waiting"))
        assert all(after["cache"][name] >= before["cache"][name] for name in before["cache"])
        before = after
    engine.flush_cache()
    assert before["cache"]["evicted_tokens"] > 0
    assert before["prompt_tokens"] == 6 * 2 * 100
    assert before["sampled_tokens"] > 12


def test_each_request_is_counted_under_one_outcome(tiny_engine: Make) -> None:
    engine = tiny_engine()
    engine.generate("finished", max_tokens=2)
    stream = engine.generate("given up", max_tokens=2000, ignore_eos=True, stream=True)
    next(stream)
    stream.close()
    deadline = time.monotonic() + 10
    while engine.stats()["running"]:
        assert time.monotonic() < deadline
    counts = engine.stats()
    assert [counts[name] for name in ("requests", "finished", "failed", "cancelled")] == [2, 1, 0, 1]
