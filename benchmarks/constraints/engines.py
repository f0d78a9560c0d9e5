"""palmette and its peers as what a bench asks of them: compile a specification, and say whether it takes a text.

A peer that is not installed in this environment is left out, in words. Each is given the same vocabulary, control
tokens blanked, and writes compact JSON where it can be told to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from palmette.errors import ArgumentError, ConstraintError
from palmette.runtime.constraints.compile import ConstraintCompiler
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Constraint


class Refused(Exception):
    """The engine does not take the specification. where: the keyword, as far as it says one."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class Cursor(Protocol):
    """A place in a text."""

    def feed(self, tokens: list[int], masks: list[float]) -> bool:
        """Goes on by these tokens, if the masks admit each of them; the seconds of each mask go to `masks`."""
        ...

    def ends(self) -> bool:
        """Whether the text may end here."""
        ...

    def fork(self) -> Cursor | None:
        """A copy; None where the engine makes none."""
        ...


class Compiled(Protocol):
    def start(self) -> Cursor: ...


class Engine(Protocol):
    def compile(self, kind: str, spec: Any) -> Compiled:
        """kind: "json_schema" or "regex". Refused when the engine refuses it."""
        ...


@dataclass(frozen=True, slots=True)
class _Calls:
    """An engine's matcher as functions of it. words: the length of a mask row."""

    words: int
    begin: Callable[[], Any]
    fill: Callable[[Any, np.ndarray], Any]
    advance: Callable[[Any, int], Any]
    ends: Callable[[Any], bool]
    fork: Callable[[Any], Any] | None = None

    def start(self) -> Cursor:
        return _Cursor(self, self.begin())


class _Cursor:
    def __init__(self, calls: _Calls, matcher: Any) -> None:
        self._calls, self._matcher = calls, matcher

    def feed(self, tokens: list[int], masks: list[float]) -> bool:
        row = np.zeros((1, self._calls.words), np.int32)
        for token in tokens:
            begun = perf_counter()
            self._calls.fill(self._matcher, row)
            masks.append(perf_counter() - begun)
            if not (int(row[0, token >> 5]) >> (token & 31)) & 1:
                return False
            if self._calls.advance(self._matcher, token) is False:
                return False
        return True

    def ends(self) -> bool:
        return bool(self._calls.ends(self._matcher))

    def fork(self) -> Cursor | None:
        return None if self._calls.fork is None else _Cursor(self._calls, self._calls.fork(self._matcher))


