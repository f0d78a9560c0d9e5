"""The command line: `palmette` and `python -m palmette`.

Exit status: 0 done, 1 it failed, 2 it was called wrongly, 130 stopped by Ctrl-C. `--json` prints one JSON object to
standard output; whatever is meant for people only goes to standard error then.
"""

from __future__ import annotations

from collections.abc import Sequence

from palmette.errors import PalmetteError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` defaults to `sys.argv[1:]`. Returns the exit status."""
    from palmette.cli.app import app
    from palmette.cli.output import show_error

    try:
        app(args=arguments, prog_name="palmette")
    except SystemExit as stop:  # how typer hands over the status, that of usage errors too
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except PalmetteError as error:
        show_error(error)
        return 1
    return 0
