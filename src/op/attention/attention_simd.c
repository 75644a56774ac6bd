/* One tile of attention in vectors: see tile.h.
 *
 * For each block of positions: transpose the keys to (head_dim, block), so that lanes are positions
 * and a score needs no sum across lanes; compute scores; update the running softmax; convert values
 * to float32 rows; update outputs, whose lanes are elements of the head. Keys and values that few
 * queries meet are transposed and converted in registers, without a copy. Both products keep up to
 * REGISTER_ROWS queries times a few vectors in registers. Exponentials have base 2: the scale of
 * the queries includes log2 e. After a segment's last block its state is added to the total.
 */
#include "op/attention/attention_loops.inc"

#include <math.h>

static work lay_out(const attention_tile *tile, void *scratch)
{
    work w = {.head_dim = tile->head_dim,
              .row = (tile->head_dim + 15) / 16 * 16,
              .soft_cap = tile->soft_cap};
    float *next = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    w.q = next;
    w.out = w.q + ATTENTION_TILE * w.row;
    w.scores = w.out + ATTENTION_TILE * w.row;
    w.k = w.scores + ATTENTION_TILE * BLOCK;
    w.v = w.k + w.row * BLOCK;
    w.sums = w.v + BLOCK * w.row;
    w.base = w.sums + ATTENTION_TILE * 16;
    w.shrink = w.base + ATTENTION_TILE;
    w.seen = (int32_t *)(w.shrink + ATTENTION_TILE);
    w.hidden = (uint64_t *)(w.shrink + 2 * ATTENTION_TILE);
    w.total_out = w.shrink + 4 * ATTENTION_TILE;
    w.total_sums = w.total_out + ATTENTION_TILE * w.row;
    w.total_base = w.total_sums + ATTENTION_TILE * 16;
    return w;
}

static void load_queries(const attention_tile *tile, const work *w)
{
    for (int r = 0; r < tile->n_queries; r++) {
        for (int64_t i = 0; i < w->row; i += LANES) {
            vf q = vf_zero();
            if (i < w->head_dim)
                q = vf_load_n(tile->q_type, tile->queries[r].q, i, w->head_dim - i);
            vf_storeu(w->q + r * w->row + i, vf_mul(q, vf_set1(tile->scale)));
        }
    }
}

/* --- states ----------------------------------------------------------------------------------- */

/* A state that has seen nothing, for n queries. */
static void clear(const work *w, int n, float *out, float *sums, float *base)
{
    for (int64_t i = 0; i < n * w->row; i += LANES)
        vf_storeu(out + i, vf_zero());
    for (int i = 0; i < n * 16; i += LANES)
        vf_storeu(sums + i, vf_zero());
    for (int r = 0; r < n; r++)
        base[r] = -INFINITY;
}

static void begin_segment(const attention_tile *tile, const work *w)
{
    clear(w, tile->n_queries, w->out, w->sums, w->base);
}

/* to = to * a + from * b */
static void add_scaled(float *to, vf a, const float *from, vf b, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        vf_storeu(to + i, vf_fma(vf_loadu(from + i), b, vf_mul(vf_loadu(to + i), a)));
}

/* Adds a state of query r, which lies as state_of() says, to the total. */
static void add_state(const work *w, int r, const float *out, const float *sums, float base)
{
    const float before = w->total_base[r], maximum = before > base ? before : base;
    const float common = maximum == -INFINITY ? 0 : maximum;
    const vf a = vf_exp2_flush(vf_set1(before - common)), b = vf_exp2_flush(vf_set1(base - common));
    add_scaled(w->total_out + r * w->row, a, out, b, w->row);
    add_scaled(w->total_sums + r * 16, a, sums, b, 16);
    w->total_base[r] = maximum;
}

static void end_segment(const attention_tile *tile, const work *w)
{
    for (int r = 0; r < tile->n_queries; r++)
        add_state(w, r, w->out + r * w->row, w->sums + r * 16, w->base[r]);
}

/* Query r's state of a segment: out (row), sums (16), base. */
static float *state_of(const attention_tile *tile, const work *w, int r, int64_t segment)
{
    return tile->queries[r].states + segment * attention_state_floats(w->head_dim);
}

static void store_states(const attention_tile *tile, const work *w)
{
    for (int r = 0; r < tile->n_queries; r++) {
        float *state = state_of(tile, w, r, tile->segment);
        memcpy(state, w->out + r * w->row, (size_t)w->row * sizeof *state);
        memcpy(state + w->row, w->sums + r * 16, 16 * sizeof *state);
        state[w->row + 16] = w->base[r];
    }
}

