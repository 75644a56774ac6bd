/* paged_prefill with wgmma, for sm_90a: a block a multiprocessor takes tile after tile.
 *
 * The warps are split by role: some copy (paged_prefill_ring.cuh), two or three warpgroups compute
 * 64 rows each. There is no barrier among them, so that one computes exponentials while another's
 * products keep the tensor cores busy. A group does not stop between tiles: the first scores of a
 * tile are started with the last product of the tile before, and their exponentials are computed
 * during that product.
 */
#pragma once

#include "op/paged_prefill/paged_prefill_carry.cuh"
#include "op/paged_prefill/paged_prefill_softmax.cuh"

/* A kernel's parameters; those of calls with limits follow. */
#define PREFILL_PARAMETERS                                                                         \
    const __grid_constant__ paged_attention call, const __grid_constant__ tensor_map k_map,        \
        const __grid_constant__ tensor_map v_map, const __grid_constant__ tensor_map q_map,        \
        const __grid_constant__ tensor_map out_map, int carried

/* The sizes of a kernel: see paged_cuda.h. */
template <int DIM, int N_GROUPS> struct prefill_form {
    enum {
        HEAD_DIM = DIM,
        GROUPS = N_GROUPS,
        ROWS = GROUPS * 64,
        STEP = PAGED_PREFILL_STEP,
        K_STAGES = PAGED_PREFILL_K_STAGES(DIM),
        V_STAGES = PAGED_PREFILL_V_STAGES(DIM),
        /* Registers of a thread that computes and of one that copies; 64K in all. */
        REGISTERS = GROUPS == 2 ? 216 : 160,
        COPYING = GROUPS == 2 ? 72 : 32,
        SHARED = PAGED_PREFILL_SHARED(DIM, GROUPS),
        WIDENS = false, /* the cache has the products' type */
    };
};

/* s (64, STEP) = q (64, HEAD_DIM) k (STEP, HEAD_DIM)^T */
template <typename T, int HEAD_DIM, int STEP>
__device__ __forceinline__ void prefill_scores(float (&s)[STEP / 8][4], uint32_t q, uint32_t k)
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
__device__ __forceinline__ void prefill_values(float (&o)[HEAD_DIM / 8][4],
                                               const uint32_t (&weights)[STEP / 16][4], uint32_t v)
{
    const uint64_t values = wgmma_operand(v, STEP);
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
        wgmma_values(T(), o, weights[i], wgmma_further(values, i * 16 * 128), 1);
    wgmma_commit();
}

/* The warps of a computing group meet. */
__device__ __forceinline__ void prefill_meet(void)
{
    asm volatile("bar.sync %0, 128;" ::"r"((int)threadIdx.x / 128 + 1) : "memory");
}

