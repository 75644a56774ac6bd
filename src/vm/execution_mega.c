/* The execution "mk": the megakernel, a pass at a time.
 *
 * It runs all steps up to the logits at once. Its residual, queries, keys and values of every layer
 * are still in the GPU's memory behind a pass, as are the next pass's cleared sums, so that each
 * step can be judged by what the megakernel itself had before it.
 */
#include "vm/mega/megakernel.h"
#include "vm/execute.h"
#include "vm/execution.h"

#include <stdlib.h>
#include <string.h>

typedef struct mega_execution {
    cuda_device device;
    program plan;  /* operator by operator: what the megakernel stands beside */
    executor host; /* for its RoPE table */
    cuda_executor executor;
    cuda_mega mega;
} mega_execution;

static void close_mega(void *self)
{
    mega_execution *e = self;
    if (!e) return;
    cuda_mega_free(&e->mega);
    cuda_executor_free(&e->executor);
    executor_free(&e->host);
    cuda_device_close(&e->device);
    plan_free(&e->plan);
    free(e);
}

static qp_status open_mega(const execution_setup *setup, void **self, qp_error *error)
{
    mega_execution *e = *self = calloc(1, sizeof *e);
    if (!e) return error_no_memory(error, "the execution", sizeof *e);
    plan_options options = setup->plan->options;
    options.fuse = options.sums = false;
    const cuda_mega_options how = {.assignment =
                                       setup->schedule ? setup->schedule->assignment : SCHEDULE_RR};
    TRY(cuda_device_open(&e->device, error));
    TRY(plan_build(&setup->plan->config, setup->model, &options, &e->plan, error));
    TRY(executor_init_host(&e->host, &e->plan, setup->model, setup->pool, setup->cpu_features,
                           error));
    TRY(cuda_executor_init(&e->executor, &e->device, &e->plan, setup->model,
                           e->host.rope_table.data, setup->progress, error));
    e->executor.table = NULL; /* what changes of it is written like other tensors */
    TRY(cuda_mega_init(&e->mega, &e->executor, &how, error));
    if (e->mega.kernel) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "%s", e->mega.why_not);
}

static qp_status run_mega(void *self, const batch *batch, int first, int last, qp_error *error)
{
    (void)first, (void)last;
    mega_execution *e = self;
    int passes = 1;
    return cuda_mega_run(&e->mega, batch, NULL, &passes, NULL, error);
}

static bool keeps_tensor(plan_tensor_id id)
{
    return id == PLAN_SUMS || id == PLAN_SUMS_NEXT || id == PLAN_ATTN || id == PLAN_LOGITS ||
           id == PLAN_K_CACHE || id == PLAN_V_CACHE;
}

static qp_status read_mega(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                           qp_error *error)
{
    mega_execution *e = self;
    switch (id) {
    case PLAN_SUMS:
    case PLAN_SUMS_NEXT:
        return cuda_mega_read_sums(&e->mega, id == PLAN_SUMS_NEXT, data, error);
    case PLAN_ATTN:
        return cuda_mega_read_queries(&e->mega, layer, data, error);
    default:
        return cuda_executor_read(&e->executor, id, layer, data, bytes, error);
    }
}

static qp_status write_mega(void *self, plan_tensor_id id, int64_t layer, const void *data,
                            size_t bytes, qp_error *error)
{
    mega_execution *e = self;
    return cuda_executor_write(&e->executor, id, layer, data, bytes, error);
}

static execution_kernel kernel_mega(const void *self, int node)
{
    (void)self, (void)node;
    return (execution_kernel){.name = "mk"};
}

const execution_type execution_mega = {.name = "mk",
                                       .help = "the megakernel, a token at a time",
                                       .whole = true,
                                       .keeps = keeps_tensor,
                                       .open = open_mega,
                                       .close = close_mega,
                                       .run = run_mega,
                                       .read = read_mega,
                                       .write = write_mega,
                                       .kernel = kernel_mega};