static void add_stored_states(const attention_tile *tile, const work *w)
{
    for (int r = 0; r < tile->n_queries; r++)
        for (int64_t s = 0; s < tile->n_segments; s++) {
            const float *state = state_of(tile, w, r, s);
            add_state(w, r, state, state + w->row, state[w->row + 16]);
        }
}

/* --- rows of the cache ------------------------------------------------------------------------ */

/* Finds the rows of positions [first, limit), at most one block. */
static void find_rows(const attention_source *source, const tensor *cache, int64_t first,
                      int64_t limit, block_rows *rows)
{
    const int64_t page_size = cache->shape[1], stride = cache->stride[1];
    const int64_t count = limit - first < BLOCK ? limit - first : BLOCK;
    int n = 0;
    rows->n = count > 0 ? (int)count : 0;
    if (rows->n == 0) return; /* there may be no pages, of no size */
    int64_t page = first / page_size, slot = first % page_size;
    for (; n < rows->n; page++, slot = 0) {
        const char *row = tensor_row2(cache, source->pages[page], slot);
        const int64_t left = page_size - slot;
        const int end = left < rows->n - n ? n + (int)left : rows->n;
        for (; n < end; n++, row += stride)
            rows->row[n] = row;
    }
    for (; n < BLOCK; n++)
        rows->row[n] = rows->row[0];
}

static void find_pair(const attention_tile *tile, int64_t first, int64_t limit, block_pair *out)
{
    find_rows(tile->source, &tile->source->k, first, limit, &out->k);
    find_rows(tile->source, &tile->source->v, first, limit, &out->v);
}

static void move_to_head(const attention_tile *tile, int64_t kv_head, block_pair *rows)
{
    rows->k.head = kv_head * tile->source->k.stride[2];
    rows->v.head = kv_head * tile->source->v.stride[2];
}

/* --- the values of all positions ---------------------------------------------------------------
 */

/* Positions [from, to) for one row, whose next positions find their sums rescaled. */
static void add_values_of_row(const work *w, const type_loops *type, const block_rows *rows,
                              const block_pair *next, int r, int from, int to)
{
    for (int64_t i = 0; i < w->row; i += LANES)
        type->weigh_one[0](w, rows, next, r, i, from, to);
    w->shrink[r] = 1;
}

/* The positions of a row that sees only some of the first ones, one run of them after another. */
static void add_seen_values(const work *w, const type_loops *type, const block_rows *rows,
                            const block_pair *next, int r)
{
    for (int from = 0, to; from < w->seen[r]; from = to + 1) {
        while (w->hidden[r] >> from & 1)
            from++;
        to = from + 1;
        while (to < w->seen[r] && !(w->hidden[r] >> to & 1))
            to++;
        add_values_of_row(w, type, rows, next, r, from, to);
    }
}

/* The number of first positions that all n rows see; 0 if something is hidden from one. */
static int common_of(const work *w, int first, int n)
{
    int common = BLOCK;
    for (int r = first; r < first + n; r++) {
        if (w->hidden[r]) return 0;
        common = w->seen[r] < common ? w->seen[r] : common;
    }
    return common;
}

/* All positions of the rows: first those that every row sees, then the rest one row at a time. */
static void add_values(const work *w, const type_loops *type, const block_rows *rows,
                       const block_pair *next, int first, int n)
{
    const int common = common_of(w, first, n);
    const int64_t wide_end = w->row / (WIDE * LANES) * (WIDE * LANES);
    if (common > 0) {
        for (int64_t i = 0; i < wide_end; i += WIDE * LANES)
            type->weigh[n - 1](w, rows, next, first, i, 0, common);
        for (int64_t i = wide_end; i < w->row; i += LANES)
            type->weigh_one[n - 1](w, rows, next, first, i, 0, common);
    }
    for (int r = first; r < first + n; r++) {
        if (common > 0) w->shrink[r] = 1;
        if (w->hidden[r])
            add_seen_values(w, type, rows, next, r);
        else if (w->seen[r] > common)
            add_values_of_row(w, type, rows, next, r, common, w->seen[r]);
    }
}

/* Passes queries [*first, to), at most REGISTER_ROWS at once and as evenly as possible: the number
 * of the next ones, 0 after the last. */
static int next_rows(int first, int to)
{
    const int groups = (to - first + REGISTER_ROWS - 1) / REGISTER_ROWS;
    return groups ? (to - first + groups - 1) / groups : 0;
}

/* --- the softmax ----------------------------------------------------------------------------- */