class Palmette:
    def __init__(self, vocabulary: Vocabulary, documents: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary
        self._compiler = ConstraintCompiler(vocabulary, documents=documents)

    def compile(self, kind: str, spec: Any) -> Compiled:
        text = json.dumps(spec) if kind == "json_schema" else spec
        try:
            compiled = self._compiler.compile(Constraint(kind, text))  # type: ignore[arg-type]
        except ConstraintError as error:
            names = [name for name in error.pointer.split("/") if name and not name.isdecimal()]
            raise Refused(
                f"{error.message} (at {error.pointer})", names[-1] if names else error.message[:40]
            ) from error
        return _Calls(
            self._vocabulary.words,
            compiled.start,
            lambda matcher, row: matcher.fill(row[0]),
            lambda matcher, token: matcher.advance(token),
            lambda matcher: matcher.allows_end(),
            lambda matcher: matcher.fork(),
        )


class Llguidance:
    def __init__(self, vocabulary: Vocabulary, documents: Mapping[str, Any]) -> None:
        import llguidance

        from palmette.runtime.constraints import llg

        self._module = llguidance
        self._vocabulary = vocabulary
        self._tokenizer = llg.tokenizer(vocabulary)

    def compile(self, kind: str, spec: Any) -> Compiled:
        from llguidance.numpy import fill_next_token_bitmask

        matchers = self._module.LLMatcher
        if kind == "regex":
            grammar = matchers.grammar_from_regex(spec)
        else:
            text: Any = json.dumps(spec)
            grammar = matchers.grammar_from_json_schema(text, overrides={"whitespace_flexible": False})
        root = matchers(self._tokenizer, grammar, log_level=0)
        if root.is_error():
            raise Refused(root.get_error().strip().split("\n")[0])
        return _Calls(
            self._vocabulary.words,
            root.deep_copy,
            lambda matcher, row: fill_next_token_bitmask(matcher, row, 0),
            lambda matcher, token: matcher.consume_token(token),
            lambda matcher: matcher.is_accepting(),
            lambda matcher: matcher.deep_copy(),
        )


class Xgrammar:
    def __init__(self, vocabulary: Vocabulary, documents: Mapping[str, Any]) -> None:
        self._module = xgrammar = import_module("xgrammar")
        self._vocabulary = vocabulary
        spelled = [spelling or b"" for spelling in vocabulary.token_bytes]
        info = xgrammar.TokenizerInfo(
            spelled, xgrammar.VocabType.RAW, vocab_size=vocabulary.width, stop_token_ids=sorted(vocabulary.end_ids)
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, enable_dynamic_compilation=True)

    def compile(self, kind: str, spec: Any) -> Compiled:
        try:
            if kind == "regex":
                grammar = self._compiler.compile_regex(spec)
            else:
                grammar = self._compiler.compile_json_schema(
                    json.dumps(spec), any_whitespace=False, separators=(",", ":"), strict_mode=False
                )
        except (RuntimeError, ValueError) as error:
            raise Refused(str(error).strip().split("\n")[0]) from error
        end = min(self._vocabulary.end_ids)

        def ends(matcher: Any) -> bool:
            row = np.zeros((1, self._vocabulary.words), np.int32)
            matcher.fill_next_token_bitmask(row, 0)
            return bool((int(row[0, end >> 5]) >> (end & 31)) & 1)

        return _Calls(
            self._vocabulary.words,
            lambda: self._module.GrammarMatcher(grammar),
            lambda matcher, row: matcher.fill_next_token_bitmask(row, 0),
            lambda matcher, token: matcher.accept_token(token),
            ends,
            lambda matcher: matcher.fork(),
        )


class OutlinesCore:
    def __init__(self, vocabulary: Vocabulary, documents: Mapping[str, Any]) -> None:
        self._module = outlines_core = import_module("outlines_core")
        self._vocabulary = vocabulary
        by_spelling: dict[bytes, list[int]] = {}
        for i, spelling in enumerate(vocabulary.token_bytes):
            if spelling:
                by_spelling.setdefault(spelling, []).append(i)
        self._tokens = outlines_core.Vocabulary(min(vocabulary.end_ids), by_spelling)

    def compile(self, kind: str, spec: Any) -> Compiled:
        try:
            pattern = spec
            if kind == "json_schema":
                pattern = self._module.json_schema.build_regex_from_schema(json.dumps(spec), "")
            index = self._module.Index(pattern, self._tokens)
        except (RuntimeError, ValueError, TypeError) as error:
            raise Refused(str(error).strip().split("\n")[0]) from error
        return _Calls(
            self._vocabulary.words,
            lambda: self._module.Guide(index),
            lambda guide, row: guide.write_mask_into(row.ctypes.data, row.size, 4),
            lambda guide, token: guide.advance(token, False),
            lambda guide: guide.is_finished(),
        )


ENGINES: dict[str, Callable[[Vocabulary, Mapping[str, Any]], Engine]] = {
    "palmette": Palmette,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
    "outlines-core": OutlinesCore,
}


def engine(name: str, vocabulary: Vocabulary, documents: Mapping[str, Any]) -> Engine:
    """ArgumentError where it is not installed here."""
    try:
        return ENGINES[name](vocabulary, documents)
    except ImportError as error:
        raise ArgumentError(f"{name} is not installed here", hint=f"pip install {name}") from error
