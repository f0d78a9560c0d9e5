"""What the radix tree can be asked to get back from: memory of another kind that holds KV by tokens."""

from __future__ import annotations

from typing import Protocol

from palmette.radix_cache.arrays import Ints


class Tier(Protocol):
    """KV that is kept elsewhere, and can be brought back into slots."""

    def find(self, tokens: Ints, namespace: str) -> int:
        """Length of the longest prefix that is stored."""
        ...

    def load(self, tokens: Ints, namespace: str, start: int, slots: Ints) -> bool:
        """Bring the KV of tokens[start : start + len(slots)] into the slots; False where it is gone."""
        ...

    def store(self, tokens: Ints, namespace: str, slots: Ints) -> None:
        """Take a copy of the KV of the tokens, of which slots[i] holds that of token i."""
        ...
