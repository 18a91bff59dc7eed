/* Causal attention of queries to keys, for one type of number: included by fused.c once a type.

   A task is one head of one sequence. Its tiles of scores stay in cache between the products of the BLAS, which runs
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

/* Scores to probabilities, where `level` is the logarithm of the sum of a row's exponentials. */
VECTORISED static void NAME(probability_rows)(REAL *scores, int64_t rows, int64_t keys, int64_t seen_by_first,
                                              const REAL *level) {
    for (int64_t row = 0; row < rows; row++) {
        REAL *s = scores + row * keys, subtracted = level[row];
        int64_t seen = MIN(keys, seen_by_first + row);
#pragma omp simd
        for (int64_t i = 0; i < seen; i++) s[i] = NAME(exponential)(s[i] - subtracted);
        for (int64_t i = seen; i < keys; i++) s[i] = 0;
    }
}

static void NAME(attend_head)(const struct piece *piece, int64_t b, int64_t h, const struct view *q,
                              const struct view *k, const struct view *v, const struct view *y,
                              const struct view *maximum, const struct view *total, const struct view *factors,
                              const struct view *exponentials, REAL *scratch) {
    for (int64_t n = 0; n < piece->tile_count; n++) {
        const struct tile *tile = piece->tiles + n;
        int64_t rows = tile->rows, keys = tile->keys;
        int kept = exponentials->data != 0, first = piece->first && tile->first_of_queries;
        const REAL *q_rows = AT(q, b, h) + tile->row * q->row;
        const REAL *ks = AT(k, b, h) + tile->key * k->row, *vs = AT(v, b, h) + tile->key * v->row;
        REAL *y_rows = AT(y, b, h) + tile->row * y->row, *highest = AT(maximum, b, h) + tile->row;
        REAL *scores = kept ? AT(exponentials, b, h) + tile->offset : scratch, shrink[rows];
        NAME(product)(PLAIN, TRANSPOSED, rows, keys, piece->width, (REAL)piece->scale, q_rows, q->row, ks, k->row, 0,
                      scores, keys);
        NAME(softmax_rows)(scores, rows, keys, tile->seen, highest, AT(total, b, h) + tile->row, shrink);
        if (kept) memcpy(AT(factors, b, h) + tile->row, highest, rows * sizeof(REAL));
        if (!first) NAME(scale_rows)(y_rows, y->row, shrink, y_rows, y->row, rows, piece->width);
        NAME(product)(PLAIN, PLAIN, rows, piece->width, keys, 1, scores, keys, vs, v->row, first ? 0 : 1, y_rows, y->row);
    }
}

/* `scratch` has room for `room` numbers a thread: a tile of scores, if none are kept. */
void NAME(attend)(const struct piece *piece, const struct view *q, const struct view *k, const struct view *v,
                  const struct view *y, const struct view *maximum, const struct view *total,
                  const struct view *factors, const struct view *exponentials, REAL *scratch, int64_t room) {
    int64_t tasks = piece->sequences * piece->heads;
    PARALLEL {
        int64_t stop = first_row(tasks, THREAD + 1, THREADS);
        for (int64_t task = first_row(tasks, THREAD, THREADS); task < stop; task++)
            NAME(attend_head)(piece, task / piece->heads, task % piece->heads, q, k, v, y, maximum, total, factors,
                              exponentials, scratch + THREAD * room);
    }
}

static void NAME(attend_backward_head)(const struct piece *piece, int64_t b, int64_t h, const struct view *q,
                                       const struct view *k, const struct view *v, const struct view *y,
                                       const struct view *dy, const struct view *dq, const struct view *dk,
                                       const struct view *dv, const struct view *factors,
                                       const struct view *exponentials, REAL *scratch) {
    int64_t width = piece->width;
    REAL scale = (REAL)piece->scale;
    /* Backwards: the last tile that has some keys writes their gradients, the others add. */
    for (int64_t n = piece->tile_count - 1; n >= 0; n--) {
        const struct tile *tile = piece->tiles + n;
        int64_t rows = tile->rows, keys = tile->keys;
        REAL *g = scratch, *ds = g + rows * width, *e = ds + rows * keys;
        const REAL *q_rows = AT(q, b, h) + tile->row * q->row, *dy_rows = AT(dy, b, h) + tile->row * dy->row;
        const REAL *ks = AT(k, b, h) + tile->key * k->row, *vs = AT(v, b, h) + tile->key * v->row;
        const REAL *factor = AT(factors, b, h) + tile->row;
        REAL *dks = AT(dk, b, h) + tile->key * dk->row, *dvs = AT(dv, b, h) + tile->key * dv->row;
        REAL add_to_q = piece->first && tile->last_of_queries ? 0 : 1, add_to_k = tile->last_of_keys ? 0 : 1;
        if (exponentials->data) {
            e = AT(exponentials, b, h) + tile->offset;
            NAME(scale_rows)(dy_rows, dy->row, factor, g, width, rows, width);
        } else {
            NAME(product)(PLAIN, TRANSPOSED, rows, keys, width, scale, q_rows, q->row, ks, k->row, 0, e, keys);
            NAME(probability_rows)(e, rows, keys, tile->seen, factor);
            for (int64_t row = 0; row < rows; row++)
                memcpy(g + row * width, dy_rows + row * dy->row, width * sizeof(REAL));
        }
        NAME(product)(TRANSPOSED, PLAIN, keys, width, rows, 1, e, keys, g, width, add_to_k, dvs, dv->row);
        NAME(product)(PLAIN, TRANSPOSED, rows, keys, width, scale, g, width, vs, v->row, 0, ds, keys);
        NAME(softmax_backward_rows)(ds, e, g, AT(y, b, h) + tile->row * y->row, y->row, rows, keys, width, scale);
        NAME(product)(PLAIN, PLAIN, rows, width, keys, 1, ds, keys, ks, k->row, add_to_q,
                      AT(dq, b, h) + tile->row * dq->row, dq->row);
        NAME(product)(TRANSPOSED, PLAIN, keys, width, rows, 1, ds, keys, q_rows, q->row, add_to_k, dks, dk->row);
    }
}

/* `scratch` has room for `room` numbers a thread: rows of queries and a tile of scores, two if none are kept. */
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
