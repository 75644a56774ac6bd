/* head_norm, rope and kv_append in one launch: a warp for each head of q, k and v of a token.
 *
 * A lane has four neighbours, in head_norm's order; those that they are rotated with are another
 * lane's. The results have the bits of the three operators one by one.
 */
#include "op/head_norm/norm_turn.h"
#include "op/kv_append/kv_append.cuh"
#include "op/rms_norm/rms_norm.cuh"
#include "op/rope/rope.cuh"

/* Rotates four elements with those of the lane that has the other half. */
DEVICE_FN float4 turn4(float4 own, const float *angles, int half, int i)
{
    const bool second = i >= half;
    const int other = half / 4, pair = second ? i - half : i;
    float v[4] = {own.x, own.y, own.z, own.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float far = __shfl_xor_sync(ALL_LANES, v[j], other);
        float x = second ? far : v[j], y = second ? v[j] : far;
        rope_pair(&x, &y, angles[(pair + j) % half], angles[half + (pair + j) % half]);
        v[j] = second ? y : x;
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* Block (x, y): heads of token y, first of q, then of k, then of v. */
extern "C" __global__ void __launch_bounds__(NORM_TURN_WARPS *WARP)
    run_norm_turn(const __grid_constant__ norm_turn a)
{
    const int lane = (int)threadIdx.x % WARP, i = 4 * lane, n = a.append.head_dim;
    const int head = (int)blockIdx.x * NORM_TURN_WARPS + (int)threadIdx.x / WARP;
    const int n_q = a.rope.n_q_heads, n_k = a.rope.n_heads - n_q;
    const int64_t token = a.rope.begin + blockIdx.y;
    const bool of_q = head < n_q, of_k = !of_q && head < n_q + n_k, there = i < n;
    const int at = of_q ? head : of_k ? head - n_q : head - n_q - n_k;
    const device_rows &rows = of_q ? a.rope.q : of_k ? a.rope.k : a.append.v;
    const device_rows &norm = of_q ? a.q_weight : a.k_weight;
    char *row = rows.data + token * rows.stride +
                at * (of_q   ? a.rope.q_head
                      : of_k ? a.rope.k_head
                             : a.append.v_head);
    device_let_next_begin();
    if (head >= n_q + 2 * n_k) return;
    const kv_place place =
        kv_append_place(a.append.qo_indptr, a.append.n_sequences, a.append.positions,
                        a.append.kv_indptr, a.append.kv_indices, a.append.page_size, token);
    const float *angles =
        (const float *)(a.rope.table + a.rope.positions[token] * a.rope.table_stride);
    const float4 weight =
        of_q || of_k ? device_load4((dtype)norm.type, norm.data, i, n) : make_float4(0, 0, 0, 0);
    device_wait_for_last();
    float4 v = there ? *(const float4 *)(row + 4 * i) : make_float4(0, 0, 0, 0);
    if (of_q || of_k) {
        const float squares = warp_sum(norm_squares4(v.x, v.y, v.z, v.w));
        v = turn4(norm_apply4(v, norm_scale(squares, n, a.eps), weight), angles, a.rope.half, i);
        if (there) *(float4 *)(row + 4 * i) = v;
    }
    if (of_q || !there) return;
    const device_rows &cache = of_k ? a.append.k_cache : a.append.v_cache;
    device_store4((dtype)cache.type,
                  cache.data + place.page * cache.stride +
                      place.slot * (of_k ? a.append.k_slot : a.append.v_slot) +
                      at * (of_k ? a.append.k_cache_head : a.append.v_cache_head),
                  i, n, v);
}
