"""The command line: options in, calls out; errors become messages and exit codes."""

import errno
import gc
import io
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TextIO

from pscale import __version__
from pscale.errors import FAILED, INTERRUPTED, clean

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_OBJECTS = 200_000  # that are new between two collections: of those of imports, none is garbage


class _Output(io.FileIO):
    """Standard output or error that drops what can no longer be written, and remembers why.

    A run of days must not end because the disk of its log is full, or the reader of its pipe is gone.
    """

    error: OSError | None = None

    def write(self, data: object) -> int:
        """Write, or say that all was written once something could not be."""
        if self.error is None:
            try:
                return super().write(data)  # type: ignore[arg-type]
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes  # type: ignore[arg-type]


def guard_outputs() -> dict[str, _Output]:
    """Put outputs that never fail in place of the process's own standard output and error."""
    for number in (0, 1, 2):  # one that is closed would be the first file that is opened
        with suppress(OSError):
            os.fstat(number)
            continue
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    outputs = {}
    for number, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        if old is not getattr(sys, f"__{name}__"):  # replaced, as tests do
            continue
        outputs[name] = raw = _Output(number, "wb", closefd=False)
        if old is None:
            raw.error = OSError(errno.EBADF, "it is closed")
        new = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=old.encoding if old else "utf-8",
            errors="backslashreplace",  # names of files may be no text, and not every encoding has all signs
            line_buffering=raw.isatty() or number == 2,
            write_through=bool(old and old.write_through),
        )
        setattr(sys, name, new)
    return outputs


def exit_code(outputs: dict[str, _Output], code: int) -> int:
    """Report an output that failed on the other one; return `code`, `FAILED` where it would hide the failure.

    That the reader of a pipe has read enough is no failure.
    """
    for name in outputs:
        getattr(sys, name).flush()
    for name, output in outputs.items():
        if output.error is not None and output.error.errno != errno.EPIPE:
            left = sys.stdout if name == "stderr" else sys.stderr
            print(f"pscale: cannot write to {name}: {output.error.strerror}", file=left, flush=True)
            code = code or FAILED
    return code


def tell(text: str, file: TextIO | None = None) -> None:
    """Print lines without control characters: what they name may be of somebody else."""
    print("\n".join(map(clean, text.split("\n"))), file=file, flush=True)


def fail(text: str) -> None:
    """Say on standard error why pscale ends; a terminal would break lines inside words."""
    lines = f"pscale: {text}".split("\n")
    if sys.stderr.isatty():
        import shutil
        import textwrap

        width = shutil.get_terminal_size().columns
        whole = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        lines = ["\n".join(whole.wrap(line)) for line in lines]
    tell("\n".join(lines), sys.stderr)


def raise_again(lost: "UnraisableHookArgs") -> None:
    """Interrupt the program again where Ctrl-C came in a callback of Python's, which drops exceptions."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        again = (threading.get_ident(), signal.SIGINT)
        threading.Timer(0.01, signal.pthread_kill, again).start()  # at once it would be dropped too
    else:
        sys.__unraisablehook__(lost)


def main() -> NoReturn:
    """Run the command line; Ctrl-C ends it without a traceback also while it is being loaded."""
    outputs = guard_outputs()
    sys.unraisablehook = raise_again
    gc.set_threshold(_OBJECTS)
    if os.environ.get("COLUMNS") == "0":  # unknown, as some terminals say; rich would print nothing
        del os.environ["COLUMNS"]
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # looking for some takes 40 ms
    try:
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(exit_code(outputs, code))


def _run(words: list[str]) -> int:
    """Run the command line, which takes a tenth of a second to import, unless the version is all it asks."""
    if words == ["--version"]:
        print(f"pscale {__version__}")
        return 0
    from pscale.cli.app import main as run

    return run()
