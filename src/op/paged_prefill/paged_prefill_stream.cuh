/* paged_prefill with wgmma, for sm_90a and head_dim 128: one block a multiprocessor, which takes
 * tile after tile.
 *
 * The warps are split by role: one copies (paged_prefill_ring.cuh), two or three warpgroups compute
 * 64 rows each. There is no barrier among them, so that one computes exponentials while another's
 * products keep the tensor cores busy. With two groups the scores of a step are started before the
 * product of the last step's weights with the values, and the new step's exponentials are computed
 * during that product. Three groups, whose threads have fewer registers, take one product after the
 * other; they use each loaded key more often. Both do the same arithmetic.
 */
#ifndef QUIPU_OP_PAGED_PREFILL_STREAM_CUH
#define QUIPU_OP_PAGED_PREFILL_STREAM_CUH

#include "op/paged_prefill/paged_prefill_ring.cuh"

/* s (64, STEP) = q (64, HEAD_DIM) k (STEP, HEAD_DIM)^T */
template <typename T, int HEAD_DIM, int STEP>
__device__ __forceinline__ void stream_scores(float (&s)[STEP / 8][4], uint32_t q, uint32_t k)
{
    const uint64_t queries = wgmma_operand(q, 64), keys = wgmma_operand(k, STEP);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++)
        wgmma_scores(T(), s, wgmma_further(queries, d / 4 * 64 * 128 + d % 4 * 32),
                     wgmma_further(keys, d / 4 * STEP * 128 + d % 4 * 32), d > 0);
    wgmma_commit();
}

/* o (64, HEAD_DIM) += weights (64, STEP) v (STEP, HEAD_DIM) */
template <typename T, int HEAD_DIM, int STEP>
__device__ __forceinline__ void stream_values(float (&o)[HEAD_DIM / 8][4],
                                              const uint32_t (&weights)[STEP / 16][4], uint32_t v)
{
    const uint64_t values = wgmma_operand(v, STEP);
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
        wgmma_values(T(), o, weights[i], wgmma_further(values, i * 16 * 128), 1);
    wgmma_commit();
}

template <typename T, int STEP>
__device__ __forceinline__ void stream_pack(const float (&s)[STEP / 8][4],
                                            uint32_t (&weights)[STEP / 16][4])
{
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
        weights_pack<T>(s, i, weights[i]);
}

/* The end of the product o += weights v, then o *= shrink where that is not 1. No sum is negative,
 * which the compiler does not know: else it would wait for the product before it computes the
 * exponentials, on which only the sums depend. */
template <int HEAD_DIM, int TILES>
__device__ __forceinline__ void stream_close(float (&o)[HEAD_DIM / 8][4], float (&s)[TILES][4],
                                             const softmax_rows &rows, const float (&shrink)[2])
{
    wgmma_hold(s);
    bool shrinks = shrink[0] != 1 || shrink[1] != 1 || rows.sum[0] < 0 || rows.sum[1] < 0;
    if (__any_sync(0xffffffffu, shrinks)) {
        wgmma_wait<0>();
        wgmma_hold(o);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++)
            o[i / 4][i % 4] *= shrink[i % 4 / 2];
    }
    wgmma_wait<0>();
    wgmma_hold(o);
}

/* The warps of a computing group meet. */
__device__ __forceinline__ void stream_meet(int group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

/* Requests the queries of a group's 64 rows, from `first` on, for shared memory at `to`. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void stream_queries(const paged_attention &call,
                                               const prefill_tile &tile, char *to, int first)
{
    constexpr int CHUNKS = HEAD_DIM / 8, STEP = 128 / CHUNKS;
    int chunk = (int)threadIdx.x % CHUNKS, row = (int)threadIdx.x % 128 / CHUNKS;
    const char *base = (const char *)call.q + tile.first_token * call.q_strides.token +
                       tile.kv_head * call.group * call.q_strides.head;
    float sign = call.sm_scale < 0 ? -1.0f : 1.0f;
    if (tile.n_tokens < 0) return;
    if (call.q_type == dtype_of(T()) && sign > 0) { /* unchanged */
        uint32_t place = (uint32_t)__cvta_generic_to_shared(to) + tile_byte(64, row, chunk);
#pragma unroll
        for (int i = 0; i < 64 / STEP; i++)
            copy_async(place + i * STEP * 128,
                       prefill_query(call, tile, first + row + i * STEP, base) + chunk * 16, true);
        copy_commit();
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 64 / STEP; i++, row += STEP)
        *(uint4 *)(to + tile_byte(64, row, chunk)) = load_query<T>(
            call.q_type, prefill_query(call, tile, first + row, base), chunk * 8, sign);
}

