/* A norm, then rows of weights: QKV with RoPE and append, the MLP, the logits. */
#ifndef QUIPU_VM_MEGA_ROWS_CUH
#define QUIPU_VM_MEGA_ROWS_CUH

#include "vm/mega/heads.cuh"
#include "vm/mega/pass.cuh"

/* ---- norm, QKV, RoPE, append ---- */

template <int DIM, bool HALF> MEGA_FN uint16_t cache_bits(float v)
{
    if (HALF) return __half_as_ushort(__float2half_rn(v));
    return __bfloat16_as_ushort(__float2bfloat16(v));
}
template <bool HALF> MEGA_FN float cache_float(uint16_t bits)
{
    if (HALF) return __half2float(__ushort_as_half(bits));
    return __bfloat162float(__ushort_as_bfloat16(bits));
}

/* What a thread needs behind the sums of QKV, made before them: sixteen lanes have a pair, eight of
 * them one of its rows each. */
struct qkv_early {
    float cosine, sine;
    int kind, at;  /* at: the row's place in the KV heads' lists */
    int64_t cache; /* and in the cache, of keys or of values */
};
template <int DIM>
MEGA_FN qkv_early load_qkv_early(const mega_arguments &a, const mega_block &b,
                                 const instruction &in, int pair)
{
    if (in.opcode != OP_NORM_QKV_ROPE) return {0, 0, 0, 0, 0};
    int position = a.first_position + (int)(b.pass() - a.first_pass);
    int page = __float_as_int(load_early((const float *)a.pages + position / a.page_size));
    qkv_pair p = qkv_pair_at<DIM>(a, max(min(in.units.begin + pair, in.units.end - 1), 0));
    const float *table = (const float *)a.rope_table + (int64_t)position * DIM + p.pair;
    int feature = b.lane & 8 ? p.features[1] : p.features[0];
    int64_t head = ((int64_t)in.layer * a.pages_per_layer + page) * a.n_kv_heads + p.kv_head;
    return {load_early(table), load_early(table + DIM / 2), p.kind,
            (p.kv_head * (a.group + 2) + p.member) * DIM + feature,
            (head * a.page_size + position % a.page_size) * DIM + feature};
}

/* Pairs' sums to the KV head's list, and to the cache. */
template <int DIM, bool HALF>
MEGA_FN void finish_qkv(const mega_arguments &a, mega_block &b, const mega_entry &e,
                        qkv_early early)
{
    int n = e.in.units.end - e.in.units.begin;
    int64_t *list = qkv_list<DIM>(a, e.in, 0, 0);
    b.stamp(a, MEGA_SIGNALS);
#pragma unroll 1
    for (int first = 2 * b.warp; first < n; first += 2 * MEGA_WARPS) {
        int pair = first + (b.lane >> 4), row = min(pair, n - 1);
        if (first >= 2 * MEGA_WARPS) early = load_qkv_early<DIM>(a, b, e.in, pair);
        row = (row >> 2) * MEGA_TILE + (row & 3) + (b.lane >> 1 & 4);
        float v =
            row_sum_by_eight(a, b, row, row_slices(a, e, early.kind)) * inverse_rms_by_eight(a, b);
        float other = __fmul_rn(__shfl_xor_sync(~0u, v, 8), early.sine);
        if (early.kind != PAIR_VALUE) v = __fmaf_rn(v, early.cosine, b.lane & 8 ? other : -other);
        if (b.lane % 8 || pair >= n) continue;
        uint16_t bits = cache_bits<DIM, HALF>(v);
        if (early.kind != PAIR_QUERY) v = cache_float<HALF>(bits);
        store_relaxed(list + early.at,
                      (int64_t)((uint64_t)(b.pass() + 1) << 32 | __float_as_uint(v)));
        uint16_t *cache = (uint16_t *)(early.kind == PAIR_KEY ? a.k_cache : a.v_cache);
        if (early.kind != PAIR_QUERY) cache[early.cache] = bits;
    }
}

/* ---- norm, gate, up, SiLU, down ---- */

MEGA_FN float gated(float gate, float up)
{
    return gate / (1 + __expf(-gate)) * up;
}

/* The `n` features from their sums, `up` being the first row of ups; eight lanes have one, of
 * bricks one lane, so that a warp has what shares a unit. */
