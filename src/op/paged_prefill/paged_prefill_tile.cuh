/* What the kernels of paged_prefill on tensor cores share: which rows a block has, and how queries
 * are loaded and outputs stored.
 *
 * A tile has rows of one sequence and one KV head. Rows are the heads of the group of one token,
 * then of the next: they read the same keys, so 32 tokens of 4 heads fill a tile of 128 rows, and
 * the corner of a causal tile that no row sees is small. Tiles have numbers; which rows a number
 * stands for, blocks find out themselves, for any cut of the tokens into sequences.
 */
#pragma once

#include "op/attention/paged.cuh"
#include "op/device.cuh"

/* The rows of a tile, counted from the sequence's first. */
typedef struct prefill_tile {
    int first_token; /* of the sequence */
    int n_tokens;
    int first_row, n_rows; /* n_rows: of the sequence */
    int kv_head;
    int sequence, length; /* length: positions in the cache */
} prefill_tile;

/* The tile of a number; false: there are not so many. Tiles go through KV heads first, and begin
 * with a sequence's last tile, which sees most. All lanes of a warp call it, also before the
 * previous kernel has ended. */
__device__ __forceinline__ bool prefill_tile_find(const paged_attention &call, int rows, int number,
                                                  prefill_tile &tile)
{
    int lane = (int)threadIdx.x % 32, wanted = number / call.n_kv_heads;
    for (int first = 0; first < call.n_sequences; first += 32) {
        int border = 0, n_tokens = 0;
        if (first + lane < call.n_sequences) {
            border = call.qo_indptr[first + lane];
            n_tokens = call.qo_indptr[first + lane + 1] - border;
        }
        int tiles = (n_tokens * call.group + rows - 1) / rows, through = tiles;
        for (int step = 1; step < 32; step *= 2) {
            int before = __shfl_up_sync(0xffffffffu, through, step);
            if (lane >= step) through += before;
        }
        unsigned reached = __ballot_sync(0xffffffffu, through > wanted);
        if (reached == 0) {
            wanted -= __shfl_sync(0xffffffffu, through, 31);
            continue;
        }
        int owner = __ffs((int)reached) - 1;
        tile.first_row = (__shfl_sync(0xffffffffu, through, owner) - 1 - wanted) * rows;
        tile.first_token = __shfl_sync(0xffffffffu, border, owner);
        tile.n_tokens = __shfl_sync(0xffffffffu, n_tokens, owner);
        tile.n_rows = tile.n_tokens * call.group;
        tile.kv_head = number % call.n_kv_heads;
        tile.sequence = first + owner;
        tile.length = page_walk_of(call, tile.sequence).length;
        return true;
    }
    return false;
}

/* Before the first read of what other kernels of the pass write. paged_decode of other rows comes
 * next and reads what the kernels before this one have written (paged_attention.beside). */
__device__ __forceinline__ void prefill_take_turn(const paged_attention &call)
{
    device_wait_for_last();
    if (call.beside) device_let_next_begin();
}

/* The token of a row of the sequence: exact below 2^32 / group rows. */
__device__ __forceinline__ int prefill_token(const paged_attention &call, int row)
{
    return call.group_inverse ? (int)__umulhi((uint32_t)row, call.group_inverse) : row;
}

/* Positions that a row of the sequence sees; rows past the end see what the last one does. */
__device__ __forceinline__ int prefill_visible(const paged_attention &call,
                                               const prefill_tile &tile, int row)
{
    if (!call.causal) return tile.length;
    int token = prefill_token(call, min(row, tile.n_rows - 1));
    return max(tile.length - tile.n_tokens + token + 1, 0);
}

/* Where a row's query begins; rows past the end have the last one's. `base`: the first query of the
 * sequence and of the group of heads. */
__device__ __forceinline__ const char *
prefill_query(const paged_attention &call, const prefill_tile &tile, int row, const char *base)
{
    int unit = min(tile.first_row + row, tile.n_rows - 1), token = prefill_token(call, unit);
    return base + (int64_t)token * (int32_t)call.q_strides.token +
           (int64_t)(unit - token * call.group) * (int32_t)call.q_strides.head;
}

/* Stores COUNT of the tile's queries from `first` on in shared memory, in the type of the keys, by
 * THREADS threads; queries past the end are arbitrary. */
template <typename T, int HEAD_DIM, int ROWS, int COUNT, int THREADS>
__device__ __forceinline__ void
prefill_load_queries(const paged_attention &call, const prefill_tile &tile, char *shared, int first)
{
    constexpr int CHUNKS = HEAD_DIM / 8, STEP = THREADS / CHUNKS;
    int chunk = (int)threadIdx.x % CHUNKS, row = (int)threadIdx.x % THREADS / CHUNKS + first;
    const char *base = (const char *)call.q + tile.first_token * call.q_strides.token +
                       tile.kv_head * call.group * call.q_strides.head;
    float sign = call.sm_scale < 0 ? -1.0f : 1.0f;
    if (call.q_type == dtype_of(T()) && sign > 0) { /* unchanged, all loads at once */
        uint4 query[COUNT / STEP];
#pragma unroll
        for (int i = 0; i < COUNT / STEP; i++)
            query[i] =
                *(const uint4 *)(prefill_query(call, tile, row + i * STEP, base) + chunk * 16);
#pragma unroll
        for (int i = 0; i < COUNT / STEP; i++)
            *(uint4 *)(shared + tile_byte(ROWS, row + i * STEP, chunk)) = query[i];
        return;
    }
#pragma unroll 4
    for (int i = 0; i < COUNT / STEP; i++, row += STEP)
        *(uint4 *)(shared + tile_byte(ROWS, row, chunk)) =
            load_query<T>(call.q_type, prefill_query(call, tile, row, base), chunk * 8, sign);
}

