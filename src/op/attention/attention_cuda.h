/* Attention on the GPU: what the launchers of paged_prefill, ragged_prefill and paged_decode share.
 *
 * Caches in F16 or BF16 with head_dim 64 or 128 and pages of a multiple of 16 positions use the
 * tensor cores: paged_prefill with wgmma on compute capability 9.0, with mma.sync elsewhere or if
 * chosen by name. Queries and weights are rounded to the cache's type before their products. All
 * other calls run by units, one head of a token each.
 */
#pragma once

#include "op/attention/limits.h"
#include "op/attention/paged_cuda.h"
#include "op/cuda_ops.h"
#include "op/variants.h"

enum {
    CUDA_ATTENTION_THREADS = 256,
    CUDA_ATTENTION_MAX_HEAD_DIM = 256, /* as in attention.cuh */
    CUDA_ATTENTION_FEW_TOKENS = 8,     /* up to this many tokens each head has a block of its own */
    /* Blocks per multiprocessor, at least, for an early launch. Blocks that start early go wherever
     * there is room. That distributes a few of them unevenly, unless each block needs a whole
     * multiprocessor. */
    CUDA_ATTENTION_EARLY_BLOCKS = 2,
    /* The last ones are paged_prefill's; the others are paged_decode's, which may run beside it. */
    CUDA_PREFILL_COUNTERS = 2,
};

extern const op_tolerance cuda_attention_tolerances[];

/* By units. */
bool cuda_attention_by_heads_accepts(const op_call *call);

/* The window and the cap of a call, and with CUDA_PREFILL_LIMITS its masks. */
#define CUDA_ATTENTION_LIMITS(call, OP)                                                            \
    cuda_attention_limits((call)->params[OP##_WINDOW], (call)->params[OP##_SOFT_CAP], NULL)
#define CUDA_PREFILL_LIMITS(call, OP)                                                              \
    cuda_attention_limits((call)->params[OP##_WINDOW], (call)->params[OP##_SOFT_CAP],              \
                          &(call)->tensors[OP##_MASK])
attention_limits cuda_attention_limits(double window, double cap, const tensor *mask);

/* Whether a call has any of them. Then it runs by the kernels of attention_limited.cu: those of
 * plain attention do not pay for limits. */
bool cuda_is_limited(const attention_limits *limits);

/* Makes a launch that of the kernel's limited form. */
void cuda_attention_limit(cuda_start *start);

/* Launches a kernel with `arguments` and, if the call has limits, with those by its limited form.
 */
qp_status cuda_attention_start(cuda_ops *ops, cuda_start *start, const paged_attention *arguments,
                               const attention_limits *limits, qp_error *error);

/* A row for calls with limits, by units; accept: whether it is one. */
#define CUDA_LIMITED_UNITS(NAME, short_name, accept, start)                                        \
    .op = OP_##NAME, .name = "cuda_limited", .image = "attention_limited",                         \
    .function = "run_" #short_name "_limited", .threads = CUDA_ATTENTION_THREADS, .units = 1,      \
    .accepts = accept, .launch = start
qp_status cuda_launch_limited(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                              const attention_limits *limits, qp_error *error);

/* The tensors of every kind of attention over a cache. */
typedef struct paged_tensors {
    const tensor *q, *k, *v, *out, *lse, *kv_indptr, *kv_indices, *kv_last_page_len;
} paged_tensors;
#define PAGED_TENSORS(call, OP)                                                                    \
    ((paged_tensors){&(call)->tensors[OP##_Q], &(call)->tensors[OP##_K_CACHE],                     \
                     &(call)->tensors[OP##_V_CACHE], &(call)->tensors[OP##_OUT],                   \
                     &(call)->tensors[OP##_LSE], &(call)->tensors[OP##_KV_INDPTR],                 \
                     &(call)->tensors[OP##_KV_INDICES], &(call)->tensors[OP##_KV_LAST_PAGE_LEN]})

/* On the tensor cores. */
bool cuda_paged_accepts(const tensor *q, const tensor *k, const tensor *v, const tensor *out,
                        const tensor *lse);

/* The kernels' arguments; `scale` 0: 1 / sqrt(head_dim). */
paged_attention cuda_paged_arguments(const op_call *call, paged_tensors tensors, double scale);

/* ---- paged_prefill ------------------------------------------------------------------------- */

bool cuda_prefill_accepts(const op_call *call);
/* Whether there are so many tokens that blocks of many rows are faster than one block per head of a
 * token. */
bool cuda_prefill_pays(const cuda_ops *ops, const op_call *call);
qp_status cuda_prefill(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                       const cuda_forms *forms, qp_error *error);

/* The kernels' arguments, from a call of paged_prefill that cuda_prefill_accepts(). */
paged_attention cuda_prefill_arguments(const op_call *call);

/* Whether a warp of the kernels with wgmma copies queries and outputs by tensor maps: queries are
 * not converted, all units are wanted, and 64 rows are all heads of a KV head of some tokens. */
bool cuda_prefill_is_carried(const op_call *call, const paged_attention *arguments);

/* A kernel of paged_prefill and its launch. */
typedef struct cuda_prefill_launch {
    char function[CUDA_KERNEL_NAME];
    int rows, threads, shared_bytes;
    unsigned blocks;
} cuda_prefill_launch;
cuda_prefill_launch cuda_prefill_plan(const op_call *call, bool has_wgmma, int n_multiprocessors);

/* ---- ragged_prefill ------------------------------------------------------------------------ */

/* The call of paged_prefill that computes the same: contiguous keys and values are a cache. */
op_call cuda_prefill_of_ragged(const op_call *ragged);

/* ---- paged_decode -------------------------------------------------------------------------- */

/* For many sequences. The block that ends last merges the parts of long sequences; blocks count
 * themselves in the workspace. */
bool cuda_decode_accepts(const op_call *call);
bool cuda_decode_pays(const cuda_ops *ops, const op_call *call);
size_t cuda_decode_workspace(const op_call *call);

/* For few sequences: the same kernel, but each sequence is cut into enough parts to fill the GPU.
 * Passes of a model use it for one token of one sequence where no faster machine runs them. */
bool cuda_decode_few_pays(const cuda_ops *ops, const op_call *call);
size_t cuda_decode_few_workspace(const op_call *call);

/* The workspace when no sequence has more than `longest` positions, and `out_rows` rows of output
 * are stored in BF16. */
size_t cuda_decode_workspace_of(const op_call *call, int64_t out_rows, int64_t longest);

/* The number of parts into which a sequence of this many positions is cut. */
int64_t cuda_decode_chunks(int64_t longest);

/* A call of paged_prefill without masks as one of paged_decode, if every sequence has one token. */
op_call cuda_decode_of_prefill(const op_call *prefill);

/* Makes a call of paged_prefill, in which every sequence has one token, one of paged_decode where
 * that pays; returns the operator of the call. */
op_code cuda_take_decoding(const cuda_ops *ops, op_call *call);

/* The same of a call with one token of one sequence, by the kernel for few sequences. */
op_code cuda_take_single(const cuda_ops *ops, op_call *call);

/* The first n sequences of a call of paged_prefill, which have one token each, as one of
 * paged_decode, and the others as one of paged_prefill. */
void cuda_split_prefill(const op_call *prefill, int64_t n, op_call *decode, op_call *others);
