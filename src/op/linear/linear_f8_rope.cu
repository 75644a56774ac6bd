/* rope and kv_append of q, k and v that a product of FP8 left in BF16: q is rotated in place, to
 * the type of attention's products; rotated k, and v, go only to the cache. A block has a token; a
 * thread has two eights of the same place in several heads.
 */
#include "op/kv_append/kv_append.cuh"
#include "op/rope/rope.cuh"

/* A token's row of heads: those of q, of k, of v. */
struct f8_heads {
    const rope_rows &rope;
    char *row;
    char *k, *v; /* the token's slots of the cache */
    int64_t k_head, v_head, cache_type;

    DEVICE_METHOD int count() const { return 2 * rope.n_heads - rope.n_q_heads; }
    DEVICE_METHOD uint16_t *at(int head) const { return (uint16_t *)(row + head * rope.q_head); }
    /* Stores eight elements of a head from `column` on. */
    DEVICE_METHOD void store(int head, int column, const float (&v8)[8]) const
    {
        const bool is_q = head < rope.n_q_heads;
        device_rows to = {is_q                  ? (char *)at(head)
                          : head < rope.n_heads ? k + (head - rope.n_q_heads) * k_head
                                                : v + (head - rope.n_heads) * v_head,
                          0, is_q && cache_type == DTYPE_F8 ? (int64_t)DTYPE_F16 : cache_type};
        device_store8<true>(to, 0, column, column + 8, v8);
    }
};

DEVICE_FN f8_heads f8_heads_of(const rope_rows &rope, const append_rows &append, int64_t token)
{
    const kv_place place =
        kv_append_place(append.qo_indptr, append.n_sequences, append.positions, append.kv_indptr,
                        append.kv_indices, append.page_size, token);
    return {rope,
            rope.q.data + token * rope.q.stride,
            append.k_cache.data + place.page * append.k_cache.stride + place.slot * append.k_slot,
            append.v_cache.data + place.page * append.v_cache.stride + place.slot * append.v_slot,
            append.k_cache_head,
            append.v_cache_head,
            append.k_cache.type};
}

/* The angles are loaded before the product has ended. */
DEVICE_FN void f8_turn(const rope_rows &rope, const append_rows &append, int64_t token)
{
    const int per_head = rope.half / 8, own = (int)threadIdx.x % per_head;
    const int step = (int)blockDim.x / per_head;
    const int a_at = own * (rope.interleaved ? 16 : 8);
    const int b_at = rope.interleaved ? a_at + 8 : a_at + rope.half;
    const f8_heads heads = f8_heads_of(rope, append, token);
    const float4 *angles =
        (const float4 *)(rope.table + rope.positions[token] * rope.table_stride) + own * 2;
    const float4 cosine[2] = {angles[0], angles[1]};
    const float4 sine[2] = {angles[rope.half / 4], angles[rope.half / 4 + 1]};
    device_wait_for_last();
    for (int first = (int)threadIdx.x / per_head; first < heads.count();
         first += step * ROPE_HEADS) {
        device_eight raw_a[ROPE_HEADS], raw_b[ROPE_HEADS];
#pragma unroll
        for (int h = 0; h < ROPE_HEADS; h++) {
            if (first + h * step >= heads.count()) continue;
            const uint16_t *from = heads.at(first + h * step);
            raw_a[h].low = *(const uint4 *)(from + a_at);
            raw_b[h].low = *(const uint4 *)(from + b_at);
        }
#pragma unroll
        for (int h = 0; h < ROPE_HEADS; h++) {
            const int head = first + h * step;
            if (head >= heads.count()) continue;
            float a[8], b[8];
            device_unpack8(DTYPE_BF16, raw_a[h], a);
            device_unpack8(DTYPE_BF16, raw_b[h], b);
            if (head < rope.n_heads) rope_turn8(rope.interleaved, a, b, cosine, sine);
            heads.store(head, a_at, a);
            heads.store(head, b_at, b);
        }
    }
}

extern "C" __global__ void __launch_bounds__(ROPE_THREADS)
    run_f8_rope(const __grid_constant__ rope_rows rope, const __grid_constant__ append_rows append)
{
    device_let_next_begin();
    f8_turn(rope, append, blockIdx.x);
}
