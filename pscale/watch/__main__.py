"""`python -m pscale.watch SCRIPT …`: record an mpi4py program where `pscale watch` cannot start it.

Notes go to the folder PSCALE_WATCH, by default pscale-watch; `pscale watch --read FOLDER` reports them.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
from pathlib import Path

from pscale.watch.preload import FOLDER, beside, recorder


def main() -> None:
    """Load the recorder before MPI, then run the script as if it had been started itself."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m pscale.watch SCRIPT [ARGUMENTS]")
    folder = Path(os.environ.setdefault(FOLDER, "pscale-watch"))
    folder.mkdir(parents=True, exist_ok=True)
    ctypes.CDLL(str(recorder(beside(Path(sys.executable)))), mode=ctypes.RTLD_GLOBAL)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent.absolute())
    runpy.run_path(sys.argv[0], run_name="__main__")


main()
