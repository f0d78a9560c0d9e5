"""What a constraint becomes: the fate of each keyword of a schema, why it is refused, how short and long texts are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from types import MappingProxyType
from typing import Any

from palmette.errors import ConstraintError
from palmette.runtime.constraints.closing_tables import tables_of
from palmette.runtime.constraints.compile import ConstraintCompiler
from palmette.runtime.constraints.determinize import TooLarge, characters
from palmette.runtime.constraints.matcher import CompiledConstraint
from palmette.runtime.constraints.regex_language import read_regex
from palmette.runtime.constraints.schema.algebra import Budget
from palmette.runtime.constraints.schema.longest import longest, longest_path
from palmette.runtime.constraints.schema.loosen import loosen
from palmette.runtime.constraints.schema.normal import Occurrence, Reading, read
from palmette.runtime.constraints.schema.shapes import Normal
from palmette.runtime.constraints.schema.text_machine import MAX_STATES, SECONDS
from palmette.runtime.protocol import Constraint

MONITORED = "monitored"


@dataclass(frozen=True, slots=True)
class Inspection:
    """occurrences: of a schema's keywords that were reached; "monitored" are those that the grammar leaves open and
    the machine of the schema watches. faults: () where it is taken.

    shortest: a shortest text, None where it is not known; tokens: in how many of the vocabulary's tokens that is
    written; longest: bytes of the longest text without optional white space, where `bounded`; neither is known of
    grammars (`measured` is False)."""

    occurrences: tuple[Occurrence, ...] = ()
    faults: tuple[ConstraintError, ...] = ()
    shortest: bytes | None = None
    tokens: int | None = None
    longest: int | None = None
    measured: bool = False
    seconds: float = 0.0

    @property
    def refused(self) -> bool:
        return bool(self.faults)


def inspect(
    constraint: Constraint,
    compiler: ConstraintCompiler,
    *,
    documents: Mapping[str, Any] = MappingProxyType({}),
) -> Inspection:
    """documents: those that the compiler was given, too. What is refused is told in the result, not raised."""
    begun = monotonic()
    occurrences: tuple[Occurrence, ...] = ()
    try:
        reading: Reading | None = None
        if constraint.kind == "json_schema" and isinstance(constraint.spec, str):
            reading = read(constraint.spec, documents=documents, budget=Budget())
            occurrences = _watched(reading.occurrences, reading.normal)
        compiled = compiler.compile(constraint)
        seconds = monotonic() - begun
    except ConstraintError as error:
        return Inspection(occurrences, error.faults, seconds=monotonic() - begun)
    shortest = _shortest(compiled)
    tokens = None if shortest is None else tables_of(compiler.vocabulary).spell(shortest)
    measured, most = _longest(constraint, reading)
    return Inspection(
        occurrences,
        (),
        shortest,
        None if tokens is None else len(tokens),
        most,
        measured,
        seconds,
    )


def _shortest(compiled: CompiledConstraint) -> bytes | None:
    place = compiled.place()
    return None if place is None else place.closing()


def _longest(constraint: Constraint, reading: Reading | None) -> tuple[bool, int | None]:
    if reading is not None:
        return True, longest(reading.normal)
    if constraint.kind == "choices":
        return True, max(len(option.encode()) for option in constraint.spec)
    if constraint.kind == "regex" and isinstance(constraint.spec, str):
        try:
            automaton = characters(read_regex(constraint.spec), max_states=MAX_STATES, deadline=monotonic() + SECONDS)
        except TooLarge:
            return False, None
        return True, longest_path(automaton, 0, None, _utf8)
    return False, None


def _utf8(low: int, high: int) -> int:
    """Bytes of the longest character between the two."""
    return len(chr(0xD7FF if 0xD800 <= high <= 0xDFFF else high).encode())


def _watched(occurrences: tuple[Occurrence, ...], normal: Normal) -> tuple[Occurrence, ...]:
    """The same with what the grammar leaves open marked; where no keyword of that name stands there, since it follows
    from others, it is told besides."""
    _, loose = loosen(normal)
    places: set[tuple[str, str]] = set()
    besides: dict[tuple[str, str], None] = {}
    said = {(o.pointer, o.keyword) for o in occurrences}
    for each in loose:
        keyword = each.keyword.removeprefix("not ")
        pointers = normal.pointers[each.node] if each.node < len(normal.pointers) else ()
        found = [(pointer, keyword) for pointer in pointers if (pointer, keyword) in said]
        places.update(found)
        if not found:
            besides[(pointers[0] if pointers else "", each.keyword)] = None
    marked = [replace(o, becomes=MONITORED) if (o.pointer, o.keyword) in places else o for o in occurrences]
    return (*marked, *(Occurrence(pointer, keyword, MONITORED) for pointer, keyword in besides))
