/* Causal attention of queries to keys, for one type of number: included by fused.c once a type.

   A task is one head of one sequence, on one thread. Its tiles of scores stay in cache from product to product; what
   the products read and what they add up is packed beside them, as rows of a head lie a whole token apart. */

#define AT(view, b, h) ((REAL *)(view)->data + (b) * (view)->sequence + (h) * (view)->head)
/* Dense rows; those of queries that see ever more keys; those of keys that ever fewer queries see. */
#define FAR (INT64_MAX / 2)
#define LEFT(data, row) ((struct NAME(left)){data, row, 1, -FAR, FAR})
#define SEEN(data, row, seen) ((struct NAME(left)){data, row, 1, -FAR, seen})
#define SEEN_BY(data, column, seen) ((struct NAME(left)){data, 1, column, 1 - (seen), FAR})
#define RESULT(...) ((struct NAME(result)){__VA_ARGS__})
#define ROWS_OF(packed, first) ((struct NAME(right)){(packed) + (first) * w.pitch, w.pitch, PANEL})
#define COLUMNS_OF(packed, first) ((struct NAME(right)){(packed) + (first) * width, PANEL, PANEL * width})

/* Memory for a head. Rows are `pitch` numbers apart, those of tiles `stride`: no power of two, which caches dislike. */
struct NAME(work) {
    REAL *k_columns, *v_columns, *k_rows, *v_rows, *y, *dq, *dk, *dv; /* of all queries or keys */
    REAL *q_rows, *dy_rows, *along, *p, *ds;                          /* of a tile */
    int64_t pitch, stride, numbers;
};

static struct NAME(work) NAME(divide)(const struct piece *piece, int direction, int kept, REAL *memory) {
    int64_t rows = 0, widest = 0, keys = WHOLE(piece->keys, PANEL), width = piece->width;
    int forward = direction == FORWARD, backward = direction == BACKWARD;
    for (int64_t n = 0; n < piece->tile_count; n++) {
        rows = MAX(rows, piece->tiles[n].rows);
        widest = MAX(widest, forward ? piece->tiles[n].keys : MIN(piece->tiles[n].keys, SPAN));
    }
    struct NAME(work) w = {.pitch = WHOLE(width, LINE), .stride = WHOLE(widest, LINE) + LINE};
#define PART(name, count) w.name = memory ? memory + w.numbers : 0, w.numbers += (count)
    PART(k_columns, (forward || !kept) * keys * width);
    PART(v_columns, backward * keys * width);
    PART(k_rows, backward * keys * w.pitch);
    PART(v_rows, forward * keys * w.pitch);
    PART(y, forward * piece->queries * w.pitch);
    PART(dq, backward * piece->queries * w.pitch);
    PART(dk, backward * keys * w.pitch);
    PART(dv, backward * keys * w.pitch);
    PART(q_rows, rows * w.pitch);
    PART(dy_rows, backward * rows * w.pitch);
    PART(along, WHOLE(rows, LINE));
    PART(p, rows * w.stride);
    PART(ds, backward * rows * w.stride);
#undef PART
    return w;
}

/* A tile of probabilities, or of their gradients, without those that are dropped. Positions of keys ascend. */
VECTORISED static void NAME(drop_rows)(REAL *p, int64_t stride, int64_t rows, int64_t keys, const struct piece *piece,
                                       int64_t b, int64_t h, int64_t query, int64_t key) {
    struct philox random = {(uint32_t)piece->drop_sequences[b],
                            (uint32_t)(piece->drop_heads[h] << HEAD_BITS | piece->drop_site),
                            (uint32_t)piece->drop_seed, (uint32_t)piece->drop_step,
                            philox_threshold(piece->drop_rate), 1 / (1 - piece->drop_rate)};
    const int64_t *columns = piece->drop_keys + key;
    uint32_t words[4 * PHILOX_GROUPS];
    for (int64_t start = 0, stop; start < keys; start = stop) {
        int64_t first = columns[start] / 4 * 4, last = first + 4 * PHILOX_GROUPS;
        for (stop = start + 1; stop < keys && columns[stop] == columns[start] + stop - start; stop++)
            if (columns[stop] == last) break;
        int64_t offset = columns[start] - first, groups = (offset + stop - start + 3) / 4;
        for (int64_t row = 0; row < rows; row++) {
            REAL *ps = p + row * stride;
            philox_words(first / 4, groups, (uint32_t)piece->drop_queries[query + row], random, words);
#pragma omp simd
            for (int64_t i = start; i < stop; i++)
                ps[i] = words[offset + i - start] < random.threshold ? 0 : ps[i] * (REAL)random.scale;
        }
    }
}

