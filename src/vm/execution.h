/* Ways to run a plan behind one small interface: run steps, read tensors, write tensors.
 *
 * What compares two ways (diff_run.h) knows no more of them than this, so that a machine elsewhere,
 * such as a GPU, is compared like those on the CPU. An execution has memory of its own:
 * activations, RoPE table and KV cache. Weights are the model's.
 */
#ifndef QUIPU_VM_EXECUTION_H
#define QUIPU_VM_EXECUTION_H

#include "base/log.h"
#include "base/threads.h"
#include "vm/batch.h"
#include "plan/plan.h"
#include "schedule/schedule.h"

/* What executions are made for; all of it outlives them. */
typedef struct execution_setup {
    const program *plan;
    const model *model;
    thread_pool *pool;
    uint32_t cpu_features;            /* that fast kernels may use */
    progress *progress;               /* is told of the packing of weights */
    const schedule_options *schedule; /* of those that run one; NULL: the usual */
} execution_setup;

/* What computes a node. Kernels of one name give the same bits for the same inputs. */
typedef struct execution_kernel {
    const char *name;          /* "reference", "avx2" */
    bool reference;            /* exact but for one rounding to the output's type */
    const op_variant *variant; /* whose tolerances hold; NULL: the operator's own do */
} execution_kernel;

typedef struct execution_type {
    const char *name; /* "ref" */
    const char *help; /* what it is, in a phrase */
    bool whole;       /* runs the steps up to the logits all at once, for one token */
    bool (*keeps)(plan_tensor_id id); /* what can be read behind that; NULL: everything */
    qp_status (*open)(const execution_setup *setup, void **self, qp_error *error);
    void (*close)(void *self); /* NULL is nothing to do, also after a failure to open */
    /* Steps [first, last) of the plan, all of their nodes, over the batch. */
    qp_status (*run)(void *self, const batch *batch, int first, int last, qp_error *error);
    /* The first `bytes` of an activation, an output, the RoPE table, or a layer's cache. */
    qp_status (*read)(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                      qp_error *error);
    qp_status (*write)(void *self, plan_tensor_id id, int64_t layer, const void *data, size_t bytes,
                       qp_error *error);
    execution_kernel (*kernel)(const void *self, int node);
} execution_type;

typedef struct execution {
    const execution_type *type;
    void *self;
} execution;

extern const execution_type execution_cuda_ops; /* execution_cuda.c */
extern const execution_type execution_mega;     /* execution_mega.c */

/* The type of that name; NULL: there is none. */
const execution_type *execution_find(const char *name);

/* QP_INVALID lists the names that there are. execution_close() the result, also after a failure. */
qp_status execution_open(const char *name, const execution_setup *setup, execution *out,
                         qp_error *error);
void execution_close(execution *execution);

/* Whether a kernel rounds its inputs more coarsely than the reference. */
bool execution_rounds(const execution *execution, int node);

/* The references with the roundings of `like`, whose nodes' kernels it looks at: what `like` would
 * compute without errors of its own. */
qp_status execution_open_rounded(const execution *like, const execution_setup *setup,
                                 execution *out, qp_error *error);

/* The index-th type; NULL past the last. */
const execution_type *execution_at(int index);

#endif
