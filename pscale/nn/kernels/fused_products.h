/* Products of small matrices, for one type of number: included by fused.c once a type.

   A BLAS copies both operands in every call, which takes as long as half of the product where one of them has the width
   of a head. Here the right operand is packed once for many calls, and the left one is read where it lies. */

#define LINE ((int64_t)(64 / sizeof(REAL)))   /* of cache: rows are packed to whole ones */
#define PANEL ((int64_t)(256 / sizeof(REAL))) /* columns of a right operand that lie side by side */

struct NAME(left) {
    const REAL *data;
    int64_t row, column; /* from one to the next, in numbers */
    int64_t first, stop; /* row r has zeros before column first + r and from stop + r on, left out */
};

struct NAME(right) { /* read up to whole lines */
    const REAL *data;
    int64_t row, panel;
};

struct NAME(result) { /* written up to whole lines */
    REAL *data;
    int64_t row;
};

/* Rows of a head lie far apart, where no processor looks ahead by itself. */
#define LOOK_AHEAD(x, stride, width) \
    for (int64_t i_ = 0; i_ < (width); i_ += LINE) __builtin_prefetch((x) + 16 * (stride) + i_)

#define OF_UNIT(function) JOIN(NAME(function), UNIT)
#define VECTOR OF_UNIT(vector)

#if X86_UNITS
#define UNIT v4
#define UNIT_TARGET __attribute__((target("arch=x86-64-v4")))
#define UNIT_BYTES 64
#define UNIT_VECTORS 4
#include "fused_multiply.h"
#undef UNIT
#undef UNIT_TARGET
#undef UNIT_BYTES
#undef UNIT_VECTORS

#define UNIT v3
#define UNIT_TARGET __attribute__((target("arch=x86-64-v3")))
#define UNIT_BYTES 32
#define UNIT_VECTORS 2
#include "fused_multiply.h"
#undef UNIT
#undef UNIT_TARGET
#undef UNIT_BYTES
#undef UNIT_VECTORS
#endif

#define UNIT any
#define UNIT_TARGET
#define UNIT_BYTES 16
#define UNIT_VECTORS 2
#include "fused_multiply.h"
#undef UNIT
#undef UNIT_TARGET
#undef UNIT_BYTES
#undef UNIT_VECTORS

#if X86_UNITS
#define BY_UNIT(function, ...)                                                                            \
    (newest_unit >= 4 && __builtin_cpu_supports("x86-64-v4")   ? JOIN(NAME(function), v4)(__VA_ARGS__)    \
     : newest_unit >= 3 && __builtin_cpu_supports("x86-64-v3") ? JOIN(NAME(function), v3)(__VA_ARGS__)    \
                                                               : JOIN(NAME(function), any)(__VA_ARGS__))
#else
#define BY_UNIT(function, ...) JOIN(NAME(function), any)(__VA_ARGS__)
#endif

/* c = a b, or c += a b, of m rows, n columns and sums of `depth` terms. */
static void NAME(multiply)(int64_t m, int64_t n, int64_t depth, struct NAME(left) a, struct NAME(right) b,
                           struct NAME(result) c, int add) {
    BY_UNIT(multiply, m, n, depth, a, b, c, add);
}

static void NAME(pack_columns)(const REAL *x, int64_t stride, int64_t rows, int64_t width, REAL *packed) {
    BY_UNIT(pack_columns, x, stride, rows, width, packed);
}

/* Rows times a factor, `pitch` numbers apart: as a left operand, or a right one. */
VECTORISED static void NAME(pack_rows)(const REAL *x, int64_t stride, int64_t rows, int64_t width, REAL factor,
                                       REAL *packed, int64_t pitch) {
    for (int64_t row = 0; row < rows; row++, x += stride, packed += pitch) {
        LOOK_AHEAD(x, stride, width);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) packed[i] = factor * x[i];
        for (int64_t i = width; i < pitch; i++) packed[i] = 0;
    }
}

/* Packed rows times a factor to where they belong, or added to what is there. */
VECTORISED static void NAME(unpack_rows)(const REAL *packed, int64_t pitch, int64_t rows, int64_t width, REAL factor,
                                         REAL *x, int64_t stride, int add) {
    for (int64_t row = 0; row < rows; row++, x += stride, packed += pitch) {
        LOOK_AHEAD(x, stride, width);
        if (add)
#pragma omp simd
            for (int64_t i = 0; i < width; i++) x[i] += factor * packed[i];
        else
#pragma omp simd
            for (int64_t i = 0; i < width; i++) x[i] = factor * packed[i];
    }
}
