"""What draws the figures of a report in a process of its own: `python -m pscale.cli.drawer`.

It imports its libraries while the one that reports reads and counts, and draws while that one prints.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pscale.errors import ResultsError
from pscale.launch import isolated_process
from pscale.launch.machine import affinity

if TYPE_CHECKING:
    from pscale.analysis.findings import Findings
    from pscale.report.page import Drawn


class Drawer:
    """A process that draws once, if it is asked to; nothing is left of it behind the block."""

    def __enter__(self) -> Self:
        self.process = isolated_process.start(__name__)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError), self.process:  # what it has not read is for nobody
            self.process.kill()

    def ask(self, findings: Findings, folder: Path, formats: Sequence[str]) -> None:
        """Let it draw a run's figures into `folder`."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            pickle.dump((findings, folder, formats), pipe)

    def answer(self) -> Drawn:
        """Return what it has drawn; raises what it has raised, and ResultsError where it has died."""
        assert self.process.stdout is not None
        try:
            found: Drawn | Exception = pickle.load(self.process.stdout)
        except EOFError:
            raise ResultsError(
                f"drawing figures ended with status {self.process.wait()}; --no-figures reports without them"
            ) from None
        if isinstance(found, Exception):
            raise found
        return found


def is_worthwhile() -> bool:
    """Tell whether there is a core for it: what it imports is for the most part imported here too."""
    return len(affinity()) > 1


def main() -> None:
    """Draw what is asked for on standard input, and answer on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that has started it ends it
    gc.disable()  # of what it makes in its second, little is garbage
    from pscale.report import drawing  # noqa: F401 - takes its time
    from pscale.report.page import draw_all

    try:
        asked = pickle.load(sys.stdin.buffer)
    except EOFError:  # nothing is to be drawn
        return
    try:
        answer: Drawn | Exception = draw_all(*asked)
    except Exception as error:  # raised again where it is waited for
        answer = error
    with suppress(BrokenPipeError), os.fdopen(1, "wb") as pipe:  # the one that has started it may be gone
        pickle.dump(answer, pipe)


if __name__ == "__main__":
    main()
