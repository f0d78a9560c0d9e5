"""The model that a benchmark runs, loaded once for all its engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from palmette.runtime.models.model import Model
    from palmette.runtime.tokenizer import Tokenizer

TINY = "tiny"

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Subject(NamedTuple):
    """path: of the model's files; None: it has none."""

    name: str
    path: Path | None
    model: Model
    tokenizer: Tokenizer


def load(name: str) -> Subject:
    """A model as `Engine` takes it, or "tiny": small, random, over bytes, the same everywhere. ModelError where there
    is none of that name."""
    if name == TINY:
        from palmette.runtime.models.tiny import tiny_model

        return Subject(name, None, *tiny_model(chat_template=_CHATML, max_context=1 << 16))
    from palmette.runtime.models.model import load_model
    from palmette.runtime.models.registry import resolve

    path = resolve(name)
    return Subject(name, path, *load_model(path))
