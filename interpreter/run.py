"""One run of a program: in the caller's thread, or in a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from greenlet import GreenletExit  # type: ignore[import-untyped]

from palmette.errors import PalmetteError
from palmette.interpreter.async_state import AsyncState
from palmette.interpreter.bodies import Body, Feed, Gate, current_body, park, until
from palmette.interpreter.events import Event
from palmette.interpreter.front import Front
from palmette.interpreter.loop import loop_thread
from palmette.interpreter.lower import check_account
from palmette.interpreter.state import State
from palmette.interpreter.strand import Shared
from palmette.lang.function import Call, Function
from palmette.runtime.protocol import Backend


class Run:
    """A program, its arguments, and the state that it writes to. It is run once, in one of two ways."""

    def __init__(
        self,
        function: Function,
        call: Call,
        backend: Backend,
        sink: Callable[[Event], None] | None = None,
        sink_branches: bool = False,
    ) -> None:
        self.function = function
        self.call = call
        check_account(call.account, backend.capabilities)
        shared = Shared(loop_thread(), backend, backend.codec, function.name, sink, sink_branches, call.account)
        self.front = Front(shared, call.sampling)
        self.state = State(self.front)

    def here(self) -> State:
        """Runs a synchronous body in this thread or greenlet, and waits until its work has ended.

        Raises what the body raises, after all its work is cancelled; a failure that the body did not read stays in
        the state.
        """
        body = current_body()
        if body is not None:
            body.cancels.append(self.cancel)
        try:
            self.state.ret_value = self.function.body(self.state, *self.call.args, **self.call.kwargs)
            self._settle()
        except GreenletExit:
            # The greenlet is being collected: it must not step aside any more.
            self.cancel()
            raise
        except BaseException as error:
            park(self.cancelled(error), self.front.shared.thread)
            raise
        finally:
            if body is not None:
                body.cancels.remove(self.cancel)
        return self.state

    async def there(self) -> State:
        """Runs the body in the running event loop; a synchronous one in a greenlet that steps aside to wait."""
        if self.function.is_async:
            return await self._coroutine()
        feed = Feed()
        body = Body(self.here, lambda _: feed.put(None))
        body.resume()
        try:
            while not body.dead:
                await until(feed)
                feed.take()
                body.resume()
        except GeneratorExit:
            # The coroutine is thrown away: nothing can be awaited any more.
            self.cancel()
            raise
        except BaseException:
            body.cancel()
            feed.put(None)
            while not body.dead:
                await until(feed)
                feed.take()
                body.resume()
            raise
        if body.error is not None:
            raise body.error
        return self.state

    def cancel(self) -> None:
        self.cancelled()

    def cancelled(self, error: BaseException | None = None) -> Gate:
        """Cancels the whole tree; the gate opens once no request is left. `error`: why, which the state keeps."""
        gate = Gate()
        strand = self.front.strand
        self.front.shared.thread.post(lambda: strand.abort(gate, error))
        return gate

    async def _coroutine(self) -> State:
        try:
            state = AsyncState(self.front)
            self.state.ret_value = await self.function.body(state, *self.call.args, **self.call.kwargs)
            await state._wait(self.front.last)
            if self.front.forked:
                await until(self._end())
            else:
                self.front.shared.thread.post(self.front.strand.leave)
        except GeneratorExit:
            self.cancel()
            raise
        except BaseException as error:
            await until(self.cancelled(error))
            raise
        return self.state

    def _settle(self) -> None:
        self.state._wait(self.front.last)
        if self.front.forked:
            park(self._end(), self.front.shared.thread)
        else:
            self.front.shared.thread.post(self.front.strand.leave)

    def _end(self) -> Gate:
        gate = Gate()
        strand = self.front.strand
        self.front.shared.thread.post(lambda: strand.end(gate))
        return gate


def run(function: Function, call: Call, backend: Backend) -> State:
    """Runs a program to its end in this thread."""
    if not function.is_async:
        return Run(function, call, backend).here()
    refuse_running_loop(function, "await {}.arun(...)")
    return asyncio.run(Run(function, call, backend).there())


def refuse_running_loop(function: Function, instead: str) -> None:
    """An asynchronous body needs an event loop of its own, which a thread with a running one cannot have."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise PalmetteError(
        f"{function.name} is an async program, and an event loop runs here already",
        hint="write: " + instead.format(function.name),
    )
