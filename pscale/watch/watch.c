/* Records every call of MPI of a process, between the program and whatever MPI library it uses.

   It is loaded before the program. There is no mpi.h: arguments pass through as machine words, so one object serves
   every library; the numbers in which libraries differ are in `Library`. The System V and the ARM calling convention
   let the caller clear the stack and widen what it passes, so every function may be taken to have WORDS arguments.

   A call is a note of 48 bytes in a mapped file, which outlives the process however that ends. Facts that are no
   calls (communicators, names, clocks) are lines of a text beside it. No message is added to the program, but for
   the clocks of several nodes, in MPI_Init and MPI_Finalize. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libraries.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* of Linux 5.14; older ones refuse it, which does no harm */
#endif

typedef enum {
  OTHER, BEGIN, END, MARK, FREE,
  SEND, RECEIVE, BOTH, PROBE, MATCHED, START, COMPLETE,
  ALL, FROM_ROOT, TO_ROOT, PREFIX, NEAR
} Kind;
enum { NOTHING, ONE, EACH, SUM, TYPED };  /* what is paid */
enum { BLOCKS, STARTS, PERSISTENT };      /* the mode */

typedef struct {
  const char *name;
  uint8_t kind, mode, pays, buffer, count, type, count2, array2, type2, peer, tag, source, tag2, comm, request, several,
      status, flag, index, found, made;
} Call;

#define ONCE(Name, name_, ...) {.name = "MPI_" #Name, __VA_ARGS__},
#define SIZED ONCE
static const Call calls[] = {
#include "calls.h"
};
#undef ONCE
#undef SIZED

#define ONCE(Name, name, ...) ID_##Name,
#define SIZED ONCE
enum {
#include "calls.h"
  CALLS
};
#undef ONCE
#undef SIZED

enum { PART = 1, FRUITLESS = 2, THREAD_SHIFT = 4 };  /* flags: belongs to the note `bytes`; a test that found nothing */
enum { NOBODY = -1, ANYBODY = -2 };                  /* peers */

typedef struct {
  int64_t enter, leave; /* ns; `leave` is 0 until the call has returned */
  int64_t bytes;        /* given by this rank; of a fruitless test: ns inside it, and those after it */
  int64_t request;
  int32_t comm, peer, tag;
  uint16_t call, flags;
} Note;

typedef struct {
  W handle;
  int id, rank, size, targets;
} Comm;

enum { MOST_COMMS = 1 << 14, MOST_NOTES = 1 << 26, AHEAD = 1 << 12 };

static Note *notes; /* the first says how many there are */
static _Atomic int64_t *used;
static _Atomic int64_t prepared;
static int facts = -1, notes_file = -1;
static Comm comms[MOST_COMMS]; /* hashed by handle; a free place has id 0 */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static int comms_made, threads_seen, wildcards, several_nodes;
static W world_group, fortran_in_place, fortran_ignore[2];

#define PER_THREAD static __thread __attribute__((tls_model("initial-exec")))
PER_THREAD int depth, thread_number;
PER_THREAD Comm *last_comm;
PER_THREAD Note *last_test; /* if it found nothing, and no call was made since */
PER_THREAD W *handles;      /* of the requests of a call */
PER_THREAD char *statuses;
PER_THREAD int64_t room;

static int64_t now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static int whole(W word) { return (int)word; }

/* What is at a place of an array of handles, in C or Fortran. */
static W handle_at(W array, int64_t place, int fortran) {
  if (fortran || mpi->handle_bytes == 4) return (W)((uint32_t *)array)[place];
  return ((W *)array)[place];
}

typedef struct { /* one call as it is made */
  const Call *call;
  W *words;
  int fortran, large;
} Made;

static W word(const Made *m, int place) { return m->words[place - 1]; }
static int value(const Made *m, int place) {
  return place == 0 ? 0 : m->fortran ? *(int *)word(m, place) : whole(word(m, place));
}
static W comm_at(const Made *m, int place) {
  return m->fortran ? comm_of_fortran(*(int *)word(m, place)) : handle_of(word(m, place));
}
static W type_at(const Made *m, int place) {
  return m->fortran ? type_of_fortran(*(int *)word(m, place)) : handle_of(word(m, place));
}

