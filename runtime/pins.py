"""Prefixes that users want kept in the KV cache whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from types import TracebackType

from palmette.errors import ArgumentError
from palmette.radix_cache.lease import Lease
from palmette.runtime.core import EngineCore
from palmette.runtime.loop import EngineLoop

# Pins together may take at most one in so many of the KV slots, so that requests always have room.
_SHARE = 2


class PinnedPrefix:
    """A prefix that stays in the KV cache until `release`; as a context manager it releases itself.

    tokens: how many there are. The second release does nothing.
    """

    def __init__(self, tokens: Sequence[int], namespace: str, release: Callable[[PinnedPrefix], None]) -> None:
        self.ids = tuple(tokens)
        self.namespace = namespace
        self._release = release

    @property
    def tokens(self) -> int:
        return len(self.ids)

    def release(self) -> None:
        self._release(self)

    def __enter__(self) -> PinnedPrefix:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<PinnedPrefix of {self.tokens} tokens>"


class Pins:
    """All pinned prefixes of an engine, so that requests are not promised their slots. Used from any thread."""

    def __init__(self, kv_tokens: int) -> None:
        self._kv_tokens = kv_tokens
        self._pinned: set[PinnedPrefix] = set()
        self._lock = Lock()

    def pin(
        self, tokens: Sequence[int], namespace: str, *, loop: EngineLoop, compute: Callable[[], object]
    ) -> PinnedPrefix:
        """Pin a prefix, whose KV `compute` brings into the cache. ArgumentError where pins would take too much."""
        leases: list[Lease] = []

        def keep(core: EngineCore) -> None:
            self._check(core)
            # Here and not by the caller, who may be interrupted: what is released comes after.
            leases.append(core.cache.pin(tokens, namespace))

        def release(prefix: PinnedPrefix) -> None:
            if self._remove(prefix):
                loop.post(lambda core: [lease.release() for lease in leases])

        pinned = PinnedPrefix(tokens, namespace, release)
        self._add(pinned)
        try:
            # First, too: beside a request that may need all slots, the prefix would wait for its end to be computed.
            loop.call(self._check)
            # What was computed may be gone again before it is pinned, but not for ever.
            while not leases or leases[-1].length < len(tokens):
                compute()
                loop.call(keep)
        except BaseException:
            release(pinned)
            raise
        return pinned

    def beside(self, tokens: Sequence[int], namespace: str) -> int:
        """How many slots are pinned that these tokens do not begin with."""
        with self._lock:
            return _slots([p for p in self._pinned if p.namespace != namespace or not _begins(tokens, p.ids)])

    def _check(self, core: EngineCore) -> None:
        """What is in progress was promised its slots."""
        for job in (*core.scheduler.running, *core.scheduler.waiting):
            if job.peak > self._kv_tokens - self.beside(job.tokens[: job.length].tolist(), job.namespace):
                raise ArgumentError(
                    f"pin(): a request in progress may need {job.peak} of {self._kv_tokens} KV slots",
                    hint="pin before such requests, or give the engine more kv_tokens",
                )

    def _add(self, prefix: PinnedPrefix) -> None:
        with self._lock:
            together = _slots([*self._pinned, prefix])
            if together > self._kv_tokens // _SHARE:
                raise ArgumentError(
                    f"pin(): with these {prefix.tokens} tokens {together} would be pinned, more than half of the KV "
                    "cache",
                    hint="release a pin, or give the engine more kv_tokens",
                )
            self._pinned.add(prefix)

    def _remove(self, prefix: PinnedPrefix) -> bool:
        with self._lock:
            there = prefix in self._pinned
            self._pinned.discard(prefix)
            return there


def _slots(pinned: Sequence[PinnedPrefix]) -> int:
    """At most so many slots lie under the pins; one that begins another takes none of its own."""
    distinct = {(prefix.namespace, prefix.ids) for prefix in pinned}
    return sum(
        len(ids)
        for namespace, ids in distinct
        if not any(other != ids and room == namespace and _begins(other, ids) for room, other in distinct)
    )


def _begins(tokens: Sequence[int], prefix: Sequence[int]) -> bool:
    return tuple(tokens[: len(prefix)]) == tuple(prefix)
