"""Prefixes that users want kept in the KV cache whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from types import TracebackType

from palmette.errors import ArgumentError

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
        self._limit = kv_tokens // _SHARE
        self._pinned: set[PinnedPrefix] = set()
        self._lock = Lock()

    def add(self, prefix: PinnedPrefix) -> None:
        """ArgumentError where the pins together would take too much."""
        with self._lock:
            taken = sum(other.tokens for other in self._pinned)
            if taken + prefix.tokens > self._limit:
                raise ArgumentError(
                    f"pin(): {prefix.tokens} tokens and the {taken} that are pinned already are more than half of the "
                    "KV cache",
                    hint="release a pin, or give the engine more kv_tokens",
                )
            self._pinned.add(prefix)

    @property
    def total(self) -> int:
        """Tokens of all pinned prefixes, shared ones counted with each."""
        with self._lock:
            return sum(prefix.tokens for prefix in self._pinned)

    def remove(self, prefix: PinnedPrefix) -> bool:
        """Whether it was there."""
        with self._lock:
            there = prefix in self._pinned
            self._pinned.discard(prefix)
            return there

    def beside(self, tokens: Sequence[int], namespace: str) -> int:
        """How many slots are pinned by prefixes that do not begin these tokens (shared ones counted with each pin)."""
        with self._lock:
            return sum(
                prefix.tokens
                for prefix in self._pinned
                if prefix.namespace != namespace or tuple(tokens[: prefix.tokens]) != prefix.ids
            )
