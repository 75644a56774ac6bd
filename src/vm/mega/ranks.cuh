/* Several ranks, each a GPU with a megakernel of its own over its heads, features and tokens.
 *
 * Each rank's x has the rank's part of the sums: the products that it computes itself, the
 * embedding only on rank 0, and its own x of the step before. The residual is the sum over ranks
 * of integers, so all ranks have the same bits. A warp of each block owns a share of the columns.
 * Where an element of the rank's x is complete, the warp pushes it to all other ranks, with the
 * pass's tag in place of the count. A reader adds what has arrived from the others to the rank's
 * own element. No flag and no fence is needed, and nothing is cleared.
 *
 * Two sets of buffers alternate by pass. That is enough: a rank begins pass p + 2 only when all
 * ranks have chosen the token of pass p + 1, and a rank chooses that only when all of its blocks
 * have ended pass p, whose words the pushes of pass p + 2 replace.
 */
#pragma once

#include "vm/mega/block.cuh"

/* ---- between GPUs ---- */

MEGA_FN longlong2 load_system_two(const int64_t *p)
{
    longlong2 v;
    asm volatile("ld.relaxed.sys.global.v2.s64 {%0, %1}, [%2];"
                 : "=l"(v.x), "=l"(v.y)
                 : "l"(p)
                 : "memory");
    return v;
}
MEGA_FN int64_t load_system(const int64_t *p)
{
    int64_t v;
    asm volatile("ld.relaxed.sys.global.s64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
MEGA_FN void store_system(int64_t *p, int64_t v)
{
    asm volatile("st.relaxed.sys.global.s64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
MEGA_FN void store_system_two(int64_t *p, int64_t v, int64_t w)
{
    asm volatile("st.relaxed.sys.global.v2.s64 [%0], {%1, %2};" ::"l"(p), "l"(v), "l"(w)
                 : "memory");
}

/* The ranks after this one, in a circle, so that not all write to the same one first. */
MEGA_FN int rank_after(const mega_arguments &a, int i)
{
    int rank = a.ranks.rank + i;
    return rank < a.ranks.count ? rank : rank - a.ranks.count;
}

/* What rank `from` pushes to rank `to`: the sums of a step. */
MEGA_FN int64_t *pushed_sums(const mega_arguments &a, int to, int from, uint32_t pass, int step)
{
    size_t place = (size_t)(2 * from + (pass & 1)) * (2 * a.n_layers + 1) + step;
    return (int64_t *)a.ranks.receive[to] + place * a.hidden;
}
/* The same of its key. */
MEGA_FN int64_t *pushed_key(const mega_arguments &a, int to, int from, uint32_t pass)
{
    uint64_t keys = mega_keys_offset(a.ranks.count, a.n_layers, a.hidden);
    return (int64_t *)((mega_key *)(a.ranks.receive[to] + keys) + (pass & 1) * a.ranks.count +
                       from);
}

/* Slots of the choice in a rank's buffer. */
MEGA_FN int64_t *pushed_slots(const mega_arguments &a, int to)
{
    return (int64_t *)(a.ranks.receive[to] +
                       mega_slots_offset(a.ranks.count, a.n_layers, a.hidden));
}

/* Differs between a pass and the one that used the same buffer before. */
MEGA_FN uint32_t pass_tag(uint32_t pass)
{
    return (pass + 1) & FIXED_MOST_COUNTED;
}
MEGA_FN int64_t tagged_sum(int64_t sum, uint32_t tag)
{
    return (int64_t)((uint64_t)fixed_value(sum) + ((uint64_t)tag << FIXED_COUNT_AT));
}

/* ---- reading ---- */

MEGA_FN bool have_count(const longlong2 *v, uint32_t count)
{
    return fixed_count(v[0].x) == count && fixed_count(v[0].y) == count &&
           fixed_count(v[1].x) == count && fixed_count(v[1].y) == count;
}
MEGA_FN void add_four(longlong2 *to, const longlong2 *v)
{
    to[0].x += v[0].x, to[0].y += v[0].y, to[1].x += v[1].x, to[1].y += v[1].y;
}

/* Waits for the elements of one other rank. */
MEGA_FN void wait_rank(const mega_arguments &a, const mega_block &b, const instruction &in,
                       int from, int step, int column, longlong2 *v)
{
    const int64_t *at = pushed_sums(a, a.ranks.rank, from, b.pass(), step) + column;
    const uint32_t tag = pass_tag(b.pass());
    watchdog watchdog = {0, 0};
    for (;;) {
        v[0] = load_system_two(at), v[1] = load_system_two(at + 2);
        if (have_count(v, tag) || !MEGA_WAITS) return;
        if (watchdog.expired())
            mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_RANK - from, tag, fixed_count(v[0].x));
    }
}

/* As wait_residual(), of all ranks: four neighbouring elements, whose counts have no meaning, from
 * the rank's own ones and those of the others. All ranks have the whole of step 0. */
MEGA_FN void wait_ranks(const mega_arguments &a, const mega_block &b, const instruction &in,
                        const int64_t *own, int step, int column, uint32_t parts, bool inside,
                        longlong2 *out)
{
    const int last = rank_after(a, a.ranks.count - 1);
    const int64_t *theirs =
        step ? pushed_sums(a, a.ranks.rank, last, b.pass(), step) + column : own;
    const uint32_t tag = step ? pass_tag(b.pass()) : parts;
    watchdog watchdog = {0, 0};
    /* Poll one element at first, as wait_residual() does. */
    while (inside && MEGA_WAITS) {
        uint32_t found = fixed_count(load_system_two(theirs - 4 * b.lane).x);
        if (found == tag) break;
        __nanosleep(40);
        if (watchdog.expired())
            mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_RANK - last, tag, found);
    }
    longlong2 v[2];
    for (;;) {
        bool complete = true;
        if (inside) {
            v[0] = load_system_two(theirs), v[1] = load_system_two(theirs + 2);
            out[0] = load_relaxed_two(own), out[1] = load_relaxed_two(own + 2);
            complete = have_count(v, tag) && have_count(out, parts);
        }
        if (__all_sync(~0u, complete) || !MEGA_WAITS) break;
        if (watchdog.expired() && b.lane == 0)
            mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_X, parts, fixed_count(out[0].x));
    }
    if (!step || !inside) return;
    add_four(out, v);
#pragma unroll 1
    for (int i = 1; i < a.ranks.count - 1; i++) {
        wait_rank(a, b, in, rank_after(a, i), step, column, v);
        add_four(out, v);
    }
}

/* ---- pushing ---- */

/* Whether the launch has ended before this pass. */
MEGA_FN bool launch_stopped(uint32_t flow)
{
    return load_shared(flow + (uint32_t)offsetof(mega_flow, stop)) != 0;
}

/* Pushes two elements of a step when they are complete; false: the launch has ended. */
MEGA_FN bool push_two(const mega_arguments &a, uint32_t flow, uint32_t pass, int step, int column)
{
    const uint32_t parts = ((const uint32_t *)a.ranks.parts)[step], tag = pass_tag(pass);
    const int64_t *x = residual(a, pass, step) + column;
    longlong2 v = load_relaxed_two(x);
    for (; fixed_count(v.x) != parts || fixed_count(v.y) != parts; v = load_relaxed_two(x))
        if (launch_stopped(flow)) return false;
    for (int i = 1; i < a.ranks.count; i++)
        store_system_two(pushed_sums(a, rank_after(a, i), a.ranks.rank, pass, step) + column,
                         tagged_sum(v.x, tag), tagged_sum(v.y, tag));
    return true;
}

/* Pushes the likeliest token of this rank's part of the vocabulary to all ranks, itself too, when
 * all blocks have ended the pass. Rank 0 also says whether the launch ends after the next pass. */
MEGA_FN void push_key(const mega_arguments &a, uint32_t pass)
{
    const int lane = threadIdx.x & 31;
    if (lane >= a.ranks.count) return;
    while ((int32_t)(load_acquire((const uint32_t *)a.counters) - (pass + 1) * gridDim.x) < 0) {
    } /* block 0's first consumer watches the time */
    const uint64_t key = ((volatile uint64_t *)a.key)[(pass + 1) & 1], tag = (uint64_t)(pass + 1)
                                                                             << 32;
    const bool stop =
        a.ranks.rank == 0 && load_relaxed((const uint32_t *)a.stop_request) == a.launch;
    store_system_two(pushed_key(a, lane, a.ranks.rank, pass),
                     (int64_t)(tag | (uint32_t)key | (stop ? 0x80000000u : 0)),
                     (int64_t)(tag | key >> 32));
}

enum { LINE = 16 /* elements: whole lines of 128 bytes */ };

/* What the pushing warp does. A block begins a pass only when all ranks have its columns of all
 * steps of the pass before, so the warp is at most one phase late. */
MEGA_FN void push_sums(const mega_arguments &a, uint32_t flow)
{
    const int lane = threadIdx.x & 31, lines = a.hidden / LINE;
    const int begin = LINE * (lines * (int)blockIdx.x / (int)gridDim.x);
    const int end = LINE * (lines * ((int)blockIdx.x + 1) / (int)gridDim.x);
#pragma unroll 1
    for (int n = 0; n < a.n_passes; n++) {
        const uint32_t pass = a.first_pass + n;
        while (!barrier_try(flow + FLOW_BEGUN, n & 1))
            if (launch_stopped(flow)) return;
#pragma unroll 1
        for (int step = 1; step <= 2 * a.n_layers; step++) {
            if (MEGA_DELAYS) delay_warp(a, pass, step);
#pragma unroll 1
            for (int i = begin + 2 * lane; i < end; i += 64)
                if (!push_two(a, flow, pass, step, i)) return;
        }
        __syncwarp();
        if (!MEGA_CHOOSES && blockIdx.x == 0) push_key(a, pass);
    }
}

/* ---- the token ---- */

/* The largest key of a pass over all ranks; *stop: the launch ends. */
MEGA_FN uint64_t wait_keys(const mega_arguments &a, const mega_block &b, const instruction &in,
                           uint32_t pass, bool *stop)
{
    uint64_t best = 0;
#pragma unroll 1
    for (int from = 0; from < a.ranks.count; from++) {
        const int64_t *at = pushed_key(a, a.ranks.rank, from, pass);
        watchdog watchdog = {0, 0};
        longlong2 v = load_system_two(at);
        while ((uint32_t)((uint64_t)v.x >> 32) != pass + 1 ||
               (uint32_t)((uint64_t)v.y >> 32) != pass + 1) {
            if (watchdog.expired())
                mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_RANK - from, pass + 1,
                           (uint32_t)((uint64_t)v.x >> 32));
            v = load_system_two(at);
        }
        *stop = *stop || (uint32_t)v.x >> 31;
        best = max(best, (uint64_t)v.y << 32 | ((uint32_t)v.x & 0x7fffffffu));
    }
    return best;
}
