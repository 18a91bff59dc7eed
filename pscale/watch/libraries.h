/* The MPI library of this process: where its functions are, and the numbers in which libraries differ. */

typedef intptr_t W; /* an argument: a number, a handle, a pointer */
typedef int (*Function)(W, W, W, W, W, W, W, W, W, W, W, W, W, W);

typedef struct {
  int handle_bytes, status_bytes, status_source, status_tag;
  int any_source, root, cart, graph, dist_graph, undefined, err_truncate;
  int fortran_calls_c;
  W in_place, status_ignore, comm_null, type_null, request_null;
  W world, self, byte; /* 0: the address of a symbol */
} Library;

static const Library mpich = {4,  20, 8,  12, -2, -3,         2,          1,          3,          -32766,
                              14, 1,  -1, 1,  0x04000000, 0x0c000000, 0x2c000000, 0x44000000, 0x44000001, 0x4c00010d};
static const Library open_mpi = {8, 24, 0, 4, -1, -4, 1, 2, 3, -32766, 15, 0, 1, 0, 0, 0, 0, 0, 0, 0};
static const Library standard_abi = {8,  32, 0, 4, -1,    -4,    211,   212,   213,  -32766,
                                     15, 1,  1, 0, 0x100, 0x200, 0x180, 0x101, 0x102, 0x247};

static Library found_library;
static const Library *mpi = &found_library;
static void *library;

/* mpi4py loads the library for itself alone: it is found among all that are loaded. */
static int look(struct dl_phdr_info *info, size_t size, void *found) {
  (void)size;
  const char *name = strrchr(info->dlpi_name, '/');
  if (strncmp(name ? name + 1 : info->dlpi_name, "libmpi", 6)) return 0;
  void *candidate = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  Dl_info where;
  void *begin = candidate ? dlsym(candidate, "PMPI_Init_thread") : 0;
  if (!begin || !dladdr(begin, &where)) return 0;
  *(const char **)found = where.dli_fname;
  library = candidate;
  return 1;
}

/* A variable that a program names is where the program has it, and the library's otherwise. */
static W variable(const char *name) {
  void *at = dlsym(RTLD_DEFAULT, name);
  return (W)(at ? at : dlsym(library, name));
}

static void find_library(void) {
  if (library) return;
  const char *path = "";
  dl_iterate_phdr(look, &path);
  if (!library) {
    fprintf(stderr, "pscale watch: this process has called MPI, but no MPI library is loaded as libmpi*.so\n");
    abort();
  }
  W world = variable("ompi_mpi_comm_world");
  found_library = world ? open_mpi : strstr(path, "libmpi_abi") ? standard_abi : mpich;
  if (world) {
    found_library.world = world;
    found_library.self = variable("ompi_mpi_comm_self");
    found_library.comm_null = variable("ompi_mpi_comm_null");
    found_library.type_null = variable("ompi_mpi_datatype_null");
    found_library.request_null = variable("ompi_request_null");
    found_library.byte = variable("ompi_mpi_byte");
  }
}

static W mpi_world(void) { return mpi->world; }
static W mpi_self(void) { return mpi->self; }
static W mpi_byte(void) { return mpi->byte; }

static Function next_function(const char *name) {
  return (Function)dlsym(RTLD_NEXT, name);
}

static Function library_function(const char *name) {
  find_library();
  Function found = (Function)dlsym(library, name);
  if (!found) {
    fprintf(stderr, "pscale watch: the MPI library of this program has no %s\n", name);
    abort();
  }
  return found;
}

/* What is looked up once; threads that do so at the same time find the same. */
static Function remember(_Atomic(Function) *known, Function found) {
  atomic_store_explicit(known, found, memory_order_relaxed);
  return found;
}
#define LOADED(known) atomic_load_explicit(&known, memory_order_relaxed)
#define ONCE_FOUND(known, look_up) (LOADED(known) ? LOADED(known) : remember(&known, look_up))

/* Call a function with fewer words than it may have, and one of the library that is looked up once. */
#define CALLED(function, ...) FOURTEEN(function, __VA_ARGS__, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
#define FOURTEEN(function, a, b, c, d, e, f, g, h, i, j, k, l, m, n, ...) function(a, b, c, d, e, f, g, h, i, j, k, l, m, n)
#define LIBRARY(name, ...)                                     \
  do {                                                         \
    static _Atomic(Function) known;                            \
    Function found = ONCE_FOUND(known, library_function("PMPI_" #name)); \
    CALLED(found, __VA_ARGS__);                                \
  } while (0)

static W handle_of(W word) { return mpi->handle_bytes == 4 ? (W)(uint32_t)word : word; }

#define OF_FORTRAN(of_fortran, name)                                            \
  static W of_fortran(int number) {                                             \
    static _Atomic(Function) known;                                             \
    Function convert = ONCE_FOUND(known, library_function(name));               \
    return handle_of(((W(*)(int))(void *)convert)(number));                     \
  }
OF_FORTRAN(comm_of_fortran, "PMPI_Comm_f2c")
OF_FORTRAN(type_of_fortran, "PMPI_Type_f2c")
OF_FORTRAN(request_of_fortran, "PMPI_Request_f2c")
