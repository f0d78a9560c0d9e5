"""What the engine holds of a request while it works on it.

A request is a list of tokens, of which the first `computed` have their keys and values in KV slots. Tokens form runs:
a run continues another one (or nothing), so a text is one run and the options of a `select` are a tree of runs behind
the prompt. Everything that has to be computed, prompt chunks, forced tokens, decodes and option trees alike, is "the
next n tokens".
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from palmette.errors import ArgumentError, ConstraintError, PalmetteError
from palmette.radix_cache.cache import Lease
from palmette.runtime.constraints.matcher import Matcher
from palmette.runtime.detokenize import StopHit, TextStream
from palmette.runtime.protocol import (
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Output,
    TokenLogprob,
    Usage,
)
from palmette.runtime.sampler import Drawn, Row, sample_seed

_ids = count()

# How many of the last tokens a constraint sees when it spells forced text as their continuation.
_CONTEXT = 16
_log = logging.getLogger("palmette")


class Span(NamedTuple):
    """Tokens start:end of a request, whose context is the slots of tokens `path` (indices, in order of position;
    they end with start:end themselves). `rows`: the indices among start:end whose logits are wanted."""

    start: int
    end: int
    path: np.ndarray
    rows: Sequence[int]


class Job(ABC):
    """A request in the engine. `tokens` int32; `slots[i]` is the KV slot of token i once it is computed."""

    def __init__(self, tokens: Sequence[int], namespace: str, limit: int) -> None:
        self.id = next(_ids)
        self.namespace = namespace
        self.tokens = np.zeros(max(limit, len(tokens)), np.int32)
        self.tokens[: len(tokens)] = tokens
        self.length = len(tokens)
        self.prompt_length = len(tokens)
        self.slots = np.zeros(len(self.tokens), np.int32)
        self.computed = 0
        self.lease: Lease | None = None
        self.cached = 0
        self.passed_over = 0
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
    def prefilling(self) -> bool:
        return self.computed < self.prompt_length

    @property
    def owed(self) -> int:
        """KV slots that the job may still ask for."""
        return self.peak - self.computed

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
        """The next n tokens, cut into runs."""

    @abstractmethod
    def usage(self) -> Usage: ...

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """End with an error."""


class Group:
    """The n samples of one generate request, answered together."""

    def __init__(self, request: GenerateRequest, emit: Callable[[Event], None]) -> None:
        self.request = request
        self.emit = emit
        self.outputs: dict[int, Output] = {}
        self.jobs: list[GenerateJob] = []
        self.ended = False

    def finish(self, output: Output) -> None:
        self.outputs[output.index] = output
        if len(self.outputs) == self.request.params.n and not self.ended:
            self.ended = True
            self.emit(Finished(tuple(self.outputs[index] for index in sorted(self.outputs))))

    def fail(self, error: BaseException) -> None:
        """End all samples with an error."""
        if not self.ended:
            self.ended = True
            self.emit(Failed(error))
            self.cancel()

    def cancel(self) -> None:
        """Ask for the end of all samples; they answer within a step."""
        for job in self.jobs:
            job.cancelled = True


@dataclass(frozen=True, slots=True)
class TextTools:
    """What a generating job needs of the tokenizer. bytes_of[t]: what token t adds to the text, None for a control
    token; end_ids: the model's end-of-sequence tokens; encode: canonical tokens of a text, as a continuation."""

    bytes_of: Sequence[bytes | None]
    end_ids: frozenset[int]
    encode: Callable[[str], list[int]]


