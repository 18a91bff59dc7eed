/* Passes over rows, for one type of number: included by fused.c once a type. */

/* e^x for x that is not large, without a branch, so that a loop over it is vectorised: 2^n e^r, |r| <= ln(2) / 2. */
static inline __attribute__((always_inline)) REAL NAME(exponential_below)(REAL x) {
    static const REAL factorial[] = {1.0, 1.0, 2.0, 6.0, 24.0, 120.0, 720.0, 5040.0, 40320.0, 362880.0,
                                     3628800.0, 39916800.0, 479001600.0, 6227020800.0};
    REAL bounded = x < (REAL)EXP_LOWEST ? (REAL)EXP_LOWEST : x; /* NaN stays */
    union {
        REAL real;
        INTEGER bits;
    } shifted, power;
    shifted.real = bounded * (REAL)1.44269504088896340736 + ROUNDER;
    REAL n = shifted.real - ROUNDER;
    /* ln(2) in two parts, of which the first times n is exact. */
    REAL r = bounded - n * (REAL)0.693359375;
    r = r - n * (REAL)-2.12194440054690583e-4;
    REAL sum = 1 / factorial[EXP_TERMS];
#pragma GCC unroll 16
    for (int term = EXP_TERMS - 1; term >= 0; term--) sum = sum * r + 1 / factorial[term];
    /* The bits of n are the last of `shifted`; what lies above is shifted out. */
    power.bits = (INTEGER)((shifted.bits + EXPONENT_BIAS) << MANTISSA_BITS);
    return sum * power.real;
}

/* e^x for any x: GCC makes six instructions more of two constant bounds than of one. */
static inline __attribute__((always_inline)) REAL NAME(exponential)(REAL x) {
    return NAME(exponential_below)(x > (REAL)EXP_HIGHEST ? (REAL)EXP_HIGHEST : x);
}

VECTORISED static void NAME(bias_gelu_rows)(const REAL *x, const REAL *bias, REAL *y, REAL *slope, int64_t rows,
                                            int64_t width, REAL linear, REAL cubic) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *xs = x + row * width;
        REAL *ys = y + row * width, *slopes = slope + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            REAL h = bias ? xs[i] + bias[i] : xs[i], square = h * h;
            REAL u = h * (linear + cubic * square);
            REAL s = 1 / (1 + NAME(exponential)(-2 * u));
            REAL activation = h * s;
            ys[i] = activation;
            slopes[i] = s + activation * (1 - s) * (2 * linear + 6 * cubic * square);
        }
    }
}

void NAME(bias_gelu)(const REAL *x, const REAL *bias, REAL *y, REAL *slope, int64_t rows, int64_t width) {
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        int64_t start = first * width;
        NAME(bias_gelu_rows)(x + start, bias, y + start, slope + start, stop - first, width, (REAL)GELU_LINEAR,
                             (REAL)GELU_CUBIC);
    }
}

VECTORISED static void NAME(multiply_rows)(const REAL *dy, const REAL *slope, REAL *dx, REAL *sums, int64_t rows,
                                           int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *dys = dy + row * width, *slopes = slope + row * width;
        REAL *dxs = dx + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            dxs[i] = dys[i] * slopes[i];
            sums[i] += dxs[i];
        }
    }
}

/* `partial` has room for a row of sums a thread; they are added in the threads' order, always the same. */
void NAME(bias_gelu_backward)(const REAL *dy, const REAL *slope, REAL *dx, REAL *bias_grad, REAL *partial,
                              int64_t rows, int64_t width) {
    memset(partial, 0, thread_count * width * sizeof(REAL));
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        int64_t start = first * width;
        NAME(multiply_rows)(dy + start, slope + start, dx + start, partial + THREAD * width, stop - first, width);
    }
    for (int thread = 0; thread < thread_count; thread++)
        for (int64_t i = 0; bias_grad && i < width; i++) bias_grad[i] += partial[thread * width + i];
}

/* Gates and then inputs lie in each row of `slopes`; both are replaced by the derivatives for them. */
VECTORISED static void NAME(swiglu_rows)(REAL *y, REAL *slopes, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        REAL *ys = y + row * width, *gate = slopes + 2 * row * width, *up = gate + width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            REAL s = 1 / (1 + NAME(exponential)(-gate[i])), silu = gate[i] * s;
            ys[i] = silu * up[i];
            gate[i] = up[i] * (s + silu * (1 - s));
            up[i] = silu;
        }
    }
}

void NAME(swiglu)(REAL *y, REAL *slopes, int64_t rows, int64_t width) {
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        NAME(swiglu_rows)(y + first * width, slopes + 2 * first * width, stop - first, width);
    }
}

VECTORISED static void NAME(swiglu_backward_rows)(const REAL *dy, REAL *slopes, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *dys = dy + row * width;
        REAL *gate = slopes + 2 * row * width, *up = gate + width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            gate[i] *= dys[i];
            up[i] *= dys[i];
        }
    }
}

void NAME(swiglu_backward)(const REAL *dy, REAL *slopes, int64_t rows, int64_t width) {
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        NAME(swiglu_backward_rows)(dy + first * width, slopes + 2 * first * width, stop - first, width);
    }
}

