"""The mock's tokenizer: short pieces of words, with a ChatML template. Needs no vocabulary file.

As with a real tokenizer, a text cut in two tokenises otherwise than as a whole, so faults of that kind show in tests.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

from palmette.runtime.protocol import Piece

_CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_CONTROLS = re.compile("(" + "|".join(map(re.escape, _CONTROL)) + ")")
# A blank with up to three letters, up to four letters, or any one character.
_WORDS = re.compile(r" ?\w{1,3}(?!\w)| \w{1,3}|\w{1,4}|\s|.", re.DOTALL)


class MockCodec:
    """Token ids are given out as texts are first seen."""

    def __init__(self) -> None:
        self._texts = list(_CONTROL)
        self._ids: dict[str, int] = {}
        self._lock = threading.Lock()

    def encode(self, pieces: str | Sequence[Piece], *, start: bool = False) -> list[int]:
        ids: list[int] = []
        plain = ""
        for piece in [Piece(pieces)] if isinstance(pieces, str) else pieces:
            stretches = _CONTROLS.split(piece.text) if piece.trusted else [piece.text]
            for stretch in stretches:
                if piece.trusted and stretch in _CONTROL:
                    ids += self._words(plain)
                    plain = ""
                    ids.append(_CONTROL.index(stretch))
                else:
                    plain += stretch
        return ids + self._words(plain)

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self._texts[token] for token in tokens if token >= len(_CONTROL))

    def chat_open(self, roles: Sequence[str]) -> str:
        return f"<|im_start|>{roles[-1]}\n"

    def chat_close(self, roles: Sequence[str]) -> str:
        return "<|im_end|>\n"

    def chat_trims(self, role: str) -> bool:
        return False

    def end_token(self, text: str) -> int | None:
        return next((index for index, control in enumerate(_CONTROL) if text.startswith(control)), None)

    def _words(self, text: str) -> list[int]:
        return [self._id(word) for word in _WORDS.findall(text)]

    def _id(self, word: str) -> int:
        known = self._ids.get(word)
        if known is not None:
            return known
        with self._lock:
            if word not in self._ids:
                self._texts.append(word)
                self._ids[word] = len(self._texts) - 1
            return self._ids[word]
