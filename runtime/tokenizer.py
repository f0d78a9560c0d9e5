"""Text to token ids and back, with a wall between the text of templates and the text of anybody else.

The merges and rules come from the `tokenizers` library, which reads control tokens either everywhere in a text or
nowhere. Here that is decided piece by piece: in trusted pieces each control token is replaced by a *stand-in*, an added
token with a random name that nobody can write; then the whole text is encoded at once with the reading of control
tokens off, and the stand-ins' ids are mapped back. So what adjoins is encoded jointly, whichever pieces it came in.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import tokenizers

from palmette.runtime.chat import ChatTemplate
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Piece


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What a Tokenizer is made of; the readers of GGUF metadata and of Hugging Face folders fill it.

    backend: the library's tokenizer. leading_blank: where the model's text begins with a blank that nobody wrote
    (SentencePiece): never, at the start of a sequence only, or after each control token also; `backend` does it, and
    `continuing` is the same tokenizer without (None where they are one).
    token_bytes: per id what it spells, None for control and unused ids. control: spelling -> id of control tokens.
    bos_id, add_bos: the token that begins sequences, and whether prompts get it.
    """

    backend: tokenizers.Tokenizer
    token_bytes: list[bytes | None]
    control: dict[str, int]
    eos_ids: frozenset[int]
    bos_id: int | None = None
    add_bos: bool = False
    chat_template: str | None = None
    name: str = ""
    leading_blank: Literal["never", "first", "always"] = "never"
    continuing: tokenizers.Tokenizer | None = None
    template_variables: dict[str, str] = field(default_factory=dict)


