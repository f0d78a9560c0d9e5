"""`@function`: a body becomes a program that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

from palmette.arguments import flag
from palmette.errors import CapabilityError
from palmette.interpreter.batch import Batch, OnError, checked_on_error, limit_of
from palmette.interpreter.defaults import backend_for
from palmette.interpreter.run import Run, run
from palmette.interpreter.state import Appendable, State
from palmette.interpreter.stream import AsyncStream, BlockingStream, Stream
from palmette.lang.function import Call, Function
from palmette.runtime.protocol import Backend


@dataclass(frozen=True, eq=False)
class Program(Function):
    """A body with a state as its first parameter.

    The run methods take the body's own arguments, `backend=`, sampling settings (`temperature=`, `max_tokens=`...) that
    hold for each `gen` that does not set its own, and the account of the run: `priority=`, `tenant=`, `namespace=`, as
    Engine.generate has them. Where the body has a parameter of such a name, it gets it.
    The body runs exactly once a run.
    """

    def run(self, /, *args: Any, **kwargs: Any) -> State:
        """Runs the program here, and returns its state when all its work is done.

        Raises what the body raises. A failure that the body did not read stays in the state: it is raised by whoever
        reads it, and `state.error` tells.
        """
        backend, call = self._prepare(args, kwargs)
        return run(self, call, backend)

    async def arun(self, /, *args: Any, **kwargs: Any) -> State:
        """As `run`, in the running event loop, which goes on meanwhile. Cancelling the task cancels the program."""
        backend, call = self._prepare(args, kwargs)
        return await Run(self, call, backend).there()

    def stream(self, /, *args: Any, **kwargs: Any) -> Stream | BlockingStream:
        """Runs the program as its events are read: TextEvent, VariableEvent, and ErrorEvent before an error is raised.
        Closing it cancels. `branches=True`: events of branches as well."""
        branches = self._option(kwargs, "branches", False)
        backend, call = self._prepare(args, kwargs)
        kind = BlockingStream if self.is_async else Stream
        return kind(self, call, backend, flag(f"{self.name}.stream()", "branches", branches))

    def astream(self, /, *args: Any, **kwargs: Any) -> AsyncStream:
        """As `stream`, for `async for`."""
        branches = self._option(kwargs, "branches", False)
        backend, call = self._prepare(args, kwargs)
        return AsyncStream(self, call, backend, flag(f"{self.name}.astream()", "branches", branches))

    @overload
    def run_batch(
        self, items: Iterable[Any], *, generator_style: Literal[False] = False, **options: Any
    ) -> list[State]: ...
    @overload
    def run_batch(self, items: Iterable[Any], *, generator_style: Literal[True], **options: Any) -> Iterator[State]: ...
    def run_batch(
        self,
        items: Iterable[Any],
        *,
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        on_error: OnError = "raise",
        **sampling: Any,
    ) -> list[State] | Iterator[State]:
        """Runs the program once for each item, many at a time; the states come in the order of the items.

        items: a dict of arguments each, or a tuple of positional ones. num_threads: how many may be in progress at
        once ("auto": 256; none is a thread). generator_style: an iterator that gives each state when it is ready.
        on_error: "raise" cancels the rest and raises the first item's original error; "keep" gives that item's state,
        which has it as `state.error`.
        """
        where = f"{self.name}.run_batch"
        if isinstance(items, Mapping | str) or not isinstance(items, Iterable):
            raise TypeError(f"{where} takes a list of items, not {items!r}; each is a dict or a tuple of arguments")
        calls = [self._item(index, item, sampling) for index, item in enumerate(items)]
        batch = Batch(
            self,
            calls,
            backend_for(backend),
            limit=limit_of(where, num_threads),
            on_error=checked_on_error(where, on_error),
            progress=flag(where, "progress_bar", progress_bar),
        )
        return batch.states() if flag(where, "generator_style", generator_style) else list(batch.states())

    def __call__(self, state: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the body on a state of another program, in line, and returns what the body returns."""
        if not isinstance(state, Appendable):
            raise TypeError(
                f"{self.name}(...) runs inside another program and takes its state first; "
                f"to run it on its own write {self.name}.run(...)"
            )
        call = self.prepare(args, kwargs)
        return self.body(state, *call.args, **call.kwargs)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Backend, Call]:
        backend = backend_for(self._option(kwargs, "backend", None))
        return backend, self.prepare(args, kwargs)

    def _option(self, kwargs: dict[str, Any], name: str, default: Any) -> Any:
        return default if self.takes(name) else kwargs.pop(name, default)

    def _item(self, index: int, item: Any, sampling: Mapping[str, Any]) -> Call:
        try:
            if isinstance(item, Mapping):
                return self.prepare((), {**sampling, **item})
            if isinstance(item, tuple | list):
                return self.prepare(tuple(item), sampling)
        except TypeError as error:
            error.add_note(f"in item {index} of {self.name}.run_batch")
            raise
        raise TypeError(f"item {index} of {self.name}.run_batch is {item!r}; give a dict or a tuple of arguments")


@overload
def function(body: Callable[..., Any], /) -> Program: ...
@overload
def function(*, num_api_spec_tokens: None = None, **defaults: Any) -> Callable[[Callable[..., Any]], Program]: ...
def function(
    body: Callable[..., Any] | None = None, /, *, num_api_spec_tokens: int | None = None, **defaults: Any
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Makes a program of a function whose first parameter is the state. `@function(temperature=0)` sets defaults."""
    if num_api_spec_tokens is not None:
        raise CapabilityError(
            "@function(num_api_spec_tokens=...) was asked for, which no backend of palmette does",
            hint="leave it out; on palmette's engine constant text costs no call of its own",
        )
    checked = Program.checked_defaults(defaults)
    if body is not None:
        return Program(body, checked)
    return lambda decorated: Program(decorated, checked)
