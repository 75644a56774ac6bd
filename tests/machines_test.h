/* What tests of GPU machines look at inside an engine: kernels, arguments, blocks. */
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