/* Requests the queries of a group's 64 rows, from `first` on, for shared memory at `to`, where no
 * tensor map describes them. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void prefill_queries(const paged_attention &call,
                                                const prefill_tile &tile, char *to, int first)
{
    constexpr int CHUNKS = HEAD_DIM / 8, STEP = 128 / CHUNKS;
    int chunk = (int)threadIdx.x % CHUNKS, row = (int)threadIdx.x % 128 / CHUNKS;
    const char *base = (const char *)call.q + tile.first_token * call.q_strides.token +
                       tile.kv_head * call.group * call.q_strides.head;
    float sign = call.sm_scale < 0 ? -1.0f : 1.0f;
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

/* A computing group: what it knows of its present tile, and where it is in the rings. */
template <typename T, typename FORM, typename LIMITS> struct prefill_group {
    enum { HEAD_DIM = FORM::HEAD_DIM, STEP = FORM::STEP };
    typedef prefill_memory<FORM> memory;

    const paged_attention &call;
    const LIMITS &limits;
    char *shared;
    float scale;
    int row;                 /* the lane's first row in the tile */
    int present, next;       /* slots of the tiles; -1: there is none */
    int number;              /* of the present tile */
    int n_steps, first, end; /* left in the tile; position of the step; of the first masked step */
    softmax_rows rows;
    typename memory::keys keys;
    typename memory::values values;
    typename memory::slots slots;
    prefill_places<FORM> places;
    bool carried; /* queries and outputs, by the warp for that */

    __device__ __forceinline__ const prefill_tile &tile(int slot) const
    {
        return ((const prefill_tile *)(shared + memory::TILES))[slot];
    }
    /* Looks at the next tile, whose number is n, and requests its queries. */
    __device__ __forceinline__ void seek(int n)
    {
        slots.wait();
        next = tile(slots.stage).n_tokens < 0 ? -1 : slots.stage;
        slots.next();
        if (next >= 0 && !carried)
            prefill_queries<T, HEAD_DIM>(call, tile(next), shared + (places.at(n) - places.shared),
                                         row / 64 * 64);
    }

    __device__ __forceinline__ limited_rows<LIMITS> limited() const
    {
        return limited_rows<LIMITS>(limits, call, tile(present), row);
    }

    /* The next tile's queries have come; no warp reads those of the tile before any more. */
    __device__ __forceinline__ void await(void)
    {
        if (carried) {
            barrier_wait(places.full(number), places.parity(number));
        } else {
            copy_wait<0>();
            wgmma_publish();
        }
        prefill_meet();
    }

    /* Makes the next tile the present one, and looks at the one after it if the group copies
     * queries itself. */
    __device__ __forceinline__ void begin(void)
    {
        present = next;
        const prefill_tile &now = tile(present);
        prefill_steps<STEP> steps = prefill_steps_of<STEP>(call, limits, now, FORM::ROWS);
        n_steps = steps.count;
        first = steps.start;
        end = prefill_visible(call, now, now.first_row + (row & ~15)) - STEP;
        rows = prefill_rows(call, now, row);
        if (!carried) seek(number + 1);
    }

    /* Starts the product of the queries with the next keys. */
    __device__ __forceinline__ void start_scores(float (&s)[STEP / 8][4])
    {
        keys.wait();
        wgmma_hold(s);
        wgmma_begin();
        prefill_scores<T, HEAD_DIM, STEP>(s, places.at(number), keys.at());
    }
    /* Starts the product of the weights with the next values. */
    __device__ __forceinline__ void start_values(float (&o)[HEAD_DIM / 8][4],
                                                 const uint32_t (&weights)[STEP / 16][4])
    {
        values.wait();
        wgmma_hold(o);
        wgmma_begin();
        prefill_values<T, HEAD_DIM, STEP>(o, weights, values.at());
    }

    /* The factors of the present tile's outputs; returns its slot. */
    __device__ __forceinline__ int factors(float (&factor)[2]) const
    {
        prefill_factors(call, tile(present), row, rows, scale, factor);
        return present;
    }

    /* Stores the outputs of tile n, which is in a slot, or leaves them to the warp that carries. */
    __device__ __forceinline__ void finish(int n, int slot, const float (&factor)[2],
                                           const float (&o)[HEAD_DIM / 8][4])
    {
        const prefill_tile &of = tile(slot);
        if (!carried || !prefill_is_whole(of, row / 64 * 64))
            prefill_store<HEAD_DIM>(call, of, row, factor, o);
        else if (call.out_type == DTYPE_BF16)
            prefill_lay<HEAD_DIM>(__nv_bfloat16(), places.at(n), row % 64 & ~15, factor, o);
        else
            prefill_lay<HEAD_DIM>(__half(), places.at(n), row % 64 & ~15, factor, o);
        if (carried) wgmma_publish();
        __syncwarp(); /* all lanes have read the tile */
        slots.give(slot);
        if (carried && threadIdx.x % 32 == 0) barrier_arrive(places.empty(n));
    }

    /* The scores have come. */
    __device__ __forceinline__ void take_scores(float (&s)[STEP / 8][4],
                                                const limited_rows<LIMITS> &limited)
    {
        wgmma_hold(s);
        keys.give();
        limit_scores(s, limited, first);
        if (first > end) prefill_mask(s, rows, first);
    }
};

/* The maxima have changed. When the products with the values have ended, o *= shrink, or `store` if
 * a tile begins. The branch depends on the sums, which are never negative: the compiler does not
 * know that. Else it would wait for the products before it computes the exponentials. */
template <int HEAD_DIM, int TILES, typename STORE>
__device__ __forceinline__ void prefill_close(float (&o)[HEAD_DIM / 8][4], float (&s)[TILES][4],
                                              const softmax_rows &rows, const float (&shrink)[2],
                                              bool anew, STORE store)
{
    wgmma_hold(s);
    bool shrinks = shrink[0] != 1 || shrink[1] != 1 || rows.sum[0] < 0 || rows.sum[1] < 0;
    if (__any_sync(0xffffffffu, shrinks)) {
        wgmma_wait<0>();
        wgmma_hold(o);
        if (anew) {
            store();
        } else {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; i++)
                o[i / 4][i % 4] *= shrink[i % 4 / 2];
        }
    }
    wgmma_wait<0>();
    wgmma_hold(o);
}

template <typename T, int TILES>
__device__ __forceinline__ void prefill_pack(const float (&s)[TILES][4],
                                             uint32_t (&weights)[TILES / 2][4])
{
#pragma unroll
    for (int i = 0; i < TILES / 2; i++)
        weights_pack<T>(s, i, weights[i]);
}

/* A computing group: step after step, tile after tile. A step adds the values of the step before
 * and weighs those of its own. The inner loop has most of the time, so all else stays out of it. */
