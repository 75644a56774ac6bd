/* Random changes of schedules, for tests of the verifier. */
#pragma once

#include "base/hash.h"
#include "schedule/schedule.h"

#include <string.h>

typedef enum mutation { DROP_WAIT, SWAP_KNOTS, SHIFT_OFFSET, CHANGE_COUNT, KINDS } mutation;

static inline instruction *pick(schedule *s, uint64_t random, int *worker, int *place)
{
    do {
        *worker = (int)(random % (uint64_t)s->options.workers);
        random = hash_mix(random);
    } while (s->length[*worker] < 2);
    *place = (int)(random % (uint64_t)(s->length[*worker] - 1));
    return s->instructions + (size_t)*worker * (size_t)s->longest + *place;
}

static inline void shift(instruction *in, uint64_t random)
{
    const int32_t by = (int32_t)(random % 33) - 16;
    const int32_t end = in->tokens.end > 1 << 20 ? 1 << 20 : in->tokens.end;
    switch (random >> 8 & 7) {
    case 0:
        in->units.begin += by;
        break;
    case 1:
        in->units.end += by;
        break;
    case 2:
        in->units.begin += by;
        in->units.end += by;
        break;
    case 3:
        in->tokens.begin += by;
        break;
    case 4:
        in->tokens.end = end + by;
        break;
    case 5:
        in->operands[random >> 16 & 15] = (uint16_t)(1 + (random >> 20) % 20);
        break;
    case 6:
        in->part = (uint16_t)(in->part + 1);
        break;
    default:
        in->parts = (uint16_t)(in->parts + 1);
    }
}

/* Whether a count beside the instruction's own was changed. */
static inline bool change_count(schedule *s, instruction *in, uint64_t random)
{
    instruction_wait *wait = &in->waits[random & 1];
    uint32_t counters = (uint32_t)s->n_counters, some = (uint32_t)(random >> 16);
    switch (random >> 8 & 3) {
    case 0:
        wait->needed += some & 1 ? 1u : UINT32_MAX;
        return false;
    case 1:
        wait->counter = some % counters;
        return false;
    case 2:
        in->signal = some % counters;
        return false;
    default:
        s->per_pass[1 + some % (counters - 1)] += 1;
        return true;
    }
}

/* Whether anything is other than before. */
static inline bool mutate(schedule *s, mutation kind, uint64_t random)
{
    int worker, place;
    instruction *in = pick(s, random, &worker, &place);
    random = hash_mix(random);
    instruction kept = *in;
    bool elsewhere = false;
    if (kind == DROP_WAIT) {
        in->waits[random & 1] = (instruction_wait){0};
        in->flags &= (uint16_t) ~(INSTRUCTION_PREVIOUS_0 << (random & 1));
    } else if (kind == SWAP_KNOTS) {
        *in = in[1];
        in[1] = kept;
    } else if (kind == SHIFT_OFFSET) {
        shift(in, random);
    } else {
        elsewhere = change_count(s, in, random);
    }
    return elsewhere || memcmp(in, &kept, sizeof kept) != 0;
}
