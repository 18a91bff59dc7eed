/* Softmax of tiles of scores and its gradient, row by row: included by fused.c once for each type of number.

   Rows lie `stride` numbers apart, and have room for whole lines. */

/* Keys that a query does not see get scores of -inf, up to a whole line. */
static inline __attribute__((always_inline)) int64_t NAME(hide)(REAL *scores, int64_t keys, int64_t seen) {
    int64_t whole = WHOLE(keys, LINE);
    for (int64_t i = seen; i < whole; i++) scores[i] = -INFINITY;
    return whole;
}

/* Scores to exponentials below their rows' maxima, which go on from those of earlier keys. Returns by `shrink` what
   turns earlier exponentials into ones below the new maximum. */
VECTORISED static void NAME(softmax_rows)(REAL *scores, int64_t stride, int64_t rows, int64_t keys,
                                          int64_t seen_by_first, REAL *maximum, REAL *total, REAL *shrink) {
    for (int64_t row = 0; row < rows; row++) {
        REAL *s = scores + row * stride, highest = maximum[row];
        int64_t whole = NAME(hide)(s, keys, MIN(keys, seen_by_first + row));
#pragma omp simd reduction(max : highest)
        for (int64_t i = 0; i < whole; i++) highest = s[i] > highest ? s[i] : highest;
        shrink[row] = maximum[row] - highest;
        maximum[row] = highest;
    }
#pragma omp simd
    for (int64_t row = 0; row < rows; row++) {
        shrink[row] = NAME(exponential_below)(shrink[row]);
        total[row] *= shrink[row];
    }
    for (int64_t row = 0; row < rows; row++) {
        REAL *s = scores + row * stride, highest = maximum[row], sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < WHOLE(keys, LINE); i++) {
            s[i] = NAME(exponential_below)(s[i] - highest);
            sum += s[i];
        }
        total[row] += sum;
    }
}

VECTORISED static void NAME(scale_rows)(const REAL *x, int64_t x_stride, const REAL *factor, REAL *y, int64_t y_stride,
                                        int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++)
#pragma omp simd
        for (int64_t i = 0; i < width; i++) y[row * y_stride + i] = x[row * x_stride + i] * factor[row];
}

/* Scores to probabilities, where `level` is the logarithm of the sum of a row's exponentials. */
VECTORISED static void NAME(probability_rows)(REAL *scores, int64_t stride, int64_t rows, int64_t keys,
                                              int64_t seen_by_first, const REAL *level) {
    for (int64_t row = 0; row < rows; row++) {
        REAL *s = scores + row * stride, subtracted = level[row];
        int64_t whole = NAME(hide)(s, keys, MIN(keys, seen_by_first + row));
#pragma omp simd
        for (int64_t i = 0; i < whole; i++) s[i] = NAME(exponential_below)(s[i] - subtracted);
    }
}

/* ds = (ds - dy.y) p, row by row. */
VECTORISED static void NAME(softmax_backward_rows)(REAL *ds, const REAL *p, int64_t stride, const REAL *along,
                                                   int64_t rows, int64_t keys) {
    for (int64_t row = 0; row < rows; row++)
#pragma omp simd
        for (int64_t i = 0; i < keys; i++)
            ds[row * stride + i] = (ds[row * stride + i] - along[row]) * p[row * stride + i];
}

VECTORISED static void NAME(dot_rows)(const REAL *x, int64_t x_stride, const REAL *y, int64_t y_stride, REAL *dots,
                                      int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        REAL sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += x[row * x_stride + i] * y[row * y_stride + i];
        dots[row] = sum;
    }
}
