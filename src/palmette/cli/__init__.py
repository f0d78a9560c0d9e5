"""The command line: `palmette` and `python -m palmette`.

Exit status: 0 done, 1 it failed, 2 it was called wrongly, 130 stopped by Ctrl-C. `--json` prints one JSON object to
standard output; whatever is meant for people only goes to standard error then.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from palmette.errors import PalmetteError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` defaults to `sys.argv[1:]`. Returns the exit status."""
    try:
        from palmette.cli.app import app

        app(args=arguments, prog_name="palmette")
    except SystemExit as stop:  # how typer hands over the status, that of usage errors too
        if _interrupted(stop):
            return _say_interrupted()
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:  # before typer has begun
        return _say_interrupted()
    except PalmetteError as error:
        from palmette.cli.output import show_error

        show_error(error)
        return 1
    return 0


def _interrupted(stop: SystemExit) -> bool:
    """Whether typer made it of a Ctrl-C that no command has dealt with: it says nothing then, also where a library was
    just being imported. (Commands that do tell end by a status of their own making.)"""
    return isinstance(getattr(stop.__context__, "__cause__", None), KeyboardInterrupt)


def _say_interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 130
