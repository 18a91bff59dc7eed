/* Records every call of MPI of a process, between the program and whatever MPI library it uses.

   It is loaded before the program. There is no mpi.h: arguments pass through as machine words, so one object serves
   every library; the numbers in which libraries differ are in `Library`. The System V and the ARM calling convention
   let the caller clear the stack and widen what it passes, so every function may be taken to have WORDS arguments.

   A call is a note of 48 bytes in a mapped file, which outlives the process however that ends. Facts that are no
   calls (communicators, names, clocks) are lines of a text beside it. No message is added to the program, but for
   the clocks of several nodes, in MPI_Init and MPI_Finalize. Arguments are read where MPI says that they matter. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
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
#include "notes.h"

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
      status, flag, index, found, made, polls, local;
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

typedef struct {
  W handle;
  int id, rank, size, local, between, targets; /* `size`: of the other group, if it is between two */
} Comm;

typedef struct {
  Comm comm;
  unsigned freed; /* when it was read */
} Cached;

static Comm *comms; /* those that are alive, hashed by handle; a free place has id 0; under `writing` */
static size_t comms_room, comms_alive;
static int comms_made;
static _Atomic unsigned comms_freed;
static _Atomic int wildcards, cancels;
typedef struct {
  _Atomic int64_t calls, ns, bytes, unused; /* of a function: its calls, the time in them, what they gave */
} Total;
static Total totals[CALLS];
static pthread_key_t of_thread;
static W world_group, fortran_in_place, fortran_ignore[2];

enum { CACHED = 4 };
#define PER_THREAD static __thread __attribute__((tls_model("initial-exec")))
PER_THREAD int depth, thread_number;
PER_THREAD Cached cached[CACHED];
PER_THREAD int64_t last_test; /* its place, if it found nothing, and no call was made since */
PER_THREAD W *handles;        /* of the requests of a call */
PER_THREAD char *statuses;
PER_THREAD int64_t room;

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
  int resolves, cancels; /* its statuses are read: for wildcards, for receives that were cancelled */
  int64_t requests;
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

/* --- communicators: all of this under `writing` --- */

static int ask(W comm, const char *function) { /* a size or a rank */
  int found = 0;
  CALLED(library_function(function), comm, (W)&found);
  return found;
}

static void *allocate(size_t bytes) {
  void *memory = calloc(1, bytes);
  if (!memory) stop(ENOMEM, "its calls are recorded no further, the program goes on: cannot write a communicator");
  return memory;
}

/* Write the ranks of a group in the world as runs "first*count", which most groups have few of. */
static void write_members(W group) {
  int size = ask(group, "PMPI_Group_size");
  int *numbers = allocate(2 * sizeof(int) * (size + 1)), *ranks = numbers + size;
  if (!numbers) return;
  for (int i = 0; i < size; i++) numbers[i] = i;
  LIBRARY(Group_translate_ranks, group, size, (W)numbers, world_group, (W)ranks);
  for (int i = 0, count; i < size; i += count) {
    for (count = 1; i + count < size && ranks[i + count] == ranks[i] + count; count++) {}
    add(count > 1 ? " %d*%d" : " %d", ranks[i], count);
  }
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
    add(" near");
    for (int i = 0, before, after; i < sources; i++) {
      LIBRARY(Cart_shift, comm, i, 1, (W)&before, (W)&after);
      add(" %d %d", before, after);
    }
    return 2 * sources;
  }
  if (kind != mpi->graph && kind != mpi->dist_graph) return 0;
  if (kind == mpi->graph)
    LIBRARY(Graph_neighbors_count, comm, rank, (W)&sources);
  else
    LIBRARY(Dist_graph_neighbors_count, comm, (W)&sources, (W)&targets, (W)&weighted);
  int *near = allocate(2 * (sources + targets + 1) * sizeof(int)), *far = near + sources, *weights = far + targets;
  if (!near) return 0;
  if (kind == mpi->graph)
    LIBRARY(Graph_neighbors, comm, rank, sources, (W)near);
  else
    LIBRARY(Dist_graph_neighbors, comm, sources, (W)near, (W)weights, targets, (W)far, (W)(weights + sources));
  add(" near");
  for (int i = 0; i < sources; i++) add(" %d", near[i]);
  free(near);
  return kind == mpi->graph ? sources : targets;
}

