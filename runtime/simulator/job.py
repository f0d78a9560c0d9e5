"""A request of a trace in the scheduler: it needs what a GenerateJob needs, and draws what the trace says."""

from __future__ import annotations

import numpy as np

from palmette.runtime.job import Job, Span
from palmette.runtime.protocol import Usage
from palmette.runtime.sampler import Drawn
from palmette.runtime.simulator.trace import Arrival


class SimulatedJob(Job):
    """index: the arrival's place in the trace. number: the job's place in the order of arrival at its engine. asked:
    the most tokens that it may make, as the engine capped it. draws: how many it draws in all, the end token included;
    drawn: of these, so far. Times in seconds of the simulation."""

    # As GenerateJob's, but a number and no property: the scheduler asks for it at every admission of any job.
    peak = 0

    def __init__(self, arrival: Arrival, index: int, number: int, asked: int, now: float) -> None:
        super().__init__(
            arrival.prompt.data,
            len(arrival.prompt) + asked,
            namespace=arrival.namespace,
            priority=arrival.priority,
            tenant=arrival.tenant,
            family=arrival.family,
        )
        self.index = index
        self.number = number
        self.asked = asked
        # The last token is only ever drawn, so it needs no slot.
        self.peak = self.prompt_length + max(asked - 1, 0)
        self.output = min(arrival.output, asked)
        self.started = now
        self.problem = ""
        if arrival.reply is not None:
            self.tokens[self.length : self.length + self.output] = arrival.reply[: self.output]
        elif self.output:
            # An id that no prompt has: whatever stands behind it is this job's alone.
            self.tokens[self.length] = -1 - number
        # An output that is shorter than what was asked for ends by a drawn end token.
        self.draws = self.output + (self.output < asked)
        self.drawn = 0

    @property
    def decoding(self) -> bool:
        """Whether a step can compute nothing of it but the token that was drawn last."""
        return self.drawn > 0 and self.computed == self.length - 1

    @property
    def shareable(self) -> np.ndarray:
        return self.tokens[: self.length - 1 if self.asked else self.length]

    def spans(self, n: int) -> list[Span]:
        """Nothing to compute: the cost model counts the tokens of the plan."""
        return []

    def go_on(self, drawn: Drawn | None) -> None:
        """See Job.go_on. The next token is the trace's, whatever was drawn."""
        if self.remaining == 0:
            self._draw(1)

    def decode(self, n: int) -> None:
        """Compute the token that was drawn last and draw the next one, n times."""
        self.computed += n
        # As `_draw`, without a call: most of a simulation is this.
        self.drawn += n
        if self.drawn < self.draws:
            self.length += n
        else:
            self._end()

    def _draw(self, n: int) -> None:
        self.drawn += n
        if self.drawn < self.draws:
            self.length += n
        else:
            self._end()

    def _end(self) -> None:
        self.length = self.prompt_length + self.output
        self.done = True

    def usage(self) -> Usage:
        return Usage(self.prompt_length, self.cached, self.drawn, preemptions=self.preemptions)

    def fail(self, error: BaseException) -> None:
        self.done = self.failed = True
        self.problem = str(error)
