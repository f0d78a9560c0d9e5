"""A backend in front of another that keeps what every request asked for and got."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import NamedTuple

import numpy as np

from palmette.runtime.protocol import (
    Backend,
    Capabilities,
    Codec,
    Event,
    Finished,
    GenerateRequest,
    ScoreRequest,
    ScoreResult,
    Usage,
)
from palmette.runtime.simulator.optimal import Text
from palmette.runtime.simulator.trace import Arrival


class Record(NamedTuple):
    """One sample of a request. began: seconds since the recorder was made. output: tokens behind the prompt; of a
    select, those of the option that was chosen."""

    began: float
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    usage: Usage
    namespace: str = ""
    tenant: str = ""
    priority: int = 0
    family: str = ""


class Recorder:
    """Implements `protocol.Backend` by another one. `records`: of the requests that have ended well, in that order."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._began = time.perf_counter()
        self.records: list[Record] = []

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    @property
    def codec(self) -> Codec:
        return self._backend.codec

    def leave(self, family: str) -> None:
        self._backend.leave(family)

    async def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        began = time.perf_counter() - self._began
        async with aclosing(self._backend.submit(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    for output in event.outputs:
                        self._keep(began, request, output.healed, output.tokens, output.usage)
                yield event

    async def score_async(self, request: ScoreRequest) -> ScoreResult:
        began = time.perf_counter() - self._began
        result = await self._backend.score_async(request)
        self._keep(began, request, result.healed, result.tokens[result.index], result.usage)
        return result

    def _keep(
        self,
        began: float,
        request: GenerateRequest | ScoreRequest,
        healed: int,
        output: tuple[int, ...],
        usage: Usage,
    ) -> None:
        # What was healed is spelled anew by the output: the prompt ends before it.
        prompt = request.tokens[: len(request.tokens) - healed]
        self.records.append(
            Record(
                began,
                prompt,
                output,
                usage,
                namespace=request.namespace,
                tenant=request.tenant,
                priority=request.priority,
                family=request.family,
            )
        )


def digest(records: Iterable[Record]) -> str:
    """Equal for two runs where the same requests got the same answers, in whatever order."""
    each = sorted(
        hashlib.blake2b(repr((record.namespace, record.prompt, record.output)).encode(), digest_size=16).digest()
        for record in records
    )
    return hashlib.sha256(b"".join(each)).hexdigest()


def texts(records: Iterable[Record]) -> list[Text]:
    """What the best hit rate is counted from."""
    return [
        Text(np.array([*record.prompt, *record.output], np.int32), len(record.prompt), record.namespace)
        for record in records
    ]


def arrivals(records: Iterable[Record]) -> list[Arrival]:
    """A trace for the simulator, in order of time. Programs ask again when they have their answers, so the times are
    those of this engine on this machine."""
    return [
        Arrival(
            round(record.began, 6),
            np.array(record.prompt, np.int32),
            len(record.output),
            tenant=record.tenant,
            priority=record.priority,
            namespace=record.namespace,
            family=record.family,
            reply=np.array(record.output, np.int32),
        )
        for record in sorted(records, key=lambda record: record.began)
    ]
