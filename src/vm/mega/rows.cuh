/* A norm, then rows of weights: QKV with RoPE and append, the MLP, the logits. */
#pragma once

#include "vm/mega/heads.cuh"
#include "vm/mega/pass.cuh"

/* ---- norm, QKV, RoPE, append ---- */

#if MEGA_CACHE_F8
typedef uint8_t cache_element;
#else
typedef uint16_t cache_element;
#endif

template <int DIM, bool HALF> MEGA_FN uint16_t cache_bits(float v)
{
    if (MEGA_CACHE_F8) return f8_pair(v, 0);
    if (HALF) return __half_as_ushort(__float2half_rn(v));
    return __bfloat16_as_ushort(__float2bfloat16(v));
}
template <bool HALF> MEGA_FN float cache_float(uint16_t bits)
{
    if (MEGA_CACHE_F8) {
        uint32_t pairs[2];
        half_numbers(bits, pairs);
        bits = (uint16_t)pairs[0];
    }
    if (HALF) return __half2float(__ushort_as_half(bits));
    return __bfloat162float(__ushort_as_bfloat16(bits));
}

/* What a pair of QKV needs when its sums are complete, loaded and computed before. In shared
 * memory, because registers are few while rows are multiplied. */
struct qkv_early {
    float cosine, sine;
    int32_t page;
    uint32_t position; /* in the cache of keys or values, without the page */
    /* Of each feature: four times its place in the KV head's list, plus its kind. */
    uint32_t row_kind[2];
    float bias[2];
};
static_assert(sizeof(qkv_early) == MEGA_EARLY_BYTES, "as the host counts it");

/* Half a warp loads what the block's pair needs. */
template <int DIM>
MEGA_FN void fetch_qkv_early(const mega_arguments &a, const mega_block &b, const mega_entry &e,
                             int pair)
{
    const instruction &in = e.in;
    int position = a.first_position + (int)(b.pass() - a.first_pass), lane = b.lane & 15;
    const int unit = max(min(in.units.begin + pair, in.units.end - 1), 0);
    qkv_pair p = qkv_pair_at<DIM>(a, unit);
    const int angles = turning_of(e) ? 0 : position; /* of position 0 they are 0 */
    const float *table = (const float *)a.rope_table + (int64_t)angles * DIM + p.pair;
    const float *from =
        lane < 2 ? table + lane * (DIM / 2) : (const float *)a.pages + position / a.page_size;
    if (MEGA_FAMILIES && lane > 2) from = biases_of(e) + 2 * unit + lane % 2;
    qkv_early *to = b.at<qkv_early>(a.shared.features) + pair % (2 * MEGA_WARPS);
    if (lane < 3 || (lane / 2 == 2 && biases_of(e)))
        copy_4((uint32_t)__cvta_generic_to_shared(to) + 4 * (lane < 3 ? lane : lane + 2), from);
    copies_commit();
    if (lane % 8) return;
    if (!biases_of(e)) to->bias[lane / 8] = 0;
    int row = (p.kv_head * (a.group + 2) + p.member) * DIM + (lane ? p.features[1] : p.features[0]);
    /* A key before its norm is stored as a query is, and not in the cache. */
    const bool later = turning_of(e) & MEGA_NORMED && p.kind == PAIR_KEY;
    to->row_kind[lane / 8] = 4u * row + (later ? (int)PAIR_QUERY : p.kind);
    to->position =
        (uint32_t)(in.layer * a.pages_per_layer * a.n_kv_heads + p.kv_head) * a.page_size +
        position % a.page_size;
}

/* Pairs' sums to the KV head's list and to the cache. Sixteen lanes have a pair, eight of them one
 * of its rows. */
