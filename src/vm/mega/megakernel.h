/* The megakernel over a cuda_executor's memory: a launch runs many passes, each of one token of one
 * sequence or of several; or one pass that verifies several tokens of a sequence.
 *
 * The GPU feeds each token back to the next pass; it chooses tokens as the program's step "sample"
 * does. The host reads them from pinned memory while the launch runs. The last pass's logits are
 * stored where the executor's logits are, with biases and penalties applied if the pass sampled
 * with them.
 */
#pragma once

#include "vm/cuda/executor.h"
#include "schedule/schedule.h"
#include "vm/mega/mega.h"

/* Features. Its images have no PTX (src/gpu_images.cmake). */
enum {
    CUDA_MEGA_NEEDS = CUDA_CODE_90A | CUDA_COPY_ENGINE | CUDA_DEPENDENT_LAUNCH | CUDA_E4M3,
};
#define CUDA_MEGA_REFUSAL "the megakernel runs on GPUs of compute capability 9.0 (Hopper) only"

typedef struct cuda_mega {
    cuda_executor *executor;
    cuda_function kernel;     /* NULL: the megakernel does not run the model */
    cuda_function choosing;   /* the kernel that samples; `kernel` chooses the likeliest tokens */
    const char *why_not;      /* if kernel is NULL: the reason */
    int n_blocks, partitions; /* partitions: parts of a long context, for each KV head */
    /* Every block has one entry of each step, and at most one of attention's parts. */
    bool one_each;
    /* Every block's logits are one contiguous range that fits its shared memory, so the block can
     * sample. Otherwise tokens are sampled after the launch. */
    bool can_choose;
    program sums;                            /* the forward pass that the blocks run */
    schedule schedule;                       /* of it */
    cuda_buffer program, maps, weights, own; /* own: x, q, k, v, states, counters, keys */
    cuda_buffer receive;                     /* what other ranks push (ranks.cuh) */
    cuda_buffer biases;                      /* in float32; none: the model has none */
    bool quantized; /* `weights` holds all matrices as fragments; else W_down transposed */
    size_t (*fragments)[WEIGHT_COUNT]; /* [layer + 1][slot]: offsets in `weights` */
    cuda_pinned tokens, report, stop_request;
    cuda_stream side_stream; /* carries stop requests while a launch runs */
    /* mega_timing [max_timed][blocks][longest]; none: passes are not recorded. */
    cuda_buffer timings;
    size_t n_timed, max_timed; /* passes */
    mega_arguments arguments;
    cuda_function batch_kernel; /* NULL: it does not run several rows */
    bool alone, verifies;       /* as in cuda_mega_options */
    cuda_buffer batch_own;
    mega_arguments batch;
} cuda_mega;

/* In one launch. */
enum { CUDA_MEGA_MAX_TOKENS = 1024 };

/* Bytes of GPU memory that the megakernel needs besides the executor's: weights in its own order
 * (W_down, or all quantised matrices), and the rest. Zero for a model that the megakernel does not
 * run. */
typedef struct cuda_mega_bytes {
    size_t weights, tables;
} cuda_mega_bytes;
cuda_mega_bytes cuda_mega_count(const program *program, int n_blocks, bool verifies);

/* NULL, or why it does not read several tokens of a sequence in a pass. */
const char *cuda_mega_verify_refusal(const program *program, int n_blocks);

typedef struct cuda_mega_options {
    int n_blocks; /* 0: one per multiprocessor */
    schedule_assignment assignment;
    const struct cost_table *costs; /* measured with as many blocks; NULL: estimates */
    int64_t context;                /* positions that costs are for; 0: the default */
    bool alone;                     /* it runs one sequence only */
    bool verifies;      /* it must run several tokens of a sequence in a pass, or not at all */
    progress *progress; /* receives the stages of opening; may be NULL */
    struct comm *group; /* of the program's ranks; unused if there is one */
} cuda_mega_options;

/* Makes the program for the executor's model. QP_OK with kernel NULL and why_not set if the
 * megakernel does not run the model. cuda_mega_free() it, also after a failure. */
