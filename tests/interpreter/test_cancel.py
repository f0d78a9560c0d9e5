"""Ctrl-C, cancelling, and what must never hang or be lost."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from types import SimpleNamespace

import pytest

import palmette as pt
from palmette.interpreter.loop import loop_thread
from palmette.testing import MockBackend

pytestmark = pytest.mark.timeout(30)


class Broken(Exception):
    pass


@pt.function
def ask(s):
    s += pt.gen("x")
    s["x"]


@pt.function
def forks(s):
    with s.fork(3) as branches:
        for branch in branches:
            with branch.fork(2) as inner:
                inner += pt.gen("x")
    s["x"]


def interrupt_when(condition):
    """Presses Ctrl-C, so to speak, once `condition` holds."""
    main = threading.get_ident()

    def press():
        while not condition():
            time.sleep(0.002)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("program", "requests"), [(ask, 1), (forks, 6)])
def test_ctrl_c_in_run_cancels_the_whole_tree(program, requests):
    backend = MockBackend(default="v", delay=60)
    interrupt_when(lambda: backend.active == requests)
    with pytest.raises(KeyboardInterrupt):
        program.run(backend=backend)
    assert backend.active == 0
    assert len(backend.cancelled) == requests


def test_ctrl_c_in_run_batch_cancels_every_item():
    backend = MockBackend(default="v", delay=60)
    interrupt_when(lambda: backend.active == 60)
    with pytest.raises(KeyboardInterrupt):
        forks.run_batch([{}] * 50, backend=backend, num_threads=10, on_error="keep")
    assert backend.active == 0


def test_ctrl_c_in_a_stream_cancels_it():
    backend = MockBackend(default="v", delay=60)
    interrupt_when(lambda: backend.active == 1)
    with pytest.raises(KeyboardInterrupt):
        list(ask.stream(backend=backend))
    assert backend.active == 0


def test_ctrl_c_in_an_async_program_cancels_it():
    @pt.function
    async def program(s):
        s += pt.gen("x")
        await s["x"]

    backend = MockBackend(default="v", delay=60)
    interrupt_when(lambda: backend.active == 1)
    with pytest.raises(KeyboardInterrupt):
        program.run(backend=backend)
    assert backend.active == 0


@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("how", ["batch", "stream"])
def test_ctrl_c_that_swallows_a_wake_up_does_not_hang(monkeypatch, nth, how):
    """The worst moment: the hub has taken a body's wake-up, and is interrupted before it resumes the body."""
    from palmette.interpreter.bodies import Feed

    taken, take = 0, Feed.take

    def interrupted(feed):
        nonlocal taken
        taken += 1
        item = take(feed)
        if taken == nth:
            raise KeyboardInterrupt
        return item

    monkeypatch.setattr(Feed, "take", interrupted)
    backend = MockBackend(default="a few words to say")
    with pytest.raises(KeyboardInterrupt):
        if how == "batch":
            forks.run_batch([{}] * 12, backend=backend, num_threads=2)
        else:
            list(ask.stream(backend=backend))
    assert backend.active == 0