template <int DIM, bool HALF>
MEGA_FN void finish_qkv(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    int n = e.in.units.end - e.in.units.begin;
    int64_t *list = qkv_list<DIM>(a, e.in, 0, 0);
    b.stamp(a, MEGA_SIGNALS);
#pragma unroll 1
    for (int first = 2 * b.warp; first < n; first += 2 * MEGA_WARPS) {
        int pair = first + (b.lane >> 4), row = min(pair, n - 1), second = b.lane >> 3 & 1;
        if (first >= 2 * MEGA_WARPS) {
            __syncwarp(); /* all lanes have read the previous pair */
            fetch_qkv_early<DIM>(a, b, e, pair);
        }
        copies_arrived<0>();
        __syncwarp();
        const qkv_early &early = b.at<qkv_early>(a.shared.features)[pair % (2 * MEGA_WARPS)];
        int kind = early.row_kind[second] % 4, at = early.row_kind[second] / 4;
        row = (row >> 2) * MEGA_TILE + (row & 3) + 4 * second;
        float v = fmaf(row_sum_by_eight(a, b, row, row_slices(a, e, kind)),
                       inverse_rms_by_eight(a, b), early.bias[second]);
        float other = __fmul_rn(__shfl_xor_sync(~0u, v, 8), early.sine);
        if (kind != PAIR_VALUE) v = __fmaf_rn(v, early.cosine, second ? other : -other);
        if (b.lane % 8 || pair >= n) continue;
        uint16_t bits = cache_bits<DIM, HALF>(v);
        if (kind != PAIR_QUERY) v = cache_float<HALF>(bits);
        store_relaxed(list + at, (int64_t)((uint64_t)(b.pass() + 1) << 32 | __float_as_uint(v)));
        if (kind == PAIR_QUERY) continue;
        uint32_t position = early.position + (uint32_t)early.page * a.n_kv_heads * a.page_size;
        cache_element *cache = (cache_element *)(kind == PAIR_KEY ? a.k_cache : a.v_cache);
        cache[(int64_t)position * DIM + at % DIM] = (cache_element)bits;
    }
}

/* ---- norm, gate, up, SiLU, down ---- */

MEGA_FN float gated(float gate, float up)
{
    return gate / (1 + __expf(-gate)) * up;
}

/* Feature i of the block from its sums; 0 if i is not one of its n features. */
MEGA_FN float feature_of(const mega_arguments &a, const mega_entry &e, int i, int n, float gate,
                         float up)
{
    if (i < 0 || i >= n) return 0;
    if (biases_of(e)) {
        const float *biases = biases_of(e) + e.in.units.begin + i;
        gate += biases[0], up += biases[a.n_features];
    }
    return gated(gate, up);
}

/* The `n` features from their sums; `up`: W_up's first row. Eight lanes have a feature; with
 * fragments one lane, so that a warp has the columns that share a unit. */
MEGA_FN void make_features(const mega_arguments &a, mega_block &b, const mega_entry &e, int n,
                           int up)
{
    const int each = MEGA_QUANT_TYPES ? 32 : 4, lead = features_lead(e.in.units.begin);
#pragma unroll 1
    for (int first = each * b.warp; first < lead + up; first += each * MEGA_WARPS) {
        float inverse = inverse_rms_by_eight(a, b), v;
#if MEGA_QUANT_TYPES
        const int place = first + b.lane, i = place - lead, row = max(min(i, n - 1), 0);
        const int slices = row_slices(a, e, 0);
        float gate = row_sum(a, b, row, slices) * inverse;
        v = feature_of(a, e, i, n, gate, row_sum(a, b, up + row, slices) * inverse);
        store_features<1>(b, a.shared.features, a.shared.feature_plane, place, &v);
#else
        int i = first + (b.lane >> 3);
        float gate = row_sum_by_eight(a, b, i, row_slices(a, e, 0)) * inverse;
        v = row_sum_by_eight(a, b, up + i, row_slices(a, e, 1)) * inverse;
        v = feature_of(a, e, i, n, gate, v);
        if (b.lane % 8 == 0) store_features<1>(b, a.shared.features, a.shared.feature_plane, i, &v);
#endif
    }
    b.sync();
}

