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
#define X86_UNITS 1
#else
#define VECTORISED __attribute__((noinline))
#define X86_UNITS 0
#endif

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define WHOLE(a, b) (((a) + (b) - 1) / (b) * (b)) /* at least a */

/* Changes with the arguments of any function here: a library that was built from other sources is not called. */
enum { INTERFACE = 14 };

int interface(void) { return INTERFACE; }

static int thread_count = 1;

void set_threads(int count) { thread_count = count; }

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

/* fp16 as float32, and back to the nearest, ties to even: by the bits, since a processor may lack units for it. */
VECTORISED void widen_fp16(const uint16_t *x, float *y, int64_t count) {
    for (int64_t at = 0; at < count; at++) {
        uint32_t rest = x[at] & 0x7fff, sign = (uint32_t)(x[at] & 0x8000) << 16, bits, small_bits;
        float small = (float)(int32_t)rest * 0x1p-24f; /* of a subnormal number */
        memcpy(&small_bits, &small, sizeof small);
        bits = (rest << 13) + (rest >= 0x7c00 ? 0x70000000 : 0x38000000); /* infinite ones keep their exponent */
        bits = (rest < 0x400 ? small_bits : bits) | sign;
        memcpy(&y[at], &bits, sizeof bits);
    }
}

VECTORISED void narrow_fp16(const float *x, uint16_t *y, int64_t count) {
    for (int64_t at = 0; at < count; at++) {
        uint32_t bits, small_bits, result;
        memcpy(&bits, &x[at], sizeof bits);
        uint32_t rest = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
        float small = fabsf(x[at]) + 0.5f; /* rounds to the last place of subnormal numbers */
        memcpy(&small_bits, &small, sizeof small);
        result = (rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13;
        result = rest < 0x38800000 ? small_bits - 0x3f000000 : result;
        result = rest >= 0x47800000 ? (rest > 0x7f800000 ? 0x7e00 : 0x7c00) : result;
        y[at] = (uint16_t)(result | sign);
    }
}

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

/* Whether rows of `packed` are those of `tile`. */
static inline int holds(const struct tile *packed, const struct tile *tile) {
    return packed && packed->row == tile->row && packed->rows >= tile->rows;
}

/* What meets. The first piece of a query writes, the next ones add; so do gradients of keys with several queries. */
struct piece {
    int64_t sequences, heads, queries, keys, width, first, first_of_keys, tile_count;
    const struct tile *tiles;
    double scale;
    const int64_t *drop_sequences, *drop_heads, *drop_queries, *drop_keys; /* none: nothing is dropped */
    int64_t drop_site, drop_seed, drop_step;
    double drop_rate;
};

enum { HEAD_BITS = 16 }; /* as in attention_block.py */

#define GELU_LINEAR 0.79788456080286535588 /* sqrt(2 / pi) */
#define GELU_CUBIC (0.044715 * GELU_LINEAR)

enum { FORWARD, BACKWARD };

enum {
    BLOCK_ROWS = 6, /* of a product that is kept in registers: with four vectors of 32, or two of 16, of columns */
    DEPTH = 128,    /* terms of its sums, before the next rows' turn: their share of a panel fits in the first cache */
    SPAN = 256,     /* keys whose scores backward has at once */
};

/* The generation of vector units that products use, at most; none that is not here. */
static int newest_unit = 4;

void set_newest_unit(int generation) { newest_unit = generation; }

/* What random numbers are for, beside the first two parts of a counter; see philox.py. */
struct philox {
    uint32_t sequence, site, seed, step;
    uint64_t threshold;
    double scale;
};

enum { PHILOX_GROUPS = 64 }; /* of four words, drawn at once */

static inline uint64_t philox_threshold(double rate) { return (uint64_t)nearbyint(rate * 4294967296.0); }

static inline __attribute__((always_inline)) void philox_words(int64_t group, int64_t groups, uint32_t row,
                                                               struct philox of, uint32_t *words) {
#pragma omp simd
    for (int64_t n = 0; n < groups; n++) {
        uint32_t a = (uint32_t)(group + n), b = row, c = of.sequence, d = of.site, left = of.seed, right = of.step;
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            uint64_t x = (uint64_t)0xD2511F53 * a, y = (uint64_t)0xCD9E8D57 * c;
            a = (uint32_t)(y >> 32) ^ b ^ left;
            b = (uint32_t)y;
            c = (uint32_t)(x >> 32) ^ d ^ right;
            d = (uint32_t)x;
            left += 0x9E3779B9;
            right += 0xBB67AE85;
        }
        words[4 * n] = a;
        words[4 * n + 1] = b;
        words[4 * n + 2] = c;
        words[4 * n + 3] = d;
    }
}

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(function) JOIN(function, SUFFIX)

#define REAL float
#define INTEGER uint32_t
#define SUFFIX float32
#define EXP_TERMS 7       /* of the series: the error is below a rounding */
#define EXP_LOWEST -88.0f /* of which the power of two is zero: so are all smaller results */
#define EXP_HIGHEST 88.0f
#define MANTISSA_BITS 23
#define EXPONENT_BIAS 127
#define ROUNDER 12582912.0f /* 1.5 2^23: adding it rounds to an integer, which its last bits then hold */
#include "fused_passes.h"
#include "fused_products.h"
#include "fused_softmax.h"
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

#define REAL double
#define INTEGER uint64_t
#define SUFFIX float64
#define EXP_TERMS 13
#define EXP_LOWEST -709.0
#define EXP_HIGHEST 709.0
#define MANTISSA_BITS 52
#define EXPONENT_BIAS 1023
#define ROUNDER 6755399441055744.0 /* 1.5 2^52 */
#include "fused_passes.h"
#include "fused_products.h"
#include "fused_softmax.h"
#include "fused_attention.h"
#include "fused_updates.h"
