"""From a constraint as data to matchers over a vocabulary: checked, compiled once, kept in a bounded cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from time import monotonic
from types import MappingProxyType
from typing import Any

import llguidance

from palmette.errors import ConstraintError
from palmette.runtime.constraints import gbnf, json_schema, llg, structural
from palmette.runtime.constraints.automaton import TrieAutomaton
from palmette.runtime.constraints.automaton_characters import build
from palmette.runtime.constraints.automaton_matcher import AutomatonConstraint, RowCache
from palmette.runtime.constraints.determinize import TooLarge
from palmette.runtime.constraints.json_in_lark import with_schemas_lowered
from palmette.runtime.constraints.matcher import CompiledConstraint
from palmette.runtime.constraints.regex_language import Language, read_regex
from palmette.runtime.constraints.regex_rust import rust_regex
from palmette.runtime.constraints.schema.machine_graph import Unsupported
from palmette.runtime.constraints.schema.monitor import MonitoredConstraint, schema_place
from palmette.runtime.constraints.schema.normal import Budget, normal_form
from palmette.runtime.constraints.schema.shapes import Normal
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Constraint

_FAILURE_BYTES = 4096  # what a kept failure is counted as
_MAX_STATES = 20_000
_SECONDS = 5.0  # that one compilation may take


class Expired(ConstraintError):
    """Compiling took longer than the compiler's limit. Not kept: the next try may find an idle machine."""


@dataclass(frozen=True, slots=True)
class CompilerStats:
    """Counts since the compiler was made; nbytes: memory now. seconds: spent compiling."""

    hits: int = 0
    misses: int = 0
    failures: int = 0
    evicted: int = 0
    entries: int = 0
    nbytes: int = 0
    seconds: float = 0.0


def _options(constraint: Constraint) -> tuple[str, ...]:
    options = constraint.spec
    if isinstance(options, str) or not all(isinstance(o, str) for o in options):
        raise ConstraintError(
            "the choices must be a list of strings", hint='give a list of strings, as in ["yes", "no"]'
        )
    if not options:
        raise ConstraintError("there are no choices to choose from", hint="give at least one string")
    for i, option in enumerate(options):
        try:
            option.encode()
        except UnicodeEncodeError as error:
            raise ConstraintError(
                f"choice {i} holds a lone surrogate, which no UTF-8 text has",
                pointer=f"/{i}",
                hint="give the character itself, not half of its UTF-16 pair",
            ) from error
    return tuple(options)


def _text(constraint: Constraint) -> str:
    if not isinstance(constraint.spec, str):
        raise ConstraintError(
            f"a {constraint.kind} constraint must be a string, not {type(constraint.spec).__name__}",
            hint="give the text itself",
        )
    return constraint.spec


def _grammar(
    constraint: Constraint, control: Mapping[str, int | None], documents: Mapping[str, Any], seconds: float
) -> str:
    """The grammar of a `grammar` or `structural_tag` constraint, in llguidance's own form; control: see
    structural.lark."""
    text = structural.lark(_text(constraint), control) if constraint.kind == "structural_tag" else _text(constraint)
    if not text.strip():
        raise ConstraintError("the grammar is empty", hint='give a Lark grammar with a rule named "start"')
    if gbnf.is_gbnf(text):
        text = gbnf.to_lark(text)
    else:
        text = with_schemas_lowered(
            text, lambda schema: _normal_form(schema, documents, seconds), whitespace=constraint.whitespace
        )
    return llguidance.LLMatcher.grammar_from_lark(text)


def _normal_form(schema: str, documents: Mapping[str, Any], seconds: float) -> Normal:
    seconds = max(seconds, 0.01)
    deadline = monotonic() + seconds
    try:
        return normal_form(schema, documents=documents, budget=Budget(seconds=seconds))
    except ConstraintError as error:
        if monotonic() < deadline:
            raise
        raise Expired(error.message, pointer=error.pointer, hint=error.hint, more=error.faults[1:]) from error


