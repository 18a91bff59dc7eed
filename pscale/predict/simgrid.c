/* One rank of a program of pscale, for smpirun of SimGrid: communicators, collectives and messages are those of
 * the program, computing takes the time that is given.
 *
 *   smpirun ... simgrid PROGRAM
 *
 * The folder PROGRAM has
 *   mesh       text: ranks, steps, segments of a step at most; number of axes of the mesh, the size of each;
 *              number of groups, and for each of them one 0 or 1 for every axis: whether ranks along it belong to it
 *   blocks     for every rank, as int: what it does
 *   durations  for every rank and step, as double: seconds of each segment
 *   block-K    text: what ranks of block K do in a step, one operation a line (see read_operations)
 * Rank 0 writes PROGRAM/ends: for every rank and step, as double, when it ended. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPEED 1e9 /* of hosts, in FLOP/s */
#define MOST_AXES 16
#define MOST_GROUPS 64
#define MOST_TAGS 30000

typedef struct { char what[4], verb[20]; int group, root, partner, request; long bytes, arriving; } Operation;

typedef struct { MPI_Request *parts; int count; } Started;

static int ranks, steps, segments, axes, groups, sizes[MOST_AXES];
static MPI_Comm comms[MOST_GROUPS];
static int begun[MOST_GROUPS]; /* collectives that were started: as many on every rank */
static char *given, *got;

static FILE *opened(const char *folder, const char *name, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, mode);
    if (!file) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return file;
}

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "simgrid: cannot read %s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Split the world into the groups: who agrees in all other axes is together, in the order of the ranks. */
static void read_mesh(const char *folder, int rank)
{
    FILE *file = opened(folder, "mesh", "r");
    check(fscanf(file, "%d %d %d %d", &ranks, &steps, &segments, &axes) == 4 && axes <= MOST_AXES, "mesh");
    for (int axis = 0; axis < axes; axis++)
        check(fscanf(file, "%d", &sizes[axis]) == 1, "sizes");
    check(fscanf(file, "%d", &groups) == 1 && groups <= MOST_GROUPS, "groups");
    for (int group = 0; group < groups; group++) {
        int color = 0, place[MOST_AXES], inside, rest = rank;
        for (int axis = axes - 1; axis >= 0; axis--) {
            place[axis] = rest % sizes[axis];
            rest /= sizes[axis];
        }
        for (int axis = 0; axis < axes; axis++) {
            check(fscanf(file, "%d", &inside) == 1, "group");
            if (!inside)
                color = color * sizes[axis] + place[axis];
        }
        MPI_Comm_split(MPI_COMM_WORLD, color, rank, &comms[group]);
    }
    fclose(file);
}

static void read_at(const char *folder, const char *name, long offset, void *into, size_t size)
{
    FILE *file = opened(folder, name, "rb");
    check(!fseek(file, offset, SEEK_SET) && fread(into, 1, size, file) == size, name);
    fclose(file);
}

/* The number of lines, then WHAT VERB GROUP BYTES ARRIVING ROOT PARTNER REQUEST in each. WHAT is seg: a segment of
 * computing; cal: a blocking collective; nbc: the start of one; snd, rcv: the start of a message; end: the wait for what
 * was started. */
static Operation *read_operations(const char *folder, int block, int *count)
{
    char name[32];
    snprintf(name, sizeof name, "block-%d", block);
    FILE *file = opened(folder, name, "r");
    check(fscanf(file, "%d", count) == 1, name);
    Operation *found = calloc(*count + 1, sizeof *found);
    for (Operation *o = found; o < found + *count; o++)
        check(fscanf(file, "%3s %19s %d %ld %ld %d %d %d", o->what, o->verb, &o->group, &o->bytes, &o->arriving,
                     &o->root, &o->partner, &o->request) == 8, name);
    fclose(file);
    return found;
}

static void collective(const Operation *o)
{
    MPI_Comm comm = comms[o->group];
    int size, n = (int)o->bytes, in = (int)o->arriving;
    MPI_Comm_size(comm, &size);
    if (!strcmp(o->verb, "all_reduce"))
        MPI_Allreduce(given, got, n, MPI_CHAR, MPI_MAX, comm);
    else if (!strcmp(o->verb, "all_gather"))
        MPI_Allgather(given, n, MPI_CHAR, got, n, MPI_CHAR, comm);
    else if (!strcmp(o->verb, "reduce_scatter"))
        MPI_Reduce_scatter_block(given, got, n / size, MPI_CHAR, MPI_MAX, comm);
    else if (!strcmp(o->verb, "all_to_all"))
        MPI_Alltoall(given, n / size, MPI_CHAR, got, n / size, MPI_CHAR, comm);
    else if (!strcmp(o->verb, "broadcast"))
        MPI_Bcast(given, in, MPI_CHAR, 0, comm);
    else if (!strcmp(o->verb, "reduce"))
        MPI_Reduce(given, got, n, MPI_CHAR, MPI_MAX, 0, comm);
    else if (!strcmp(o->verb, "gather"))
        MPI_Gather(given, n, MPI_CHAR, got, n, MPI_CHAR, 0, comm);
    else if (!strcmp(o->verb, "scatter"))
        MPI_Scatter(given, in, MPI_CHAR, got, in, MPI_CHAR, 0, comm);
    else {
        check(!strcmp(o->verb, "barrier"), o->verb);
        MPI_Barrier(comm);
    }
}

