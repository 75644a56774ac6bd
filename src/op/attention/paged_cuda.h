/* Attention over a paged cache on the GPU's tensor cores: declarations shared by host and kernels.
 *
 * The kernels' only parameter is a paged_attention, passed by value. Rows of q and of the caches
 * begin at multiples of 16 bytes, rows of out at multiples of 8; page_size is a multiple of 16; a
 * group has at most 8 heads in paged_decode. All strides are bytes.
 *
 * Ragged keys and values are a cache without kv_last_page_len: kv_indptr counts positions, strides
 * of a page are those of a position, and a sequence is one page that begins at its first position
 * and has as many positions as there are in all: kv_indices is kv_indptr.
 *
 * Every kernel of paged_prefill updates the maximum once a step, and steps are counted from
 * position 0. Those with wgmma have the same steps, so the choice between them changes no bit.
 *
 * The kernels of paged_prefill with wgmma have more parameters (paged_prefill_wgmma.cuh): tensor
 * maps of the caches, whose boxes are 16 positions of a head, of 64 elements, or in FP8 of the
 * whole head; and of queries and outputs.
 */
#pragma once

#include "quipu_kernel.h"

enum {
    PAGED_STEP = 64,    /* positions that paged_prefill with mma.sync takes at once */
    PAGED_CHUNK = 1024, /* positions per block of paged_decode; the last: up to 1.5 times as many */
    PAGED_DECODE_WARPS = 4, /* of such a block */
    PAGED_DECODE_MAX_GROUP = 8
};

typedef struct paged_strides {
    int64_t page, position, head;
} paged_strides;

typedef struct row_strides {
    int64_t token, head;
} row_strides;

typedef struct paged_attention {
    const void *q;     /* (n_tokens, n_kv_heads * group, head_dim), F32, F16 or BF16 */
    const char *k, *v; /* (n_pages, page_size, n_kv_heads, head_dim), the kernel's type */
    void *out;         /* as q, of out_type; may be q */
    float *lse;        /* (n_tokens, n_kv_heads * group), base 2; or NULL */
    row_strides q_strides, out_strides, lse_strides;
    paged_strides k_strides, v_strides;
    const int32_t *qo_indptr;        /* (n_sequences + 1); paged_decode: not used */
    const int32_t *kv_indptr;        /* (n_sequences + 1) */
    const int32_t *kv_indices;       /* (n_kv_indices) */
    const int32_t *kv_last_page_len; /* (n_sequences); NULL: ragged, see above */
    void *narrowed;                  /* paged_decode: out in BF16 too, contiguous; or NULL */
    void *partial;                   /* paged_decode: (parts, n_heads, head_dim + 2) floats */
    uint32_t *arrived;  /* zeros before and after: paged_decode: (n_sequences, n_kv_heads);
                         * paged_prefill with wgmma: tiles taken, blocks that have ended */
    int64_t begin, end; /* out is written for these units, token * n_heads + head */
    float sm_scale;     /* not 0 */
    int32_t n_sequences, n_kv_heads, group, page_size;
    uint32_t group_inverse;   /* 2^32 / group rounded up, 0 for a group of 1 */
    int32_t causal;           /* only paged_prefill */
    int32_t search;           /* paged_decode: blocks look for what is theirs, see there */
    int32_t beside;           /* paged_prefill, then paged_decode of other rows: see there */
    int32_t q_type, out_type; /* of dtype */
} paged_attention;

/* The number of parts into which paged_decode cuts a sequence. */
#define PAGED_DECODE_CHUNKS(length, chunk)                                                         \
    ((length) <= (chunk) ? 1 : ((length) + (chunk) / 2 - 1) / (chunk))

/* KERNEL(type, head_dim): paged_prefill with mma.sync; and paged_decode. */
#define PAGED_TYPES(KERNEL)        KERNEL(BF16, 64) KERNEL(F16, 64) KERNEL(BF16, 128) KERNEL(F16, 128)
#define PAGED_DECODE_TYPES(KERNEL) PAGED_TYPES(KERNEL) KERNEL(F8, 64) KERNEL(F8, 128)

enum { PAGED_PREFILL_MMA_ROWS = 128, PAGED_PREFILL_MMA_THREADS = 128 }; /* a warp: 32 rows */

/* Dynamic shared memory of a kernel of paged_prefill with mma.sync: queries, two stages of keys and
 * of values, and the data that warps exchange. */
#define PAGED_PREFILL_MMA_SHARED(head_dim)                                                         \
    ((PAGED_PREFILL_MMA_ROWS + 4 * PAGED_STEP) * (head_dim)*2 + 4 * PAGED_STEP)

/* KERNEL(type, head_dim, groups): paged_prefill with wgmma, a block a multiprocessor: a copying
 * warp, and two or three warpgroups that compute 64 rows each. Three use each loaded key more
 * often; two leave less of a small batch's tiles empty. With head_dim 128, or limits, three have
 * too few registers. */
#define PAGED_PREFILL_KERNELS(KERNEL)                                                              \
    KERNEL(BF16, 64, 2)                                                                            \
    KERNEL(F16, 64, 2)                                                                             \
    KERNEL(BF16, 64, 3) KERNEL(F16, 64, 3) KERNEL(BF16, 128, 2) KERNEL(F16, 128, 2)
#define PAGED_PREFILL_LIMITED_KERNELS(KERNEL)                                                      \
    KERNEL(BF16, 64, 2) KERNEL(F16, 64, 2) KERNEL(BF16, 128, 2) KERNEL(F16, 128, 2)
enum {
    PAGED_PREFILL_STEP = 128, /* positions that are taken at once */
    PAGED_PREFILL_SLOTS = 4   /* tiles that are found before they are computed */
};
/* Stages of keys and of values. */
#define PAGED_PREFILL_K_STAGES(head_dim) ((head_dim) == 64 ? 5 : 3)
#define PAGED_PREFILL_V_STAGES(head_dim) ((head_dim) == 64 ? 5 : 2)
/* Dynamic shared memory: two tiles' queries, stages, and 1 KB of slots and barriers. */
#define PAGED_PREFILL_SHARED(head_dim, groups)                                                     \
    ((2 * (groups)*64 + (PAGED_PREFILL_K_STAGES(head_dim) + PAGED_PREFILL_V_STAGES(head_dim)) *    \
                            PAGED_PREFILL_STEP) *                                                  \
         (head_dim)*2 +                                                                            \
     1024)

/* KERNEL(head_dim): the same over a cache in FP8, which four more warps widen to F16. */
#define PAGED_PREFILL_F8_KERNELS(KERNEL)   KERNEL(64) KERNEL(128)
#define PAGED_PREFILL_F8_STAGES(head_dim)  ((head_dim) == 64 ? 4 : 2) /* of F16; and of FP8: */
#define PAGED_PREFILL_RAW_STAGES(head_dim) ((head_dim) == 64 ? 2 : 1)
#define PAGED_PREFILL_F8_SHARED(head_dim)                                                          \
    ((4 * 64 + 2 * PAGED_PREFILL_F8_STAGES(head_dim) * PAGED_PREFILL_STEP) * (head_dim)*2 +        \
     2 * PAGED_PREFILL_RAW_STAGES(head_dim) * PAGED_PREFILL_STEP * (head_dim) + 2048)
enum { PAGED_PREFILL_F8_THREADS = 4 * 128 };
