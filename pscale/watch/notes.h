/* The record of a process: notes of its calls in a file that is mapped window by window, and facts as text.

   The recorder must not end the program: blocks of a file are reserved before they are written, and the signals that a
   write can raise are kept from the program. Where a limit is reached or something fails, recording stops. */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* of Linux 5.14; older ones refuse it, which does no harm */
#endif
#ifndef MOST_NOTES
#define MOST_NOTES (1 << 26)
#endif
#ifndef MOST_COMMS
#define MOST_COMMS (1 << 20) /* that a process ever makes */
#endif

enum { MOST_LOGGED = 1 << 16 };                           /* bytes about programs */
enum { WINDOW = 1 << 13 };                                /* notes: whole pages of any size */
enum { FULL_NOTES = -1, FULL_COMMS = -2 };                /* why recording stopped, beside the numbers of errno */
enum { PART = 1, FRUITLESS = 2, CANCELLED = 4, LARGE = 8, THREAD_SHIFT = 4, MOST_THREADS = 4095 };
enum { NOBODY = -1, ANYBODY = -2 };                       /* peers */
enum { IDLE, RECORDING, STOPPED, OVER };

typedef struct {
  int64_t enter, leave; /* ns; `leave` is 0 until the call has returned */
  int64_t bytes;        /* given by this rank; of a fruitless test: ns inside it, and those after it */
  int64_t request;
  int32_t comm, peer, tag;
  uint16_t call, flags; /* part of the note `bytes`; found nothing; came to nothing; has large counts; the thread */
} Note;

typedef struct { /* in the place of the first note */
  _Atomic int64_t used, stopped;
  _Atomic int64_t reason, unused;
  _Atomic int32_t threads, gone; /* how many threads that have called MPI are alive; the process has ended */
} Header;

static _Atomic int state, threads_seen;
static Header *header;
static _Atomic(Note *) windows[MOST_NOTES / WINDOW];
static _Atomic int done[MOST_NOTES / WINDOW]; /* notes of a window that nobody writes any more */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER, writing = PTHREAD_MUTEX_INITIALIZER;
static int facts = -1, notes = -1, world_rank, world_size;
static char *line; /* the fact that is being written; under `writing` */
static size_t line_bytes, line_room;

static int64_t now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000000LL + at.tv_nsec;
}

/* --- signals of our own writes --- */

typedef struct {
  sigset_t before, waiting;
  int error;
} Quiet;

static const int of_writes[] = {SIGXFSZ, SIGPIPE};

static void quieten(Quiet *quiet) {
  sigset_t ours;
  quiet->error = errno;
  sigemptyset(&ours);
  for (int i = 0; i < 2; i++) sigaddset(&ours, of_writes[i]);
  sigpending(&quiet->waiting);
  pthread_sigmask(SIG_BLOCK, &ours, &quiet->before);
}

static void unquieten(Quiet *quiet) {
  const struct timespec at_once = {0, 0};
  for (int i = 0; i < 2; i++) {
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, of_writes[i]);
    if (!sigismember(&quiet->waiting, of_writes[i]))
      while (sigtimedwait(&ours, 0, &at_once) > 0) {}
  }
  pthread_sigmask(SIG_SETMASK, &quiet->before, 0);
  errno = quiet->error;
}

static int write_whole(int file, const char *text, size_t bytes, off_t from) { /* -1: behind all; returns errno */
  Quiet quiet;
  int error = 0;
  quieten(&quiet);
  while (bytes && !error) {
    ssize_t written = from < 0 ? write(file, text, bytes) : pwrite(file, text, bytes, from);
    if (written < 0 && errno != EINTR) error = errno;
    if (written > 0) text += written, bytes -= written, from += from < 0 ? 0 : written;
  }
  unquieten(&quiet);
  return error;
}

/* --- the end of recording --- */

static void tell(const char *what, int error) {
  char text[512];
  int bytes = snprintf(text, sizeof text, "pscale watch: rank %d: %s%s%.100s\n", world_rank, what, error > 0 ? ": " : "",
                       error > 0 ? strerror(error) : "");
  write_whole(2, text, bytes < (int)sizeof text ? bytes : (int)sizeof text - 1, -1);
}

