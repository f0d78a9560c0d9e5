"""The state that a program's body writes to and reads from, as synchronous code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from palmette.errors import PalmetteError
from palmette.interpreter import operations as op
from palmette.interpreter.bodies import park
from palmette.interpreter.branches import Branches
from palmette.interpreter.front import Front
from palmette.interpreter.results import Result, Step, meta_info, value_of
from palmette.lang.nodes import Expression, RoleBegin, RoleEnd
from palmette.lang.roles import role as role_expression


class Appendable:
    """What synchronous and asynchronous states share: everything that appends and returns at once."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self.ret_value: Any = None

    def __iadd__(self, expression: Expression | Appendable) -> Self:
        """Appends text, `gen`, `select`, a role block, or a list of them. A state that has failed takes it and does
        nothing."""
        if isinstance(expression, Appendable):
            raise TypeError("cannot append a state to a state; append its text, as in s += other.text()")
        self._front.append(expression)
        return self

    def set_var(self, name: str, value: Any) -> None:
        """Sets a variable after all that is appended so far."""
        if not isinstance(name, str):
            raise TypeError(f"a variable's name is a str, not {name!r}")
        self._front.put(op.Assign(name, value, where=op.caller()))

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def role(self, name: str) -> _Role:
        """`with s.role("tool"): ...`: what is appended inside is one message."""
        return _Role(self, name)

    def system(self, expression: Expression | None = None) -> _Role:
        """`with s.system(): ...`, or `s.system("...")` for a whole message."""
        return self._message("system", expression)

    def user(self, expression: Expression | None = None) -> _Role:
        return self._message("user", expression)

    def assistant(self, expression: Expression | None = None) -> _Role:
        return self._message("assistant", expression)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """All text appended inside becomes variable `name`."""
        if not isinstance(name, str):
            raise TypeError(f"a variable's name is a str, not {name!r}")
        self._front.put(op.OpenScope(where=op.caller()))
        try:
            yield
        finally:
            self._front.put(op.CloseScope(name, where=op.caller()))

    def cancel(self) -> None:
        """Ends the state and its branches at once. What is complete can still be read; a join takes None for it."""
        self._front.cancel()

    def _message(self, name: str, expression: Expression | None) -> _Role:
        if expression is not None:
            self._front.append(role_expression(name, expression))
        return _Role(self, name, done=expression is not None)

    def _fork(self, size: int, position_ids_offset: object) -> list[Front]:
        if position_ids_offset is not None:
            raise TypeError("fork takes no position_ids_offset: positions follow from the text; leave it out")
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"fork takes the number of branches, not {size!r}")
        if size < 1:
            raise PalmetteError(f"fork({size}) makes no branch", hint="fork at least 1")
        return self._front.fork(size)


class _Role:
    """A message being written. Its end is appended even where the block raises."""

    def __init__(self, state: Appendable, name: str, *, done: bool = False) -> None:
        self._state = state
        self._name = name
        self._done = done

    def __enter__(self) -> None:
        if self._done:
            raise PalmetteError("this message is complete already", hint=f"write: with s.{self._name}(): ...")
        self._state._front.append(RoleBegin(self._name))

    def __exit__(self, *exc_info: object) -> None:
        if self._state._front.role == self._name:
            self._state._front.append(RoleEnd(self._name))


class State(Appendable):
    """A program's transcript and variables. Reading waits for what is read; a state that failed raises its error, the
    original one, from every read."""

    def __getitem__(self, name: str) -> Any:
        """The variable, once what makes it is done. UnknownVariable where nothing does."""
        self._wait(self._maker(name))
        return self._front.variable(name)

    def get_var(self, name: str) -> Any:
        return self[name]

    def __contains__(self, name: object) -> bool:
        self._settle()
        return name in self._front.strand.memory.variables

    def text(self) -> str:
        """All text so far, the chat template's own included."""
        self._settle()
        return self._front.strand.memory.transcript.text()

    def messages(self) -> list[dict[str, str]]:
        """The chat messages so far, as dicts of role and content."""
        self._settle()
        return self._front.strand.memory.transcript.messages()

    def tokens(self) -> list[int]:
        """All tokens so far, as the engine knows them; text after the last request as it would be tokenised now."""
        self._settle()
        return self._front.strand.memory.transcript.tokens(self._front.shared.codec)

    def result(self, name: str) -> Any:
        """The GenResult or SelectResult of a variable; a list of them after `n` > 1 or a join."""
        self._wait(self._maker(name))
        return self._front.result(name)

    def value(self, name: str) -> Any:
        """The variable as its type (`gen(type=...)`), parsed JSON (`json_schema=`), or text. TruncatedError where its
        text was cut; a list after `n` > 1 or a join."""
        self._wait(self._maker(name))
        value = self._front.variable(name)
        return value_of(value, self._front.strand.memory.results[name])

    def get_meta_info(self, name: str) -> Any:
        """Token counts, finish reason, log-probabilities of a variable as a dict (or a list of them)."""
        return meta_info(self.result(name))

    @property
    def results(self) -> list[Result]:
        """The results of all generations and selections of this state, unnamed ones too, in order."""
        self._settle()
        return list(self._front.strand.made)

    @property
    def variables(self) -> dict[str, Any]:
        self._settle()
        return dict(self._front.strand.memory.variables)

    @property
    def trace(self) -> tuple[Step, ...]:
        """The steps so far, also those of a state that failed."""
        self._wait(self._front.last)
        return tuple(self._front.strand.trace)

    @property
    def error(self) -> BaseException | None:
        """What the state failed by, or None. Waits for it, and does not raise."""
        self._wait(self._front.last)
        self._front.strand.seen = True
        return self._front.strand.error

    def sync(self) -> None:
        """Waits for all that is appended, and raises the error if it failed."""
        self._settle()

    def fork(self, size: int = 1, position_ids_offset: None = None) -> Branches[State]:
        """Branches that each go on from here on their own. Join them, or use `with s.fork(2) as branches:`."""
        return Branches(self, [State(front) for front in self._fork(size, position_ids_offset)])

    @contextmanager
    def copy(self) -> Iterator[State]:
        """A single branch, joined at the block's end."""
        with self.fork(1) as branches:
            yield branches[0]

    def __repr__(self) -> str:
        strand = self._front.strand
        status = f"failed: {strand.error!r}" if strand.error is not None else ", ".join(strand.memory.variables)
        return f"<State of {self._front.shared.program!r}: {status}>"

    def _maker(self, name: str) -> op.Operation | None:
        if not isinstance(name, str):
            raise TypeError(f"a variable's name is a str, not {name!r}")
        return self._front.maker(name)

    def _wait(self, operation: op.Operation | None) -> None:
        if operation is not None and not operation.finished:
            self._front.kick()
            park(operation, self._front.shared.thread)

    def _settle(self) -> None:
        self._wait(self._front.last)
        self._front.refuse_failed()
