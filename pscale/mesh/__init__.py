"""Processes with named axes; `mesh.mpi` is the only place that knows MPI."""
