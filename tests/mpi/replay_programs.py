"""Run by mpiexec: four ranks walk through ten random programs; prints the largest error in seconds."""

from programs import random_program

from pscale.mesh import grid, mpi
from pscale.worker.recorder import Recorder
from pscale.worker.waits import ideal

GRID = {"pp": 2, "dp": 2}


def main():
    comm = mpi.world()
    worst = 0.0
    programs = [random_program(seed, GRID, alike=False) for seed in range(10)]
    spans = programs[0].spans
    recorder = Recorder([grid.axis_name(span) for span in spans])
    mesh = mpi.MpiMesh(comm, GRID, spans, recorder, [0] * comm.size)
    axes = [mesh.axis(*span) for span in spans]
    for program in programs:
        ends = ideal(program.rows[comm.rank], program.wait[comm.rank], axes, start_ns=0)[1]
        worst = max(worst, abs(ends - program.ideal[comm.rank] * 1e-9).max())
    everyone = mesh.world.gather_objects(worst)
    if everyone:
        print(f"largest error {max(everyone)}")


if __name__ == "__main__":
    main()