def _refuse(constraint: Constraint, message: str) -> ConstraintError:
    """llguidance's refusal in our words."""
    where = message.split(":", 1)[0] if message.startswith("at ") and not gbnf.is_gbnf(_text(constraint)) else ""
    return ConstraintError(
        f"the {constraint.kind} was refused: {message.strip()}",
        pointer=_position(where, _text(constraint)) if where else "",
        hint="grammars are written in llguidance's dialect of Lark, with a rule named start"
        if constraint.kind == "grammar"
        else "a smaller pattern may pass",
    )


def _position(where: str, text: str) -> str:
    """ "at LINE(COLUMN)" as "@OFFSET"."""
    line, _, column = where.removeprefix("at ").partition("(")
    number = column.rstrip(")")
    if not line.isdigit() or not number.isdigit():
        return ""
    lines = text.split("\n")
    return f"@{sum(len(before) + 1 for before in lines[: int(line) - 1]) + int(number) - 1}"


def validate(constraint: Constraint, *, documents: Mapping[str, Any] = MappingProxyType({})) -> None:
    """All checks that need no vocabulary, so that a wrong constraint is told of before anything is sent.
    documents: JSON Schemas by URI, to which a $ref may lead. ConstraintError with a pointer and a hint."""
    if constraint.kind == "choices":
        _options(constraint)
    elif constraint.kind == "regex":
        read_regex(_text(constraint))
    elif constraint.kind == "json_schema":
        normal = _normal_form(_text(constraint), documents, _SECONDS)
        json_schema.validate(normal, whitespace=constraint.whitespace)
    elif constraint.kind in ("grammar", "structural_tag"):
        grammar = _grammar(constraint, {}, documents, _SECONDS)
        wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
        if wrong:
            raise _refuse(constraint, messages[0])
    else:
        raise ConstraintError(
            f"unknown kind of constraint {constraint.kind!r}",
            hint="known are: regex, choices, json_schema, grammar, structural_tag",
        )


