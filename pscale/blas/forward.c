/* The 22 CBLAS routines that NumPy calls, forwarded to a library that is chosen when the process starts.

   Loaded with RTLD_GLOBAL before NumPy, these definitions come before those of the library that NumPy was linked
   to. NumPy spells them in four ways, by how it was built: with the prefix scipy_ or without, with integers of 64
   bits (suffix 64_) or of 32. The library that computes has integers of 32 or of 64 bits, too: a number that it
   cannot hold ends the process, since a routine of BLAS has no other way to refuse. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int wide;  /* whether integers of the library have 64 bits */
static int called;

#define TYPES(F) F(s, float, float) F(d, double, double) F(c, void, const void *) F(z, void, const void *)
#define POINTERS(X, NUMBER, SCALAR) static void *X##gemm, *X##gemv, *X##syrk, *X##axpy;
TYPES(POINTERS)
static void *sdot, *ddot, *cdotu_sub, *zdotu_sub, *cdotc_sub, *zdotc_sub;

static const struct {
    const char *name;
    void **address;
} routines[] = {
#define NAMED(NAME) {#NAME, &NAME},
#define NAMED_OF(X, NUMBER, SCALAR) NAMED(X##gemm) NAMED(X##gemv) NAMED(X##syrk) NAMED(X##axpy)
    TYPES(NAMED_OF) NAMED(sdot) NAMED(ddot) NAMED(cdotu_sub) NAMED(zdotu_sub) NAMED(cdotc_sub) NAMED(zdotc_sub)
};

/* Forward to `library`, a handle of dlopen that calls the routine x `prefix`cblas_x`suffix`; return the name of the
   first routine that it lacks, or NULL. */
const char *pscale_forward_to(void *library, const char *prefix, const char *suffix, int has_wide) {
    for (size_t i = 0; i < sizeof routines / sizeof *routines; i++) {
        char name[64];
        snprintf(name, sizeof name, "%scblas_%s%s", prefix, routines[i].name, suffix);
        if (!(*routines[i].address = dlsym(library, name))) return routines[i].name;
    }
    wide = has_wide;
    return NULL;
}

/* Tell whether anything has been forwarded. */
int pscale_has_forwarded(void) { return called; }

static int fits(int64_t value) {
    if (value == (int)value) return 1;
    fprintf(stderr, "pscale: a dimension of %lld is more than the 32-bit integers of this BLAS hold: choose another launch.blas\n",
            (long long)value);
    abort();
}

#define GEMM(I, NUMBER, SCALAR) (int order, int ta, int tb, I m, I n, I k, SCALAR alpha, const NUMBER *a, I lda, \
                                 const NUMBER *b, I ldb, SCALAR beta, NUMBER *c, I ldc)
#define GEMV(I, NUMBER, SCALAR) (int order, int ta, I m, I n, SCALAR alpha, const NUMBER *a, I lda, \
                                 const NUMBER *x, I incx, SCALAR beta, NUMBER *y, I incy)
#define SYRK(I, NUMBER, SCALAR) (int order, int uplo, int ta, I n, I k, SCALAR alpha, const NUMBER *a, I lda, \
                                 SCALAR beta, NUMBER *c, I ldc)
#define AXPY(I, NUMBER, SCALAR) (I n, SCALAR alpha, const NUMBER *x, I incx, NUMBER *y, I incy)
#define DOT(I, NUMBER, SCALAR) (I n, const NUMBER *x, I incx, const NUMBER *y, I incy)
#define DOT_SUB(I, NUMBER, SCALAR) (I n, const void *x, I incx, const void *y, I incy, void *result)

#define DEFINE(NAME, I, TO, RETURN, FORM, NUMBER, SCALAR, SIZES, ...)               \
    RETURN NAME FORM(I, NUMBER, SCALAR) {                                           \
        if (!called) called = 1;                                                    \
        if (wide) return ((RETURN(*) FORM(int64_t, NUMBER, SCALAR))TO)(__VA_ARGS__); \
        (void)(SIZES);                                                              \
        return ((RETURN(*) FORM(int, NUMBER, SCALAR))TO)(__VA_ARGS__);              \
    }

#define SPELT(PRE, POST, I, X, NUMBER, SCALAR)                                                                  \
    DEFINE(PRE##cblas_##X##gemm##POST, I, X##gemm, void, GEMM, NUMBER, SCALAR,                                  \
           fits(m) && fits(n) && fits(k) && fits(lda) && fits(ldb) && fits(ldc), order, ta, tb, m, n, k, alpha, \
           a, lda, b, ldb, beta, c, ldc)                                                                        \
    DEFINE(PRE##cblas_##X##gemv##POST, I, X##gemv, void, GEMV, NUMBER, SCALAR,                                  \
           fits(m) && fits(n) && fits(lda) && fits(incx) && fits(incy), order, ta, m, n, alpha, a, lda, x,      \
           incx, beta, y, incy)                                                                                 \
    DEFINE(PRE##cblas_##X##syrk##POST, I, X##syrk, void, SYRK, NUMBER, SCALAR,                                  \
           fits(n) && fits(k) && fits(lda) && fits(ldc), order, uplo, ta, n, k, alpha, a, lda, beta, c, ldc)    \
    DEFINE(PRE##cblas_##X##axpy##POST, I, X##axpy, void, AXPY, NUMBER, SCALAR,                                  \
           fits(n) && fits(incx) && fits(incy), n, alpha, x, incx, y, incy)
#define SPELT_DOT(PRE, POST, I, X, NUMBER)                                                                      \
    DEFINE(PRE##cblas_##X##dot##POST, I, X##dot, NUMBER, DOT, NUMBER, NUMBER,                                   \
           fits(n) && fits(incx) && fits(incy), n, x, incx, y, incy)
#define SPELT_DOT_SUB(PRE, POST, I, X)                                                                          \
    DEFINE(PRE##cblas_##X##_sub##POST, I, X##_sub, void, DOT_SUB, void, void,                                   \
           fits(n) && fits(incx) && fits(incy), n, x, incx, y, incy, result)

#define SPELLING(PRE, POST, I)                                                                       \
    SPELT(PRE, POST, I, s, float, float)                                                             \
    SPELT(PRE, POST, I, d, double, double)                                                           \
    SPELT(PRE, POST, I, c, void, const void *)                                                       \
    SPELT(PRE, POST, I, z, void, const void *)                                                       \
    SPELT_DOT(PRE, POST, I, s, float)                                                                \
    SPELT_DOT(PRE, POST, I, d, double)                                                               \
    SPELT_DOT_SUB(PRE, POST, I, cdotu) SPELT_DOT_SUB(PRE, POST, I, zdotu)                            \
    SPELT_DOT_SUB(PRE, POST, I, cdotc) SPELT_DOT_SUB(PRE, POST, I, zdotc)

SPELLING(, , int)
SPELLING(, 64_, int64_t)
SPELLING(scipy_, , int)
SPELLING(scipy_, 64_, int64_t)
