"""What a program is made of: frozen pieces of text, generations, choices and role marks. Pure data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from palmette.lang.sampling import Sampling
from palmette.lang.types import OutputType

ConstraintKind = Literal["regex", "choices", "json_schema", "grammar", "structural_tag"]
SelectMethod = Literal[
    "probability", "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"
]
SELECT_METHODS: tuple[SelectMethod, ...] = (
    "probability",
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)


class Node:
    """Anything that can be appended to a state. `a + b` puts one after the other; strings and lists may be mixed in."""

    __slots__ = ()

    def __add__(self, other: Expression) -> Sequence:
        return Sequence(tuple(flatten([self, other])))

    def __radd__(self, other: Expression) -> Sequence:
        return Sequence(tuple(flatten([other, self])))


@dataclass(frozen=True, slots=True)
class Text(Node):
    """Literal text. Control tokens that it spells are read as such only where it is `trusted`."""

    text: str
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class Spec:
    """A constraint as data. `spec`: the pattern, the options, the schema as JSON text in its own key order, or the
    grammar's text. `whitespace`: JSON may hold optional white space. `on_unsupported`, `retries`: of a schema that
    cannot be enforced exactly, see `gen`."""

    kind: ConstraintKind
    spec: str | tuple[str, ...]
    whitespace: bool = False
    on_unsupported: Literal["refuse", "validate"] = "refuse"
    retries: int = 3


@dataclass(frozen=True, slots=True)
class Gen(Node):
    """Generated text, kept as variable `name` where it has one."""

    name: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    constraint: Spec | None = None
    type: OutputType | None = None


@dataclass(frozen=True, slots=True)
class Select(Node):
    """The best of `choices` by log-probability, kept as variable `name`."""

    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod = "probability"
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class RoleBegin(Node):
    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Node):
    role: str


@dataclass(frozen=True, slots=True)
class Sequence(Node):
    """Nodes in order, already flat."""

    nodes: tuple[Node, ...]


Expression: TypeAlias = "str | Node | list[Any] | tuple[Any, ...]"


def flatten(expression: object) -> Iterator[Node]:
    """The nodes of an expression in order. TypeError for what is none."""
    if isinstance(expression, str):
        if expression:
            yield Text(expression)
    elif isinstance(expression, Sequence):
        yield from expression.nodes
    elif isinstance(expression, Node):
        yield expression
    elif isinstance(expression, list | tuple):
        for part in expression:
            yield from flatten(part)
    else:
        hint = "a function that returns nothing was appended" if expression is None else "use str(...) or an f-string"
        raise TypeError(f"cannot append {type(expression).__name__} {expression!r} to a state; {hint}")
