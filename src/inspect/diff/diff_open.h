/* A comparison's objects: the model, its program, and the two machines. */
#pragma once

#include "base/progress.h"
#include "cuda/ranks.h"
#include "inspect/diff/diff.h"
#include "inspect/diff/diff_run.h"
#include "model/adapter.h"
#include "model/model.h"
#include "op/cuda_ops.h"
#include "schedule/skip.h"

/* A comparison with all its objects. */
typedef struct diff {
    const diff_options *options;
    model *model;
    program program;
    thread_pool *pool;
    schedule_options schedule, schedule_b;
    schedule_skip skip; /* of b */
    machine_setup setup;
    kernel_table kernels;
    cuda_kernel cuda_kernels[OP_COUNT];
    progress progress;
    const machine_type *type_a, *type_b;
    machine a, b;
    cuda_device device; /* of several ranks on GPUs: the first's, */
    cuda_ranks *gpus;   /* and all; NULL: there are none */
    int32_t *own_tokens;
    adapter_choice adapters[ADAPTER_MAX];
    batch_adapter shares[ADAPTER_MAX];
    diff_request request;
    diff_report report;
} diff;

/* Opens what `diff->options` ask for. diff_close() the result, also after a failure. */
qp_status diff_open(diff *diff, qp_error *error);
void diff_close(diff *diff);
