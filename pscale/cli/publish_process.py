"""The process that reports a run that has just ended: `python -m pscale.cli.publish_process FOLDER`.

A report takes libraries and memory that nothing before it does. A run that has lasted for days is not to be
touched by what becomes of them, nor to hold what it has read while they work.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

from pscale.analysis.cards import card
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.cli import exit_code, fail, guard_outputs
from pscale.cli.drawer import Drawer, is_worthwhile
from pscale.cli.report import Pictures, page_of, write
from pscale.errors import FAILED, INTERRUPTED, PscaleError
from pscale.launch import isolated_process
from pscale.launch.journal import Journal, writing_in
from pscale.report.answer import Answer
from pscale.report.drawn import Sources
from pscale.report.publish import FORMATS
from pscale.runs.store import compact


def main(folder: Path) -> int:
    """Report the run in `folder`; returns the exit code, `FAILED` where not every case ran well."""
    try:
        isolated_process.end_with_parent()
        return 0 if publish(folder) else FAILED
    except PscaleError as error:
        fail(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def publish(folder: Path) -> bool:
    """Write the report of a run, and print what it says in brief, as JSON; tell whether every case ran well.

    Expectations are for `check`.
    """
    # Two that join one table's parts would lose some.
    with Journal.open(folder).locked(), writing_in(folder):
        compact(folder / "data")
    sources = Sources.of(folder, ())
    with Drawer() if is_worthwhile() else nullcontext() as drawer:
        run = load(folder)
        findings = Findings(run, short=True)
        if drawer is not None:
            drawer.ask(findings, folder / "figures", FORMATS)
        answer = Answer.of(findings, page_of(findings))
        write(findings, answer, Pictures(sources=sources), drawer)
    card(folder, findings if findings.source is run else Findings(run))  # `pscale list` reads cards alone
    print(json.dumps(answer.document()))
    return findings.complete and not run.pending


if __name__ == "__main__":
    outputs = guard_outputs()
    sys.exit(exit_code(outputs, main(Path(sys.argv[1]))))
