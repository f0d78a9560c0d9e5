"""Tokenizers made with the `tokenizers` library: of single bytes, and of a folder with Hugging Face's files."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import models, pre_tokenizers

from palmette.errors import ModelError
from palmette.runtime.chat import default_template
from palmette.runtime.tokenizer import TokenizerParts


def byte_alphabet() -> dict[str, int]:
    """The printable character by which byte-level BPE writes each byte (OpenAI's GPT-2 convention): the printable
    bytes of Latin-1 stand for themselves, the others take the code points from 256 upwards in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in printable]
    alphabet.update({chr(256 + i): b for i, b in enumerate(others)})
    return alphabet


_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def spelled_bytes(
    tokens: Sequence[str | None], *, byte_level: bool, verbatim: Container[int], silent: Container[int]
) -> list[bytes | None]:
    """What each token stands for. byte_level: ordinary tokens are written in the byte alphabet; else in SentencePiece's
    way (a mark for blanks, <0x0A> for bytes). verbatim: ids that are text as it stands; silent: ids that spell nothing.
    """
    # Byte by byte through Latin-1; what is no letter of the alphabet goes to what Latin-1 has not.
    table: dict[int, int] = dict.fromkeys(range(256), 0xFFFF)
    table.update({ord(letter): byte for letter, byte in byte_alphabet().items()})
    spelled: list[bytes | None] = []
    for i, token in enumerate(tokens):
        if token is None or i in silent:
            spelled.append(None)
        elif i in verbatim:
            spelled.append(token.encode("utf-8", errors="surrogateescape"))
        elif not byte_level:
            byte = _BYTE_TOKEN.fullmatch(token)
            text = token.replace("▁", " ").encode("utf-8", errors="surrogateescape")
            spelled.append(bytes([int(byte[1], 16)]) if byte else text)
        else:
            try:
                spelled.append(token.translate(table).encode("latin-1"))
            except UnicodeEncodeError:  # added text that is in no byte alphabet
                spelled.append(token.encode("utf-8", errors="surrogateescape"))
    return spelled


def byte_parts(specials: Sequence[str], chat_template: str | None) -> TokenizerParts:
    """256 tokens of one byte each, then the control tokens `specials`, of which the first ends a text."""
    alphabet = byte_alphabet()
    backend = tokenizers.Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in specials])
    return TokenizerParts(
        backend,
        [bytes([i]) for i in range(256)] + [None] * len(specials),
        {text: 256 + i for i, text in enumerate(specials)},
        frozenset({256} if specials else ()),
        chat_template=chat_template,
        name="bytes",
        template_variables={"eos_token": specials[0]} if specials else {},
    )


