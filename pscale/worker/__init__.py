"""One MPI job: build this rank's part, train, record."""
