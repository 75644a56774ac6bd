/* The operator workbench: every operator described, every kernel checked and timed, ours or a
 * stranger's. Texts are appended to a strbuf; nothing here prints.
 */
#ifndef QUIPU_WORKBENCH_WORKBENCH_H
#define QUIPU_WORKBENCH_WORKBENCH_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef enum workbench_format {
    WORKBENCH_TEXT,
    WORKBENCH_MARKDOWN,
    WORKBENCH_JSON
} workbench_format;

/* Every operator with its axes, types and variants; `features` are the CPU's, cpu_features(). */
qp_status workbench_list(uint32_t features, bool json, strbuf *out, qp_error *error);

/* All that there is to know for writing a kernel of the operator. */
qp_status workbench_describe(const char *op_name, workbench_format format, strbuf *out,
                             qp_error *error);

/* The same of all operators: what doc/OPERATORS.md is in Markdown, an array in JSON. */
qp_status workbench_describe_all(workbench_format format, strbuf *out, qp_error *error);

/* The description as a page for a language model that writes kernels. `last`: with the verdict on
 * the last candidate that was checked, from the file at `verdict_path` (NULL: without). */
qp_status workbench_prompt(const char *op_name, const char *verdict_path, strbuf *out,
                           qp_error *error);

typedef struct workbench_check_options {
    const char *const *ops; /* names */
    int n_ops;              /* 0: all operators */
    /* NULL: the reference and every variant that can run; "best": on each case the kernel that the
     * program would choose; or a variant's name. */
    const char *variant;
    const char *kernel; /* a file with a candidate for the one operator named; or NULL */
    uint64_t seed;
    uint32_t features; /* the CPU's that may be used */
    bool device;       /* the GPU's kernels instead of the CPU's; a .cu is checked there anyway */
    int timeout_ms;    /* of a case */
    bool json;
    const volatile int *cancel; /* ends a candidate's checks; may be NULL */
    const char *verdict_path;   /* where the text about a candidate is kept; NULL: nowhere */
    void (*progress)(void *context, const char *what); /* NULL: silent */
    void *context;
} workbench_check_options;

/* Checks kernels on all cases of their operators, each in a process of its own, and appends the
 * verdicts. *n_failed gets how many were not PASSED. QP_OK whatever the verdicts are. */
qp_status workbench_check(const workbench_check_options *options, strbuf *out, int *n_failed,
                          qp_error *error);

typedef struct workbench_bench_options {
    const char *const *ops; /* names */
    int n_ops;              /* 0: all operators */
    /* NULL; or a variant's name, timed beside the reference and the best. On the GPU NULL is every
     * kernel that takes a workload, "best" the one of them that the program would choose. */
    const char *variant;
    const char *kernel;   /* a file with a candidate for the one operator named; or NULL */
    const char *workload; /* only those whose name contains this; NULL: all */
    uint64_t seed;
    uint32_t features;
    bool device;                     /* the GPU's kernels instead of the CPU's; a .cu is timed there
                                      * anyway, beside them */
    int threads, rounds, timeout_ms; /* of a workload */
    const volatile int *cancel;      /* ends a candidate's timing; may be NULL */
    workbench_format format;
    void (*progress)(void *context, const char *what); /* NULL: silent */
    void *context;
} workbench_bench_options;

/* Times kernels on the workloads of real models, beside what the machine can do at most. *n_wrong
 * gets how many were not right when looked at after the timing. */
qp_status workbench_bench(const workbench_bench_options *options, strbuf *out, int *n_wrong,
                          qp_error *error);

/* Writes the operators of Llama-3.1-8B as a FlashInfer-Bench data set into `folder`; appends the
 * definitions' paths. */
qp_status workbench_export(const char *folder, strbuf *out, qp_error *error);

/* Reads a solution of such a data set, written in C or CUDA, checks and times it on its
 * definition's workloads, and appends a trace for each, a JSON object a line. `options` gives seed,
 * threads, rounds and timeout. *n_failed gets how many are not PASSED. */
qp_status workbench_import(const char *path, const workbench_bench_options *options, strbuf *out,
                           int *n_failed, qp_error *error);

#endif
