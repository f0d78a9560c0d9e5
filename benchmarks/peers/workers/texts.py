"""What a worker's engine has to be able to do. All texts are whole ones, control tokens spelled; greedy throughout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# (role, content) of each message.
Messages = Sequence[tuple[str, str]]


class Refused(Exception):
    """The engine has no such thing. Its words go into the table's notes."""


class Text(NamedTuple):
    text: str
    tokens: int


class TextEngine(ABC):
    """Primitives. Those that raise Refused here are optional."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Version and settings, for the record."""

    def prepare(self, requests: int, shared: bool) -> None:
        """What comes next, untimed: so many requests at once, or all behind one prefix (`shared`)."""
        return  # most have nothing to prepare

    @abstractmethod
    def stream(self, prompt: str, new: int) -> list[float]:
        """Seconds (time.perf_counter) at which each of `new` tokens came. No end token ends it."""

    @abstractmethod
    def complete(self, prompts: Sequence[str], new: int, *, prefix: str = "") -> list[Text]:
        """All prompts at once, each behind `prefix`, `new` tokens each whatever they are."""

    def converse(self, system: str, turns: Sequence[Sequence[str]], new: int) -> int:
        """Conversations at the same time, of each its user turns, each answered by `new` tokens. Their tokens."""
        talks = [[("system", system)] for _ in turns]
        tokens = 0
        for said in zip(*turns, strict=True):
            for talk, text in zip(talks, said, strict=True):
                talk.append(("user", text))
            for talk, answer in zip(talks, self.complete([chat(talk) for talk in talks], new), strict=True):
                talk.append(("assistant", answer.text))
                tokens += answer.tokens
        return tokens

    def json(self, talks: Sequence[Messages], schemas: Sequence[Mapping[str, Any]], limit: int) -> list[Text]:
        """An answer to each that its schema allows, of at most `limit` tokens."""
        raise Refused("no JSON schemas")

    def letters(self, prefix: str, questions: Sequence[str]) -> list[int]:
        """Of each question behind the prefix, which of " A", " B", " C", " D" goes on best."""
        raise Refused("no log-probabilities of given tokens")

    def options(self, prefix: str, questions: Sequence[str], options: Sequence[Sequence[str]]) -> list[int]:
        """Of each question, which of its options goes on best, by the log-probability of the whole option."""
        raise Refused("no log-probabilities of given texts")

    def close(self) -> None:
        """End what the engine has started."""
        return  # what is in process ends with it


LETTERS = (" A", " B", " C", " D")


def chat(talk: Messages) -> str:
    """ChatML up to the assistant's words: what SmolLM2's template makes of messages that begin with a system's."""
    said = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in talk)
    return said + "<|im_start|>assistant\n"
