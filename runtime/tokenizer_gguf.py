"""Tokenizers out of GGUF metadata: byte-level BPE (`gpt2`) and SentencePiece BPE by scores (`llama`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from palmette.errors import ModelError
from palmette.runtime.tokenizer import TokenizerParts
from palmette.runtime.tokenizer_library import spelled_bytes

# Token types of the GGUF specification.
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6

# How text is cut into words before the merges, by the names that GGUF gives the rules. They must be to the letter what
# the vocabularies were trained with.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LATER = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS = {
    "gpt2": ("default", "gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "trillion", "granite-docling"),
    "digits": ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    "llama3": ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx"),
    "qwen2": ("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo"),
    "tekken": ("tekken",),
    "gpt-4o": ("gpt-4o", "llama4", "kanana2"),
}
_PATTERNS = {
    "gpt2": _GPT2,
    "digits": _GPT2,
    "llama3": _LATER % 3,
    "qwen2": _LATER.replace("{1,%d}", ""),
    "tekken": _CASED % ("", "", ""),
    "gpt-4o": _CASED % (_CONTRACTIONS + "?", _CONTRACTIONS + "?", "{1,3}"),
}
# A vocabulary of these takes a word that is a token whole, also where the merges lead elsewhere.
_WHOLE_WORDS = ("llama3", "tekken")


def gguf_parts(metadata: Mapping[str, Any], *, name: str = "") -> TokenizerParts:
    """The tokenizer that a GGUF file's metadata describe. ModelError where its kind is not known here."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama") or not tokens:
        what = f"of kind {kind!r}, which is not known here" if kind else "missing from the metadata"
        raise ModelError(f"{name}: the tokenizer is {what}", hint="known kinds are: gpt2 (byte-level BPE), llama")
    types: Sequence[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    template = metadata.get("tokenizer.chat_template")
    control = _control(tokens, types, template or "")
    if kind == "gpt2":
        backend = _byte_level(metadata, tokens, name)
        continuing, blank = None, False
    else:
        gemma = str(metadata.get("general.architecture", "")).startswith("gemma")
        blank = not gemma and bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        merges = _merges(metadata) or _merges_by_score(
            _respelled(tokens), None if gemma else metadata.get("tokenizer.ggml.scores")
        )
        backend = _sentence_piece(tokens, merges, metadata, blank)
        continuing = _sentence_piece(tokens, merges, metadata, False) if blank else None
    for each in filter(None, (backend, continuing)):
        _add_tokens(each, tokens, types, control)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    spelled = spelled_bytes(
        tokens,
        byte_level=kind == "gpt2",
        verbatim={i for i, t in enumerate(types) if t == _USER_DEFINED},
        silent={i for i, t in enumerate(types) if t in (_UNKNOWN, _CONTROL, _UNUSED)} | set(control.values()),
    )
    return TokenizerParts(
        backend,
        spelled,
        control,
        _end_ids(metadata),
        bos_id=bos,
        # Where the file is silent, the kind decides: SentencePiece vocabularies have always been given a BOS.
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        chat_template=template,
        name=name,
        leading_blank="first" if blank else "never",
        continuing=continuing,
        template_variables=_variables(metadata, tokens),
    )


def _control(tokens: Sequence[str], types: Sequence[int], template: str) -> dict[str, int]:
    """Control tokens, and user-defined ones that act as such: those that the chat template writes."""
    return {
        text: i
        for i, (text, kind) in enumerate(zip(tokens, types, strict=False))
        if text.strip() and (kind == _CONTROL or (kind == _USER_DEFINED and _marker(text) and text in template))
    }


def _marker(text: str) -> bool:
    return bool(re.fullmatch(r"<\S+>|\[\S+\]", text))


def _end_ids(metadata: Mapping[str, Any]) -> frozenset[int]:
    found = {metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")}
    return frozenset(i for i in found if isinstance(i, int))


def _variables(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    named = {
        variable: metadata.get(f"tokenizer.ggml.{key}_token_id")
        for variable, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
    }
    return {variable: tokens[i] for variable, i in named.items() if isinstance(i, int) and 0 <= i < len(tokens)}


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = (merge.split(" ", 1) for merge in metadata.get("tokenizer.ggml.merges") or ())
    return [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], name: str) -> tokenizers.Tokenizer:
    rule = metadata.get("tokenizer.ggml.pre") or "default"
    words = next((kind for kind, names in _WORDS.items() if rule in names), None)
    if words is None:
        known = ", ".join(sorted(name for names in _WORDS.values() for name in names))
        raise ModelError(f"{name}: the pre-tokenizer {rule!r} is not known here", hint=f"known are: {known}")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [pair for pair in _merges(metadata) if pair[0] in vocabulary and pair[1] in vocabulary]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=words in _WHOLE_WORDS))
    if words == "qwen2":
        backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_PATTERNS[words]), behavior="isolated")
    steps = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    if words == "digits":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend


def _respelled(tokens: Sequence[str]) -> list[str]:
    """Gemma's files spell runs of blanks as blanks; the merges work on the visible mark."""
    return ["▁" * len(t) if t and not t.strip(" ") else t for t in tokens]


def _merges_by_score(tokens: Sequence[str], scores: Sequence[float] | None) -> list[tuple[str, str]]:
    """The merges that a SentencePiece vocabulary implies: every way to put a token together out of two others, the
    token with the best score first (without scores: the one listed first)."""
    ids = {token: i for i, token in enumerate(tokens)}
    rank = (lambda token: -scores[ids[token]]) if scores else (lambda token: ids[token])
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for token in ids:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                found.append((rank(token), ids[left], ids[right], (left, right)))
    return [pair for *_, pair in sorted(found)]


def _sentence_piece(
    tokens: Sequence[str], merges: Iterable[tuple[str, str]], metadata: Mapping[str, Any], blank: bool
) -> tokenizers.Tokenizer:
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    model = models.BPE(
        vocab={token: i for i, token in enumerate(_respelled(tokens))},
        merges=list(merges),
        unk_token=tokens[unknown] if isinstance(unknown, int) and unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    if blank:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Replace(" ", "▁")
    return backend


def _add_tokens(
    backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int], control: dict[str, int]
) -> None:
    """Tokens that text is cut at before anything else: control tokens, and the user-defined ones."""
    special = [AddedToken(text, special=True, normalized=False) for text in control]
    plain = [
        AddedToken(text, special=False, normalized=False)
        for text, kind in zip(tokens, types, strict=False)
        if kind == _USER_DEFINED and text not in control and backend.token_to_id(text) is not None
    ]
    backend.add_special_tokens(special)
    backend.add_tokens(plain)