class ConstraintCompiler:
    """Compiles constraints for one vocabulary. Thread safe; called from worker threads, never in the engine's loop.

    Equal constraints that are asked for at once are compiled once; what was compiled is kept, least recently used out
    first, within `cache_bytes` (half of it for grammars, half for mask rows). Failures are kept too.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        cache_bytes: int = 256 << 20,
        timeout: float = _SECONDS,
        documents: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """timeout: seconds that one compilation may take; llguidance's part of it is bound by limits of its own.
        documents: JSON Schemas by URI, to which a $ref may lead."""
        self.vocabulary = vocabulary
        self._documents = documents
        self._timeout = timeout
        # An end token is the engine's to ask for: a text that is to end with one is complete before it.
        self._control = {
            name: None if token in vocabulary.end_ids else token for name, token in vocabulary.control.items()
        }
        self._limit = cache_bytes // 2
        self._rows = RowCache(cache_bytes - self._limit)
        self._lock = Lock()
        self._tokenizer_lock = Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._kept: OrderedDict[Constraint, Future[CompiledConstraint]] = OrderedDict()
        self._sizes: dict[Constraint, int] = {}
        self._nbytes = 0
        self._hits = self._misses = self._failures = self._evicted = 0
        self._seconds = 0.0

    @property
    def stats(self) -> CompilerStats:
        with self._lock:
            return CompilerStats(
                self._hits,
                self._misses,
                self._failures,
                self._evicted,
                len(self._kept),
                self._nbytes + self._rows.nbytes,
                self._seconds,
            )

    def compile(self, constraint: Constraint) -> CompiledConstraint:
        """ConstraintError, with pointer and hint, when it is malformed or cannot be enforced exactly."""
        with self._lock:
            future = self._kept.get(constraint)
            if future is not None:
                self._kept.move_to_end(constraint)
                self._hits += 1
            else:
                mine: Future[CompiledConstraint] = Future()
                self._kept[constraint] = mine
                self._misses += 1
        if future is not None:
            error = future.exception()
            if isinstance(error, ConstraintError):
                # Each caller gets its own: an exception carries the traceback of where it was raised.
                raise type(error)(
                    error.message, pointer=error.pointer, hint=error.hint, more=error.faults[1:]
                ) from error
            return future.result()
        begun = monotonic()
        try:
            compiled = self._compile(constraint, begun + self._timeout)
        except BaseException as error:
            kept = isinstance(error, ConstraintError) and not isinstance(error, Expired)
            self._settle(constraint, _FAILURE_BYTES if kept else None, monotonic() - begun, failed=True)
            mine.set_exception(error)
            raise
        self._settle(constraint, compiled.nbytes, monotonic() - begun, failed=False)
        mine.set_result(compiled)
        return compiled

    def _settle(self, constraint: Constraint, nbytes: int | None, seconds: float, *, failed: bool) -> None:
        """A compilation ended, with a result of that many bytes, or None that is not to be kept."""
        spec = constraint.spec if isinstance(constraint.spec, tuple) else (constraint.spec,)
        with self._lock:
            self._seconds += seconds
            self._failures += failed
            if nbytes is None:
                del self._kept[constraint]
                return
            nbytes += sum(len(part) for part in spec if isinstance(part, str))
            self._sizes[constraint] = nbytes
            self._nbytes += nbytes
            # What is still being compiled has no size yet, and stays.
            for old in [k for k in self._kept if k in self._sizes and k != constraint]:
                if self._nbytes <= self._limit:
                    break
                del self._kept[old]
                self._nbytes -= self._sizes.pop(old)
                self._evicted += 1

    def _compile(self, constraint: Constraint, deadline: float) -> CompiledConstraint:
        if constraint.kind == "choices":
            automaton = TrieAutomaton([option.encode() for option in _options(constraint)])
            return AutomatonConstraint(automaton, self.vocabulary, self._rows)
        if constraint.kind == "regex":
            return self._regex(constraint, read_regex(_text(constraint)), deadline)
        if constraint.kind == "json_schema":
            return self._json_schema(constraint, deadline)
        if constraint.kind in ("grammar", "structural_tag"):
            grammar = _grammar(constraint, self._control, self._documents, deadline - monotonic())
            return self._llguidance(constraint, grammar)
        validate(constraint)
        raise AssertionError(constraint.kind)

    def _regex(self, constraint: Constraint, language: Language, deadline: float) -> CompiledConstraint:
        rust = rust_regex(language)
        try:
            automaton = build(language, max_states=_MAX_STATES, deadline=deadline)
            return AutomatonConstraint(automaton, self.vocabulary, self._rows)
        except ValueError as error:
            raise ConstraintError("no text matches the regex", hint="its look-aheads contradict the rest") from error
        except TooLarge as error:
            if rust is None:
                kind = Expired if error.expired else ConstraintError
                raise kind(
                    f"the regex needs more than {error.limit}",
                    hint="shorten its counted repeats, or leave out look-aheads and word boundaries",
                ) from error
        return self._llguidance(constraint, llguidance.LLMatcher.grammar_from_regex(rust))

    def _json_schema(self, constraint: Constraint, deadline: float) -> CompiledConstraint:
        text, whitespace = _text(constraint), constraint.whitespace
        normal = _normal_form(text, self._documents, deadline - monotonic())
        message = ""
        for lowered in json_schema.ways(normal, whitespace=whitespace):
            root = self._root(lowered.grammar)
            if root.is_error():
                message = root.get_error()
                continue
            if lowered.exact:
                place = cache(partial(schema_place, normal, whitespace=whitespace))
                return llg.LlgConstraint(root, lowered.grammar, self.vocabulary, place)
            grammar = llg.LlgConstraint(root, lowered.grammar, self.vocabulary)
            try:
                return MonitoredConstraint(grammar, normal, self.vocabulary, whitespace=whitespace)
            except (TooLarge, Unsupported, RecursionError) as error:
                raise json_schema.unwatched(text, normal, lowered.loose[0]) from error
        raise json_schema.refusal(normal, message)

    def _llguidance(self, constraint: Constraint, grammar: str) -> CompiledConstraint:
        root = self._root(grammar)
        if root.is_error():
            raise _refuse(constraint, root.get_error())
        return llg.LlgConstraint(root, grammar, self.vocabulary)

    def _root(self, grammar: str) -> llguidance.LLMatcher:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = llg.tokenizer(self.vocabulary)
        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=llg.limits())
