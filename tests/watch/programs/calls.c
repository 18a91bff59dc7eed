/* Makes calls of every kind that can be settled; every rank sleeps before one of them. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void late(int rank, int who, double seconds) {
  struct timespec pause = {0, (long)(seconds * 1e9)};
  if (rank == who) nanosleep(&pause, 0);
}

int main(int argc, char **argv) {
  int provided, rank, size;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  double delay = argc > 1 ? atof(argv[1]) : 0.005;
  int right = (rank + 1) % size, left = (rank + size - 1) % size;
  double *x = calloc(1000 * size, sizeof *x), *y = calloc(1000 * size, sizeof *y);
  MPI_Request requests[4];
  MPI_Barrier(MPI_COMM_WORLD);

  /* collectives, one late rank each */
  late(rank, 1, delay);
  MPI_Allreduce(MPI_IN_PLACE, x, 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  late(rank, 0, delay);
  MPI_Bcast(x, 500, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  late(rank, size - 1, delay);
  MPI_Gather(x, 10, MPI_INT, y, 10, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  late(rank, 0, delay);
  MPI_Exscan(x, y, 3, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);

  /* messages: blocking, nonblocking, persistent, from anybody, both ways */
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    late(rank, 0, delay);
    MPI_Send(x, 100, MPI_DOUBLE, 1, 7, MPI_COMM_WORLD);
  } else if (rank == 1) {
    MPI_Recv(x, 100, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Irecv(y, 100, MPI_DOUBLE, MPI_ANY_SOURCE, 8, MPI_COMM_WORLD, &requests[0]);
  late(rank, 1, delay);
  MPI_Isend(x, 100, MPI_DOUBLE, right, 8, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Recv_init(y, 10, MPI_DOUBLE, left, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[0]);
  MPI_Send_init(x, 10, MPI_DOUBLE, right, 9, MPI_COMM_WORLD, &requests[1]);
  for (int i = 0; i < 3; i++) {
    MPI_Startall(2, requests);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  }
  MPI_Request_free(&requests[0]);
  MPI_Request_free(&requests[1]);
  MPI_Barrier(MPI_COMM_WORLD);
  late(rank, 0, delay);
  MPI_Sendrecv(x, 5, MPI_DOUBLE, right, 3, y, 5, MPI_DOUBLE, left, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);

  /* communicators: halves, a ring, and a nonblocking collective that is polled */
  MPI_Comm half, ring;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Comm_set_name(half, "half");
  late(rank, 0, delay);
  MPI_Allreduce(MPI_IN_PLACE, x, 4, MPI_DOUBLE, MPI_SUM, half);
  int periodic = 1;
  MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, &ring);
  MPI_Barrier(MPI_COMM_WORLD);
  late(rank, 0, delay);
  MPI_Neighbor_allgather(x, 2, MPI_DOUBLE, y, 2, MPI_DOUBLE, ring);
  MPI_Iallreduce(MPI_IN_PLACE, x, 6, MPI_DOUBLE, MPI_SUM, ring, &requests[0]);
  for (int done = 0; !done;) MPI_Test(&requests[0], &done, MPI_STATUS_IGNORE);
  MPI_Comm_free(&ring);
  MPI_Comm_free(&half);
  MPI_Finalize();
  return 0;
}
