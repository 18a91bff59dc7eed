/* A product of small matrices, and packing for it: included by fused_products.h once for each generation of vector units, as UNIT. */

typedef REAL VECTOR __attribute__((vector_size(UNIT_BYTES), aligned(sizeof(REAL)), may_alias));

#define LANES ((int64_t)(UNIT_BYTES / sizeof(REAL)))
#define LOAD(x, n) (*(const VECTOR *)((x) + (n) * LANES))
#define STORE(x, n) (*(VECTOR *)((x) + (n) * LANES))

/* Sums that stay in registers. `rows` and `vectors` are constants where this is inlined: all loops but that over terms
   are unrolled. */
UNIT_TARGET static inline __attribute__((always_inline)) void OF_UNIT(block)(
    int rows, int vectors, int64_t depth, const REAL *a, int64_t a_row, int64_t a_column, const REAL *b, int64_t b_row,
    REAL *c, int64_t c_row, int add) {
    VECTOR sums[BLOCK_ROWS][UNIT_VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int n = 0; n < vectors; n++) sums[row][n] = add ? LOAD(c + row * c_row, n) : (VECTOR){0};
    for (int64_t p = 0; p < depth; p++) {
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
            for (int n = 0; n < vectors; n++) sums[row][n] += a[row * a_row] * LOAD(b, n);
        a += a_column;
        b += b_row;
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int n = 0; n < vectors; n++) STORE(c + row * c_row, n) = sums[row][n];
}

/* All rows of so many vectors of columns; `first` and `stop` as those of a left operand. */
UNIT_TARGET static inline __attribute__((always_inline)) void OF_UNIT(columns)(
    int vectors, int64_t m, int64_t depth, const REAL *a, int64_t a_row, int64_t a_column, int64_t first, int64_t stop,
    const REAL *b, int64_t b_row, REAL *c, int64_t c_row, int add) {
    int64_t row = 0;
#define BLOCK(rows)                                                                                  \
    do {                                                                                             \
        int64_t from = MAX(0, first + row), to = MIN(depth, stop + row + (rows) - 1);                \
        OF_UNIT(block)(rows, vectors, to - from, a + from * a_column, a_row, a_column,               \
                       b + from * b_row, b_row, c, c_row, add);                                      \
    } while (0)
    for (; row + BLOCK_ROWS <= m; row += BLOCK_ROWS, a += BLOCK_ROWS * a_row, c += BLOCK_ROWS * c_row)
        BLOCK(BLOCK_ROWS);
    switch (m - row) {
        case 5: BLOCK(5); break;
        case 4: BLOCK(4); break;
        case 3: BLOCK(3); break;
        case 2: BLOCK(2); break;
        case 1: BLOCK(1); break;
    }
#undef BLOCK
}

UNIT_TARGET static void OF_UNIT(multiply)(int64_t m, int64_t n, int64_t depth, struct NAME(left) a,
                                          struct NAME(right) b, struct NAME(result) c, int add) {
    for (int64_t start = 0; start < depth; start += DEPTH, add = 1) {
        const REAL *as = a.data + start * a.column;
        int64_t deep = MIN(DEPTH, depth - start), step;
        for (int64_t column = 0; column < n; column += step) {
            const REAL *bs = b.data + column / PANEL * b.panel + column % PANEL + start * b.row;
            REAL *cs = c.data + column;
            int64_t left = MIN(n - column, PANEL - column % PANEL);
#define COLUMNS(vectors)                                                                             \
    (step = (vectors) * LANES,                                                                       \
     OF_UNIT(columns)((int)(vectors), m, deep, as, a.row, a.column, a.first - start, a.stop - start, \
                      bs, b.row, cs, c.row, add))
            if (left > (UNIT_VECTORS - 1) * LANES)
                COLUMNS(UNIT_VECTORS);
            else if (left > LANES)
                COLUMNS(2);
            else
                COLUMNS(1);
#undef COLUMNS
        }
    }
}

/* A square of as many rows as a vector has lanes: ever larger parts of them change places. */
UNIT_TARGET static inline __attribute__((always_inline)) void OF_UNIT(transpose)(const REAL *const *from, int64_t at,
                                                                                 REAL *to, int64_t to_row) {
    typedef INTEGER indices __attribute__((vector_size(UNIT_BYTES)));
    VECTOR rows[LANES];
#pragma GCC unroll 16
    for (int row = 0; row < LANES; row++) rows[row] = LOAD(from[row] + at, 0);
#pragma GCC unroll 4
    for (int half = 1; half < LANES; half *= 2) {
        indices low, high;
#pragma GCC unroll 16
        for (int lane = 0; lane < LANES; lane++) {
            low[lane] = (INTEGER)(lane & half ? LANES + lane - half : lane);
            high[lane] = (INTEGER)(lane & half ? LANES + lane : lane + half);
        }
#pragma GCC unroll 16
        for (int row = 0; row < LANES; row++)
            if (!(row & half)) {
                VECTOR upper = rows[row], lower = rows[row + half];
                rows[row] = __builtin_shuffle(upper, lower, low);
                rows[row + half] = __builtin_shuffle(upper, lower, high);
            }
    }
#pragma GCC unroll 16
    for (int row = 0; row < LANES; row++) STORE(to + row * to_row, 0) = rows[row];
}

/* Rows as the columns of a right operand, in panels of `width` rows. */
UNIT_TARGET static void OF_UNIT(pack_columns)(const REAL *x, int64_t stride, int64_t rows, int64_t width,
                                              REAL *packed) {
    int64_t whole = width / LANES * LANES;
    for (int64_t start = 0; start < rows; start += LANES) {
        REAL *to = packed + start / PANEL * PANEL * width + start % PANEL;
        const REAL *from[LANES];
        for (int64_t row = 0; row < LANES; row++) {
            from[row] = x + MIN(start + row, rows - 1) * stride;
            LOOK_AHEAD(from[row], stride, width);
        }
        for (int64_t i = 0; i < whole; i += LANES) OF_UNIT(transpose)(from, i, to + i * PANEL, PANEL);
        for (int64_t i = whole; i < width; i++)
            for (int64_t row = 0; row < LANES; row++) to[i * PANEL + row] = from[row][i];
    }
}

#undef LANES
#undef LOAD
#undef STORE