/* SMPI sends every byte of a started collective through one rank. So every rank sends every other its part at once, as
 * many bytes as by the best algorithms; the parts of a sum go back as well. */
static void start(const Operation *o, Started *started)
{
    MPI_Comm comm = comms[o->group];
    int rank, size, tag = 1 + begun[o->group]++ % MOST_TAGS;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    long part = !strcmp(o->verb, "all_gather") ? o->bytes : o->bytes / size;
    int bytes = (int)(!strcmp(o->verb, "all_reduce") ? 2 * part : part);
    started->count = 2 * size;
    started->parts = malloc(sizeof *started->parts * started->count);
    for (int other = 0; other < size; other++) {
        MPI_Request *both = &started->parts[2 * other];
        both[0] = both[1] = MPI_REQUEST_NULL;
        if (other == rank)
            continue;
        MPI_Irecv(got, bytes, MPI_CHAR, other, tag, comm, &both[0]);
        MPI_Isend(given, bytes, MPI_CHAR, other, tag, comm, &both[1]);
    }
}

static void finish(Started *started)
{
    MPI_Waitall(started->count, started->parts, MPI_STATUSES_IGNORE);
    free(started->parts);
    started->parts = NULL;
}

static int across(const Operation *o)
{
    int rank, size;
    MPI_Comm_rank(comms[o->group], &rank);
    MPI_Comm_size(comms[o->group], &size);
    return (rank + o->partner) % size;
}

static void act(const Operation *o, MPI_Request *requests, Started *started)
{
    if (!strcmp(o->what, "cal"))
        collective(o);
    else if (!strcmp(o->what, "nbc"))
        start(o, &started[o->request]);
    else if (!strcmp(o->what, "end") && started[o->request].parts)
        finish(&started[o->request]);
    else if (!strcmp(o->what, "snd"))
        MPI_Isend(given, (int)o->bytes, MPI_CHAR, across(o), 0, comms[o->group], &requests[o->request]);
    else if (!strcmp(o->what, "rcv"))
        MPI_Irecv(got, (int)o->arriving, MPI_CHAR, across(o), 0, comms[o->group], &requests[o->request]);
    else
        MPI_Wait(&requests[o->request], MPI_STATUS_IGNORE);
}

/* Memory for the largest call; what it holds does not matter, so all ranks share the same pages. */
static void allocate(const Operation *operations, int count)
{
    long most = 1;
    for (const Operation *o = operations; o < operations + count; o++) {
        int size = 1;
        if (strcmp(o->what, "seg"))
            MPI_Comm_size(comms[o->group], &size);
        long whole = !strcmp(o->verb, "all_gather") || !strcmp(o->verb, "gather") ? o->bytes * size : o->bytes;
        if (!strcmp(o->verb, "scatter") && o->root)
            whole = o->arriving * size;
        if (whole > most) most = whole;
        if (o->arriving > most) most = o->arriving;
    }
    given = SMPI_SHARED_MALLOC(most);
    got = SMPI_SHARED_MALLOC(most);
}

static void write_ends(const char *folder, const double *mine, int rank)
{
    double *all = rank ? NULL : malloc(sizeof(double) * ranks * steps);
    MPI_Gather(mine, steps, MPI_DOUBLE, all, steps, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (rank)
        return;
    FILE *file = opened(folder, "ends", "wb");
    check(fwrite(all, sizeof(double), (size_t)ranks * steps, file) == (size_t)ranks * steps, "ends");
    fclose(file);
    free(all);
}

int main(int argc, char **argv)
{
    int rank, block, count, last = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *folder = argv[1];
    read_mesh(folder, rank);
    read_at(folder, "blocks", rank * (long)sizeof block, &block, sizeof block);
    Operation *operations = read_operations(folder, block, &count);
    allocate(operations, count);
    for (int i = 0; i < count; i++)
        if (operations[i].request > last) last = operations[i].request;
    MPI_Request *requests = malloc(sizeof *requests * (last + 1));
    for (int i = 0; i <= last; i++)
        requests[i] = MPI_REQUEST_NULL;
    Started *started = calloc(last + 1, sizeof *started);
    double *seconds = malloc(sizeof *seconds * segments), *ends = malloc(sizeof *ends * steps);
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int step = 0; step < steps; step++) {
        int segment = 0;
        read_at(folder, "durations", ((long)rank * steps + step) * segments * (long)sizeof *seconds, seconds,
                sizeof *seconds * segments);
        for (int i = 0; i < count; i++) {
            if (strcmp(operations[i].what, "seg"))
                act(&operations[i], requests, started);
            else
                smpi_execute_flops(seconds[segment++] * SPEED);
        }
        MPI_Waitall(last + 1, requests, MPI_STATUSES_IGNORE);
        ends[step] = MPI_Wtime() - began;
    }
    write_ends(folder, ends, rank);
    SMPI_SHARED_FREE(given);
    SMPI_SHARED_FREE(got);
    MPI_Finalize();
    return 0;
}
