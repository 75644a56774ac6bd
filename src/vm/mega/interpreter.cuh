/* The megakernel's interpreter: blocks run their queues of entries, pass after pass.
 *
 * HANDLERS has what is done at an entry: run(), by the sixteen consumer warps; fetch(), by the
 * producer warp, which copies the entry's weights to the ring; and publish(), by two more warps
 * beside them. Where launches may end early, run() sets the flow's `stop` in a pass's first entry,
 * in all blocks alike.
 */
#pragma once

#include "vm/mega/stream.cuh"
#if MEGA_RANKS
#include "vm/mega/ranks.cuh"
#endif
#if MEGA_CHOOSES
#include "vm/mega/choose.cuh"
#endif

/* One slot is left over, so that an entry between two others can be skipped without a barrier. */
enum { ENTRIES_AHEAD = MEGA_SLOTS - 2 };

/* Copies the entry `steps` after `place` to a slot, with its place. The last 16 consumer threads do
 * it. */
MEGA_FN void fetch_slot(const mega_arguments &a, const mega_block &b, mega_place place, int steps,
                        mega_entry *to)
{
    int word = b.thread - MEGA_CONSUMERS + 16;
    if (word < 0) return;
    for (place.entry += steps; place.entry >= place.length; place.pass++)
        place.entry -= place.length;
    place.left -= steps;
    const mega_entry *from = (const mega_entry *)a.program + (size_t)blockIdx.x * a.longest;
    if (word < 15)
        copy_16((uint32_t)__cvta_generic_to_shared((uint4 *)to + word),
                (const uint4 *)(from + place.entry) + word);
    else
        to->place = place;
    copies_commit();
}

/* Offset of the slot `steps` further; their number is a power of two. */
MEGA_FN uint32_t slot_after(const mega_arguments &a, uint32_t slot, int steps)
{
    uint32_t of = slot - a.shared.entries + steps * (uint32_t)sizeof(mega_entry);
    return a.shared.entries + of % (MEGA_SLOTS * (uint32_t)sizeof(mega_entry));
}

template <typename HANDLERS> MEGA_FN void run_program(const mega_arguments &a, mega_block &b)
{
    const int length = ((const int32_t *)a.lengths)[blockIdx.x];
    const mega_place start = {a.first_pass, 0, length, a.n_passes * length};
    for (int i = 0; i < ENTRIES_AHEAD; i++)
        fetch_slot(a, b, start, i, b.at<mega_entry>(a.shared.entries) + i);
    copies_arrived<0>();
    b.sync();
    for (bool more = true; more;) {
        b.reload();
        const mega_entry &e = b.current();
        fetch_slot(a, b, e.place, ENTRIES_AHEAD,
                   b.at<mega_entry>(slot_after(a, b.slot(), ENTRIES_AHEAD)));
        /* Later entries begin when the one before ends. */
        if (b.entry() == 0) b.stamp(a, MEGA_BEGINS);
        if (MEGA_DELAYS) delay_warp(a, b.pass(), b.entry());
        if (HANDLERS::skips(a, b, e)) {
            b.stamp(a, MEGA_ENDS);
            b.set_slot(slot_after(a, b.slot(), 1));
            continue;
        }
        b.reload();
        HANDLERS::run(a, b, e);
        b.reload();
        more = b.current().place.left > 1;
        copies_arrived<0>();
        uint32_t pass = b.pass();
        int entry = b.entry();
        b.sync(); /* the next entry is there, and no thread reads this one's memory any more */
        timing_stamp(a, b.thread, pass, entry, MEGA_ENDS);
        b.set_slot(slot_after(a, b.slot(), 1));
        if (MEGA_STOPPABLE && entry == 0 && b.flow(a)->stop) break;
    }
    copies_arrived<0>();
}

template <typename HANDLERS> MEGA_FN void run_interpreter(const mega_arguments &a)
{
    extern __shared__ __align__(1024) char dynamic[];
    uint32_t ring = (uint32_t)__cvta_generic_to_shared(dynamic);
    asm volatile("" : "+r"(ring)); /* so that it stays in a register */
    uint32_t own = ring + a.stages * stage_bytes(a);
    char *memory = dynamic + a.stages * stage_bytes(a);
    /* Zeros, because memory that was never copied to is multiplied by zero and must not hold NaN.
     */
    int bytes = a.stages * stage_bytes(a) + (int)a.shared.bytes;
    for (int i = threadIdx.x; i < bytes / 16; i += MEGA_THREADS)
        ((uint4 *)dynamic)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (threadIdx.x == 0) barrier_init(own + a.shared.flow + FLOW_BEGUN, 1);
    if (HANDLERS::PUBLISHES && threadIdx.x == 0) barrier_init(own + a.shared.flow + FLOW_ADDED, 1);
    if (MEGA_CHOOSES && threadIdx.x == 0) {
        barrier_init(own + a.shared.flow + FLOW_TO_CHOOSE, MEGA_DELAYS ? MEGA_CONSUMERS : 1);
        barrier_init(own + a.shared.flow + FLOW_CHOSEN, 1);
    }
    if (threadIdx.x == 0)
        for (int i = 0; i < a.stages; i++) {
            barrier_init(own + a.shared.full + 8 * i, 1);
            barrier_init(own + a.shared.empty + 8 * i, MEGA_DELAYS ? MEGA_CONSUMERS : MEGA_WARPS);
        }
    fence_async();
    __syncthreads();
    int thread = (int)threadIdx.x;
    if (thread >= MEGA_CONSUMERS) {
        if (!MEGA_CHOOSES) registers_release(); /* sampling warps need as many as consumer warps */
        bool prefetched = HANDLERS::PREFETCHES && a.first_position >= MEGA_PREFETCH_CONTEXT;
        const int fetching = MEGA_CONSUMERS + (prefetched ? 64 : 32);
#if MEGA_RANKS
        if (thread >= MEGA_THREADS - 32)
            push_sums(a, own + a.shared.flow);
        else
#endif
#if MEGA_CHOOSES
            if (thread >= fetching)
            choose_tokens(a, memory, own, thread - fetching,
                          MEGA_THREADS - 32 * MEGA_RANKS - fetching);
#else
        if (thread >= MEGA_THREADS - MEGA_PUBLISHERS)
            HANDLERS::publish(a, own + a.shared.flow, thread - (MEGA_THREADS - MEGA_PUBLISHERS));
#endif
        else if (thread < fetching)
            fetch_program<HANDLERS>(a, memory, ring, thread & 31,
                                    HANDLERS::PREFETCHES && thread >= MEGA_CONSUMERS + 32);
    } else {
        if (!MEGA_CHOOSES) registers_acquire();
        mega_block b = {};
        b.memory = memory, b.ring = ring, b.own = own;
        b.thread = thread, b.warp = thread >> 5, b.lane = thread & 31;
        b.set_slot(a.shared.entries);
        run_program<HANDLERS>(a, b);
    }
}