static size_t home_of(W comm) { return ((uint64_t)comm * 0x9E3779B97F4A7C15u) >> 32 & (comms_room - 1); }

static Comm *place_of(W comm) { /* where it is or belongs */
  size_t at = home_of(comm);
  while (comms[at].id && comms[at].handle != comm) at = (at + 1) & (comms_room - 1);
  return &comms[at];
}

static int make_room(void) {
  if (comms_alive + 1 < comms_room / 2) return 1;
  Comm *before = comms;
  size_t places = comms_room;
  Comm *larger = allocate((places ? 2 * places : 64) * sizeof *comms);
  if (!larger) return 0;
  comms = larger;
  comms_room = places ? 2 * places : 64;
  for (size_t i = 0; i < places; i++)
    if (before[i].id) *place_of(before[i].handle) = before[i];
  free(before);
  return 1;
}

/* Give a communicator a number. All its members do so in the same order, so they can tell which it is. */
static int number_comm(void) {
  if (comms_made == MOST_COMMS)
    stop(FULL_COMMS, "its calls are recorded no further, the program goes on: it has made too many communicators");
  return comms_made < MOST_COMMS && make_room() ? ++comms_made : 0;
}

static void keep(Comm comm) {
  *place_of(comm.handle) = comm;
  comms_alive++;
}

static Comm define(W handle, const char *how, int parent) {
  Comm comm = {.handle = handle, .id = number_comm()};
  if (!comm.id) return comm;
  comm.between = ask(handle, "PMPI_Comm_test_inter");
  comm.rank = ask(handle, "PMPI_Comm_rank");
  comm.local = ask(handle, "PMPI_Comm_size");
  comm.size = comm.between ? ask(handle, "PMPI_Comm_remote_size") : comm.local;
  add("comm %d %s %d :", comm.id, how, parent);
  write_group(handle, "PMPI_Comm_group");
  if (comm.between) {
    add(" remote");
    write_group(handle, "PMPI_Comm_remote_group");
  } else {
    comm.targets = write_neighbours(handle, comm.rank);
  }
  add("\n");
  write_line();
  keep(comm);
  return comm;
}

/* Give a place back; what was put behind it because it was taken moves up. */
static void forget(W handle) {
  Comm *comm = comms_room ? place_of(handle) : 0;
  if (!comm || !comm->id) return;
  add("free %d\n", comm->id);
  write_line();
  size_t hole = comm - comms, mask = comms_room - 1;
  for (size_t at = (hole + 1) & mask; comms[at].id; at = (at + 1) & mask)
    if (((at - home_of(comms[at].handle)) & mask) >= ((at - hole) & mask)) {
      comms[hole] = comms[at];
      hole = at;
    }
  comms[hole].id = 0;
  comms_alive--;
  atomic_fetch_add(&comms_freed, 1);
}

/* What is known of a communicator that a call names; read anew once any was freed, which may have had its handle. */
static const Comm *comm_of(W handle) {
  static const Comm none;
  Cached *at = &cached[((uint64_t)handle * 0x9E3779B97F4A7C15u) >> 62];
  unsigned freed = atomic_load_explicit(&comms_freed, memory_order_acquire);
  if (at->comm.handle == handle && at->comm.id && at->freed == freed) return &at->comm;
  if (handle == handle_of(mpi->comm_null)) return &none;
  pthread_mutex_lock(&writing);
  Comm *place = comms_room ? place_of(handle) : 0;
  at->comm = place && place->id ? *place : define(handle, "found", 0);
  at->freed = atomic_load(&comms_freed);
  pthread_mutex_unlock(&writing);
  return &at->comm;
}

/* --- what a call gives --- */

static int64_t size_of(W type) {
  if (type == handle_of(mpi->type_null)) return 0;
  if (mpi->handle_bytes == 4 && type >> 24 == 0x4c) return type >> 8 & 0xff; /* a basic type of MPICH says it itself */
  int bytes = 0;
  LIBRARY(Type_size, type, (W)&bytes);
  return bytes;
}