template <typename T, typename FORM, typename LIMITS>
__device__ __forceinline__ void prefill_compute(prefill_group<T, FORM, LIMITS> &group)
{
    constexpr int HEAD_DIM = FORM::HEAD_DIM, STEP = FORM::STEP;
    float s[STEP / 8][4], o[HEAD_DIM / 8][4] = {}, shrink[2], factor[2];
    uint32_t weights[STEP / 16][4];
    bool moves[2] = {true, true}, anew = false; /* anew: the step is a tile's first one */
    int before = 0; /* the slot of the last tile, whose outputs `factor` scales */
    auto store = [&]() {
        group.finish(group.number - 1, before, factor, o);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++)
            o[i / 4][i % 4] = 0;
    };
    group.seek(0);
    if (group.next < 0) return;
    group.await();
    group.start_scores(s);
    group.begin();
    limited_rows<LIMITS> limited = group.limited();
    wgmma_wait<0>();
    group.take_scores(s, limited);
    for (;;) {
        prefill_weigh(s, group.rows, group.scale, moves, shrink);
        prefill_close<HEAD_DIM>(o, s, group.rows, shrink, anew, store);
        if (anew) group.values.give();
        prefill_pack<T>(s, weights);

        bool held = true;
#pragma unroll 1
        while (held && --group.n_steps > 0) {
            group.first += STEP;
            group.start_values(o, weights);
            group.start_scores(s);
            wgmma_wait<1>();
            wgmma_hold(o);
            group.values.give();
            wgmma_wait<0>();
            group.take_scores(s, limited);
            held = prefill_weigh_at_once<T>(s, group.rows, group.scale, weights, moves);
        }
        anew = held;
        if (!anew) continue;

        moves[0] = moves[1] = true;
        if (group.carried) group.seek(group.number + 1);
        if (group.next < 0) break;
        group.number++;
        group.await();
        group.start_scores(s);
        group.start_values(o, weights);
        before = group.factors(factor); /* while the products run, as the next two */
        group.begin();
        limited = group.limited();
        wgmma_wait<1>();
        group.take_scores(s, limited);
    }
    group.start_values(o, weights);
    before = group.factors(factor);
    wgmma_wait<0>();
    wgmma_hold(o);
    group.values.give();
    prefill_meet(); /* no warp reads the queries any more */
    group.finish(group.number, before, factor, o);
}

/* A warp of a group, for all tiles of the block. */
template <typename T, typename FORM, typename LIMITS>
__device__ __forceinline__ void
prefill_computing_warp(const paged_attention &call, const LIMITS &limits, bool carried,
                       char *shared, const typename prefill_memory<FORM>::keys &keys,
                       const typename prefill_memory<FORM>::values &values,
                       const typename prefill_memory<FORM>::slots &slots)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)FORM::REGISTERS));
    prefill_take_turn(call);
    int warp = (int)threadIdx.x / 32, row = warp * 16 + (int)threadIdx.x % 32 / 4;
    prefill_group<T, FORM, LIMITS> group = {
        call, limits, shared, limits_scale(limits, call), row,    0, 0, 0, 0, 0, 0, {},
        keys, values, slots,  {keys.shared, warp / 4},    carried};
    prefill_compute(group);
}

template <typename T, typename FORM, typename LIMITS>
__device__ __forceinline__ void
paged_prefill_wgmma(const paged_attention &call, const tensor_map &k_map, const tensor_map &v_map,
                    const tensor_map &q_map, const tensor_map &out_map, bool carried,
                    const LIMITS &limits, char *shared)
{
    typedef prefill_memory<FORM> memory;
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    typename memory::keys keys = {address, 0, 0};
    typename memory::values values = {address, 0, 0};
    typename memory::slots slots = {address, 0, 0};
    int warp = (int)threadIdx.x / 32;
    if (!call.beside) device_let_next_begin();
    if (threadIdx.x == 0) {
        keys.initialise(FORM::GROUPS * 4);
        values.initialise(FORM::GROUPS * 4);
        slots.initialise(FORM::GROUPS * 4 + 2 + carried); /* those that copy read them too */
        barrier_init(address + memory::WANTED, 1);
        for (int i = 0; i < FORM::GROUPS; i++)
            prefill_places<FORM>{address, i}.initialise();
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads(); /* the mbarriers are initialised */
    if (warp >= FORM::GROUPS * 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)FORM::COPYING));
        if (warp % 4 == 0) prefill_find_tiles<FORM>(call, limits, shared, slots);
        if (warp % 4 == 1)
            prefill_copy<FORM, false>(call, k_map, limits, carried, shared, keys, slots);
        if (warp % 4 == 2)
            prefill_copy<FORM, true>(call, v_map, limits, carried, shared, values, slots);
        if (warp % 4 == 3 && carried)
            prefill_carry<FORM>(call, q_map, out_map, shared, {address, 0}, slots);
    } else {
        prefill_computing_warp<T, FORM>(call, limits, carried, shared, keys, values, slots);
    }
}
