"""What the interpreter and the runtime say to each other: plain data, no behaviour, no torch.

A client sends a `GenerateRequest` or a `ScoreRequest`; the engine answers a generate request with any number of
`Delta`s and exactly one terminal event (`Finished` or `Failed`), and a score request with one `ScoreResult`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, SupportsIndex

FinishReason = Literal["stop", "length", "constraint", "cancelled", "error"]
SelectMethod = Literal[
    "probability", "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"
]
Unsupported = Literal["refuse", "validate"]
ConstraintKind = Literal["regex", "choices", "json_schema", "grammar", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a text must be, as data. `spec` by kind: the pattern, the tuple of options, the schema as canonical JSON
    text (keys in the order that they were written, since it decides the order of the output), the grammar's text, the
    structural tag as JSON text (constraints/structural.py).

    `whitespace`: the JSON may hold optional white space where the model wants it; the default is compact JSON.
    `on_unsupported`, of a schema that cannot be enforced exactly: "refuse", or "validate": what cannot be enforced is
    left out, the finished text is checked against the whole schema, and drawn again with another seed where it is not
    valid, at most `retries` times.
    """

    kind: ConstraintKind
    spec: str | tuple[str, ...]
    whitespace: bool = False
    on_unsupported: Unsupported = "refuse"
    retries: int = 3


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. The defaults are those of `gen`.

    max_tokens: upper bound of generated tokens, forced ones included; None: to the end of the context; 0: prefill only.
    min_tokens: no end before so many: no end token, and no stop that is complete within them counts; a constraint whose
    text is complete earlier, with nothing left to add, ends it. ContextLengthError where so many do not fit.
    stop, stop_regex: the text ends before the first of them that it would hold; a regex is searched for, in the dialect
    of a regex constraint, and may not look beyond its match. A string that is just the spelling of a control token
    ("<|im_end|>") names that token as well, which adds nothing to a text. stop_token_ids: the text ends before the
    first of them. Under a constraint an end leaves the text complete: a string or a match ends it only where it is,
    and is text elsewhere; a token of stop_token_ids may only come where it is, ConstraintError where it must come
    earlier. top_k: -1 is off.
    best_of: None is off; else so many samples are drawn, and the n with the highest mean log-probability per generated
    token (`TokenLogprob`) are kept, best first (as OpenAI's completions). It excludes streaming.
    echo: text and tokens of the output begin with the prompt's; of its control tokens, as everywhere, the tokens only.
    seed: None draws one per request; equal (seed, prompt, parameters) give equal tokens.
    logprobs: None is off; k >= 0 gives the drawn token's log-probability and the k best tokens'. prompt_logprobs: the
    same for the tokens of the prompt, from position `logprobs_start` on, as the model alone has them: penalties, bias
    and constraint are not of the prompt. logprob_token_ids: tokens whose log-probabilities are told beside, wherever
    one of the two is on. k is at most the size of the vocabulary, and one request tells at most 10 million.
    pressure: tell of each generated token how much probability the constraint's mask removed where it was drawn.
    token_healing: the prompt's last tokens may be spelled anew together with what follows, where a token could reach
    from one into the other: what follows is drawn as if the model had been given the prompt's text instead of its
    tokens. Penalties, bias and temperature hold for all tokens that are spelled anew, top-k, top-p and min-p for the
    ways to spell the prompt's end; a token that reaches beyond it counts as the first generated one, and has its
    log-probability among the tokens that reach so.
    """

    max_tokens: int | None = 128
    min_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    best_of: int | None = None
    echo: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_start: int = 0
    logprob_token_ids: tuple[int, ...] = ()
    token_healing: bool = False
    pressure: bool = False


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Continue `tokens`. `name` is the program's variable, for traces and mock backends; it changes nothing.

    `stream`: send `Delta`s; otherwise only the terminal event comes. `healable`: how many of the last tokens are
    literal text, which `token_healing` may take back; None: all of them. Of the schedule only, never of the answer:
    `priority` (higher first, under the policy "priority"), `tenant` (on whose account it runs, for fair shares),
    `family` (what it belongs to, whose requests come one after the other and mostly go on from each other: a program
    run, or a branch of one).

    `cut`: where the shortest text under the constraint has more tokens than there is room for, its beginning is wanted,
    which ends by "length"; otherwise the request is refused.
    """

    tokens: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    constraint: Constraint | None = None
    namespace: str = ""
    name: str | None = None
    stream: bool = False
    healable: int | None = None
    priority: int = 0
    tenant: str = ""
    family: str = ""
    cut: bool = False


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Which of `choices` continues `tokens`, by log-probability. temperature 0 takes the best, above 0 it draws.
    `priority`, `tenant`, `family` as in GenerateRequest.

    `healable`: how many of the last tokens are literal text, which may be tokenised anew together with a choice where
    the two meet inside a token; None: all of them, 0: none.
    """

    tokens: tuple[int, ...]
    choices: tuple[str, ...]
    method: SelectMethod = "probability"
    temperature: float = 0.0
    seed: int | None = None
    namespace: str = ""
    name: str | None = None
    healable: int | None = None
    priority: int = 0
    tenant: str = ""
    family: str = ""


class TokenLogprob(NamedTuple):
    """Log-probability (natural) of one token: of a generated one after constraint, penalties and bias and before
    temperature and top-k/top-p/min-p, of a prompt's as the model has it. `top`: the best tokens as (id,
    log-probability), best first, equal ones by id; `asked`: those of logprob_token_ids, in that order. A forced token
    has 0.0 and no others."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    asked: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request. `completion_tokens` counts every generated token, forced ones too, and those of a
    stop that the text leaves out; `cached_tokens` of the prompt were in the KV cache when the request was let in;
    `preemptions`: how often it lost its KV slots to others and went on later; `discarded_tokens`: completion tokens of
    the samples that best_of drew and did not keep, told with the first output, and of those that were not valid and
    drawn again; `drafted_tokens` were computed by
    speculation before they were drawn, and `accepted_tokens` of these were drawn."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    preemptions: int = 0
    discarded_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of sample `index`. Never a broken character, never any part of what ends it by `stop` or `stop_regex`.

    tokens: those that are settled since the last one; joined, they are the output's. A token of which a stop may still
    take a part comes later than its first letters, with an empty text if need be.
    """

    text: str
    tokens: tuple[int, ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """One finished sample. `tokens` spell `text`: an end token is left out; where a stop cut a token, the part before
    it was tokenised again. matched_stop: the stop string, the pattern or the id of the token that ended it. `logprobs`
    is per token as generated; `prompt_logprobs` per token of the prompt from `logprobs_start` on, None for the first
    of a text, which nothing precedes. healed: the prompt's last tokens that the output's first tokens spell anew.
    pressure: per token as generated, the share of all probability (after penalties and bias, before temperature) that
    the mask removed; 0.0 where there is no constraint, None for a forced token, of which nothing was computed, and for
    one that was drawn while the prompt was healed. validated: part of the schema could not be enforced, and the text
    was checked against all of it (Constraint.on_unsupported); attempts: how often it was drawn for that."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    matched_stop: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    index: int = 0
    prefill_seconds: float = 0.0
    seconds: float = 0.0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    healed: int = 0
    pressure: tuple[float | None, ...] | None = None
    validated: bool = False
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Finished:
    """Terminal: all `n` samples, in order of their index. A cancelled request ends so too, with what it had."""

    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """Terminal: the request ended by an error (raised as it is to the caller)."""

    error: BaseException


