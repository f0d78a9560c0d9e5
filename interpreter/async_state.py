"""The state as an `async def` program sees it: the same, with reads that are awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from palmette.interpreter import operations as op
from palmette.interpreter.bodies import until
from palmette.interpreter.branches import Branches
from palmette.interpreter.results import Result, Step, meta_info
from palmette.interpreter.state import Appendable, State


class AsyncState(Appendable):
    """`await s["answer"]`. Appending, forking and joining return at once, as in a synchronous program."""

    def __getitem__(self, name: str) -> Awaitable[Any]:
        return self.get_var(name)

    async def get_var(self, name: str) -> Any:
        await self._wait(self._front.maker(name))
        return self._settled()[name]

    async def has(self, name: str) -> bool:
        """What `name in s` is in a synchronous program."""
        await self.sync()
        return name in self._settled()

    async def text(self) -> str:
        await self.sync()
        return self._settled().text()

    async def messages(self) -> list[dict[str, str]]:
        await self.sync()
        return self._settled().messages()

    async def tokens(self) -> list[int]:
        await self.sync()
        return self._settled().tokens()

    async def result(self, name: str) -> Any:
        await self._wait(self._front.maker(name))
        return self._settled().result(name)

    async def value(self, name: str) -> Any:
        await self._wait(self._front.maker(name))
        return self._settled().value(name)

    async def get_meta_info(self, name: str) -> Any:
        return meta_info(await self.result(name))

    async def results(self) -> list[Result]:
        await self.sync()
        return self._settled().results

    async def trace(self) -> tuple[Step, ...]:
        await self._wait(self._front.last)
        return self._settled().trace

    async def error(self) -> BaseException | None:
        await self._wait(self._front.last)
        return self._settled().error

    async def sync(self) -> None:
        await self._wait(self._front.last)
        self._front.refuse_failed()

    def fork(self, size: int = 1, position_ids_offset: None = None) -> Branches[AsyncState]:
        return Branches(self, [AsyncState(front) for front in self._fork(size, position_ids_offset)])

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[AsyncState]:
        with self.fork(1) as branches:
            yield branches[0]

    def __contains__(self, name: object) -> bool:
        raise TypeError("in an async program write: await s.has(name)")

    def _settled(self) -> State:
        """The synchronous view, whose reads return at once after the wait."""
        return State(self._front)

    async def _wait(self, operation: op.Operation | None) -> None:
        if operation is not None and not operation.finished:
            self._front.kick()
            await until(operation)
