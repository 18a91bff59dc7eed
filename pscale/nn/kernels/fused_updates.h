/* What optimizers do with flat memory, for one type of number: included by fused.c once a type. Sums are in double
   precision, a thread each, added in the threads' order, always the same. */

VECTORISED static void NAME(adamw_run)(REAL *weight, const REAL *grad, REAL *m, REAL *v, int64_t size, REAL scale,
                                       REAL beta1, REAL beta2, REAL rate, REAL epsilon, REAL keep) {
#pragma omp simd
    for (int64_t i = 0; i < size; i++) {
        REAL g = grad[i] * scale;
        m[i] = m[i] * beta1 + g;
        v[i] = v[i] * beta2 + g * g;
        weight[i] = weight[i] * keep - rate * m[i] / ((REAL)sqrt(v[i]) + epsilon);
    }
}

void NAME(adamw)(REAL *weight, const REAL *grad, REAL *m, REAL *v, int64_t size, double scale, double beta1,
                 double beta2, double rate, double epsilon, double keep) {
    PARALLEL {
        int64_t first = first_row(size, THREAD, THREADS), stop = first_row(size, THREAD + 1, THREADS);
        NAME(adamw_run)(weight + first, grad + first, m + first, v + first, stop - first, (REAL)scale, (REAL)beta1,
                        (REAL)beta2, (REAL)rate, (REAL)epsilon, (REAL)keep);
    }
}

VECTORISED static double NAME(square_sum)(const REAL *x, int64_t size) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* `partial` has room for a sum a thread. */
double NAME(square_norm)(const REAL *x, int64_t size, double *partial) {
    memset(partial, 0, thread_count * sizeof(double));
    PARALLEL {
        int64_t first = first_row(size, THREAD, THREADS), stop = first_row(size, THREAD + 1, THREADS);
        partial[THREAD] = NAME(square_sum)(x + first, stop - first);
    }
    double sum = 0;
    for (int thread = 0; thread < thread_count; thread++) sum += partial[thread];
    return sum;
}

VECTORISED static void NAME(sgd_run)(REAL *weight, const REAL *grad, REAL *velocity, int64_t size, REAL scale,
                                     REAL momentum, REAL rate) {
    if (!velocity) {
#pragma omp simd
        for (int64_t i = 0; i < size; i++) weight[i] -= rate * (grad[i] * scale);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < size; i++) {
        velocity[i] = velocity[i] * momentum + grad[i] * scale;
        weight[i] -= rate * velocity[i];
    }
}

/* Without a velocity there is no momentum. */
void NAME(sgd)(REAL *weight, const REAL *grad, REAL *velocity, int64_t size, double scale, double momentum,
               double rate) {
    PARALLEL {
        int64_t first = first_row(size, THREAD, THREADS), stop = first_row(size, THREAD + 1, THREADS);
        NAME(sgd_run)(weight + first, grad + first, velocity ? velocity + first : 0, stop - first, (REAL)scale,
                      (REAL)momentum, (REAL)rate);
    }
}

VECTORISED static void NAME(lamb_moments_run)(const REAL *weight, const REAL *grad, REAL *m, REAL *v, int64_t size,
                                              REAL scale, REAL beta1, REAL beta2, REAL rate, REAL epsilon,
                                              REAL decay, double *squares) {
    double of_weights = 0, of_updates = 0;
#pragma omp simd reduction(+ : of_weights, of_updates)
    for (int64_t i = 0; i < size; i++) {
        REAL g = grad[i] * scale;
        m[i] = m[i] * beta1 + g;
        v[i] = v[i] * beta2 + g * g;
        REAL update = rate * m[i] / ((REAL)sqrt(v[i]) + epsilon) + decay * weight[i];
        of_weights += (double)weight[i] * (double)weight[i];
        of_updates += (double)update * (double)update;
    }
    squares[0] = of_weights;
    squares[1] = of_updates;
}