/* Record nothing more; the program goes on. Until when the record goes is in its header, whose place is reserved. */
static void stop(int reason, const char *what) {
  int recording = RECORDING;
  if (!atomic_compare_exchange_strong(&state, &recording, STOPPED)) return;
  atomic_store(&header->reason, reason);
  atomic_store(&header->stopped, now());
  atomic_fetch_add(&header->used, MOST_NOTES); /* who is about to take a note gets none */
  tell(what, reason);
}

/* --- notes --- */

/* Written zeros have blocks on every kind of file system, or an error says why not, and are mapped in large pages:
   after posix_fallocate, where it is not emulated, the first write to each page costs three times as much. */
static int map_window(int64_t number) { /* returns a number of errno */
  static char zeros[WINDOW * sizeof(Note)];
  const size_t bytes = sizeof zeros;
  off_t from = number * (off_t)bytes;
  int error = write_whole(notes, zeros, bytes, from);
  if (error) return error;
  void *map = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, notes, from);
  if (map == MAP_FAILED) return errno;
  /* All pages at once: one by one they cost more than the notes. What could not be written is an error here. */
  if (madvise(map, bytes, MADV_POPULATE_WRITE) && errno != EINVAL) {
    error = errno;
    munmap(map, bytes);
    return error;
  }
  atomic_store_explicit(&windows[number], map, memory_order_release);
  return 0;
}

static int open_window(int64_t number) {
  int error = 0;
  pthread_mutex_lock(&opening);
  if (!atomic_load(&windows[number])) error = map_window(number);
  pthread_mutex_unlock(&opening);
  if (error) stop(error, "its calls are recorded no further, the program goes on: cannot reserve room in the record");
  return !error;
}

static Note *at_place(int64_t place) {
  return atomic_load_explicit(&windows[place / WINDOW], memory_order_relaxed) + place % WINDOW;
}

/* Return the first of `count` places for notes that follow each other; 0: recording has stopped. */
static int64_t take(int64_t count) {
  int64_t first = atomic_fetch_add_explicit(&header->used, count, memory_order_relaxed), last = first + count - 1;
  if (last >= MOST_NOTES) {
    stop(FULL_NOTES, "its calls are recorded no further, the program goes on: the record has as many as it can");
    return 0;
  }
  for (int64_t number = first / WINDOW; number <= last / WINDOW; number++)
    if (!atomic_load_explicit(&windows[number], memory_order_acquire) && !open_window(number)) return 0;
  return first;
}

/* Nobody writes this note any more. A window of such notes leaves the memory; the first one, of the header, stays. */
static void release(int64_t place) {
  int64_t number = place / WINDOW;
  int before;
  if (atomic_load_explicit(&threads_seen, memory_order_relaxed) == 1) { /* a count that is lost only keeps a window */
    before = atomic_load_explicit(&done[number], memory_order_relaxed);
    atomic_store_explicit(&done[number], before + 1, memory_order_relaxed);
  } else {
    before = atomic_fetch_add_explicit(&done[number], 1, memory_order_acq_rel);
  }
  if (before + 1 == WINDOW)
    munmap(atomic_load(&windows[number]), WINDOW * sizeof(Note));
}

/* --- facts: one or more `add`, then `write_line`, all under `writing` --- */

static void add(const char *format, ...) {
  if (facts < 0) return;
  for (int round = 0; round < 2; round++) {
    va_list values;
    va_start(values, format);
    int bytes = vsnprintf(line ? line + line_bytes : 0, line ? line_room - line_bytes : 0, format, values);
    va_end(values);
    if (line_bytes + bytes < line_room) {
      line_bytes += bytes;
      return;
    }
    size_t room = 2 * (line_bytes + bytes + 1);
    char *larger = realloc(line, room);
    if (!larger) break;
    line = larger;
    line_room = room;
  }
  facts = -1;
  stop(ENOMEM, "its calls are recorded no further, the program goes on: cannot write a fact");
}

