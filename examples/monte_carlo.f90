! Estimate pi from random points: every rank draws its own, one gathers the counts.
!
!     mpif90 -O2 -o monte_carlo examples/monte_carlo.f90
!     pscale watch -n 4 -- ./monte_carlo
program monte_carlo
  use mpi_f08
  implicit none
  integer, parameter :: rounds = 50, points = 200000
  integer :: rank, ranks, round, inside
  integer, allocatable :: counts(:)
  real(8), allocatable :: x(:), y(:)
  real(8) :: total

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  allocate (counts(ranks), x(points), y(points))
  total = 0
  do round = 1, rounds
    call random_number(x)
    call random_number(y)
    inside = count(x**2 + y**2 < 1)
    call MPI_Gather(inside, 1, MPI_INTEGER, counts, 1, MPI_INTEGER, 0, MPI_COMM_WORLD)
    if (rank == 0) total = total + sum(real(counts, 8))
    call MPI_Bcast(total, 1, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD)
  end do
  if (rank == 0) print '(a, f10.6)', 'pi is about ', 4 * total / (real(points, 8) * rounds * ranks)
  call MPI_Finalize()
end program monte_carlo