/* `partial` has room for two sums a thread; `squares` takes those of weights and of updates. */
void NAME(lamb_moments)(const REAL *weight, const REAL *grad, REAL *m, REAL *v, double *squares, double *partial,
                        int64_t size, double scale, double beta1, double beta2, double rate, double epsilon,
                        double decay) {
    memset(partial, 0, 2 * thread_count * sizeof(double));
    PARALLEL {
        int64_t first = first_row(size, THREAD, THREADS), stop = first_row(size, THREAD + 1, THREADS);
        NAME(lamb_moments_run)(weight + first, grad + first, m + first, v + first, stop - first, (REAL)scale,
                               (REAL)beta1, (REAL)beta2, (REAL)rate, (REAL)epsilon, (REAL)decay,
                               partial + 2 * THREAD);
    }
    for (int thread = 0; thread < thread_count; thread++) {
        squares[0] += partial[2 * thread];
        squares[1] += partial[2 * thread + 1];
    }
}

VECTORISED static void NAME(lamb_run)(REAL *weight, const REAL *m, const REAL *v, int64_t size, REAL rate,
                                      REAL epsilon, REAL decay, REAL step) {
#pragma omp simd
    for (int64_t i = 0; i < size; i++)
        weight[i] -= step * (rate * m[i] / ((REAL)sqrt(v[i]) + epsilon) + decay * weight[i]);
}

void NAME(lamb)(REAL *weight, const REAL *m, const REAL *v, int64_t size, double rate, double epsilon, double decay,
                double step) {
    PARALLEL {
        int64_t first = first_row(size, THREAD, THREADS), stop = first_row(size, THREAD + 1, THREADS);
        NAME(lamb_run)(weight + first, m + first, v + first, stop - first, (REAL)rate, (REAL)epsilon, (REAL)decay,
                       (REAL)step);
    }
}

VECTORISED static void NAME(square_sum_rows)(const REAL *x, double *row_sums, double *column_sums, int64_t rows,
                                             int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *xs = x + row * width;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) {
            double square = (double)xs[i] * (double)xs[i];
            column_sums[i] += square;
            sum += square;
        }
        row_sums[row] += sum;
    }
}

/* `partial` has room for a row of sums a thread. */
void NAME(square_sums)(const REAL *x, double *row_sums, double *column_sums, double *partial, int64_t rows,
                       int64_t width) {
    memset(partial, 0, thread_count * width * sizeof(double));
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        NAME(square_sum_rows)(x + first * width, row_sums + first, partial + THREAD * width, stop - first, width);
    }
    for (int thread = 0; thread < thread_count; thread++)
        for (int64_t i = 0; i < width; i++) column_sums[i] += partial[thread * width + i];
}

VECTORISED static double NAME(factored_rows)(const REAL *x, const REAL *of_rows, const REAL *of_columns,
                                             int64_t rows, int64_t width) {
    double sum = 0;
    for (int64_t row = 0; row < rows; row++) {
        const REAL *xs = x + row * width, factor = of_rows[row];
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) {
            REAL update = xs[i] * factor * of_columns[i];
            sum += (double)update * (double)update;
        }
    }
    return sum;
}

/* `partial` has room for a sum a thread. */
double NAME(factored_norm)(const REAL *x, const REAL *of_rows, const REAL *of_columns, double *partial, int64_t rows,
                           int64_t width) {
    memset(partial, 0, thread_count * sizeof(double));
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        partial[THREAD] =
            NAME(factored_rows)(x + first * width, of_rows + first, of_columns, stop - first, width);
    }
    double sum = 0;
    for (int thread = 0; thread < thread_count; thread++) sum += partial[thread];
    return sum;
}

VECTORISED static void NAME(factored_step_rows)(REAL *weight, const REAL *x, const REAL *of_rows,
                                                const REAL *of_columns, int64_t rows, int64_t width, REAL rate,
                                                REAL keep) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *xs = x + row * width, factor = rate * of_rows[row];
        REAL *weights = weight + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) weights[i] = weights[i] * keep - xs[i] * factor * of_columns[i];
    }
}

void NAME(factored_step)(REAL *weight, const REAL *x, const REAL *of_rows, const REAL *of_columns, int64_t rows,
                         int64_t width, double rate, double keep) {
    PARALLEL {
        int64_t first = first_row(rows, THREAD, THREADS), stop = first_row(rows, THREAD + 1, THREADS);
        NAME(factored_step_rows)(weight + first * width, x + first * width, of_rows + first, of_columns,
                                 stop - first, width, (REAL)rate, (REAL)keep);
    }
}