VECTORISED static void NAME(layer_norm_rows)(const REAL *x, const REAL *gain, const REAL *bias, REAL *y, REAL *mean,
                                             REAL *rstd, int64_t rows, int64_t width, REAL epsilon) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *xs = x + row * width;
        REAL *ys = y + row * width, sum = 0, squares = 0;
        if (mean) {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < width; i++) sum += xs[i];
        }
        REAL middle = sum / width;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < width; i++) squares += (xs[i] - middle) * (xs[i] - middle);
        REAL r = (REAL)(1 / sqrt((double)(squares / width + epsilon)));
#pragma omp simd
        for (int64_t i = 0; i < width; i++) ys[i] = (xs[i] - middle) * r * gain[i] + (bias ? bias[i] : 0);
        if (mean) mean[row] = middle;
        rstd[row] = r;
    }
}

/* Without `mean` (RMSNorm) rows are not centred; `bias` may be missing. */
void NAME(layer_norm)(const REAL *x, const REAL *gain, const REAL *bias, REAL *y, REAL *mean, REAL *rstd,
                      int64_t rows, int64_t width, double epsilon) {
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        NAME(layer_norm_rows)(x + first * width, gain, bias, y + first * width, mean ? mean + first : 0, rstd + first,
                              stop - first, width, (REAL)epsilon);
    }
}

VECTORISED static void NAME(layer_norm_backward_rows)(const REAL *x, const REAL *mean, const REAL *rstd,
                                                      const REAL *gain, const REAL *dy, const REAL *skip, REAL *dx,
                                                      REAL *gain_sums, REAL *bias_sums, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *xs = x + row * width, *dys = dy + row * width;
        REAL *dxs = dx + row * width, middle = mean ? mean[row] : 0, r = rstd[row], along = 0, level = 0;
#pragma omp simd reduction(+ : along, level)
        for (int64_t i = 0; i < width; i++) {
            REAL normal = (xs[i] - middle) * r, g = dys[i] * gain[i];
            gain_sums[i] += dys[i] * normal;
            bias_sums[i] += dys[i];
            along += g * normal;
            level += g;
        }
        along /= width;
        level = mean ? level / width : 0;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            REAL normal = (xs[i] - middle) * r;
            dxs[i] = r * (dys[i] * gain[i] - level - normal * along);
        }
        if (!skip) continue;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) dxs[i] += skip[row * width + i];
    }
}

/* `mean`, `bias_grad` and `skip` may be missing; `partial` has room for two rows of sums a thread. */
void NAME(layer_norm_backward)(const REAL *x, const REAL *mean, const REAL *rstd, const REAL *gain, const REAL *dy,
                               REAL *dx, REAL *gain_grad, REAL *bias_grad, const REAL *skip, REAL *partial,
                               int64_t rows, int64_t width) {
    memset(partial, 0, 2 * thread_count * width * sizeof(REAL));
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        REAL *sums = partial + 2 * THREAD * width;
        NAME(layer_norm_backward_rows)(x + first * width, mean ? mean + first : 0, rstd + first, gain, dy + first * width,
                                       skip ? skip + first * width : 0, dx + first * width, sums, sums + width,
                                       stop - first, width);
    }
    for (int thread = 0; thread < thread_count; thread++) {
        const REAL *sums = partial + 2 * thread * width;
        for (int64_t i = 0; i < width; i++) {
            gain_grad[i] += sums[i];
            if (bias_grad) bias_grad[i] += sums[width + i];
        }
    }
}

VECTORISED static void NAME(add_rows)(const REAL *x, const REAL *skip, const REAL *bias, REAL *y, int64_t rows,
                                      int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *xs = x + row * width, *skips = skip + row * width;
        REAL *ys = y + row * width;
        if (skip && bias) {
#pragma omp simd
            for (int64_t i = 0; i < width; i++) ys[i] = xs[i] + skips[i] + bias[i];
        } else {
            const REAL *other = skip ? skips : bias;
#pragma omp simd
            for (int64_t i = 0; i < width; i++) ys[i] = xs[i] + other[i];
        }
    }
}

/* y = x + skip + bias, of which one may be missing. */
void NAME(add)(const REAL *x, const REAL *skip, const REAL *bias, REAL *y, int64_t rows, int64_t width) {
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        int64_t start = first * width;
        NAME(add_rows)(x + start, skip ? skip + start : 0, bias, y + start, stop - first, width);
    }
}

VECTORISED static void NAME(rotate_rows)(REAL *x, const REAL *cosine, const REAL *sine, int64_t rows, int64_t width,
                                         int64_t heads, int64_t half, REAL sign) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < heads; head++) {
            REAL *a = x + row * width + 2 * head * half, *b = a + half;
            const REAL *c = cosine + row * half, *s = sine + row * half;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                REAL along = a[i], across = b[i], turn = sign * s[i];
                a[i] = along * c[i] - across * turn;
                b[i] = across * c[i] + along * turn;
            }
        }
}

