/* What blocks do for two to eight rows, each a token of a sequence.
 *
 * It differs from one sequence in two ways. One block computes a row's attention within a KV head
 * and stores its outputs tagged, as q, k and v are; if every block repeated it, each would read
 * eight caches. And two warps of each block publish a share of the residual to all blocks
 * (batch_x.cuh).
 */
#pragma once

#if MEGA_QUANT_TYPES
#include "vm/mega/batch_fragments.cuh"
#else
#include "vm/mega/batch_product.cuh"
#endif
#include "vm/mega/rows.cuh"
#include "vm/mega/batch_attention.cuh"

/* ---- norm, QKV, RoPE, append ---- */

/* What pair i / MEGA_ROWS of row i % MEGA_ROWS needs when its sums are complete. */
struct pair_inputs {
    const float *cosine, *sine, *page;
    const float *biases; /* two; NULL: there are none */
    int position;
};
template <int DIM>
MEGA_FN pair_inputs pair_inputs_at(const mega_arguments &a, const mega_block &b,
                                   const mega_entry &e, int i)
{
    const instruction &in = e.in;
    int row = i % MEGA_ROWS, position = row_position(a, b.pass(), row);
    int pair = (in.units.begin + i / MEGA_ROWS) % (DIM / 2);
    const int angles = turning_of(e) ? 0 : position; /* of position 0 they are 0 */
    const float *table = (const float *)a.rope_table + (int64_t)angles * DIM + pair;
    const float *pages = (const float *)a.pages + a.rows[row].first_page;
    const float *biases = biases_of(e);
    if (biases) biases += 2 * (in.units.begin + i / MEGA_ROWS);
    return {table, table + DIM / 2, pages + position / a.page_size, biases, position};
}

/* Copies those of the pairs that threads finish first to where features will be. */
template <int DIM>
MEGA_FN void fetch_pair_inputs(const mega_arguments &a, const mega_block &b, const mega_entry &e)
{
    const instruction &in = e.in;
    int i = b.thread, n = (in.units.end - in.units.begin) * MEGA_ROWS;
    if (in.opcode != MEGA_QKV || i >= min(n, (int)MEGA_EARLY_PAIRS) || i % MEGA_ROWS >= a.n_rows)
        return;
    pair_inputs from = pair_inputs_at<DIM>(a, b, e, i);
    uint32_t to = b.own + a.shared.features + 4 * MEGA_EARLY_WORDS * i;
    copy_4(to, from.cosine);
    copy_4(to + 4, from.sine);
    copy_4(to + 8, from.page);
}

/* One pair's values, after RoPE for q and k, to the KV head's list and to the cache. */
template <int DIM, bool HALF>
MEGA_FN void store_pair(const mega_arguments &a, const mega_block &b, const mega_entry &e, int unit,
                        int row, float *v, float cosine, float sine, int position, int page)
{
    const instruction &in = e.in;
    qkv_pair p = qkv_pair_at<DIM>(a, unit);
    if (turning_of(e) & MEGA_NORMED && p.kind == PAIR_KEY) p.kind = PAIR_QUERY; /* not yet */
    if (p.kind != PAIR_VALUE) {
        float first = __fmaf_rn(v[0], cosine, -__fmul_rn(v[1], sine));
        v[1] = __fmaf_rn(v[1], cosine, __fmul_rn(v[0], sine));
        v[0] = first;
    }
    int64_t head = ((int64_t)in.layer * a.pages_per_layer + page) * a.n_kv_heads + p.kv_head;
    int64_t place = head * a.page_size + position % a.page_size;
    uint16_t *cache = (uint16_t *)(p.kind == PAIR_KEY ? a.k_cache : a.v_cache) + place * DIM;
    int64_t *list = qkv_list<DIM>(a, in, p.kv_head, row) + p.member * DIM;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (p.kind != PAIR_QUERY) {
            uint16_t bits = cache_bits<DIM, HALF>(v[i]);
            cache[p.features[i]] = bits;
            v[i] = cache_float<HALF>(bits);
        }
        store_tagged(b, list, p.features[i], v[i]);
    }
}