def folder_parts(folder: Path) -> TokenizerParts:
    """The tokenizer of a folder: tokenizer.json, with what tokenizer_config.json, special_tokens_map.json, config.json
    and generation_config.json say of BOS, end tokens and the chat template."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no tokenizer.json", hint="save the fast tokenizer (transformers) to the folder")
    data = _read(path)
    config = {**_read(folder / "special_tokens_map.json"), **_read(folder / "tokenizer_config.json")}
    template = _template(folder, config)
    added = {entry["content"]: entry for entry in data.get("added_tokens") or []}
    control = {
        text: entry["id"]
        for text, entry in added.items()
        # Markers that the template writes act as control tokens, whatever their flag.
        if text.strip() and (entry["special"] or (re.fullmatch(r"<\S+>|\[\S+\]", text) and text in (template or "")))
    }
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} cannot be read: {error}", hint="fetch the file again") from error
    # Special by our count, so that `encode_special_tokens` covers them.
    backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in control])
    kind = _spelling(data, path)
    blank = _leading_blank(data)
    tokens = [backend.id_to_token(i) for i in range(1 + max(backend.get_vocab(with_added_tokens=True).values()))]
    unknown = data["model"].get("unk_token")
    spelled = spelled_bytes(
        tokens,
        byte_level=kind == "bytes",
        verbatim={entry["id"] for entry in added.values()},
        silent=set(control.values()) | ({tokens.index(unknown)} if unknown in tokens else set()),
    )
    bos = _content(config.get("bos_token"))
    return TokenizerParts(
        backend,
        spelled,
        control,
        _end_ids(folder, config, backend),
        bos_id=backend.token_to_id(bos) if bos else None,
        add_bos=_adds_bos(config, data, bos),
        chat_template=template,
        name=folder.name,
        leading_blank=blank,
        continuing=_without_blank(data, control) if blank != "never" else None,
        template_variables={
            key: text
            for key in ("bos_token", "eos_token", "unk_token", "pad_token")
            if (text := _content(config.get(key)))
        },
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}", hint="fetch the file again") from error
    return value if isinstance(value, dict) else {}


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return default_template(config.get("chat_template"))


def _end_ids(folder: Path, config: dict[str, Any], backend: tokenizers.Tokenizer) -> frozenset[int]:
    ends: set[int] = set()
    named = _content(config.get("eos_token"))
    if named is not None and (end := backend.token_to_id(named)) is not None:
        ends.add(end)
    for name in ("config.json", "generation_config.json"):
        ids = _read(folder / name).get("eos_token_id")
        ends.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(ends)


def _adds_bos(config: dict[str, Any], data: dict[str, Any], bos: str | None) -> bool:
    """The config's word; where it has none, whether the post-processor puts the token in front."""
    if bos is None:
        return False
    if config.get("add_bos_token") is not None:
        return bool(config["add_bos_token"])
    processor = data.get("post_processor") or {}
    steps = processor.get("processors", [processor])
    firsts = [step["single"][0] for step in steps if step.get("type") == "TemplateProcessing" and step.get("single")]
    return any(first.get("SpecialToken", {}).get("id") == bos for first in firsts)


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A normalizer, pre-tokenizer or decoder as the list of its steps."""
    if not part:
        return []
    inner = part.get("normalizers") or part.get("pretokenizers") or part.get("decoders")
    return [step for each in inner for step in _steps(each)] if inner else [part]


def _spelling(data: dict[str, Any], path: Path) -> str:
    """How tokens are written: "bytes" in the byte alphabet, "sentencepiece" with marks for blanks."""
    kind = data["model"].get("type")
    steps = [step["type"] for name in ("normalizer", "pre_tokenizer", "decoder") for step in _steps(data.get(name))]
    if kind in ("BPE", "Unigram") and "ByteLevel" in steps:
        return "bytes"
    if kind in ("BPE", "Unigram") and {"Metaspace", "ByteFallback", "Replace"} & set(steps):
        return "sentencepiece"
    raise ModelError(
        f"{path}: a tokenizer of type {kind} with {', '.join(steps) or 'no steps'} is not known here",
        hint="known are byte-level BPE and SentencePiece",
    )


def _leading_blank(data: dict[str, Any]) -> Literal["never", "first", "always"]:
    for step in _steps(data.get("pre_tokenizer")):
        if step["type"] == "Metaspace":
            scheme: Literal["never", "first", "always"] = step.get("prepend_scheme", "always")
            return scheme
    prepends = [step for step in _steps(data.get("normalizer")) if step["type"] == "Prepend"]
    return "always" if prepends else "never"


def _without_blank(data: dict[str, Any], control: dict[str, int]) -> tokenizers.Tokenizer:
    """The same tokenizer, but one that puts no blank in front."""
    copy = json.loads(json.dumps(data))
    for step in _steps(copy.get("pre_tokenizer")):
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
    normalizer = copy.get("normalizer")
    if normalizer and normalizer["type"] == "Prepend":
        copy["normalizer"] = None
    elif normalizer and "normalizers" in normalizer:
        normalizer["normalizers"] = [step for step in normalizer["normalizers"] if step["type"] != "Prepend"]
    backend = tokenizers.Tokenizer.from_str(json.dumps(copy))
    backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in control])
    return backend
