"""Exact scores of a choice's options: a tree of their tokens behind the prompt, each inner node computed once.

Where prompt and option meet inside a token ("is " + "yes" is spelled "is", " yes"), the prompt's last tokens are taken
back and scored anew with each option, under the condition that the text goes on as the prompt did: at each step the
distribution is restricted to tokens that agree with the bytes taken back (token healing, after Lundberg's guidance).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from palmette.arguments import SAMPLING, is_text, number
from palmette.errors import ConstraintError, PalmetteError, suggestion
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.job import Job, Span
from palmette.runtime.protocol import ByChoice, ScoreRequest, ScoreResult, SelectMethod, Usage
from palmette.runtime.sampler import Drawn, uniform
from palmette.torch_later import Array, as_numpy

METHODS: tuple[SelectMethod, ...] = (
    "probability",
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)

# A token that crosses from the prompt into an option replaces at most this many of the prompt's tokens.
_HEAL_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where options are scored from: the prompt that stays, the tokens of each option, and the bytes that the healed
    tokens had (empty: nothing was healed; `healed` tokens of the prompt were taken back)."""

    prompt: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    rest: bytes
    healed: int


def check_score(request: ScoreRequest) -> None:
    """Raise ConstraintError unless there are options that are texts, none of them empty, none twice; PalmetteError or
    TypeError for a method, temperature or seed that makes no sense."""
    if not request.choices:
        raise ConstraintError("select has no choices", hint="give at least one option")
    seen: set[str] = set()
    for index, choice in enumerate(request.choices):
        if not isinstance(choice, str) or not choice or not is_text(choice):
            raise ConstraintError(
                f"choice {index} is {choice!r}",
                pointer=f"/{index}",
                hint="every option is a text of at least one character, without halves of surrogate pairs",
            )
        if choice in seen:
            raise ConstraintError(
                f"the choice {choice!r} stands twice", pointer=f"/{index}", hint="leave one of them out"
            )
        seen.add(choice)
    if request.method not in METHODS:
        raise PalmetteError(f"select has no method {request.method!r}", hint=suggestion(str(request.method), METHODS))
    number("score()", "temperature", request.temperature, low=0)
    if request.seed is not None:
        SAMPLING["seed"]("score()", "seed", request.seed)


def find_boundary(
    tokens: Sequence[int],
    choices: Sequence[str],
    *,
    healable: int | None,
    bytes_of: Sequence[bytes | None],
    encode: Callable[[str], list[int]],
) -> Boundary:
    """Tokenise the options as they continue `tokens`, healing the boundary where it falls inside a token."""
    limit = min(_HEAL_TOKENS, len(tokens) if healable is None else healable, len(tokens))
    tail, text = _ordinary_tail(tokens, limit, bytes_of, encode)
    spelled = [encode(text + choice) for choice in choices]
    back = max((len(tail) - _common(ids, tail) for ids in spelled), default=0)
    # What stays must end the prompt, so at least one token stays for the model to read.
    back = min(back, len(tokens) - 1)
    stay = len(tail) - back
    if any(ids[:stay] != tail[:stay] for ids in spelled):
        return Boundary(tuple(tokens), tuple(tuple(encode(choice)) for choice in choices), b"", 0)
    if back == 0:
        return Boundary(tuple(tokens), tuple(tuple(ids[stay:]) for ids in spelled), b"", 0)
    rest = b"".join(bytes_of[token] or b"" for token in tail[stay:])
    return Boundary(tuple(tokens[:-back]), tuple(tuple(ids[stay:]) for ids in spelled), rest, back)


def _ordinary_tail(
    tokens: Sequence[int], limit: int, bytes_of: Sequence[bytes | None], encode: Callable[[str], list[int]]
) -> tuple[list[int], str]:
    """The longest tail of at most `limit` ordinary tokens that the tokenizer spells the same way by itself."""
    for size in range(limit, 0, -1):
        tail = list(tokens[-size:])
        pieces = [bytes_of[token] for token in tail]
        if any(not piece for piece in pieces):
            continue
        try:
            text = b"".join(piece for piece in pieces if piece).decode()
        except UnicodeDecodeError:
            continue
        if encode(text) == tail:
            return tail, text
    return [], ""


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    size = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        size += 1
    return size


@dataclass(slots=True)
class Node:
    """A token of the option tree. logprob: given all before it. option: which option ends here."""

    token: int
    parent: int
    children: dict[int, int] = field(default_factory=dict)
    logprob: float = 0.0
    option: int | None = None
    inner: int = -1


