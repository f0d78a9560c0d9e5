"""What the scheduler holds of a request while the engine works on it.

A job is a list of tokens, of which the first `computed` have their keys and values in KV slots. Tokens form runs: a run
continues another one (or nothing), so a text is one run and the options of a `select` are a tree of runs behind the
prompt. Everything that has to be computed, prompt chunks, forced tokens, decodes, option trees and what a preemption
lost alike, is "the next n tokens".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from palmette.radix_cache.cache import Lease
from palmette.runtime.protocol import Usage

if TYPE_CHECKING:
    from palmette.runtime.draft import Draft
    from palmette.runtime.sampler import Drawn
    from palmette.torch_later import Array

_ids = count()


class Span(NamedTuple):
    """Tokens start:end of a job, whose context is the slots of tokens `path` (indices, in order of position; they end
    with start:end themselves).

    rows: the indices among start:end whose logits the job wants to `read`. draws: those behind which a token is drawn,
    more than one only where the last tokens are a draft.
    """

    start: int
    end: int
    path: np.ndarray
    rows: Sequence[int] = ()
    draws: Sequence[int] = ()


class Job(ABC):
    """A request in the engine. `tokens` int32; `slots[i]` is the KV slot of token i once it is computed.

    priority: higher first, where the policy looks at it. tenant: on whose account it runs. family: the program run that
    it belongs to, "" for none; leads: whether that goes on from this job's text. number: place in the order of arrival.
    passed_over: how often others that came later were let in before it, of `patience` times that it puts up with.
    lost: the most tokens that were computed before a preemption, so that computing them again can be told from
    progress. goes_on: whether it is the second job of a request, whose prompt was counted with the first. generates:
    whether what it adds to its prompt is an output, whose length says something of others. draft: what is computed in
    this step beyond its own tokens, in the places that follow them in `tokens` and `slots`.
    """

    generates: ClassVar[bool] = True

    def __init__(
        self,
        tokens: Sequence[int],
        limit: int,
        *,
        namespace: str = "",
        priority: int = 0,
        tenant: str = "",
        family: str = "",
    ) -> None:
        self.id = next(_ids)
        self.number = self.id
        self.namespace = namespace
        self.priority = priority
        self.tenant = tenant
        self.family = family
        self.tokens = np.zeros(max(limit, len(tokens)), np.int32)
        self.tokens[: len(tokens)] = tokens
        self.length = len(tokens)
        self.prompt_length = len(tokens)
        self.slots = np.zeros(len(self.tokens), np.int32)
        self.computed = 0
        self.lost = 0
        self.lease: Lease | None = None
        self.cached = 0
        self.preemptions = 0
        self.passed_over = 0
        self.patience: int | None = None
        self.draft: Draft | None = None
        self.goes_on = False
        self.leads = True
        self.cancelled = False
        self.done = False
        self.failed = False
        self.started = 0.0
        self.first_token = 0.0

    @property
    def prompt(self) -> np.ndarray:
        """The tokens that can be shared with others: int32 [prompt_length]."""
        return self.tokens[: self.prompt_length]

    @property
    def remaining(self) -> int:
        """Tokens that are known and not computed yet."""
        return self.length - self.computed

    @property
    def overdue(self) -> bool:
        """Whether it was passed over as often as it puts up with."""
        return self.patience is not None and self.passed_over >= self.patience

    @property
    def prefilling(self) -> bool:
        return self.computed < self.prompt_length

    @property
    @abstractmethod
    def peak(self) -> int:
        """The most KV slots that the job can hold."""

    @property
    @abstractmethod
    def shareable(self) -> np.ndarray:
        """The tokens whose KV may come from the cache. The last token is left out where the logits behind it are
        wanted: these need it to be computed again."""

    @abstractmethod
    def spans(self, n: int) -> list[Span]:
        """The next n tokens, and the draft behind them, cut into runs."""

    def kept(self) -> np.ndarray | None:
        """Indices, ascending, of the computed tokens whose KV is worth keeping once the job leaves; None: all."""
        return None

    def read(self, rows: Sequence[int], logits: Array) -> None:
        """Take the logits, float32 [R, V], behind the tokens that `spans` asked them of."""
        raise NotImplementedError(f"{type(self).__name__} asks for no logits")

    @abstractmethod
    def go_on(self, drawn: Drawn | None) -> None:
        """A step has computed tokens of the job; `drawn` is the next one, where one was drawn. Called for each token
        of a draft that is right as if it had been drawn in a step of its own."""

    @abstractmethod
    def usage(self) -> Usage: ...

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """End with an error."""
