/* The references with the roundings of other kernels: see rounded.h. */
#include "vm/rounded.h"

#include "base/checked.h"
#include "op/run.h"
#include "vm/execute.h"
#include "vm/machine_run.h"

#include <stdlib.h>
#include <string.h>

typedef struct rounded_node {
    op_kernel *kernel;
    size_t (*scratch_bytes)(const op_call *call);
} rounded_node;

typedef struct rounded {
    executor executor;   /* the executor whose memory is used */
    rounded_node *nodes; /* [program->n_nodes] */
    buffer scratch;
    size_t scratch_bytes; /* of one worker */
} rounded;

/* Whether the machine's kernel of a node rounds its inputs more coarsely than the reference. */
static bool rounds(const machine *m, int node)
{
    const machine_kernel kernel = machine_kernel_of(m, node);
    return kernel.variant && kernel.variant->rounded;
}

static void close_rounded(void *self)
{
    rounded *r = self;
    if (!r) return;
    buffer_free(&r->scratch);
    executor_free(&r->executor);
    free(r->nodes);
    free(r);
}

static void bind(const rounded *r, int node, const program_sizes *sizes, op_call *call)
{
    program_bind(r->executor.program, node, &r->executor.memory, sizes->of, call);
}

static const char *accepts_rounded(const void *self, const machine_request *request)
{
    const rounded *r = self;
    if (request->choice != MACHINE_LOGITS) return "it runs steps and chooses no tokens";
    return machine_refuses(r->executor.program, request);
}

static qp_status run_rounded(void *self, const machine_request *request, qp_error *error)
{
    (void)error;
    rounded *r = self;
    const program *p = r->executor.program;
    const machine_steps steps = machine_steps_of(p, request);
    executor_take_inputs(&r->executor, request->batch);
    for (int s = steps.first; s < steps.last; s++) {
        const program_step *step = &p->steps[s];
        for (int n = step->first_node; n < step->first_node + step->n_nodes; n++) {
            op_call call;
            bind(r, n, &request->batch->sizes, &call);
            op_run(op_get(p->nodes[n].op), r->nodes[n].kernel, &call, r->executor.pool,
                   r->scratch.data, r->scratch_bytes);
        }
    }
    return QP_OK;
}

static qp_status wait_rounded(void *self, int *passes, qp_error *error)
{
    (void)self, (void)error;
    *passes = 1;
    return QP_OK;
}

static qp_status read_rounded(void *self, plan_tensor_id id, int64_t layer, void *data,
                              size_t bytes, qp_error *error)
{
    (void)error;
    rounded *r = self;
    memcpy(data, executor_address(&r->executor, id, layer), bytes);
    return QP_OK;
}

static qp_status write_rounded(void *self, plan_tensor_id id, int64_t layer, const void *data,
                               size_t bytes, qp_error *error)
{
    (void)error;
    rounded *r = self;
    memcpy(executor_address(&r->executor, id, layer), data, bytes);
    return QP_OK;
}

static machine_kernel kernel_of_rounded(const void *self, int node)
{
    (void)self, (void)node;
    return (machine_kernel){"rounded", true, NULL};
}

static const machine_type type = {.name = "rounded",
                                  .references = true,
                                  .close = close_rounded,
                                  .accepts = accepts_rounded,
                                  .run = run_rounded,
                                  .wait = wait_rounded,
                                  .read = read_rounded,
                                  .write = write_rounded,
                                  .kernel = kernel_of_rounded};

static void choose_kernels(rounded *r, const machine *like)
{
    const program *p = r->executor.program;
    for (int n = 0; n < p->n_nodes; n++) {
        const op_info *op = op_get(p->nodes[n].op);
        const op_variant *variant = machine_kernel_of(like, n).variant;
        r->nodes[n] = rounds(like, n)
                          ? (rounded_node){variant->rounded, variant->rounded_scratch_bytes}
                          : (rounded_node){op->reference, op->scratch_bytes};
        op_call call;
        bind(r, n, &p->capacity, &call);
        size_t bytes = r->nodes[n].scratch_bytes ? r->nodes[n].scratch_bytes(&call) : 0;
        if (bytes > r->scratch_bytes) r->scratch_bytes = bytes;
    }
    r->scratch_bytes = round_up(r->scratch_bytes, BUFFER_ALIGNMENT);
}

qp_status machine_open_rounded(const machine *like, const machine_setup *setup, machine *out,
                               qp_error *error)
{
    *out = (machine){.type = &type};
    rounded *r = out->self = calloc(1, sizeof *r);
    if (!r) return error_no_memory(error, "the machine", sizeof *r);
    TRY(executor_init(&r->executor, setup->program, setup->pool, 0, NULL, NULL, setup->progress,
                      error));
    r->nodes = calloc((size_t)setup->program->n_nodes, sizeof *r->nodes);
    if (!r->nodes) return error_no_memory(error, "the machine", sizeof *r->nodes);
    choose_kernels(r, like);
    return buffer_alloc(&r->scratch, r->scratch_bytes * (size_t)thread_pool_size(setup->pool),
                        "scratch", error);
}
