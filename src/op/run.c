/* Runs a whole call: see run.h. */
#include "op/run.h"

#include "op/exchange.h"

typedef struct run_context {
    op_kernel *kernel;
    const op_call *call;
    char *scratch;
    size_t scratch_bytes;
    int64_t units;
} run_context;

static void run_share(void *context, int worker, int n_workers)
{
    const run_context *run = context;
    op_call call = *run->call;
    thread_share(run->units, worker, n_workers, &call.begin, &call.end);
    call.scratch = run->scratch ? run->scratch + (size_t)worker * run->scratch_bytes : NULL;
    if (call.begin < call.end) run->kernel(&call);
}

void op_run(const op_info *op, op_kernel *kernel, const op_call *call, thread_pool *pool,
            void *scratch, size_t scratch_bytes)
{
    run_context run = {kernel, call, scratch, scratch_bytes, op->units(call)};
    int64_t grain = op->grain > 0 ? op->grain : 1;
    /* An exchange between ranks is made by one thread. */
    const bool apart = (op == &op_all_reduce || op == &op_all_gather) && exchange_group(call);
    if (run.units >= 2 * grain && !apart)
        thread_pool_run(pool, run_share, &run);
    else
        run_share(&run, 0, 1);
}
