"""The process in which `pscale.run` measures: `python -m pscale.cli.measure_process`.

Signal handlers, and the orphans of a launch, belong to this process; the program that calls has its own.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pscale.errors import INTERRUPTED, LaunchError, PscaleError
from pscale.launch import isolated_process
from pscale.launch.outcome import signal_name

if TYPE_CHECKING:
    from pscale.cli.options import RunOptions, SuiteOptions


def measure(path: Path, suite_options: SuiteOptions, options: RunOptions, *, quiet: bool) -> Path:
    """Measure a suite in a process of its own; return the run's folder.

    Raises the PscaleError of that process, and LaunchError where it has died.
    """
    request = pickle.dumps((path, suite_options, options, quiet))
    code, answer = isolated_process.exchange(__name__, request)
    if not answer:
        ended = signal_name(-code) if code < 0 else f"exit code {code}"
        raise LaunchError(f"the process that measures ended with {ended}; the same call continues the run")
    found: Path | tuple[type[PscaleError], tuple[str, ...]] = pickle.loads(answer)
    if isinstance(found, Path):
        return found
    kind, arguments = found
    raise kind.__new__(kind, *arguments)  # a constructor would write the message anew


def main() -> int:
    """Measure what standard input asks for; write the run's folder, or an error, to standard output."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process may ignore it
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        try:
            path, suite_options, options, quiet = pickle.load(sys.stdin.buffer)
            isolated_process.end_with_parent(partial(os.kill, os.getpid(), signal.SIGINT))
            from pscale.cli.console import new_console
            from pscale.cli.run import measure as measure_here

            console = new_console(stderr=True)
            console.quiet = quiet
            answer: object = measure_here(path, suite_options, options, console)
        except PscaleError as error:
            answer = type(error), error.args
        except KeyboardInterrupt:
            return INTERRUPTED
        pickle.dump(answer, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
