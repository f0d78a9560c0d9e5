"""What a scheduler decides, as data: who computes how many tokens in a step, what happened to whom and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from palmette.runtime.job import Job


class Share(NamedTuple):
    """A job and the number of its next tokens that this step computes."""

    job: Job
    n: int


class Decision(NamedTuple):
    """What the scheduler decided, for traces and for the comparison of a simulation with the engine. kind: "admit" (n:
    cached tokens), "compute" (n: tokens of the step), "preempt" (n: tokens computed so far), "evict" (n: tokens; number
    -1), "finish" (n: all tokens)."""

    kind: str
    number: int
    n: int


@dataclass(slots=True)
class SchedulerCounters:
    """What the scheduler has done since the start; they only grow. recomputed_tokens: computed once more after a
    preemption. restored_tokens: brought back from a tier. dropped_holds: holds that gave way to requests.
    kv_peak: the most KV slots that requests and holds had at once."""

    admissions: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    restored_tokens: int = 0
    dropped_holds: int = 0
    kv_peak: int = 0


def size(shares: Sequence[Share]) -> int:
    """How many tokens the shares have together."""
    return sum([n for _, n in shares])


def spread(jobs: Sequence[Job], budget: int) -> list[Share]:
    """One token each while the budget lasts, then whatever the jobs have more (forced tokens), first come first."""
    served = list(jobs[: max(0, budget)])
    spare = budget - len(served)
    shares = []
    for job in served:
        n = 1
        if spare > 0 and job.remaining > 1:
            n += min(job.remaining - 1, spare)
            spare -= n - 1
        shares.append(Share(job, n))
    return shares
