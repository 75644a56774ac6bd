/* Declarations that the megakernel's host files share. */
#pragma once

#include "comm/comm.h"
#include "vm/mega/megakernel.h"
#include "schedule/schedule.h"

/* ---- memory.c ---- */

/* Bytes of its activations, q, k, v, states, counters and keys, and of what sampling needs. */
size_t mega_count_activations(const program *program, int n_blocks);
/* Lays out shared memory, and computes how many stages of the ring fit before the other parts. */
void mega_lay_out_shared(cuda_mega *mega);
/* Bytes of shared memory for a KV head's attention by chunks of so many bytes: queries with the
 * newest key and value; states; outputs of a block or of parts that are to be merged. */
typedef struct mega_attention_bytes {
    size_t inputs, states, outputs;
} mega_attention_bytes;
mega_attention_bytes mega_attention_of(const cuda_mega *mega, size_t chunk);
/* Bytes of a chunk of the cache in the kernels for one row. */
size_t mega_cache_chunk(const cuda_mega *mega);
/* Allocates what mega_count_activations() counts, and the pinned memory. */
qp_status mega_take_memory(cuda_mega *mega, qp_error *error);

/* ---- weights.c ---- */

/* Bytes of the weights in its own order: W_down, or all matrices as fragments. */
size_t mega_count_weights(const program *program);
/* Makes the weights in the megakernel's own order. */
qp_status mega_make_weights(cuda_mega *mega, qp_error *error);
/* Makes the tensor maps of W_down for several sequences, at mega->batch.down_maps. */
qp_status mega_make_down_maps(const cuda_mega *mega, qp_error *error);
/* Sets the address and the kind of fragments of an instruction's i-th matrix. */
void mega_set_matrix(const cuda_mega *mega, mega_weights *weights, int i, weight_slot slot,
                     int64_t layer);

/* ---- fragments.c ---- */

/* The kind of fragments of a matrix; FRAGMENT_NONE: its type has none. */
int mega_fragment_kind(const program *program, int weight);
/* Whether every matrix that a pass multiplies by has a type with fragments, and kernels read them
 * together. */
bool mega_is_quantized(const program *program);
/* Whether the first matrix is F16; a model that runs has all matrices of one such type. */
bool mega_is_half(const program *program);
/* The GPU image whose kernels read the model's weights: the image that has all of the model's types
 * and the fewest others. */
const char *mega_image(const program *program);
/* The same of the kernels for several rows; NULL: there are none. */
const char *mega_batch_image(const program *program);
/* Bytes of a stage that holds a chunk of any of the model's fragments. */
int mega_stage_bytes(const program *program);
/* The same for several rows. */
int mega_batch_stage_bytes(const program *program);
size_t mega_count_fragments(const program *program);
qp_status mega_make_fragments(cuda_mega *mega, qp_error *error);

/* ---- biases.c ---- */

/* Bytes of the biases in float32; 0: the model has none. */
size_t mega_count_biases(const program *program);
/* Whether no matrices but those of q, k and v have biases. */
bool mega_biases_qkv_only(const program *program);
qp_status mega_make_biases(cuda_mega *mega, qp_error *error);
/* The address of an operator's biases in a layer, as mega_weights.biases has it; 0: none. */
cuda_address mega_biases_of(const cuda_mega *mega, op_code op, int64_t layer);

/* ---- program.c ---- */

/* Whether query and key heads have norms. */
bool mega_has_head_norms(const program *program);
/* Whether it has nothing beside a Llama: no biases, norms of heads, windows or layers without RoPE.
 */
bool mega_is_plain(const program *program);
/* The most features of another block in a block's first fragment of W_down. */
int64_t mega_features_lead(const cuda_mega *mega);
/* Units that stay together, for each mega_grain; 0: any. */
void mega_grains_of(const cuda_mega *mega, int32_t grains[]);

typedef struct mega_schedule_options {
    int n_blocks;
    schedule_assignment assignment;
    const int32_t *together; /* [OP_COUNT], as in schedule_options; may be NULL */
    const struct cost_table *costs;
    int64_t context;
} mega_schedule_options;

