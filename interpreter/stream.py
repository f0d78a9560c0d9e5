"""A run as a stream of events. The body runs in the consumer's thread or event loop, in step with its reading."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any, Self

from palmette.errors import PalmetteError
from palmette.interpreter.bodies import Body, Feed, park, until
from palmette.interpreter.events import ErrorEvent, Event
from palmette.interpreter.run import Run, refuse_running_loop
from palmette.interpreter.state import State
from palmette.lang.function import Call, Function
from palmette.runtime.protocol import Backend


class _Streamed:
    """What both kinds of stream share: the events' queue, and the end."""

    def __init__(self, function: Function, call: Call, backend: Backend, branches: bool) -> None:
        self._feed = Feed()
        self._run = Run(function, call, backend, self._feed.put, branches)
        self._closed = False
        self._failure: BaseException | None = None

    @property
    def state(self) -> State:
        """The state, which may be read at any time; complete once the stream has ended."""
        return self._run.state

    def _last(self, error: BaseException | None) -> ErrorEvent | None:
        """The event of a run that has failed; it is raised next. None where it has not."""
        strand = self._run.front.strand
        self._closed = True
        self._failure = error if error is not None else strand.error
        if self._failure is None:
            return None
        if error is None:
            self._failure = self._failure.with_traceback(strand.traceback)
        strand.seen = True
        return ErrorEvent(self._failure)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if isinstance(failure, StopIteration | StopAsyncIteration):
            # As it stands it would look like the stream's ordinary end (as in generators, PEP 479).
            raise RuntimeError(f"the program raised {type(failure).__name__}") from failure
        if failure is not None:
            raise failure


class Stream(_Streamed, Iterator[Event]):
    """Iterate it, in one thread. Where the run fails, an ErrorEvent comes last, then the error itself is raised.
    `close`, or the end of a `with` block, cancels what is left."""

    def __init__(self, function: Function, call: Call, backend: Backend, branches: bool) -> None:
        super().__init__(function, call, backend, branches)
        self._body: Body | None = None

    def __next__(self) -> Event:
        if self._closed:
            self._raise_failure()
            raise StopIteration
        if self._body is None:
            self._body = Body(self._run.here, self._feed.put)
            self._body.resume()
        self._check_thread(self._body)
        try:
            while self._feed.finished or not self._body.dead:
                park(self._feed, self._run.front.shared.thread)
                item: Any = self._feed.take()
                if item is not self._body:
                    event: Event = item
                    return event
                if not self._body.dead:
                    self._body.resume()
        except BaseException:
            self.close()
            raise
        last = self._last(self._body.error)
        if last is not None:
            return last
        raise StopIteration

    def close(self) -> None:
        """Cancels what is left of the run; nothing more is yielded."""
        if self._closed:
            self._failure = None
            return
        self._closed = True
        self._run.cancel()
        body = self._body
        if body is None or body.thread != threading.get_ident():
            return
        # Its wake-up may be what Ctrl-C has swallowed.
        self._feed.put(body)
        while body:
            park(self._feed, self._run.front.shared.thread)
            if self._feed.take() is body:
                body.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_body"):
            with suppress(PalmetteError, RuntimeError):
                self.close()

    @staticmethod
    def _check_thread(body: Body) -> None:
        if body.thread != threading.get_ident():
            raise PalmetteError(
                "a stream is read in another thread than the one that began it, where its body lives",
                hint="read it in one thread, or use astream in an event loop",
            )


class AsyncStream(_Streamed, AsyncIterator[Event]):
    """As Stream, for `async for`; `aclose` or `async with` cancels. The body may be synchronous or asynchronous."""

    def __init__(self, function: Function, call: Call, backend: Backend, branches: bool) -> None:
        super().__init__(function, call, backend, branches)
        self._task: asyncio.Task[State] | None = None

    async def __anext__(self) -> Event:
        if self._closed:
            self._raise_failure()
            raise StopAsyncIteration
        if self._task is None:
            self._task = asyncio.ensure_future(self._run.there())
            self._task.add_done_callback(self._feed.put)
        try:
            while self._feed.finished or not self._task.done():
                await until(self._feed)
                item: Any = self._feed.take()
                if item is not self._task:
                    event: Event = item
                    return event
        except BaseException:
            self._closed = True
            self._task.cancel()
            raise
        last = self._last(asyncio.CancelledError() if self._task.cancelled() else self._task.exception())
        if last is not None:
            return last
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancels what is left of the run; nothing more is yielded."""
        self._failure = None
        if self._closed:
            return
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_task") and not self._closed:
            with suppress(RuntimeError):
                self._run.cancel()


class BlockingStream(Iterator[Event]):
    """The stream of an asynchronous program, for synchronous code: an event loop of its own runs while it is read."""

    def __init__(self, function: Function, call: Call, backend: Backend, branches: bool) -> None:
        refuse_running_loop(function, "async for event in {}.astream(...)")
        self._stream = AsyncStream(function, call, backend, branches)
        self._runner = asyncio.Runner()

    @property
    def state(self) -> State:
        return self._stream.state

    def __next__(self) -> Event:
        try:
            return self._runner.run(self._step())
        except StopAsyncIteration:
            self._runner.close()
            raise StopIteration from None

    async def _step(self) -> Event:
        return await anext(self._stream)

    def close(self) -> None:
        """Cancels what is left of the run; nothing more is yielded."""
        self._runner.run(self._stream.aclose())
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
