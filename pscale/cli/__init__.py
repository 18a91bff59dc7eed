"""The command line: options in, calls out; errors become messages and exit codes."""

import sys
from typing import NoReturn

from pscale.errors import INTERRUPTED


def main() -> NoReturn:
    """Run the command line; Ctrl-C ends it without a traceback also while it is being loaded."""
    try:
        from pscale.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