/* --- facts --- */

static void fact(const char *format, ...) {
  va_list values;
  va_start(values, format);
  if (facts >= 0) vdprintf(facts, format, values);
  va_end(values);
}

static int ask(W comm, const char *function) { /* a size or a rank */
  int found = 0;
  CALLED(library_function(function), comm, (W)&found);
  return found;
}

/* Write the ranks of a group in the world as runs "first*count", which most groups have few of. */
static void write_members(W group) {
  int size = ask(group, "PMPI_Group_size");
  int *numbers = malloc(2 * sizeof(int) * (size + 1)), *ranks = numbers + size;
  for (int i = 0; i < size; i++) numbers[i] = i;
  LIBRARY(Group_translate_ranks, group, size, (W)numbers, world_group, (W)ranks);
  char *text = malloc(24 * (size + 1)), *end = text;
  for (int i = 0, count; i < size; i += count) {
    for (count = 1; i + count < size && ranks[i + count] == ranks[i] + count; count++) {}
    end += sprintf(end, count > 1 ? " %d*%d" : " %d", ranks[i], count);
  }
  *end = 0;
  fact("%s", text);
  free(text);
  free(numbers);
}

static void write_group(W comm, const char *function) {
  W group = 0;
  CALLED(library_function(function), comm, (W)&group);
  write_members(handle_of(group));
  LIBRARY(Group_free, (W)&group);
}

/* Write from whom a neighbourhood collective gets something; return to how many it gives. */
static int write_neighbours(W comm, int rank) {
  int kind = mpi->undefined, sources = 0, targets = 0, weighted;
  LIBRARY(Topo_test, comm, (W)&kind);
  if (kind == mpi->cart) {
    LIBRARY(Cartdim_get, comm, (W)&sources);
    fact(" near");
    for (int i = 0, before, after; i < sources; i++) {
      LIBRARY(Cart_shift, comm, i, 1, (W)&before, (W)&after);
      fact(" %d %d", before, after);
    }
    return 2 * sources;
  }
  if (kind != mpi->graph && kind != mpi->dist_graph) return 0;
  if (kind == mpi->graph)
    LIBRARY(Graph_neighbors_count, comm, rank, (W)&sources);
  else
    LIBRARY(Dist_graph_neighbors_count, comm, (W)&sources, (W)&targets, (W)&weighted);
  int *near = calloc(2 * (sources + targets + 1), sizeof(int)), *far = near + sources, *weights = far + targets;
  if (kind == mpi->graph)
    LIBRARY(Graph_neighbors, comm, rank, sources, (W)near);
  else
    LIBRARY(Dist_graph_neighbors, comm, sources, (W)near, (W)weights, targets, (W)far, (W)(weights + sources));
  fact(" near");
  for (int i = 0; i < sources; i++) fact(" %d", near[i]);
  free(near);
  return kind == mpi->graph ? sources : targets;
}

/* --- communicators --- */

static Comm *place_of(W comm) { /* where it is or belongs */
  uint64_t hash = (uint64_t)comm * 0x9E3779B97F4A7C15u;
  Comm *at = &comms[hash >> 50];
  while (at->id && at->handle != comm)
    if (++at == comms + MOST_COMMS) at = comms;
  return at;
}

/* Give a communicator a number. All its members do so in the same order, so they can tell which it is. */
static Comm *define(W comm, const char *how, int parent) {
  pthread_mutex_lock(&making);
  Comm *at = place_of(comm);
  if (!at->id && comms_made < MOST_COMMS / 2) {
    int between = ask(comm, "PMPI_Comm_test_inter");
    at->rank = ask(comm, "PMPI_Comm_rank");
    at->size = ask(comm, between ? "PMPI_Comm_remote_size" : "PMPI_Comm_size");
    fact("comm %d %s %d :", comms_made + 1, how, parent);
    write_group(comm, "PMPI_Comm_group");
    if (between) {
      fact(" remote");
      write_group(comm, "PMPI_Comm_remote_group");
    } else {
      at->targets = write_neighbours(comm, at->rank);
    }
    fact("\n");
    at->handle = comm;
    atomic_thread_fence(memory_order_release);
    at->id = ++comms_made;
  }
  pthread_mutex_unlock(&making);
  return at;
}

