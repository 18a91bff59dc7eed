/* Estimate pi from random points: every rank draws its own, one gathers the counts.

       mpicc -O2 -o monte_carlo examples/monte_carlo.c
       pscale watch -n 4 -- ./monte_carlo

   It marks no steps: its rounds are found in the order of its calls. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 50, POINTS = 200000 };

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int ranks, rank;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  unsigned short state[3] = {1, 2, (unsigned short)rank};
  int *counts = malloc(ranks * sizeof *counts);
  double total = 0;
  for (int round = 0; round < ROUNDS; round++) {
    int inside = 0;
    for (int point = 0; point < POINTS; point++) {
      double x = erand48(state), y = erand48(state);
      inside += x * x + y * y < 1;
    }
    MPI_Gather(&inside, 1, MPI_INT, counts, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int other = 0; rank == 0 && other < ranks; other++) total += counts[other];
    MPI_Bcast(&total, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  }
  if (rank == 0) printf("pi is about %f\n", 4 * total / POINTS / ROUNDS / ranks);
  MPI_Finalize();
  return 0;
}
