/* Causal attention of queries to keys, for one type of number: included by fused.c once a type.

   A task is one head of one sequence. Its blocks of scores stay in cache between the products of the BLAS, which runs
   on one thread inside of a parallel region; rows of a head lie `stride` numbers apart. */

#define AT(view, b, h) ((REAL *)(view)->data + (b) * (view)->sequence + (h) * (view)->head)

typedef void (*NAME(gemm32))(int, int, int, int32_t, int32_t, int32_t, REAL, const REAL *, int32_t, const REAL *,
                             int32_t, REAL, REAL *, int32_t);
typedef void (*NAME(gemm64))(int, int, int, int64_t, int64_t, int64_t, REAL, const REAL *, int64_t, const REAL *,
                             int64_t, REAL, REAL *, int64_t);

static void NAME(product)(int flip_a, int flip_b, int64_t m, int64_t n, int64_t k, REAL alpha, const REAL *a,
                          int64_t lda, const REAL *b, int64_t ldb, REAL beta, REAL *c, int64_t ldc) {
    if (blas.wide)
        ((NAME(gemm64))GEMM)(ROW_MAJOR, flip_a, flip_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    else
        ((NAME(gemm32))GEMM)(ROW_MAJOR, flip_a, flip_b, (int32_t)m, (int32_t)n, (int32_t)k, alpha, a, (int32_t)lda, b,
                             (int32_t)ldb, beta, c, (int32_t)ldc);
}

/* Scores to exponentials below their rows' maxima, which go on from those of earlier keys. Returns by `shrink` what
   turns earlier exponentials into ones below the new maximum. */
VECTORISED static void NAME(softmax_rows)(REAL *scores, int64_t rows, int64_t keys, int64_t seen_by_first, REAL *maximum,
                                          REAL *total, REAL *shrink) {
    for (int64_t row = 0; row < rows; row++) {
        REAL *s = scores + row * keys, highest = maximum[row], sum = 0;
        int64_t seen = MIN(keys, seen_by_first + row);
#pragma omp simd reduction(max : highest)
        for (int64_t i = 0; i < seen; i++) highest = s[i] > highest ? s[i] : highest;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < seen; i++) {
            s[i] = NAME(exponential)(s[i] - highest);
            sum += s[i];
        }
        for (int64_t i = seen; i < keys; i++) s[i] = 0;
        shrink[row] = NAME(exponential)(maximum[row] - highest);
        maximum[row] = highest;
        total[row] = total[row] * shrink[row] + sum;
    }
}

VECTORISED static void NAME(scale_rows)(const REAL *x, int64_t x_stride, const REAL *factor, REAL *y, int64_t y_stride,
                                        int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++)
#pragma omp simd
        for (int64_t i = 0; i < width; i++) y[row * y_stride + i] = x[row * x_stride + i] * factor[row];
}

/* ds = (ds - scale g.y) e, row by row. */
VECTORISED static void NAME(softmax_backward_rows)(REAL *ds, const REAL *exponentials, const REAL *g, const REAL *y,
                                                   int64_t y_stride, int64_t rows, int64_t keys, int64_t width,
                                                   REAL scale) {
    for (int64_t row = 0; row < rows; row++) {
        REAL level = 0;
#pragma omp simd reduction(+ : level)
        for (int64_t i = 0; i < width; i++) level += g[row * width + i] * y[row * y_stride + i];
        level *= scale;
#pragma omp simd
        for (int64_t i = 0; i < keys; i++)
            ds[row * keys + i] = (ds[row * keys + i] - level) * exponentials[row * keys + i];
    }
}

