/* Epilogues of products of many rows with matrices in FP8 (linear_f8_wide.cuh): silu_and_mul, none,
 * and rope with kv_append. */
#pragma once

#include "op/f8.cuh"
#include "op/linear/linear_f8_wide.cuh"
#include "op/silu_and_mul/silu_and_mul.cuh"

/* ---- silu_and_mul ---------------------------------------------------------------------------- */

/* The features of a tile in FP8 with a scale a row. */
DEVICE_FN void f8_activate(const linear_f8_wide &call, const f8_block &b, int group, int tile,
                           f8_sums<2> &sums)
{
    const int thread = (int)threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    const uint32_t out = b.out + group * (F8_WIDE_OUT / 2);
    const int own = thread / 32 * 16 + g, panel = f8_panel(call, tile);
    const int first = f8_row(call, b, tile) + group * 64;
    float largest[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sums[i][j] = f8_first(silu(sums[i][j]) * sums[16 + i][j]);
            largest[j / 2] = fmaxf(largest[j / 2], fabsf(sums[i][j]));
        }
    if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    wide_group_meets(group); /* what was there has been copied */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 s = f8_scale(f8_largest_of(ALL_LANES, 4, largest[r]));
        const int row = own + 8 * r;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const uint16_t pair = f8_pack2(sums[i][2 * r], sums[i][2 * r + 1], s.y);
            asm volatile("st.shared.b16 [%0], %1;" ::"r"(out + row * F8_COLUMNS +
                                                         ((i / 2 ^ g) * 16) + i % 2 * 8 + t * 2),
                         "h"(pair)
                         : "memory");
        }
        if (t == 0) call.out_scales[panel * call.x_pitch + first + row] = s.x;
    }
    wgmma_publish();
    wide_group_meets(group); /* all rows are complete */
    if (thread == 0) {
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                call.out_map),
            "r"(panel * (F8_COLUMNS / 2)), "r"(first), "r"(out)
            : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}

/* ---- plain ----------------------------------------------------------------------------------- */

/* Four neighbours of a row, from every second lane's two: lanes 2 i have those of eight q, lanes 2
 * i
 * + 1 those of the next eight. */
DEVICE_FN float4 f8_four(const float *q, const float *next)
{
    const bool odd = threadIdx.x % 2;
    const float x = __shfl_xor_sync(ALL_LANES, odd ? q[0] : next[0], 1);
    const float y = __shfl_xor_sync(ALL_LANES, odd ? q[1] : next[1], 1);
    return odd ? make_float4(x, y, next[0], next[1]) : make_float4(q[0], q[1], x, y);
}

/* Adds bias and residual, which may be out, and stores; features are a multiple of four. */
template <int PANELS>
DEVICE_FN void f8_leave(const linear_f8_wide &call, const f8_block &b, int group, int tile,
                        const f8_sums<PANELS> &sums)
{
    const int thread = (int)threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    const int first = f8_row(call, b, tile) + group * 64 + thread / 32 * 16 + g;
    const int feature = f8_panel(call, tile) * F8_ROWS + t % 2 * 8 + t / 2 * 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = first + 8 * r;
        float *out = call.out + row * call.out_pitch + feature;
        const float *residual = call.residual + row * call.residual_pitch + feature;
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            float4 kept[8], v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int at = p * F8_ROWS + i * 16;
                const bool there = row < call.n_rows && feature + at < call.features;
                kept[i] = call.residual && there ? *(const float4 *)(residual + at)
                                                 : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int q = p * 16 + 2 * i;
                v[i] = f8_four(&sums[q][2 * r], &sums[q + 1][2 * r]);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int at = p * F8_ROWS + i * 16;
                if (row >= call.n_rows || feature + at >= call.features) continue;
                const float4 bias = call.bias ? device_load4((dtype)call.bias_type, call.bias,
                                                             feature + at, call.features)
                                              : make_float4(0, 0, 0, 0);
                *(float4 *)(out + at) =
                    make_float4(v[i].x + bias.x + kept[i].x, v[i].y + bias.y + kept[i].y,
                                v[i].z + bias.z + kept[i].z, v[i].w + bias.w + kept[i].w);
            }
        }
    }
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* Copies eights of a panel's features from shared memory to q, or to their slots of the caches:
 * rows 8 r to 8 r + 7 of each 16 of a warpgroup's. */