static int64_t count_at(const Made *m, int place, int64_t element) {
  return m->large ? ((int64_t *)word(m, place))[element] : ((int *)word(m, place))[element];
}

static int64_t one(const Made *m, int place) { return m->large ? (int64_t)word(m, place) : value(m, place); }

static int64_t of_type(const Made *m, int64_t count, int place) { return count ? count * size_of(type_at(m, place)) : 0; }

/* Whether MPI reads what this rank would give: not of one to nobody, nor of one that only receives. */
static int gives(const Made *m, const Comm *comm) {
  const Call *c = m->call;
  if (!c->pays || !comm->id) return 0;
  int peer = value(m, c->peer);
  switch (c->kind) {
    case SEND:
    case BOTH:
      return peer >= 0;
    case FROM_ROOT:
      return peer == (comm->between ? mpi->root : comm->rank);
    case TO_ROOT:
      return peer >= 0;
  }
  return 1;
}

static int64_t payload(const Made *m, const Comm *comm) {
  const Call *c = m->call;
  if (!gives(m, comm)) return 0;
  W buffer = c->buffer ? word(m, c->buffer) : 0;
  int replaced = c->buffer && buffer == (m->fortran ? fortran_in_place : mpi->in_place);
  int count = replaced ? c->count2 : c->count, type = replaced ? c->type2 : c->type;
  int64_t of = c->kind == NEAR ? comm->targets : c->local ? comm->local : comm->size, sum = 0;
  switch (c->pays) {
    case ONE:
      return of_type(m, replaced && c->array2 ? count_at(m, count, comm->rank) : one(m, count), type);
    case EACH:
      return of_type(m, of * one(m, count), type);
    case SUM:
      for (int64_t i = 0; i < of; i++) sum += count_at(m, count, i);
      return of_type(m, sum, type);
  }
  for (int64_t i = 0; i < of; i++) {
    int64_t elements = count_at(m, count, i);
    if (!elements) continue;
    W type_of = handle_at(word(m, type), i, m->fortran);
    if (m->fortran) type_of = type_of_fortran(whole(type_of));
    sum += elements * size_of(type_of);
  }
  return sum;
}

/* --- what is known of a call --- */

static int peer_at(const Made *m, int place) {
  int peer = value(m, place);
  return peer == mpi->any_source ? ANYBODY : peer < 0 ? NOBODY : peer;
}

static void resolve(Note *note, const char *status) {
  int source = *(int *)(status + mpi->status_source);
  note->peer = source < 0 ? NOBODY : source;
  note->tag = *(int *)(status + mpi->status_tag);
}

/* Write what else a call has completed or started behind it; return its place. */
static Note *part(const Note *note, int64_t of, int64_t place, W request) {
  Note *more = at_place(place);
  *more = *note;
  more->flags |= PART;
  more->bytes = of;
  more->request = request;
  return more;
}

static int grow(int64_t requests) {
  if (requests <= room) return 1;
  W *more = realloc(handles, 2 * requests * sizeof(W));
  if (more) handles = more;
  char *longer = more ? realloc(statuses, 2 * requests * 64) : 0;
  if (longer) statuses = longer;
  else stop(ENOMEM, "its calls are recorded no further, the program goes on: cannot read requests");
  room = longer ? 2 * requests : room;
  return longer != 0;
}

/* Have the library say from whom a message came where the program does not ask. */
static void ask_for_status(Made *m, int64_t count) {
  W *place = &m->words[m->call->status - 1];
  int ignored = m->fortran ? *place == fortran_ignore[0] || *place == fortran_ignore[1] : *place == mpi->status_ignore;
  m->resolves = count && (!ignored || grow(count));
  if (ignored && m->resolves) *place = (W)statuses;
}

static void fill(Made *m, Note *note) {
  const Call *c = m->call;
  *note = (Note){.peer = NOBODY, .tag = NOBODY, .call = c - calls, .flags = thread_number << THREAD_SHIFT | m->large * LARGE};
  if (c->comm) {
    const Comm *comm = comm_of(comm_at(m, c->comm));
    note->comm = comm->id;
    note->bytes = payload(m, comm);
  }
  if (c->peer) note->peer = peer_at(m, c->peer);
  if (c->tag) note->tag = value(m, c->tag);
  if (c->kind == MARK) note->peer = value(m, 1);
}

