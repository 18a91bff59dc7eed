"""Ranks that run one case after another, each on as many of them as it needs: `warm_worker.py FOLDER PID`.

FOLDER/N says how many ranks launch N has, for N from 0, and in which folder its case.json is, which is gone
once FOLDER/N.done says that it ended. A rank that dies ends all; so does the end of process PID, which asks.
"""

import faulthandler
import os
import signal
import sys
import time
from itertools import count
from pathlib import Path

from mpi4py import MPI

from pscale.mesh import mpi
from pscale.worker.__main__ import report_and_abort, run
from pscale.worker.job import JobSpec, StartupTimes

_SHORT_S, _LONG_S = 0.002, 0.03  # between looks for the next launch


class _Noted:
    """A communicator that notes those made of it, so that they can be freed: MPICH has 2048 of them."""

    made = []  # noqa: RUF012 - of all

    def Dup(self, info=None):  # noqa: N802
        return self._noted(super().Dup(info))

    def Create_cart(self, dims, periods=None, reorder=False):  # noqa: N802
        return self._noted(_Cart(super().Create_cart(dims, periods, reorder)))

    def Sub(self, remain_dims):  # noqa: N802
        return self._noted(_Cart(super().Sub(remain_dims)))

    def _noted(self, comm):
        self.made.append(comm)
        return comm


class _Group(_Noted, MPI.Intracomm):
    pass


class _Cart(_Noted, MPI.Cartcomm):
    pass


def main(folder, asker):
    world = MPI.COMM_WORLD
    groups = [_Group(world.Split(world.rank < size, world.rank)) for size in range(world.size + 1)]
    for number in count():
        idle_s = _SHORT_S
        while not (order := folder / str(number)).exists():
            os.kill(asker, 0)
            time.sleep(idle_s)
            idle_s = min(1.2 * idle_s, _LONG_S)
        ranks, launch = order.read_text().split(" ", 1)
        if world.rank >= int(ranks):
            continue
        spec, group = JobSpec.read(Path(launch)), groups[int(ranks)]
        report_and_abort(spec.folder)
        run(spec, group, mpi.library(), StartupTimes())
        group.Barrier()
        for comm in _Noted.made:
            comm.Free()
        _Noted.made.clear()
        if world.rank == 0:
            Path(f"{order}.done").touch()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    main(Path(sys.argv[1]), int(sys.argv[2]))
