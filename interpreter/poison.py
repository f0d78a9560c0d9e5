"""An error that fails a state is shared by all its readers: here it is marked, once."""

from __future__ import annotations

from types import TracebackType


def add_note(error: BaseException, note: str) -> None:
    """Adds a note that the error does not have yet."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def first_traceback(error: BaseException) -> TracebackType | None:
    """The traceback that the error had when it first failed a state.

    One error object may be raised for many readers, and each raise adds frames to it; all raises start from here.
    """
    if not hasattr(error, "_palmette_traceback"):
        try:
            error._palmette_traceback = error.__traceback__  # type: ignore[attr-defined]
        except AttributeError:
            return error.__traceback__
    first: TracebackType | None = error._palmette_traceback  # type: ignore[attr-defined]
    return error.with_traceback(first).__traceback__
