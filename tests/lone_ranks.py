"""Ranks alone in this process, as `pscale predict --probe` starts them in one of their own."""

from pscale.mesh import grid, mpi
from pscale.parallel.ranks import GROUPS
from pscale.worker import lone_rank
from pscale.worker.job import JobSpec
from pscale.worker.recorder import Recorder


def alone(kind, repeat, folder, recorder=None, copy=0):
    """Take steps of a rank of a kind as one of its copies; return the folder of all copies."""
    (data := folder / "data").mkdir(parents=True, exist_ok=True)
    case, sizes = kind.case, kind.case.plan.sizes
    spans = grid.groups(sizes, GROUPS)
    recorder = recorder_of(case) if recorder is None else recorder
    comm = lone_rank.communicator(case, kind.rank)
    mesh = mpi.MpiMesh(comm, sizes, spans, recorder, [0] * case.ranks)
    spec = JobSpec(
        case=case,
        task="probe",
        repeat=repeat,
        folder=folder,
        data=data,
        launched_unix_s=0.0,
        rank=kind.rank,
    )
    lone_rank.run(spec, mesh, recorder, copy, lambda: None)
    return data


def recorder_of(case):
    """Return a recorder for the axes of a case."""
    return Recorder([grid.axis_name(span) for span in grid.groups(case.plan.sizes, GROUPS)])
