"""The branches of a fork, as a sequence of states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from palmette.errors import PalmetteError

if TYPE_CHECKING:
    from palmette.interpreter.state import Appendable

S = TypeVar("S", bound="Appendable")


class Branches(Generic[S]):
    """`with s.fork(2) as branches:` joins at the block's end, and cancels where the block raises. `branches += x`
    appends to each: one expression for all, a list with one for each, or a function of the branch's index."""

    def __init__(self, parent: S, states: list[S]) -> None:
        self._parent = parent
        self._states = states
        self._joined = False

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[S]:
        return iter(self._states)

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> list[S]: ...
    def __getitem__(self, index: int | slice) -> S | list[S]:
        return self._states[index]

    def __setitem__(self, index: int, state: S) -> None:
        """Only for `branches[i] += ...`, which puts the same state back."""
        if self._states[index] is not state:
            raise TypeError("branches cannot be replaced; append to one by branches[i] += ...")

    def __iadd__(self, expressions: Any) -> Self:
        if callable(expressions):
            make: Callable[[int], Any] = expressions
            each = [make(index) for index in range(len(self))]
        elif isinstance(expressions, list | tuple):
            if len(expressions) != len(self):
                raise PalmetteError(
                    f"{len(expressions)} expressions for {len(self)} branches",
                    hint="give one for each branch; one expression for all is joined by +, not a list",
                )
            each = list(expressions)
        else:
            each = [expressions] * len(self)
        for state, expression in zip(self._states, each, strict=True):
            state += expression
        return self

    def join(self, mode: str = "gather_variable") -> None:
        """Each variable that branches have set becomes a list in the parent: one entry per branch, None where a branch
        has none. Returns at once; reading the parent waits. A branch's failure is the parent's then."""
        if mode != "gather_variable":
            raise PalmetteError(f"join mode {mode!r} is unknown", hint='the mode is "gather_variable"')
        if self._joined:
            raise PalmetteError("these branches are joined already", hint="join once; `with` joins at its end")
        self._joined = True
        self._parent._front.join(state._front for state in self._states)

    def cancel(self) -> None:
        """Ends all branches at once."""
        for state in self._states:
            state.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None:
            self.cancel()
        elif not self._joined:
            self.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        self.__exit__(kind, error, traceback)
