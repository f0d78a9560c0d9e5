"""Values of options, checked before anything is loaded: what is wrong is a usage error that names the option."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from palmette.errors import suggestion


def choice(option: str, name: str, known: Mapping[str, Any]) -> Any:
    """What is called `name`. BadParameter, with the nearest name, where nothing is."""
    if name not in known:
        raise typer.BadParameter(f"there is no {name!r}; {suggestion(name, known)}", param_hint=option)
    return known[name]


def check_output(option: str, path: Path | None) -> None:
    """BadParameter where no file can be written at `path`. None, and what lies there already, stay as they are."""
    if path is None:
        return
    where = path.absolute()
    if where.is_dir():
        problem = f"{path} is a folder; give a file"
    elif not where.parent.is_dir():
        problem = f"there is no folder {where.parent}; make it, or write elsewhere"
    else:
        problem = _unwritable(where)
    if problem:
        raise typer.BadParameter(problem, param_hint=option)


def _unwritable(path: Path) -> str:
    """Why `path` cannot be written, or nothing. Only trying tells: rights alone say nothing of /proc or a full disk."""
    there = path.exists()
    if there and not path.is_file():  # a pipe, a terminal: to open it would disturb who reads
        return ""
    try:
        path.open("ab").close()
        if not there:
            path.unlink()
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}; write elsewhere"
    return ""