template <int DIM, bool HALF>
MEGA_FN void finish_batch_qkv(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const instruction &in = e.in;
    int n = in.units.end - in.units.begin;
    const float *results = b.at<float>(a.shared.results), *early = b.at<float>(a.shared.features);
#pragma unroll 1
    for (int i = b.thread; i < n * MEGA_ROWS; i += MEGA_CONSUMERS) {
        int row = i % MEGA_ROWS, unit = i / MEGA_ROWS;
        if (row >= a.n_rows) continue;
        pair_inputs inputs = pair_inputs_at<DIM>(a, b, e, i);
        const float *mine = early + MEGA_EARLY_WORDS * i;
        bool here = i < MEGA_EARLY_PAIRS;
        float cosine = here ? mine[0] : *inputs.cosine;
        float sine = here ? mine[1] : *inputs.sine;
        int page = __float_as_int(here ? mine[2] : *inputs.page);
        const float *at =
            results + row * a.shared.result_pitch + (unit >> 2) * MEGA_TILE + (unit & 3);
        float inverse = batch_inverse_rms(a, b, row, false);
        float v[2] = {at[0] * inverse, at[4] * inverse};
        if (MEGA_FAMILIES && inputs.biases) {
            v[0] = fmaf(at[0], inverse, inputs.biases[0]);
            v[1] = fmaf(at[4], inverse, inputs.biases[1]);
        }
        store_pair<DIM, HALF>(a, b, e, in.units.begin + unit, row, v, cosine, sine, inputs.position,
                              page);
    }
}

/* ---- norm, gate, up, SiLU, down ---- */

template <int BLOCKS>
MEGA_FN void finish_batch_mlp(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    int n = e.in.units.end - e.in.units.begin;
    uint32_t tag = part_tag(a, b, e.in);
    int up = (n + MEGA_TILE - 1) / MEGA_TILE * MEGA_TILE; /* row of the first result of W_up */
    uint16_t *planes = b.at<uint16_t>(a.shared.features);
    const float *results = b.at<float>(a.shared.results);
    int padded = (int)a.shared.feature_row - MEGA_TILE;
    const int lead = features_lead(e.in.units.begin);
    static_assert(MEGA_WARPS == 2 * MEGA_ROWS, "two warps a row");
    int row = b.warp / 2;
    bool there = row < a.n_rows;
    float inverse = batch_inverse_rms(a, b, row, false);
    if (there) results += row * a.shared.result_pitch;
    planes += row * a.shared.feature_row;
#pragma unroll 1
    for (int place = b.thread & 63; place < padded; place += 64) {
        const int i = place - lead;
        const bool mine = i >= 0 && i < n;
        float v = there && mine ? gated(results[i] * inverse, results[up + i] * inverse) : 0;
        uint16_t parts[MEGA_PARTS];
        split_float(v, parts, 1);
#pragma unroll
        for (int p = 0; p < MEGA_PARTS; p++)
            planes[plane_place(place) + p * a.shared.feature_plane] = parts[p];
        if (mine && a.peers > 1)
            store_relaxed(feature_list(a, row) + e.in.units.begin + i, tagged_feature(parts, tag));
    }
    b.sync();
#if MEGA_QUANT_TYPES
    multiply_down_fragments(a, b, e, tag);
#else
    batch_transposed<BLOCKS>(a, b, e, tag);
#endif
}

/* ---- logits ---- */

/* Logits of `rows` rows of weights, and the largest key so far for each warp; two warps have a row
 * of x. */
