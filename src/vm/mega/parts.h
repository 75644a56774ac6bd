/* The parts of which a cuda_mega is made; for its own files. */
#ifndef QUIPU_VM_MEGA_PARTS_H
#define QUIPU_VM_MEGA_PARTS_H

#include "vm/mega/megakernel.h"
#include "schedule/schedule.h"

/* ---- memory.c ---- */

/* Bytes of its activations, lists, states, counters and keys, and of what it chooses tokens with.
 */
size_t mega_count_activations(const model_config *config, int n_blocks);
/* Where things lie in shared memory, and how many stages of the ring fit before them. */
void mega_lay_out_shared(cuda_mega *mega);
/* Bytes of shared memory for a KV head's attention: its queries with the newest key and value, its
 * states, and outputs of a block or of parts on their way to be merged. */
typedef struct mega_attention_bytes {
    size_t inputs, states, outputs;
} mega_attention_bytes;
mega_attention_bytes mega_attention_of(const cuda_mega *mega);
/* Allocates what mega_count_activations() counts, and what the host reads. */
qp_status mega_take_memory(cuda_mega *mega, qp_error *error);

/* ---- weights.c ---- */

/* Bytes of the weights that it has in an order of its own: W_down, or all as bricks. */
size_t mega_count_weights(const model *model);
/* Makes them. */
qp_status mega_make_weights(cuda_mega *mega, qp_error *error);
/* Tensor maps of W_down for several sequences, to where mega->batch has them. */
qp_status mega_make_down_maps(const cuda_mega *mega, qp_error *error);
/* Where an instruction's i-th matrix lies, and of which kind of bricks it is. */
void mega_set_matrix(const cuda_mega *mega, mega_weights *weights, int i, weight_slot slot,
                     int64_t layer);

/* ---- bricks.c ---- */

/* BRICK_NONE: of a type that it does not read as bricks. */
int mega_brick_kind(dtype type);
/* Whether every matrix that a pass multiplies by can be bricks. */
bool mega_is_quantized(const model *model);
/* Whether its first matrix, and so all of a model that is run, are F16. */
bool mega_is_half(const model *model);
/* The image whose kernels read the model's weights: its kinds of bricks, and as few others as there
 * is. */
const char *mega_image(const model *model);
/* A stage of the ring that holds a chunk of any of the model's bricks. */
int mega_stage_bytes(const model *model);
size_t mega_count_bricks(const model *model);
qp_status mega_make_bricks(cuda_mega *mega, qp_error *error);

/* ---- program.c ---- */

/* Units that stay together, for each mega_grain: 0: any. */
const int32_t *mega_grains_of(const cuda_mega *mega);

typedef struct mega_schedule_options {
    int n_blocks;
    schedule_assignment assignment;
    const int32_t *together; /* [OP_COUNT]: as schedule_options has it; may be NULL */
    const struct cost_table *costs;
    int64_t context;
} mega_schedule_options;

/* The schedule of the plan of sums for so many blocks, proved sound and with no wait that nothing
 * on the GPU carries. Of the plan only sizes and the memory of the KV cache are looked at, of the
 * model types and shapes. schedule_free() the result, also after a failure. */
qp_status mega_schedule(const plan *plan, const model *model, const mega_schedule_options *options,
                        schedule *out, qp_error *error);

/* What every schedule goes through before anything of it is uploaded. */
qp_status mega_prove(const schedule *schedule, qp_error *error);

/* How many entries an instruction is, and how many come before a block's first. */
int mega_entries_of(const schedule *schedule, const instruction *in);
int mega_entries_before(const schedule *schedule, int block);

size_t mega_count_program(const model_config *config, int n_blocks);
/* Makes the schedule and uploads its queues. */
qp_status mega_make_program(cuda_mega *mega, const cuda_mega_options *options, qp_error *error);

/* ---- waits.c ---- */

/* QP_UNSUPPORTED names the first instruction with a wait that nothing carries. */
qp_status mega_check_waits(const schedule *schedule, qp_error *error);
/* Units that a KV head has of a node; 0: its units are not by KV heads. */
int64_t mega_units_of_head(const schedule *schedule, int node);

/* ---- batch.c ---- */

/* Bytes of what several sequences have for themselves; none where the plan has one, or they are run
 * operator by operator. */
size_t mega_count_batch(const plan *plan, const model *model);
/* How several sequences' W_down comes: boxes of `rows` features by `groups` times 64 columns, as
 * many as `chunks` over all columns. `mates` blocks in a row share their features, and each adds up
 * a share of the columns for all of them. No groups: it does not come so. */
typedef struct down_boxes {
    int32_t rows, groups, chunks, peers;
} down_boxes;
/* Of the megakernel's schedule. */
down_boxes mega_down_boxes(const cuda_mega *mega);
/* Behind everything else of the megakernel, whose program it runs too. */
qp_status mega_init_batch(cuda_mega *mega, qp_error *error);
bool mega_takes_batch(const cuda_mega *mega, const batch *batch);
/* The batch's inputs are on the GPU. */
qp_status mega_run_batch(cuda_mega *mega, const batch *batch, int n_passes, int32_t *tokens,
                         qp_error *error);

/* ---- timing.c ---- */

/* Gives the next launch its slots, or none; whether it gets some. */
bool mega_begin_timing(cuda_mega *mega, int n_passes);

/* ---- megakernel.c ---- */

/* Says what the block reported that waited too long, if that is what ended the kernel. */
qp_status mega_explain(const cuda_mega *mega, qp_status status, qp_error *error);

/* To the GPU, and waits. */
qp_status mega_copy(const cuda_device *device, cuda_address to, const void *from, size_t bytes,
                    qp_error *error);

#endif
