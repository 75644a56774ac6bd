/* The operator workbench: describes operators, and checks and measures kernels, quipu's own or
 * untrusted ones. Texts are appended to a strbuf; nothing here prints.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef enum workbench_format {
    WORKBENCH_TEXT,
    WORKBENCH_MARKDOWN,
    WORKBENCH_JSON
} workbench_format;

/* Lists every operator with its axes, types and variants; `features` are the CPU's,
 * cpu_features(). `only`: a bit for each op_code that is listed; 0: all. */
qp_status workbench_list(uint32_t features, uint64_t only, bool json, strbuf *out, qp_error *error);

/* Describes everything that the author of a kernel must know. */
qp_status workbench_describe(const char *op_name, workbench_format format, strbuf *out,
                             qp_error *error);

/* The same for all operators: in Markdown it is doc/OPERATORS.md, in JSON an array. */
qp_status workbench_describe_all(workbench_format format, strbuf *out, qp_error *error);

/* The description as a page for a language model that writes kernels. `last`: with the verdict on
 * the last candidate that was checked, from the file at `verdict_path` (NULL: without). */
qp_status workbench_prompt(const char *op_name, const char *verdict_path, bool device, strbuf *out,
                           qp_error *error);

typedef struct workbench_check_options {
    const char *const *ops; /* names */
    int n_ops;              /* 0: all operators */
    /* variant; NULL: the reference and every variant that can run; "best": on each case the kernel
     * that quipu would choose */
    const char *variant;
    const char *kernel; /* a file with a candidate for the one operator named; or NULL */
    bool unconfined; /* the candidate may run with the user's rights where it cannot be confined */
    uint64_t seed;
    uint32_t features; /* CPU features that may be used */
    bool device;    /* the GPU's kernels instead of the CPU's; a .cu file always runs on the GPU */
    int timeout_ms; /* milliseconds for a case */
    bool json;
    const volatile int *cancel; /* stops a candidate's checks; may be NULL */
    const char *verdict_path;   /* file for the verdict on a candidate; NULL: none */
    void (*progress)(void *context, const char *what); /* NULL: silent */
    /* Takes the text so far, after each row; a failure ends the checks. NULL, with JSON or a
     * candidate: all comes at the end. */
    qp_status (*rows)(void *context, strbuf *text, qp_error *error);
    void *context;
} workbench_check_options;

/* Checks kernels on all cases of their operators, each in a process of its own, and appends the
 * verdicts. *n_failed: how many were not PASSED. QP_OK whatever the verdicts are. */
qp_status workbench_check(const workbench_check_options *options, strbuf *out, int *n_failed,
                          qp_error *error);

typedef struct workbench_bench_options {
    const char *const *ops; /* names */
    int n_ops;              /* 0: all operators */
    /* NULL; or a variant's name, measured beside the reference and the best variant. On the GPU,
     * NULL is every kernel that accepts a workload, and "best" the one that quipu would choose. */
    const char *variant;
    const char *kernel; /* a file with a candidate for the one operator named; or NULL */
    /* Only workloads whose name contains this; with "=" it is a workload of the caller's own, in
     * the form in which `ops describe` prints them. NULL: all. */
    const char *workload;
    bool unconfined; /* as in workbench_check_options; so below */
    uint64_t seed;
    uint32_t features;
    bool device; /* the GPU's kernels instead of the CPU's; a .cu file is measured beside the GPU's
                    kernels */
    int threads, rounds, timeout_ms; /* milliseconds for a workload */
    const volatile int *cancel;      /* stops a candidate's measurement; may be NULL */
    workbench_format format;
    void (*progress)(void *context, const char *what);               /* NULL: silent */
    qp_status (*rows)(void *context, strbuf *text, qp_error *error); /* after each workload */
    void *context;
} workbench_bench_options;

/* Measures kernels on the workloads of real models, and the limits of the machine. *n_wrong: how
 * many computed wrong results after the timing. */
qp_status workbench_bench(const workbench_bench_options *options, strbuf *out, int *n_wrong,
                          qp_error *error);

/* Writes the operators of Llama-3.1-8B as a FlashInfer-Bench data set into `folder`; appends the
 * definitions' paths. */
qp_status workbench_export(const char *folder, strbuf *out, qp_error *error);

typedef struct workbench_import_options {
    const char *data;       /* data set of a solution's file; NULL: that which export writes */
    const char *definition; /* only this one; NULL: all */
    const char *python;     /* runs references and solutions in Python: "python3" */
    bool device;            /* Python's tensors lie on the GPU */
    bool unconfined;        /* Python, C++ and CUDA run only so */
    bool save;              /* traces are appended to the data set too */
    double atol, rtol;      /* of solutions that are not kernels of operators */
    uint64_t seed;
    int threads, rounds, timeout_ms;                   /* milliseconds for a function */
    const volatile int *cancel;                        /* may be NULL */
    void (*progress)(void *context, const char *what); /* NULL: silent */
    void *context;
} workbench_import_options;

/* Judges solutions of a FlashInfer-Bench data set, and appends a trace for each workload, one JSON
 * object a line. `path` is a solution's file, or a data set, all of whose solutions are judged.
 * What could not be judged, because of a workload or a reference, is told in `notes`, a line each.
 * *n_failed: how many traces are not PASSED, and how many there could not be. */
qp_status workbench_import(const char *path, const workbench_import_options *options, strbuf *out,
                           strbuf *notes, int *n_failed, qp_error *error);

/* Compares solutions by the traces of a data set, a folder of traces or a file with them: for each
 * definition, how many workloads each solution passed, its mean speedup, and on how many workloads
 * it is the fastest. */
qp_status workbench_leaderboard(const char *path, bool json, strbuf *out, qp_error *error);

typedef struct workbench_improve_options {
    const char *op;
    const char *command;  /* gets a page on its standard input, answers with a kernel */
    const char *folder;   /* for the answers, what came of them, best.c and history.jsonl */
    const char *workload; /* only those whose name contains this; NULL: all */
    int rounds, seconds;  /* at most; a round that has begun is ended */
    int command_timeout_ms;
    int beam;    /* more than 1: answers follow in turn from as many of the fastest kernels */
    bool resume; /* go on with the history in the folder */
    bool device; /* kernels in CUDA, on the GPU; they need `unconfined` */
    bool unconfined;
    uint64_t seed;
    uint32_t features;                                 /* of the CPU: for quipu's kernels */
    int threads, repetitions, timeout_ms;              /* of timings, and of a case or workload */
    const volatile int *cancel;                        /* may be NULL */
    void (*progress)(void *context, const char *what); /* NULL: silent */
    void *context;
} workbench_improve_options;

/* Asks a program for kernels of an operator, round after round: checks and times each answer, tells
 * the program what came of it, and keeps the best in the folder. A kernel becomes the best only
 * where it is quicker in turn with the best before it, outside of noise. A command that fails has
 * lost its round. Appends a line for each round. QP_FORMAT where no kernel passed. */
qp_status workbench_improve(const workbench_improve_options *options, strbuf *out, qp_error *error);

/* What this system can confine candidates and their compilers with: lines, or a member "sandbox" of
 * a JSON object with a comma after it. */
void workbench_sandbox(bool json, strbuf *out);
