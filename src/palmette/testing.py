"""For tests of programs: a backend that answers from a script, and a check of texts against constraints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from palmette.interpreter.backends.mock import Answer as Answer
from palmette.interpreter.backends.mock import MockBackend as MockBackend
from palmette.interpreter.backends.mock import Partial as Partial
from palmette.interpreter.backends.mock_codec import MockCodec as MockCodec

__all__ = ["Answer", "MockBackend", "MockCodec", "Partial", "accepts"]


def accepts(
    text: str | bytes,
    *,
    json_schema: Mapping[str, Any] | str | bool | None = None,
    regex: str | None = None,
    choices: Iterable[str] | None = None,
    grammar: str | None = None,
    tokenizer: Any = None,
) -> bool:
    """Whether `text` can be a complete output under the constraint, of which exactly one is given. `tokenizer` (an
    engine's) says which tokens spell it; by default each byte is one."""
    from palmette.runtime.constraints.accepts import accepts as check

    return check(
        text,
        json_schema=json_schema,
        regex=regex,
        choices=None if choices is None else list(choices),
        grammar=grammar,
        tokenizer=tokenizer,
    )
