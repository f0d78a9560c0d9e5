"""One request to a backend, from its submission to its one terminal event."""

from __future__ import annotations

from collections.abc import Callable

from palmette.errors import BackendError, Cancelled
from palmette.runtime.protocol import Backend, Delta, Failed, Finished, GenerateRequest, Output


async def ask(
    backend: Backend, request: GenerateRequest, emit: Callable[[str], None] | None
) -> tuple[Output, ...] | Failed:
    """The request's outputs, or how it failed. `emit` gets the text of the first sample as it comes, all of it.

    Raises BackendError where the backend breaks the protocol, Cancelled where it gave the request up.
    """
    emitted = 0
    events = backend.submit(request)
    try:
        async for event in events:
            if isinstance(event, Delta):
                if emit is not None and event.index == 0 and event.text:
                    emitted += len(event.text)
                    emit(event.text)
            elif isinstance(event, Finished):
                _refuse_unfinished(event.outputs, request)
                rest = event.outputs[0].text[emitted:]
                if emit is not None and rest:
                    emit(rest)
                return event.outputs
            elif isinstance(event, Failed):
                return event
    finally:
        # Leaving early must cancel the request now, not when the iterator is collected.
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
    raise BackendError(
        f"backend {backend.capabilities.name!r} ended a request without a result",
        hint="a backend ends each request by Finished or Failed",
    )


def _refuse_unfinished(outputs: tuple[Output, ...], request: GenerateRequest) -> None:
    if len(outputs) != request.params.n:
        raise BackendError(f"the backend gave {len(outputs)} samples for n={request.params.n}")
    reasons = {output.finish_reason for output in outputs}
    if "error" in reasons:
        raise BackendError("the backend ended a sample by an error that it does not name")
    if "cancelled" in reasons:
        raise Cancelled("the backend cancelled the request", hint="it was closed or interrupted meanwhile")
