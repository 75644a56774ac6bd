/* `quipu diff`: a model's forward pass on two machines, compared. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "plan/program.h"
#include "quipu.h"

#include <stdbool.h>
#include <stdint.h>

/* Zero-initialise; a zero (or NULL) field takes its default. */
typedef struct diff_options {
    const char *model;           /* as qp_engine_open() takes it */
    const char *a, *b;           /* machines; default: "reference" and "threads" */
    uint64_t order;              /* of `serial`: seed of the order of instructions; default 1 */
    const int32_t *tokens;       /* [n_tokens]; NULL: that many pseudo-random ones */
    int64_t n_tokens;            /* default 16 */
    int64_t singles;             /* how many of these run one by one at the end */
    int64_t chunk;               /* most of the other tokens in one pass; default 512 */
    int64_t layers;              /* only the first ones; default: all */
    int threads;                 /* default: the processors this process may use */
    int ranks;                   /* of b, in this process, each with `threads`; default 1 */
    const char *gpus, *exchange; /* of ranks on GPUs: see quipu.h */
    int64_t page_size;           /* default 16 */
    const char *kv_type;         /* default "F16" */
    const char *act_type;        /* default "F32" */
    const char *activations;     /* "8" (default, as is "auto"), "16", "float", "bf16": quipu.h */
    const char *cpu_mask;        /* CPU features not to use */
    const qp_kernel *kernels;    /* [n_kernels]: run in place of the operators' own, on b */
    size_t n_kernels;
    const qp_cuda_kernel *cuda_kernels; /* the same, if b is the machine cuda */
    size_t n_cuda_kernels;
    const char *after, *stop; /* compare the steps after `after` up to `stop`: "5.attn_qkv" */
    plan_form form;           /* which operators make the pass */
    bool fuse;                /* the plan for few tokens, in fused operators */
    const char *rules;        /* to take and to leave out, as lower_parse_rules() reads them */
    bool sums;                /* the megakernel's plan */
    int64_t kv_partitions;    /* parts of attention in it; default 1 */
    int setting, assignment;  /* of schedules: values of schedule_setting and schedule_assignment */
    double memory_fraction;   /* of the assignment pool: see schedule.h */
    const char *schedule; /* a file with b's queues, in place of those three fields and `threads` */
    int64_t context;      /* positions; default: the tokens', with a file those of quipu schedule */
    const qp_adapter *adapters; /* [n_adapters]: applied to all rows; see quipu.h */
    size_t n_adapters;
    bool merge_adapters;
    const char *skip;           /* left out of b's schedule: see schedule/skip.h */
    bool list, json;            /* list: every layer's steps; json: print JSON */
    const volatile int *cancel; /* may be NULL */
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
} diff_options;

/* Appends the table and the verdict; *equal: everything is within tolerance. */
qp_status diff_print(const diff_options *options, strbuf *out, bool *equal, qp_error *error);
