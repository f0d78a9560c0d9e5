"""The text of a state so far, as tokens: literals are tokenised once, generated tokens stay as the model made them.

    text:    parts[0] parts[1] ...                  | held (an open message that may yet be stripped)
    tokens:  runs[0]  runs[1] ... | pending pieces  | held
             known to the engine  | tokenised with the next request

Parts and runs do not pair up: adjoining literal parts are tokenised together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from palmette.errors import PalmetteError
from palmette.runtime.protocol import Codec, Piece


class Message(NamedTuple):
    """A chat message: `parts[start:end]` of the transcript; `end` is None while it is open."""

    role: str
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """All tokens so far, and how many the last literal stretch added, with its text."""

    tokens: tuple[int, ...]
    literal: str
    literal_tokens: int


class Transcript:
    """Mutable; one state owns it. `copy` is cheap: runs and parts are shared."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._held: list[Piece] | None = None
        self._pending: list[Piece] = []
        self._runs: list[tuple[int, ...]] = []
        # How many of the last tokens are literal text, and may be spelled anew together with a choice.
        self.literal_tail = 0
        self._messages: list[Message] = []

    def copy(self) -> Transcript:
        twin = Transcript()
        twin.parts = list(self.parts)
        twin._held = None if self._held is None else list(self._held)
        twin._pending = list(self._pending)
        twin._runs = list(self._runs)
        twin.literal_tail = self.literal_tail
        twin._messages = list(self._messages)
        return twin

    # -- writing

    def literal(self, text: str, trusted: bool = False) -> None:
        piece = Piece(text, trusted)
        if self._held is not None:
            self._held.append(piece)
        else:
            self._commit(piece)

    def generated(self, text: str, tokens: Sequence[int]) -> None:
        self.parts.append(text)
        self._runs.append(tuple(tokens))
        if tokens:
            self.literal_tail = 0

    def drop_tokens(self, count: int) -> None:
        """Takes the last `count` tokens away, whose text the next tokens spell anew; the text stays."""
        while count > 0 and self._runs:
            last = self._runs.pop()
            if len(last) > count:
                self._runs.append(last[:-count])
            count -= len(last)

    def begin(self, role: str, codec: Codec) -> None:
        """Opens a message of `role`, by the codec's template."""
        if self.role is not None:
            raise PalmetteError(
                f"a {role} message begins inside a {self.role} message", hint=f"end the {self.role} message first"
            )
        opening = codec.chat_open([*self._roles(), role])
        if opening:
            self._commit(Piece(opening, True))
        self._messages.append(Message(role, len(self.parts), None))
        self._held = [] if codec.chat_trims(role) else None

    def end(self, codec: Codec) -> None:
        """Closes the open message; one that is literal throughout is stripped where the template does so."""
        held, self._held = self._held, None
        for piece in _stripped(held or []):
            self._commit(piece)
        message = self._messages[-1]
        self._messages[-1] = message._replace(end=len(self.parts))
        closing = codec.chat_close(self._roles())
        if closing:
            self._commit(Piece(closing, True))

    # -- reading

    @property
    def role(self) -> str | None:
        """The role of the open message."""
        return self._messages[-1].role if self._messages and self._messages[-1].end is None else None

    @property
    def length(self) -> int:
        """How many parts there are, held ones too: a mark for `text_since`."""
        return len(self.parts) + len(self._held or ())

    def text(self) -> str:
        return "".join(self.parts) + "".join(piece.text for piece in self._held or ())

    def text_since(self, mark: int) -> str:
        return "".join([*self.parts, *(piece.text for piece in self._held or ())][mark:])

    def messages(self) -> list[dict[str, str]]:
        texts = [*self.parts, *(piece.text for piece in self._held or ())]
        return [{"role": m.role, "content": "".join(texts[m.start : m.end])} for m in self._messages]

    def tokens(self, codec: Codec) -> list[int]:
        """All tokens, with the pending text tokenised as it stands now; changes nothing."""
        known = [token for run in self._runs for token in run]
        rest = [*self._pending, *(self._held or ())]
        return known + codec.encode(rest, start=not self._runs) if rest else known

    def end_token(self, codec: Codec) -> int | None:
        """The token that ends an open assistant message by the template."""
        return codec.end_token(codec.chat_close(self._roles())) if self.role == "assistant" else None

    def prompt(self, codec: Codec) -> Prompt:
        """Tokenises what is pending, for good, and gives the whole prompt."""
        for piece in self._held or ():
            self._commit(piece)
        # From here on the message has tokens that the engine knows: it is not stripped any more.
        self._held = None
        literal, count = "".join(piece.text for piece in self._pending), 0
        if self._pending or not self._runs:
            run = tuple(codec.encode(self._pending, start=not self._runs))
            count = len(run)
            self.literal_tail += count
            self._runs.append(run)
            self._pending = []
        return Prompt(tuple(token for run in self._runs for token in run), literal, count)

    def _commit(self, piece: Piece) -> None:
        self.parts.append(piece.text)
        self._pending.append(piece)

    def _roles(self) -> list[str]:
        return [message.role for message in self._messages]


def _stripped(pieces: list[Piece]) -> list[Piece]:
    """The pieces of one message without white space at both ends, one for one."""
    texts = [piece.text for piece in pieces]
    for order, strip in ((range(len(texts)), str.lstrip), (reversed(range(len(texts))), str.rstrip)):
        for index in order:
            texts[index] = strip(texts[index])
            if texts[index]:
                break
    return [Piece(text, piece.trusted) for text, piece in zip(texts, pieces, strict=True)]