class GenerateJob(Job):
    """One sample of a generate request."""

    def __init__(
        self, group: Group, index: int, prompt: Sequence[int], new_tokens: int, seed: int, tools: TextTools
    ) -> None:
        request = group.request
        super().__init__(prompt, request.namespace, len(prompt) + new_tokens)
        self.group = group
        group.jobs.append(self)
        self.index = index
        self.params = request.params
        self.new_tokens = new_tokens
        self.seed = sample_seed(seed, index)
        self.tools = tools
        self.matcher: Matcher | None = None
        self.complete: Callable[[bytes], bool] = lambda text: True
        self.text = TextStream(request.params.stop)
        # A structure always ends by itself, so `ignore_eos` has no say in one.
        ignored = request.params.ignore_eos and request.constraint is None
        self.ends = frozenset(request.params.stop_token_ids) | (frozenset() if ignored else tools.end_ids)
        self.finish_reason: FinishReason = "error"
        self.matched: str | int | None = None
        self.forced = 0
        self.dropped_end = 0
        self.text_ends: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.sent = 0
        penalised = (
            self.params.frequency_penalty or self.params.presence_penalty or self.params.repetition_penalty != 1.0
        )
        self.counts: Counter[int] | None = Counter() if penalised else None

    @property
    def generated(self) -> int:
        return self.length - self.prompt_length + self.dropped_end

    @property
    def peak(self) -> int:
        # The last token is only ever drawn, so it needs no slot.
        return max(self.prompt_length + self.new_tokens - 1, self.prompt_length)

    @property
    def shareable(self) -> np.ndarray:
        return self.tokens[: self.length - 1 if self.new_tokens else self.length]

    def spans(self, n: int) -> list[Span]:
        start, end = self.computed, self.computed + n
        rows = [end - 1] if end == self.length and self.new_tokens else []
        return [] if n == 0 else [Span(start, end, np.arange(end), rows)]

    def row(self, words: int) -> Row:
        """What the sampler needs for the next token; `words` int32 words hold a mask over the logits' width."""
        banned: set[int] = set()
        mask = None
        if self.matcher is not None:
            mask = np.zeros(words, np.int32)
            self.matcher.fill(mask)
            self._mask_ends(mask)
        elif self.generated < self.params.min_tokens:
            banned = set(self.ends)
        return Row(self.params, self.seed, self.length, mask, banned, self.counts, self._prompt_ids())

    def _mask_ends(self, mask: np.ndarray) -> None:
        """Ids that would end the request are legal exactly where the structure may end; below `min_tokens`, only where
        it also must."""
        assert self.matcher is not None
        view = mask.view(np.uint32)
        bits = np.zeros_like(view)
        for token in self.ends:
            bits[token >> 5] |= np.uint32(1 << (token & 31))
        view &= ~bits
        if self.matcher.allows_end() and (self.generated >= self.params.min_tokens or not view.any()):
            view |= bits

    def _prompt_ids(self) -> np.ndarray | None:
        return np.unique(self.prompt) if self.params.repetition_penalty != 1.0 else None

    def begin(self) -> None:
        """Set out: tokens that the constraint forces at once, a text that is complete before it begins."""
        if self.new_tokens == 0:
            return
        self._force()
        self._finish_if_full()

    def commit(self, drawn: Drawn) -> None:
        """Take the drawn token, then what the constraint forces behind it."""
        if drawn.token < 0:
            self.fail(self._nothing_allowed())
            return
        if drawn.logprob is not None:
            self.logprobs.append(drawn.logprob)
        if drawn.token in self.ends and (self.matcher is None or self.matcher.allows_end()):
            self.dropped_end = 1
            if self.matcher is None:
                self.finish("stop", drawn.token)
            else:
                self.finish("constraint")
            return
        if self.matcher is not None and not self.matcher.advance(drawn.token):
            self.fail(RuntimeError(f"the constraint refused token {drawn.token}, which its own mask allowed"))
            return
        self._append(drawn.token)
        self._force()
        self._finish_if_full()

    def _nothing_allowed(self) -> PalmetteError:
        after = self.text.text()
        if self.matcher is None:
            return ArgumentError(
                f"no token is allowed after {after!r}",
                hint="min_tokens, stop_token_ids and logit_bias together leave nothing to draw",
            )
        problem = self.matcher.problem()
        return ConstraintError(
            f"no token of the model's vocabulary can go on after {after!r}" + (f": {problem}" if problem else ""),
            hint="make the constraint smaller"
            if problem
            else "the tokenizer cannot spell what the constraint asks for",
        )

    def _finish_if_full(self) -> None:
        """End where the structure is complete and nothing can follow, or where no token is left to spend. A structure
        that is complete at the limit is complete."""
        if self.done:
            return
        full = self.generated >= self.new_tokens
        if self.matcher is not None and (self.matcher.done() or (full and self.matcher.allows_end())):
            self.finish("constraint")
        elif full:
            self.finish("length")

    def _force(self) -> None:
        """Append the tokens that the constraint leaves no choice about; they are computed together in one step."""
        while self.matcher is not None and not self.done and self.generated < self.new_tokens:
            tokens = self.matcher.forced(self.tokens[max(0, self.length - _CONTEXT) : self.length].tolist())
            if not tokens:
                return
            for token in tokens[: self.new_tokens - self.generated]:
                if not self.matcher.advance(token):
                    return
                self.forced += 1
                if self.params.logprobs is not None:
                    self.logprobs.append(TokenLogprob(token, 0.0))
                self._append(token)
                if self.done:
                    return

    def _append(self, token: int) -> None:
        self.tokens[self.length] = token
        self.length += 1
        if self.counts is not None:
            self.counts[token] += 1
        for hit in self.text.feed(self.tools.bytes_of[token] or b""):
            # Inside a structure a stop string only counts where the text before it is complete.
            if self.matcher is None or self.complete(bytes(self.text.data[: hit.at])):
                self.text_ends.append(len(self.text.data))
                self._stop(hit)
                return
        self.text_ends.append(len(self.text.data))

    def _stop(self, hit: StopHit) -> None:
        self.text.cut(hit.at)
        self.finish("stop", hit.stop)

    def show(self, final: bool = False) -> None:
        """Send the text that has become safe, if the request streams."""
        if not self.group.request.stream:
            return
        text = self.text.take(final)
        if final:
            tokens = self._kept_tokens()[self.sent :]
        else:
            # A token of which a part may still be cut off waits for its last byte.
            whole = bisect_right(self.text_ends, self.text.shown) if text else self.sent
            tokens = tuple(self.tokens[self.prompt_length + self.sent : self.prompt_length + whole].tolist())
        if text or tokens:
            self.group.emit(Delta(text, tokens, self.index))
            self.sent += len(tokens)

    def finish(self, reason: FinishReason, matched: str | int | None = None) -> None:
        """End the sample: its last text, its output."""
        if reason == "constraint" and self.generated < self.params.min_tokens:
            _log.warning(
                "min_tokens=%d: the constraint was complete after %d tokens", self.params.min_tokens, self.generated
            )
        self.done = True
        self.finish_reason = reason
        self.matched = matched

    def output(self, now: float) -> Output:
        """The finished sample; `now` in seconds of the clock that set `started`."""
        self.show(final=True)
        return Output(
            text=self.text.text(),
            tokens=self._kept_tokens(),
            finish_reason=self.finish_reason,
            usage=self.usage(),
            matched_stop=self.matched,
            logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
            index=self.index,
            prefill_seconds=max(0.0, (self.first_token or now) - self.started),
            seconds=now - self.started,
        )

    def _kept_tokens(self) -> tuple[int, ...]:
        """The generated tokens up to the cut; the part of a token that the cut left is tokenised again."""
        tokens = self.tokens[self.prompt_length : self.length].tolist()
        size = len(self.text.data)
        if not self.text_ends or self.text_ends[-1] <= size:
            return tuple(tokens)
        whole = next(i for i, end in enumerate(self.text_ends) if end > size)
        rest = self.text.data[self.text_ends[whole - 1] if whole else 0 :]
        return (*tokens[:whole], *self.tools.encode(rest.decode("utf-8", errors="ignore")))

    def usage(self) -> Usage:
        return Usage(self.prompt_length, self.cached, self.generated, self.forced)

    def fail(self, error: BaseException) -> None:
        self.done = self.failed = True
        self.group.fail(error)