static Comm *comm_of(W comm) {
  if (last_comm && last_comm->handle == comm) return last_comm;
  Comm *at = place_of(comm);
  if (!at->id) at = define(comm, "found", 0);
  return last_comm = at;
}

static void forget(W comm) {
  place_of(comm)->handle = -1; /* its place stays taken, so that what was put behind it is found */
  last_comm = 0;
}

/* --- what a call gives --- */

static int64_t size_of(W type) {
  if (mpi->handle_bytes == 4 && type >> 24 == 0x4c) return type >> 8 & 0xff; /* a basic type of MPICH says it itself */
  int bytes = 0;
  LIBRARY(Type_size, type, (W)&bytes);
  return bytes;
}

static int64_t count_at(const Made *m, int place, int64_t element) {
  return m->large ? ((int64_t *)word(m, place))[element] : ((int *)word(m, place))[element];
}

static int64_t one(const Made *m, int place) { return m->large ? (int64_t)word(m, place) : value(m, place); }

static int64_t payload(const Made *m, const Comm *comm) {
  const Call *c = m->call;
  if (!c->pays || (c->kind == FROM_ROOT && value(m, c->peer) != comm->rank)) return 0;
  W buffer = c->buffer ? word(m, c->buffer) : 0;
  int replaced = c->buffer && buffer == (m->fortran ? fortran_in_place : mpi->in_place);
  int count = replaced ? c->count2 : c->count, type = replaced ? c->type2 : c->type;
  int64_t of = c->kind == NEAR ? comm->targets : comm->size, sum = 0;
  switch (c->pays) {
    case ONE:
      return (replaced && c->array2 ? count_at(m, count, comm->rank) : one(m, count)) * size_of(type_at(m, type));
    case EACH:
      return of * one(m, count) * size_of(type_at(m, type));
    case SUM:
      for (int64_t i = 0; i < of; i++) sum += count_at(m, count, i);
      return sum * size_of(type_at(m, type));
  }
  for (int64_t i = 0; i < of; i++) {
    W of_type = handle_at(word(m, type), i, m->fortran);
    if (m->fortran) of_type = type_of_fortran(whole(of_type));
    sum += count_at(m, count, i) * size_of(of_type);
  }
  return sum;
}

/* --- notes --- */

/* Have the next pages of the file at once: one by one they cost more than the notes where TMPDIR is in memory. */
static void prepare(int64_t until) {
  int64_t from = atomic_load_explicit(&prepared, memory_order_relaxed), to = until + AHEAD;
  if (until <= from || to > MOST_NOTES || !atomic_compare_exchange_strong(&prepared, &from, to)) return;
  uintptr_t begin = (uintptr_t)(notes + from) & ~(uintptr_t)4095, end = (uintptr_t)(notes + to) & ~(uintptr_t)4095;
  madvise((void *)begin, end - begin, MADV_POPULATE_WRITE);
}

static Note *take(int64_t count) {
  int64_t first = atomic_fetch_add_explicit(used, count, memory_order_relaxed);
  if (first + count > MOST_NOTES) return 0; /* there are too many: `used` says how many are lost */
  if (first + count > atomic_load_explicit(&prepared, memory_order_relaxed)) prepare(first + count);
  return notes + first;
}

static int peer_at(const Made *m, int place) {
  int peer = value(m, place);
  return peer == mpi->any_source ? ANYBODY : peer < 0 ? NOBODY : peer;
}

static void resolve(Note *note, const char *status) {
  int source = *(int *)(status + mpi->status_source);
  note->peer = source < 0 ? NOBODY : source;
  note->tag = *(int *)(status + mpi->status_tag);
}

