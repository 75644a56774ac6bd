/* What tests of the megakernel's own module look at inside an engine.
 *
 * These are unit tests of src/vm/mega: they run its kernels that delay blocks, damage its arguments
 * and its queues, and read what it reports of that. The interface of machines (vm/machine.h) has no
 * word for any of these. Tests of what machines compute open them by that interface alone.
 */
#pragma once

#include "engine/engine.h"
#include "vm/cuda/machine.h"
#include "vm/mega/machine.h"
#include "vm/ranks.h"

/* The megakernel of one of the engine's ranks; NULL: it has none. */
static inline cuda_mega *mega_of_rank(const qp_engine *engine, int rank)
{
    const machine *first = engine_machine(engine, 0);
    if (first->type == &machine_ranks) first = ranks_machine_of(first, rank);
    return first->type == &machine_megakernel ? mega_machine_of(first) : NULL;
}

/* The engine's megakernel, of the first rank. */
static inline cuda_mega *mega_of(const qp_engine *engine)
{
    return mega_of_rank(engine, 0);
}

static inline cuda_executor *cuda_of(const qp_engine *engine)
{
    return cuda_machine_executor(engine_memory(engine));
}