/* Whether a request that is given up was cancelled in time: nobody asks its status any more. */
static int was_cancelled(const Made *m, int64_t place) {
  char status[64];
  int over = 0, cancelled = 0;
  W request = m->fortran ? request_of_fortran(whole(handles[place])) : handles[place];
  LIBRARY(Request_get_status, request, (W)&over, (W)status);
  if (over) LIBRARY(Test_cancelled, (W)status, (W)&cancelled);
  return cancelled;
}

/* The requests that a call is about, read before it replaces them. */
static void read_requests(Made *m, Note *note) {
  const Call *c = m->call;
  int64_t count = c->several ? value(m, 1) : 1;
  if (!grow(count)) return;
  m->requests = count;
  for (int64_t i = 0; i < count; i++) handles[i] = handle_at(word(m, c->request), i, m->fortran);
  if (count) note->request = handles[0];
  m->cancels = atomic_load_explicit(&cancels, memory_order_relaxed);
  if (c->status && (m->cancels || atomic_load_explicit(&wildcards, memory_order_relaxed))) ask_for_status(m, count);
  if (c - calls == ID_Request_free && m->cancels && was_cancelled(m, 0)) note->flags |= CANCELLED;
}

/* Whether a test has found nothing; a request that is to be cancelled is asked about too, and not completed. */
static int is_fruitless(const Made *m) {
  const Call *c = m->call;
  if (!c->polls) return c - calls == ID_Cancel;
  return c->flag ? !*(int *)word(m, c->flag) : *(int *)word(m, c->found) <= 0;
}

/* How many of its requests a call has completed. */
static int64_t completed(const Made *m) {
  const Call *c = m->call;
  if (c->found) return *(int *)word(m, c->found) < 0 ? 0 : *(int *)word(m, c->found);
  if (c->index) return *(int *)word(m, c->index) < 0 ? 0 : 1;
  return m->requests;
}

/* Say of what has been completed from whom it came, and whether it was cancelled. */
static void resolve_completed(const Made *m, Note *note, char *status) {
  int cancelled = 0;
  resolve(note, status);
  if (m->cancels) LIBRARY(Test_cancelled, (W)status, (W)&cancelled);
  if (cancelled) note->flags |= CANCELLED;
}

static void complete(const Made *m, Note *note, int64_t at) {
  const Call *c = m->call;
  int64_t over = completed(m), more = over > 1 ? take(over - 1) : 0;
  if (over == 0) note->request = 0;
  for (int64_t i = 0; i < over && (i == 0 || more); i++) {
    W request = handles[c->index ? ((int *)word(m, c->index))[i] - m->fortran : i];
    Note *each = i == 0 ? note : part(note, at, more + i - 1, request);
    if (i) each->flags &= ~CANCELLED;
    each->request = request == mpi->request_null ? 0 : request;
    if (m->resolves) resolve_completed(m, each, (char *)word(m, c->status) + i * mpi->status_bytes);
    if (i) release(more + i - 1);
  }
}

/* Whether it receives what its arguments do not tell: from any source, or with any tag, which is negative. */
static int takes_any(const Made *m) {
  const Call *c = m->call;
  if (c->kind == BOTH) return peer_at(m, c->source) == ANYBODY || value(m, c->tag2) < 0;
  return c->kind == RECEIVE && (peer_at(m, c->peer) == ANYBODY || value(m, c->tag) < 0);
}

static void note_made(const Made *m, const Note *note) {
  const Call *c = m->call;
  W made = handle_at(word(m, c->made), 0, m->fortran);
  if (m->fortran) made = comm_of_fortran(whole(made));
  if (made == handle_of(mpi->comm_null)) return;
  Comm comm = *comm_of(comm_at(m, c->comm));
  pthread_mutex_lock(&writing);
  forget(made); /* of one that was freed within another call, which left no note */
  if (c->mode != STARTS) {
    define(made, c->name + 4, note->comm);
  } else if ((comm.id = number_comm())) { /* it cannot be asked yet; it has the members of the old one */
    add("twin %d %d %s\n", comm.id, note->comm, c->name + 4);
    write_line();
    comm.handle = made;
    keep(comm);
  }
  pthread_mutex_unlock(&writing);
}

