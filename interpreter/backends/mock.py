"""A backend that answers from a script: for tests of programs, without a model."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

from palmette.arguments import SAMPLING, pattern
from palmette.errors import BackendError
from palmette.interpreter.backends.mock_codec import MockCodec
from palmette.runtime.protocol import (
    ByChoice,
    Capabilities,
    Codec,
    Constraint,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Output,
    SamplingParams,
    ScoreRequest,
    ScoreResult,
    TokenLogprob,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Partial:
    """A scripted answer that breaks off: `text` arrives, then the request fails by `error`."""

    text: str
    error: BaseException


# One answer: a text, an error to fail by, a text that breaks off, a function of the prompt's text that makes one of
# these, or for a select the choices' token log-probabilities. A list has one for each sample or selection.
Answer: TypeAlias = "str | BaseException | Partial | Callable[[str], Any] | Mapping[str, Sequence[float]] | list[Any]"


# A script has no prompt to tell of, and no probabilities of other tokens than its own.
_PARAMS = frozenset(SamplingParams.__dataclass_fields__) - {
    "echo",
    "prompt_logprobs",
    "logprobs_start",
    "logprob_token_ids",
    "token_healing",
    "pressure",
}


class MockBackend:
    """Answers by the variable's name.

    `MockBackend({"city": "Paris", "why": ["because", "since"], "bad": RuntimeError("no")})`. A gen without an entry
    gets `default`; a select, the first choice. Answers end at stop strings and patterns and after `max_tokens` (a token
    is up to four characters of a word); one that breaks its regex, choices or schema is an error, and so is one that
    ends before `min_tokens`. All are equally probable, so that of `best_of` answers the first n are kept. `delay`:
    seconds before each answer.

    `requests`: all that was asked, in order. `active`: requests in progress. `cancelled`: those given up early.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer] | Callable[[str], Any] | None = None,
        *,
        default: Answer = "",
        delay: float = 0.0,
        codec: Codec | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        if callable(answers):
            default, answers = answers, None
        self._answers = dict(answers or {})
        self._default = default
        self._delay = delay
        self._codec = codec if codec is not None else MockCodec()
        own = Capabilities("mock", account=True, params=_PARAMS)
        self._capabilities = capabilities if capabilities is not None else own
        self._given: dict[str | None, int] = {}
        self.requests: list[GenerateRequest | ScoreRequest] = []
        self.active = 0
        self.cancelled: list[GenerateRequest | ScoreRequest] = []

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def codec(self) -> Codec:
        return self._codec

    async def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self.active += 1
        done = False
        try:
            if self._delay:
                await asyncio.sleep(self._delay)
            for event in self._answer(request):
                done = not isinstance(event, Delta)
                yield event
                if self._delay:
                    await asyncio.sleep(0)
        finally:
            self.active -= 1
            if not done:
                self.cancelled.append(request)

    async def score_async(self, request: ScoreRequest) -> ScoreResult:
        self.requests.append(request)
        self.active += 1
        try:
            if self._delay:
                await asyncio.sleep(self._delay)
            return self._score(request)
        except asyncio.CancelledError:
            self.cancelled.append(request)
            raise
        finally:
            self.active -= 1

    # -- generation

    def _answer(self, request: GenerateRequest) -> Iterator[Event]:
        prompt = self._codec.decode(request.tokens)
        outputs: list[Output] = []
        params = request.params
        for index in range(params.best_of or params.n):
            try:
                answer = self._next(request.name, prompt)
                if answer is None:
                    answer = _first_choice(request.constraint)
                text = answer.text if isinstance(answer, Partial) else answer
                if not isinstance(text, str):
                    raise BackendError(f"the mock's answer for {request.name!r} is {text!r}, no text")
                output = self._cut(text, request, index)
                if not isinstance(answer, Partial):
                    _check(output, request)
                    _check_length(output, request)
            except Exception as error:
                yield Failed(error)
                return
            for token in output.tokens if request.stream else ():
                yield Delta(self._codec.decode((token,)), (token,), index)
            if isinstance(answer, Partial):
                yield Failed(answer.error)
                return
            outputs.append(output)
        discarded = sum(output.usage.completion_tokens for output in outputs[params.n :])
        outputs[0] = replace(outputs[0], usage=replace(outputs[0].usage, discarded_tokens=discarded))
        yield Finished(tuple(outputs[: params.n]))

    def _cut(self, text: str, request: GenerateRequest, index: int) -> Output:
        params = request.params
        reason: FinishReason = "stop" if request.constraint is None else "constraint"
        matched = None
        late = len(self._codec.decode(self._codec.encode(text)[: params.min_tokens]))
        found = _first_stop(text, params, late)
        if found is not None:
            at, matched = found
            text, reason = text[:at], "stop"
        tokens = self._codec.encode(text)
        if params.max_tokens is not None and len(tokens) > params.max_tokens:
            tokens, matched, reason = tokens[: params.max_tokens], None, "length"
            text = self._codec.decode(tokens)
        usage = Usage(len(request.tokens), 0, len(tokens), 0)
        return Output(text, tuple(tokens), reason, usage, matched, _logprobs(tokens, params), index)

    def _next(self, name: str | None, prompt: str) -> Any:
        """The next scripted answer for `name`; None where there is none at all. Raises scripted errors."""
        scripted = name is not None and name in self._answers
        answer: Any = self._answers[name] if scripted and name is not None else self._default
        if isinstance(answer, list):
            count = self._given.get(name, 0)
            self._given[name] = count + 1
            if count >= len(answer):
                raise BackendError(
                    f"the mock has {len(answer)} answers for {name!r} and was asked once more",
                    hint="add answers to the list, or script a function",
                )
            answer = answer[count]
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            answer = answer(prompt)
            if isinstance(answer, BaseException):
                raise answer
        return None if answer == "" and not scripted else answer

    # -- selection

    def _score(self, request: ScoreRequest) -> ScoreResult:
        answer = self._next(request.name, self._codec.decode(request.tokens))
        choices = request.choices
        if request.name not in self._answers and answer not in choices:
            answer = choices[0]
        if isinstance(answer, str) and answer not in choices:
            raise BackendError(
                f"the mock's answer {answer!r} for {request.name!r} is none of the choices {list(choices)}",
                hint="script one of the choices, or a dict of their token log-probabilities",
            )
        tokens = [tuple(self._codec.encode(choice)) for choice in choices]
        if isinstance(answer, Mapping):
            rows = [tuple(float(value) for value in answer[choice]) for choice in choices]
            sums = [math.fsum(row) for row in rows]
            tokens = [tuple(islice(_padded(ids), len(row))) for ids, row in zip(tokens, rows, strict=True)]
        else:
            best = choices.index(answer) if isinstance(answer, str) else 0
            sums = [math.log((2 if index == best else 1) / (len(choices) + 1)) for index in range(len(choices))]
            rows = [_spread(total, len(ids)) for total, ids in zip(sums, tokens, strict=True)]
        means = [total / max(len(row), 1) for total, row in zip(sums, rows, strict=True)]
        # A choice that was scripted by its name is the answer, by whatever method.
        by_mean = request.method == "token_length_normalized" and isinstance(answer, Mapping)
        scores = means if by_mean else sums
        index = max(range(len(choices)), key=scores.__getitem__)
        weights = [math.exp(score - scores[index]) for score in scores]
        probabilities = tuple(weight / math.fsum(weights) for weight in weights)
        return ScoreResult(
            index,
            choices[index],
            ByChoice(choices, probabilities),
            ByChoice(choices, sums),
            ByChoice(choices, scores),
            min(1.0, math.fsum(map(math.exp, sums))),
            tuple(tokens),
            tuple(rows),
            request.method,
            Usage(len(request.tokens), 0, 0, 0),
        )


