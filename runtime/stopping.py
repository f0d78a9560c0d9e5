"""Stop patterns: where a text that grows byte by byte first holds a match of a regex.

A pattern becomes an automaton over bytes (`constraints/determinize.py`), entered at every byte of the text. The live
*threads* are the states it is in, each with the earliest place at which a match may have begun that has come there:

    text      x  a  b  a            pattern ab+a
    threads      1  2  .            state 1 was entered at byte 1, and is now in state 2
                       1            a second way in, at byte 3

So there are never more threads than states, however long the text is. A final state is a match, its place the leftmost
beginning, as `re.search` on the text so far finds it. The automaton has no dead states: from the earliest live thread
on the text may still become a match.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import NamedTuple

from palmette.errors import ConstraintError
from palmette.runtime.constraints.automaton import Automaton
from palmette.runtime.constraints.automaton_characters import build
from palmette.runtime.constraints.determinize import TooLarge
from palmette.runtime.constraints.regex_language import Language, read_stop

# A thread for each state is stepped for each byte, so a pattern may have fewer of them than a constraint.
_MAX_STATES = 2000
_SECONDS = 2.0
_FAILURE_BYTES = 4096  # what a kept failure is counted as


class Match(NamedTuple):
    """Bytes at:end of a text match."""

    end: int
    at: int


@dataclass(frozen=True, slots=True)
class StopPattern:
    """A compiled pattern; shared by all texts that it may stop. openings[byte]: the state after a first byte, or -1."""

    pattern: str
    automaton: Automaton
    openings: tuple[int, ...]


class PatternSearch:
    """One pattern's search in one text. Byte offsets are those of the text; `start`: where it begins. opens(at):
    whether a match may begin at byte `at`, asked once that byte is there; None: anywhere."""

    def __init__(self, pattern: StopPattern, start: int = 0, opens: Callable[[int], bool] | None = None) -> None:
        self.pattern = pattern
        self._at = start
        self._opens = opens
        # In the order of the beginnings, which are the values.
        self._threads: dict[int, int] = {}

    @property
    def held(self) -> int | None:
        """The earliest byte that may still be part of a match; None: none of those so far."""
        return next(iter(self._threads.values()), None)

    def feed(self, data: bytes | bytearray, counts: bool = True) -> Match | None:
        """Go on to the end of `data`, the whole text so far; the first match, by its end, then by its beginning.
        counts: whether one that ends here counts. After a match the search is over."""
        while self._at < len(data):
            self._step(data[self._at])
            self._at += 1
            if counts and (begin := self._matched()) is not None:
                return Match(self._at, begin)
        return None

    def _step(self, byte: int) -> None:
        step = self.pattern.automaton.step
        after: dict[int, int] = {}
        for state, begin in self._threads.items():
            to = step(state, byte)
            if to >= 0:
                after.setdefault(to, begin)
        opening = self.pattern.openings[byte]
        if opening >= 0 and opening not in after and (self._opens is None or self._opens(self._at)):
            after[opening] = self._at
        self._threads = after

    def _matched(self) -> int | None:
        """Where the leftmost match that ends here begins."""
        final = self.pattern.automaton.final
        return next((begin for state, begin in self._threads.items() if final(state)), None)


def validate_stop(pattern: str) -> None:
    """All checks but those of size. ConstraintError with a pointer and a hint."""
    _read(pattern)


def _read(pattern: str) -> Language:
    try:
        return read_stop(pattern)
    except ConstraintError as error:
        message = f"stop_regex {pattern!r}: {error.message}"
        raise ConstraintError(message, pointer=error.pointer, hint=error.hint) from error


class StopCompiler:
    """Compiles stop patterns, and keeps them, least recently used out first, within `cache_bytes`. Failures are kept
    too. Thread safe; not for the engine's loop."""

    def __init__(self, *, cache_bytes: int = 16 << 20) -> None:
        self._limit = cache_bytes
        self._lock = Lock()
        self._kept: OrderedDict[str, tuple[StopPattern | ConstraintError, int]] = OrderedDict()
        self.nbytes = 0

    def compile(self, pattern: str) -> StopPattern:
        """ConstraintError, with pointer and hint, for what is no pattern, cannot stop a text, or is too large."""
        with self._lock:
            kept = self._kept.get(pattern)
            if kept is not None:
                self._kept.move_to_end(pattern)
        if kept is None:
            kept = self._compile(pattern)
            with self._lock:
                self._put(pattern, kept)
        found, _ = kept
        if isinstance(found, ConstraintError):
            # Each caller gets its own: an exception carries the traceback of where it was raised.
            raise ConstraintError(found.message, pointer=found.pointer, hint=found.hint) from found
        return found

    def _put(self, pattern: str, kept: tuple[StopPattern | ConstraintError, int]) -> None:
        _, old = self._kept.pop(pattern, (None, 0))
        self._kept[pattern] = kept
        self.nbytes += kept[1] - old
        while self.nbytes > self._limit and len(self._kept) > 1:
            _, (_, nbytes) = self._kept.popitem(last=False)
            self.nbytes -= nbytes

    def _compile(self, pattern: str) -> tuple[StopPattern | ConstraintError, int]:
        try:
            automaton = build(_read(pattern), max_states=_MAX_STATES, deadline=monotonic() + _SECONDS)
        except ConstraintError as error:
            return error, _FAILURE_BYTES
        except TooLarge as error:
            message = f"stop_regex {pattern!r}: it needs more than {error.limit}"
            return ConstraintError(message, pointer="@0", hint="shorten its counted repeats"), _FAILURE_BYTES
        openings = tuple(automaton.step(automaton.start, byte) for byte in range(256))
        return StopPattern(pattern, automaton, openings), automaton.nbytes + 256 * 8
