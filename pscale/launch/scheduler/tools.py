"""Commands of schedulers: run without a shell, in time, with an environment that changes nothing."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pscale.errors import LaunchError
from pscale.launch.command import is_replaced
from pscale.launch.scheduler.protocol import LimitError, UnsureError

UNANSWERED = "did not answer"
_LIMIT_S = 60
_INHERITED = re.compile(r"(SLURM|PBS|LSB|LS|FLUX|PMI|PMIX|PMI2|OMPI|PRTE|HYDI?)_.*")
_NEEDED = re.compile(  # where the scheduler is, not what it should do
    r"SLURM_CONF|PBS_(CONF_FILE|EXEC|HOME|SERVER|DEFAULT)|FLUX_URI"
    r"|LSF_.*|LS_(JOBPID|EXEC)|LSB_(SUB_ADDITIONAL|CONFDIR|SHAREDIR)"
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The end of what it said, in one line, without lines of stars."""
        said = map(str.strip, (self.err or self.out).splitlines())
        lines = [line for line in said if re.search(r"\w", line)]
        return " / ".join(lines[-3:]) or f"nothing, exit code {self.code}"


def ask(argv: Sequence[str], stdin: Path | None = None) -> Answer:
    """Run a command; raises UnsureError if it does not end in time, LaunchError if there is none."""
    try:
        done = subprocess.run(
            argv,
            input=stdin.read_text(encoding="utf-8") if stdin else "",
            env=environment(os.environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnsureError(f"{argv[0]} {UNANSWERED} in {_LIMIT_S} s") from error
    except OSError as error:
        raise LaunchError(f"cannot start {argv[0]}: {error.strerror or error}") from error
    return Answer(code=done.returncode, out=done.stdout, err=done.stderr)


def must(answer: Answer, argv: Sequence[str]) -> str:
    """Return what a command printed; raises LaunchError if it failed."""
    if answer.code:
        raise LaunchError(f"{argv[0]}: {answer.last_words}")
    return answer.out


def submitted(answer: Answer, argv: Sequence[str], *, limits: str, unsure: str = "(?!)") -> str:
    """Return what a submission printed; `limits` and `unsure` match what is said in those cases."""
    if answer.code == 0:
        return answer.out
    if re.search(limits, answer.err + answer.out, re.IGNORECASE):
        raise LimitError(f"{argv[0]}: {answer.last_words}")
    if re.search(unsure, answer.err + answer.out, re.IGNORECASE):
        raise UnsureError(f"{argv[0]}: {answer.last_words}")
    raise LaunchError(f"{argv[0]}: {answer.last_words}")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what jobs inherit: nothing that is meant for another job or changes threads and binding."""
    return {
        name: value
        for name, value in environ.items()
        if not is_replaced(name) and (_NEEDED.fullmatch(name) or not _INHERITED.fullmatch(name))
    }