/* Numbers of scratch memory that a thread needs. */
int64_t NAME(attention_room)(const struct piece *piece, int kept) {
    return MAX(NAME(divide)(piece, FORWARD, kept, 0).numbers, NAME(divide)(piece, BACKWARD, kept, 0).numbers);
}

static void NAME(attend_head)(const struct piece *piece, int64_t b, int64_t h, const struct view *q,
                              const struct view *k, const struct view *v, const struct view *y,
                              const struct view *maximum, const struct view *total, const struct view *factors,
                              const struct view *exponentials, REAL *scratch) {
    int kept = exponentials->data != 0;
    int64_t width = piece->width;
    const struct tile *packed = 0;
    struct NAME(work) w = NAME(divide)(piece, FORWARD, kept, scratch);
    NAME(pack_columns)(AT(k, b, h), k->row, piece->keys, width, w.k_columns);
    NAME(pack_rows)(AT(v, b, h), v->row, piece->keys, width, 1, w.v_rows, w.pitch);
    if (!piece->first) NAME(pack_rows)(AT(y, b, h), y->row, piece->queries, width, 1, w.y, w.pitch);
    for (int64_t n = 0; n < piece->tile_count; n++) {
        const struct tile *tile = piece->tiles + n;
        int64_t rows = tile->rows, keys = tile->keys;
        int first = piece->first && tile->first_of_queries;
        REAL *ys = w.y + tile->row * w.pitch, *highest = AT(maximum, b, h) + tile->row, shrink[rows];
        if (!holds(packed, tile)) {
            const REAL *qs = AT(q, b, h) + tile->row * q->row;
            NAME(pack_rows)(qs, q->row, rows, width, (REAL)piece->scale, w.q_rows, w.pitch);
            packed = tile;
        }
        NAME(multiply)(rows, keys, width, LEFT(w.q_rows, w.pitch), COLUMNS_OF(w.k_columns, tile->key),
                       RESULT(w.p, w.stride), 0);
        NAME(softmax_rows)(w.p, w.stride, rows, keys, tile->seen, highest, AT(total, b, h) + tile->row, shrink);
        if (kept) {
            memcpy(AT(factors, b, h) + tile->row, highest, rows * sizeof(REAL));
            NAME(unpack_rows)(w.p, w.stride, rows, keys, 1, AT(exponentials, b, h) + tile->offset, keys, 0);
        }
        if (piece->drop_keys) NAME(drop_rows)(w.p, w.stride, rows, keys, piece, b, h, tile->row, tile->key);
        if (!first) NAME(scale_rows)(ys, w.pitch, shrink, ys, w.pitch, rows, width);
        NAME(multiply)(rows, width, keys, SEEN(w.p, w.stride, tile->seen), ROWS_OF(w.v_rows, tile->key),
                       RESULT(ys, w.pitch), !first);
    }
    NAME(unpack_rows)(w.y, w.pitch, piece->queries, width, 1, AT(y, b, h), y->row, 0);
}

