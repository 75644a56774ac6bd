/* The instruction: 32 words of 32 bits, the same on every machine.
 *
 *        0                   15 16                  31
 *       +----------------------+----------------------+
 *     0 | opcode               | flags                |
 *     1 | step                 | layer, or -1         |
 *     2 | node                                        |
 *     3 | part                 | parts                |   parts 0: units [begin, end)
 *     4 | units.begin                                 |   parts > 0: cut at run time,
 *     5 | units.end                                   |   in whole grains of units.end
 *     6 | tokens.begin                                |   rows of the batch that it may touch
 *     7 | tokens.end                                  |
 *     8 | waits[0].counter                            |   counter 0: does not wait
 *     9 | waits[0].needed                             |
 *    10 | waits[1].counter                            |
 *    11 | waits[1].needed                             |
 *    12 | signal                                      |   counter that gets one more; 0: none
 *    13 | cost_ns                                     |   as predicted
 *    14 | params[5]                                   |   float32, in the operator's order
 *    19 | operands[24]                                |   views by number, in the operator's
 *    31 | 0                                           |   order; 0: absent
 *       +----------------------+----------------------+
 *
 * There are no pointers, positions, context lengths or batch sizes in it: an instruction is part of
 * every forward pass. Counters count up for ever: with `per_pass` signals of a counter in each
 * pass, a wait in pass p (the first is 0) is over when the counter has p * per_pass + needed; with
 * INSTRUCTION_PREVIOUS_0 or _1 set, when it has (p - 1) * per_pass + needed, which in pass 0
 * is at once. The header is C17 and CUDA C.
 *
 * A worker runs the instructions of its queue in order. A shared one may also be run, whole or in
 * cells, by workers that wait for its signal; it has ended when its signal has been sent, which is
 * the only thing that says so: the queue may be further, or not yet there.
 */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define INSTRUCTION_FN __host__ __device__ static inline
#else
#define INSTRUCTION_FN static inline
#endif

enum {
    INSTRUCTION_WORDS = 32,
    INSTRUCTION_WAITS = 2,
    INSTRUCTION_PARAMS = 5,
    INSTRUCTION_OPERANDS = 24,
    INSTRUCTION_ALL_TOKENS = INT32_MAX, /* as tokens.end */
};

/* Flags. */
enum {
    INSTRUCTION_PREVIOUS_0 = 1, /* waits[0] is for the previous pass's count */
    INSTRUCTION_PREVIOUS_1 = 2, /* waits[1] is */
    INSTRUCTION_ROW_SLICES = 4, /* tokens cut the operands' rows, not the units */
    INSTRUCTION_SHARED = 8,     /* any worker may run parts of it once its waits are over */
};

typedef struct instruction_span {
    int32_t begin, end;
} instruction_span;

typedef struct instruction_wait {
    uint32_t counter, needed;
} instruction_wait;

typedef struct instruction {
    uint16_t opcode, flags;
    uint16_t step; /* of the program */
    int16_t layer;
    uint32_t node; /* of the program: instructions of one node share kernel, operands and params */
    uint16_t part, parts;
    instruction_span units;
    instruction_span tokens;
    instruction_wait waits[INSTRUCTION_WAITS];
    uint32_t signal;
    uint32_t cost_ns;
    float params[INSTRUCTION_PARAMS];
    uint16_t operands[INSTRUCTION_OPERANDS];
    uint32_t zero;
} instruction;

/* When a worker began to wait, to compute and to signal, and when it had signalled: nanoseconds of
 * a clock that all workers share. The worker's next instruction waits from `end` on. */
typedef struct instruction_timing {
    uint64_t wait, work, signal, end;
    /* While it waited, the worker may have run cells of others: from the first one's beginning to
     * the last one's end, which is 0 if there was none, of the instruction at worker * longest +
     * place. */
    uint64_t help_begin, help_end;
    int32_t help;
} instruction_timing;

#ifdef __cplusplus
static_assert(sizeof(instruction) == 4 * INSTRUCTION_WORDS, "an instruction is 32 words");
#else
_Static_assert(sizeof(instruction) == 4 * INSTRUCTION_WORDS, "an instruction is 32 words");
#endif

/* The count that wait `i` is for in pass `pass`, with `per_pass` signals of its counter in a pass;
 * modulo 2^32, as counters are. */
INSTRUCTION_FN uint32_t instruction_target(const instruction *in, int i, uint32_t pass,
                                           uint32_t per_pass)
{
    uint32_t previous = (uint32_t)(in->flags >> i & 1);
    if (previous && pass == 0) return 0;
    return (pass - previous) * per_pass + in->waits[i].needed;
}

/* Whether a counter has reached the target; both may have wrapped around. */
INSTRUCTION_FN int instruction_reached(uint32_t count, uint32_t target)
{
    return (int32_t)(count - target) >= 0;
}

/* The rows that the instruction computes, of a batch of `rows`. */
INSTRUCTION_FN instruction_span instruction_rows(const instruction *in, int32_t rows)
{
    instruction_span span;
    span.begin = in->tokens.begin < rows ? in->tokens.begin : rows;
    span.end = in->tokens.end < rows ? in->tokens.end : rows;
    return span;
}

/* The units that it computes, of `units` of the whole call; each of the `rows` rows has the same
 * number of units. Parts differ by one grain at most. */
INSTRUCTION_FN void instruction_units(const instruction *in, int64_t units, int32_t rows,
                                      int64_t *begin, int64_t *end)
{
    *begin = in->units.begin;
    *end = in->units.end;
    if (in->parts == 0) return;
    instruction_span span = instruction_rows(in, rows);
    int64_t per_row = rows > 0 ? units / rows : 0, grain = in->units.end;
    int64_t first = span.begin * per_row, count = (span.end - span.begin) * per_row;
    int64_t grains = (count + grain - 1) / grain;
    int64_t base = grains / in->parts, extra = grains % in->parts;
    int64_t from = in->part * base + (in->part < extra ? in->part : extra);
    int64_t to = from + base + (in->part < extra ? 1 : 0);
    *begin = first + (from * grain < count ? from * grain : count);
    *end = first + (to * grain < count ? to * grain : count);
}
