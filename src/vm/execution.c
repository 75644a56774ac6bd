/* The executions of the CPU: see execution.h. */
#include "vm/execution.h"

#include "vm/execute.h"
#include "vm/scheduled.h"
#include "vm/serial.h"

#include <stdlib.h>
#include <string.h>

/* Operators in turn, or a schedule over the same memory. */
typedef struct cpu_execution {
    executor executor;
    scheduled scheduled;
    serial_machine *serial;
} cpu_execution;

static void cpu_close(void *self)
{
    cpu_execution *e = self;
    if (!e) return;
    serial_destroy(e->serial);
    scheduled_free(&e->scheduled);
    executor_free(&e->executor);
    free(e);
}

static qp_status open_executor(const execution_setup *setup, uint32_t features, void **self,
                               qp_error *error)
{
    cpu_execution *e = *self = calloc(1, sizeof *e);
    if (!e) return error_no_memory(error, "the execution", sizeof *e);
    return executor_init(&e->executor, setup->plan, setup->model, setup->pool, features,
                         setup->progress, error);
}

static qp_status ref_open(const execution_setup *setup, void **self, qp_error *error)
{
    return open_executor(setup, 0, self, error);
}

static qp_status ops_open(const execution_setup *setup, void **self, qp_error *error)
{
    return open_executor(setup, setup->cpu_features, self, error);
}

static qp_status threads_open(const execution_setup *setup, void **self, qp_error *error)
{
    TRY(ops_open(setup, self, error));
    cpu_execution *e = *self;
    return scheduled_init(&e->scheduled, &e->executor, setup->schedule, error);
}

static qp_status serial_open(const execution_setup *setup, void **self, qp_error *error)
{
    TRY(ref_open(setup, self, error));
    cpu_execution *e = *self;
    TRY(scheduled_init(&e->scheduled, &e->executor, setup->schedule, error));
    return serial_create(&e->scheduled.schedule, &e->serial, error);
}

static qp_status ops_run(void *self, const batch *batch, int first, int last, qp_error *error)
{
    (void)error;
    cpu_execution *e = self;
    executor_run(&e->executor, batch, first, last);
    return QP_OK;
}

static qp_status threads_run(void *self, const batch *batch, int first, int last, qp_error *error)
{
    cpu_execution *e = self;
    executor_take_inputs(&e->executor, batch);
    if (first == 0) executor_begin_pass(&e->executor);
    threads_machine_select(e->scheduled.machine, first, last);
    return scheduled_run(&e->scheduled, batch, (scheduled_record){0}, error);
}

/* In an order drawn anew for every pass. */
static qp_status serial_run_steps(void *self, const batch *batch, int first, int last,
                                  qp_error *error)
{
    cpu_execution *e = self;
    executor_take_inputs(&e->executor, batch);
    if (first == 0) executor_begin_pass(&e->executor);
    serial_options options = {.nodes = e->scheduled.kernels,
                              .scratch = e->executor.scratch.data,
                              .seed = 1,
                              .first_step = first,
                              .last_step = last};
    return serial_run(e->serial, e->scheduled.setup.memory, batch->sizes.of, &options, error);
}

static void *address_of(const cpu_execution *e, plan_tensor_id id, int64_t layer)
{
    return executor_address(&e->executor, id, layer);
}

static qp_status cpu_read(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                          qp_error *error)
{
    (void)error;
    memcpy(data, address_of(self, id, layer), bytes);
    return QP_OK;
}

static qp_status cpu_write(void *self, plan_tensor_id id, int64_t layer, const void *data,
                           size_t bytes, qp_error *error)
{
    (void)error;
    memcpy(address_of(self, id, layer), data, bytes);
    return QP_OK;
}

static execution_kernel cpu_kernel(const void *self, int node)
{
    const cpu_execution *e = self;
    const op_variant *variant = e->executor.nodes[node].variant;
    return (execution_kernel){variant ? variant->name : "reference", !variant, variant};
}

#define CPU_EXECUTION .close = cpu_close, .read = cpu_read, .write = cpu_write, .kernel = cpu_kernel

static const execution_type of_cpu[] = {
    {.name = "ref",
     .help = "the references, operator by operator",
     .open = ref_open,
     .run = ops_run,
     CPU_EXECUTION},
    {.name = "ops",
     .help = "the fastest kernels, operator by operator",
     .open = ops_open,
     .run = ops_run,
     CPU_EXECUTION},
    {.name = "threads",
     .help = "the fastest kernels, as a schedule on threads",
     .open = threads_open,
     .run = threads_run,
     CPU_EXECUTION},
    {.name = "serial",
     .help = "the references, as a schedule, one instruction at a time",
     .open = serial_open,
     .run = serial_run_steps,
     CPU_EXECUTION},
};

const execution_type *execution_at(int index)
{
    enum { N_OF_CPU = sizeof of_cpu / sizeof *of_cpu };
    if (index == N_OF_CPU) return &execution_cuda_ops;
    if (index == N_OF_CPU + 1) return &execution_mega;
    return index < N_OF_CPU ? &of_cpu[index] : NULL;
}

const execution_type *execution_find(const char *name)
{
    for (int i = 0; execution_at(i); i++) {
        if (strcmp(execution_at(i)->name, name) == 0) return execution_at(i);
    }
    return NULL;
}

static qp_status no_such_execution(const char *name, qp_error *error)
{
    strbuf list = {0};
    for (int i = 0; execution_at(i); i++)
        strbuf_printf(&list, "%s%s", i ? ", " : "", execution_at(i)->name);
    error_set(error, QP_INVALID, "an execution is one of %s; found \"%s\"", strbuf_text(&list),
              name);
    strbuf_free(&list);
    return QP_INVALID;
}

qp_status execution_open(const char *name, const execution_setup *setup, execution *out,
                         qp_error *error)
{
    *out = (execution){.type = execution_find(name)};
    if (!out->type) return no_such_execution(name, error);
    return out->type->open(setup, &out->self, error);
}

void execution_close(execution *e)
{
    if (e->type) e->type->close(e->self);
    *e = (execution){0};
}