/* Caps a query's scores, and then takes those out that it does not see. */
static void limit_scores(const work *w, int r)
{
    float *scores = w->scores + r * BLOCK;
    vf cap = vf_set1(w->soft_cap);
    for (int i = 0; w->soft_cap != 0 && i < BLOCK; i += LANES)
        vf_storeu(scores + i, vf_mul(cap, vf_tanh(vf_div(vf_loadu(scores + i), cap))));
    for (uint64_t hidden = w->hidden[r]; hidden; hidden &= hidden - 1)
        scores[__builtin_ctzll(hidden)] = -INFINITY;
}

/* Moves a query's base to suit the block, and converts the block's scores to weights. */
static void soften(const work *w, int r)
{
    int seen = w->seen[r];
    float *scores = w->scores + r * BLOCK;
    w->shrink[r] = 1;
    if (seen == 0) return;
    if (w->soft_cap != 0 || w->hidden[r]) limit_scores(w, r);
    vf score[BLOCK_VECTORS], largest = vf_set1(-INFINITY);
    for (int i = 0; i < BLOCK_VECTORS; i++) {
        score[i] = vf_first_n(vf_loadu(scores + i * LANES), seen - i * LANES, vf_set1(-INFINITY));
        largest = vf_max(score[i], largest);
    }
    float before = w->base[r], maximum = vf_max_of_lanes(largest);
    if (before > maximum) maximum = before;
    float base = maximum == -INFINITY ? 0 : maximum;
    vf shrink = vf_exp2_flush(vf_set1(before - base)), sums[SUMS];
    for (int i = 0; i < SUMS; i++)
        sums[i] = vf_mul(vf_loadu(w->sums + r * 16 + i * LANES), shrink);
    for (int i = 0; i < BLOCK_VECTORS; i++) {
        vf weight = vf_exp2_flush(vf_sub(score[i], vf_set1(base)));
        vf_storeu(scores + i * LANES, weight);
        sums[i % SUMS] = vf_add(sums[i % SUMS], weight);
    }
    for (int i = 0; i < SUMS; i++)
        vf_storeu(w->sums + r * 16 + i * LANES, sums[i]);
    w->base[r] = maximum;
    float one[LANES];
    vf_storeu(one, shrink);
    w->shrink[r] = one[0];
}

static void finish(const attention_tile *tile, const work *w)
{
    for (int r = 0; r < tile->n_queries; r++) {
        vf sums[SUMS];
        for (int i = 0; i < SUMS; i++)
            sums[i] = vf_loadu(w->total_sums + r * 16 + i * LANES);
        float sum = vf_total(sums), inverse = sum == 0 ? 0 : 1 / sum;
        for (int64_t i = 0; i < w->head_dim; i += LANES) {
            vf out = vf_mul(vf_loadu(w->total_out + r * w->row + i), vf_set1(inverse));
            vf_store_n(tile->out_type, tile->queries[r].out, i, w->head_dim - i, out);
        }
        float *lse = tile->queries[r].lse, base = w->total_base[r];
        if (base == -INFINITY) base = 0;
        if (lse) *lse = sum == 0 ? -INFINITY : (float)(base + log2((double)sum));
    }
}

/* Whether score_halves() meets the n queries of a head: keys that are met once need no copy. */
static bool in_halves(const work *w, const type_loops *k, int n)
{
    return k->score_halves[0] && n <= REGISTER_ROWS && w->head_dim % HALVES_TOGETHER == 0;
}

/* One block for queries [from, to), which share a KV head; `next` is what to prefetch. */
static void run_block(const work *w, const type_loops *k, const type_loops *v,
                      const block_pair *now, const block_pair *next, int from, int to)
{
    if (in_halves(w, k, to - from))
        k->score_halves[to - from - 1](w, &now->k, next, from);
    else
        for (int strip = 0; strip < BLOCK; strip += STRIP) {
            k->load_keys(&now->k, next, strip, w);
            for (int first = from, n; (n = next_rows(first, to)) > 0; first += n)
                score_strip[n - 1](w, strip, first);
        }
    for (int r = from; r < to; r++)
        soften(w, r);
    /* Values that are read once need no copy, if they fill whole vectors. */
    if (to - from <= REGISTER_ROWS && w->row == w->head_dim) {
        add_values(w, v, &now->v, next, from, to - from);
        return;
    }
    block_rows copies = {.n = now->v.n};
    for (int n = 0; n < now->v.n; n++)
        copies.row[n] = (const char *)(w->v + n * w->row);
    v->load_values(&now->v, next, w);
    for (int first = from, n; (n = next_rows(first, to)) > 0; first += n)
        add_values(w, &loops_F32, &copies, NULL, first, n);
}

_Static_assert(BLOCK == 64, "a word has a bit for each position of a block");