void NAME(rotate)(REAL *x, const REAL *cosine, const REAL *sine, int64_t rows, int64_t width, int64_t heads,
                  int64_t half, int64_t sign) {
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        NAME(rotate_rows)(x + first * width, cosine + first * half, sine + first * half, stop - first, width, heads,
                          half, (REAL)sign);
    }
}

/* Rows at `positions` of a sequence, features from `column` on; philox.py says which element has which word. */
VECTORISED static void NAME(dropout_rows)(const REAL *x, REAL *out, const int64_t *positions, int64_t rows,
                                          int64_t width, int64_t column, struct philox random) {
    uint32_t words[4 * PHILOX_GROUPS];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t first = column / 4 * 4; first < column + width; first += 4 * PHILOX_GROUPS) {
            int64_t from = MAX(first, column), stop = MIN(first + 4 * PHILOX_GROUPS, column + width);
            const REAL *xs = x + row * width - column;
            REAL *outs = out + row * width - column;
            philox_words(first / 4, (stop - first + 3) / 4, (uint32_t)positions[row], random, words);
#pragma omp simd
            for (int64_t i = from; i < stop; i++)
                outs[i] = words[i - first] < random.threshold ? 0 : xs[i] * (REAL)random.scale;
        }
}

void NAME(dropout)(const REAL *x, REAL *out, const int64_t *positions, int64_t rows, int64_t width, double column,
                   double sequence, double site, double seed, double step, double rate) {
    struct philox random = {(uint32_t)sequence, (uint32_t)site, (uint32_t)seed, (uint32_t)step,
                            philox_threshold(rate), 1 / (1 - rate)};
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        NAME(dropout_rows)(x + first * width, out + first * width, positions + first, stop - first, width,
                           (int64_t)column, random);
    }
}

/* Columns `first` to `stop` of rows. */
VECTORISED static void NAME(add_columns)(REAL *table, const int64_t *rows, const REAL *x, int64_t size, int64_t count,
                                         int64_t width, int64_t first, int64_t stop) {
    for (int64_t n = 0; n < count; n++) {
        const REAL *xs = x + n * width;
        REAL *sums = table + rows[n] * width;
        if (rows[n] < 0 || rows[n] >= size) continue;
#pragma omp simd
        for (int64_t i = first; i < stop; i++) sums[i] += xs[i];
    }
}

/* To the rows of a table of `size` that are named; others are left out. Rows meet: threads share the columns. */
void NAME(add_to_rows)(REAL *table, const int64_t *rows, const REAL *x, int64_t size, int64_t count, int64_t width) {
    PARALLEL {
        NAME(add_columns)(table, rows, x, size, count, width, first_row(width, THREAD, THREADS),
                          first_row(width, THREAD + 1, THREADS));
    }
}

/* e^(y - largest), their sum, and y - largest of the target where that is a column. */
VECTORISED static void NAME(exponential_row)(REAL *y, int64_t width, int64_t target, REAL largest, REAL *total,
                                             REAL *chosen) {
    REAL sum = 0;
    *chosen = target >= 0 && target < width ? y[target] - largest : 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) {
        y[i] = NAME(exponential_below)(y[i] - largest);
        sum += y[i];
    }
    *total = sum;
}

VECTORISED static void NAME(scale_row)(REAL *p, int64_t width, int64_t target, REAL scale, REAL weight) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) p[i] *= scale;
    if (target >= 0 && target < width) p[target] -= weight;
}

VECTORISED static REAL NAME(largest_of_row)(const REAL *y, int64_t width) {
    REAL largest = y[0];
#pragma omp simd reduction(max : largest)
    for (int64_t i = 1; i < width; i++) largest = MAX(largest, y[i]);
    return largest;
}

void NAME(exponentials)(REAL *y, const int64_t *targets, const REAL *largest, REAL *total, REAL *chosen, int64_t rows,
                        int64_t width) {
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        for (int64_t row = first; row < stop; row++)
            NAME(exponential_row)(y + row * width, width, targets[row], largest[row], total + row, chosen + row);
    }
}

void NAME(softmax_gradient)(REAL *p, const int64_t *targets, const REAL *total, int64_t rows, int64_t width,
                            double weight) {
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        for (int64_t row = first; row < stop; row++)
            NAME(scale_row)(p + row * width, width, targets[row], (REAL)weight / total[row], (REAL)weight);
    }
}

/* All three, a row in cache at a time; `partial` has room for a number a thread. */
double NAME(cross_entropy)(REAL *y, const int64_t *targets, double *partial, int64_t rows, int64_t width,
                           double weight) {
    double loss = 0;
    memset(partial, 0, thread_count * sizeof(double));
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        for (int64_t row = first; row < stop; row++) {
            REAL *ys = y + row * width, total, chosen;
            NAME(exponential_row)(ys, width, targets[row], NAME(largest_of_row)(ys, width), &total, &chosen);
            NAME(scale_row)(ys, width, targets[row], (REAL)weight / total, (REAL)weight);
            partial[THREAD] += log((double)total) - chosen;
        }
    }
    for (int thread = 0; thread < thread_count; thread++) loss += partial[thread];
    return loss * weight;
}
