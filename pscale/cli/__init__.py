"""The command line: options in, calls out; errors become messages and exit codes."""

from pscale.cli.app import main

__all__ = ["main"]
