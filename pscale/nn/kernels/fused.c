/* The element-wise work of a step in one pass over memory, on all threads of a rank.

   reference.py is the same in NumPy, and says what is computed; tests hold the two to each other. Loops over rows
   are shared between OpenMP threads, the same threads that an OpenMP BLAS uses. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* One copy of a loop for each generation of vector units, chosen when the library is loaded: it may have been
   built on a login node unlike the compute nodes. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), noinline))
#else
#define VECTORISED __attribute__((noinline))
#endif

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 }; /* as in cblas.h */

/* Changes with the arguments of any function here: a library that was built from other sources is not called. */
enum { INTERFACE = 5 };

int interface(void) { return INTERFACE; }

static int thread_count = 1;

void set_threads(int count) { thread_count = count; }

/* A matrix product of the BLAS that NumPy uses, whose integers may be of 32 or 64 bits. */
static struct {
    void *single, *twice;
    int wide;
} blas;

void set_blas(void *sgemm, void *dgemm, int wide) {
    blas.single = sgemm;
    blas.twice = dgemm;
    blas.wide = wide;
}

/* The part of `total` rows that thread `thread` of `threads` works on. */
static inline int64_t first_row(int64_t total, int thread, int threads) { return total * thread / threads; }

#ifdef _OPENMP
#define PARALLEL _Pragma("omp parallel num_threads(thread_count) if (thread_count > 1)")
#define THREAD omp_get_thread_num()
#define THREADS omp_get_num_threads()
#else
#define PARALLEL
#define THREAD 0
#define THREADS 1
#endif

/* A view of numbers (sequence, head, row, column) with columns side by side; the other strides count numbers. */
struct view {
    void *data;
    int64_t sequence, head, row;
};

/* Scores that are computed at once: of `rows` queries from `row` and `keys` keys from `key`, of which the first query
   sees `seen` and every further one one more, if there are more. Kept scores begin at `offset`. See piece.py. */
struct tile {
    int64_t row, rows, key, keys, seen, offset, first_of_queries, last_of_queries, last_of_keys;
};

/* What meets. The first piece of a query writes, the next ones add. */
struct piece {
    int64_t sequences, heads, width, first, tile_count;
    const struct tile *tiles;
    double scale;
};

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(function) JOIN(function, SUFFIX)

#define REAL float
#define INTEGER uint32_t
#define SUFFIX float32
#define EXP_TERMS 7       /* of the series: the error is below a rounding */
#define EXP_LOWEST -87.0f /* smaller results are not normal numbers: taken as zero */
#define EXP_HIGHEST 88.0f
#define MANTISSA_BITS 23
#define EXPONENT_BIAS 127
#define ROUNDER 12582912.0f /* 1.5 2^23: adding it rounds to an integer, which its last bits then hold */
#define GEMM blas.single
#include "fused_passes.h"
#include "fused_attention.h"
#include "fused_updates.h"
#undef REAL
#undef INTEGER
#undef SUFFIX
#undef EXP_TERMS
#undef EXP_LOWEST
#undef EXP_HIGHEST
#undef MANTISSA_BITS
#undef EXPONENT_BIAS
#undef ROUNDER
#undef GEMM

#define REAL double
#define INTEGER uint64_t
#define SUFFIX float64
#define EXP_TERMS 13
#define EXP_LOWEST -708.0
#define EXP_HIGHEST 709.0
#define MANTISSA_BITS 52
#define EXPONENT_BIAS 1023
#define ROUNDER 6755399441055744.0 /* 1.5 2^52 */
#define GEMM blas.twice
#include "fused_passes.h"
#include "fused_attention.h"
#include "fused_updates.h"