Event = Delta | Finished | Failed


class ByChoice(tuple[float, ...]):
    """A number for each choice, in the order of the choices; a choice's text finds its number too."""

    choices: tuple[str, ...]

    def __new__(cls, choices: Sequence[str], values: Iterable[float]) -> ByChoice:
        self = super().__new__(cls, values)
        self.choices = tuple(choices)
        return self

    def __getnewargs__(self) -> tuple[tuple[str, ...], tuple[float, ...]]:
        return self.choices, tuple(self)

    def __getitem__(self, key: SupportsIndex | slice | str) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.choices:
            raise KeyError(f"{key!r} is none of the choices {list(self.choices)}")
        return super().__getitem__(self.choices.index(key))

    def get(self, choice: str, default: float | None = None) -> Any:
        if not isinstance(choice, str):
            raise TypeError(f"get takes a choice's text, not {choice!r}; iterating gives numbers, .choices the texts")
        return self[choice] if choice in self.choices else default

    def keys(self) -> tuple[str, ...]:
        return self.choices

    def values(self) -> tuple[float, ...]:
        return tuple(self)

    def items(self) -> list[tuple[str, float]]:
        return list(zip(self.choices, self, strict=True))

    def __repr__(self) -> str:
        return repr(dict(self.items()))


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Answer to a score request; per-choice tuples are in the order of the request's choices.

    logprobs: natural log of the probability that the text goes on with the choice; where another choice extends this
    one, without the mass that goes on to it. scores: what the method compares. probabilities: the distribution over
    the choices by that method, sum 1. label_mass: share of the whole probability mass that the choices hold.
    tokens, token_logprobs: of each choice's scored tokens. healed: the prompt's last tokens that were scored anew
    together with the choice, since text and choice meet inside a token; `tokens` begin with their text then.
    """

    index: int
    choice: str
    probabilities: ByChoice
    logprobs: ByChoice
    scores: ByChoice
    label_mass: float
    tokens: tuple[tuple[int, ...], ...]
    token_logprobs: tuple[tuple[float, ...], ...]
    method: SelectMethod
    usage: Usage
    healed: int = 0


class Piece(NamedTuple):
    """A stretch of prompt text. Control tokens spelled in it are read as such only where it is `trusted` (a chat
    template's own text, `special(...)`); anybody else's text stays text."""

    text: str
    trusted: bool = False


class Codec(Protocol):
    """Text to tokens and back, and the chat template: what a program needs of a tokenizer."""

    def encode(self, pieces: str | Sequence[Piece], *, start: bool = False) -> list[int]:
        """Token ids of the pieces as one text. `start`: they begin the sequence, so BOS is put in front where the
        tokenizer's config wants one and the text does not already spell it."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, control tokens left out; broken UTF-8 becomes U+FFFD."""
        ...

    def chat_open(self, roles: Sequence[str]) -> str:
        """Template text between the end of message `roles[-2]`, already closed, and the content of `roles[-1]`.
        Raises ModelError with the template's own words where it refuses these roles, or there is no template."""
        ...

    def chat_close(self, roles: Sequence[str]) -> str:
        """Template text that ends the content of `roles[-1]`."""
        ...

    def chat_trims(self, role: str) -> bool:
        """Whether the template strips white space around a message of this role."""
        ...

    def end_token(self, text: str) -> int | None:
        """The id of the control token that `text` begins with, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend does. The interpreter refuses what is missing before anything is sent. `holds`: whether it
    keeps what is cached of a request for the next one of its family, until `leave`. account: whether it goes by a
    request's priority, tenant and namespace."""

    name: str
    constraints: frozenset[str] = frozenset({"regex", "choices", "json_schema", "grammar", "structural_tag"})
    score: bool = True
    logprobs: bool = True
    stream: bool = True
    holds: bool = False
    account: bool = False
    params: frozenset[str] = frozenset(SamplingParams.__dataclass_fields__)


class Backend(Protocol):
    """Where programs run. `Engine` is one; so are the mock and the remote ones."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def codec(self) -> Codec: ...

    def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Deltas, then one terminal event. Closing the generator early (aclose) cancels the request."""
        ...

    async def score_async(self, request: ScoreRequest) -> ScoreResult: ...

    def leave(self, family: str) -> None:
        """A hint that no more requests of a family are coming: nothing needs to be kept for it. Called only where
        `capabilities.holds`; it neither waits nor fails."""
        ...
