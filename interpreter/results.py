"""What reading a state gives: results of generations and selections, and the steps of its trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from palmette.errors import PalmetteError, TruncatedError, suggestion
from palmette.runtime.protocol import (
    ByChoice,
    Constraint,
    FinishReason,
    Output,
    ScoreResult,
    SelectMethod,
    TokenLogprob,
    Usage,
)


class UnknownVariable(PalmetteError, KeyError):
    """A variable was read that the program did not set."""


def unknown_variable(name: str, known: Mapping[str, Any]) -> UnknownVariable:
    hint = suggestion(name, known) if known else "no variable is set; name one by gen(name)"
    return UnknownVariable(f"the program set no variable {name!r}", hint=hint)


class BranchConflict(PalmetteError):
    """Branches wrote a variable that their parent has already, so joining would lose one of the values."""


@dataclass(frozen=True, slots=True)
class GenResult:
    """One generated sample.

    finish_reason: "stop", "length", "constraint" (it is complete), "cancelled" or "error". matched_stop: the stop
    string, pattern or token that ended it. logprobs: per generated token, where asked for. cached_tokens of the
    prompt_tokens were in the cache; forced_tokens of the completion_tokens were not chosen but implied by the
    constraint. discarded_tokens: completion tokens of the samples that best_of left out, told with the first result.
    healed: the prompt's last tokens that the first of `tokens` spell anew (token_healing). pressure: where asked for,
    per generated token the share of probability that the constraint removed, None for tokens that it forced.
    validated: the text was checked against a schema that could not be enforced whole; attempts: how often it was drawn
    for that.
    """

    name: str | None
    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    matched_stop: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_tokens: int
    cached_tokens: int
    forced_tokens: int
    completion_tokens: int
    seconds: float = 0.0
    constraint: Constraint | None = None
    parse: Callable[[str], Any] | None = field(default=None, repr=False, compare=False)
    type_name: str | None = None
    discarded_tokens: int = 0
    healed: int = 0
    pressure: tuple[float | None, ...] | None = None
    validated: bool = False
    attempts: int = 1

    @property
    def value(self) -> Any:
        """The text as its type, or as parsed JSON where it has a schema; TruncatedError where it was cut, PalmetteError
        where the type refuses what its schema allows."""
        if self.parse is None:
            if self.constraint is not None:
                self._refuse_cut()
            return self.text
        self._refuse_cut()
        try:
            return self.parse(self.text)
        except ValueError as error:
            if self.finish_reason != "constraint":
                raise self._cut(f"and is no complete {self.type_name}") from error
            raise PalmetteError(
                f"{self.name!r} is complete, but {self.type_name} refuses it: {error}",
                hint="the type checks more than its JSON schema says: narrow it, or catch this error and ask again",
            ) from error

    def _refuse_cut(self) -> None:
        if self.finish_reason in ("length", "cancelled", "error"):
            raise self._cut("before it was complete")

    def _cut(self, how: str) -> TruncatedError:
        what = self.type_name or (self.constraint.kind if self.constraint else "text")
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        cause = f"({self.finish_reason}, {self.completion_tokens} tokens)"
        hint = "raise max_tokens" if self.finish_reason == "length" else "remove the stop that cut it"
        return TruncatedError(f"{self.name!r} ({what}) ended {cause} {how}: {shown!r}", hint=hint)

    def meta_info(self) -> dict[str, Any]:
        """The numbers as a plain dict, under SGLang's names where it has one."""
        info: dict[str, Any] = {
            "finish_reason": self.finish_reason,
            "matched_stop": self.matched_stop,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "forced_tokens": self.forced_tokens,
            "completion_tokens": self.completion_tokens,
            "discarded_tokens": self.discarded_tokens,
            "healed": self.healed,
            "output_ids": list(self.tokens),
            "e2e_latency": self.seconds,
        }
        if self.logprobs is not None:
            info["output_token_logprobs"] = [(entry.logprob, entry.token) for entry in self.logprobs]
            info["output_top_logprobs"] = [[(p, token) for token, p in entry.top] for entry in self.logprobs]
            info["output_token_ids_logprobs"] = [[(p, token) for token, p in entry.asked] for entry in self.logprobs]
        if self.pressure is not None:
            info["pressure"] = list(self.pressure)
        if self.validated:
            info |= {"validated": True, "attempts": self.attempts}
        return info


