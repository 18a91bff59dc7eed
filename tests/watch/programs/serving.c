/* A thread receives for the whole life of the program; the others compute, also after MPI_Finalize. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static MPI_Comm own;

static void *serve(void *unused) {
  int x;
  MPI_Recv(&x, 1, MPI_INT, 0, 0, own, MPI_STATUS_IGNORE);
  return unused;
}

int main(int argc, char **argv) {
  int provided, x = 1, rank;
  pthread_t thread;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_dup(MPI_COMM_SELF, &own);
  pthread_create(&thread, 0, serve, 0);
  sleep(atoi(argv[1]));
  MPI_Send(&x, 1, MPI_INT, 0, 0, own);
  pthread_join(thread, 0);
  MPI_Finalize();
  sleep(atoi(argv[1]));
  if (!rank) puts("ok");
  return 0;
}