/* What is known of a call other than a completion when it has returned. */
static void finish(const Made *m, Note *note, int64_t at) {
  const Call *c = m->call;
  int request = c->request ? c->request : c->mode == BLOCKS ? 0 : c->comm + 1 + (c->mode == PERSISTENT && c->kind >= ALL);
  if (request && c->kind != START) note->request = handle_at(word(m, request), 0, m->fortran);
  if (m->resolves && (c->kind == RECEIVE || c->kind == PROBE)) resolve(note, (char *)word(m, c->status));
  int64_t other = c->kind == BOTH ? take(1) : 0;
  if (other) { /* the receiving side is a note of its own */
    Note *receives = part(note, at, other, note->request);
    receives->peer = peer_at(m, c->source);
    receives->tag = value(m, c->tag2);
    if (m->resolves) resolve(receives, (char *)word(m, c->status));
    release(other);
  }
  int64_t others = c->kind == START && m->requests > 1 ? take(m->requests - 1) : 0;
  for (int64_t i = 1; others && i < m->requests; i++) {
    part(note, at, others + i - 1, handles[i]);
    release(others + i - 1);
  }
  if (c->made) note_made(m, note);
}

/* A call that has failed says nothing. A message that was too long was received; of several, nothing is known. */
static void note_failure(const Made *m, Note *note, int error) {
  int class = 0;
  LIBRARY(Error_class, error, (W)&class);
  if (class == mpi->err_truncate) return;
  if (m->call->several || m->call->mode != BLOCKS) note->request = 0;
  note->flags |= CANCELLED;
  note->bytes = 0;
}

/* Add a fruitless test to the ones before it, if nothing else happened since: a program may poll for long. */
static int joins_last_test(const Note *note) {
  Note *last = last_test ? at_place(last_test) : 0;
  if (!last || last->call != note->call || last->request != note->request || last->comm != note->comm) return 0;
  last->bytes += note->leave - note->enter;
  last->leave = note->leave;
  if (!calls[last->call].tag && last->tag < INT32_MAX) last->tag++; /* how many they are, less two */
  return 1;
}

static void forget_last_test(void) {
  if (last_test) release(last_test);
  last_test = 0;
}

/* Write what is known after a call; tests leave their note only now, so that those that found nothing can be joined. */
static void write_note(const Made *m, Note *note, int64_t at, int result) {
  const Call *c = m->call;
  int failed = !m->fortran && result, fruitless = !failed && is_fruitless(m);
  if (fruitless) {
    note->flags |= FRUITLESS;
    note->bytes = note->leave - note->enter;
    if (joins_last_test(note)) return;
  }
  forget_last_test();
  if (!at) {
    if (!c->polls || !(at = take(1))) return; /* recording has stopped */
    Note *place = at_place(at);
    *place = *note;
    note = place;
  }
  if (failed) note_failure(m, note, result);
  else if (!fruitless && c->kind == COMPLETE) complete(m, note, at);
  else if (!fruitless) finish(m, note, at);
  if (fruitless && c->polls) last_test = at;
  else release(at);
}

static void leave_thread(void *thread) {
  (void)thread;
  free(handles);
  free(statuses);
  handles = 0, statuses = 0, room = 0;
  if (!header) return;
  forget_last_test();
  atomic_fetch_sub(&header->threads, 1);
}

static void enter_thread(void) {
  int number = atomic_fetch_add(&threads_seen, 1) + 1;
  thread_number = number < MOST_THREADS ? number : MOST_THREADS;
  atomic_fetch_add(&header->threads, 1);
  pthread_setspecific(of_thread, &of_thread);
}

static void add_to_totals(const Call *c, const Note *note) {
  Total *total = &totals[c - calls];
  int64_t ns = note->leave - note->enter, bytes = c->mode == PERSISTENT ? 0 : note->bytes;
#define ADD(each, number) \
  atomic_store_explicit(&total->each, atomic_load_explicit(&total->each, memory_order_relaxed) + number, memory_order_relaxed)
  if (atomic_load_explicit(&threads_seen, memory_order_relaxed) == 1) {
    ADD(calls, 1);
    ADD(ns, ns);
    if (bytes) ADD(bytes, bytes);
    return;
  }
  atomic_fetch_add_explicit(&total->calls, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&total->ns, ns, memory_order_relaxed);
  atomic_fetch_add_explicit(&total->bytes, bytes, memory_order_relaxed);
}