static void write_line(void) {
  int error = facts < 0 ? 0 : write_whole(facts, line, line_bytes, -1);
  line_bytes = 0;
  if (!error) return;
  facts = -1; /* the line may be torn: nothing can follow it */
  stop(error, "its calls are recorded no further, the program goes on: cannot write a fact");
}

#define FACT(...)                    \
  do {                               \
    pthread_mutex_lock(&writing);    \
    add(__VA_ARGS__);                \
    write_line();                    \
    pthread_mutex_unlock(&writing);  \
  } while (0)

/* --- files --- */

static uint64_t add_to_hash(uint64_t hash, const char *text, ssize_t length) {
  for (ssize_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
  return hash;
}

static ssize_t read_text(const char *path, char *text, size_t room) { /* returns its length; 0: nothing can be read */
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? 0 : read(file, text, room - 1);
  if (file >= 0) close(file);
  text[length < 0 ? 0 : length] = 0;
  return length < 0 ? 0 : length;
}

static uint64_t clock_name(void) { /* ranks with the same read the same clock: of one boot, in one namespace */
  char text[256];
  uint64_t hash = add_to_hash(14695981039346656037u, text, read_text("/proc/sys/kernel/random/boot_id", text, sizeof text));
  return add_to_hash(hash, text, readlink("/proc/self/ns/time", text, sizeof text));
}

/* Write the name of a process, which no other has on any node; return its parent, 0 if that is not known. */
static long name_process(char name[96], long process) {
  char path[64], text[2048], *after;
  uint64_t hash = add_to_hash(clock_name(), text, readlink("/proc/self/ns/pid", text, sizeof text));
  long parent = 0;
  unsigned long long begun = 0;
  snprintf(path, sizeof path, "/proc/%ld/stat", process);
  read_text(path, text, sizeof text);
  if ((after = strrchr(text, ')'))) /* behind the name of its program, which may have anything in it */
    sscanf(after + 1, " %*c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &parent, &begun);
  snprintf(name, 96, "%016llx.%ld.%llu", (unsigned long long)hash, process, begun);
  return parent;
}

/* Tell whether a process from which this one descends is recorded: a program that a rank has started is not. */
static int is_of_recorded(const char *folder) {
  char name[96], path[4300];
  long process = getpid();
  for (int generation = 0; process > 1 && generation < 64; generation++) {
    long parent = name_process(name, process);
    snprintf(path, sizeof path, "%s/facts.%s", folder, name);
    if (!access(path, F_OK)) return 1;
    process = parent;
  }
  return 0;
}

static void close_files(const char *folder, const char *name) {
  char path[4300];
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s.%s", folder, i ? "notes" : "facts", name);
    int *file = i ? &notes : &facts;
    if (*file >= 0) unlink(path), close(*file);
    *file = -1;
  }
}

static int open_files(const char *folder, const char *name) { /* returns a number of errno */
  char path[4300];
  int error = 0, how = O_CREAT | O_EXCL | O_RDWR | O_APPEND | O_CLOEXEC;
  snprintf(path, sizeof path, "%s/facts.%s", folder, name);
  if ((facts = open(path, how, 0666)) < 0) return errno;
  snprintf(path, sizeof path, "%s/notes.%s", folder, name);
  if ((notes = open(path, how & ~O_APPEND, 0666)) < 0) error = errno;
  if (!error) error = map_window(0);
  if (error) {
    close_files(folder, name);
    return error;
  }
  header = (Header *)atomic_load(&windows[0]);
  atomic_store(&header->used, 1);
  atomic_store(&state, RECORDING);
  return 0;
}

static void close_notes(void) { /* nothing can follow MPI_Finalize */
  int recording = RECORDING;
  if (!atomic_compare_exchange_strong(&state, &recording, OVER)) return;
  int64_t used = atomic_fetch_add(&header->used, MOST_NOTES);
  if (ftruncate(notes, (used < MOST_NOTES ? used : MOST_NOTES) * sizeof(Note))) return;
}

static void forget_parent(void) { /* the child of a fork shares memory with a process that is recorded */
  state = OVER;
  header = 0;
  facts = -1;
}