static Note part(const Note *of, W request) {
  Note note = *of;
  note.flags |= PART;
  note.bytes = of - notes;
  note.request = request;
  return note;
}

static void grow(int64_t requests) {
  if (requests <= room) return;
  room = 2 * requests;
  handles = realloc(handles, room * sizeof(W));
  statuses = realloc(statuses, room * 64);
}

/* Have the library say from whom a message came where the program does not ask. */
static void ask_for_status(Made *m, int64_t count) {
  int place = m->call->status - 1;
  int ignored = m->fortran ? m->words[place] == fortran_ignore[0] || m->words[place] == fortran_ignore[1]
                           : m->words[place] == mpi->status_ignore;
  if (!ignored) return;
  grow(count);
  m->words[place] = (W)statuses;
}

static void fill(Made *m, Note *note) {
  const Call *c = m->call;
  note->comm = 0;
  note->peer = note->tag = NOBODY;
  note->bytes = note->request = 0;
  note->call = c - calls;
  note->flags = thread_number << THREAD_SHIFT;
  if (c->comm) {
    Comm *comm = comm_of(comm_at(m, c->comm));
    note->comm = comm->id;
    note->bytes = payload(m, comm);
  }
  if (c->peer) note->peer = peer_at(m, c->peer);
  if (c->tag) note->tag = value(m, c->tag);
  if (c->kind == MARK) note->peer = value(m, 1);
}

/* The requests that a call is about, read before it replaces them. */
static int64_t read_requests(Made *m) {
  const Call *c = m->call;
  int64_t count = c->several ? value(m, 1) : 1;
  grow(count);
  for (int64_t i = 0; i < count; i++) handles[i] = handle_at(word(m, c->request), i, m->fortran);
  if (c->status && wildcards) ask_for_status(m, count);
  return count;
}

/* How many of its requests a call has completed; -1: it tested and found nothing. */
static int64_t completed(const Made *m, int64_t count) {
  const Call *c = m->call;
  if (c->flag && !*(int *)word(m, c->flag)) return -1;
  if (c->found) {
    int found = *(int *)word(m, c->found);
    return found > 0 ? found : -1;
  }
  if (c->index) return *(int *)word(m, c->index) < 0 ? 0 : 1;
  return count;
}

static void complete(const Made *m, Note *note, int64_t count) {
  const Call *c = m->call;
  int64_t over = completed(m, count);
  if (over == 0) note->request = 0;
  if (over < 0) {
    note->flags |= FRUITLESS;
    note->bytes = note->leave - note->enter;
    return;
  }
  int asked = c->status && wildcards;
  Note *more = over > 1 ? take(over - 1) : 0;
  for (int64_t i = 0; i < over && (i == 0 || more); i++) {
    int64_t which = c->index ? ((int *)word(m, c->index))[i] - m->fortran : i;
    Note *at = i == 0 ? note : more + i - 1;
    if (i) *at = part(note, 0);
    at->request = handles[which];
    if (asked) resolve(at, (char *)word(m, c->status) + i * mpi->status_bytes);
  }
}

/* Whether it receives what its arguments do not tell: from any source, or with any tag, which is negative. */
static int takes_any(const Made *m) {
  const Call *c = m->call;
  if (c->kind == BOTH) return peer_at(m, c->source) == ANYBODY || value(m, c->tag2) < 0;
  return c->kind == RECEIVE && (peer_at(m, c->peer) == ANYBODY || value(m, c->tag) < 0);
}