class Tokenizer:
    """Implements `protocol.Codec`.

    n_tokens: ids that mean something; width: columns of the model's logits. eos_ids: every id that ends a text, by the
    tokenizer, the config and the generation config together. fingerprint: equal for equal vocabularies.
    """

    def __init__(self, parts: TokenizerParts, *, width: int | None = None) -> None:
        self.name = parts.name
        self.token_bytes = parts.token_bytes
        self.n_tokens = len(parts.token_bytes)
        self.width = max(width or 0, self.n_tokens)
        self.eos_ids = frozenset(i for i in parts.eos_ids if 0 <= i < self.width)
        self.bos_id = parts.bos_id
        self.add_bos = parts.add_bos and parts.bos_id is not None
        self.control = dict(parts.control)
        self._spelling = {i: text for text, i in self.control.items()}
        self._leading_blank = parts.leading_blank
        self._stand_ins = _StandIns(self.control)
        self._backend = self._stand_ins.install(parts.backend)
        self._continuing = self._stand_ins.install(parts.continuing) if parts.continuing else self._backend
        variables = dict(parts.template_variables)
        if parts.bos_id is not None and parts.bos_id in self._spelling:
            variables.setdefault("bos_token", self._spelling[parts.bos_id])
        self.chat = ChatTemplate(parts.chat_template, variables, name=parts.name)

    @classmethod
    def of_bytes(
        cls, specials: Sequence[str] = ("<eos>",), chat_template: str | None = None, *, width: int | None = None
    ) -> Tokenizer:
        """256 tokens of one byte each, then the control tokens `specials`, of which the first ends a text."""
        from palmette.runtime.tokenizer_library import byte_parts

        return cls(byte_parts(specials, chat_template), width=width)

    @classmethod
    def of_folder(cls, folder: str | Path, *, width: int | None = None) -> Tokenizer:
        """The tokenizer of a folder with Hugging Face's files."""
        from palmette.runtime.tokenizer_library import folder_parts

        return cls(folder_parts(Path(folder)), width=width)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for spelling in self.token_bytes:
            digest.update(b"-" if spelling is None else b"%d:" % len(spelling) + spelling)
        digest.update(repr(sorted(self.control.items())).encode())
        return digest.hexdigest()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary as constraints see it; built at the first use (some 100 ms for a large one)."""
        return Vocabulary(
            self.token_bytes,
            width=self.width,
            end_ids=self.eos_ids,
            encode=self.encode_bytes,
            control=self.control,
        )

    def encode(self, pieces: str | Sequence[Piece], *, start: bool = False) -> list[int]:
        """Token ids of the pieces as one text; a plain string is untrusted. See `protocol.Codec.encode`."""
        if isinstance(pieces, str):
            pieces = [Piece(pieces)]
        ids = self._encode_marked(self._mark(pieces), start)
        if start and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """A whole prompt as its author wrote it: control tokens in it count, and it begins the sequence."""
        return self.encode([Piece(text, trusted=True)], start=True)

    def encode_bytes(self, text: bytes) -> list[int]:
        """Ids of text that goes on from other text. Bytes that are no whole UTF-8 end it: what is before is encoded."""
        try:
            return self.encode(text.decode())
        except UnicodeDecodeError as error:
            return self.encode(text[: error.start].decode())

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, control tokens left out; broken UTF-8 becomes U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def decode_bytes(self, tokens: Sequence[int]) -> bytes:
        """What the tokens spell, control tokens left out."""
        known = self.token_bytes
        return b"".join(known[t] or b"" for t in tokens if 0 <= t < len(known))

    def show(self, token: int) -> str:
        """The token as people read it: control tokens by their name, broken characters by U+FFFD."""
        return self._spelling.get(token) or self.decode([token])

    def chat_open(self, roles: Sequence[str]) -> str:
        """See `protocol.Codec.chat_open`."""
        return self.chat.open(roles)

    def chat_close(self, roles: Sequence[str]) -> str:
        """See `protocol.Codec.chat_close`."""
        return self.chat.close(roles)

    def chat_trims(self, role: str) -> bool:
        """See `protocol.Codec.chat_trims`."""
        return self.chat.trims(role)

    def end_token(self, text: str) -> int | None:
        """The id of the control token that `text` begins with, or None."""
        found = self._stand_ins.pattern.match(text)
        return self.control[found.group()] if found else None

    def describe(self) -> str:
        """One line for people: size, and what was decided about BOS and end tokens."""
        bos = f"BOS {self.show(self.bos_id)!r} in front" if self.add_bos and self.bos_id is not None else "no BOS"
        ends = ", ".join(repr(self.show(i)) for i in sorted(self.eos_ids)) or "none"
        return f"{self.n_tokens} tokens, {bos}, end tokens {ends}, " + (
            "chat template" if self.chat.source else "no chat template"
        )

    def _mark(self, pieces: Sequence[Piece]) -> str:
        """The pieces as one text, with stand-ins for the control tokens that trusted stretches spell."""
        stretches: list[list[str]] = []
        trusted = False
        for piece in pieces:
            # Neighbours of one kind are one stretch: a control token may be spelled across two trusted pieces.
            if not stretches or piece.trusted != trusted:
                stretches.append([])
                trusted = piece.trusted
            stretches[-1].append(piece.text)
        first = bool(pieces) and pieces[0].trusted
        joined = ["".join(stretch) for stretch in stretches]
        return "".join(self._stand_ins.mark(text) if (i % 2 == 0) == first else text for i, text in enumerate(joined))

    def _encode_marked(self, text: str, start: bool) -> list[int]:
        text = _whole(text)
        if start or self._leading_blank == "never":
            return self._stand_ins.ids(self._backend, text)
        if self._leading_blank == "first":
            return self._stand_ins.ids(self._continuing, text)
        # Where every stretch after a control token gets a blank, only what goes on from earlier text must not.
        head, mark, rest = self._stand_ins.split(text)
        return self._stand_ins.ids(self._continuing, head) + self._stand_ins.ids(self._backend, mark + rest)


class _StandIns:
    """Random names that stand for control tokens inside one call of the library."""

    def __init__(self, control: dict[str, int]) -> None:
        key = secrets.token_hex(8)
        self._control = control
        self._name = {text: f"\ue000{key}-{i}\ue001" for i, text in enumerate(control)}
        self._stand_in = re.compile(f"\ue000{key}-[0-9]+\ue001")
        # The longest first, so that <|im_start|> wins over a token <| .
        spellings = sorted((re.escape(text) for text in control if text), key=len, reverse=True)
        self.pattern = re.compile("|".join(spellings) if spellings else r"(?!)")
        self._id_of: dict[int, int] = {}

    def install(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """The backend with a stand-in for each control token, and the reading of the tokens themselves off."""
        flags = {token.content: token for token in backend.get_added_tokens_decoder().values()}
        added = []
        for text, name in self._name.items():
            like = flags.get(text)
            left, right = (like.lstrip, like.rstrip) if like else (False, False)
            added.append(tokenizers.AddedToken(name, lstrip=left, rstrip=right, normalized=False, special=False))
        backend.add_tokens(added)
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        for text, name in self._name.items():
            self._id_of[backend.token_to_id(name)] = self._control[text]
        return backend

    def mark(self, text: str) -> str:
        return self.pattern.sub(lambda found: self._name[found.group()], text)

    def split(self, text: str) -> tuple[str, str, str]:
        """Text before the first stand-in, the stand-in, and the text after it."""
        found = self._stand_in.search(text)
        if not found:
            return text, "", ""
        return text[: found.start()], found.group(), text[found.end() :]

    def ids(self, backend: tokenizers.Tokenizer, text: str) -> list[int]:
        if not text:
            return []
        get = self._id_of.get
        return [get(i, i) for i in backend.encode(text, add_special_tokens=False).ids]


def _whole(text: str) -> str:
    """The text with halves of surrogate pairs, which UTF-8 cannot hold, joined or replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
