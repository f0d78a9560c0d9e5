"""The errors that palmette raises. The common floor of all its packages: imports nothing.

Every error says what is wrong and carries `.hint`, one sentence that says what to change.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PalmetteError(Exception):
    """Base of all palmette errors. `hint` says what to change; it is part of `str(error)`."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class ArgumentError(PalmetteError, ValueError):
    """An argument of the right type with a value that makes no sense."""


class CapabilityError(PalmetteError):
    """A backend was asked for something that it does not do."""


class ConstraintError(PalmetteError, ValueError):
    """A constraint that is malformed, or that cannot be enforced exactly.

    `pointer` is where: a JSON pointer into a schema ("/properties/age/pattern"), or "@12" for the 12th
    character of a regex or grammar; "" for the whole. `faults` are all that was found, this first one among them.
    """

    def __init__(
        self, message: str, *, pointer: str = "", hint: str = "", more: Iterable[ConstraintError] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.pointer = pointer
        self._more = tuple(more)

    @property
    def faults(self) -> tuple[ConstraintError, ...]:
        return (self, *self._more)

    def __str__(self) -> str:
        where = f"{self.message} (at {self.pointer})" if self.pointer else self.message
        text = f"{where}\n  hint: {self.hint}" if self.hint else where
        return "\n".join([text, *map(str, self._more)])


class ContextLengthError(PalmetteError, ValueError):
    """A prompt, or what a request may grow to, does not fit the model's context or the KV cache."""


class TruncatedError(PalmetteError):
    """A typed value was asked for, but its text was cut (usually by `max_tokens`)."""


class BackendError(PalmetteError):
    """A backend failed while it worked on a request."""


class Cancelled(PalmetteError):
    """The request, or the state that it belongs to, was cancelled."""


class ModelError(PalmetteError):
    """A model that does not exist, cannot be loaded, or lacks what was asked of it (a chat template, a tensor)."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt `name`: its nearest neighbour among `known`, or the whole list."""
    options = sorted(known)
    near = get_close_matches(name, options, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "known are: " + ", ".join(options)