/* A step: a group starts the product of its queries with the keys. */
template <typename T, int HEAD_DIM, int STEP, typename KEYS>
__device__ __forceinline__ void stream_start_scores(float (&s)[STEP / 8][4], uint32_t q,
                                                    const KEYS &keys)
{
    keys.wait();
    wgmma_hold(s);
    wgmma_begin();
    stream_scores<T, HEAD_DIM, STEP>(s, q, keys.at());
}
/* And that of its weights with the values. */
template <typename T, int HEAD_DIM, int STEP, typename VALUES>
__device__ __forceinline__ void stream_start_values(float (&o)[HEAD_DIM / 8][4],
                                                    const uint32_t (&weights)[STEP / 16][4],
                                                    const VALUES &values)
{
    values.wait();
    wgmma_hold(o);
    wgmma_begin();
    stream_values<T, HEAD_DIM, STEP>(o, weights, values.at());
}

/* Turns the scores of 8 * TILES positions from `first` on into weights, as softmax_step() does. But
 * the maximum of a row changes only when a score exceeds it by more than STREAM_SLACK powers of
 * two, so that earlier sums are hardly ever rescaled: weights are at most 2^STREAM_SLACK. */
#define STREAM_SLACK 8.0f
template <int TILES>
__device__ __forceinline__ void stream_softmax(float (&s)[TILES][4], softmax_rows &rows, int first,
                                               bool masked, float scale, float (&shrink)[2])
{
    if (masked) {
        int column = first + (int)threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < TILES * 4; i++)
            if (column + i / 4 * 8 + i % 2 >= rows.n_visible[i % 4 / 2])
                s[i / 4][i % 4] = -INFINITY;
    }
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float even = s[0][2 * r], odd = s[0][2 * r + 1];
#pragma unroll
        for (int i = 1; i < TILES; i++)
            even = fmaxf(even, s[i][2 * r]), odd = fmaxf(odd, s[i][2 * r + 1]);
        float before = rows.maximum[r], maximum = fmaxf(before, quad_max(fmaxf(even, odd)));
        if ((maximum - before) * scale <= STREAM_SLACK) maximum = before;
        base[r] = softmax_base(maximum, scale);
        shrink[r] = softmax_shrink(before, scale, base[r]);
        rows.maximum[r] = maximum;
        rows.sum[r] *= shrink[r];
    }
    float sum[2][2] = {}; /* [row][tile % 2]: short chains of additions */
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            s[i][j] = exp2_fast(fmaf(s[i][j], scale, -base[j / 2]));
            sum[j / 2][i % 2] += s[i][j];
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        rows.sum[r] += sum[r][0] + sum[r][1];
}

/* A computing group's part of a tile. SERIAL: one product after the other, which takes fewer
 * registers. */
