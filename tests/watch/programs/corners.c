/* Calls in which arguments do not matter, that complete several requests at once, or that come to nothing; 4 ranks. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NONE 0, 0, MPI_DATATYPE_NULL
#ifdef OPEN_MPI
#define UNUSED MPI_INT /* it looks at types of which there are none */
#else
#define UNUSED MPI_DATATYPE_NULL
#endif
static int rank, size;

/* Between the even ranks and the odd ones, from the first even one, or to it. */
static void between_groups(void) {
  int x[64] = {0}, y[64], counts[64], places[64], side = rank % 2;
  for (int i = 0; i < 64; i++) counts[i] = 1, places[i] = i;
  MPI_Comm half, both;
  MPI_Comm_split(MPI_COMM_WORLD, side, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - side, 1, &both);
  int root = side ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL;
  if (side) {
    MPI_Bcast(y, 1, MPI_INT, root, both);
    MPI_Scatter(NONE, y, 1, MPI_INT, root, both);
    MPI_Scatterv(0, 0, 0, MPI_DATATYPE_NULL, y, 1, MPI_INT, root, both);
    MPI_Gather(x, 1, MPI_INT, NONE, root, both);
    MPI_Gatherv(x, 1, MPI_INT, 0, 0, 0, MPI_DATATYPE_NULL, root, both);
    MPI_Reduce(x, 0, 1, MPI_INT, MPI_SUM, root, both);
  } else {
    MPI_Bcast(x, 1, MPI_INT, root, both);
    MPI_Scatter(x, 1, MPI_INT, NONE, root, both);
    MPI_Scatterv(x, counts, places, MPI_INT, NONE, root, both);
    MPI_Gather(NONE, y, 1, MPI_INT, root, both);
    MPI_Gatherv(NONE, y, counts, places, MPI_INT, root, both);
    MPI_Reduce(0, y, 1, MPI_INT, MPI_SUM, root, both);
  }
  MPI_Reduce_scatter(x, y, counts, MPI_INT, MPI_SUM, both);
  MPI_Comm_free(&both);
  MPI_Comm_free(&half);
}

static void within_a_group(void) {
  int x[64] = {0}, y[64], counts[64], places[64] = {0};
  MPI_Datatype types[64];
  for (int i = 0; i < 64; i++) counts[i] = i == rank, types[i] = i == rank ? MPI_INT : UNUSED;
  MPI_Alltoallw(x, counts, places, types, y, counts, places, types, MPI_COMM_WORLD);
  MPI_Sendrecv(0, 0, UNUSED, MPI_PROC_NULL, 0, 0, 0, UNUSED, MPI_PROC_NULL, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Send(0, 0, UNUSED, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
  if (rank) {
    MPI_Gather(x, 1, MPI_INT, NONE, 0, MPI_COMM_WORLD);
    MPI_Scatter(NONE, y, 1, MPI_INT, 0, MPI_COMM_WORLD);
  } else {
    MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, y, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Scatter(x, 1, MPI_INT, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, 0, MPI_COMM_WORLD);
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Send(x, 1, MPI_INT, size + 1, 0, MPI_COMM_WORLD); /* there is no such rank */
}

/* All exchange with all, three ways to wait. */
static void several_at_once(void) {
  int x = rank, y[64], places[128], over, all;
  MPI_Request requests[128];
  for (int way = 0; way < 3; way++) {
    for (int i = 0; i < size; i++) MPI_Irecv(&y[i], 1, MPI_INT, i, 5, MPI_COMM_WORLD, &requests[i]);
    for (int i = 0; i < size; i++) MPI_Isend(&x, 1, MPI_INT, i, 5, MPI_COMM_WORLD, &requests[size + i]);
    for (int left = 2 * size; left; left -= over) {
      if (way == 0) MPI_Waitsome(2 * size, requests, &over, places, MPI_STATUSES_IGNORE);
      if (way == 1) MPI_Testsome(2 * size, requests, &over, places, MPI_STATUSES_IGNORE);
      if (way == 2) MPI_Testall(2 * size, requests, &all, MPI_STATUSES_IGNORE), over = all ? 2 * size : 0;
    }
  }
}

/* Rank 1 takes nothing with its first two receives of tag 6; ten messages follow. */
static void cancelled(void) {
  int x = 0, y, was;
  MPI_Request request;
  MPI_Status status;
  if (rank == 1) {
    MPI_Irecv(&y, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &was);
    if (!was) puts("not cancelled");
    MPI_Irecv(&y, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < 10; i++) {
    if (rank == 0) MPI_Ssend(&x, 1, MPI_INT, 1, 6, MPI_COMM_WORLD);
    if (rank == 1) usleep(2000), MPI_Recv(&y, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
}

static void many_communicators(void) {
  int x = 1, y;
  MPI_Comm made;
  MPI_Request request;
  for (int i = 0; i < 200; i++) {
    if (i % 2) MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &made);
    else MPI_Comm_idup(MPI_COMM_WORLD, &made, &request), MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, made);
    MPI_Comm_free(&made);
  }
}

/* While a thread waits, with a status that it ignores, another posts the first receive from anybody. */
static void *wait_for_left(void *unused) {
  int y;
  MPI_Request request;
  MPI_Irecv(&y, 1, MPI_INT, (rank + size - 1) % size, 7, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  return unused;
}

static void two_threads(void) {
  int x = 0, y, right = (rank + 1) % size;
  pthread_t thread;
  MPI_Request request;
  pthread_create(&thread, 0, wait_for_left, 0);
  usleep(100000);
  MPI_Irecv(&y, 1, MPI_INT, MPI_ANY_SOURCE, 8, MPI_COMM_WORLD, &request);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Send(&x, 1, MPI_INT, right, 7, MPI_COMM_WORLD);
  MPI_Send(&x, 1, MPI_INT, right, 8, MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  pthread_join(thread, 0);
}

int main(int argc, char **argv) {
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const struct {
    const char *name;
    void (*function)(void);
  } parts[] = {
      {"groups", between_groups},   {"group", within_a_group},          {"several", several_at_once},
      {"cancelled", cancelled},     {"communicators", many_communicators}, {"threads", two_threads},
  };
  for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
    if (argc < 2 || !strcmp(argv[1], parts[i].name)) {
      MPI_Pcontrol(2 + (int)i);
      parts[i].function();
      MPI_Pcontrol(-1);
    }
  if (!rank) puts("ok");
  MPI_Finalize();
  return 0;
}