static int begin(Made *m, Function function);
static void end_facts(void);

__attribute__((noinline)) static int record(Made *m, Function function) {
#define REAL function(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13])
  const Call *c = m->call;
  W *w = m->words;
  if (c->kind == BEGIN) return begin(m, function);
  int now_is = atomic_load_explicit(&state, memory_order_acquire);
  if (now_is == STOPPED && c->kind == END && !depth) end_facts();
  if (now_is != RECORDING || depth) return REAL;
  depth = 1;
  if (!thread_number) enter_thread();
  if (c->kind == END) end_facts();
  Note local, *note = &local;
  int64_t at = c->polls ? 0 : take(1);
  if (at) note = at_place(at);
  fill(m, note);
  if (c->kind == START || c->kind == COMPLETE) read_requests(m, note);
  else if (c->status && c->mode == BLOCKS) ask_for_status(m, 1);
  if (c->mode != BLOCKS && takes_any(m)) atomic_store_explicit(&wildcards, 1, memory_order_relaxed);
  if (c - calls == ID_Cancel && !atomic_exchange(&cancels, 1)) FACT("cancels\n");
  if (c->kind == FREE) {
    W freed = m->fortran ? comm_at(m, 1) : handle_at(word(m, 1), 0, 0);
    note->comm = comm_of(freed)->id;
    pthread_mutex_lock(&writing);
    forget(freed);
    pthread_mutex_unlock(&writing);
  }
  note->enter = now();
  int result = REAL;
  note->leave = now();
  add_to_totals(c, note);
  write_note(m, note, at, result);
  if (c->kind == END) close_notes();
  depth = 0;
  return result;
}

/* --- from Init to Finalize --- */

enum { TRIPS = 100, CLOCK_TAG = 32001 };

static void send_time(int64_t *at, int to) { LIBRARY(Send, (W)at, 8, mpi_byte(), to, CLOCK_TAG, mpi_world()); }

static void receive_time(int64_t *at, int from) {
  char status[64];
  LIBRARY(Recv, (W)at, 8, mpi_byte(), from, CLOCK_TAG, mpi_world(), (W)status);
}

typedef struct { /* what every rank tells all others */
  uint64_t clock, name;
  int32_t records, leader; /* it can; the first rank of the node with this number, in its place */
} Rank;

static Rank few[1024], *ranks = few;
static int nodes;

/* The first rank of every other node asks rank 0 for the time, many times: `worker.clock` says what that tells. */
static void compare_clocks(void) {
  int64_t asked = 0, told = 0;
  for (int node = 1; node < nodes; node++)
    for (int trip = 0, leader = ranks[node].leader; trip < TRIPS; trip++)
      if (world_rank == 0) {
        receive_time(&asked, leader);
        told = now();
        send_time(&told, leader);
      } else if (world_rank == leader) {
        asked = now();
        send_time(&asked, 0);
        receive_time(&told, 0);
        FACT("trip %lld %lld %lld\n", (long long)asked, (long long)told, (long long)now());
      }
}

/* Tell all ranks that this one can record, or cannot; return whether all can. */
static int agree(uint64_t name, int records) {
  Rank own = {clock_name(), name, records, 0};
  int all = 1;
  if (world_size > (int)(sizeof few / sizeof *few)) ranks = calloc(world_size, sizeof *ranks);
  LIBRARY(Allgather, (W)&own, sizeof own, mpi_byte(), (W)ranks, sizeof own, mpi_byte(), mpi_world());
  for (int i = 0, node; i < world_size; i++) {
    all &= ranks[i].records;
    for (node = 0; node < nodes && ranks[ranks[node].leader].clock != ranks[i].clock; node++) {}
    if (node == nodes) ranks[nodes++].leader = i;
    if (i == world_rank) FACT("world %016llx\nnode %d\n", (unsigned long long)ranks[0].name, node);
  }
  return all;
}

