! Calls of Fortran that differ from C: handles, statuses and indices are integers, sentinels are addresses.
program calls
  use mpi
  implicit none
  integer :: ierr, rank, ranks, right, left, index, half
  integer :: requests(2), statuses(MPI_STATUS_SIZE, 2)
  real(8) :: x(100), y(100)

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  right = mod(rank + 1, ranks)
  left = mod(rank + ranks - 1, ranks)
  x = rank
  call MPI_Allreduce(MPI_IN_PLACE, x, 100, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
  call MPI_Irecv(y, 100, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Isend(x, 100, MPI_DOUBLE_PRECISION, right, 5, MPI_COMM_WORLD, requests(2), ierr)
  call MPI_Waitall(2, requests, statuses, ierr)
  call MPI_Irecv(y, 10, MPI_DOUBLE_PRECISION, left, 6, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Isend(x, 10, MPI_DOUBLE_PRECISION, right, 6, MPI_COMM_WORLD, requests(2), ierr)
  call MPI_Waitany(2, requests, index, MPI_STATUS_IGNORE, ierr)
  call MPI_Waitany(2, requests, index, MPI_STATUS_IGNORE, ierr)
  if (rank == 0) then
    call MPI_Send(x, 7, MPI_DOUBLE_PRECISION, 1, 8, MPI_COMM_WORLD, ierr)
  else if (rank == 1) then
    call MPI_Recv(y, 7, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
  end if
  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half, ierr)
  call MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, 1, MPI_DOUBLE_PRECISION, half, ierr)
  call MPI_Comm_free(half, ierr)
  call MPI_Finalize(ierr)
end program calls
