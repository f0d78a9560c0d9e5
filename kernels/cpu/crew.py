"""How many threads a step is worth: all of a team, or one.

Threads of a step wait for each other some hundred times. Where other programs want the cores too, one of them is always
just not running: as measured with SmolLM2 on two busy cores, one stream made 4 to 33 tokens a second with two threads,
and 55 to 80 with one. Which is better changes while a program runs, so it is tried again and again, ever more seldom
where nothing changes. Results have the same bits with any number of threads.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

# Steps in a row whose median counts; steps until the first trial of the other way, until that of the one that was just
# given up, whose reason may soon be gone, and at most, since each trial that fails doubles them.
_STEPS: Final = 4
_FIRST: Final = 8
_AGAIN: Final = 16
_MOST: Final = 1024
# Seconds of such steps after which the other way is tried in any case: 1,024 long steps would be many minutes, and what
# else runs on a machine comes and goes.
_LONGEST: Final = 60.0
# A trial is over at once where a step took so many times as long as they did.
_HOPELESS: Final = 1.5


class _Way:
    """What is known of steps of one size. alone: whether one thread does them now. trial: the times of a trial of the
    other way that goes on."""

    def __init__(self) -> None:
        self.alone = False
        self.times: deque[float] = deque(maxlen=_STEPS)
        self.trial: list[float] | None = None
        self.left = _FIRST
        self.seconds = 0.0  # since the last trial
        self.interval = _AGAIN

    def note(self, seconds: float) -> None:
        if self.trial is None:
            self.times.append(seconds)
            self.left, self.seconds = self.left - 1, self.seconds + seconds
            if self.left <= 0 or self.seconds >= _LONGEST:
                self.trial = []
            return
        self.trial.append(seconds)
        usual = statistics.median(self.times)
        if seconds > _HOPELESS * usual or len(self.trial) == _STEPS:
            if statistics.median(self.trial) < usual:
                self.alone, self.interval = not self.alone, _AGAIN
                self.times = deque(self.trial, maxlen=_STEPS)
            else:
                self.interval = min(2 * self.interval, _MOST)
            self.trial, self.left, self.seconds = None, self.interval, 0.0


class Crew:
    """Decides for steps of some rows; those of about one size, up to twice as many rows, are looked at together."""

    def __init__(self) -> None:
        self._ways: dict[int, _Way] = {}

    def alone(self, rows: int) -> bool:
        """Whether one thread is to do a step of so many rows."""
        way = self._ways.setdefault(rows.bit_length(), _Way())
        return way.alone is (way.trial is None)

    def note(self, rows: int, seconds: float) -> None:
        """How long the step took, for which `alone` was asked last."""
        self._ways[rows.bit_length()].note(seconds)
