/* The execution "cuda-ops": the plan on the GPU, operator by operator. */
#include "vm/cuda/executor.h"
#include "vm/execute.h"
#include "vm/execution.h"

#include <stdlib.h>

typedef struct cuda_execution {
    cuda_device device;
    executor host; /* for its RoPE table */
    cuda_executor executor;
    op_variant *variants; /* [plan->n_nodes]: names and tolerances of the kernels */
} cuda_execution;

static void close_cuda(void *self)
{
    cuda_execution *e = self;
    if (!e) return;
    cuda_executor_free(&e->executor);
    executor_free(&e->host);
    cuda_device_close(&e->device);
    free(e->variants);
    free(e);
}

static qp_status open_cuda(const execution_setup *setup, void **self, qp_error *error)
{
    cuda_execution *e = *self = calloc(1, sizeof *e);
    if (!e) return error_no_memory(error, "the execution", sizeof *e);
    e->variants = calloc((size_t)setup->plan->n_nodes, sizeof *e->variants);
    if (!e->variants)
        return error_no_memory(error, "the execution",
                               (size_t)setup->plan->n_nodes * sizeof *e->variants);
    TRY(cuda_device_open(&e->device, error));
    TRY(executor_init_host(&e->host, setup->plan, setup->model, setup->pool, setup->cpu_features,
                           error));
    TRY(cuda_executor_init(&e->executor, &e->device, setup->plan, setup->model,
                           e->host.rope_table.data, setup->progress, error));
    e->executor.table = NULL; /* what changes of it is written like other tensors */
    return QP_OK;
}

static qp_status run_cuda(void *self, const batch *batch, int first, int last, qp_error *error)
{
    cuda_execution *e = self;
    const program *plan = e->executor.plan;
    for (int n = 0; n < plan->n_nodes; n++) {
        op_call call;
        cuda_executor_bind(&e->executor, n, &batch->sizes, &call);
        const cuda_kernel *kernel = cuda_ops_choose(&e->executor.ops, plan->nodes[n].op, &call);
        if (kernel)
            e->variants[n] = (op_variant){.name = kernel->name, .tolerances = kernel->tolerances};
    }
    TRY(cuda_executor_run(&e->executor, batch, first, last, error));
    return cuda_device_wait(&e->device, "the forward pass", error);
}

static qp_status read_cuda(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                           qp_error *error)
{
    cuda_execution *e = self;
    return cuda_executor_read(&e->executor, id, layer, data, bytes, error);
}

static qp_status write_cuda(void *self, plan_tensor_id id, int64_t layer, const void *data,
                            size_t bytes, qp_error *error)
{
    cuda_execution *e = self;
    return cuda_executor_write(&e->executor, id, layer, data, bytes, error);
}

static execution_kernel kernel_cuda(const void *self, int node)
{
    const cuda_execution *e = self;
    const op_variant *variant = &e->variants[node];
    return (execution_kernel){variant->name ? variant->name : "cuda", false, variant};
}

const execution_type execution_cuda_ops = {.name = "cuda-ops",
                                           .help = "the GPU's kernels, operator by operator",
                                           .open = open_cuda,
                                           .close = close_cuda,
                                           .run = run_cuda,
                                           .read = read_cuda,
                                           .write = write_cuda,
                                           .kernel = kernel_cuda};
