"""`pscale export`: a run as the files of other tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pscale.analysis.frames import load
from pscale.analysis.timeline import kept_steps, launch_events, traced
from pscale.cli import tell
from pscale.cli.trace import chosen
from pscale.errors import UsageError, writing
from pscale.export.activities import Launch, launch_of
from pscale.export.chakra import write_chakra
from pscale.export.extrap import write_extrap
from pscale.export.goal import write_goal
from pscale.export.otf2_archive import write_otf2

EXTRAP = "extrap"  # of all launches; the others are of one that was traced
_WRITERS: dict[str, Callable[[Launch, Path, str], list[Path]]] = {
    "chakra": write_chakra,
    "goal": write_goal,
    "otf2": write_otf2,
}
FORMATS = (*_WRITERS, EXTRAP)
_READ_BY = {
    "chakra": "astra-sim --workload-configuration={folder}/{name} "
    "--comm-group-configuration={folder}/{name}.groups.json …",
    "goal": "txt2bin -i {file} -o {name}.bin && LogGOPSim -f {name}.bin",
    "otf2": "otf2-print {file}, or Vampir",
    EXTRAP: "extrap --json {file}",
}


def export(
    path: Path,
    as_format: str,
    case: str | None,
    number: int | None,
    steps: range | None,
    output: Path | None,
) -> None:
    """Write a run into the folder `output`, or export/FORMAT of the run's own, and say what reads it.

    All formats but Extra-P's are of launch `number` of a case, from 1, or of some measured steps of it.
    """
    run = load(path)
    folder = output or run.path / "export" / as_format
    if as_format == EXTRAP:
        if case is not None or number is not None or steps is not None:
            raise UsageError(
                "--format extrap is of all launches; give it without --case, --launch and --steps"
            )
        _written(as_format, folder, lambda: write_extrap(run, folder))
        return
    launch = chosen(run, traced(run), case, number or 1)
    if steps is not None and steps.stop > (kept := kept_steps(run, launch)):
        raise UsageError(
            f"--steps: events of {launch.label} were kept for its measured steps 0 to {kept - 1}"
        )
    title = f"{launch.label}, launch {launch.repeat + 1}"
    found = launch_of(launch_events(run, launch, steps=steps), title)
    name = f"{launch.case}-{launch.repeat + 1}"
    _written(as_format, folder, lambda: _WRITERS[as_format](found, folder, name))


def _written(as_format: str, folder: Path, write: Callable[[], Sequence[Path]]) -> None:
    """Write into a folder, in place of what is there; print the files and what reads them."""
    with writing(f"in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        written = write()
    for path in written:
        tell(str(path))
    first = written[0]
    words = _READ_BY[as_format].format(file=first, folder=first.parent, name=first.name.partition(".")[0])
    tell(f"read by: {words}")
