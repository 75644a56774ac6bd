/* Operators on the GPU: kernels as rows, and how they are launched.
 *
 * An operator's folder holds its kernels' launchers and a row for each kernel (NAME_cuda.c);
 * op_info.cuda points to the rows. Launchers work on calls whose tensors lie on the GPU, or will
 * lie there: they either launch kernels at once or record their launches (cuda/launch.h).
 * The launch rules (lower/launches.h) decide from the same rows which nodes of a plan are fused.
 */
#pragma once

#include "cuda/exchange.h"
#include "cuda/launch.h"
#include "cuda/memory.h"
#include "op/linear/linear_sizes.h"
#include "op/table.h"

enum { CUDA_FEW_ROWS = LINEAR_FEW_ROWS };

typedef struct cuda_ops {
    cuda_device *device;
    cuda_blas *blas; /* NULL: not found, or not wanted */
    bool has_blas;   /* the same; or cuBLASLt is assumed to exist while launches are recorded */
    cuda_buffer workspace;
    cuda_recording *recording; /* records the launches; NULL: kernels are launched at once */
    const exchange *exchange;  /* with the other ranks of the model, by kernels; NULL: there is one
                                  rank, or a carrier */
    int beside; /* with an exchange by kernels: most ranks on one GPU, whose kernels wait for each
                 * other and so must all be resident; 0: one */
    /* What exchanges rows with the other ranks in place of kernels (op/carrier_cuda.h); NULL: none
     */
    struct cuda_carrier *carrier;
    struct cuda_pusher *pusher; /* copies rows to the other GPUs beside kernels
                                 * (op/exchange_push_cuda.h); NULL: kernels do */
    /* [OP_COUNT]: custom kernels (cuda_kernel.custom_launch), which run where they accept; a row
     * without a name: none. NULL: none at all. */
    const struct cuda_kernel *custom;
    /* Up to so many rows, products keep x in float32 and attention has a block for each head:
     * CUDA_FEW_ROWS; 1 or 0 where larger batches must be fast (see launch_setting.h). */
    int few_rows;
} cuda_ops;

/* How a launch takes its input and leaves its output: all zeros for a single call. Rows in BF16 are
 * contiguous. */
typedef struct cuda_forms {
    cuda_address x;   /* of a product: x in BF16; 0: the launch makes it, cuda_narrow_x() */
    bool x_in_f8;     /* x is in FP8 instead, as the kernel takes it (cuda_kernel.takes_f8) */
    cuda_address out; /* address for the output in BF16; 0: none */
    bool out_in_f8;   /* in FP8 instead, */
    bool out_by_rows; /* with a scale a row (CUDA_F8_ROWS) */
    bool out_alone;   /* no other node reads it: CUDA_NARROWS_EITHER then stores only the BF16 */
    int64_t n_chunks; /* of paged_decode: parts of each sequence; 0: blocks search for theirs */
    int64_t out_rows; /* of paged_decode: rows of `out`, which then is the only output, where the
                       * call has the first of them only; 0: the call has all */
    bool beside;      /* of paged_prefill, and of the paged_decode right after it: neither reads or
                       * writes rows of the other */
} cuda_forms;

enum { CUDA_MAX_FUSED = 2 };

/* What a fused launch stores elsewhere than its calls say. */
typedef struct cuda_left {
    cuda_address narrowed; /* the last call's output, in BF16 only; 0: where the call says */
    bool in_f8;            /* it is in FP8 instead, as the kernel itself takes x */
    tensor q;              /* the q that attention reads; rank 0: where the call says */
} cuda_left;

/* A kernel's launch that includes the following nodes of a plan. */
typedef struct cuda_fusion {
    const char *name; /* "silu_and_mul": printed after the kernel's name */
    op_code with[CUDA_MAX_FUSED];
    int n_with;
    bool moves_q; /* attention must follow, and read q in the type of the cache */
    bool narrows; /* a product must follow, and read the output in BF16 */
    bool rounds;  /* the same in FP8 */
    bool sums;    /* each rank keeps only its own rows of the first call's output; every product
                   * that reads the last call's output must read BF16 */
    /* The calls in their order, the kernel's own first. */
    bool (*accepts)(const cuda_ops *ops, const op_call *calls);
    /* `x`: address of the first call's x in BF16. NULL: nothing is stored elsewhere. */
    cuda_left (*leaves)(const cuda_ops *ops, const op_call *calls, cuda_address x);
    qp_status (*launch)(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                        qp_error *error);
} cuda_fusion;

