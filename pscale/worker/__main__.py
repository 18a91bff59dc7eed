"""The process of one rank: `python -m pscale.worker CASE_FOLDER`, started by MPI."""

from __future__ import annotations

import time

_started = time.perf_counter()

import sys  # noqa: E402


class _WithoutPandas:
    """A finder by which pandas is not installed: pyarrow would import it, for 0.3 s a launch."""

    def find_spec(self, name: str, *_: object) -> None:
        """Raise for pandas; leave all others to the next finder."""
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is kept out", name=name)


sys.meta_path.insert(0, _WithoutPandas())

from pathlib import Path  # noqa: E402

from pscale.blas import forwarding  # noqa: E402
from pscale.blas.forwarding import BlasError  # noqa: E402

_no_blas: BlasError | None = None
if __name__ == "__main__":
    try:
        forwarding.use_as_case(Path(sys.argv[1], "case.json"))  # while NumPy is not loaded
    except BlasError as error:
        _no_blas = error

import traceback  # noqa: E402
from types import TracebackType  # noqa: E402
from typing import Any, cast  # noqa: E402

from pscale.config.training import is_16_bit  # noqa: E402
from pscale.errors import PscaleError  # noqa: E402
from pscale.mesh import grid  # noqa: E402
from pscale.parallel.ranks import GROUPS  # noqa: E402
from pscale.runs import atomic_files  # noqa: E402
from pscale.runs.atomic_files import write_json  # noqa: E402
from pscale.runs.step_counter import StepCounter  # noqa: E402
from pscale.worker import collect, delay_injection, job  # noqa: E402
from pscale.worker.clock import ClockError  # noqa: E402
from pscale.worker.environment import software, use_kernels  # noqa: E402
from pscale.worker.recorder import Recorder  # noqa: E402

_imported = time.perf_counter()

from pscale.mesh import mpi  # noqa: E402 - importing mpi4py.MPI calls MPI_Init, timed apart
from pscale.worker.watchdog import watchdog  # noqa: E402 - knows the calls of MPI


class WrongWorldError(PscaleError):
    """The processes that were started do not form the job that was asked for."""


def main(folder: Path) -> None:
    """Run the case that is described in `folder` and leave its results there."""
    timeline = job.StartupTimes(parts={"import_s": _imported - _started})
    timeline.parts["mpi_init_s"] = time.perf_counter() - _imported
    spec = job.JobSpec.read(folder)
    if _no_blas:
        raise _no_blas
    comm, library = mpi.world(), mpi.library()
    if comm.size != spec.processes:
        raise WrongWorldError(
            f"asked for one world of {spec.processes} ranks, this process is in one of {comm.size}: the "
            f"launcher does not belong to the MPI that mpi4py loads ({library['library']}); "
            "`pscale doctor` says which are found"
        )
    if comm.rank == 0:
        # the launcher has done its part: what goes wrong now is the case's fault
        atomic_files.create(folder / "born").close()
    run(spec, comm, library, timeline)


def run(spec: job.JobSpec, comm: mpi.Comm, library: dict[str, str], timeline: job.StartupTimes) -> None:
    """Run a case on the ranks of `comm` and leave its results in its folder; collective."""
    case, everyone, nodes = spec.case, cast("Any", comm), mpi.nodes(comm)
    if case.data.prefetch and not mpi.takes_threads():
        raise PscaleError(
            "data.prefetch reads on a thread, and this MPI takes calls of one; set prefetch: false"
        )
    use_kernels(case.launch.kernels, case.threads, narrow=is_16_bit(case.model.dtype))
    sizes = case.plan.sizes
    spans = grid.groups(sizes, (*GROUPS, tuple(sizes)) if case.timing.pace else GROUPS)
    names, measures = [grid.axis_name(span) for span in spans], spec.task == "measure"
    recorder = delay_injection.recorder(case, names, comm.rank, spec.repeat) if measures else Recorder(names)
    if comm.rank == 0 and (counter := StepCounter.open(spec.counter)):
        recorder.on_step = counter.add
    train, poll_s = job.run, 0.0
    if case.ghost.gflops:
        from pscale.worker import ghost  # noqa: PLC0415 - what only ghosts need

        train, poll_s = ghost.run, ghost.poll_s(case)
    if spec.task == "probe":
        from pscale.worker import lone_rank  # noqa: PLC0415 - what only probes need

        everyone, nodes = lone_rank.communicator(case, spec.rank), [0] * case.ranks
        recorder.now = time.thread_time_ns if spec.cpu_time else time.perf_counter_ns
    mesh = mpi.MpiMesh(everyone, sizes, spans, recorder, nodes, poll_s=poll_s)
    with watchdog(recorder, mesh, spec.folder, case.launch.hang_after_s):
        if spec.task == "probe":
            lone_rank.run(spec, mesh, recorder, comm.rank, comm.Barrier)
            return
        if not measures:
            from pscale.worker.verify import verify  # noqa: PLC0415 - what only proving needs

            verify(spec, mesh, recorder)
            return
        result = train(spec, mesh, recorder, timeline)
        axes = [mesh.axis(*span) for span in spans]
        collect.collect(spec, mesh, axes, result, {"mpi": library, **software()})


def report_and_abort(folder: Path) -> None:
    """Leave behind why this rank died, then end the job: the others would wait for it forever."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        rank = mpi.world_axis().rank
        text = "".join(traceback.format_exception(kind, error, trace))
        of_user = isinstance(error, PscaleError)
        failure = {
            "rank": rank,
            "status": "invalid" if isinstance(error, (WrongWorldError, ClockError, BlasError)) else "failed",
            "message": str(error) if of_user else traceback.format_exception_only(kind, error)[-1].strip(),
            "traceback": "" if of_user else text,
            "unix_s": time.time(),
        }
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
            write_json(folder / f"failure-{rank}.json", failure)
        finally:
            mpi.abort()  # even where nothing can be written

    sys.excepthook = hook


if __name__ == "__main__":
    report_and_abort(Path(sys.argv[1]))
    main(Path(sys.argv[1]))
