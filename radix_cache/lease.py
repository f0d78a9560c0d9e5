"""A lease: the right to read the KV of a prefix. A pin: a lease that nobody reads through."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from palmette.radix_cache.arrays import Ints


class Lease:
    """Holds the KV of the first `length` tokens of somebody's prompt: until `release`, none of it is evicted.

    `slots`, int32[length], read only, is where the tokens' keys and values lie; it means nothing after the release.
    A lease is made by `RadixCache.match`, `pin` and `insert` only. As a context manager it releases itself.
    """

    __slots__ = ("_release", "length", "namespace", "slots")

    def __init__(self, slots: Ints, namespace: str, release: Callable[[Lease], None]) -> None:
        # A view, since the tree may hold the array itself.
        self.slots = slots.view()
        self.slots.flags.writeable = False
        self.length = slots.size
        self.namespace = namespace
        self._release: Callable[[Lease], None] | None = release

    @property
    def active(self) -> bool:
        """Whether it still holds anything; False once released."""
        return self._release is not None

    def release(self) -> None:
        """Let go. The second call and later ones do nothing."""
        release, self._release = self._release, None
        if release is not None:
            release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.length} tokens{'' if self.active else ', released'}>"


class Pin(Lease):
    """A lease that is there to keep a prefix, not to read it: `RadixCache.pinned` counts what lies under pins, which
    no admission may reckon with until they are released."""

    __slots__ = ()

    unpin = Lease.release