/* o *= shrink; does nothing while no row's maximum has grown. */
template <int HEAD_DIM>
__device__ __forceinline__ void prefill_shrink(float (&o)[HEAD_DIM / 8][4],
                                               const float (&shrink)[2])
{
    if (!__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++)
        o[i / 4][i % 4] *= shrink[i % 4 / 2];
}

/* Writes a lane's columns of its row r, times `factor`: in the type T, or as they are; `out` NULL:
 * nowhere. Neighbouring lanes exchange a pair of each two, so that each has four neighbouring
 * columns, and a store of the warp writes whole sectors. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void store_columns(T, char *out, int r, float factor,
                                              const float (&o)[HEAD_DIM / 8][4])
{
    bool odd = threadIdx.x % 2;
    uint2 *four = (uint2 *)(out + threadIdx.x % 2 * 16 + threadIdx.x % 4 / 2 * 8);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i += 2) {
        uint32_t pair[2];
#pragma unroll
        for (int j = 0; j < 2; j++)
            pair[j] = pack_pair(T(), o[i + j][2 * r] * factor, o[i + j][2 * r + 1] * factor);
        uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? pair[0] : pair[1], 1);
        if (out) four[i * 2] = odd ? make_uint2(other, pair[1]) : make_uint2(pair[0], other);
    }
}
template <int HEAD_DIM>
__device__ __forceinline__ void store_columns(float, char *out, int r, float factor,
                                              const float (&o)[HEAD_DIM / 8][4])
{
    float2 *pair = (float2 *)out + threadIdx.x % 4;
    if (!out) return;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++)
        pair[i * 4] = make_float2(o[i][2 * r] * factor, o[i][2 * r + 1] * factor);
}

/* A row of the tile in the call; `wanted`: it belongs to the sequence and to the call's units. */
struct prefill_place {
    int64_t token, head;
    bool wanted;
};
__device__ __forceinline__ prefill_place prefill_place_of(const paged_attention &call,
                                                          const prefill_tile &tile, int row)
{
    int unit = tile.first_row + row, of_sequence = prefill_token(call, unit);
    int64_t token = tile.first_token + of_sequence;
    int64_t head = tile.kv_head * call.group + unit - of_sequence * call.group;
    return {token, head, unit < tile.n_rows && is_wanted(call, token, head)};
}

/* The factors of a lane's two rows of outputs, which divide by the sums; stores the log-sum-exp.
 * `row`: the first one's number in the tile. */
__device__ __forceinline__ void prefill_factors(const paged_attention &call,
                                                const prefill_tile &tile, int row,
                                                const softmax_rows &rows, float scale,
                                                float (&factor)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = quad_sum(rows.sum[r]);
        factor[r] = sum == 0 ? 0 : 1 / sum;
        if (!call.lse || threadIdx.x % 4 != 0) continue;
        prefill_place place = prefill_place_of(call, tile, row + r * 8);
        if (place.wanted)
            *(float *)((char *)call.lse + place.token * call.lse_strides.token +
                       place.head * call.lse_strides.head) =
                sum == 0 ? -INFINITY : softmax_base(rows.maximum[r], scale) + log2f(sum);
    }
}

/* Stores a lane's two rows times their factors. */
template <int HEAD_DIM>
__device__ __forceinline__ void prefill_store(const paged_attention &call, const prefill_tile &tile,
                                              int row, const float (&factor)[2],
                                              const float (&o)[HEAD_DIM / 8][4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        prefill_place place = prefill_place_of(call, tile, row + r * 8);
        char *out = place.wanted ? (char *)call.out + place.token * call.out_strides.token +
                                       place.head * call.out_strides.head
                                 : nullptr;
        if (call.out_type == DTYPE_F32)
            store_columns<HEAD_DIM>(0.0f, out, r, factor[r], o);
        else if (call.out_type == DTYPE_BF16)
            store_columns<__nv_bfloat16, HEAD_DIM>(__nv_bfloat16(), out, r, factor[r], o);
        else
            store_columns<__half, HEAD_DIM>(__half(), out, r, factor[r], o);
    }
}

/* The state of a lane's two rows before the first position. */
__device__ __forceinline__ softmax_rows prefill_rows(const paged_attention &call,
                                                     const prefill_tile &tile, int row)
{
    softmax_rows rows = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
    rows.n_visible[0] = prefill_visible(call, tile, tile.first_row + row);
    rows.n_visible[1] = prefill_visible(call, tile, tile.first_row + row + 8);
    return rows;
}