/* What is known of a call when it has returned. */
static void finish(const Made *m, Note *note) {
  const Call *c = m->call;
  int request = c->request ? c->request : c->mode == BLOCKS ? 0 : c->comm + 1 + (c->mode == PERSISTENT && c->kind >= ALL);
  if (request && c->kind != START && c->kind != COMPLETE) note->request = handle_at(word(m, request), 0, m->fortran);
  if (c->flag && !*(int *)word(m, c->flag)) {
    note->flags |= FRUITLESS;
    note->bytes = note->leave - note->enter;
    return;
  }
  if (c->mode == BLOCKS && c->status && (c->kind == RECEIVE || c->kind == PROBE)) resolve(note, (char *)word(m, c->status));
  if (c->kind == BOTH) { /* the receiving side is a note of its own */
    Note *other = take(1);
    if (other) {
      *other = part(note, note->request);
      other->peer = peer_at(m, c->source);
      other->tag = value(m, c->tag2);
      if (c->mode == BLOCKS) resolve(other, (char *)word(m, c->status));
    }
  }
  if (c->made) {
    W made = handle_at(word(m, c->made), 0, m->fortran);
    if (m->fortran) made = comm_of_fortran(whole(made));
    if (made == handle_of(mpi->comm_null)) return;
    if (c->mode == STARTS) { /* it cannot be asked yet; it has the members of the old one */
      fact("twin %d %d\n", comms_made + 1, note->comm);
      Comm *old = comm_of(comm_at(m, c->comm)), *at = place_of(made);
      *at = (Comm){made, ++comms_made, old->rank, old->size, old->targets};
    } else {
      forget(made); /* of one that was freed within another call, which left no note */
      define(made, c->name + 4, note->comm);
    }
  }
}

/* Add a fruitless test to the ones before it, if nothing else happened since: a program may poll for long. */
static int joins_last_test(const Note *note) {
  Note *last = last_test;
  if (!last || last->call != note->call || last->request != note->request || last->comm != note->comm) return 0;
  last->bytes += note->leave - note->enter;
  last->leave = note->leave;
  last->tag++;
  return 1;
}

static int start_recording(int64_t enter);
static void stop_recording(void);
static void close_notes(void);

/* Tests leave a note when they have returned, so that those that found nothing can be joined. */
static int tests(const Call *c) { return c->flag || c->found; }

__attribute__((noinline)) static int record(Made *m, Function function) {
#define REAL function(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13])
  const Call *c = m->call;
  W *w = m->words;
  int result;
  if (c->kind == BEGIN && !notes) {
    int64_t enter = now();
    depth++;
    result = REAL;
    if (!notes) start_recording(enter); /* a function of Fortran may have called that of C */
    depth--;
    return result;
  }
  if (!notes || depth || c->kind == BEGIN) return REAL;
  depth = 1;
  if (!thread_number) thread_number = __atomic_add_fetch(&threads_seen, 1, __ATOMIC_RELAXED);
  if (c->kind == END) stop_recording();
  Note local, *note = tests(c) ? &local : take(1);
  if (!note) note = &local;
  fill(m, note);
  int64_t requests = c->kind == START || c->kind == COMPLETE ? read_requests(m) : 0;
  if (requests) note->request = handles[0];
  if (c->status && c->mode == BLOCKS && c->kind != COMPLETE) ask_for_status(m, 1);
  if (c->mode != BLOCKS && takes_any(m)) wildcards = 1;
  if (c->kind == FREE) {
    W freed = m->fortran ? comm_at(m, 1) : handle_at(word(m, 1), 0, 0);
    note->comm = comm_of(freed)->id;
    forget(freed);
  }
  note->leave = 0;
  note->enter = now();
  result = REAL;
  int64_t leave = now();
  note->leave = leave;
  if (c->kind == COMPLETE) complete(m, note, requests);
  else finish(m, note);
  if (c->kind == START)
    for (int64_t i = 1; i < requests; i++) {
      Note *more = take(1);
      if (more) *more = part(note, handles[i]);
    }
  if (note == &local && tests(c)) {
    if (!((note->flags & FRUITLESS) && joins_last_test(note)) && (note = take(1))) *note = local;
    last_test = note && (note->flags & FRUITLESS) ? note : last_test;
  } else {
    last_test = 0;
  }
  if (c->kind == END) close_notes();
  depth = 0;
  return result;
}

/* --- from Init to Finalize --- */

