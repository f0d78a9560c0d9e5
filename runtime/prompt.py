"""What `generate` takes as a prompt: text, token ids, chat messages, or a list of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palmette.errors import ModelError, PalmetteError
from palmette.runtime.protocol import Piece
from palmette.runtime.tokenizer import Tokenizer

_KINDS = "a text, a list of token ids, a list of messages, or a list of such prompts"


def prompts_of(prompt: Any) -> tuple[list[Any], bool]:
    """The prompts, and whether there was a list of them. An empty list is a list of no prompts."""
    if isinstance(prompt, str):
        return [prompt], False
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise TypeError(f"a prompt is {_KINDS}, not {type(prompt).__name__}")
    if prompt and isinstance(prompt[0], int | Mapping):
        return [prompt], False
    return list(prompt), True


def prompt_tokens(tokenizer: Tokenizer, prompt: Any) -> tuple[int, ...]:
    """Token ids of one prompt. BOS as the tokenizer's config says; a list of token ids is taken as it is."""
    if isinstance(prompt, str):
        return tuple(tokenizer.encode_prompt(prompt))
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise TypeError(f"a prompt is {_KINDS}, not {type(prompt).__name__}")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        return tuple(prompt)
    if all(isinstance(item, Mapping) for item in prompt):
        return tuple(tokenizer.encode(chat_pieces(tokenizer, prompt), start=True))
    raise TypeError(f"a prompt is {_KINDS}; this list mixes kinds")


def chat_pieces(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> list[Piece]:
    """Messages by the model's chat template. An assistant message at the end is left open, to be continued. An empty
    system message counts as absent where the template refuses one."""
    pieces: list[Piece] = []
    roles: list[str] = []
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise PalmetteError(
                f"message {index} is {dict(message)!r}", hint="a message has a text role and a text content"
            )
        unknown = set(message) - {"role", "content"}
        if unknown:
            raise PalmetteError(f"message {index} has {sorted(unknown)}", hint="only role and content are understood")
        try:
            opening = tokenizer.chat_open([*roles, role])
        except ModelError:
            if role == "system" and not content and index + 1 < len(messages):
                continue
            raise
        roles.append(role)
        pieces.append(Piece(opening, trusted=True))
        pieces.append(Piece(content.strip() if tokenizer.chat_trims(role) else content))
        if role != "assistant" or index + 1 < len(messages):
            pieces.append(Piece(tokenizer.chat_close(roles), trusted=True))
    if roles[-1] != "assistant":
        roles.append("assistant")
        pieces.append(Piece(tokenizer.chat_open(roles), trusted=True))
    return pieces
