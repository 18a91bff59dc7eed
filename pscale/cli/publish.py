"""What reports a run that has just ended: `python -m pscale.cli.publish FOLDER`, a process of its own.

A report takes libraries and memory that nothing before it does. A run that has lasted for days is not to be
touched by what becomes of them, nor to hold what it has read while they work.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

from pscale.analysis.frames import load
from pscale.analysis.summary import summarise
from pscale.cli.drawer import Drawer, is_worthwhile
from pscale.cli.report import Pictures, present
from pscale.errors import FAILED, INTERRUPTED, PscaleError
from pscale.launch import apart
from pscale.launch.journal import Journal
from pscale.results.compact import compact


def main(folder: Path) -> int:
    """Report the run in `folder`; returns the exit code, `FAILED` where not every case ran well."""
    apart.end_with_parent()
    try:
        return 0 if publish(folder) else FAILED
    except PscaleError as error:
        print(f"pscale: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def publish(folder: Path) -> bool:
    """Report a run; tell whether every case ran well. Expectations are for `check`."""
    with Journal.open(folder).locked():  # two that join one table's parts would lose some
        compact(folder / "data")
    with Drawer() if is_worthwhile() else nullcontext() as drawer:
        run = load(folder)
        summary = summarise(run, short=True)
        present(summary, Pictures(), drawer)
    return summary.complete and not run.pending


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