static void NAME(attend_head)(const struct piece *piece, int64_t b, int64_t h, const struct view *q,
                              const struct view *k, const struct view *v, const struct view *y,
                              const struct view *maximum, const struct view *total, const struct view *factors,
                              const struct view *exponentials) {
    const REAL *qs = AT(q, b, h), *ks = AT(k, b, h), *vs = AT(v, b, h);
    REAL *ys = AT(y, b, h), *highest = AT(maximum, b, h), *sums = AT(total, b, h), *kept = AT(factors, b, h);
    REAL *block = AT(exponentials, b, h);
    for (int64_t start = 0; start < piece->queries; start += piece->block) {
        int64_t stop = MIN(start + piece->block, piece->queries), rows = stop - start, keys = seen_keys(piece, stop);
        REAL *y_rows = ys + start * y->row;
        REAL shrink[rows];
        NAME(product)(PLAIN, TRANSPOSED, rows, keys, piece->width, (REAL)piece->scale, qs + start * q->row, q->row, ks,
                      k->row, 0, block, keys);
        NAME(softmax_rows)(block, rows, keys, piece->causal ? start + 1 : keys, highest + start, sums + start, shrink);
        memcpy(kept + start, highest + start, rows * sizeof(REAL));
        if (!piece->first) NAME(scale_rows)(y_rows, y->row, shrink, y_rows, y->row, rows, piece->width);
        NAME(product)(PLAIN, PLAIN, rows, piece->width, keys, 1, block, keys, vs, v->row, piece->first ? 0 : 1, y_rows,
                      y->row);
        block += rows * keys;
    }
}

void NAME(attend)(const struct piece *piece, const struct view *q, const struct view *k, const struct view *v,
                  const struct view *y, const struct view *maximum, const struct view *total,
                  const struct view *factors, const struct view *exponentials) {
    int64_t tasks = piece->sequences * piece->heads;
    PARALLEL {
        int64_t stop = first_row(tasks, THREAD + 1, THREADS);
        for (int64_t task = first_row(tasks, THREAD, THREADS); task < stop; task++)
            NAME(attend_head)(piece, task / piece->heads, task % piece->heads, q, k, v, y, maximum, total, factors,
                              exponentials);
    }
}

static void NAME(attend_backward_head)(const struct piece *piece, int64_t b, int64_t h, const struct view *q,
                                       const struct view *k, const struct view *v, const struct view *y,
                                       const struct view *dy, const struct view *dq, const struct view *dk,
                                       const struct view *dv, const struct view *factors,
                                       const struct view *exponentials,
                                       REAL *scratch) {
    int64_t width = piece->width, last = (piece->queries - 1) / piece->block * piece->block;
    REAL scale = (REAL)piece->scale, *g = scratch, *ds = scratch + piece->block * width;
    /* The last block sees all keys: it writes the gradients of k and v, the others add. */
    for (int64_t start = last; start >= 0; start -= piece->block) {
        int64_t stop = MIN(start + piece->block, piece->queries), rows = stop - start, keys = seen_keys(piece, stop);
        REAL add = start == last ? 0 : 1;
        const REAL *block = AT(exponentials, b, h) + scores_before(piece, start);
        const REAL *q_rows = AT(q, b, h) + start * q->row, *y_rows = AT(y, b, h) + start * y->row;
        NAME(scale_rows)(AT(dy, b, h) + start * dy->row, dy->row, AT(factors, b, h) + start, g, width, rows, width);
        NAME(product)(TRANSPOSED, PLAIN, keys, width, rows, 1, block, keys, g, width, add, AT(dv, b, h), dv->row);
        NAME(product)(PLAIN, TRANSPOSED, rows, keys, width, scale, g, width, AT(v, b, h), v->row, 0, ds, keys);
        NAME(softmax_backward_rows)(ds, block, g, y_rows, y->row, rows, keys, width, scale);
        NAME(product)(PLAIN, PLAIN, rows, width, keys, 1, ds, keys, AT(k, b, h), k->row, piece->first ? 0 : 1,
                      AT(dq, b, h) + start * dq->row, dq->row);
        NAME(product)(TRANSPOSED, PLAIN, keys, width, rows, 1, ds, keys, q_rows, q->row, add, AT(dk, b, h), dk->row);
    }
}

/* `scratch` has room for `room` numbers a thread: a block of queries and one of scores. */
void NAME(attend_backward)(const struct piece *piece, const struct view *q, const struct view *k, const struct view *v,
                           const struct view *y, const struct view *dy, const struct view *dq, const struct view *dk,
                           const struct view *dv, const struct view *factors, const struct view *exponentials,
                           REAL *scratch, int64_t room) {
    int64_t tasks = piece->sequences * piece->heads;
    PARALLEL {
        int64_t stop = first_row(tasks, THREAD + 1, THREADS);
        for (int64_t task = first_row(tasks, THREAD, THREADS); task < stop; task++)
            NAME(attend_backward_head)(piece, task / piece->heads, task % piece->heads, q, k, v, y, dy, dq, dk, dv,
                                       factors, exponentials, scratch + THREAD * room);
    }
}

#undef AT
