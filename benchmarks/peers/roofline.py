"""The least time that a workload can take: bytes and multiply-adds counted, over what the machine can do of each.

A step reads all weights once, and the KV of each context once, shared prefixes once for all; it multiplies each token
by the layers' weights, each row that is sampled by the head's, and each query by the keys and values before it. Of the
three the two kinds of arithmetic are added up, and a step takes as long as the arithmetic or the reading, whichever is
longer. All that is left out (norms, sampling, masks, Python, the text itself) makes the bound lower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from palmette.benchmarks.peers.ceilings import Ceilings

# Bits of one weight by form, scales included.
BITS = {"float32": 32.0, "bfloat16": 16.0, "float16": 16.0, "Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5.0}
FORMATS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}

Size = Mapping[str, Any]


class Shape(NamedTuple):
    """Of a model as it is held. weights: by form, how many; pair: multiply-adds of one query with one key and value."""

    weights: dict[str, int]
    head: int
    kv_bytes: int
    pair: int

    @property
    def bytes(self) -> int:
        return int(sum(count * BITS[form] / 8 for form, count in self.weights.items()))

    @property
    def main(self) -> str:
        """The form of most weights, as the kernels call it."""
        form = max(self.weights, key=lambda form: self.weights[form])
        return FORMATS.get(form, form)


def shape(facts: Mapping[str, Any]) -> Shape | None:
    """From what palmette's worker says of itself; None for other engines."""
    if "forms" not in facts:
        return None
    pair = 2 * facts["heads"] * facts["head_dim"] * facts["layers"]
    return Shape(facts["forms"], facts["head_weights"], facts["kv_bytes"], pair)


class Step(NamedTuple):
    """tokens: computed. rows: of the head. kv: tokens whose KV is read. pairs: of queries and keys."""

    tokens: float
    rows: float
    kv: float
    pairs: float


class Roof(NamedTuple):
    model: Shape
    ceilings: Ceilings

    def seconds(self, step: Step) -> float:
        model, (read, macs, _) = self.model, self.ceilings
        layers = sum(model.weights.values()) - model.head
        done = (layers * step.tokens + model.head * step.rows) / macs[model.main]
        # Keys and values are 16 bits wide or more: none of their products is quicker than those of bfloat16.
        # Where theirs was not measured, the quickest of those that were still keeps the bound a bound.
        done += step.pairs * model.pair / macs.get("BF16", max(macs.values()))
        return max(done, (model.bytes + model.kv_bytes * step.kv) / read[model.bytes])

    def figures(self, workload: str, size: Size, found: Mapping[str, float]) -> dict[str, float]:
        """The bounds of a workload's figures, in their units; found: what came out, for lengths that only a run
        tells."""
        count = _COUNTED.get(workload)
        return {} if count is None else count(self, size, found)


def _decode(roof: Roof, steps: float, rows: float, context: float, shared: float = 0.0) -> float:
    """Seconds of so many steps of `rows` requests that begin at `context` tokens each, `shared` of them common."""
    total = 0.0
    for i in range(round(steps)):
        each = context + i
        total += roof.seconds(Step(rows, rows, shared + rows * (each - shared), rows * each))
    return total


def _prefill(roof: Roof, requests: float, tokens: float, before: float = 0.0) -> float:
    """Seconds for so many new tokens of each request, behind what is common to all."""
    pairs = requests * tokens * (before + tokens / 2)
    return roof.seconds(Step(requests * tokens, requests, before + requests * tokens, pairs))


def _one_stream(roof: Roof, size: Size, found: Mapping[str, float]) -> dict[str, float]:
    figures = {f"first_{n}": 1e3 * _prefill(roof, 1, n) for n in (128, 512, 2048)}
    return {"decode": 255 / _decode(roof, 255, 1, size["prompt"]), **figures}


def _together(roof: Roof, size: Size, found: Mapping[str, float]) -> dict[str, float]:
    n = size["requests"]
    return {"rate": n * 128 / (_prefill(roof, n, size["prompt"]) + _decode(roof, 127, n, size["prompt"]))}


def _prefix(roof: Roof, size: Size, found: Mapping[str, float]) -> dict[str, float]:
    n, prefix, question = size["requests"], size["prefix"], size["question"]
    warm = _prefill(roof, n, question, prefix) + _decode(roof, 15, n, prefix + question, prefix)
    return {"cold": _prefill(roof, 1, prefix) + warm, "warm": warm}


def _chats(roof: Roof, size: Size, found: Mapping[str, float]) -> dict[str, float]:
    n, turn = size["requests"], size["turn"]
    seconds, context = 0.0, 40.0
    for _ in range(size["turns"]):
        pairs = n * turn * (context + turn / 2)
        seconds += roof.seconds(Step(n * turn, n, n * (context + turn), pairs))
        context += turn
        seconds += _decode(roof, 63, n, context)
        context += 64
    return {"seconds": seconds}


def _schemas(roof: Roof, size: Size, found: Mapping[str, float]) -> dict[str, float]:
    """As if all were of the same length, and no token of them forced."""
    n, length = size["requests"], found["tokens"] / size["requests"]
    seconds = _prefill(roof, n, size["prompt"]) + _decode(roof, length - 1, n, size["prompt"])
    return {"rate": found["tokens"] / seconds}


def _letters(roof: Roof, size: Size, found: Mapping[str, float]) -> dict[str, float]:
    n, prefix, question = size["requests"], size["prefix"], size["question"]
    return {"rate": n / (_prefill(roof, 1, prefix) + _prefill(roof, n, question, prefix))}


def _options(roof: Roof, size: Size, found: Mapping[str, float]) -> dict[str, float]:
    """All but the last token of each option are computed, and each is looked up in logits of its own."""
    n, prefix, question, option = size["requests"], size["prefix"], size["question"], size["option"]
    tokens = question + 4 * (option - 1)
    step = Step(n * tokens, n * (1 + 4 * (option - 1)), prefix + n * tokens, n * tokens * (prefix + question))
    return {"rate": n / (_prefill(roof, 1, prefix) + roof.seconds(step))}


_COUNTED: dict[str, Callable[[Roof, Size, Mapping[str, float]], dict[str, float]]] = {
    "A": _one_stream,
    "B32": _together,
    "B64": _together,
    "C": _prefix,
    "D": _chats,
    "E": _schemas,
    "E2": _schemas,
    "F1": _letters,
    "F2": _options,
}