class OptionTree:
    """The options' tokens as a tree; node 0 is the prompt's end. `read` takes the logits behind an inner node."""

    def __init__(self, boundary: Boundary, vocabulary: Vocabulary) -> None:
        self.boundary = boundary
        self._vocabulary = vocabulary
        self._agree: dict[bytes, np.ndarray] = {}
        self.nodes = [Node(-1, -1)]
        self.ends: list[int] = []
        for index, tokens in enumerate(boundary.options):
            self.ends.append(self._add(tokens, index))
        self.inner = self._order()

    def _add(self, tokens: Sequence[int], option: int) -> int:
        at = 0
        for token in tokens:
            child = self.nodes[at].children.get(token)
            if child is None:
                child = len(self.nodes)
                self.nodes.append(Node(token, at))
                self.nodes[at].children[token] = child
            at = child
        if at == 0 or self.nodes[at].option is not None:
            other = "no tokens" if at == 0 else f"the tokens of choice {self.nodes[at].option}"
            raise ConstraintError(
                f"the tokenizer spells choice {option} by {other}",
                pointer=f"/{option}",
                hint="give options that differ in more than the tokenizer's normal form",
            )
        self.nodes[at].option = option
        return at

    def _order(self) -> list[int]:
        """Inner nodes, parents first and each next to its first inner child, so that chains are computed as runs."""
        order, stack = [], [child for child in self.nodes[0].children.values()]
        while stack:
            at = stack.pop()
            node = self.nodes[at]
            if node.children:
                node.inner = len(order)
                order.append(at)
                stack.extend(node.children.values())
        return order

    def inner_tokens(self) -> list[int]:
        return [self.nodes[at].token for at in self.inner]

    def inner_parents(self) -> list[int]:
        return [self.nodes[self.nodes[at].parent].inner for at in self.inner]

    def read(self, inner: int, logits: Array) -> None:
        """Set the children's log-probabilities from logits [V] behind inner node `inner` (-1: the prompt's end)."""
        node = self.nodes[0 if inner < 0 else self.inner[inner]]
        values = as_numpy(logits).astype(np.float64)
        rest = self._rest(node)
        total = _log_sum(values[self._agreeing(rest)] if rest else values)
        ids = list(node.children)
        for token, value in zip(ids, (values[ids] - total).tolist(), strict=True):
            self.nodes[node.children[token]].logprob = value

    def _rest(self, node: Node) -> bytes:
        """The healed bytes that are still to be spelled behind `node`."""
        if not self.boundary.rest:
            return b""
        spelled = 0
        while node.parent >= 0:
            spelled += len(self._vocabulary.token_bytes[node.token] or b"")
            node = self.nodes[node.parent]
        return self.boundary.rest[spelled:]

    def _agreeing(self, rest: bytes) -> np.ndarray:
        if rest not in self._agree:
            self._agree[rest] = np.array(self._vocabulary.agreeing(rest), np.int64)
        return self._agree[rest]

    def path(self, option: int) -> list[int]:
        """Nodes of an option, first token first."""
        at, result = self.ends[option], []
        while at > 0:
            result.append(at)
            at = self.nodes[at].parent
        return result[::-1]

    def token_logprobs(self, option: int) -> tuple[float, ...]:
        return tuple(self.nodes[at].logprob for at in self.path(option))

    def exclusive_logprobs(self) -> list[float]:
        """log of the probability of each option less that of the options that extend it."""
        sums = [math.fsum(self.token_logprobs(option)) for option in range(len(self.ends))]
        longer = [0.0] * len(sums)
        for option in range(len(sums)):
            at = self.nodes[self.ends[option]].parent
            while at > 0 and self.nodes[at].option is None:
                at = self.nodes[at].parent
            shorter = self.nodes[at].option if at > 0 else None
            if shorter is not None:
                longer[shorter] += math.exp(sums[option] - sums[shorter])
        return [s + (math.log1p(-x) if x < 1.0 else -math.inf) for s, x in zip(sums, longer, strict=True)]

    def greedy(self) -> tuple[int, list[float]]:
        """The option that a walk along the likeliest child at each node ends in, and each option's log-probability
        when every node's children, and the end of a shorter option there, share the whole mass."""
        local = [0.0] * len(self.ends)
        best: int | None = None
        stack = [(0, 0.0, True)]
        while stack:
            at, reached, on_path = stack.pop()
            node = self.nodes[at]
            masses = {child: math.exp(self.nodes[child].logprob) for child in node.children.values()}
            stop = max(0.0, 1.0 - sum(masses.values())) if node.option is not None and at else 0.0
            total = sum(masses.values()) + stop
            if not node.children:
                stop, total = 1.0, 1.0
            likeliest = max(masses, key=lambda child: masses[child], default=-1)
            ends_here = node.option is not None and (not masses or stop > masses[likeliest])
            if node.option is not None and at:
                local[node.option] = reached + (math.log(stop / total) if stop > 0 else -math.inf)
                if on_path and ends_here:
                    best = node.option
            for child, mass in masses.items():
                share = math.log(mass / total) if mass > 0 else -math.inf
                stack.append((child, reached + share, on_path and not ends_here and child == likeliest))
        assert best is not None
        return best, local


