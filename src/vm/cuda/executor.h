/* Runs a program on the GPU, operator by operator.
 *
 * It has memory of its own, and a list of launches (launch_list.h) for each shape of batch, made at
 * the first batch of that shape. A forward pass of few tokens, or in which all sequences decode, is
 * captured in a CUDA graph when it is run for the second time, one for each number of tokens,
 * sequences, outputs and parts of attention. Passes that read the tokens of the previous pass run
 * in groups: one copy of all inputs, one graph, one copy of the tokens. Each group has its own
 * buffers for inputs and tokens, so they are copied while the other group runs. Everything else
 * goes through the device's one stream; only functions that read results back wait for it.
 *
 * The megakernel runs over the same memory: cuda_executor's addresses are its machine's.
 */
#pragma once

#include "op/exchange_push_cuda.h"
#include "vm/batch.h"
#include "vm/cuda/weights.h"
#include "plan/program.h"
#include "vm/cuda/launch_list.h"
#include "vm/cuda/masks.h"

enum {
    CUDA_MAX_GRAPHS = 16,
    CUDA_MAX_LISTS = 64,
    CUDA_GROUP = 8,  /* passes */
    CUDA_GROUPS = 2, /* that may be in flight at once */
};

/* A forward pass of steps [first, last), or a group of passes, as a graph, for one shape of batch.
 */
typedef struct cuda_pass {
    int64_t n_tokens, n_sequences, n_outputs;
    int64_t n_chunks; /* of the longest sequence, if all decode */
    int first, last;
    int n_passes; /* of a group; 0: a single pass */
    int group;
    int choice;       /* of a group: the first of the steps that choose its tokens; 0: the likeliest
                         tokens */
    const void *sums; /* where the pass has its sums; NULL: the program has none */
    int runs;
    cuda_graph_exec graph; /* NULL: not captured yet */
} cuda_pass;

/* When a pass's launches began: an event before each entry of its list, and one after the last. */
typedef struct cuda_marks {
    cuda_event *events;
    const launch_entry **entries; /* what ran after each event but the last */
    int count, capacity;
} cuda_marks;

/* Which passes are captured in graphs. */
typedef enum cuda_graph_use {
    CUDA_GRAPHS_OF_SHORT_PASSES,
    CUDA_GRAPHS_NEVER,
    CUDA_GRAPHS_ALWAYS
} cuda_graph_use;

typedef struct cuda_executor {
    const program *program;
    cuda_device *device;
    cuda_ops ops;
    cuda_weights weights;
    cuda_tiles tiles;
    const exchange *exchange; /* with the other ranks, by kernels; or NULL */
    cuda_pusher pusher;       /* copies rows to their GPUs */
    cuda_buffer arena, rope_table, k_cache, v_cache, inputs, state;
    cuda_pinned logits;         /* pinned memory for logits of few outputs */
    cuda_pinned staged, tokens; /* of groups: their inputs and their tokens */
    cuda_stream copies;         /* of groups */
    cuda_masks masks;
    cuda_event ended[CUDA_GROUPS];
    int64_t longest;        /* if several sequences decode, the positions of the longest; else 0 */
    int64_t n_decode;       /* as of a launch_class */
    int64_t staged_longest; /* the same, of the first pass of the group that was staged last */
    const void **weight_data; /* [program->n_weights]: addresses of the GPU */
    program_memory memory;    /* addresses of the GPU, with the last batch's inputs */
    cuda_pass passes[CUDA_MAX_GRAPHS];
    int next_pass;
    launch_setting setting;
    launch_list lists[CUDA_MAX_LISTS];
    uint64_t n_uses;        /* of lists */
    bool follows;           /* the pass follows another, and may start before that has ended */
    cuda_address likeliest; /* where the pass stores the likeliest tokens instead of logits; or 0 */
    cuda_marks *marks;      /* of the next pass, which then runs without a graph; NULL: none */
    cuda_graph_use graphs;  /* another use than the usual one is for measurements */
} cuda_executor;

/* Bytes of the GPU's memory that a run needs, each part exact. */
typedef struct cuda_bytes {
    size_t weights, arena, kv_cache, rope_table, state, inputs, workspace, total;
} cuda_bytes;
cuda_bytes cuda_executor_count(const program *program, const cuda_kernel *custom);