typedef struct cuda_kernel {
    op_code op;
    const char *name; /* "cuda", or a name that distinguishes it from the operator's others */
    const char *image, *function;
    int threads;
    int64_t units;  /* of a block */
    uint32_t needs; /* features of the GPU: bits of cuda_feature */
    bool needs_blas;
    bool needs_ranks; /* the other GPUs of a model; such kernels do not run by themselves */
    bool (*accepts)(const op_call *call); /* accepted types and shapes */
    /* Chosen where it accepts and pays; NULL: always. */
    bool (*pays)(const cuda_ops *ops, const op_call *call);
    size_t (*workspace)(const op_call *call); /* bytes; NULL: none */
    /* NULL: it runs only with a fusion. Such a row is never chosen; where it accepts and pays, its
     * fusions come after those of the row that is. */
    qp_status (*launch)(cuda_ops *ops, const struct cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error);
    /* Whether it can store its output in BF16 for a product; NULL: it cannot. */
    bool (*narrows)(const op_call *call);
    bool (*rounds)(const op_call *call); /* the same in FP8 */
    /* Whether it then also stores the output as the call describes it: always, never, or unless
     * cuda_forms.out_alone. */
    enum { CUDA_NARROWS_TOO, CUDA_NARROWS_ALONE, CUDA_NARROWS_EITHER } narrow_form;
    bool takes_narrowed; /* a product of x in BF16 */
    /* And also of x in FP8, with scales of groups of columns (op/linear/linear_f8.h), or with a
     * scale a row (op/linear/linear_f8_rows.h). */
    enum { CUDA_F8_NONE, CUDA_F8_GROUPS, CUDA_F8_ROWS } takes_f8;
    bool takes_moved_q; /* attention that reads q in the type of its products, at any address */
    bool early;         /* launched by units; it waits for its predecessor itself */
    bool aligned;       /* tensors must lie at multiples of 16 bytes, as plans place them */
    bool whole;         /* the cut into units changes the last bits: only whole calls */
    const op_tolerance *tolerances; /* tolerances where coarser than the operator's; or NULL */
    const cuda_fusion *fusions; /* in the order of preference, the last without a name; or NULL */
    /* A custom kernel: puts its launches for the call, which lies in the host's memory, into
     * the stream, and returns CUDA's error. NULL: one of quipu's own. */
    int (*custom_launch)(const op_call *call, void *stream);
} cuda_kernel;

/* The rows of each operator that has any, in rising order of preference; the last has no name. */
#define OP(NAME, name) extern const cuda_kernel name##_cuda[];
#include "op/ops.def"
#undef OP

enum {
    CUDA_COUNTERS = 16384, /* counters that are zero before and after each kernel */
    CUDA_OWN_WORKSPACE = CUDA_BLAS_WORKSPACE + CUDA_COUNTERS * 4, /* besides the calls' own */
};

/* ---- rows ---------------------------------------------------------------------------------- */

/* The begin of a row. */
#define CUDA_ROW(NAME, kernel) .op = OP_##NAME, .name = kernel

/* Fields of a row whose kernel takes the call itself, `units` units per block. */
#define CUDA_UNITS(NAME, kernel_image, short_name, thread_count, unit_count, accept)               \
    CUDA_ROW(NAME, "cuda"), .image = kernel_image, .function = "run_" #short_name,                 \
                            .threads = thread_count, .units = unit_count, .accepts = accept,       \
                            .launch = cuda_launch_units

qp_status cuda_launch_units(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error);

/* The launch of a custom kernel. Its workspace is the call's scratch. */
qp_status cuda_launch_custom(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                             const cuda_forms *forms, qp_error *error);

