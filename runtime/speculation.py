"""Who drafts how much in a step: speculation without a draft model.

What a request goes on with is guessed by lookup.py, and computed where that is likely to gain something (pace.py). How
often guesses of a request come true is known without computing them: a guess is kept until the token is drawn, and
compared. Where there is no guess, or most are wrong, the request is left alone for a while, twice as long each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from palmette.radix_cache.cache import RadixCache
from palmette.runtime.draft import draft_of
from palmette.runtime.lookup import Families, Family, guess
from palmette.runtime.pace import Pace
from palmette.runtime.policies import Policy
from palmette.runtime.request import GenerateJob
from palmette.runtime.shares import Share, size

Setting = int | Literal["auto", "off"]

# Tokens that are drafted at most for a request in a step, and rows of a step beyond which nobody looks for any: there
# each row costs nearly what it brings.
_LONGEST = 16
_FEW_ROWS = 16
# For how many tokens a request is left alone at most after wrong guesses.
_LONGEST_PAUSE = 8
# With such a chance it is not.
_GOOD = 0.5
# A guess that so many tokens before it agree with is another thing than one with fewer: a text that is being copied.
_DEEP = 5
# What a guess weighs when the next one of the request is told right or wrong.
_FADE = 0.9
# No guess is certain.
_SURE = 0.98
# A running request tells its siblings of its text by pieces of so many tokens, each with some that came before.
_PIECE = 32
_OVERLAP = 8


@dataclass(slots=True)
class Record:
    """How a request has been guessed, by guesses that agree with little (0) and with much (1) of what came before.
    right, tried: tokens, the older ones faded; to begin with, one of two. deep: of which kind the last guess was, and
    guessed: what it said of token `at`, where that was not computed. pause: steps for which the request is left alone
    after that; rest: those of them that are to come. told: how many of its tokens its family knows."""

    family: Family
    told: int
    right: list[float] = field(default_factory=lambda: [1.0, 1.0])
    tried: list[float] = field(default_factory=lambda: [2.0, 2.0])
    deep: bool = False
    at: int = -1
    guessed: int = -1
    pause: int = 0
    rest: int = 0

    @property
    def chance(self) -> float:
        """That a token of the last guess is right if those before it are."""
        return min(_SURE, self.right[self.deep] / self.tried[self.deep])

    def learn(self, right: int, wrong: int) -> None:
        """So many tokens of the last guess were right, and so many (0 or 1) wrong."""
        for hit in [1.0] * right + [0.0] * wrong:
            self.right[self.deep] = _FADE * self.right[self.deep] + hit
            self.tried[self.deep] = _FADE * self.tried[self.deep] + 1.0
        if right:
            self.pause = 0
        elif wrong and self.chance < _GOOD:
            self.wait()

    def wait(self) -> None:
        """Leave it alone, for twice as long as the last time."""
        self.pause = min(2 * self.pause or 1, _LONGEST_PAUSE)
        self.rest = self.pause


class Settled(NamedTuple):
    """Tokens that were drafted, and how many of them were right."""

    drafted: int
    right: int


@dataclass(slots=True)
class Speculation:
    """Drafts for the jobs of a step. setting: "auto", or how many tokens are drafted at most for each request wherever
    there is a guess, whatever it costs. cache: where drafts get their slots; policy: told of what they brought.

    Slots: a draft takes those that the step has left over, at most as many as its job may still come to need. Where
    none are free, what is evicted is what the job's next tokens would have evicted; what a wrong draft leaves is free
    for the step that follows. So nobody is let in later or preempted for a draft.
    """

    setting: Setting
    cache: RadixCache
    policy: Policy
    # By the bit length of the rows that a step has without drafts.
    _paces: list[Pace] = field(default_factory=lambda: [Pace() for _ in range(_FEW_ROWS.bit_length() + 1)])
    _families: Families = field(default_factory=Families)
    _planned: int = 0

    def draft(self, plan: Sequence[Share], max_step_tokens: int) -> None:
        """Give jobs of a planned step their drafts, and these their slots; what is planned has its own already."""
        if self.setting == "off":
            return
        self._planned = rows = size(plan)
        room = min(max_step_tokens - rows, self.cache.pool.free + self.cache.evictable)
        if room <= 0 or (self.setting == "auto" and rows > _FEW_ROWS):
            return
        jobs, guesses = self._guess(plan)
        counts = self._counts(jobs, guesses, rows, room)
        for job, guessed, count in zip(jobs, guesses, counts, strict=True):
            draft = draft_of(job, guessed[:count]) if count else None
            if draft is None:
                record = self._record(job)
                record.at, record.guessed = job.length, guessed[0]
                continue
            end = draft.start + len(draft.tokens)
            job.slots[draft.start : end] = self.cache.reserve(len(draft.tokens))
            job.tokens[draft.start : end] = draft.tokens
            job.draft = draft

    def settle(self, job: GenerateJob) -> Settled:
        """A job has taken its draws, or failed: what was right of its draft is computed, the rest of its slots go
        back."""
        draft, job.draft = job.draft, None
        if draft is None:
            return Settled(0, 0)
        right, count = draft.right(job), len(draft.tokens)
        if job.computed < draft.start:
            kept = 0  # the step failed
        elif job.done:
            # What the last draw needed, which is what would have been computed without a draft.
            end = job.length + job.dropped_end - draft.start
            kept = max((at for at in draft.draws if at <= right and at < end), default=0)
        else:
            # The last token is left to be computed, as behind any draw.
            kept = min(right, job.length - 1 - draft.start)
        job.computed += kept
        self.cache.pool.release(job.slots[draft.start + kept : draft.start + count])
        self.policy.served(job, 0, kept)
        job.drafted += count
        job.accepted += kept
        if job.record is not None:
            job.record.learn(right, int(right < count and not job.done))
        return Settled(count, kept)

    def note(self, rows: int, seconds: float) -> None:
        """The step that was drafted for had so many rows in all, and took so long."""
        if self.setting == "auto" and self._planned <= _FEW_ROWS:
            self._paces[self._planned.bit_length()].note(rows, seconds)

    def keep(self, job: GenerateJob) -> None:
        """A job ended: its siblings may come to say what it said."""
        if self.setting != "off" and not job.failed and job.generated > 0:
            self._tell(job, self._record(job))

    def _guess(self, plan: Sequence[Share]) -> tuple[list[GenerateJob], list[list[int]]]:
        """The jobs for which there is a guess, and the guesses."""
        auto = self.setting == "auto"
        longest = _LONGEST if self.setting == "auto" else int(self.setting)
        jobs, guesses = [], []
        for job, n in plan:
            # Only behind the first token: with a prompt's last chunk there is nothing yet that has been told right.
            if n < job.remaining or job.prefilling or not isinstance(job, GenerateJob):
                continue
            record = self._record(job)
            if job.length > record.at >= 0:
                right = int(job.tokens[record.at]) == record.guessed
                record.at = -1
                record.learn(int(right), int(not right))
            if auto and record.rest > 0:
                record.rest -= 1
                continue
            most = min(longest, job.peak - job.length)
            if most <= 0:
                continue
            if job.length - record.told >= _PIECE:
                self._tell(job, record)
            found = guess(job.tokens[: job.length], record.family, most)
            if found is not None:
                record.deep = found.depth >= _DEEP
                jobs.append(job)
                guesses.append(found.tokens)
            elif auto:
                record.wait()
        return jobs, guesses

    def _counts(self, jobs: Sequence[GenerateJob], guesses: Sequence[Sequence[int]], rows: int, room: int) -> list[int]:
        most = [len(found) for found in guesses]
        if self.setting == "auto":
            return self._paces[rows.bit_length()].worth(rows, [self._record(job).chance for job in jobs], most, room)
        counts = []
        for count in most:
            counts.append(min(count, room))
            room -= counts[-1]
        return counts

    def _record(self, job: GenerateJob) -> Record:
        if job.record is None:
            job.record = Record(self._families.of(job.prompt, job.namespace), told=job.prompt_length)
        return job.record

    def _tell(self, job: GenerateJob, record: Record) -> None:
        record.family.add(job.tokens[max(0, record.told - _OVERLAP) : job.length])
        record.told = job.length
