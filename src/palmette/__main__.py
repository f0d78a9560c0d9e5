"""`python -m palmette`: the same as the command `palmette`."""

import sys

from palmette.cli import main

if __name__ == "__main__":
    sys.exit(main())
