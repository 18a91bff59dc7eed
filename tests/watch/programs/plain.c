/* Makes as many calls, and as many communicators, as it is told to. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  int x = 1, sum;
  MPI_Comm made;
  MPI_Init(&argc, &argv);
  for (int i = 0; i < atoi(argv[1]); i++) MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < atoi(argv[2]); i++) {
    MPI_Comm_dup(MPI_COMM_WORLD, &made);
    MPI_Comm_free(&made);
  }
  MPI_Allreduce(&x, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("ok %d\n", sum);
  MPI_Finalize();
  return 0;
}
