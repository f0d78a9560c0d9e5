"""The workloads as the clock sees them, the same for every engine. What a run's figures mean is in table.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from .texts import TextEngine

Data = Mapping[str, Any]
Figures = dict[str, Any]


def one_stream(engine: TextEngine, data: Data) -> Figures:
    """The first token is the prompt's work, so decode counts from it to the last."""
    times = engine.stream(data["prompt"], data["new"])
    figures: Figures = {"decode": (len(times) - 1) / (times[-1] - times[0])}
    for length, prompt in data["first"].items():
        began = perf_counter()
        figures[f"first_{length}"] = (engine.stream(prompt, 2)[0] - began) * 1e3
    return figures


def together(engine: TextEngine, data: Data) -> Figures:
    seconds, texts = timed(lambda: engine.complete(data["prompts"], data["new"]))
    return {"rate": sum(text.tokens for text in texts) / seconds}


def prefix(engine: TextEngine, data: Data) -> Figures:
    """Cold: no engine has seen this prefix. Warm: the same prefix, other questions."""
    call = partial(engine.complete, new=data["new"], prefix=data["prefix"])
    return {name: timed(partial(call, data[name]))[0] for name in ("cold", "warm")}


def chats(engine: TextEngine, data: Data) -> Figures:
    seconds, tokens = timed(lambda: engine.converse(data["system"], data["turns"], data["new"]))
    return {"seconds": seconds, "tokens": tokens}


def schemas(engine: TextEngine, data: Data) -> Figures:
    """The texts go back too: the driver judges them, with one validator for all engines."""
    talks = [[(role, content) for role, content in talk] for talk in data["talks"]]
    seconds, texts = timed(lambda: engine.json(talks, data["schemas"], data["limit"]))
    tokens = sum(text.tokens for text in texts)
    return {"rate": tokens / seconds, "tokens": tokens, "texts": [text.text for text in texts]}


def letters(engine: TextEngine, data: Data) -> Figures:
    seconds, chosen = timed(lambda: engine.letters(data["prefix"], data["questions"]))
    return {"rate": len(chosen) / seconds, "right": 100 * right(chosen, data)}


def options(engine: TextEngine, data: Data) -> Figures:
    seconds, chosen = timed(lambda: engine.options(data["prefix"], data["questions"], data["options"]))
    return {"rate": len(chosen) / seconds, "right": 100 * right(chosen, data)}


def right(chosen: list[int], data: Data) -> float:
    """The share of questions that were answered well: engines that score the same agree in it."""
    gold: list[int] = data["gold"]
    return sum(a == b for a, b in zip(chosen, gold, strict=True)) / len(chosen)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = perf_counter()
    result = call()
    return perf_counter() - began, result


class Run(NamedTuple):
    """requests: at once. shared: all behind one prefix."""

    figures: Callable[[TextEngine, Data], Figures]
    requests: int
    shared: bool = False


RUNS = {
    "A": Run(one_stream, 1),
    "B32": Run(together, 32),
    "B64": Run(together, 64),
    "C": Run(prefix, 64, shared=True),
    "D": Run(chats, 8),
    "E": Run(schemas, 32),
    "E2": Run(schemas, 32),
    "F1": Run(letters, 64, shared=True),
    "F2": Run(options, 64, shared=True),
}


def run(engine: TextEngine, workload: str, data: Data) -> Figures:
    figures, requests, shared = RUNS[workload]
    engine.prepare(requests, shared)
    took, found = timed(lambda: figures(engine, data))
    return {**found, "took": took}
