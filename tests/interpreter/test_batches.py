"""run_batch, and many programs at once."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import palmette as pt
from palmette.testing import MockBackend

pytestmark = pytest.mark.timeout(60)


class Broken(Exception):
    pass


@pt.function
def ask(s, i):
    s += f"{i}:"
    s += pt.gen("x")
    s["double"] = s["x"] * 2


def echo(prompt):
    return prompt.split(":")[0]


def test_states_come_in_order_and_run_at_the_same_time():
    backend = MockBackend(default=echo, delay=0.1)
    began = time.perf_counter()
    states = ask.run_batch([{"i": i} for i in range(40)], backend=backend)
    assert time.perf_counter() - began < 2.0
    assert [state["double"] for state in states] == [f"{i}" * 2 for i in range(40)]


def test_items_may_be_tuples_and_wrong_ones_are_named_before_anything_runs():
    backend = MockBackend(default=echo)
    assert [state["x"] for state in ask.run_batch([(1,), (2,)], backend=backend, temperature=0)] == ["1", "2"]
    assert {request.params.temperature for request in backend.requests} == {0}
    backend.requests.clear()
    with pytest.raises(TypeError, match="'j'") as caught:
        ask.run_batch([{"i": 1}, {"j": 2}], backend=backend)
    assert caught.value.__notes__ == ["in item 1 of ask.run_batch"]
    with pytest.raises(TypeError, match=r"item 0 of ask\.run_batch is 'text'"):
        ask.run_batch(["text"], backend=backend)
    with pytest.raises(TypeError, match="on_error='ignore'"):
        ask.run_batch([], backend=backend, on_error="ignore")
    with pytest.raises(pt.PalmetteError, match="num_threads"):
        ask.run_batch([], backend=backend, num_threads=0)
    assert backend.requests == []
    assert ask.run_batch([], backend=backend) == []


def test_num_threads_bounds_how_many_are_in_progress():
    class Counting(MockBackend):
        most = 0

        async def submit(self, request):
            self.most = max(self.most, self.active + 1)
            async for event in super().submit(request):
                yield event

    backend = Counting(default=echo, delay=0.01)
    ask.run_batch([{"i": i} for i in range(20)], backend=backend, num_threads=3)
    assert backend.most == 3


def test_generator_style_gives_states_as_they_are_ready_and_stops_when_closed():
    backend = MockBackend(default=echo, delay=0.01)
    states = ask.run_batch([{"i": i} for i in range(30)], backend=backend, generator_style=True, num_threads=4)
    assert [next(states)["x"] for _ in range(3)] == ["0", "1", "2"]
    states.close()
    assert len(backend.requests) < 12
    assert backend.active == 0


def test_an_error_cancels_the_rest_and_runs_their_finally_blocks():
    ended = []

    @pt.function
    def program(s, i):
        try:
            s += pt.gen("x")
            if i == 2:
                raise Broken
            s["x"]
        finally:
            ended.append(i)

    backend = MockBackend(default="v", delay=60)
    with pytest.raises(Broken):
        program.run_batch([{"i": i} for i in range(5)], backend=backend, num_threads=3)
    assert sorted(ended) == [0, 1, 2]
    assert backend.active == 0


def test_keep_gives_a_state_for_each_item_whoever_failed():
    body, gen = Broken("body"), Broken("gen")

    @pt.function
    def program(s, i):
        s += f"{i}" + pt.gen("x")
        if i == 1:
            raise body

    backend = MockBackend(lambda prompt: gen if prompt == "2" else "v")
    states = program.run_batch([(i,) for i in range(3)], backend=backend, on_error="keep", num_threads=1)
    assert [state.error for state in states] == [None, body, gen]
    with pytest.raises(Broken) as caught:
        states[1]["x"]
    assert caught.value is body


def test_a_progress_bar_counts_the_items(capsys):
    ask.run_batch([{"i": i} for i in range(3)], backend=MockBackend(default=echo), progress_bar=True)
    assert "3/3" in capsys.readouterr().err


def test_a_thousand_states_that_fork_eight_ways_take_no_thread_each():
    before = threading.active_count()
    most = 0

    @pt.function
    def program(s, i):
        nonlocal most
        s += f"{i}"
        with s.fork(8) as branches:
            branches += pt.gen("x")
        s["x"]
        most = max(most, threading.active_count())

    states = program.run_batch([(i,) for i in range(1000)], backend=MockBackend(default="v"), num_threads=1000)
    assert all(state["x"] == ["v"] * 8 for state in states)
    assert most - before <= 4


@pt.function
async def async_ask(s, i):
    s += f"{i}:" + pt.gen("x")
    await asyncio.sleep(0.1)
    s["double"] = await s["x"] * 2


def test_async_programs_run_in_batches_too():
    backend = MockBackend(default=echo, delay=0.1)
    began = time.perf_counter()
    states = async_ask.run_batch([{"i": i} for i in range(30)], backend=backend)
    assert time.perf_counter() - began < 3.0
    assert [state["double"] for state in states] == [f"{i}" * 2 for i in range(30)]
    with pytest.raises(Broken):
        async_ask.run_batch([{"i": 1}], backend=MockBackend(default=Broken("b")))
    kept = async_ask.run_batch([{"i": 1}], backend=MockBackend(default=Broken("b")), on_error="keep")
    assert isinstance(kept[0].error, Broken)


def test_batches_may_run_inside_batches():
    backend = MockBackend(default=echo, delay=0.01)

    @pt.function
    def outer(s, i):
        inner = ask.run_batch([{"i": 10 * i + j} for j in range(3)], backend=backend)
        s["inner"] = [state["x"] for state in inner]

    states = outer.run_batch([{"i": i} for i in range(10)], backend=backend)
    assert [state["inner"] for state in states] == [[f"{10 * i + j}" for j in range(3)] for i in range(10)]


def test_threads_may_run_programs_and_share_a_state():
    backend = MockBackend(default="v")
    results = []

    def work(i):
        results.append(ask.run(i, backend=MockBackend(default=echo))["double"])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [f"{i}" * 2 for i in range(8)]

    @pt.function
    def shared(s):
        def append():
            nonlocal s
            for _ in range(200):
                s += "x" + pt.gen()

        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    state = shared.run(backend=backend)
    assert len(state.results) == 800
    assert sorted(state.text()) == sorted("xv" * 800)


def test_context_variables_reach_the_bodies():
    import contextvars

    tenant = contextvars.ContextVar("tenant", default="none")

    @pt.function
    def program(s):
        s["tenant"] = tenant.get()

    tenant.set("acme")
    assert [state["tenant"] for state in program.run_batch([{}, {}], backend=MockBackend())] == ["acme"] * 2


@pytest.mark.parametrize(
    ("items", "options", "words"),
    [
        ({"i": 1}, {}, "list of items"),
        ({}, {}, "list of items"),
        ("", {}, "list of items"),
        (5, {}, "list of items"),
        ([(1,)], {"progress_bar": "x"}, "progress_bar"),
        ([(1,)], {"generator_style": 1}, "generator_style"),
    ],
)
def test_wrong_arguments_of_run_batch_are_refused_at_once(items, options, words):
    with pytest.raises(TypeError, match=words):
        ask.run_batch(items, backend=MockBackend(default="v"), **options)