qp_status cuda_mega_init(cuda_mega *mega, cuda_executor *executor, const cuda_mega_options *options,
                         qp_error *error);
void cuda_mega_free(cuda_mega *mega);

/* Bytes of shared memory per block. */
int cuda_mega_shared_bytes(const cuda_mega *mega);

/* Whether it runs a pass over the batch; `verifies`: which may have several tokens of a sequence,
 * each with a row of logits. */
bool cuda_mega_takes(const cuda_mega *mega, const batch *batch, bool verifies);

/* How many tokens of a sequence a pass may have; 0: one, because it does not verify. */
int64_t cuda_mega_verify_rows(const cuda_mega *mega);

/* Whether it runs passes of one token of each of `n` sequences. */
bool cuda_mega_takes_rows(const cuda_mega *mega, int64_t n);

/* How a launch chooses tokens, and where it delivers them. */
typedef struct cuda_mega_request {
    mega_sampling sampling;
    cuda_address
        history;  /* uint32 [vocab] as mega_arguments has it; the launch counts its tokens */
    bool chooses; /* true: by `sampling`; false: the likeliest of the unchanged logits */
    /* Called with each token when it arrives; returning false ends the launch within two passes. */
    bool (*on_token)(void *context, int32_t token);
    void *context;
    /* Read while the launch runs; a value other than 0 ends the launch within two passes. May be
     * NULL. */
    const volatile int *cancel;
    /* Tokens that end the launch on the GPU; at most MEGA_STOPS. */
    const int32_t *stops;
    size_t n_stops;
} cuda_mega_request;

/* Runs up to *n_passes passes, beginning with the batch's tokens; the batch's pages have room for
 * all of them. *n_passes becomes the number of passes that ran. `tokens`, (n_passes, n_sequences),
 * may be NULL. `request` is for one sequence only; NULL: the likeliest tokens, delivered at the
 * end. */
qp_status cuda_mega_run(cuda_mega *mega, const batch *batch, const cuda_mega_request *request,
                        int *n_passes, int32_t *tokens, qp_error *error);

/* After a run: the residual of its last pass, (2 n_layers + 1, hidden_size) in fixed point
 * (op/fixed.h) without counts; `next`: the memory that the next pass will use instead. */
qp_status cuda_mega_read_sums(const cuda_mega *mega, bool next, int64_t *out, qp_error *error);
/* The same pass's queries in a layer after RoPE: (n_heads, head_dim). */
qp_status cuda_mega_read_queries(const cuda_mega *mega, int64_t layer, float *out, qp_error *error);

/* Starts to record when each block runs each entry, for `max_passes` passes. A launch with more
 * passes than are left is not recorded. */
qp_status cuda_mega_time(cuda_mega *mega, size_t max_passes, qp_error *error);
void cuda_mega_time_no_more(cuda_mega *mega);

/* The recorded timings of a pass, counted from 0: timings [blocks][schedule.longest], complete and
 * in order of time, in ns of the GPU's clock. `fetching`, which may be NULL: the mean of the
 * blocks. */
typedef struct mega_fetching {
    double room_ns, memory_ns; /* means of producers' waits for room in the ring, and for memory */
} mega_fetching;
qp_status cuda_mega_read_timings(const cuda_mega *mega, size_t pass, instruction_timing *timings,
                                 mega_fetching *fetching, qp_error *error);

/* Divides the time of a launch into its n passes; `passes` has [workers][longest] timings of each.
 * A pass ends when the first block has the next token: pass i lasts from begins[i] to begins[i +
 * 1], and its timings are clipped to that range. */
void cuda_mega_part_passes(const schedule *schedule, instruction_timing *const *passes, int n,
                           uint64_t *begins);

/* The schedule that the blocks would run with other costs, for predictions. schedule_free() it. */
qp_status cuda_mega_plan(const cuda_mega *mega, const cuda_mega_options *options, schedule *out,
                         qp_error *error);
