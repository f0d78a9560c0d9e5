"""What rows of a step cost, by those measured lately, and so which drafts are worth computing."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

# Before anything is measured, one more row is taken to cost this share of what a step costs whatever its rows: 0.1 to
# 0.2 on processors (SmolLM2-135M, weights in 4, 8 and 16 bits, 1 to 32 rows).
_RATIO = 0.15
# How much the measured steps have to differ in rows before they say more than that, in squared rows.
_FIRM = 16.0
# What a step weighs when the next one is measured: some fifty of them count.
_FADE = 0.98
# One that took so many times as long as expected was held up by something else.
_HELD_UP = 3.0


class Pace:
    """The time of a step as a line over its rows, by least squares with weights that fade, drawn towards _RATIO.

    Where the line is wanted, steps must have been alike but for their drafts: over all sizes the time is none. Kernels
    take rows by tiles, and where these are full, a row costs more than it does beside few others.
    """

    def __init__(self) -> None:
        self._weight = self._rows = self._time = self._rows2 = self._rows_time = 0.0
        self.fixed, self.per_row = 1.0, _RATIO

    def note(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if self._weight:
            seconds = min(seconds, _HELD_UP * (self.fixed + self.per_row * rows))
        self._weight = _FADE * self._weight + 1.0
        self._rows = _FADE * self._rows + rows
        self._time = _FADE * self._time + seconds
        self._rows2 = _FADE * self._rows2 + rows * rows
        self._rows_time = _FADE * self._rows_time + rows * seconds
        # Normal equations of sum w (t - a - b r)^2 + _FIRM (b - _RATIO a)^2.
        aa = self._weight + _FIRM * _RATIO * _RATIO
        ab = self._rows - _FIRM * _RATIO
        bb = self._rows2 + _FIRM
        scale = aa * bb - ab * ab
        fixed = (bb * self._time - ab * self._rows_time) / scale
        per_row = (aa * self._rows_time - ab * self._time) / scale
        # A line that falls, or that goes through nothing, is noise.
        self.fixed, self.per_row = max(fixed, 1e-9), max(per_row, 0.01 * max(fixed, 1e-9))

    def worth(self, rows: int, chances: Sequence[float], most: Sequence[int], room: int) -> list[int]:
        """How many tokens to draft for each of some jobs, at most `most` of each and `room` in all, beside `rows` that
        are computed anyway: as many as make the tokens that are to be expected per second greatest.

        chances: of each job, that one more of its drafted tokens is right if those before it are.
        """
        counts = [0] * len(chances)
        # The next token of each job by how likely it is to stand.
        line = [(-chance, at) for at, chance in enumerate(chances) if most[at] > 0]
        heapq.heapify(line)
        tokens, time = float(rows), self.fixed + self.per_row * rows
        while line and room > 0:
            chance, at = heapq.heappop(line)
            if -chance * time <= tokens * self.per_row:
                break
            tokens, time, room = tokens - chance, time + self.per_row, room - 1
            counts[at] += 1
            if counts[at] < most[at]:
                heapq.heappush(line, (chance * chances[at], at))
        return counts
