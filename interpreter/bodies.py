"""Waiting, for every kind of program body: a thread blocks, a greenlet steps aside, a coroutine awaits.

A body that runs in a `Body` greenlet gives its thread back to whoever resumed it while it waits, so one thread can
have thousands of synchronous bodies in progress.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Protocol

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from palmette.interpreter.loop import LoopThread

# How long Ctrl-C may go unnoticed at worst.
_PIECE_SECONDS = 0.5
# How long a cancelled request may take to end before nobody waits for it any more.
_GRACE_SECONDS = 5.0


class Waitable(Protocol):
    """Something that will be `finished`. `subscribe` has `wake` called then, from any thread, perhaps twice; at once
    where it is finished already. `wake` must not raise."""

    @property
    def finished(self) -> bool: ...

    def subscribe(self, wake: Callable[[], None]) -> None: ...


class Feed:
    """A queue that one body waits on and any thread fills."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._wake: Callable[[], None] | None = None

    @property
    def finished(self) -> bool:
        return bool(self._items)

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # The other order of `put`: whichever comes second sees what the first one did.
        if self._items:
            wake()

    def put(self, item: Any) -> None:
        self._items.append(item)
        wake = self._wake
        if wake is not None:
            wake()

    def take(self) -> Any:
        return self._items.popleft()


class Gate:
    """A waitable that is opened once."""

    def __init__(self) -> None:
        self.finished = False
        self._waiters: list[Callable[[], None]] = []

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._waiters.append(wake)
        if self.finished:
            wake()

    def open_after(self, tasks: Collection[asyncio.Task[None]], loop: asyncio.AbstractEventLoop) -> None:
        """Open once the loop's tasks have ended, or once nobody waits for them any more."""
        left = set(tasks)
        if not left:
            self.open()
            return
        timer = loop.call_later(_GRACE_SECONDS, self.open)

        def ended(task: asyncio.Task[None]) -> None:
            left.discard(task)
            if not left:
                timer.cancel()
                self.open()

        for task in tasks:
            task.add_done_callback(ended)

    def open(self) -> None:
        self.finished = True
        for wake in self._waiters:
            wake()


class Body(greenlet):  # type: ignore[misc]
    """A function in a greenlet. `on_wake(body)` is called, from any thread, when it should be resumed.

    `outcome` is what it returned, `error` what it raised; neither escapes into the greenlet that resumed it.
    """

    def __init__(self, function: Callable[[], Any], on_wake: Callable[[Body], None]) -> None:
        super().__init__(self._main)
        self.gr_context = contextvars.copy_context()
        self.thread = threading.get_ident()
        self.error: BaseException | None = None
        self.outcome: Any = None
        # What to cancel when whoever drives this body gives it up: the programs that it runs.
        self.cancels: list[Callable[[], None]] = []
        self._function = function
        self._on_wake = on_wake

    def _main(self) -> None:
        try:
            self.outcome = self._function()
        except BaseException as error:
            self.error = error

    def resume(self) -> None:
        """Runs the body until it waits or ends. It comes back here, whichever greenlet started it."""
        self.parent = getcurrent()
        self.switch()

    def wait(self, waitable: Waitable) -> None:
        waitable.subscribe(lambda: self._on_wake(self))
        while not waitable.finished:
            self.parent.switch()

    def cancel(self) -> None:
        for cancel in list(self.cancels):
            cancel()


def current_body() -> Body | None:
    """The body that the caller runs in, if it is a greenlet of ours."""
    me = getcurrent()
    return me if isinstance(me, Body) else None


def park(waitable: Waitable, thread: LoopThread) -> None:
    """Waits until `waitable` is finished, in a greenlet or in a plain thread; Ctrl-C interrupts the latter."""
    if waitable.finished:
        return
    thread.check()
    body = current_body()
    if body is not None:
        body.wait(waitable)
        return
    lock = threading.Lock()
    lock.acquire()

    def wake() -> None:
        # Woken a second time, the lock is free already.
        with suppress(RuntimeError):
            lock.release()

    waitable.subscribe(wake)
    while not waitable.finished:
        # In pieces: Python sees a signal that comes right before the wait begins only after the wait.
        lock.acquire(timeout=_PIECE_SECONDS)


async def until(waitable: Waitable) -> None:
    """Waits until `waitable` is finished, in whatever event loop runs."""
    if waitable.finished:
        return
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        # The loop may be closed by the time that a state, given up long ago, ends.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle)

    waitable.subscribe(wake)
    await future