/* What a query sees of the block that begins at `first`. */
static void find_seen(const attention_range *range, int64_t first, int32_t *seen, uint64_t *hidden)
{
    int64_t end = range->end - first;
    *seen = end < 0 ? 0 : end > BLOCK ? BLOCK : (int32_t)end;
    *hidden = 0;
    if (*seen == 0 || (range->first <= first && !range->mask)) return;
    int last = -1;
    for (int j = 0; j < *seen; j++) {
        if (attention_sees(range, first + j))
            last = j;
        else
            *hidden |= (uint64_t)1 << j;
    }
    *seen = last + 1;
    *hidden &= last < 0 ? 0 : ~(uint64_t)0 >> (BLOCK - 1 - last);
}

/* The first query after `from` of another KV head. */
static int end_of_head(const attention_tile *tile, int from)
{
    int to = from + 1;
    while (to < tile->n_queries && tile->queries[to].kv_head == tile->queries[from].kv_head)
        to++;
    return to;
}

/* Lays out the queries as score_halves() reads them, element by element. */
static void interleave_queries(const attention_tile *tile, const work *w, const type_loops *k)
{
    for (int from = 0, to; from < tile->n_queries; from = to) {
        to = end_of_head(tile, from);
        const int n = to - from;
        if (!in_halves(w, k, n)) continue;
        float *q = w->q + from * w->row;
        memcpy(w->v, q, (size_t)(n * w->row) * sizeof *q);
        for (int64_t i = 0; i < n * w->row; i++)
            q[i] = w->v[i % n * w->row + i / n];
    }
}

/* Loops over the blocks of positions [begin, end), and in each block over the tile's KV heads: a
 * page has all of them. There are positions up to `limit`, to prefetch. */
static void run_blocks(const attention_tile *tile, const work *w, int64_t begin, int64_t end,
                       int64_t limit)
{
    const type_loops *k = loops_of(tile->source->k.type), *v = loops_of(tile->source->v.type);
    block_pair pairs[2], *now = &pairs[0], *next = &pairs[1];
    interleave_queries(tile, w, k);
    begin_segment(tile, w);
    find_pair(tile, begin, limit, now);
    for (int64_t first = begin; first < end; first += BLOCK) {
        if (first % ATTENTION_SEGMENT == 0 && first > begin) {
            end_segment(tile, w);
            begin_segment(tile, w);
        }
        find_pair(tile, first + BLOCK, limit, next);
        if (next->k.n == 0) *next = *now; /* the last block prefetches itself */
        for (int r = 0; r < tile->n_queries; r++)
            find_seen(&tile->queries[r].range, first, &w->seen[r], &w->hidden[r]);
        for (int from = 0, to; from < tile->n_queries; from = to) {
            to = end_of_head(tile, from);
            move_to_head(tile, tile->queries[from].kv_head, now);
            move_to_head(tile, tile->queries[from].kv_head, next);
            run_block(w, k, v, now, next, from, to);
        }
        block_pair *done = now;
        now = next;
        next = done;
    }
}

/* Positions [*begin, *limit) are those that the queries see, and *begin that of a block. */
static void find_range(const attention_tile *tile, int64_t *begin, int64_t *limit)
{
    *begin = INT64_MAX;
    *limit = 0;
    for (int r = 0; r < tile->n_queries; r++) {
        const attention_range *range = &tile->queries[r].range;
        *limit = range->end > *limit ? range->end : *limit;
        *begin = range->first < *begin ? range->first : *begin;
    }
    *begin = *begin / BLOCK * BLOCK; /* the blocks before it are seen by none */
}

static void run_segment(const attention_tile *tile, const work *w, int64_t begin, int64_t limit)
{
    const int64_t first = tile->segment * ATTENTION_SEGMENT, after = first + ATTENTION_SEGMENT;
    load_queries(tile, w);
    run_blocks(tile, w, begin > first ? begin : first, limit < after ? limit : after, limit);
    store_states(tile, w);
}

void SIMD_NAME(attention_tile)(const attention_tile *tile, void *scratch)
{
    work w = lay_out(tile, scratch);
    int64_t begin, limit;
    find_range(tile, &begin, &limit);
    if (tile->task == ATTENTION_STATE) {
        run_segment(tile, &w, begin, limit);
        return;
    }
    clear(&w, tile->n_queries, w.total_out, w.total_sums, w.total_base);
    if (tile->task == ATTENTION_MERGE) {
        add_stored_states(tile, &w);
    } else {
        load_queries(tile, &w);
        run_blocks(tile, &w, begin, limit, limit);
        end_segment(tile, &w);
    }
    finish(tile, &w);
}
