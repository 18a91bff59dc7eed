/* Rank 0 tests for ever whether a message has come, rank 1 waits for ever for any of two. */
#include <mpi.h>

int main(int argc, char **argv) {
  int rank, x, over = 0, places[2];
  MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Irecv(&x, 1, MPI_INT, 1 - rank, 5, MPI_COMM_WORLD, &requests[0]);
  if (rank) MPI_Waitsome(2, requests, &over, places, MPI_STATUSES_IGNORE);
  while (!over) MPI_Test(&requests[0], &over, MPI_STATUS_IGNORE);
  MPI_Finalize();
  return 0;
}
