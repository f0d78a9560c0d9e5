"""Text of a generated token stream, as bytes: incremental, never a broken character, never past a stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from palmette.runtime.stopping import PatternSearch, StopPattern


class StopHit(NamedTuple):
    """A stop string, or a match of a stop pattern, was completed: which, and the byte offset where it begins."""

    stop: str
    at: int


class TextStream:
    """Bytes of the tokens so far, searched for stop strings and patterns as they come.

    They are compared as bytes, so that it does not matter where tokens end: the stop that is complete first ends the
    text; of those that are complete at the same byte, the one that begins first. `take()` gives the text that can be
    shown: it holds back bytes that may still become part of a stop and the bytes of an unfinished character. `shown`:
    how many bytes it gave. `prefix`: text that stands in front and is not searched; it is shown with the rest, but for
    its first `hidden` bytes. opens(at): whether a stop may begin at byte `at`, of which the text has more; None:
    anywhere.
    """

    def __init__(
        self,
        stops: Sequence[str] = (),
        patterns: Sequence[StopPattern] = (),
        *,
        prefix: bytes = b"",
        hidden: int = 0,
        opens: Callable[[int], bool] | None = None,
    ) -> None:
        self.data = bytearray(prefix)
        self.start = len(prefix)
        self._stops = [(stop, stop.encode()) for stop in stops]
        self._searches = [PatternSearch(pattern, self.start, opens) for pattern in patterns]
        self._opens = opens
        self._hidden = self.shown = hidden

    def feed(self, piece: bytes, counts: bool = True) -> StopHit | None:
        """Append a token's bytes; the stop that ends the text, if one does. counts: whether one that this token
        completes counts."""
        size = len(self.data)
        self.data += piece
        found: list[tuple[int, int, str]] = []
        for search in self._searches:
            match = search.feed(self.data, counts)
            if match is not None:
                found.append((*match, search.pattern.pattern))
        if counts:
            found += [hit for stop, raw in self._stops if (hit := self._completed(stop, raw, size)) is not None]
        if not found:
            return None
        _, at, stop = min(found, key=lambda hit: hit[:2])
        return StopHit(stop, at)

    def _completed(self, stop: str, raw: bytes, size: int) -> tuple[int, int, str] | None:
        """The first of the string's places where it may begin and that ends beyond byte `size`: its end, its
        beginning."""
        at = self.data.find(raw, max(self.start, size - len(raw) + 1))
        while at >= 0 and self._opens is not None and not self._opens(at):
            at = self.data.find(raw, at + 1)
        return (at + len(raw), at, stop) if at >= 0 else None

    def cut(self, at: int) -> None:
        """Drop everything from byte `at` on."""
        del self.data[at:]

    def text(self) -> str:
        """All of it but what is hidden; what is no UTF-8 shows as U+FFFD."""
        return self.data[self._hidden :].decode("utf-8", errors="replace")

    def take(self, final: bool = False) -> str:
        """The text since the last call that is safe to show; `final`: the rest."""
        end = len(self.data) if final else self._safe_end()
        if end <= self.shown:
            return ""
        text = bytes(self.data[self.shown : end]).decode("utf-8", errors="replace")
        self.shown = end
        return text

    def _safe_end(self) -> int:
        end = min(
            [len(self.data) - self._held_by_strings(), *(at for s in self._searches if (at := s.held) is not None)]
        )
        # An unfinished character is at most three bytes: find its first byte and see whether it is complete.
        for back in range(1, min(3, end - self.shown) + 1):
            byte = self.data[end - back]
            if byte >= 0xC0:
                need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                return end - back if need > back else end
            if byte < 0x80:
                break
        return end

    def _held_by_strings(self) -> int:
        """Length of the longest end of the data that begins a stop string."""
        held = 0
        for _, raw in self._stops:
            for size in range(min(len(raw) - 1, len(self.data) - self.start), held, -1):
                if self.data.endswith(raw[:size]):
                    held = size
                    break
        return held