MEGA_FN void finish_batch_logits(const mega_arguments &a, mega_block &b, int begin, int rows,
                                 bool first)
{
    int row = b.warp / 2;
    uint64_t *keys = b.at<uint64_t>(a.shared.keys), best = 0;
    if (row < a.n_rows) {
        float inverse = batch_inverse_rms(a, b, row, true);
        const float *results = b.at<float>(a.shared.results) + row * a.shared.result_pitch;
#pragma unroll 1
        for (int i = b.thread & 63; i < rows; i += 64) {
            float v = results[i] * inverse;
            ((float *)a.logits)[(int64_t)row * a.vocab + begin + i] = v;
            best = max(best, logit_key(a, v, begin + i));
        }
    }
#pragma unroll
    for (int o = 16; o; o >>= 1)
        best = max(best, __shfl_xor_sync(~0u, best, o));
    if (b.lane == 0) keys[b.warp] = first ? best : max(best, keys[b.warp]);
    b.sync();
}

MEGA_FN void finish_batch_pass(const mega_arguments &a, mega_block &b)
{
    const uint64_t *keys = b.at<uint64_t>(a.shared.keys);
    if (b.thread < a.n_rows)
        atomicMax((unsigned long long *)a.key + ((b.pass() + 1) & 1) * MEGA_ROWS + b.thread,
                  (unsigned long long)max(keys[2 * b.thread], keys[2 * b.thread + 1]));
    b.sync();
    if (b.thread == 0) add_release((uint32_t *)a.counters);
}

/* ---- norm and rows of weights ---- */

/* What an entry multiplies. */
struct batch_rows {
    int begin, n, tiles; /* rows; tiles of 8 */
    int at_once;         /* tiles whose results there is room for */
    bool logits, mlp;

    /* each: tiles in a turn. */
    MEGA_FN batch_rows(const mega_arguments &a, const instruction &in, int each)
    {
        begin = in.units.begin, n = in.units.end - begin;
        logits = in.opcode == MEGA_LOGITS, mlp = in.opcode == MEGA_MLP;
        tiles = ((logits || mlp ? n : 2 * n) + MEGA_TILE - 1) / MEGA_TILE;
        int room = (int)a.shared.result_pitch - 4;
        asm volatile("" : "+r"(room)); /* computed here, not once for all, which takes registers */
        at_once = logits ? room / MEGA_TILE / each * each : tiles;
    }
    /* Reads it from the entry again, so that it is in no register while x is multiplied. */
    MEGA_FN void read_again(const mega_arguments &a, mega_block &b, int each)
    {
        if (!MEGA_PACKS) return;
        b.reload();
        *this = batch_rows(a, b.current().in, each);
    }
};

template <int DIM, bool HALF, int BLOCKS>
MEGA_FN void run_batch_rows(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int each = batch_shape<BLOCKS>::TILES;
    batch_rows rows(a, e.in, each);
    fetch_pair_inputs<DIM>(a, b, e);
    const int step = rows.logits ? 2 * a.n_layers : 2 * e.in.layer + rows.mlp;
#if MEGA_QUANT_TYPES
    row_vectors<BLOCKS> x;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
        read_batch<1>(a, b, e, step, x.of + 8 * block, block);
    x.add_up();
#else
    uint32_t x[8][MEGA_PARTS][2];
    read_batch<BLOCKS>(a, b, e, step, x);
#endif
    for (int turn = 0;;) {
#pragma unroll 1
        for (int matrix = 0;; matrix++) {
            rows.read_again(a, b, each);
            if (matrix > rows.mlp) break;
            const int tiles = min(rows.at_once, rows.tiles - (rows.logits ? turn * each : 0));
#if MEGA_QUANT_TYPES
            multiply_fragments<DIM>(a, b, x, matrix, tiles, matrix * rows.tiles * MEGA_TILE, turn);
#else
            multiply_batch<BLOCKS>(a, b, x, tiles, matrix * rows.tiles * MEGA_TILE, rows.logits,
                                   turn);
#endif
        }
        b.sync();
        rows.read_again(a, b, each);
        if (!rows.logits) break;
        const int first = (turn * each - 1) / rows.at_once * rows.at_once; /* tile */
        finish_batch_logits(a, b, rows.begin + first * MEGA_TILE,
                            min(rows.at_once * MEGA_TILE, rows.n - first * MEGA_TILE), first == 0);
        if (first + rows.at_once >= rows.tiles) break;
    }
    b.reload();
    const mega_entry &again = b.current();
    b.stamp(a, MEGA_SIGNALS);
    if (again.in.opcode == MEGA_LOGITS)
        finish_batch_pass(a, b);
    else if (again.in.opcode == MEGA_MLP)
        finish_batch_mlp<BLOCKS>(a, b, again);
    else
        finish_batch_qkv<DIM, HALF>(a, b, again);
}