static uint64_t clock_name(void) { /* ranks with the same read the same clock: of one boot, in one namespace */
  char text[256] = "";
  int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY);
  ssize_t length = file < 0 ? 0 : read(file, text, 64);
  if (file >= 0) close(file);
  length = length < 0 ? 0 : length;
  ssize_t more = readlink("/proc/self/ns/time", text + length, 128);
  length += more < 0 ? 0 : more;
  uint64_t hash = 14695981039346656037u;
  for (ssize_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
  return hash;
}

enum { TRIPS = 100, CLOCK_TAG = 32001 };

static void send_time(int64_t *at, int to) { LIBRARY(Send, (W)at, 8, mpi_byte(), to, CLOCK_TAG, mpi_world()); }

static void receive_time(int64_t *at, int from) {
  char status[64];
  LIBRARY(Recv, (W)at, 8, mpi_byte(), from, CLOCK_TAG, mpi_world(), (W)status);
}

/* The first rank of every other node asks rank 0 for the time, many times: `worker.clock` says what that tells. */
static void compare_clocks(const int *leaders, int count, int rank) {
  int64_t asked = 0, told = 0;
  for (int i = 1; i < count; i++)
    for (int trip = 0; trip < TRIPS; trip++)
      if (rank == 0) {
        receive_time(&asked, leaders[i]);
        told = now();
        send_time(&told, leaders[i]);
      } else if (rank == leaders[i]) {
        asked = now();
        send_time(&asked, 0);
        receive_time(&told, 0);
        fact("trip %lld %lld %lld\n", (long long)asked, (long long)told, (long long)now());
      }
}

static int world_rank, world_size, *leaders, nodes;

static void find_nodes(void) {
  uint64_t own = clock_name(), *all = calloc(world_size, sizeof *all);
  LIBRARY(Allgather, (W)&own, 8, mpi_byte(), (W)all, 8, mpi_byte(), mpi_world());
  leaders = calloc(world_size, sizeof *leaders);
  for (int i = 0, j; i < world_size; i++) {
    for (j = 0; j < nodes && all[leaders[j]] != all[i]; j++) {}
    if (j == nodes) leaders[nodes++] = i;
    if (i == world_rank) fact("node %d\n", j);
  }
  free(all);
}

static void write_cpus(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set)) return;
  fact("cpus");
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &set)) fact(" %d", i);
  fact("\n");
}

static int open_files(const char *folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/facts.%d", folder, world_rank);
  facts = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0666);
  snprintf(path, sizeof path, "%s/notes.%d", folder, world_rank);
  notes_file = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0666);
  int64_t bytes = (int64_t)MOST_NOTES * sizeof(Note); /* a file with holes: it takes what is written */
  if (facts < 0 || notes_file < 0 || ftruncate(notes_file, bytes)) return 0;
  void *map = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, notes_file, 0);
  if (map == MAP_FAILED) return 0;
  used = map;
  atomic_store(used, 1);
  notes = map;
  return 1;
}

static int start_recording(int64_t enter) {
  const char *folder = getenv("PSCALE_WATCH");
  W parent = 0;
  LIBRARY(Comm_get_parent, (W)&parent);
  int spawned = handle_of(parent) != handle_of(mpi->comm_null); /* its ranks have the numbers of others */
  if (!folder || !*folder || spawned) return 0;
  world_rank = ask(mpi_world(), "PMPI_Comm_rank");
  world_size = ask(mpi_world(), "PMPI_Comm_size");
  if (!open_files(folder)) {
    if (!world_rank) fprintf(stderr, "pscale watch: cannot write in %s: nothing is recorded\n", folder);
    notes = 0;
    return 0;
  }
  char host[256] = "", version[8192] = "";
  int length = 0;
  gethostname(host, sizeof host - 1);
  LIBRARY(Get_library_version, (W)version, (W)&length);
  version[strcspn(version, "\n")] = 0;
  fact("rank %d %d\nhost %s\npid %d\nlibrary %s\n", world_rank, world_size, host, (int)getpid(), version);
  write_cpus();
  LIBRARY(Comm_group, mpi_world(), (W)&world_group);
  world_group = handle_of(world_group);
  define(mpi_world(), "world", 0);
  define(mpi_self(), "self", 0);
  fortran_in_place = (W)dlsym(RTLD_DEFAULT, "mpi_fortran_in_place_");
  fortran_ignore[0] = (W)dlsym(RTLD_DEFAULT, "mpi_fortran_status_ignore_");
  fortran_ignore[1] = (W)dlsym(RTLD_DEFAULT, "mpi_fortran_statuses_ignore_");
  find_nodes();
  several_nodes = nodes > 1;
  compare_clocks(leaders, nodes, world_rank);
  thread_number = __atomic_add_fetch(&threads_seen, 1, __ATOMIC_RELAXED);
  fact("begin %lld %lld\n", (long long)enter, (long long)now());
  return 1;
}

