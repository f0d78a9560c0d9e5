"""From a normal form to a grammar of llguidance's.

Two forms are written. Its JSON Schema form is read in a quarter of a millisecond, but can say only what plain
keywords say; its Lark form costs 1.1 ms before the first rule, and says the rest: `&` and `~` of strings, exact
numbers, counts of members. A schema is written in the first where all of it can be, else wholly in the second.
What neither says (see loosen.py) the grammar leaves open.

In both, JSON is compact unless white space is asked for, members come in their order and then the others; a string
of which nothing is asked may be written with any escapes, a name that is told from others has one way of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from palmette.runtime.constraints.schema.loosen import Loose, loosen
from palmette.runtime.constraints.schema.lower_json import json_form
from palmette.runtime.constraints.schema.lower_lark import lark_form
from palmette.runtime.constraints.schema.shapes import Normal


@dataclass(frozen=True, slots=True)
class Lowered:
    """grammar: as llguidance takes it. exact: it allows nothing that the schema forbids; else `loose` says what must
    be watched besides."""

    grammar: str
    exact: bool
    loose: tuple[Loose, ...] = ()


def lower(normal: Normal, *, whitespace: bool) -> Lowered:
    kept, loose = loosen(normal)
    grammar = json_form(kept, whitespace=whitespace) or lark_form(kept, whitespace=whitespace)
    return Lowered(grammar, not loose, loose)


def lower_again(normal: Normal, *, whitespace: bool) -> Lowered:
    """In the Lark form, which llguidance takes of some schemas that it refuses in the other."""
    kept, loose = loosen(normal)
    return Lowered(lark_form(kept, whitespace=whitespace), not loose, loose)
