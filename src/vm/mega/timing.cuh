/* Timing slots: when a block ran each entry, if the host wants to know.
 *
 * One thread reads the GPU's global timer and stores it; no thread waits for the store. Without
 * slots a stamp is a branch on an argument that all threads take alike.
 */
#pragma once

#include "vm/mega/async.cuh"
#include "vm/mega/mega.h"

/* The words of a slot. */
enum mega_moment { MEGA_BEGINS, MEGA_WORKS, MEGA_SIGNALS, MEGA_ENDS };

MEGA_FN mega_timing *timing_slot(const mega_arguments &a, uint32_t pass, int entry)
{
    size_t place = (size_t)(pass - a.first_pass) * gridDim.x + blockIdx.x;
    return (mega_timing *)a.timings + place * a.longest + entry;
}

/* By the consumer warps. */
MEGA_FN void timing_stamp(const mega_arguments &a, int thread, uint32_t pass, int entry,
                          mega_moment moment)
{
    if (!a.timings || thread) return;
    ((volatile uint64_t *)timing_slot(a, pass, entry))[moment] = global_ns();
}

/* What the producer warp waited for while it copied an entry's weights. */
struct fetch_timing {
    uint32_t room, memory; /* ns */
    uint64_t last;

    MEGA_FN void begin(const mega_arguments &a)
    {
        if (a.timings) last = global_ns();
    }
    MEGA_FN void end(const mega_arguments &a, uint32_t *sum)
    {
        if (!a.timings) return;
        uint64_t now = global_ns();
        *sum += (uint32_t)(now - last);
        last = now;
    }
    MEGA_FN void keep(const mega_arguments &a, int lane, uint32_t pass, int entry)
    {
        if (!a.timings) return;
        mega_timing *slot = timing_slot(a, pass, entry);
        if (lane == 0) slot->room_ns = room, slot->memory_ns = memory;
        room = memory = 0;
    }
};