static void stop_recording(void) {
  struct rusage spent;
  getrusage(RUSAGE_SELF, &spent);
  fact("end %lld\n", (long long)now());
  fact("used %lld %lld %ld %ld\n", spent.ru_utime.tv_sec * 1000000LL + spent.ru_utime.tv_usec,
       spent.ru_stime.tv_sec * 1000000LL + spent.ru_stime.tv_usec, spent.ru_maxrss, spent.ru_nivcsw);
  if (several_nodes) compare_clocks(leaders, nodes, world_rank);
}

static void close_notes(void) { /* nothing can follow MPI_Finalize */
  notes = 0;
  if (ftruncate(notes_file, atomic_load(used) * sizeof(Note))) return;
}

/* --- for programs that name their steps and phases; MPI_Pcontrol does the same --- */

static void mark(int level) {
  Note *note = notes ? take(1) : 0;
  if (!note) return;
  int64_t at = now();
  *note = (Note){.enter = at, .leave = at, .peer = level, .tag = NOBODY, .call = ID_Pcontrol};
  last_test = 0;
}

void pscale_watch_mark(int level) { mark(level); }

void pscale_watch_name(int level, const char *name) { fact("phase %d %s\n", level, name); }

/* --- the functions that programs call --- */

static int is_recorded_in_c(const Call *c) {
  find_library();
  return mpi->fortran_calls_c && c->kind != BEGIN && c->kind != END;
}

#define WORDS W a, W b, W c, W d, W e, W f, W g, W h, W i, W j, W k, W l, W m, W n
#define LIST {a, b, c, d, e, f, g, h, i, j, k, l, m, n}
#define RECORDED(id, function, is_fortran, is_large)                                      \
  {                                                                                       \
    static Function real;                                                                 \
    if (!real) real = function;                                                           \
    W words[] = LIST;                                                                     \
    Made made = {.call = &calls[id], .words = words, .fortran = is_fortran, .large = is_large}; \
    return record(&made, real);                                                           \
  }
/* Fortran functions of MPICH call those of C, where they are recorded, but for the first and last of `mpi_f08`; those
   of Open MPI do not. They are handed all pointers untouched, and the lengths of texts, which follow them. */
#define FROM_FORTRAN(id, symbol)                                             \
  int symbol(WORDS) {                                                        \
    static Function real;                                                    \
    if (!real) real = next_function(#symbol);                                \
    W words[] = LIST;                                                        \
    Made made = {.call = &calls[id], .words = words, .fortran = 1};          \
    if (is_recorded_in_c(&calls[id])) return real(a, b, c, d, e, f, g, h, i, j, k, l, m, n); \
    return record(&made, real);                                              \
  }
#define ONCE(Name, name, ...)                                                    \
  int MPI_##Name(WORDS) RECORDED(ID_##Name, library_function("PMPI_" #Name), 0, 0) \
  FROM_FORTRAN(ID_##Name, mpi_##name##_)                                         \
  FROM_FORTRAN(ID_##Name, mpi_##name##_f08_)
#ifdef LARGE_COUNTS
#define SIZED(Name, name, ...)  \
  ONCE(Name, name, __VA_ARGS__) \
  int MPI_##Name##_c(WORDS) RECORDED(ID_##Name, library_function("PMPI_" #Name "_c"), 0, 1)
#else
#define SIZED ONCE
#endif

#include "calls.h"