static void write_cpus(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set)) return;
  pthread_mutex_lock(&writing);
  add("cpus");
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &set)) add(" %d", i);
  add("\n");
  write_line();
  pthread_mutex_unlock(&writing);
}

static char folder[4096];

/* Take what starts the recorder out of the environment: programs that this one starts are none of its ranks. */
static void hide_from_children(void) {
  const char *asked = getenv("PSCALE_WATCH"), *loaded = getenv("LD_PRELOAD");
  if (asked && strlen(asked) < sizeof folder) strcpy(folder, asked);
  unsetenv("PSCALE_WATCH");
  Dl_info own;
  char *others = loaded && dladdr(&calls, &own) ? malloc(strlen(loaded) + 1) : 0, *end = others;
  if (!others) return; /* then children find that they descend from a rank */
  const char *base = strrchr(own.dli_fname, '/');
  for (const char *name = loaded, *after; *name; name = after + strspn(after, " :")) {
    size_t length = strcspn(name, " :");
    after = name + length;
    int is_own = (length == strlen(own.dli_fname) && !strncmp(name, own.dli_fname, length)) ||
                 (base && length == strlen(base + 1) && !strncmp(name, base + 1, length));
    if (length && !is_own) end += sprintf(end, "%s%.*s", end > others ? ":" : "", (int)length, name);
  }
  if (end > others) setenv("LD_PRELOAD", others, 1);
  else unsetenv("LD_PRELOAD");
  free(others);
}

static int is_mpi(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size, (void)unused;
  const char *name = strrchr(info->dlpi_name, '/');
  return !strncmp(name ? name + 1 : info->dlpi_name, "libmpi", 6);
}

static int launched_rank(void) { /* as the launcher counts; -1: none has started this process, or it is another's rank */
  static const char *const names[] = {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (getenv(names[i])) return atoi(getenv(names[i]));
  return -1;
}

/* Leave a line about this process from which it is told why nothing was recorded, where nothing was. */
static void log_program(const char *what, const char *where, int code) {
  char path[4300], text[400];
  struct stat log;
  if (!where || strlen(where) >= sizeof folder) return;
  snprintf(path, sizeof path, "%s/programs", where);
  int file = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) return;
  int has_mpi = dl_iterate_phdr(is_mpi, 0), bytes = snprintf(text, sizeof text, "%s %d %d %d %.255s\n", what, has_mpi,
                                                             launched_rank(), code, program_invocation_short_name);
  if (!fstat(file, &log) && log.st_size < MOST_LOGGED) write_whole(file, text, bytes, -1);
  close(file);
}

static void end_process(int code, void *unused) {
  (void)unused;
  if (header) atomic_store(&header->gone, 1);
  if (state == IDLE) log_program("ended", getenv("PSCALE_WATCH"), code & 0xff);
}

__attribute__((constructor)) static void begin_process(void) {
  log_program("loaded", getenv("PSCALE_WATCH"), 0);
  if (on_exit(end_process, 0)) {}
}

static void start_recording(int64_t enter) {
  char name[96], host[256] = "", version[8192] = "";
  W parent = 0;
  int error, length = 0;
  LIBRARY(Comm_get_parent, (W)&parent);
  state = OVER;
  if (!*folder || handle_of(parent) != handle_of(mpi->comm_null)) return; /* spawned ranks have the numbers of others */
  world_rank = ask(mpi_world(), "PMPI_Comm_rank");
  world_size = ask(mpi_world(), "PMPI_Comm_size");
  name_process(name, getpid());
  int descends = is_of_recorded(folder);
  error = descends ? 0 : open_files(folder, name);
  if (error) tell("nothing is recorded, the program goes on: cannot make a record in PSCALE_WATCH", error);
  FACT("rank %d %d\n", world_rank, world_size);
  if (!agree(add_to_hash(enter, name, strlen(name)), state == RECORDING)) {
    close_files(folder, name);
    state = OVER;
    return;
  }
  if (pthread_key_create(&of_thread, leave_thread) || pthread_atfork(0, 0, forget_parent)) {}
  gethostname(host, sizeof host - 1);
  LIBRARY(Get_library_version, (W)version, (W)&length);
  version[strcspn(version, "\n")] = 0;
  FACT("host %s\npid %d\nlibrary %s\n", host, (int)getpid(), version);
  write_cpus();
  LIBRARY(Comm_group, mpi_world(), (W)&world_group);
  world_group = handle_of(world_group);
  pthread_mutex_lock(&writing);
  define(mpi_world(), "world", 0);
  define(mpi_self(), "self", 0);
  pthread_mutex_unlock(&writing);
  fortran_in_place = (W)dlsym(RTLD_DEFAULT, "mpi_fortran_in_place_");
  fortran_ignore[0] = (W)dlsym(RTLD_DEFAULT, "mpi_fortran_status_ignore_");
  fortran_ignore[1] = (W)dlsym(RTLD_DEFAULT, "mpi_fortran_statuses_ignore_");
  compare_clocks();
  enter_thread();
  FACT("begin %lld %lld\n", (long long)enter, (long long)now());
}

