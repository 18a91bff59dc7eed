/* Fortran bindings of MPI for the tests, where a library has none: as those of Open MPI they call PMPI, of MPICH MPI. */
#include <mpi.h>
#ifdef OPEN_MPI
#define C(name) PMPI_##name
#else
#define C(name) MPI_##name
#endif
enum { MOST = 8 };
int mpi_fortran_in_place_, mpi_fortran_status_ignore_;

static void *from(void *x) { return x == &mpi_fortran_in_place_ ? MPI_IN_PLACE : x; }
static MPI_Comm comm(int *c) { return MPI_Comm_f2c(*c); }
static MPI_Datatype type(int *t) { return MPI_Type_f2c(*t); }
static MPI_Status *status(int *s, MPI_Status *own) { return s == &mpi_fortran_status_ignore_ ? MPI_STATUS_IGNORE : own; }
static void told(int *s, MPI_Status *own) {
  if (s != &mpi_fortran_status_ignore_) MPI_Status_c2f(own, s);
}

void mpi_init_(int *e) { *e = C(Init)(0, 0); }
void mpi_finalize_(int *e) { *e = C(Finalize)(); }
void mpi_comm_rank_(int *c, int *rank, int *e) { *e = C(Comm_rank)(comm(c), rank); }
void mpi_comm_size_(int *c, int *size, int *e) { *e = C(Comm_size)(comm(c), size); }
void mpi_allreduce_(void *x, void *y, int *n, int *t, int *op, int *c, int *e) {
  *e = C(Allreduce)(from(x), y, *n, type(t), MPI_Op_f2c(*op), comm(c));
}
void mpi_allgather_(void *x, int *n, int *t, void *y, int *m, int *u, int *c, int *e) {
  *e = C(Allgather)(from(x), *n, type(t), y, *m, type(u), comm(c));
}
void mpi_send_(void *x, int *n, int *t, int *to, int *tag, int *c, int *e) {
  *e = C(Send)(x, *n, type(t), *to, *tag, comm(c));
}
void mpi_recv_(void *x, int *n, int *t, int *of, int *tag, int *c, int *s, int *e) {
  MPI_Status own;
  *e = C(Recv)(x, *n, type(t), *of, *tag, comm(c), status(s, &own));
  told(s, &own);
}
void mpi_isend_(void *x, int *n, int *t, int *to, int *tag, int *c, int *request, int *e) {
  MPI_Request own;
  *e = C(Isend)(x, *n, type(t), *to, *tag, comm(c), &own);
  *request = MPI_Request_c2f(own);
}
void mpi_irecv_(void *x, int *n, int *t, int *of, int *tag, int *c, int *request, int *e) {
  MPI_Request own;
  *e = C(Irecv)(x, *n, type(t), *of, *tag, comm(c), &own);
  *request = MPI_Request_c2f(own);
}
void mpi_waitall_(int *n, int *requests, int *s, int *e) {
  MPI_Request own[MOST];
  MPI_Status of[MOST];
  for (int i = 0; i < *n; i++) own[i] = MPI_Request_f2c(requests[i]);
  *e = C(Waitall)(*n, own, of);
  for (int i = 0; i < *n; i++) {
    requests[i] = MPI_Request_c2f(own[i]);
    told(s + i * MPI_F_STATUS_SIZE, of + i);
  }
}
void mpi_waitany_(int *n, int *requests, int *index, int *s, int *e) {
  MPI_Request own[MOST];
  MPI_Status of;
  for (int i = 0; i < *n; i++) own[i] = MPI_Request_f2c(requests[i]);
  *e = C(Waitany)(*n, own, index, status(s, &of));
  for (int i = 0; i < *n; i++) requests[i] = MPI_Request_c2f(own[i]);
  told(s, &of);
  *index += 1;
}
void mpi_comm_split_(int *c, int *color, int *key, int *made, int *e) {
  MPI_Comm own;
  *e = C(Comm_split)(comm(c), *color, *key, &own);
  *made = MPI_Comm_c2f(own);
}
void mpi_comm_free_(int *c, int *e) {
  MPI_Comm own = comm(c);
  *e = C(Comm_free)(&own);
  *c = MPI_Comm_c2f(own);
}