@dataclass(frozen=True, slots=True)
class SelectResult:
    """One choice made: `text`. Numbers per choice are in the order of the choices, and found by a choice's text.

    logprobs: natural log of the probability of each choice as text. scores: what the method compared. label_mass: share
    of all probability that the choices hold together. option_tokens: per choice its scored tokens, as (text, logprob).
    """

    name: str | None
    text: str
    index: int
    method: SelectMethod
    probabilities: ByChoice
    logprobs: ByChoice
    scores: ByChoice
    label_mass: float
    tokens: tuple[int, ...]
    option_tokens: dict[str, tuple[tuple[str, float], ...]]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    forced_tokens: int = 0
    seconds: float = 0.0
    finish_reason: FinishReason = "stop"

    @property
    def value(self) -> str:
        return self.text

    @property
    def choice(self) -> str:
        return self.text

    def meta_info(self) -> dict[str, Any]:
        return {
            "choice": self.text,
            "index": self.index,
            "method": self.method,
            "probabilities": dict(self.probabilities.items()),
            "logprobs": dict(self.logprobs.items()),
            "scores": dict(self.scores.items()),
            "label_mass": self.label_mass,
            "option_tokens": {choice: list(tokens) for choice, tokens in self.option_tokens.items()},
            "normalized_prompt_logprobs": list(self.scores),
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "e2e_latency": self.seconds,
        }


# Of one variable: a result; a list where n > 1 or branches were joined; None where a branch has none.
Result: TypeAlias = "GenResult | SelectResult | list[Result] | None"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a run, for the trace. Token counts are of this step alone; `where` is file:line of the program."""

    kind: Literal["literal", "gen", "select", "fork", "join"]
    name: str | None
    text: str
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    forced_tokens: int = 0
    seconds: float = 0.0
    where: str = ""


def gen_result(
    name: str | None,
    output: Output,
    constraint: Constraint | None,
    parse: Callable[[str], Any] | None,
    type_name: str | None,
) -> GenResult:
    usage = output.usage
    return GenResult(
        name,
        output.text,
        output.tokens,
        output.finish_reason,
        output.matched_stop,
        output.logprobs,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.forced_tokens,
        usage.completion_tokens,
        output.seconds,
        constraint,
        parse,
        type_name,
        usage.discarded_tokens,
        output.healed,
        output.pressure,
        output.validated,
        output.attempts,
    )


def select_result(
    name: str | None,
    choices: tuple[str, ...],
    score: ScoreResult,
    decode: Callable[[tuple[int, ...]], str],
    seconds: float,
) -> SelectResult:
    usage: Usage = score.usage
    return SelectResult(
        name,
        score.choice,
        score.index,
        score.method,
        score.probabilities,
        score.logprobs,
        score.scores,
        score.label_mass,
        score.tokens[score.index],
        {
            choice: tuple(zip(_spell(tokens, decode), logprobs, strict=True))
            for choice, tokens, logprobs in zip(choices, score.tokens, score.token_logprobs, strict=True)
        },
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        usage.forced_tokens,
        seconds,
    )


def _spell(tokens: tuple[int, ...], decode: Callable[[tuple[int, ...]], str]) -> list[str]:
    """Each token's share of the text: what it adds to the text of those before it."""
    texts: list[str] = []
    spelt = ""
    for end in range(1, len(tokens) + 1):
        whole = decode(tokens[:end])
        # A character split over tokens belongs to its last one.
        done = whole.rstrip("�") if end < len(tokens) else whole
        texts.append(done[len(spelt) :])
        spelt = done if len(done) > len(spelt) else spelt
    return texts


def meta_info(result: Result) -> Any:
    """`meta_info` of a result; of a list, a list, with None for its holes."""
    if isinstance(result, list):
        return [meta_info(item) for item in result]
    return None if result is None else result.meta_info()


def value_of(variable: Any, result: Result) -> Any:
    """The typed value of a variable that `result` made: of a list of results, a list. What no generation made (a hole,
    a variable that the program set) is its own value."""
    if isinstance(result, list):
        return [value_of(part, item) for part, item in zip(variable, result, strict=True)]
    return variable if result is None else result.value