/* `scratch` has `room` numbers a thread. */
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
    int kept = exponentials->data != 0;
    int64_t width = piece->width;
    REAL scale = (REAL)piece->scale;
    const struct tile *packed = 0;
    struct NAME(work) w = NAME(divide)(piece, BACKWARD, kept, scratch);
    NAME(pack_rows)(AT(k, b, h), k->row, piece->keys, width, 1, w.k_rows, w.pitch);
    if (!kept) NAME(pack_columns)(w.k_rows, w.pitch, piece->keys, width, w.k_columns);
    NAME(pack_columns)(AT(v, b, h), v->row, piece->keys, width, w.v_columns);
    /* Backwards: the last tile that has some keys writes their gradients, the others add. */
    for (int64_t n = piece->tile_count - 1; n >= 0; n--) {
        const struct tile *tile = piece->tiles + n;
        int64_t rows = tile->rows;
        const REAL *factor = AT(factors, b, h) + tile->row;
        REAL *dqs = w.dq + tile->row * w.pitch;
        int add_to_q = !tile->last_of_queries, add_to_k = !tile->last_of_keys;
        if (!holds(packed, tile)) {
            NAME(pack_rows)(AT(q, b, h) + tile->row * q->row, q->row, rows, width, scale, w.q_rows, w.pitch);
            NAME(pack_rows)(AT(dy, b, h) + tile->row * dy->row, dy->row, rows, width, 1, w.dy_rows, w.pitch);
            NAME(dot_rows)(w.dy_rows, w.pitch, AT(y, b, h) + tile->row * y->row, y->row, w.along, rows, width);
            packed = tile;
        }
        for (int64_t start = 0; start < tile->keys; start += SPAN, add_to_q = 1) {
            int64_t keys = MIN(SPAN, tile->keys - start), key = tile->key + start, seen = tile->seen - start;
            if (kept) {
                const REAL *e = AT(exponentials, b, h) + tile->offset + start;
                NAME(scale_rows)(e, tile->keys, factor, w.p, w.stride, rows, keys);
            } else {
                NAME(multiply)(rows, keys, width, LEFT(w.q_rows, w.pitch), COLUMNS_OF(w.k_columns, key),
                               RESULT(w.p, w.stride), 0);
                NAME(probability_rows)(w.p, w.stride, rows, keys, seen, factor);
            }
            NAME(multiply)(rows, keys, width, LEFT(w.dy_rows, w.pitch), COLUMNS_OF(w.v_columns, key),
                           RESULT(w.ds, w.stride), 0);
            if (piece->drop_keys) NAME(drop_rows)(w.ds, w.stride, rows, keys, piece, b, h, tile->row, key);
            NAME(softmax_backward_rows)(w.ds, w.p, w.stride, w.along, rows, keys);
            if (piece->drop_keys) NAME(drop_rows)(w.p, w.stride, rows, keys, piece, b, h, tile->row, key);
            NAME(multiply)(keys, width, rows, SEEN_BY(w.p, w.stride, seen), ROWS_OF(w.dy_rows, 0),
                           RESULT(w.dv + key * w.pitch, w.pitch), add_to_k);
            NAME(multiply)(rows, width, keys, SEEN(w.ds, w.stride, seen), ROWS_OF(w.k_rows, key), RESULT(dqs, w.pitch),
                           add_to_q);
            NAME(multiply)(keys, width, rows, SEEN_BY(w.ds, w.stride, seen), ROWS_OF(w.q_rows, 0),
                           RESULT(w.dk + key * w.pitch, w.pitch), add_to_k);
        }
    }
    NAME(unpack_rows)(w.dq, w.pitch, piece->queries, width, scale, AT(dq, b, h), dq->row, !piece->first);
    NAME(unpack_rows)(w.dk, w.pitch, piece->keys, width, 1, AT(dk, b, h), dk->row, !piece->first_of_keys);
    NAME(unpack_rows)(w.dv, w.pitch, piece->keys, width, 1, AT(dv, b, h), dv->row, !piece->first_of_keys);
}

/* `scratch` has `room` numbers a thread. */
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

/* Rows `first` to `stop` of all sequences, the heads of each together: they lie side by side. */
VECTORISED static void NAME(normalise_rows)(const struct view *y, const struct view *total, int64_t first,
                                            int64_t stop, int64_t heads, int64_t rows, int64_t width) {
    for (int64_t n = first; n < stop; n++)
        for (int64_t b = n / rows, row = n % rows, h = 0; h < heads; h++) {
            REAL *ys = AT(y, b, h) + row * y->row, factor = 1 / AT(total, b, h)[row];
#pragma omp simd
            for (int64_t i = 0; i < width; i++) ys[i] *= factor;
        }
}

void NAME(normalise)(const struct view *y, const struct view *total, int64_t sequences, int64_t heads, int64_t rows,
                  int64_t width) {
    PARALLEL {
        NAME(normalise_rows)(y, total, first_row(sequences * rows, THREAD, THREADS),
                             first_row(sequences * rows, THREAD + 1, THREADS), heads, rows, width);
    }
}

#undef AT
#undef FAR
#undef LEFT
#undef SEEN
#undef SEEN_BY
#undef RESULT
#undef ROWS_OF
#undef COLUMNS_OF
