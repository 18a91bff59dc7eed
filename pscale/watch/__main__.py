"""`python -m pscale.watch PROGRAM …`: record a program where `pscale watch` cannot start it.

Notes go to the folder PSCALE_WATCH, by default pscale-watch; `pscale watch --read FOLDER` reports them.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import shutil
import sys
from pathlib import Path

from pscale.errors import LaunchError
from pscale.watch.preload import FOLDER, preload_words, program_library, recorder, sibling_library


def main() -> None:
    """Load the recorder before MPI; run a script in this process, another program in place of it."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m pscale.watch PROGRAM [ARGUMENTS]")
    folder = Path(os.environ.get(FOLDER, "pscale-watch")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[FOLDER] = str(folder)
    if not sys.argv[1].endswith(".py"):
        program = shutil.which(sys.argv[1]) or sys.exit(f"{sys.argv[1]}: no such program")
        library = program_library(Path(program), os.environ) or sibling_library(Path(sys.executable))
        words = (*preload_words(library, os.environ), program, *sys.argv[2:])
        os.execvp(words[0], words)
    library = program_library(Path(sys.executable), os.environ)
    ctypes.CDLL(str(recorder(library)), mode=ctypes.RTLD_GLOBAL)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent.absolute())
    runpy.run_path(sys.argv[0], run_name="__main__")


try:
    main()
except LaunchError as error:
    sys.exit(f"pscale: {error}")
