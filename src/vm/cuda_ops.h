/* Operators on the GPU: a call whose tensors lie there is put into the device's stream.
 *
 * The table of kernels is here, as the operators' own tables of variants are for the CPU: which
 * calls each takes, and when it pays. linear has five (few rows in two ways, batches, tiles,
 * cuBLASLt), attention two or three; every other operator has one.
 */
#ifndef QUIPU_VM_CUDA_OPS_H
#define QUIPU_VM_CUDA_OPS_H

#include "op/op.h"
#include "cuda/blas.h"
#include "cuda/memory.h"

typedef struct cuda_ops cuda_ops;

typedef struct cuda_kernel {
    op_code op;
    const char *name; /* "cuda", or what tells it from the operator's others */
    const char *image, *function;
    int threads;
    int64_t units;                            /* of a block */
    bool (*accepts)(const op_call *call);     /* types and shapes that it takes */
    bool (*pays)(const op_call *call);        /* chosen where it accepts and pays; NULL: always */
    size_t (*workspace)(const op_call *call); /* bytes; NULL: none */
    qp_status (*launch)(cuda_ops *ops, const struct cuda_kernel *kernel, const op_call *call,
                        qp_error *error);
    bool narrows; /* it can leave its output in BF16 for the product behind it */
    bool early;   /* its units are launched as cuda_ops_launch_early() says */
    bool aligned; /* tensors must lie as plans place them, at multiples of 16 bytes */
    bool whole;   /* how units are cut changes the last bits: for whole calls */
    const op_tolerance *tolerances; /* where coarser than the operator's; or NULL */
} cuda_kernel;

/* All kernels, an operator's in rising order of preference; the last has no name. */
extern const cuda_kernel cuda_kernels[];

enum {
    CUDA_MAX_KERNELS = 64,
    CUDA_COUNTERS = 16384, /* that kernels find at zero and leave at zero */
    CUDA_OWN_WORKSPACE = CUDA_BLAS_WORKSPACE + CUDA_COUNTERS * 4, /* beside what calls need */
};

/* Kernels beside cuda_kernels' own: where each of their users keeps how many. */
enum {
    CUDA_HELPER_FEW,                         /* linear of few rows: 2 types, 3 forms */
    CUDA_HELPER_EIGHT = CUDA_HELPER_FEW + 6, /* of up to eight, a type each */
    CUDA_N_EIGHT = 7,
    CUDA_HELPER_NARROW = CUDA_HELPER_EIGHT + CUDA_N_EIGHT, /* for cuBLASLt, as is: */
    CUDA_HELPER_BIAS,
    CUDA_HELPER_TILES,
    CUDA_HELPER_PREFILL,                           /* 2 types, 2 head_dims, 3 kernels */
    CUDA_HELPER_DECODE = CUDA_HELPER_PREFILL + 12, /* 2 types, 2 head_dims */
    CUDA_HELPER_ROPE_APPEND = CUDA_HELPER_DECODE + 4,
    CUDA_HELPER_ROPE_APPEND_VECTORS,
    CUDA_HELPER_WIDE,                          /* with silu_and_mul; with rope, of 2 head_dims */
    CUDA_HELPER_STREAM = CUDA_HELPER_WIDE + 3, /* of 16, 32, 64 rows, as are: */
    CUDA_HELPER_CHAIN = CUDA_HELPER_STREAM + 3,
    CUDA_HELPER_FUSED = CUDA_HELPER_CHAIN + 3, /* the forms of 5 operators for several rows */
    CUDA_HELPER_NORM = CUDA_HELPER_FUSED + 5,  /* the forms for rows that do not lie on vectors */
    CUDA_HELPER_ADD_NORM,
    CUDA_HELPER_SMALL_NORM, /* short and long, with add */
    CUDA_HELPER_SILU = CUDA_HELPER_SMALL_NORM + 4,
    CUDA_HELPER_ROPE,
    CUDA_N_HELPERS
};

struct cuda_ops {
    cuda_device *device;
    cuda_blas *blas; /* NULL: not there, or not wanted */
    cuda_buffer workspace;
    cuda_function functions[CUDA_MAX_KERNELS]; /* of cuda_kernels, found when first launched */
    cuda_function helpers[CUDA_N_HELPERS];     /* likewise */
    tensor narrowed; /* the x of linear whose BF16 form the workspace holds; rank 0: none */
    cuda_address narrowed_at; /* where */
    bool narrow_next;         /* the next launch is to leave it there, */
    bool narrow_alone;        /* and nowhere else */
    tensor turned, turned_at; /* q that attention is to find elsewhere, in the type of the cache,
                               * and there; rank 0: none */
    bool early;               /* kernels that can may begin before the one before them has ended */
    int64_t longest; /* positions that no sequence of paged_decode has more of; 0: as many as the
                      * pages in use have */
};

/* `workspace_bytes`: the most that a call will need, cuda_ops_workspace(); CUDA_OWN_WORKSPACE comes
 * on top. With `with_blas`, cuBLASLt is used where it can be found. cuda_ops_free() it, also after
 * a failure. */
qp_status cuda_ops_init(cuda_ops *ops, cuda_device *device, size_t workspace_bytes, bool with_blas,
                        qp_error *error);
void cuda_ops_free(cuda_ops *ops);

/* The kernel for a call, NULL where the GPU has none. Depends on types and shapes only. */
const cuda_kernel *cuda_ops_choose(const cuda_ops *ops, op_code op, const op_call *call);

/* Bytes of workspace that a call needs, whichever kernel is chosen. */
size_t cuda_ops_workspace(op_code op, const op_call *call);

/* Lets the next launch, of a kernel that narrows, leave its output `out` in BF16 where
 * cuBLASLt's products look for it; `alone`: nobody else reads it. */
void cuda_ops_narrow_next(cuda_ops *ops, const tensor *out, bool alone);

/* Where the counters lie. */
cuda_address cuda_ops_counters(const cuda_ops *ops);

/* Puts units [call->begin, call->end) into the device's stream. The call's tensors hold addresses
 * of the GPU. */
qp_status cuda_ops_launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          qp_error *error);

#endif