class ScoreJob(Job):
    """A prompt and the inner nodes of a tree of options, every one computed once.

    `tree_tokens[i]` continues node `parents[i]` (-1: the prompt's end); parents stand before their children. The
    logits behind node i (or behind the prompt's end, node -1) are given to `take(i, logits [V])` as soon as they are
    there. room: how many nodes may be added later. `account`: keywords of Job.
    """

    generates = False

    def __init__(
        self,
        prompt: Sequence[int],
        tree_tokens: Sequence[int],
        parents: Sequence[int],
        take: Callable[[int, Array], None],
        answer: Callable[[ScoreJob | BaseException], None],
        *,
        room: int = 0,
        **account: Any,
    ) -> None:
        super().__init__([*prompt, *tree_tokens], len(prompt) + len(tree_tokens) + room, **account)
        self.prompt_length = len(prompt)
        self.parents = list(parents)
        self.take = take
        self.answer = answer
        self._kept = np.arange(self.prompt_length)

    @property
    def peak(self) -> int:
        return len(self.tokens)

    @property
    def shareable(self) -> np.ndarray:
        return self.tokens[: self.prompt_length - 1]

    def spans(self, n: int) -> list[Span]:
        start, end = self.computed, self.computed + n
        result = []
        if start < self.prompt_length:
            stop = min(end, self.prompt_length)
            rows = [stop - 1] if stop == self.prompt_length else []
            result.append(Span(start, stop, np.arange(stop), rows))
            start = stop
        while start < end:
            # A node whose parent is the node right before it goes into the same run.
            stop = start + 1
            while stop < end and self.parents[stop - self.prompt_length] == stop - 1 - self.prompt_length:
                stop += 1
            result.append(Span(start, stop, self.path_to(start, stop), range(start, stop)))
            start = stop
        return result

    def keep(self, nodes: Sequence[int]) -> None:
        """Of the tree, the KV of these nodes (a way down from the prompt's end) is worth keeping."""
        self._kept = np.concatenate([self._kept, np.asarray(nodes, np.int64) + self.prompt_length])

    def kept(self) -> np.ndarray:
        """See Job.kept: the prompt, and the way through the tree that was asked to be kept."""
        return self._kept[self._kept < self.computed]

    def read(self, rows: Sequence[int], logits: Array) -> None:
        """See Job.read."""
        for row, line in zip(rows, logits, strict=True):
            self.take(row - self.prompt_length, line)

    def go_on(self, drawn: Drawn | None) -> None:
        """See Job.go_on: answers once every node is computed."""
        if self.remaining == 0:
            self.done = True
            self.answer(self)

    def path_to(self, start: int, end: int) -> np.ndarray:
        """Indices of the prompt's tokens, the ancestors of node `start`, and start:end."""
        ancestors = []
        node = self.parents[start - self.prompt_length]
        while node >= 0:
            ancestors.append(node + self.prompt_length)
            node = self.parents[node]
        return np.concatenate([np.arange(self.prompt_length), ancestors[::-1], np.arange(start, end)]).astype(np.int64)

    def usage(self) -> Usage:
        return Usage(self.prompt_length, self.cached, preemptions=self.preemptions)

    def fail(self, error: BaseException) -> None:
        self.done = self.failed = True
        self.answer(error)


def result_of(
    request: ScoreRequest, tree: OptionTree, usage: Usage, *, unconditional: OptionTree | None, seed: int
) -> ScoreResult:
    """The answer, once every inner node has been read. `unconditional`: the same options behind no prompt."""
    count = len(request.choices)
    exact = tree.exclusive_logprobs()
    each = [tree.token_logprobs(option) for option in range(count)]
    best: int | None = None
    if request.method == "probability":
        scores = exact
    elif request.method == "token_length_normalized":
        scores = [math.fsum(values) / len(values) for values in each]
    elif request.method == "greedy_token_selection":
        best, scores = tree.greedy()
    else:
        assert unconditional is not None
        plain = [unconditional.token_logprobs(option) for option in range(count)]
        scores = [(math.fsum(a) - math.fsum(b)) / len(a) for a, b in zip(each, plain, strict=True)]
    index = best if best is not None else max(range(count), key=lambda option: scores[option])
    probabilities = _softmax(scores)
    if request.temperature > 0:
        weights = _softmax([score / request.temperature for score in scores])
        point, index = uniform(seed, len(request.tokens)), count - 1
        for option, weight in enumerate(weights):
            point -= weight
            if point < 0:
                index = option
                break
    return ScoreResult(
        index=index,
        choice=request.choices[index],
        probabilities=ByChoice(request.choices, probabilities),
        logprobs=ByChoice(request.choices, exact),
        scores=ByChoice(request.choices, scores),
        label_mass=min(1.0, math.fsum(math.exp(value) for value in exact)),
        tokens=tree.boundary.options,
        token_logprobs=tuple(each),
        method=request.method,
        usage=usage,
        healed=tree.boundary.healed,
    )


def _log_sum(values: np.ndarray) -> float:
    """log of the sum of exp of float64 values."""
    top = float(values.max(initial=-math.inf))
    if not math.isfinite(top):
        return top
    return top + math.log(float(np.exp(values - top).sum()))


def _softmax(values: Sequence[float]) -> list[float]:
    top = max(values)
    if top == -math.inf:
        return [1.0 / len(values)] * len(values)
    weights = [math.exp(value - top) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
