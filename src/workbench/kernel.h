/* A candidate for a whole model: checked in processes of its own, then loaded into this one. */
#pragma once

#include "base/status.h"
#include "quipu.h"

typedef struct workbench_kernel workbench_kernel;

typedef struct workbench_kernel_options {
    int timeout_ms; /* of a case */
    uint64_t seed;
    const volatile int *cancel;                        /* ends the checks; may be NULL */
    void (*progress)(void *context, const char *what); /* NULL: silent */
    void *context;
} workbench_kernel_options;

/* Compiles a .c or .cu file (or takes a .so as it is) and checks it on all cases of its operator
 * that it accepts. `text` is "OPERATOR=FILE", and stays. QP_FORMAT names the first verdict that is
 * not PASSED. None of its code runs in this process. workbench_kernel_close() the result. */
qp_status workbench_kernel_open(const char *text, const workbench_kernel_options *options,
                                workbench_kernel **out, qp_error *error);

/* How many cases it passed. */
int workbench_kernel_cases(const workbench_kernel *kernel);

/* Whether it is a .cu file, a kernel for a GPU. */
bool workbench_kernel_is_cuda(const workbench_kernel *kernel);

/* Loads its code into this process, which from then on may crash by it: that of a .cu file by the
 * second function. */
qp_status workbench_kernel_load(const workbench_kernel *kernel, qp_kernel *out, qp_error *error);
qp_status workbench_kernel_load_cuda(const workbench_kernel *kernel, qp_cuda_kernel *out,
                                     qp_error *error);

/* Removes what was compiled; loaded code stays. NULL is allowed. */
void workbench_kernel_close(workbench_kernel *kernel);
