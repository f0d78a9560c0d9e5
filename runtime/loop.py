"""The thread that an in-process engine runs in: commands in, steps while there is work."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from palmette.errors import BackendError
from palmette.runtime.core import EngineCore
from palmette.runtime.job import Job

T = TypeVar("T")

# How long the engine stands idle at most, in the hope that a program asks for what is held for it.
_GRACE_SECONDS = 0.02


class EngineLoop:
    """Owns an EngineCore; everything that touches it is done by this loop's thread, in between steps."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open = True
        # Under the lock: a command is in the inbox before the thread looks there for the last time, or it is refused.
        # Re-entrant, since a garbage collection inside may end a stream of this engine, which wakes the loop.
        self._lock = threading.RLock()
        self._ended = False
        self._held_up_since = 0.0
        self._failure: BackendError | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="palmette-engine", daemon=True)
        self._thread.start()
        # The thread, not only the loop: it may be the one that frees the model, after everybody else let go of it.
        atexit.register(_finish, weakref.ref(self), self._thread)

    @property
    def is_open(self) -> bool:
        return self._open

    def check(self) -> None:
        """Raise where nothing would ever be answered: after the close, and in a forked process."""
        if os.getpid() != self._pid:
            raise BackendError(
                "this engine belongs to the parent process, and its thread does not run here",
                hint="make the Engine in the child process, or start the child by spawn",
            )
        if not self._open:
            raise closed_error()

    def add(self, job: Job) -> None:
        """Hand a job over. It is answered by its own callbacks, also where the engine closes before it begins."""
        if not self._put(lambda: self._core.add(job)):
            job.fail(closed_error())

    def wake(self) -> None:
        """Have the loop look at cancelled jobs now."""
        self._put(lambda: None)

    def post(self, function: Callable[[EngineCore], object]) -> None:
        """Run `function` between two steps, some time soon; never, where the engine closes before. It may not raise."""
        self._put(lambda: function(self._core))

    def call(self, function: Callable[[EngineCore], T]) -> T:
        """Run `function` between two steps and return what it returns."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(function(self._core))
            except BaseException as error:
                future.set_exception(error)

        self.check()
        if not self._put(work):
            raise closed_error()
        return future.result()

    def close(self) -> None:
        """End what is in flight as cancelled and stop the thread. Idempotent."""
        self._open = False
        if os.getpid() != self._pid:
            return
        self.wake()
        # Not from a thread of ours, where a garbage collection may have brought it: the engine's may wait for that one.
        if not threading.current_thread().name.startswith("palmette-"):
            self._thread.join()

    def _put(self, command: Callable[[], None]) -> bool:
        with self._lock:
            if not self._ended:
                self._inbox.put(command)
            return not self._ended

    def _run(self) -> None:
        while self._open:
            try:
                if not self._core.busy:
                    self._inbox.get()()
                self._drain()
                if self._core.busy and self._open:
                    self._step()
            except Exception as error:
                self._break_down(error)
        with self._lock:
            self._ended = True
        while not self._inbox.empty():
            # What came too late, too, is answered: where it cannot even begin, by its own failure.
            with suppress(Exception):
                self._drain()
        if self._failure is not None:
            self._core.fail_all(self._failure)
        self._core.close()

    def _step(self) -> None:
        if self._core.step(patient=True):
            self._held_up_since = 0.0
        else:
            self._wait_for_programs()

    def _break_down(self, error: Exception) -> None:
        """The bookkeeping itself broke. Nobody may be left waiting, and no later request may build on it."""
        failure = BackendError(f"the engine broke down: {error!r}", hint="make a new Engine; please report this")
        failure.__cause__ = error
        self._failure = failure
        self._open = False

    def _wait_for_programs(self) -> None:
        """What programs hold keeps out whoever waits. Most are about to go on: what they ask, or leave, comes first;
        but whatever comes, nobody is kept out for longer than the grace."""
        now = time.monotonic()
        self._held_up_since = self._held_up_since or now
        left = self._held_up_since + _GRACE_SECONDS - now
        try:
            if left <= 0:
                raise queue.Empty
            self._inbox.get(timeout=left)()
        except queue.Empty:
            self._held_up_since = 0.0
            self._core.step()

    def _drain(self) -> None:
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            command()


def _finish(loop: weakref.ref[EngineLoop], thread: threading.Thread) -> None:
    """At exit. Python ends daemon threads where they ask for the GIL, and torch's destructors do not survive that."""
    alive = loop()
    if alive is not None:
        alive.close()
        del alive
    thread.join()


def closed_error() -> BackendError:
    return BackendError("the engine is closed", hint="make a new Engine, or close it later")
