"""A generation as a stream of chunks, for callers that do not use asyncio."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from palmette.runtime.protocol import Delta, Event, Failed, FinishReason, Output, Usage


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed answer. The last one of a sample has `finish_reason`, `usage` and the whole `output`."""

    text: str
    tokens: tuple[int, ...] = ()
    index: int = 0
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    output: Output | None = None


class Stream(Iterator[Chunk]):
    """Iterates over the chunks of a request. Closing it, or dropping it, cancels the request.

    start: sends the request, given where its events go, and returns what cancels it. What is wrong with the request
    itself is raised here, not at the first chunk.
    """

    def __init__(self, start: Callable[[Callable[[Event], None]], Callable[[], None]]) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._chunks: deque[Chunk] = deque()
        self._ended = False
        self._cancel = start(self._events.put)
        if not self._events.empty():
            self._take(self._events.get())

    def __next__(self) -> Chunk:
        while not self._chunks:
            if self._ended:
                raise StopIteration
            self._take(self._events.get())
        return self._chunks.popleft()

    def close(self) -> None:
        """Cancel what is left of the request. Idempotent."""
        if not self._ended:
            self._ended = True
            self._cancel()
        self._chunks.clear()

    def __del__(self) -> None:
        if hasattr(self, "_cancel"):
            self.close()

    def _take(self, event: Event) -> None:
        self._ended = not isinstance(event, Delta)
        if isinstance(event, Failed):
            raise event.error
        self._chunks.extend(chunks(event))


def chunks(event: Event) -> list[Chunk]:
    """The chunks that an event stands for; raises its error."""
    if isinstance(event, Delta):
        return [Chunk(event.text, event.tokens, event.index)]
    if isinstance(event, Failed):
        raise event.error
    return [Chunk("", (), out.index, out.finish_reason, out.usage, out) for out in event.outputs]