static int begin(Made *m, Function function) {
  W *w = m->words;
  int64_t enter = now();
  if (state != IDLE) return REAL;
  hide_from_children();
  log_program(m->call->name, folder, 0);
  char joining[4300] = "", name[96];
  name_process(name, getpid());
  if (*folder && launched_rank() >= 0) snprintf(joining, sizeof joining, "%s/joining.%s", folder, name);
  int mark = *joining ? open(joining, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666) : -1;
  if (mark >= 0) close(mark);
  depth++;
  int result = REAL;
  if (state == IDLE) start_recording(enter); /* a function of Fortran may have called that of C */
  depth--;
  if (mark >= 0) unlink(joining); /* no room is needed for this: where nothing can be written, no rank seems to wait */
  return result;
}

static void end_facts(void) {
  struct rusage spent;
  getrusage(RUSAGE_SELF, &spent);
  FACT("end %lld\n", (long long)now());
  FACT("used %lld %lld %ld %ld\n", spent.ru_utime.tv_sec * 1000000LL + spent.ru_utime.tv_usec,
       spent.ru_stime.tv_sec * 1000000LL + spent.ru_stime.tv_usec, spent.ru_maxrss, spent.ru_nivcsw);
  for (int i = 0; i < CALLS && state == RECORDING; i++)
    if (totals[i].calls)
      FACT("total %s %lld %lld %lld\n", calls[i].name + 4, (long long)totals[i].calls, (long long)totals[i].ns,
           (long long)totals[i].bytes);
  compare_clocks(); /* also where recording has stopped: other ranks wait for it */
}

/* --- for programs that name their steps and phases; MPI_Pcontrol does the same --- */

static void mark(int level) {
  int64_t at = atomic_load(&state) == RECORDING ? take(1) : 0, time = now();
  if (!at) return;
  *at_place(at) = (Note){.enter = time, .leave = time, .peer = level, .tag = NOBODY, .call = ID_Pcontrol};
  release(at);
  forget_last_test();
}

void pscale_watch_mark(int level) { mark(level); }

void pscale_watch_name(int level, const char *name) { FACT("phase %d %s\n", level, name); }

/* --- the functions that programs call --- */

static int is_recorded_in_c(const Call *c) {
  find_library();
  return mpi->fortran_calls_c && c->kind != BEGIN && c->kind != END;
}

#define WORDS W a, W b, W c, W d, W e, W f, W g, W h, W i, W j, W k, W l, W m, W n
#define LIST {a, b, c, d, e, f, g, h, i, j, k, l, m, n}
#define RECORDED(id, function, is_fortran, is_large)                                      \
  {                                                                                       \
    static _Atomic(Function) known;                                                       \
    Function real = ONCE_FOUND(known, function);                                          \
    W words[] = LIST;                                                                     \
    Made made = {.call = &calls[id], .words = words, .fortran = is_fortran, .large = is_large}; \
    return record(&made, real);                                                           \
  }
/* Fortran functions of MPICH call those of C, where they are recorded, but for the first and last of `mpi_f08`; those
   of Open MPI do not. They are handed all pointers untouched, and the lengths of texts, which follow them. */
#define FROM_FORTRAN(id, symbol)                                             \
  int symbol(WORDS) {                                                        \
    static _Atomic(Function) known;                                          \
    Function real = ONCE_FOUND(known, next_function(#symbol));               \
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