def test_ctrl_c_between_flag_and_wake_up_leaves_the_loop_usable(monkeypatch):
    thread = loop_thread()
    with monkeypatch.context() as patch:

        def interrupted(callback):
            raise KeyboardInterrupt

        def post_until_interrupted():
            # While the loop is awake (a test before this one may have left it busy) a post need not wake it.
            while True:
                thread.post(lambda: None)
                time.sleep(0.01)

        patch.setattr(thread.loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            post_until_interrupted()
    assert ask.run(backend=MockBackend({"x": "v"}))["x"] == "v"


def test_a_body_that_raises_leaves_no_request_behind():
    backend = MockBackend(default="v", delay=60)

    @pt.function
    def program(s):
        s += pt.gen("x")
        while backend.active == 0:
            time.sleep(0.002)
        raise Broken

    with pytest.raises(Broken):
        program.run(backend=backend)
    assert backend.active == 0


def test_a_cancelled_state_wakes_its_readers():
    backend = MockBackend(default="v", delay=60)

    @pt.function
    def program(s):
        s += pt.gen("x")
        timer = threading.Timer(0.05, s.cancel)
        timer.start()
        with pytest.raises(pt.Cancelled):
            s["x"]
        s += "more"
        with pytest.raises(pt.Cancelled):
            s.text()
        timer.join()

    program.run(backend=backend)
    assert backend.active == 0


def test_readers_do_not_wait_for_a_backend_that_will_not_stop():
    class Stubborn(MockBackend):
        async def submit(self, request):
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(1.5)
            yield

    @pt.function
    def program(s):
        s += pt.gen("x")
        threading.Timer(0.05, s.cancel).start()
        began = time.perf_counter()
        with pytest.raises(pt.Cancelled):
            s["x"]
        assert time.perf_counter() - began < 1

    program.run(backend=Stubborn())


def test_an_error_may_be_raised_a_thousand_times_without_growing():
    state = pt.function(lambda s: s.__iadd__(pt.gen("x")) and None).run(backend=MockBackend({"x": Broken("b")}))

    def depth():
        try:
            state["x"]
        except Broken as error:
            return len(traceback.extract_tb(error.__traceback__)), len(error.__notes__)

    first = depth()
    assert {depth() for _ in range(1000)} == {first}


def test_one_error_object_of_many_runs_does_not_grow():
    error = Broken("shared")
    backend = MockBackend({"x": error})
    depths = set()
    for _ in range(50):
        with pytest.raises(Broken) as caught:
            ask.run(backend=backend)
        depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(depths) == 1
    assert len([note for note in error.__notes__ if "in program" in note]) == 1


def test_an_error_that_nobody_looked_at_is_logged(caplog):
    @pt.function
    def program(s):
        s += pt.gen("x")

    with caplog.at_level(logging.WARNING, "palmette"):
        state = program.run(backend=MockBackend({"x": Broken("unseen")}))
        del state
        gc.collect()
        assert "unseen" in caplog.text
        caplog.clear()
        state = program.run(backend=MockBackend({"x": Broken("seen")}))
        assert state.error is not None
        del state
        gc.collect()
        assert caplog.text == ""


def test_reading_a_state_on_its_own_loop_is_refused_instead_of_hanging():
    holder = []

    def answer(prompt):
        return holder[0]["y"]

    @pt.function
    def program(s):
        holder.append(s)
        s += pt.gen("x") + pt.gen("y")
        s["x"]

    with pytest.raises(pt.PalmetteError, match="wait for itself"):
        program.run(backend=MockBackend({"x": answer, "y": "v"}))


def test_a_callback_that_fails_does_not_stop_the_loop():
    thread = loop_thread()
    thread.loop.set_exception_handler(lambda loop, context: None)
    try:
        thread.post(lambda: 1 / 0)
        assert ask.run(backend=MockBackend({"x": "v"}))["x"] == "v"
    finally:
        thread.loop.set_exception_handler(None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here")
def test_a_forked_process_gets_a_loop_of_its_own():
    code = """
import os, sys
import palmette as pt
from palmette.testing import MockBackend
@pt.function
def ask(s):
    s += pt.gen("x")
    s["x"]
backend = MockBackend({"x": "v"})
assert ask.run(backend=backend)["x"] == "v"
child = os.fork()
if child == 0:
    os._exit(0 if ask.run(backend=backend)["x"] == "v" else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=20).returncode == 0


def test_a_process_may_end_while_programs_run_elsewhere():
    code = """
import threading, time
import palmette as pt
from palmette.testing import MockBackend
@pt.function
def ask(s):
    s += pt.gen("x")
    s["x"]
backend = MockBackend({"x": "v"}, delay=60)
threading.Thread(target=lambda: ask.run(backend=backend), daemon=True).start()
stream = ask.stream(backend=backend)
while backend.active == 0:
    time.sleep(0.01)
print("done")
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=20, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_ctrl_c_right_before_a_wait_begins_is_not_lost(monkeypatch):
    """A signal after the last look at signals and before the thread blocks does not end the block."""
    from palmette.interpreter import bodies

    class Deaf:
        """A lock whose wait no signal ends, as if each came right before it began."""

        def __init__(self):
            self.lock = threading.Lock()

        def acquire(self, timeout=-1):
            if not self.lock.acquire(blocking=False):
                seen = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
                time.sleep(8 if timeout < 0 else timeout)
                signal.pthread_sigmask(signal.SIG_SETMASK, seen)

        def release(self):
            self.lock.release()

    monkeypatch.setattr(bodies, "threading", SimpleNamespace(Lock=Deaf, get_ident=threading.get_ident))
    backend = MockBackend(default="v", delay=60)
    interrupt_when(lambda: backend.active == 1)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ask.run(backend=backend)
    assert time.monotonic() - began < 5
