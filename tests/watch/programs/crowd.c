/* Four threads of each rank call MPI, each over communicators of its own. They wait for each other, so that none has
   freed a communicator before all have made theirs: what the recorder does for two of them is ordered by it alone. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, ROUNDS = 50 };
static MPI_Comm own[THREADS];
static pthread_barrier_t all;

static void *talk(void *comm) {
  int x = 0, y[2], over, places[3];
  MPI_Comm made;
  MPI_Request requests[3], cancelled;
  for (int i = 0; i < ROUNDS; i++) {
    pthread_barrier_wait(&all);
    MPI_Comm_dup(*(MPI_Comm *)comm, &made);
    pthread_barrier_wait(&all);
    MPI_Irecv(&x, 1, MPI_INT, 0, 9, made, &cancelled);
    MPI_Cancel(&cancelled);
    MPI_Wait(&cancelled, MPI_STATUS_IGNORE);
    MPI_Irecv(&y[0], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, made, &requests[0]);
    MPI_Irecv(&y[1], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, made, &requests[1]);
    MPI_Isend(&x, 1, MPI_INT, 0, 1, made, &requests[2]);
    MPI_Send(&x, 1, MPI_INT, 0, 2, made);
    for (int left = 3; left; left -= over) MPI_Waitsome(3, requests, &over, places, MPI_STATUSES_IGNORE);
    MPI_Allreduce(&x, &y[0], 1, MPI_INT, MPI_SUM, made);
    MPI_Comm_free(&made);
  }
  return 0;
}

int main(int argc, char **argv) {
  int provided, rank;
  pthread_t threads[THREADS];
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  pthread_barrier_init(&all, 0, THREADS);
  for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_SELF, &own[i]);
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, talk, &own[i]);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
  if (!rank) puts("ok");
  MPI_Finalize();
  return 0;
}
