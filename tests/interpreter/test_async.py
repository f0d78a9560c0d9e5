"""Programs in a running event loop."""

from __future__ import annotations

import asyncio
import time

import pytest

import palmette as pt
from palmette.testing import MockBackend

pytestmark = pytest.mark.timeout(20)


class Broken(Exception):
    pass


@pt.function
def plain(s, i=0):
    s += f"{i}:" + pt.gen("x")
    s += s["x"]


@pt.function
async def native(s):
    s += pt.user("hi")
    async with s.fork(2) as branches:
        branches += lambda i: f"{i}" + pt.gen("x")
    xs = await s["x"]
    with s.assistant():
        s += pt.gen("n", type=int)
    s["sum"] = await s.value("n") + len(xs)
    assert await s.has("x") and not await s.has("nope")
    assert (await s.result("n")).value == 3
    assert (await s.get_meta_info("n"))["finish_reason"] == "constraint"
    assert (await s.text()).startswith("<|im_start|>user")
    assert len(await s.messages()) == 2 and await s.tokens()
    assert await s.error() is None
    assert (await s.trace())[0].kind == "fork"
    async with s.copy() as branch:
        branch += pt.gen("copied")
    return xs


def test_a_synchronous_body_lets_the_loop_go_on():
    backend = MockBackend(default="v", delay=0.1)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    async def main():
        ticker = asyncio.ensure_future(tick())
        states = await asyncio.gather(*(plain.arun(i, backend=backend) for i in range(20)))
        ticker.cancel()
        return states

    began = time.perf_counter()
    states = asyncio.run(main())
    assert [state.text() for state in states] == [f"{i}:vv" for i in range(20)]
    assert ticks > 5
    assert time.perf_counter() - began < 1.5


def test_run_works_inside_a_running_loop_as_in_a_notebook():
    async def main():
        return plain.run(backend=MockBackend(default="v"))

    assert asyncio.run(main()).text() == "0:vv"


def test_an_async_program_awaits_its_reads():
    backend = MockBackend({"n": "3", "copied": "c"}, default="v")

    async def main():
        return await native.arun(backend=backend)

    for state in (asyncio.run(main()), native.run(backend=backend)):
        assert state["x"] == ["v", "v"] == state.ret_value
        assert state["sum"] == 5
        assert state["copied"] == ["c"]


def test_an_async_program_needs_await_inside_a_loop():
    async def main():
        for start in (native.run, native.stream):
            with pytest.raises(pt.PalmetteError, match=r"native\.a(run|stream)"):
                start(backend=MockBackend())
        with pytest.raises(pt.PalmetteError, match=r"native\.arun"):
            native.run_batch([{}], backend=MockBackend())

    asyncio.run(main())


def test_errors_of_async_programs_are_the_original_ones():
    error = Broken("b")

    @pt.function
    async def reads(s):
        s += pt.gen("x")
        await s["x"]

    @pt.function
    async def leaves(s):
        s += pt.gen("x")

    with pytest.raises(Broken) as caught:
        reads.run(backend=MockBackend({"x": error}))
    assert caught.value is error
    state = leaves.run(backend=MockBackend({"x": error}))
    assert state.error is error


@pytest.mark.parametrize("program", [plain, native])
def test_cancelling_the_task_cancels_the_program(program):
    backend = MockBackend(default="v", delay=60)

    async def main():
        task = asyncio.ensure_future(program.arun(backend=backend))
        while backend.active == 0:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.active == 0

    asyncio.run(main())
    assert backend.cancelled


def test_a_time_limit_around_arun_holds():
    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(plain.arun(backend=MockBackend(default="v", delay=60)), 0.05)

    began = time.perf_counter()
    asyncio.run(main())
    assert time.perf_counter() - began < 2
