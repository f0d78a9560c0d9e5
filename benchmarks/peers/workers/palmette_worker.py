"""palmette in its own process: `Engine`, and programs where a user would write programs. MODEL FORM THREADS."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import palmette as pt

from .texts import LETTERS, Messages, Text, TextEngine
from .wire import serve


@pt.function
def go_on(s: pt.State, prompt: str, new: int) -> None:
    s += pt.special(prompt)
    s += pt.gen("text", max_tokens=new, ignore_eos=True)


@pt.function
def conversation(s: pt.State, system: str, turns: Sequence[str], new: int) -> None:
    s += pt.system(system)
    for i, turn in enumerate(turns):
        s += pt.user(turn)
        s += pt.assistant(pt.gen(f"answer {i}", max_tokens=new, ignore_eos=True))


@pt.function
def extract(s: pt.State, talk: Messages, schema: Mapping[str, Any], limit: int) -> None:
    for role, content in talk:
        s += pt.role(role, content)
    s += pt.assistant(pt.gen("text", max_tokens=limit, json_schema=schema))


@pt.function
def choose(s: pt.State, prompt: str, options: Sequence[str]) -> None:
    s += prompt
    s += pt.select("option", options)


class Palmette(TextEngine):
    def __init__(self, model: str, form: str, threads: int) -> None:
        self.engine = pt.Engine(model, quantization=None if form == "stored" else form, threads=threads)

    def facts(self) -> dict[str, Any]:
        arch = self.engine.model.arch
        return {
            "version": pt.__version__,
            "kernels": self.engine.model.kernel_reason,
            "fingerprint": self.engine.model.fingerprint,
            "forms": dict(self.engine.model.forms),
            "kv_bytes": self.engine.model.kv_bytes_per_token,
            "layers": len(arch.layers),
            "heads": arch.heads,
            "head_dim": arch.head_dim,
            "head_weights": arch.vocab * arch.hidden,
        }

    def stream(self, prompt: str, new: int) -> list[float]:
        times: list[float] = []
        for chunk in self.engine.generate(prompt, stream=True, max_tokens=new, ignore_eos=True, temperature=0):
            times += [perf_counter()] * len(chunk.tokens)
        return times

    def complete(self, prompts: Sequence[str], new: int, *, prefix: str = "") -> list[Text]:
        items = [{"prompt": prefix + prompt, "new": new} for prompt in prompts]
        return [_text(state) for state in go_on.run_batch(items, backend=self.engine, temperature=0)]

    def converse(self, system: str, turns: Sequence[Sequence[str]], new: int) -> int:
        items = [{"system": system, "turns": said, "new": new} for said in turns]
        states = conversation.run_batch(items, backend=self.engine, temperature=0)
        answers = [state.result(f"answer {i}") for state in states for i in range(len(turns[0]))]
        return sum(answer.completion_tokens for answer in answers)

    def json(self, talks: Sequence[Messages], schemas: Sequence[Mapping[str, Any]], limit: int) -> list[Text]:
        items = [{"talk": talk, "schema": schema, "limit": limit} for talk, schema in zip(talks, schemas, strict=True)]
        return [_text(state) for state in extract.run_batch(items, backend=self.engine, temperature=0)]

    def letters(self, prefix: str, questions: Sequence[str]) -> list[int]:
        return self.options(prefix, questions, [LETTERS] * len(questions))

    def options(self, prefix: str, questions: Sequence[str], options: Sequence[Sequence[str]]) -> list[int]:
        items = [
            {"prompt": prefix + question, "options": texts} for question, texts in zip(questions, options, strict=True)
        ]
        states = choose.run_batch(items, backend=self.engine, temperature=0)
        return [list(texts).index(state["option"]) for state, texts in zip(states, options, strict=True)]

    def close(self) -> None:
        self.engine.close()


def _text(state: pt.State) -> Text:
    result = state.result("text")
    return Text(result.text, result.completion_tokens)


if __name__ == "__main__":
    serve(lambda: Palmette(sys.argv[1], sys.argv[2], int(sys.argv[3])))
