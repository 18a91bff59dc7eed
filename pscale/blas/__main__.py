"""Run a Python program whose NumPy multiplies with another BLAS.

python -m pscale.blas CHOICE PROGRAM.py [ARGUMENTS]
python -m pscale.blas CHOICE -m MODULE [ARGUMENTS]

CHOICE is that of `launch.blas`: numpy, auto, openblas, blis, mkl, or the path of a library.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from pscale.blas.forwarding import BlasError, use


def main(choice: str, *program: str) -> None:
    """Choose the BLAS, then run the program in this process."""
    try:
        use(choice)
    except BlasError as error:
        sys.exit(f"pscale: {error}")
    if program[0] == "-m":
        sys.argv = list(program[1:])
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(program)
        if not sys.flags.safe_path:
            sys.path[0] = str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
