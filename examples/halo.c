/* Heat on a square: every rank has a block of it, and exchanges its borders in each step.

       mpicc -O2 -o halo examples/halo.c -lm
       pscale watch -n 4 -- ./halo 400 200

   MPI_Pcontrol names steps and phases; without `pscale watch` it does nothing. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEP = 1, STEPS_END = 0, EXCHANGE = 2, STENCIL = 3, CHECK = 4 };

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int width = argc > 1 ? atoi(argv[1]) : 200, steps = argc > 2 ? atoi(argv[2]) : 100; /* of a rank's block */
  int ranks, rank, shape[2] = {0, 0}, periods[2] = {0, 0}, near[4];
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Dims_create(ranks, 2, shape);
  MPI_Comm grid;
  MPI_Cart_create(MPI_COMM_WORLD, 2, shape, periods, 0, &grid);
  MPI_Comm_rank(grid, &rank);
  MPI_Cart_shift(grid, 0, 1, &near[0], &near[1]);
  MPI_Cart_shift(grid, 1, 1, &near[2], &near[3]);

  int row = width + 2;
  double *heat = calloc((size_t)row * row, sizeof *heat), *next = calloc((size_t)row * row, sizeof *next);
  if (near[0] == MPI_PROC_NULL)
    for (int j = 0; j < row; j++) heat[j] = next[j] = 1; /* the upper edge is hot */
  MPI_Datatype column;
  MPI_Type_vector(width, 1, row, MPI_DOUBLE, &column);
  MPI_Type_commit(&column);
  double change = 0;

  for (int step = 0; step < steps; step++) {
    MPI_Pcontrol(STEP);
    MPI_Pcontrol(EXCHANGE);
    double *inner = heat + row + 1;
    double *give[4] = {inner, inner + (width - 1) * row, inner, inner + width - 1};
    double *take[4] = {inner - row, inner + width * row, inner - 1, inner + width};
    MPI_Request requests[8];
    for (int side = 0; side < 4; side++) {
      MPI_Datatype type = side < 2 ? MPI_DOUBLE : column;
      int count = side < 2 ? width : 1;
      MPI_Irecv(take[side], count, type, near[side], side ^ 1, grid, &requests[side]);
      MPI_Isend(give[side], count, type, near[side], side, grid, &requests[4 + side]);
    }
    MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
    MPI_Pcontrol(STENCIL);
    double largest = 0;
    for (int i = 1; i <= width; i++)
      for (int j = 1; j <= width; j++) {
        double *at = heat + i * row + j;
        next[i * row + j] = 0.25 * (at[-1] + at[1] + at[-row] + at[row]);
        largest = fmax(largest, fabs(next[i * row + j] - *at));
      }
    double *old = heat;
    heat = next;
    next = old;
    MPI_Pcontrol(CHECK);
    MPI_Allreduce(&largest, &change, 1, MPI_DOUBLE, MPI_MAX, grid);
  }
  MPI_Pcontrol(STEPS_END);
  if (rank == 0) printf("largest change in the last step: %g\n", change);
  MPI_Finalize();
  return 0;
}
