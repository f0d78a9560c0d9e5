"""Whether texts that are drawn at random are complete within their tokens, and valid, from the shortest limit up."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any

import jsonschema
import numpy as np
from jsonschema.validators import validator_for

from palmette.benchmarks.constraints.data import Case
from palmette.errors import ConstraintError
from palmette.runtime.constraints import ConstraintCompiler, closing
from palmette.runtime.constraints.closing import ClosingMatcher
from palmette.runtime.constraints.closing_tables import tables_of
from palmette.runtime.constraints.matcher import CompiledConstraint, Matcher
from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.patterns import read_format
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Constraint

MORE = (*range(9), 20, 60)  # tokens beyond the shortest


@dataclass
class Closings:
    """Of the texts that were drawn: by fault, how many of them and the first ones, as (schema, limit, text). masks:
    seconds. unknown: schemas whose completions nobody knows."""

    schemas: int = 0
    drawn: int = 0
    refused: int = 0
    unknown: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, str, int, bytes]] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)

    def fault(self, what: str, name: str, limit: int, text: bytes) -> None:
        self.faults[what] += 1
        self.examples.append((what, name, limit, text))

    def lines(self, *, names: bool) -> Iterator[str]:
        yield f"closing: {self.schemas} schemas, {self.refused} more refused"
        yield f"  completions not known  {len(self.unknown):6}"
        yield f"  texts drawn            {self.drawn:6}"
        yield f"  not whole, or invalid  {self.faults.total():6}  {dict(self.faults.most_common(12)) or ''}"
        if self.masks:
            p50, p99 = np.percentile(np.array(self.masks) * 1e3, [50, 99])
            yield f"  mask, ms               p50 {p50:.3f}, p99 {p99:.2f}, max {1e3 * max(self.masks):.1f}"
        if names:
            yield from (f"    not known: {name}" for name in self.unknown)
            yield from (
                f"    {what}: {name}, {limit} tokens: {text[-300:]!r}" for what, name, limit, text in self.examples
            )


def close(cases: Iterable[Case], vocabulary: Vocabulary, more: Iterable[int] = MORE) -> Closings:
    """Draws a text of every schema for each limit, its tokens evenly from the masks: what no model would write."""
    compiler, out, more = ConstraintCompiler(vocabulary), Closings(), list(more)
    for case in cases:
        try:
            compiled = compiler.compile(Constraint("json_schema", json.dumps(case.spec)))
        except ConstraintError:
            out.refused += 1
            continue
        out.schemas += 1
        least = shortest(compiled)
        if least is None:
            out.unknown.append(case.name)
            continue
        valid = validity(case.spec)
        for limit in (least + n for n in more):
            out.drawn += 1
            text, fault = draw(compiled, random.Random(f"{case.name} {limit}"), limit, out.masks)
            fault = fault or valid(text)
            if fault:
                out.fault(fault, case.name, limit, text)
    return out


def shortest(compiled: CompiledConstraint) -> int | None:
    """The tokens of the shortest text; None where that is not known."""
    place = compiled.place()
    plan = None if place is None else tables_of(compiled.vocabulary).spell(place.closing())
    return None if plan is None else len(plan)


def draw(compiled: CompiledConstraint, chance: random.Random, limit: int, masks: list[float]) -> tuple[bytes, str]:
    """A text of at most `limit` tokens, some of them forced ones; and what is wrong with it, "" if it is complete."""
    matcher: Matcher = closing.start(compiled, limit)
    vocabulary, tokens = compiled.vocabulary, list[int]()
    if not isinstance(matcher, ClosingMatcher):
        return b"", "the matcher does not close"
    row = np.zeros(vocabulary.words, np.int32)
    jumps = chance.random() < 0.5
    while len(tokens) < limit and not matcher.done():
        for token in (matcher.forced(tokens) if jumps else [])[: limit - len(tokens)]:
            if not matcher.advance(token):
                return vocabulary.text(tokens), "a forced token is refused"
            tokens.append(token)
        if len(tokens) >= limit or matcher.done():
            break
        begun = perf_counter()
        matcher.fill(row)
        masks.append(perf_counter() - begun)
        options = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if not len(options):
            return vocabulary.text(tokens), f"no token is allowed{matcher.problem() and ': ' + matcher.problem()}"
        token = int(chance.choice(options))
        if not matcher.advance(token):
            return vocabulary.text(tokens), "an allowed token is refused"
        if token in vocabulary.end_ids:
            break
        tokens.append(token)
    return vocabulary.text(tokens), "" if matcher.allows_end() else "not complete"


def validity(schema: Any) -> Callable[[bytes], str]:
    """What is wrong with a text as a value of the schema, "" if nothing is: by jsonschema, formats as we read them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind: Any = validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=_formats())
    # These hold 1.0 for no integer, and a value has one form here, whatever its spelling.
    old = kind in (jsonschema.Draft3Validator, jsonschema.Draft4Validator)

    def number(text: str) -> float | int:
        value = float(text)
        return int(value) if old and value.is_integer() else value

    def wrong(text: bytes) -> str:
        try:
            value = json.loads(text, parse_float=number)
        except ValueError:
            return "no JSON"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                error = next(validator.iter_errors(value), None)
        except Exception as problem:  # a reference that leads nowhere, a pattern that is none: it has no opinion
            return "" if type(problem).__module__.startswith(("jsonschema", "referencing", "re")) else repr(problem)
        return "" if error is None else f"invalid: {error.validator}"

    return wrong


@cache
def _formats() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(formats=())
    checker.checkers = {name: (_has_format(name), ()) for name in jsonschema.FormatChecker.checkers}
    return checker


def _has_format(name: str) -> Callable[[Any], bool]:
    def has(value: Any) -> bool:
        pattern = read_format(name) if isinstance(value, str) else None
        return pattern is None or texts.contains(pattern.wide, value)

    return has
