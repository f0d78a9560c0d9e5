"""stream and astream."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

import palmette as pt
from palmette.testing import MockBackend

pytestmark = pytest.mark.timeout(20)


@pt.function
def chat(s):
    s += pt.user("hi")
    s += pt.assistant(pt.gen("x"))
    with s.fork(2) as branches:
        branches += lambda i: f"[{i}]" + pt.gen("y")
    with s.var_scope("z"):
        s += f"both {len(s['y'])}"


def settled(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def backend(**options):
    return MockBackend({"x": "hello there you", "y": ["one", "two"]}, **options)


def test_events_tell_all_text_and_each_variable_in_order():
    stream = chat.stream(backend=backend())
    events = list(stream)
    texts = [event for event in events if isinstance(event, pt.TextEvent)]
    assert "".join(event.text for event in texts) == stream.state.text()
    assert [event.text for event in texts if event.generated] == ["hell", "o", " the", "re", " you"]
    assert {event.name for event in texts if event.generated} == {"x"}
    assert [(e.name, e.value) for e in events if isinstance(e, pt.VariableEvent)] == [
        ("x", "hello there you"),
        ("y", ["one", "two"]),
        ("z", "both 2"),
    ]
    assert all(event.branch == () for event in texts)


def test_branches_are_streamed_on_request():
    events = list(chat.stream(backend=backend(), branches=True))
    assert {event.branch for event in events} == {(), (0,), (1,)}
    for index, word in enumerate(["one", "two"]):
        own = [e for e in events if e.branch == (index,)]
        assert "".join(e.text for e in own if isinstance(e, pt.TextEvent)) == f"[{index}]{word}"
        assert own[-1] == pt.VariableEvent("y", word, (index,))


def test_events_come_while_the_request_runs():
    class Slow(MockBackend):
        sent = 0

        async def submit(self, request):
            async for event in super().submit(request):
                yield event
                self.sent += 1
                await asyncio.sleep(0.1)

    source = Slow({"x": "one two three four five"})
    with chat.stream(backend=source) as stream:
        first = next(event for event in stream if isinstance(event, pt.TextEvent) and event.generated)
    assert first.text == "one"
    assert source.sent < 4


def test_closing_a_stream_cancels_its_run():
    source = backend(delay=60)
    finished = []

    @pt.function
    def program(s):
        try:
            s += "a" + pt.gen("x")
            s["x"]
        finally:
            finished.append(True)

    with program.stream(backend=source) as stream:
        assert next(stream) == pt.TextEvent("a")
        assert settled(lambda: source.active == 1)
    assert finished == [True]
    assert source.active == 0
    with pytest.raises(StopIteration):
        next(stream)


def test_a_stream_that_is_dropped_cancels_its_run():
    source = backend(delay=60)
    stream = chat.stream(backend=source)
    next(stream)
    assert settled(lambda: source.active == 1)
    del stream
    gc.collect()
    assert settled(lambda: source.active == 0)


def test_a_stream_read_from_another_thread_says_so():
    stream = chat.stream(backend=backend())
    next(stream)
    errors = []

    def read():
        try:
            next(stream)
        except pt.PalmetteError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert "astream" in str(errors[0])
    stream.close()


def test_a_stream_may_be_read_inside_a_batch():
    @pt.function
    def outer(s, i):
        s["texts"] = [e.text for e in chat.stream(backend=backend(delay=0.01)) if isinstance(e, pt.TextEvent)]

    states = outer.run_batch([{"i": i} for i in range(20)], backend=MockBackend())
    assert all("".join(state["texts"]).endswith("both 2") for state in states)


async def collect(stream):
    return [event async for event in stream]


def test_astream_gives_the_same_events():
    async def main():
        return await collect(chat.astream(backend=backend()))

    assert asyncio.run(main()) == list(chat.stream(backend=backend()))


@pt.function
async def async_chat(s):
    s += "hi " + pt.gen("x")
    s += f" {len(await s['x'])}"


def test_an_async_program_streams_both_ways():
    async def main():
        return await collect(async_chat.astream(backend=backend()))

    events = asyncio.run(main())
    assert "".join(e.text for e in events if isinstance(e, pt.TextEvent)) == "hi hello there you 15"
    assert list(async_chat.stream(backend=backend())) == events


def test_astream_raises_and_closes_like_stream():
    class Broken(Exception):
        pass

    @pt.function
    def failing(s):
        s += pt.gen("x")

    async def main():
        events = []
        with pytest.raises(Broken):
            async for event in failing.astream(backend=MockBackend({"x": Broken("b")})):
                events.append(event)
        assert isinstance(events[-1], pt.ErrorEvent)
        source = backend(delay=60)
        async with chat.astream(backend=source) as stream:
            await anext(stream)
            while source.active == 0:
                await asyncio.sleep(0.005)
        assert source.active == 0
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(main())


def test_leaving_a_stream_of_an_async_program_early_cancels_it():
    source = backend(delay=60)
    with async_chat.stream(backend=source) as stream:
        next(stream)
        assert settled(lambda: source.active == 1)
    assert settled(lambda: source.active == 0)


def test_a_stop_iteration_of_the_program_is_not_the_streams_end():
    @pt.function
    def program(s):
        s += pt.gen("x")
        next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        list(program.stream(backend=backend()))
    assert isinstance(caught.value.__cause__, StopIteration)


def test_branches_is_true_or_false():
    for stream in (chat.stream, chat.astream):
        with pytest.raises(TypeError, match="branches"):
            stream(backend=backend(), branches="all")


def test_the_best_of_several_comes_whole_when_it_is_known():
    @pt.function
    def program(s):
        s += "a: " + pt.gen("x", best_of=2) + "."

    mock = MockBackend({"x": ["one two", "three"]})
    events = list(program.stream(backend=mock))
    assert [event.text for event in events if isinstance(event, pt.TextEvent)] == ["a: ", "one two", "."]
    assert mock.requests[0].stream is False