/* Refuses what does not fit, with both numbers; then loads the weights. The device is current in
 * this thread. `exchange` is that of the program's rank, or NULL if there is one rank; `carrier`
 * takes its place (op/carrier_cuda.h), or NULL; `custom`: custom kernels (cuda_ops.custom), or
 * NULL. cuda_executor_free() it, also after a failure. */
qp_status cuda_executor_init(cuda_executor *executor, cuda_device *device, const program *program,
                             const exchange *exchange, struct cuda_carrier *carrier,
                             const cuda_kernel *custom, thread_pool *pool, progress *progress,
                             qp_error *error);
void cuda_executor_free(cuda_executor *executor);

/* Called once if there is an exchange by kernels: with the ranks' threads. */
qp_status cuda_executor_join(cuda_executor *executor, comm *group, qp_error *error);

/* Copies the batch's inputs to the GPU, and its angles, if it has some, to the RoPE table. */
qp_status cuda_executor_take_inputs(cuda_executor *executor, const batch *batch, qp_error *error);

/* Puts steps [first, last) over the batch into the stream: inputs, then kernels. */
qp_status cuda_executor_run(cuda_executor *executor, const batch *batch, int first, int last,
                            qp_error *error);

/* Waits, and copies logits of the last pass to their places in `out`, (n_outputs, vocab_size): the
 * given rows, or where `rows` is NULL the first n_rows. */
qp_status cuda_executor_read_logits(cuda_executor *executor, const int32_t *rows, int64_t n_rows,
                                    float *out, qp_error *error);

/* How many passes a group should have, by its number of sequences. Passes of many sequences are
 * long and have many kernels; making a graph of several would take longer than waiting for their
 * copies. */
int cuda_executor_group(const cuda_executor *executor, int64_t n_sequences);

/* Takes the inputs of pass `pass` (0 .. CUDA_GROUP - 1, in order) of group `group` (0 ..
 * CUDA_GROUPS - 1): a batch of sequences with one token and one output each, the same in all
 * passes, one position further in each. The group's previous tokens must have been read. */
qp_status cuda_executor_stage(cuda_executor *executor, const batch *batch, int group, int pass,
                              qp_error *error);

/* Puts the `n_passes` passes that were staged last into the stream, steps [0, last) of each.
 * `batch` is the last pass's batch. After each pass the steps from `choice` on choose a token for
 * each sequence with the batch's settings; if `choice` is 0, the likeliest token is chosen. The
 * next pass reads these tokens. If the group `continues` the previous group, its first pass reads
 * that group's last tokens and ignores the batch's. */
qp_status cuda_executor_decode(cuda_executor *executor, const batch *batch, int last, int choice,
                               int group, int n_passes, bool continues, qp_error *error);

/* Waits for a group and returns the tokens chosen after each pass: (n_passes, n_sequences). */
qp_status cuda_executor_read_tokens(cuda_executor *executor, int group, int64_t n_sequences,
                                    int n_passes, int32_t *tokens, qp_error *error);

/* Measures how fast the GPU reads the weights. */
qp_status cuda_executor_measure_read(const cuda_executor *executor, double *bytes_per_second,
                                     qp_error *error);

/* The address of a tensor on the GPU; of a cache, the part of one layer; of a state, that of the
 * slot `layer`. */
cuda_address cuda_executor_address(const cuda_executor *executor, plan_tensor_id id, int64_t layer);

/* Waits, and copies the first `bytes` of a tensor from the GPU; or copies them to the GPU, before
 * what is launched later. `data`, which is not pinned, has been read when the call returns. */
qp_status cuda_executor_read(cuda_executor *executor, plan_tensor_id id, int64_t layer, void *data,
                             size_t bytes, qp_error *error);
qp_status cuda_executor_write(cuda_executor *executor, plan_tensor_id id, int64_t layer,
                              const void *data, size_t bytes, qp_error *error);

/* Puts the copy of a page of the KV cache, K and V of every layer, into the stream. */
qp_status cuda_executor_copy_page(cuda_executor *executor, int32_t from, int32_t to,
                                  qp_error *error);

/* Waits, and copies a page from or to the GPU: see machine_read_page(). */
qp_status cuda_executor_read_page(cuda_executor *executor, int32_t page, void *data,
                                  qp_error *error);
qp_status cuda_executor_write_page(cuda_executor *executor, int32_t page, const void *data,
                                   qp_error *error);

/* Puts the kernels of steps [first, last) into the stream. */
qp_status cuda_executor_launch(cuda_executor *executor, const program_sizes *sizes, int first,
                               int last, qp_error *error);
