"""Chat templates, cut at the messages' contents.

A template is rendered with a mark in place of each content, and the text is cut at the marks. What opens and closes a
message is thus known before its content exists, and earlier text never changes as a conversation grows:

    <|im_start|>user\\n ⟨0⟩ <|im_end|>\\n<|im_start|>assistant\\n ⟨1⟩ <|im_end|>\\n
    └── open(u) ────┘     └─ close(u) ─┘└── open(u, a) ───────┘     └ close(u, a) ┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from palmette.errors import ModelError

if TYPE_CHECKING:
    from palmette.runtime.jinja import Template


class ChatTemplate:
    """A Jinja template as models carry it; None or "" is a model without one, whose every use raises ModelError.

    variables: what the template may name beside the messages, such as bos_token and eos_token.
    """

    def __init__(self, source: str | None, variables: Mapping[str, str], *, name: str = "") -> None:
        self.source = source or None
        self.name = name or "the model"
        self._variables = dict(variables)
        # Rendering costs a walk over the whole conversation; programs ask for the same roles again and again.
        self._compile = lru_cache(maxsize=1)(self._compile_uncached)
        self._open = lru_cache(maxsize=1024)(self._open_uncached)
        self._close = lru_cache(maxsize=1024)(self._close_uncached)
        self._trims = lru_cache(maxsize=64)(self._trims_uncached)

    def open(self, roles: Sequence[str]) -> str:
        """Text between the end of message roles[-2], already closed, and the content of roles[-1]."""
        return self._open(tuple(roles))

    def close(self, roles: Sequence[str]) -> str:
        """Text that ends the content of roles[-1]."""
        return self._close(tuple(roles))

    def trims(self, role: str) -> bool:
        """Whether white space around a message of this role is lost."""
        return self._trims(role)

    def _open_uncached(self, roles: tuple[str, ...]) -> str:
        before, last = roles[:-1], len(roles) - 1
        if roles[-1] == "assistant":
            # What the template puts in front of an answer may differ from how it writes past answers.
            try:
                text = self._render(before, answer=True)
            except ModelError:
                if before:
                    raise
                text = self._spread(roles).partition(_mark(0))[0]
        else:
            text = self._spread(roles).partition(_mark(last))[0]
        if not before:
            return text
        _, found, joint = text.rpartition(_mark(last - 1))
        if not found or any(_mark(i) in joint for i in range(last)):
            if "system" in before:  # some templates move the system text along, into the newest message
                return self._open(tuple(r for r in before if r != "system") + roles[-1:])
            raise self._refusal(roles, "it leaves out or moves the content of earlier messages")
        return _after_common(joint, self._close(before))

    def _close_uncached(self, roles: tuple[str, ...]) -> str:
        last = len(roles) - 1
        tail = self._spread(roles).rpartition(_mark(last))[2]
        return tail.partition(_mark(last + 1))[0]

    def _trims_uncached(self, role: str) -> bool:
        roles = (role,) if role in ("system", "user") else ("user", role)
        messages = [{"role": r, "content": f" {_mark(i)} "} for i, r in enumerate(roles)]
        try:
            text = self._run(messages, roles, answer=False)
        except ModelError:
            text = self._run([*messages, {"role": "user", "content": "x"}], (*roles, "user"), answer=False)
        return f" {_mark(len(roles) - 1)} " not in text

    def _spread(self, roles: tuple[str, ...]) -> str:
        """The text of these messages with marks, the last one's in it. A template that writes the last message only
        once a user's follows (system text inside the first user message) is given one."""
        try:
            text = self._render(roles)
            if _mark(len(roles) - 1) in text:
                return text
            refusal = self._refusal(roles, f"it leaves out the content of a {roles[-1]} message")
        except ModelError as error:
            refusal = error
        if roles[-1] != "system":
            raise refusal
        try:
            text = self._render((*roles, "user"))
        except ModelError:
            raise refusal from None
        if _mark(len(roles) - 1) not in text:
            raise refusal
        return text

    def _render(self, roles: tuple[str, ...], *, answer: bool = False) -> str:
        return self._run([{"role": r, "content": _mark(i)} for i, r in enumerate(roles)], roles, answer=answer)

    def _run(self, messages: list[dict[str, str]], roles: tuple[str, ...], *, answer: bool) -> str:
        template = self._compile()
        from palmette.runtime.jinja import TemplateError

        try:
            return template.render(messages=messages, add_generation_prompt=answer, **self._variables)
        except TemplateError as error:
            raise self._refusal(roles, str(error)) from error
        except (TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
            raise self._refusal(roles, f"{type(error).__name__}: {error}") from error

    def _refusal(self, roles: tuple[str, ...], words: str) -> ModelError:
        told = ", ".join(roles) or "none"
        return ModelError(
            f"the chat template of {self.name} refuses the roles {told}: {words}",
            hint="use the roles in an order that the model was trained with",
        )

    def _compile_uncached(self) -> Template:
        if self.source is None:
            raise ModelError(
                f"{self.name} has no chat template, so roles mean nothing to it",
                hint="use an instruction-tuned model, write the prompt as plain text, or put the template into the "
                "model's folder as chat_template.jinja",
            )
        from palmette.runtime.jinja import TemplateError, compiled

        try:
            return compiled(self.source)
        except TemplateError as error:
            raise ModelError(
                f"the chat template of {self.name} cannot be read: {error}",
                hint="correct the template in the model's files",
            ) from error


def default_template(template: Any) -> str | None:
    """The template out of what a tokenizer's config may hold: text, or a list of named ones."""
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default") or next(iter(named.values()), None)
    return template or None


def _mark(index: int) -> str:
    # Private-use characters: no template trims, splits at or contains them.
    return f"\ue002{index}\ue003"


def _after_common(text: str, prefix: str) -> str:
    """`text` after what it shares with `prefix`: all of it, but for templates that end the last message otherwise."""
    same = next((i for i, (a, b) in enumerate(zip(text, prefix, strict=False)) if a != b), min(len(text), len(prefix)))
    return text[same:]