MEGA_FN void make_features(const mega_arguments &a, mega_block &b, const mega_entry &e, int n,
                           int up)
{
    const int each = MEGA_BRICKS ? 32 : 4;
#pragma unroll 1
    for (int first = each * b.warp; first < up; first += each * MEGA_WARPS) {
        float inverse = inverse_rms_by_eight(a, b), v;
#if MEGA_BRICKS
        int i = first + b.lane, slices = row_slices(a, e, 0);
        float gate = row_sum(a, b, i, slices) * inverse;
        v = gated(gate, row_sum(a, b, up + i, slices) * inverse);
        leave_features<1>(b, a.shared.features, a.shared.feature_plane, i, &v);
#else
        int i = first + (b.lane >> 3);
        float gate = row_sum_by_eight(a, b, i, row_slices(a, e, 0)) * inverse;
        v = row_sum_by_eight(a, b, up + i, row_slices(a, e, 1)) * inverse;
        v = i < n ? gated(gate, v) : 0;
        if (b.lane % 8 == 0) leave_features<1>(b, a.shared.features, a.shared.feature_plane, i, &v);
#endif
    }
    b.sync();
}

MEGA_FN void finish_mlp(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const instruction &in = e.in;
    int n = in.units.end - in.units.begin;
    make_features(a, b, e, n, (n + MEGA_TILE - 1) / MEGA_TILE * MEGA_TILE);
    float *out = b.at<float>(a.shared.planes);
    /* A warp adds what it has made, each block beginning elsewhere. A share of the residual itself
     * comes along: the same thread has it before and after. */
    int64_t *carried = b.at<int64_t>(a.shared.sums);
    const int columns = MEGA_BLOCK / MEGA_WARPS, each = columns / 32;
#pragma unroll 1
    for (int c = 0; c < a.hidden; c += MEGA_BLOCK) {
        const int first = c + columns * b.warp, turn = b.lane + 16 * blockIdx.x;
        const int64_t *x = residual(a, b.pass(), 2 * in.layer + 1);
#pragma unroll
        for (int j = 0; j < each; j++) {
            int at = first + ((32 * j + turn) & (columns - 1)), i = at - e.weights.share.begin;
            if (i >= 0 && at < e.weights.share.end) carried[i] = fixed_value(load_relaxed(x + at));
        }
        product_transposed(a, b, e, n, c, out);
        b.stamp(a, MEGA_SIGNALS);
        int64_t *next = residual(a, b.pass(), 2 * in.layer + 2);
#pragma unroll
        for (int j = 0; j < each; j++) {
            int at = first + ((32 * j + turn) & (columns - 1)), i = at - e.weights.share.begin;
            int64_t part = fixed_part(out[at - c]);
            if (i >= 0 && at < e.weights.share.end) part += carried[i];
            if (at < a.hidden) add_relaxed(next + at, part);
        }
        b.sync();
    }
}

/* ---- norm and rows of weights: QKV, the MLP and the logits begin alike ---- */

template <int DIM, bool HALF, int BLOCKS>
MEGA_FN void run_rows(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int op = e.in.opcode, n = e.in.units.end - e.in.units.begin;
    bool logits = op == OP_NORM_LINEAR, mlp = op == MEGA_MLP;
    int step = logits ? 2 * a.n_layers : 2 * e.in.layer + mlp;
    int tiles = ((logits || mlp ? n : 2 * n) + MEGA_TILE - 1) / MEGA_TILE;
    int at_once = logits ? (int)(a.shared.sum_pitch - 4) / MEGA_TILE : tiles;
    qkv_early early = load_qkv_early<DIM>(a, b, e.in, b.thread >> 4);
    uint64_t best = 0;
    read_residual(a, b, e, step, e.weights.parts);
    int first = 0;
    do {
        /* The MLP's gate, then up. */
#pragma unroll 1
        for (int matrix = 0; matrix <= mlp; matrix++)
            multiply_rows<DIM, BLOCKS>(a, b, e, matrix, min(at_once, tiles - first),
                                       matrix * tiles * MEGA_TILE);
        b.sync();
        if (mlp)
            finish_mlp(a, b, e);
        else if (!logits)
            finish_qkv<DIM, HALF>(a, b, e, early);
        else
            best = finish_logits(a, b, row_slices(a, e, 0), e.in.units.begin + first * MEGA_TILE,
                                 min(at_once * MEGA_TILE, n - first * MEGA_TILE), best);
        first += at_once;
    } while (first < tiles);
    if (logits) finish_pass(a, b, e, best);
}

#endif
