"""The samples of a generate request in the engine, each a job."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from palmette.errors import ArgumentError, ConstraintError, PalmetteError
from palmette.runtime.constraints import closing
from palmette.runtime.constraints.forcing import CONTEXT, forced_run
from palmette.runtime.constraints.matcher import CompiledConstraint, Matcher
from palmette.runtime.detokenize import TextStream
from palmette.runtime.group import Group
from palmette.runtime.healing import Cover, Tail
from palmette.runtime.job import Job, Span
from palmette.runtime.prompt_logprobs import PromptLogprobs
from palmette.runtime.protocol import (
    Delta,
    FinishReason,
    GenerateRequest,
    Output,
    SamplingParams,
    TokenLogprob,
    Usage,
)
from palmette.runtime.sampler import Drawn, Row, Tally, no_numbers, sample_seed
from palmette.runtime.stopping import StopPattern

if TYPE_CHECKING:
    from palmette.runtime.speculation import Record
    from palmette.torch_later import Array

_log = logging.getLogger("palmette")


@dataclass(frozen=True, slots=True)
class TextTools:
    """What a generating job needs of the tokenizer. bytes_of[t]: what token t adds to the text, None for a control
    token; end_ids: the model's end-of-sequence tokens; spell: tokens of a text, as a continuation, the canonical ones
    where it has such; None where none spell it. control: the control tokens, by what templates write for them."""

    bytes_of: Sequence[bytes | None]
    end_ids: frozenset[int]
    spell: Callable[[bytes], list[int] | None]
    control: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was checked and compiled: what its samples have in common. new_tokens: how many there is room for
    behind the prompt; patterns: of `stop_regex`. again: which samples are drawn, where that is not all of them."""

    group: Group
    prompt: tuple[int, ...]
    new_tokens: int
    seed: int
    patterns: Sequence[StopPattern] = ()
    compiled: CompiledConstraint | None = None
    again: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Healed:
    """How a sample's prompt is healed: its tail is spelled anew by the cover, which was computed by `job`."""

    tail: Tail
    cover: Cover
    job: Job


def drawn_by(params: SamplingParams) -> SamplingParams:
    """What samples are drawn by. With `best_of` they are compared by their log-probabilities."""
    return replace(params, logprobs=0) if params.best_of is not None and params.logprobs is None else params


def named_stops(params: SamplingParams, control: Mapping[str, int]) -> dict[int, str]:
    """The control tokens that stop strings name: they add nothing to a text, so that it is never found there."""
    return {control[stop]: stop for stop in params.stop if stop in control}


def ends_of(request: GenerateRequest, tools: TextTools) -> frozenset[int]:
    """The tokens that end a sample: the model's own, and those of the request."""
    params = request.params
    # A structure always ends by itself, so `ignore_eos` has no say in one.
    own = frozenset() if params.ignore_eos and request.constraint is None else tools.end_ids
    return own.union(params.stop_token_ids, named_stops(params, tools.control))


def spelled_ends(ends: frozenset[int], tools: TextTools) -> frozenset[int]:
    """Those that would be text elsewhere."""
    return frozenset(token for token in ends if token < len(tools.bytes_of) and tools.bytes_of[token])