/* ---- a pass's two ends ---- */

/* Elements of a token's row of the embedding from a column on, which is a multiple of their number.
 */
enum { EMBEDDING_EACH = MEGA_QUANT_TYPES ? 8 : 1 };
MEGA_FN void embedding_elements(const mega_arguments &a, int token, int column, float *out)
{
#if MEGA_QUANT_TYPES
    const char *row = (const char *)a.embedding + (int64_t)token * a.embedding_bytes;
    decode8<DTYPE_COUNT>((dtype)a.embedding_type, row, column, out);
#else
    out[0] = wide_float(((const uint16_t *)a.embedding)[(int64_t)token * a.hidden + column]);
#endif
}

MEGA_FN void run_batch_embedding(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int begin = e.in.units.begin, n = e.in.units.end - begin;
    if (b.thread == 0) {
        wait_counter(a, b, e.in, 0, b.pass() * gridDim.x);
        barrier_arrive(b.own + a.shared.flow + FLOW_BEGUN);
    }
    b.sync();
    bool given = b.pass() == a.first_pass;
    volatile uint64_t *keys = (volatile uint64_t *)a.key;
    int64_t *sums = batch_sums(a, b.pass(), 0), *next = batch_sums(a, b.pass() + 1, 0);
    uint32_t *published = batch_published(a, b.pass() + 1, 0);
    const int each = EMBEDDING_EACH, aligned = begin / each * each;
    const int groups = (begin + n - aligned + each - 1) / each;
#pragma unroll 1
    for (int i = b.thread; i < groups * MEGA_ROWS; i += MEGA_CONSUMERS) {
        int row = i / groups, column = aligned + i % groups * each;
        if (row >= a.n_rows) break;
        int token = given ? a.rows[row].token
                          : a.vocab - 1 - (int)(uint32_t)keys[(b.pass() & 1) * MEGA_ROWS + row];
        float v[each];
        embedding_elements(a, token, column, v);
#pragma unroll
        for (int j = 0; j < each; j++)
            if (column + j >= begin && column + j < begin + n)
                store_relaxed(sums + residual_place(column + j, row), fixed_part(v[j]));
    }
    int share = n * MEGA_ROWS;
#pragma unroll 1
    for (int i = b.thread; i < share * (2 * a.n_layers + 1); i += MEGA_CONSUMERS) {
        size_t at = residual_step(a, i / share) + begin * MEGA_ROWS + i % share;
        next[at] = 0;
        published[at] = NOT_PUBLISHED;
    }
    signal_added(a, b);
    b.sync();
    if (blockIdx.x == 0 && b.thread < MEGA_ROWS)
        keys[((b.pass() + 1) & 1) * MEGA_ROWS + b.thread] = 0;
}

/* The pass's tokens, for the host. */
MEGA_FN void report_tokens(const mega_arguments &a, mega_block &b, const instruction &in)
{
    if (blockIdx.x) return;
    if (b.thread == 0) wait_counter(a, b, in, 0, (b.pass() + 1) * gridDim.x);
    b.sync();
    if (b.thread >= a.n_rows) return;
    uint64_t key = ((volatile uint64_t *)a.key)[((b.pass() + 1) & 1) * MEGA_ROWS + b.thread];
    ((volatile int32_t *)a.tokens_out)[(b.pass() - a.first_pass) * a.n_rows + b.thread] =
        a.vocab - 1 - (int)(uint32_t)key;
}