/* Builds the program with sums for so many blocks, of the same model as `of` and with its KV cache.
 * program_free() the result, also after a failure. */
qp_status mega_build_sums(const program *of, int n_blocks, program *out, qp_error *error);

/* Builds the schedule of a program with sums, verifies it, and checks that the megakernel
 * implements each of its waits. schedule_free() the result, also after a failure. */
qp_status mega_schedule(const program *sums, const mega_schedule_options *options, schedule *out,
                        qp_error *error);

/* Verifies a schedule and checks its waits, before any of it is uploaded. */
qp_status mega_prove(const schedule *schedule, qp_error *error);

/* The number of entries that an instruction becomes, and the number of entries of a block before
 * the instruction's first. */
int mega_entries_of(const schedule *schedule, const instruction *in);
int mega_entries_before(const schedule *schedule, int block);

size_t mega_count_program(const model_config *config, int n_blocks);
/* Makes the schedule and uploads the queues. */
qp_status mega_make_program(cuda_mega *mega, const cuda_mega_options *options, qp_error *error);

/* ---- waits.c ---- */

/* QP_UNSUPPORTED names the first instruction with a wait that the megakernel does not implement. */
qp_status mega_check_waits(const schedule *schedule, qp_error *error);
/* Units per KV head of a node; 0: its units are not by KV heads. */
int64_t mega_units_of_head(const schedule *schedule, int node);

/* ---- batch.c ---- */

/* Blocks of MEGA_COLUMNS in a row of the hidden size. */
static inline int mega_column_blocks(const model_config *config)
{
    return (int)((config->hidden_size + MEGA_COLUMNS - 1) / MEGA_COLUMNS);
}
/* Bytes for several rows; 0 if the program has only one sequence and the megakernel does not
 * verify, or if it has no kernels for several. */
size_t mega_count_batch(const program *program, bool verifies);
/* NULL, or why there are no kernels for several rows of one sequence. */
const char *mega_verify_refusal(const program *program);
/* How W_down is cut for several sequences. A box is `rows` features by `groups` groups of 64
 * columns; `chunks` boxes cover all columns. `peers` neighbouring blocks share their features, and
 * each sums up a share of the columns for all of them. groups 0: it cannot be cut. */
typedef struct down_boxes {
    int32_t rows, groups, chunks, peers;
} down_boxes;
/* How the megakernel's schedule cuts W_down. */
down_boxes mega_down_boxes(const cuda_mega *mega);
/* The last step of making a cuda_mega; several sequences run the same program. */
qp_status mega_init_batch(cuda_mega *mega, qp_error *error);
bool mega_takes_batch(const cuda_mega *mega, const batch *batch, bool verifies);
/* Runs passes over several rows. The batch's inputs must be on the GPU. */
qp_status mega_run_batch(cuda_mega *mega, const batch *batch, int n_passes, int32_t *tokens,
                         qp_error *error);

/* ---- ranks.c ---- */

/* NULL, or why the megakernel does not run the model on these ranks. */
const char *mega_ranks_refusal(const program *program);
/* Bytes of the receive buffer; 0 if there is one rank. */
size_t mega_count_receive(const program *program, int n_blocks);
/* Makes the receive buffer, and exchanges the addresses of all ranks'. `group`: the ranks; unused
 * if there is one. */
qp_status mega_connect_ranks(cuda_mega *mega, struct comm *group, qp_error *error);
/* After a pass: puts the exchange that gives every rank the logits of all into the stream. */
qp_status mega_gather_logits(cuda_mega *mega, const batch *batch, qp_error *error);

/* ---- timing.c ---- */

/* Gives the next launch its timing slots; false: none are left. */
bool mega_begin_timing(cuda_mega *mega, int n_passes);

/* ---- megakernel.c ---- */

/* If the kernel ended because a block waited too long, adds that block's report to the error. */
qp_status mega_explain(const cuda_mega *mega, qp_status status, qp_error *error);

/* Copies to the GPU, and waits. */
qp_status mega_copy(const cuda_device *device, cuda_address to, const void *from, size_t bytes,
                    qp_error *error);
