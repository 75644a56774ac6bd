/* What tests of the megakernel's own module look at inside an engine.
 *
 * These are unit tests of src/vm/mega: they run its kernels that delay blocks, damage its arguments
 * and its queues, and read what it reports of that. The interface of machines (vm/machine.h) has no
 * word for any of these. Tests of what machines compute open them by that interface alone.
 */
#ifndef QUIPU_TESTS_MACHINES_TEST_H
#define QUIPU_TESTS_MACHINES_TEST_H

#include "engine/engine.h"
#include "vm/cuda/machine.h"
#include "vm/mega/machine.h"

/* The engine's megakernel; NULL: it has none. */
static inline cuda_mega *mega_of(const qp_engine *engine)
{
    const machine *first = engine_machine(engine, 0);
    return first->type == &machine_megakernel ? mega_machine_of(first) : NULL;
}

static inline cuda_executor *cuda_of(const qp_engine *engine)
{
    return cuda_machine_executor(engine_memory(engine));
}

#endif