template <int BLOCKS>
MEGA_FN void finish_mlp(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const instruction &in = e.in;
    int n = in.units.end - in.units.begin;
    make_features(a, b, e, n, (n + MEGA_TILE - 1) / MEGA_TILE * MEGA_TILE);
    float *out = b.at<float>(a.shared.planes);
    /* A warp adds its outputs in runs of columns; each block begins at another column. The block's
     * share of the residual itself is added too: the same thread loads it before and adds it after.
     */
    int64_t *carried = b.at<int64_t>(a.shared.sums);
    const int run = MEGA_QUANT_TYPES ? 64 : 128, each = MEGA_COLUMNS / MEGA_CONSUMERS;
#pragma unroll 1
    for (int c = 0; c < a.hidden; c += MEGA_COLUMNS) {
        const int first = c + run * b.warp, turn = b.lane + 16 * blockIdx.x;
        const int64_t *x = residual(a, b.pass(), 2 * in.layer + 1);
#pragma unroll
        for (int j = 0; j < each; j++) {
            int at = first + 32 * j / run * run * MEGA_WARPS + ((32 * j + turn) & (run - 1));
            int i = at - e.weights.share.begin;
            if (i < 0 || at >= e.weights.share.end) continue;
            carried[i] = fixed_value(load_relaxed(x + at));
            if (biases_of(e)) carried[i] += bias_part(biases_of(e) + 2 * a.n_features, at);
        }
        product_transposed<BLOCKS>(a, b, e, n, c, out);
        b.stamp(a, MEGA_SIGNALS);
        int64_t *next = residual(a, b.pass(), 2 * in.layer + 2);
#pragma unroll
        for (int j = 0; j < each; j++) {
            int at = first + 32 * j / run * run * MEGA_WARPS + ((32 * j + turn) & (run - 1));
            int i = at - e.weights.share.begin;
            int64_t part = fixed_part(out[at - c]);
            if (i >= 0 && at < e.weights.share.end) part += carried[i];
            if (at < a.hidden) add_relaxed(next + at, part);
        }
        b.sync();
    }
}

/* ---- norm and rows of weights: QKV, the MLP and the logits begin alike ---- */

/* What rows an entry has. */
struct entry_rows {
    bool logits, mlp;
    int n, tiles, at_once; /* units; tiles of eight rows, and how many of them are sums at once */

    MEGA_FN entry_rows(const mega_arguments &a, const mega_entry &e)
    {
        logits = e.in.opcode == MEGA_LOGITS, mlp = e.in.opcode == MEGA_MLP;
        n = e.in.units.end - e.in.units.begin;
        tiles = ((logits || mlp ? n : 2 * n) + MEGA_TILE - 1) / MEGA_TILE;
        at_once = logits ? (int)(a.shared.sum_pitch - 4) / MEGA_TILE : tiles;
    }
    /* Reads it from the entry again where fragments leave no registers for it: local memory would
     * wait for the stream of weights. */
    MEGA_FN void read_again(const mega_arguments &a, mega_block &b)
    {
        if (!MEGA_QUANT_TYPES) return;
        b.reload();
        *this = entry_rows(a, b.current());
    }
};

template <int DIM, bool HALF, int BLOCKS>
MEGA_FN void run_rows(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    entry_rows rows(a, e);
    const int step = rows.logits ? 2 * a.n_layers : 2 * e.in.layer + rows.mlp;
    if (!rows.logits && !rows.mlp) fetch_qkv_early<DIM>(a, b, e, b.thread >> 4);
    row_fragments<BLOCKS> w;
    take_early<BLOCKS>(a, b, min(rows.at_once, rows.tiles), w);
    read_residual<BLOCKS == 1>(a, b, e, step);
    int first = 0; /* tile */
    do {
        /* Gate, then up. */
        rows.read_again(a, b);
#pragma unroll 1
        for (int matrix = 0; matrix <= rows.mlp; matrix++) {
            int next = rows.mlp && !matrix ? rows.tiles
                                           : min(rows.at_once, rows.tiles - first - rows.at_once);
            multiply_rows<DIM, BLOCKS>(a, b, e, matrix, min(rows.at_once, rows.tiles - first),
                                       matrix * rows.tiles * MEGA_TILE, next, w);
            rows.read_again(a, b);
        }
        b.sync();
        if (rows.mlp)
            finish_mlp<BLOCKS>(a, b, e);
        else if (!rows.logits)
            finish_qkv<DIM, HALF>(a, b, e);
        else
            finish_logits(a, b, row_slices(a, e, 0), e.in.units.begin + first * MEGA_TILE,
                          min(rows.at_once * MEGA_TILE, rows.n - first * MEGA_TILE), first > 0);
        if (!rows.logits) return;
        rows.read_again(a, b);
        first += rows.at_once;
    } while (first < rows.tiles);
    finish_pass(a, b, e);
}