template <typename T, int HEAD_DIM, int STEP, bool SERIAL, typename KEYS, typename VALUES>
__device__ __forceinline__ void stream_steps(softmax_rows &rows, float (&o)[HEAD_DIM / 8][4],
                                             int n_steps, int seen_by_all, float scale, uint32_t q,
                                             KEYS &keys, VALUES &values)
{
    int first = 0;
    float s[STEP / 8][4], shrink[2];
    uint32_t weights[STEP / 16][4];
    stream_start_scores<T, HEAD_DIM, STEP>(s, q, keys);
    wgmma_wait<0>();
    wgmma_hold(s);
    keys.give();
    stream_softmax(s, rows, first, first + STEP > seen_by_all, scale, shrink);
    stream_pack<T, STEP>(s, weights);
#pragma unroll 1
    for (int step = 1; step < n_steps; step++) {
        first += STEP;
        if (SERIAL) {
            stream_start_values<T, HEAD_DIM, STEP>(o, weights, values);
            wgmma_wait<0>();
            wgmma_hold(o);
            values.give();
            stream_start_scores<T, HEAD_DIM, STEP>(s, q, keys);
            wgmma_wait<0>();
        } else {
            stream_start_scores<T, HEAD_DIM, STEP>(s, q, keys);
            stream_start_values<T, HEAD_DIM, STEP>(o, weights, values);
            wgmma_wait<1>();
        }
        wgmma_hold(s);
        keys.give();
        stream_softmax(s, rows, first, first + STEP > seen_by_all, scale, shrink);
        if (SERIAL) {
            prefill_shrink<HEAD_DIM>(o, shrink);
        } else {
            stream_close<HEAD_DIM>(o, s, rows, shrink);
            values.give();
        }
        stream_pack<T, STEP>(s, weights);
    }
    stream_start_values<T, HEAD_DIM, STEP>(o, weights, values);
    wgmma_wait<0>();
    wgmma_hold(o);
    values.give();
}

/* Two neighbouring lanes exchange a pair each, so that each has four neighbouring columns: a store
 * then writes whole sectors. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void stream_columns(T, char *out, int r, float factor,
                                               const float (&o)[HEAD_DIM / 8][4])
{
    bool odd = threadIdx.x & 1;
    uint2 *four = (uint2 *)(out + (threadIdx.x & 1) * 16 + (threadIdx.x & 2) * 4);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i += 2) {
        uint32_t a = pack_pair(T(), o[i][2 * r] * factor, o[i][2 * r + 1] * factor);
        uint32_t b = pack_pair(T(), o[i + 1][2 * r] * factor, o[i + 1][2 * r + 1] * factor);
        uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1);
        if (out) four[i * 2] = odd ? make_uint2(other, b) : make_uint2(a, other);
    }
}

/* Divides by the sums and stores a lane's two rows. */
template <int HEAD_DIM>
__device__ __forceinline__ void stream_store(const paged_attention &call, const prefill_tile &tile,
                                             int row, const softmax_rows &rows, float scale,
                                             const float (&o)[HEAD_DIM / 8][4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = quad_sum(rows.sum[r]);
        int unit = tile.first_row + row + r * 8;
        int of_sequence = prefill_token(call, min(unit, tile.n_rows - 1));
        int64_t token = tile.first_token + of_sequence;
        int64_t head = tile.kv_head * call.group + unit - of_sequence * call.group;
        bool wanted = unit < tile.n_rows && is_wanted(call, token, head);
        char *out = wanted ? (char *)call.out + token * call.out_strides.token +
                                 head * call.out_strides.head
                           : nullptr;
        float factor = sum == 0 ? 0 : 1 / sum;
        if (call.out_type == DTYPE_F32) {
            if (out) store_columns<HEAD_DIM>(0.0f, out, r, factor, o);
        } else if (call.out_type == DTYPE_BF16) {
            stream_columns<__nv_bfloat16, HEAD_DIM>(__nv_bfloat16(), out, r, factor, o);
        } else {
            stream_columns<__half, HEAD_DIM>(__half(), out, r, factor, o);
        }
        if (wanted && call.lse && threadIdx.x % 4 == 0)
            *(float *)((char *)call.lse + token * call.lse_strides.token +
                       head * call.lse_strides.head) =
                sum == 0 ? -INFINITY : softmax_base(rows.maximum[r], scale) + log2f(sum);
    }
}

/* A computing group: tile after tile. With two buffers of queries the next tile's are requested
 * when this one begins, else after its last product. */
template <typename T, int HEAD_DIM, int STEP, int GROUPS, int BUFFERS, bool SERIAL, typename KEYS,
          typename VALUES>