template <int HEAD_DIM>
DEVICE_FN void f8_leave_heads(const rope_rows &rope, const append_rows &append, uint32_t from,
                              const longlong2 *places, int first_feature, int first_row, int r,
                              int n_rows)
{
    const int thread = (int)threadIdx.x % 128, eight = thread % 16;
    const int feature = first_feature + eight * 8, head = feature / HEAD_DIM;
    const int at = feature % HEAD_DIM, n_kv_heads = rope.n_heads - rope.n_q_heads;
    const int of_k = head - rope.n_q_heads;
    if (of_k >= 2 * n_kv_heads) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int in = thread / 16, row = i * 16 + r * 8 + in; /* of the warpgroup */
        const int64_t token = first_row + row;
        char *to;
        if (token >= n_rows) continue;
        if (of_k < 0)
            to = rope.q.data + token * rope.q.stride + head * rope.q_head;
        else if (of_k < n_kv_heads)
            to = append.k_cache.data + places[row].x + of_k * append.k_cache_head;
        else
            to = append.v_cache.data + places[row].y + (of_k - n_kv_heads) * append.v_cache_head;
        wide_store8(of_k >= 0 && append.k_cache.type == DTYPE_F8, to, at,
                    f8_load16(from + (i * 8 + in) * 256 + ((eight ^ in) * 16)));
    }
}

template <int PANELS, int HEAD_DIM>
DEVICE_FN void f8_turn_heads(const linear_f8_wide &call, const rope_rows &rope,
                             const append_rows &append, const f8_block &b, int group, int tile,
                             f8_sums<PANELS> &sums)
{
    const int thread = (int)threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    const int feature = f8_panel(call, tile) * F8_ROWS;
    const int row = f8_row(call, b, tile) + group * 64;
    const uint32_t out = b.out + group * (F8_WIDE_OUT / 2);
    const uint32_t own = out + (thread / 32 * 8 + g) * 256 + t * 4;
    longlong2 *places = b.places + group * (F8_WIDE_ROWS / 2);
    const bool in_f8 = append.k_cache.type == DTYPE_F8;
    if (feature + PANELS * F8_ROWS > rope.n_q_heads * HEAD_DIM) {
        wide_group_meets(group); /* the places of the tile before are no longer needed */
        wide_find_places(append, places, row, call.n_rows);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int token = min(row + thread / 32 * 16 + g + 8 * r, call.n_rows - 1);
        const wide_angles<HEAD_DIM> angles = wide_angles_of<HEAD_DIM>(rope, token);
#pragma unroll
        for (int h = 0; h < PANELS * F8_ROWS / HEAD_DIM; h++)
            if (feature / HEAD_DIM + h < rope.n_heads)
                wide_turn<HEAD_DIM>(rope.interleaved, angles, r, sums + h * HEAD_DIM / 8);
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            wide_group_meets(group); /* what was there has been copied */
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const float *pair = &sums[p * 16 + i][2 * r];
                const int first = feature + p * F8_ROWS + i * 8;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(own + (i ^ g) * 16),
                             "r"(wide_pack2(in_f8 && first >= rope.n_q_heads * HEAD_DIM,
                                            rope.q.type, pair[0], pair[1]))
                             : "memory");
            }
            wide_group_meets(group); /* the rows are complete */
            f8_leave_heads<HEAD_DIM>(rope, append, out, places, feature + p * F8_ROWS, row, r,
                                     call.n_rows);
        }
    }
}
