"""Drafts: tokens that a job may go on with, computed in the hope that they are what will be drawn.

A step computes the token that was drawn last and the draft behind it, and draws a token at each place of them with that
place's own mask, penalties and random number. A draft's token stands as long as it is what was drawn; the first other
draw takes its place, and what follows it is as if it had never been computed. So drafts change how many steps a text
takes, and nothing else (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", with a
drafter that is certain of its tokens and the same random number for both sides).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from palmette.runtime.constraints.forcing import forced_run

if TYPE_CHECKING:
    from palmette.runtime.job import Job
    from palmette.runtime.request import GenerateJob
    from palmette.runtime.sampler import Row


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens behind the first `start` of a job. draws: after how many of them a token is drawn, in ascending order, 0
    first; where a number is missing, a constraint forces the token that comes there.

        job's tokens  | ... t |  d0   d1   f2   d3  |        t was drawn in the step before, f2 is forced behind d1
        draws                 0    1         3    4          the row behind d1 is computed, but nothing drawn from it
    """

    start: int
    tokens: Sequence[int]
    draws: Sequence[int]

    def right(self, job: Job) -> int:
        """How many of them, from the first, are the job's tokens by now."""
        own = job.tokens[self.start : min(job.length, self.start + len(self.tokens))].tolist()
        for at, (token, draft) in enumerate(zip(own, self.tokens, strict=False)):
            if token != draft:
                return at
        return len(own)

    def goes_on(self, job: Job, draw: int) -> bool:
        """Whether the draw of that number, from 1, is that of the job's next token."""
        at = self.draws[draw]
        return not job.done and job.length == self.start + at and self.right(job) == at


def draft_of(job: GenerateJob, guess: Sequence[int]) -> Draft | None:
    """As much of a guess as may come next, with what the constraint forces in between; no longer than the guess. None
    where nothing of it may come."""
    matcher = job.matcher.fork() if job.matcher is not None else None
    tokens: list[int] = []
    draws = [0]
    for at, token in enumerate(guess):
        if at < len(tokens):
            # Forced here. What was guessed behind another token than this one says nothing.
            if tokens[at] != token:
                break
            continue
        if token in job.ends or (matcher is not None and not matcher.advance(token)):
            break
        tokens.append(token)
        if matcher is not None:
            run = forced_run(matcher, [*job.recent(), *tokens], job.ends)
            tokens += islice(run, len(guess) - len(tokens))
            if len(tokens) == len(guess) and next(run, None) is not None:
                break  # cut off inside of what is forced
        draws.append(len(tokens))
    return Draft(job.length, tokens, draws) if tokens else None


def rows_of(job: GenerateJob, words: int) -> list[Row]:
    """What the sampler needs for each token that a step draws for a job; `words` as for GenerateJob.row."""
    rows = [job.row(words)]
    if job.draft is None:
        return rows
    matcher = job.matcher.fork() if job.matcher is not None else None
    tally = job.tally
    places = set(job.draft.draws)
    for at, token in enumerate(job.draft.tokens, start=1):
        if matcher is not None and not matcher.advance(token):
            raise RuntimeError(f"the constraint refused the draft's token {token}, which it had allowed")
        if tally is not None:
            tally = tally.copy()
            tally.add(token)
        if at in places:
            rows.append(job.row(words, at, matcher, tally))
    return rows
