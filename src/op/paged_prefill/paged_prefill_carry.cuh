/* The warp of paged_prefill with wgmma that carries queries to shared memory and outputs from it.
 *
 * A computing group's 64 rows have a place for each of two tiles. Queries come into it, outputs
 * replace them when the group has computed the tile, and the queries of the tile after the next
 * follow when the outputs have left:
 *
 *     full     the queries have come
 *     empty    the group has computed the tile; its outputs are there, if all 64 rows are wanted
 *
 * A copy is one box for 64 elements of all rows: the rows are all heads of a KV head of some
 * tokens, so the number of heads divides 64. Addresses of single rows would cost the computing
 * warps more than the exponentials of a step. Calls that no tensor map describes (`carried` 0) go
 * without this warp.
 */
#pragma once

#include "op/paged_prefill/paged_prefill_ring.cuh"

/* A group's places, and their mbarriers, by the tile's number: how many the block had before. */
template <typename FORM> struct prefill_places {
    enum { BYTES = 64 * FORM::HEAD_DIM * 2, BARRIERS = prefill_memory<FORM>::END };
    static_assert((int)BARRIERS + FORM::GROUPS * 32 <= (int)FORM::SHARED,
                  "as PAGED_PREFILL_SHARED counts");
    uint32_t shared; /* its address */
    int group;

    __device__ __forceinline__ uint32_t at(int n) const
    {
        return shared + (uint32_t)(n % 2 * prefill_memory<FORM>::QUERIES + group * BYTES);
    }
    __device__ __forceinline__ uint32_t full(int n) const
    {
        return shared + (uint32_t)(BARRIERS + group * 32 + n % 2 * 8);
    }
    __device__ __forceinline__ uint32_t empty(int n) const { return full(n) + 16; }
    __device__ __forceinline__ static uint32_t parity(int n) { return (uint32_t)n / 2 % 2; }
    __device__ __forceinline__ void initialise() const
    {
        for (int n = 0; n < 2; n++) {
            barrier_init(full(n), 1);
            barrier_init(empty(n), 4); /* a thread of each warp of the group */
        }
    }
};

/* Whether all of a group's rows, which begin at the tile's row `first`, belong to the sequence. */
__device__ __forceinline__ bool prefill_is_whole(const prefill_tile &tile, int first)
{
    return tile.n_rows - tile.first_row - first >= 64;
}

/* A lane's columns of its two rows times their factors, in the type T, to the group's place: four
 * matrices of 8 x 8 at once, whose rows the lanes address. `row`: the warp's first in the group. */
template <int HEAD_DIM, typename T>
__device__ __forceinline__ void prefill_lay(T, uint32_t place, int row, const float (&factor)[2],
                                            const float (&o)[HEAD_DIM / 8][4])
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
        uint32_t pair[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            pair[j] = pack_pair(T(), o[2 * i + j / 2][j % 2 * 2] * factor[j % 2],
                                o[2 * i + j / 2][j % 2 * 2 + 1] * factor[j % 2]);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         place + tile_byte(64, row + lane % 16, 2 * i + lane / 16)),
                     "r"(pair[0]), "r"(pair[1]), "r"(pair[2]), "r"(pair[3])
                     : "memory");
    }
}

/* Where a tile is in the tensor maps. */
struct prefill_load {
    int token, kv_head, rows; /* rows: how many belong to the sequence */
};

__device__ __forceinline__ void prefill_box_store(const tensor_map &map, const prefill_box &box,
                                                  uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(from), "r"(box.element), "r"(0), "r"(box.offset), "r"(box.page)
                 : "memory");
}

/* Requests the queries of tile n. Those after the end of the sequence are another's, or zeros. */
template <typename FORM>
__device__ __forceinline__ void prefill_bring(const tensor_map &map, const prefill_load &load,
                                              prefill_places<FORM> places, int n, int tokens)
{
    if (threadIdx.x % 32 != 0) return;
    for (places.group = 0; places.group < FORM::GROUPS; places.group++) {
        barrier_expect(places.full(n), places.BYTES);
        for (int c = 0; c < FORM::HEAD_DIM / 64; c++)
            prefill_box_copy(places.at(n) + c * 64 * 128, map,
                             {c * 64, load.kv_head, load.token + places.group * tokens}, 0,
                             places.full(n));
    }
}

/* Stores the outputs of tile n as soon as the groups have computed them, and waits until their
 * places are free. */
template <typename FORM>
__device__ __forceinline__ void prefill_take_away(const tensor_map &map, const prefill_load &load,
                                                  prefill_places<FORM> places, int n, int tokens)
{
    if (threadIdx.x % 32 != 0) return;
    for (places.group = 0; places.group < FORM::GROUPS; places.group++) {
        barrier_wait(places.empty(n), places.parity(n));
        if (load.rows < places.group * 64 + 64) continue;
        for (int c = 0; c < FORM::HEAD_DIM / 64; c++)
            prefill_box_store(map, {c * 64, load.kv_head, load.token + places.group * tokens},
                              places.at(n) + c * 64 * 128);
    }
    asm volatile("cp.async.bulk.commit_group;\n"
                 "cp.async.bulk.wait_group.read 0;" ::
                     : "memory");
}

/* The warp. */
template <typename FORM, typename SLOTS>
__device__ __forceinline__ void prefill_carry(const paged_attention &call, const tensor_map &q_map,
                                              const tensor_map &out_map, char *shared,
                                              prefill_places<FORM> places, SLOTS slots)
{
    const prefill_tile *tiles = (const prefill_tile *)(shared + prefill_memory<FORM>::TILES);
    const int tokens = prefill_token(call, 64); /* of a group */
    prefill_load earlier = {0, 0, 0}, last = {0, 0, 0};
    int n = 0;
    map_prefetch(q_map);
    map_prefetch(out_map);
    for (;; n++) {
        slots.wait();
        const prefill_tile &tile = tiles[slots.stage];
        if (tile.n_tokens < 0) break;
        prefill_load load = {tile.first_token + prefill_token(call, tile.first_row), tile.kv_head,
                             tile.n_rows - tile.first_row};
        __syncwarp(); /* all lanes have read the tile */
        slots.give();
        device_wait_for_last();
        if (n >= 2) prefill_take_away(out_map, earlier, places, n - 2, tokens);
        prefill_bring(q_map, load, places, n, tokens);
        earlier = last;
        last = load;
    }
    if (n >= 2) prefill_take_away(out_map, earlier, places, n - 2, tokens);
    if (n >= 1) prefill_take_away(out_map, last, places, n - 1, tokens);
}
