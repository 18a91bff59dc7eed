! The module `mpi` for the tests, where a library has none: what calls.f90 needs of it.
module mpi
  implicit none
  integer, parameter :: MPI_ANY_TAG = -1
#ifdef OPEN_MPI
  integer, parameter :: MPI_COMM_WORLD = 0, MPI_DOUBLE_PRECISION = 17, MPI_SUM = 3, MPI_DATATYPE_NULL = 0
  integer, parameter :: MPI_ANY_SOURCE = -1, MPI_STATUS_SIZE = 6
#else
  integer, parameter :: MPI_COMM_WORLD = int(z'44000000'), MPI_DOUBLE_PRECISION = int(z'4c00081f')
  integer, parameter :: MPI_SUM = int(z'58000003'), MPI_DATATYPE_NULL = int(z'0c000000')
  integer, parameter :: MPI_ANY_SOURCE = -2, MPI_STATUS_SIZE = 5
#endif
  integer :: MPI_IN_PLACE, MPI_STATUS_IGNORE(MPI_STATUS_SIZE)
  common /mpi_fortran_in_place/ MPI_IN_PLACE
  common /mpi_fortran_status_ignore/ MPI_STATUS_IGNORE
end module mpi
