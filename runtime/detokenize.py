"""Text of a generated token stream, as bytes: incremental, never a broken character, never past a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopHit(NamedTuple):
    """A stop string was completed: which, and the byte offset where it begins."""

    stop: str
    at: int


class TextStream:
    """Bytes of the tokens so far, searched for stop strings as they come.

    Stop strings are compared as bytes, so that it does not matter where tokens end. `take()` gives the text that can
    be shown: it holds back bytes that may still become a stop string and the bytes of an unfinished character.
    `shown`: how many bytes it gave.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.data = bytearray()
        self._stops = [(stop, stop.encode()) for stop in stops]
        self._longest = max((len(raw) for _, raw in self._stops), default=0)
        self.shown = 0

    def feed(self, piece: bytes) -> list[StopHit]:
        """Append a token's bytes; the stop strings that it completes, the earliest first."""
        start = max(0, len(self.data) - self._longest + 1)
        self.data += piece
        if not self._stops:
            return []
        hits = []
        for stop, raw in self._stops:
            at = self.data.find(raw, start)
            while at >= 0:
                hits.append(StopHit(stop, at))
                at = self.data.find(raw, at + 1)
        hits.sort(key=lambda hit: hit.at)
        return hits

    def cut(self, at: int) -> None:
        """Drop everything from byte `at` on."""
        del self.data[at:]

    def text(self) -> str:
        """All of it; what is no UTF-8 shows as U+FFFD."""
        return self.data.decode("utf-8", errors="replace")

    def take(self, final: bool = False) -> str:
        """The text since the last call that is safe to show; `final`: the rest."""
        end = len(self.data) if final else self._safe_end()
        if end <= self.shown:
            return ""
        text = bytes(self.data[self.shown : end]).decode("utf-8", errors="replace")
        self.shown = end
        return text

    def _safe_end(self) -> int:
        end = len(self.data) - self._held_by_stops()
        # An unfinished character is at most three bytes: find its first byte and see whether it is complete.
        for back in range(1, min(3, end - self.shown) + 1):
            byte = self.data[end - back]
            if byte >= 0xC0:
                need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                return end - back if need > back else end
            if byte < 0x80:
                break
        return end

    def _held_by_stops(self) -> int:
        """Length of the longest end of the data that begins a stop string."""
        held = 0
        for _, raw in self._stops:
            for size in range(min(len(raw) - 1, len(self.data)), held, -1):
                if self.data.endswith(raw[:size]):
                    held = size
                    break
        return held