__device__ __forceinline__ void stream_compute(const paged_attention &call, char *shared,
                                               prefill_slots slots, KEYS keys, VALUES values)
{
    constexpr int ROWS = GROUPS * 64, BUFFER = ROWS * HEAD_DIM * 2;
    int group = (int)threadIdx.x / 128, buffer = 0;
    int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    char *own = shared + group * 64 * HEAD_DIM * 2;
    float scale = fabsf(call.sm_scale) * 1.4426950408889634f;

    stream_queries<T, HEAD_DIM>(call, slots.wait(), own, group * 64);
    while (slots.tiles[slots.slot].n_tokens >= 0) {
        int present = slots.slot;
        const prefill_tile &tile = slots.tiles[present];
        uint32_t q = (uint32_t)__cvta_generic_to_shared(own + buffer);
        copy_wait<0>();
        wgmma_publish();
        stream_meet(group); /* the queries have come, and no warp reads the other buffer any more */
        slots.next();
        if (BUFFERS == 2) {
            buffer ^= BUFFER;
            stream_queries<T, HEAD_DIM>(call, slots.wait(), own + buffer, group * 64);
        }
        int n_steps = prefill_steps<STEP>(call, tile, ROWS);
        int seen_by_all = prefill_visible(call, tile, tile.first_row + (int)threadIdx.x / 32 * 16);
        softmax_rows rows = prefill_rows(call, tile, row);
        float o[HEAD_DIM / 8][4] = {};
        if (n_steps > 0)
            stream_steps<T, HEAD_DIM, STEP, SERIAL>(rows, o, n_steps, seen_by_all, scale, q, keys,
                                                    values);
        if (BUFFERS == 1) {
            const prefill_tile &next = slots.wait();
            stream_meet(group); /* no warp reads the queries any more */
            stream_queries<T, HEAD_DIM>(call, next, own, group * 64);
        }
        stream_store<HEAD_DIM>(call, tile, row, rows, scale, o);
        slots.give(present);
    }
}

/* REGISTERS, COPY_REGISTERS: of a thread that computes and of one that copies. */
template <typename T, int HEAD_DIM, int GROUPS, int REGISTERS, int COPY_REGISTERS>
__device__ __forceinline__ void paged_prefill_stream(const paged_attention &call,
                                                     const tensor_map &k_map,
                                                     const tensor_map &v_map, char *shared)
{
    constexpr int STEP = PAGED_STREAM_STEP, ROWS = GROUPS * 64, BYTES = STEP * HEAD_DIM * 2,
                  BUFFERS = PAGED_STREAM_BUFFERS(GROUPS), V_STAGES = PAGED_STREAM_V_STAGES,
                  K_STAGES = PAGED_STREAM_K_STAGES(GROUPS), QUERIES = BUFFERS * ROWS * HEAD_DIM * 2;
    char *tiles = shared + QUERIES + (K_STAGES + V_STAGES) * BYTES;
    uint32_t stages = (uint32_t)__cvta_generic_to_shared(shared) + QUERIES;
    uint32_t barriers = (uint32_t)__cvta_generic_to_shared(tiles) + PREFILL_SLOTS * 64;
    prefill_ring<K_STAGES, BYTES> keys = {stages, barriers, barriers + 8 * K_STAGES, 0, 0};
    barriers += 16 * K_STAGES;
    prefill_ring<V_STAGES, BYTES> values = {stages + K_STAGES * BYTES, barriers,
                                            barriers + 8 * V_STAGES, 0, 0};
    barriers += 16 * V_STAGES;
    prefill_slots slots = {(prefill_tile *)tiles, barriers, barriers + 8 * PREFILL_SLOTS, 0, 0};
    static_assert(sizeof(prefill_tile) <= 64, "as PAGED_STREAM_SHARED counts");
    if (!call.beside) device_let_next_begin();
    if (threadIdx.x == 0) {
        keys.initialise(4 * GROUPS);
        values.initialise(4 * GROUPS);
        slots.initialise(4 * GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads(); /* the mbarriers are initialised */
    if ((int)threadIdx.x / 128 == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPY_REGISTERS));
        if (threadIdx.x % 128 < 32)
            prefill_produce<HEAD_DIM, STEP>(call, k_map, v_map, ROWS, slots, keys, values);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
        prefill_take_turn(call);
        stream_compute<T, HEAD_DIM, STEP, GROUPS, BUFFERS, GROUPS == 3>(call, shared, slots, keys,
                                                                        values);
    }
}

#endif