class GenerateJob(Job):
    """One sample of a generate request. Where its prompt was healed, `prompt` holds the kept tokens and those of the
    cover that spell nothing but the prompt."""

    def __init__(
        self, prepared: Prepared, index: int, tools: TextTools, new_tokens: int, healed: Healed | None = None
    ) -> None:
        request = prepared.group.request
        inside = healed.cover.inside if healed is not None else ()
        prompt = prepared.prompt if healed is None else (*healed.tail.kept, *inside)
        super().__init__(
            prompt,
            len(prompt) + new_tokens,
            namespace=request.namespace,
            priority=request.priority,
            tenant=request.tenant,
            family=request.family,
        )
        self.group = prepared.group
        self.group.add(self)
        self.index = index
        self.leads = index == 0
        self.params = params = drawn_by(request.params)
        self.new_tokens = new_tokens
        self.seed = sample_seed(prepared.seed, index)
        self.tools = tools
        self.original_length = len(prepared.prompt)
        self.healed = healed
        if healed is not None:
            # It has waited its turn already.
            self.number = healed.job.number
            self.goes_on = True
        compiled = prepared.compiled
        self.ends = ends_of(request, tools)
        self.matcher: Matcher | None = None
        if compiled is not None:
            self.matcher = self._start(compiled)
        stops = params.stop or params.stop_regex
        self._endings = compiled.endings() if compiled is not None and stops else None
        # The prompt's tokens that are told before the generated ones: with `echo` all, with their text.
        self._first_told = 0 if params.echo else len(prompt) - len(inside)
        front = [tools.bytes_of[token] or b"" for token in prompt[self._first_told :]]
        prefix = b"".join(front)
        if healed is not None:
            # What of the prompt's text the token spells that reaches beyond it.
            prefix += healed.tail.rest[len(b"".join(tools.bytes_of[token] or b"" for token in inside)) :]
        self.text = TextStream(
            params.stop,
            prepared.patterns,
            prefix=prefix,
            hidden=0 if params.echo else len(prefix),
            opens=self._may_stop_at if self._endings is not None else None,
        )
        self.text_ends = list(accumulate(map(len, front)))
        self._named = named_stops(params, tools.control)
        self.finish_reason: FinishReason = "error"
        self.matched: str | int | None = None
        self.forced = 0
        # How it has been guessed, once somebody tried; tokens that were drafted for it, and those that were right.
        self.record: Record | None = None
        self.drafted = self.accepted = 0
        self.dropped_end = 0
        self.logprobs: list[TokenLogprob] = []
        self.pressure: list[float | None] = []
        self.prompt_logprobs: PromptLogprobs | None = None
        if params.prompt_logprobs is not None and index == 0:
            # One sample reads them for all.
            self.prompt_logprobs = self.group.prompt_logprobs = PromptLogprobs(
                prompt, params.logprobs_start, params.prompt_logprobs, params.logprob_token_ids
            )
        self.sent = 0
        repeats = params.repetition_penalty != 1.0
        penalised = repeats or params.frequency_penalty or params.presence_penalty
        self.tally: Tally | None = Tally(prompt if repeats else ()) if penalised else None

    def _start(self, compiled: CompiledConstraint) -> Matcher:
        """The constraint's matcher, at the first token that is free."""
        if self.new_tokens == 0:
            return compiled.start()
        begun: list[int] = []
        if self.healed is not None and self.healed.cover.extra:
            # What the first token brings of the text, which may be spelled in several.
            begun = self.tools.spell(self.healed.cover.extra) or [-1]
        limit = self.new_tokens - bool(begun)
        banned = spelled_ends(self.ends, self.tools)
        return closing.start(compiled, limit, begun=begun, banned=banned, cut=self.group.request.cut)

    @property
    def generated(self) -> int:
        return self.length - self.prompt_length + self.dropped_end

    @property
    def peak(self) -> int:
        # The last token is only ever drawn, so it needs no slot.
        return max(self.prompt_length + self.new_tokens - 1, self.prompt_length)

    @property
    def shareable(self) -> np.ndarray:
        size = self.length - 1 if self.new_tokens else self.length
        first = self.prompt_logprobs.first_row if self.prompt_logprobs is not None else None
        return self.tokens[: size if first is None else min(size, first)]

    def spans(self, n: int) -> list[Span]:
        if n == 0:
            return []
        start, end = self.computed, self.computed + n
        rows = self.prompt_logprobs.rows(start, end) if self.prompt_logprobs is not None else ()
        draws: Sequence[int] = (end - 1,) if end == self.length and self.new_tokens > 0 else ()
        if self.draft is not None:
            draws = [end - 1 + at for at in self.draft.draws]
            end += len(self.draft.tokens)
        return [Span(start, end, np.arange(end), rows, draws)]

    def read(self, rows: Sequence[int], logits: Array) -> None:
        """See Job.read: those behind the prompt's tokens, for its log-probabilities."""
        assert self.prompt_logprobs is not None
        self.prompt_logprobs.read(rows, logits)

    def row(self, words: int, ahead: int = 0, matcher: Matcher | None = None, tally: Tally | None = None) -> Row:
        """What the sampler needs for the next token; `words` int32 words hold a mask over the logits' width. Behind
        `ahead` tokens of a draft: with matcher and tally as these would leave them."""
        banned: set[int] = set()
        mask = None
        if not ahead:
            matcher, tally = self.matcher, self.tally
        early = self.generated + ahead < self.params.min_tokens
        if matcher is not None:
            mask = np.zeros(words, np.int32)
            matcher.fill(mask)
            self._mask_ends(mask, matcher, early)
        elif early:
            banned = set(self.ends)
        return Row(self.params, self.seed, self.length + ahead, mask, banned, tally)

    def _mask_ends(self, mask: np.ndarray, matcher: Matcher, early: bool) -> None:
        """Ids that would end the request are legal exactly where the structure may end; below `min_tokens` (early),
        only where it also must."""
        view = mask.view(np.uint32)
        bits = np.zeros_like(view)
        for token in self.ends:
            bits[token >> 5] |= np.uint32(1 << (token & 31))
        view &= ~bits
        if matcher.allows_end() and (not early or not view.any()):
            view |= bits

    def begin(self) -> None:
        """Set out: tokens that the constraint forces at once, a text that is complete before it begins."""
        if self.new_tokens == 0:
            return
        if self.healed is not None and self.healed.cover.extra:
            self._cross(self.healed.cover)
        self._force()
        self._finish_if_full()
        if not self.done:
            self.show()

    def _cross(self, cover: Cover) -> None:
        """The token that reaches from the prompt into the text is the first one generated."""
        if cover.logprob is not None:
            self.logprobs.append(cover.logprob)
        self.pressure.append(None)
        self._append(cover.tokens[-1], cover.extra)

    def go_on(self, drawn: Drawn | None) -> None:
        """See Job.go_on: takes the token, or ends where none was wanted."""
        if drawn is not None:
            self.commit(drawn)
        elif self.remaining == 0:
            self.finish("length")
        if not self.done:
            self.show()

    def commit(self, drawn: Drawn) -> None:
        """Take the drawn token, then what the constraint forces behind it."""
        if drawn.token < 0:
            self.fail(self._nothing_allowed() if drawn.numbers else no_numbers(f"after {self.text.text()!r}"))
            return
        if drawn.logprob is not None:
            self.logprobs.append(drawn.logprob)
        self.pressure.append(drawn.pressure)
        if drawn.token in self.ends and (self.matcher is None or self.matcher.allows_end()):
            self.dropped_end = 1
            if self.matcher is None:
                self.finish("stop", self._named.get(drawn.token, drawn.token))
            else:
                self.finish("constraint")
            return
        if self.matcher is not None and not self.matcher.advance(drawn.token):
            self.fail(RuntimeError(f"the constraint refused token {drawn.token}, which its own mask allowed"))
            return
        self._append(drawn.token, self.tools.bytes_of[drawn.token])
        self._force()
        self._finish_if_full()

    def _nothing_allowed(self) -> PalmetteError:
        after = self.text.text()
        if self.matcher is None:
            return ArgumentError(
                f"no token is allowed after {after!r}",
                hint="all tokens are in stop_token_ids, and min_tokens holds those back: lower it, or name fewer",
            )
        needed = sorted(t for t in self.ends if self.tools.bytes_of[t] and self.matcher.fork().advance(t))
        if needed:
            return ConstraintError(
                f"the constraint needs a stop token after {after!r}: {', '.join(map(str, needed))}",
                hint="a stop token may only come where the text is complete: leave these out of stop_token_ids",
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
        if self.matcher is None:
            return
        run = forced_run(self.matcher, self.recent(), self.ends)
        while not self.done and self.generated < self.new_tokens and (token := next(run, None)) is not None:
            self.forced += 1
            self.pressure.append(None)
            if self.params.logprobs is not None:
                asked = ((other, 0.0 if other == token else -math.inf) for other in self.params.logprob_token_ids)
                self.logprobs.append(TokenLogprob(token, 0.0, asked=tuple(asked)))
            self._append(token, self.tools.bytes_of[token])

    def recent(self) -> list[int]:
        """The last tokens, as many as a constraint sees when it spells forced text as their continuation."""
        return self.tokens[max(0, self.length - CONTEXT) : self.length].tolist()

    def _append(self, token: int, text: bytes | None) -> None:
        """One more generated token, and what it adds to the text."""
        self.tokens[self.length] = token
        self.length += 1
        if self.tally is not None:
            self.tally.add(token)
        if self._endings is not None:
            self._endings.add(text or b"")
        # What is complete within the first `min_tokens` tokens stops nothing, as in vLLM.
        hit = self.text.feed(text or b"", counts=self.generated > self.params.min_tokens)
        self.text_ends.append(len(self.text.data))
        if hit is not None:
            self.text.cut(hit.at)
            self.finish("stop", hit.stop)

    def _may_stop_at(self, at: int) -> bool:
        """Inside a structure a stop only counts where the text before it is complete."""
        return self._endings is None or self._endings.at(at - self.text.start)

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
            tokens = tuple(self.tokens[self._first_told + self.sent : self._first_told + whole].tolist())
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
        started = self.started if self.healed is None else self.healed.job.started
        return Output(
            text=self.text.text(),
            tokens=self._kept_tokens(),
            finish_reason=self.finish_reason,
            usage=self.usage(),
            matched_stop=self.matched,
            logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
            index=self.index,
            prefill_seconds=max(0.0, (self.first_token or now) - started),
            seconds=now - started,
            healed=0 if self.healed is None else self.healed.tail.healed,
            pressure=tuple(self.pressure) if self.params.pressure else None,
        )

    def _kept_tokens(self) -> tuple[int, ...]:
        """The tokens that are told, up to the cut; the part of a token that the cut left is tokenised again."""
        tokens = self.tokens[self._first_told : self.length].tolist()
        size = len(self.text.data)
        if not self.text_ends or self.text_ends[-1] <= size:
            return tuple(tokens)
        whole = next(i for i, end in enumerate(self.text_ends) if end > size)
        rest = bytes(self.text.data[self.text_ends[whole - 1] if whole else 0 :])
        spelled = self.tools.spell(rest)
        if spelled is None:
            raise ValueError(f"the vocabulary has no token for all of {rest!r}")
        return (*tokens[:whole], *spelled)

    def usage(self) -> Usage:
        first = self if self.healed is None else self.healed.job
        lost = self.preemptions if first is self else self.preemptions + first.preemptions
        drafts = {"drafted_tokens": self.drafted, "accepted_tokens": self.accepted}
        return Usage(self.original_length, first.cached, self.generated, self.forced, lost, **drafts)

    def fail(self, error: BaseException) -> None:
        self.done = self.failed = True
        self.group.fail(error)
