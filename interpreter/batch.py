"""Many runs of one program at once, in order: synchronous bodies as greenlets in the caller's thread, asynchronous ones
as tasks. At most `limit` are in progress; a new one starts as another ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal, Protocol

from palmette.arguments import integer
from palmette.errors import suggestion
from palmette.interpreter.bodies import Body, Feed, park
from palmette.interpreter.loop import loop_thread
from palmette.interpreter.poison import add_note
from palmette.interpreter.run import Run, refuse_running_loop
from palmette.interpreter.state import State
from palmette.lang.function import Call, Function
from palmette.runtime.protocol import Backend

OnError = Literal["raise", "keep"]
# Bodies cost little while they wait, but each has a request in the engine's queue.
_LIMIT = 256


class Progress(Protocol):
    def update(self, n: int = 1) -> object: ...
    def close(self) -> object: ...


class Batch:
    def __init__(
        self,
        function: Function,
        calls: Sequence[Call],
        backend: Backend,
        *,
        limit: int,
        on_error: OnError,
        progress: bool,
    ) -> None:
        self._function = function
        self._calls = calls
        self._backend = backend
        self._limit = limit
        self._keep = on_error == "keep"
        self._ready: dict[int, State] = {}
        self._progress = _bar(function.name, len(calls)) if progress else None

    def states(self) -> Iterator[State]:
        """The states in order, each as soon as it and those before it are there. Closing it cancels the rest."""
        try:
            yield from self._asynchronous() if self._function.is_async else self._greenlets()
        finally:
            if self._progress is not None:
                self._progress.close()

    def _run(self, index: int) -> Run:
        return Run(self._function, self._calls[index], self._backend)

    def _ended(self, index: int, run: Run, error: BaseException | None) -> None:
        """Keeps an ended run's state, or raises what it failed by."""
        strand = run.front.strand
        failure = error if error is not None else strand.error
        if failure is not None and not (self._keep and isinstance(failure, Exception)):
            strand.seen = True
            add_note(failure, f"in item {index} of {self._function.name}.run_batch")
            # A failure that no body has read starts from the traceback that it came with.
            raise failure if error is not None else failure.with_traceback(strand.traceback)
        self._ready[index] = run.state
        if self._progress is not None:
            self._progress.update()

    # -- synchronous bodies

    def _greenlets(self) -> Iterator[State]:
        feed, thread = Feed(), loop_thread()
        active: dict[Body, tuple[int, Run]] = {}
        started = given = 0

        def resume(body: Body) -> None:
            body.resume()
            if body.dead:
                self._ended(*active.pop(body), body.error)

        try:
            while given < len(self._calls):
                if started < len(self._calls) and len(active) < self._limit:
                    run = self._run(started)
                    body = Body(run.here, feed.put)
                    active[body] = (started, run)
                    started += 1
                    resume(body)
                elif given in self._ready:
                    yield self._ready.pop(given)
                    given += 1
                else:
                    park(feed, thread)
                    body = feed.take()
                    # A wake-up may come twice, the second time for a body that has ended meanwhile.
                    if body in active:
                        resume(body)
        finally:
            for body in list(active):
                if body:
                    body.cancel()
                    # Its wake-up may be what Ctrl-C has swallowed.
                    feed.put(body)
                else:
                    del active[body]
            while active:
                park(feed, thread)
                body = feed.take()
                if body in active:
                    body.resume()
                    if body.dead:
                        del active[body]

    # -- asynchronous bodies

    def _asynchronous(self) -> Iterator[State]:
        refuse_running_loop(self._function, "a loop over await {}.arun(...)")
        with asyncio.Runner() as runner:
            states = self._tasks()
            try:
                while True:
                    try:
                        state = runner.run(_next(states))
                    except StopAsyncIteration:
                        return
                    yield state
            finally:
                runner.run(states.aclose())  # type: ignore[attr-defined]

    async def _tasks(self) -> AsyncIterator[State]:
        active: dict[asyncio.Task[State], tuple[int, Run]] = {}
        started = given = 0
        try:
            while given < len(self._calls):
                while started < len(self._calls) and len(active) < self._limit:
                    run = self._run(started)
                    active[asyncio.ensure_future(run.there())] = (started, run)
                    started += 1
                if given in self._ready:
                    yield self._ready.pop(given)
                    given += 1
                    continue
                ended, _ = await asyncio.wait(active, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    self._ended(*active.pop(task), task.exception())
        finally:
            for task in active:
                task.cancel()
            await asyncio.gather(*active, return_exceptions=True)


async def _next(states: AsyncIterator[State]) -> State:
    return await anext(states)


def _bar(name: str, total: int) -> Progress:
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        # A bar that moves at every item needs no thread that wakes it.
        monitor_interval = 0

    bar: Progress = Bar(total=total, desc=name, unit="run")
    return bar


def limit_of(where: str, num_threads: int | Literal["auto"]) -> int:
    """How many bodies may be in progress at once. SGLang calls it num_threads; here no thread comes of it."""
    return _LIMIT if num_threads == "auto" else integer(where, "num_threads", num_threads, least=1)


def checked_on_error(where: str, on_error: Any) -> OnError:
    if on_error not in ("raise", "keep"):
        raise TypeError(f"{where}: on_error={on_error!r} is unknown; {suggestion(str(on_error), ('raise', 'keep'))}")
    mode: OnError = on_error
    return mode