def _first_stop(text: str, params: SamplingParams, late: int) -> tuple[int, str] | None:
    """Where the stop that is complete first begins, and which it is, as the text comes character by character; none
    counts that is complete within `late` characters. ConstraintError for what is no stop pattern."""
    found = []
    for stop in params.stop:
        at = text.find(stop, max(0, late - len(stop) + 1))
        if at >= 0:
            found.append((at + len(stop), at, stop))
    for stop in SAMPLING["stop_regex"]("gen()", "stop_regex", params.stop_regex):
        wanted = pattern(stop)
        for end in range(late + 1, len(text) + 1):
            begin = _matched(wanted, text, end)
            if begin is not None:
                found.append((end, begin, stop))
                break
    return min(found)[1:] if found else None


def _matched(wanted: re.Pattern[str], text: str, end: int) -> int | None:
    """Where the leftmost match that ends just there begins."""
    match = wanted.search(text, 0, end)
    while match is not None and wanted.fullmatch(text, match.start(), end) is None:
        match = wanted.search(text, match.start() + 1, end)
    return None if match is None else match.start()


def _padded(ids: tuple[int, ...]) -> Iterable[int]:
    yield from ids
    while True:
        yield ids[-1] if ids else 0


def _spread(total: float, count: int) -> tuple[float, ...]:
    return (total, *[0.0] * (count - 1)) if count else ()


def _first_choice(constraint: Constraint | None) -> str:
    if constraint is not None and constraint.kind == "choices":
        return constraint.spec[0]
    return ""


def _logprobs(tokens: Sequence[int], params: SamplingParams) -> tuple[TokenLogprob, ...] | None:
    if params.logprobs is None:
        return None
    return tuple(TokenLogprob(token, -0.5, ((token, -0.5),)[: params.logprobs]) for token in tokens)


def _check(output: Output, request: GenerateRequest) -> None:
    """Raises where a scripted answer breaks its constraint, unless it was cut."""
    constraint = request.constraint
    if constraint is None or output.finish_reason != "constraint":
        return
    text, spec = output.text, constraint.spec
    if constraint.kind == "choices":
        fits = text in spec
    elif constraint.kind == "regex" and isinstance(spec, str):
        fits = pattern(spec).fullmatch(text) is not None
    elif constraint.kind == "json_schema" and isinstance(spec, str):
        fits = _validates(text, json.loads(spec))
    else:
        fits = True
    if not fits:
        raise BackendError(
            f"the mock's answer {text!r} for {request.name!r} breaks its {constraint.kind} constraint",
            hint="script an answer that the constraint allows",
        )


def _check_length(output: Output, request: GenerateRequest) -> None:
    """Raises where a scripted answer is shorter than it may be."""
    least, count = request.params.min_tokens, len(output.tokens)
    # A stop may begin before the token that completes it, and a constraint's text may be complete earlier.
    if count < least and output.matched_stop is None and request.constraint is None:
        raise BackendError(
            f"the mock's answer {output.text!r} for {request.name!r} has {count} tokens of min_tokens={least}",
            hint="script a longer answer, or leave min_tokens out",
        )


def _validates(text: str, schema: Any) -> bool:
    import jsonschema

    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True
