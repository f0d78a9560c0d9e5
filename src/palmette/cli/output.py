"""How commands speak: errors in one form, JSON in one form."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from palmette.errors import PalmetteError


def console(*, err: bool = False) -> Console:
    """A console on the present stdout (or stderr). Made anew each time, since tests and shells replace the streams."""
    return Console(file=sys.stderr if err else sys.stdout, highlight=False)


def show_error(error: PalmetteError) -> None:
    """`error: ...`, where in the program it happened (its notes), and the hint; to standard error."""
    out = console(err=True)
    out.print(Text("error: ", style="bold red") + Text(error.message), soft_wrap=True)
    for note in getattr(error, "__notes__", ()):
        out.print(Text(f"  {note}"), soft_wrap=True)
    if error.hint:
        out.print(Text("  hint: ", style="bold") + Text(error.hint), soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON value on standard output. What JSON cannot hold (a dataclass, an Enum) is written as its data."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=plain))


def plain(value: Any) -> Any:
    """`json.dumps`'s fallback: pydantic's idea of the value as JSON data, else its `str`."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value)
    except PydanticSerializationError:
        return str(value)


def human_size(count: float) -> str:
    """Bytes for people: `135.4 MB`, in powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
