/* References that round what another execution's kernels round: see execution.h. */
#include "vm/execution.h"

#include "base/checked.h"
#include "vm/execute.h"
#include "op/run.h"

#include <stdlib.h>
#include <string.h>

typedef struct rounded_node {
    op_kernel *kernel;
    size_t (*scratch_bytes)(const op_call *call);
} rounded_node;

typedef struct rounded {
    executor executor;   /* lends its memory */
    rounded_node *nodes; /* [plan->n_nodes] */
    buffer scratch;
    size_t scratch_bytes; /* of one worker */
} rounded;

bool execution_rounds(const execution *e, int node)
{
    execution_kernel kernel = e->type->kernel(e->self, node);
    return kernel.variant && kernel.variant->rounded;
}

static void rounded_close(void *self)
{
    rounded *r = self;
    if (!r) return;
    buffer_free(&r->scratch);
    executor_free(&r->executor);
    free(r->nodes);
    free(r);
}

static void bind(const rounded *r, int node, const plan_sizes *sizes, op_call *call)
{
    program_bind(r->executor.plan, node, &r->executor.memory, sizes->of, call);
}

static qp_status rounded_run(void *self, const batch *batch, int first, int last, qp_error *error)
{
    (void)error;
    rounded *r = self;
    const program *p = r->executor.plan;
    executor_take_inputs(&r->executor, batch);
    for (int s = first; s < last; s++) {
        const plan_step *step = &p->steps[s];
        for (int n = step->first_node; n < step->first_node + step->n_nodes; n++) {
            op_call call;
            bind(r, n, &batch->sizes, &call);
            op_run(op_get(p->nodes[n].op), r->nodes[n].kernel, &call, r->executor.pool,
                   r->scratch.data, r->scratch_bytes);
        }
    }
    return QP_OK;
}

static qp_status rounded_read(void *self, plan_tensor_id id, int64_t layer, void *data,
                              size_t bytes, qp_error *error)
{
    (void)error;
    rounded *r = self;
    memcpy(data, executor_address(&r->executor, id, layer), bytes);
    return QP_OK;
}

static qp_status rounded_write(void *self, plan_tensor_id id, int64_t layer, const void *data,
                               size_t bytes, qp_error *error)
{
    (void)error;
    rounded *r = self;
    memcpy(executor_address(&r->executor, id, layer), data, bytes);
    return QP_OK;
}

static execution_kernel rounded_kernel(const void *self, int node)
{
    (void)self, (void)node;
    return (execution_kernel){"rounded", true, NULL};
}

static const execution_type type = {.name = "rounded",
                                    .help = "the references with the roundings of other kernels",
                                    .close = rounded_close,
                                    .run = rounded_run,
                                    .read = rounded_read,
                                    .write = rounded_write,
                                    .kernel = rounded_kernel};

static void choose_kernels(rounded *r, const execution *like)
{
    const program *p = r->executor.plan;
    for (int n = 0; n < p->n_nodes; n++) {
        const op_info *op = op_get(p->nodes[n].op);
        const op_variant *variant = like->type->kernel(like->self, n).variant;
        r->nodes[n] = execution_rounds(like, n)
                          ? (rounded_node){variant->rounded, variant->rounded_scratch_bytes}
                          : (rounded_node){op->reference, op->scratch_bytes};
        op_call call;
        bind(r, n, &p->capacity, &call);
        size_t bytes = r->nodes[n].scratch_bytes ? r->nodes[n].scratch_bytes(&call) : 0;
        if (bytes > r->scratch_bytes) r->scratch_bytes = bytes;
    }
    r->scratch_bytes = round_up(r->scratch_bytes, BUFFER_ALIGNMENT);
}

qp_status execution_open_rounded(const execution *like, const execution_setup *setup,
                                 execution *out, qp_error *error)
{
    *out = (execution){.type = &type};
    rounded *r = out->self = calloc(1, sizeof *r);
    if (!r) return error_no_memory(error, "the execution", sizeof *r);
    TRY(executor_init(&r->executor, setup->plan, setup->model, setup->pool, 0, setup->progress,
                      error));
    r->nodes = calloc((size_t)setup->plan->n_nodes, sizeof *r->nodes);
    if (!r->nodes) return error_no_memory(error, "the execution", sizeof *r->nodes);
    choose_kernels(r, like);
    return buffer_alloc(&r->scratch, r->scratch_bytes * (size_t)thread_pool_size(setup->pool),
                        "scratch", error);
}