/* Accepts any output. */
bool cuda_narrows_always(const op_call *call);

/* ---- single calls --------------------------------------------------------------------------- */

/* `workspace_bytes`: the most that a call will need, cuda_ops_workspace(); CUDA_OWN_WORKSPACE is
 * added to it. With `with_blas`, cuBLASLt is used where it is found. cuda_ops_free() it, also after
 * a failure. */
qp_status cuda_ops_init(cuda_ops *ops, cuda_device *device, size_t workspace_bytes, bool with_blas,
                        qp_error *error);
void cuda_ops_free(cuda_ops *ops);

/* Whether a kernel can run here: the GPU has the features that it needs, and cuBLASLt and other
 * ranks are there if it needs them. */
bool cuda_kernel_runs(const cuda_ops *ops, const cuda_kernel *kernel);

/* The kernel for a call, NULL where the GPU has none. Depends on types and shapes only. */
const cuda_kernel *cuda_ops_choose(const cuda_ops *ops, op_code op, const op_call *call);

/* The row whose kernel runs only with a fusion, in place of the chosen row's; NULL: there is none.
 */
const cuda_kernel *cuda_ops_fusing(const cuda_ops *ops, const cuda_kernel *chosen,
                                   const op_call *call);

/* The kernel of a table of custom kernels (cuda_ops.custom) for a call; NULL: none, or
 * `custom` is NULL. */
const cuda_kernel *cuda_ops_custom(const cuda_kernel *custom, op_code op, const op_call *call);

/* Bytes of workspace that a call needs, whichever kernel is chosen. */
size_t cuda_ops_workspace(const cuda_kernel *custom, op_code op, const op_call *call);

/* Launches units [call->begin, call->end) as a single call. The call's tensors hold GPU addresses.
 */
qp_status cuda_ops_launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          qp_error *error);

/* ---- for launchers ------------------------------------------------------------------------- */

/* Launches a kernel or records its launch; a grid without blocks is skipped. `arguments` end with
 * an argument of size 0. */
qp_status cuda_ops_start(cuda_ops *ops, const cuda_start *start, const cuda_argument *arguments,
                         qp_error *error);
#define CUDA_ARGUMENTS(...) ((const cuda_argument[]){__VA_ARGS__, {0}})

/* A kernel of cuda_ops.cu that itself waits for its predecessor (device_wait_for_last()) before it
 * writes anything or reads what another kernel of the pass writes. */
qp_status cuda_ops_start_early(cuda_ops *ops, const char *name, int64_t blocks, int64_t rows,
                               int64_t threads, const cuda_argument *arguments, qp_error *error);

/* The same with a product of cuBLASLt. QP_UNSUPPORTED where cuBLASLt has no algorithm for its
 * sizes. */
qp_status cuda_ops_multiply(cuda_ops *ops, const cuda_product *product, qp_error *error);

/* Writes a tensor map to its place in a parameter. */
qp_status cuda_ops_map(const cuda_ops *ops, const cuda_map *map, char at[CUDA_MAP_BYTES],
                       qp_error *error);

/* The address of the counters. */
cuda_address cuda_ops_counters(const cuda_ops *ops);

/* Where kernels store rows in BF16 for products; and the second place, for a product that stores
 * the next product's x while its own x is read. */
cuda_address cuda_narrow_place(const cuda_ops *ops);
cuda_address cuda_other_narrow_place(const cuda_ops *ops, cuda_address at);

/* Converts x to BF16 at cuda_narrow_place(). */
qp_status cuda_narrow_x(cuda_ops *ops, const tensor *x, qp_error *error);

/* Rows [first, first + rows) of a matrix as contiguous BF16. */
qp_status cuda_narrow_rows(cuda_ops *ops, const tensor *from, int64_t first, int64_t rows,
                           cuda_address to, qp_error *error);

/* A GPU address as the pointer of a view, and the reverse. */
static inline void *cuda_host_form(cuda_address address)
{
    return (void *)(uintptr_t)address;
}
static inline cuda_address cuda_device_form(const void *data)
{
    return (cuda_address)(uintptr_t)data;
}
