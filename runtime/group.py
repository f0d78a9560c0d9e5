"""What the samples of a generate request have in common: where their events go, and their one answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from palmette.runtime.job import Job
from palmette.runtime.prompt_logprobs import PromptLogprobs
from palmette.runtime.protocol import Event, Failed, Finished, GenerateRequest, Output


class Group:
    """The samples of one generate request, answered together. prompt_logprobs: what one of them reads for all."""

    def __init__(self, request: GenerateRequest, emit: Callable[[Event], None]) -> None:
        self.request = request
        self.emit = emit
        self.outputs: dict[int, Output] = {}
        self.jobs: list[Job] = []
        self.prompt_logprobs: PromptLogprobs | None = None
        self.cancelled = False
        self.ended = False
        # Who looks at all outputs before they are the answer, and `answer`s or has some drawn again; completion tokens
        # of those that were, by index.
        self.review: Callable[[], object] | None = None
        self.spent: dict[int, int] = {}

    def add(self, job: Job) -> None:
        """One more job that works on the request, and ends with it."""
        self.jobs.append(job)
        # Looked at afterwards, so that another thread's `cancel` reaches the job either way.
        job.cancelled = job.cancelled or self.cancelled

    @property
    def samples(self) -> int:
        """How many are drawn."""
        return self.request.params.best_of or self.request.params.n

    def finish(self, output: Output) -> None:
        """Take a sample's output; the last one ends the request."""
        self.outputs[output.index] = output
        if len(self.outputs) == self.samples and not self.ended:
            if self.review is not None and not self.cancelled:
                self.review()
            else:
                self.answer()

    def answer(self) -> None:
        """End the request with the outputs that are there."""
        if not self.ended:
            self.ended = True
            self.emit(Finished(self._answer()))

    def _answer(self) -> tuple[Output, ...]:
        params = self.request.params
        outputs = [self._with_spent(self.outputs[index]) for index in sorted(self.outputs)]
        if params.best_of is not None:
            outputs = best(outputs, params.n)
            if params.logprobs is None:
                outputs = [replace(output, logprobs=None) for output in outputs]
        if self.prompt_logprobs is not None:
            found = self.prompt_logprobs.found()
            outputs = [replace(output, prompt_logprobs=found) for output in outputs]
        return tuple(outputs)

    def _with_spent(self, output: Output) -> Output:
        spent = self.spent.get(output.index, 0)
        return replace(output, usage=replace(output.usage, discarded_tokens=spent)) if spent else output

    def fail(self, error: BaseException) -> None:
        """End all samples with an error."""
        if not self.ended:
            self.ended = True
            self.emit(Failed(error))
            self.cancel()

    def cancel(self) -> None:
        """Ask for the end of all samples; they answer within a step."""
        self.cancelled = True
        for job in self.jobs:
            job.cancelled = True


def best(outputs: Sequence[Output], n: int) -> list[Output]:
    """The n samples with the highest mean log-probability per generated token, best first, numbered anew: what OpenAI's
    completions mean by `best_of` ("the one with the highest log probability per token"). The first one's usage tells
    the tokens of those that are left out."""

    def mean(output: Output) -> float:
        values = [entry.logprob for entry in output.logprobs or ()]
        return math.fsum(values) / len(values) if values else -math.inf

    ranked = sorted(outputs, key=mean, reverse=True)
    kept = [replace(output, index=index) for index, output in enumerate(ranked[:n])]
    discarded = sum(output.usage.completion_tokens + output.usage.discarded_tokens for output in ranked[n:])
    discarded += kept[0].usage.discarded_tokens
    kept[0] = replace(kept[0], usage=replace(kept[0].usage, discarded_tokens=discarded))
    return kept
