/* The megakernel over a cuda_executor's memory: passes of one token of one sequence or of each of
 * several, many a launch.
 *
 * Every token is fed back to the next pass on the GPU, which chooses it as the plan's step "sample"
 * does; the host hears of it through memory that both see, while the launch goes on. The last
 * pass's logits lie where the executor's do, with biases and penalties where it chose by them.
 */
#ifndef QUIPU_VM_MEGA_MEGAKERNEL_H
#define QUIPU_VM_MEGA_MEGAKERNEL_H

#include "vm/cuda/executor.h"
#include "schedule/schedule.h"
#include "vm/mega/mega.h"

typedef struct cuda_mega {
    cuda_executor *executor;
    cuda_function kernel;     /* NULL: the model is run operator by operator */
    cuda_function choosing;   /* the same for tokens that are not just the likeliest */
    const char *why_not;      /* what the megakernel does not do of this model */
    int n_blocks, partitions; /* of a long context, for each KV head */
    schedule_assignment assignment;
    bool one_each;     /* every block has one entry of each step, at most of attention's parts */
    bool can_choose;   /* every block's logits are one piece for which it has room: it chooses
                        * tokens other than the likeliest; else the CPU does */
    schedule schedule; /* that the blocks run */
    cuda_buffer program, maps, weights, own; /* own: x, lists, states, counters, keys */
    bool quantized; /* `weights` holds all matrices as bricks, else W_down transposed */
    size_t (*bricks)[WEIGHT_COUNT]; /* [layer + 1][slot]: from the beginning of `weights` */
    cuda_pinned tokens, report, stop_request;
    cuda_stream side_stream; /* that wishes go by while a launch goes on */
    cuda_address biases;     /* float [vocab], in own */
    cuda_buffer timings; /* mega_timing [max_timed][blocks][longest]; none: nobody asked for them */
    size_t n_timed, max_timed; /* passes */
    mega_arguments arguments;
    cuda_function batch_kernel; /* NULL: passes of several sequences are run operator by operator */
    cuda_buffer batch_own;
    mega_arguments batch;
} cuda_mega;

/* Of one launch, in all. */
enum { CUDA_MEGA_MAX_TOKENS = 1024 };

/* Bytes of the GPU's memory that it takes beside the executor's: weights in an order of its own
 * (W_down, or all quantised ones), and the rest. None of a model that it does not run. */
typedef struct cuda_mega_bytes {
    size_t weights, tables;
} cuda_mega_bytes;
cuda_mega_bytes cuda_mega_count(const plan *plan, const model *model, int n_blocks);

typedef struct cuda_mega_options {
    int n_blocks; /* 0: one a multiprocessor */
    schedule_assignment assignment;
    const struct cost_table *costs; /* measured, of as many blocks; NULL: guesses */
    int64_t context;                /* positions that costs are meant for; 0: the usual */
} cuda_mega_options;

/* Makes the program for the executor's model. QP_OK without a kernel and with why_not where the
 * model is not of its kind. cuda_mega_free() it, also after a failure. */
qp_status cuda_mega_init(cuda_mega *mega, cuda_executor *executor, const cuda_mega_options *options,
                         qp_error *error);
void cuda_mega_free(cuda_mega *mega);

/* Bytes of shared memory of its kernels. */
int cuda_mega_shared_bytes(const cuda_mega *mega);

/* Whether a pass over the batch is one that it runs. */
bool cuda_mega_takes(const cuda_mega *mega, const batch *batch);

/* Whether it runs passes of one token of each of `n` sequences. */
bool cuda_mega_takes_rows(const cuda_mega *mega, int64_t n);

/* How a launch makes its tokens, and who hears of them. */
typedef struct cuda_mega_way {
    mega_sampling sampling;
    bool chooses; /* by `sampling`; else the likeliest of the logits as they are */
    /* Called with each token as it comes; false: the launch ends within a pass or two. */
    bool (*on_token)(void *context, int32_t token);
    void *context;
    const volatile int *cancel; /* looked at while the launch goes on; may be NULL */
    /* Tokens that the launch ends with by itself, at most MEGA_STOPS. */
    const int32_t *stops;
    size_t n_stops;
} cuda_mega_way;

/* What penalties and biases are made of: `history`, uint32 [vocab] as mega_arguments has it, and
 * `bias`, float [vocab], each of which may be NULL; to the GPU, which counts its tokens itself from
 * then on. Fills in way->sampling.bias. */
qp_status cuda_mega_set_history(cuda_mega *mega, const uint32_t *history, const float *bias,
                                cuda_mega_way *way, qp_error *error);

/* Runs up to *n_passes passes from the batch's tokens on, whose pages hold them all; *n_passes says
 * how many there were when it returns. `tokens`, which may be NULL: made by each pass, (n_passes,
 * n_sequences). `way`, for one sequence only; NULL: the likeliest tokens, all of them, and nobody
 * hears of them before the end. */
qp_status cuda_mega_run(cuda_mega *mega, const batch *batch, const cuda_mega_way *way,
                        int *n_passes, int32_t *tokens, qp_error *error);

/* Behind a run: every value of the residual of its last pass, (2 n_layers + 1, hidden_size) in
 * fixed point (op/fixed.h), counts taken off; or what the next pass finds in their places. */
qp_status cuda_mega_read_sums(const cuda_mega *mega, bool next, int64_t *out, qp_error *error);
/* The same pass's queries in a layer, turned: (n_heads, head_dim). */
qp_status cuda_mega_read_queries(const cuda_mega *mega, int64_t layer, float *out, qp_error *error);

/* From now on records when every block runs each entry, for `max_passes` passes; a launch that goes
 * beyond them is not recorded at all. */
qp_status cuda_mega_time(cuda_mega *mega, size_t max_passes, qp_error *error);
void cuda_mega_time_no_more(cuda_mega *mega);

/* What was recorded of a pass, the first being 0: timings [blocks][schedule.longest], complete and
 * in order of time, by the GPU's clock. `fetching`, which may be NULL, is a mean of the blocks. */
typedef struct mega_fetching {
    double room_ns, memory_ns; /* that fetching warps waited for room in the ring, for memory */
} mega_fetching;
qp_status cuda_mega_read_timings(const cuda_mega *mega, size_t pass, instruction_timing *timings,
                                 mega_fetching *fetching, qp_error *error);

/* Parts the passes of a launch, each [workers][longest]: pass i has begins[i] to begins[i + 1], of
 * n + 1, and what is beyond is cut off. They meet where the first block has the token. */
void cuda_mega_part_passes(const schedule *schedule, instruction_timing *const *passes, int n,
                           uint64_t *begins);

/* The schedule that the blocks run with other costs, for predictions. schedule_free() it. */
qp_status cuda_mega_plan(const cuda_mega *mega, const cuda_mega_options *options, schedule *out,
                         qp_error *error);

#endif
