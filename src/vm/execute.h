/* Runs a program node by node over memory that it owns. The CPU machines are built on it.
 *
 * For every operator it runs the reference, or the fastest variant that the CPU's features allow,
 * and divides an operator's units among the threads of a pool. It allocates all memory when it is
 * created.
 */
#pragma once

#include "base/buffer.h"
#include "base/progress.h"
#include "base/threads.h"
#include "comm/comm.h"
#include "vm/batch.h"
#include "vm/kernel_table.h"
#include "vm/pack_cache.h"
#include "vm/unpacked.h"
#include "plan/program.h"

/* How a node of the program runs. Chosen once, because it depends only on types and weights. */
typedef struct executor_node {
    const op_variant *variant; /* NULL: the reference */
    const void *packed;        /* the variant's own form of the weights, or NULL */
} executor_node;

/* The embedding rows of one batch: see pack.h. */
typedef struct embedding_rows {
    buffer memory;     /* the rows, then their numbers; empty where kernels read the table itself */
    const char *table; /* in the model's file */
    int weight;        /* its number in the program */
    size_t row_bytes;
    int32_t *numbers; /* 0, 1, ... */
} embedding_rows;

typedef struct executor {
    const program *program;
    thread_pool *pool;
    uint32_t cpu_features;       /* features that variants may use; 0: references only */
    const kernel_table *kernels; /* replace the operators' own kernels; NULL: none */
    executor_node *nodes;        /* [program->n_nodes] */
    buffer arena, sums, state, rope_table, k_cache, v_cache, scratch, packed;
    buffer own;         /* weights whose part has no memory in the model */
    unpacked *unpacked; /* [program->n_nodes]: what executor_pack_more() has left; NULL: nothing */
    buffer reading;     /* until then: rows that workers read to pack them */
    embedding_rows rows;
    size_t scratch_bytes; /* of one worker */
    const void **weights; /* [program->n_weights]: the address of each */
    program_memory memory;
    crew *crew; /* of exchanges between ranks; NULL: there are none */
} executor;

/* Chooses the kernels without allocating memory, to answer questions about them; such an executor
 * cannot run. `kernels` (may be NULL; must outlive the executor) take precedence over the
 * operators' own. QP_INVALID if the program has no node for one of them, or if the kernel accepts
 * no node. executor_free() it. */
qp_status executor_choose(executor *executor, const program *program, uint32_t cpu_features,
                          const kernel_table *kernels, qp_error *error);

/* `progress` reports the packing of weights, which `packed` keeps in files; NULL: nothing does. */
qp_status executor_init(executor *executor, const program *program, thread_pool *pool,
                        uint32_t cpu_features, const kernel_table *kernels, pack_cache *packed,
                        progress *progress, qp_error *error);

/* The same, but products' weights that are in files are left to executor_pack_more(). Only a
 * machine that runs unpacked_kernel for what is not packed yet can use such an executor. */
qp_status executor_init_unpacked(executor *executor, const program *program, thread_pool *pool,
                                 uint32_t cpu_features, const kernel_table *kernels,
                                 progress *progress, qp_error *error);

/* Exchanges between ranks are made in `group` from now on. */
void executor_join(executor *executor, comm *group);

/* Selects the kernel for a call with the program's types and largest shapes; NULL: the reference.
 */
void executor_select(const executor *executor, op_code op, const op_call *call,
                     const op_variant **variant);

void executor_free(executor *executor);

/* Gives back the memory of a weight that is the executor's own; reading it later gives zeros. Of
 * other weights: nothing. */
void executor_discard_own(const executor *executor, int weight);

/* Makes the call of a whole node at these sizes. */
void executor_bind(const executor *executor, int node, const program_sizes *sizes, op_call *call);

/* Points the program's inputs to the batch's arrays and copies its angles to the RoPE table. */
void executor_take_inputs(executor *executor, const batch *batch);

/* Begins a pass: it uses the sums that the last pass cleared. */
void executor_begin_pass(executor *executor);

/* Runs steps [first, last) of the program over the batch; a pass begins with the first step. */
void executor_run(executor *executor, const batch *batch, int first, int last);

/* The address of a tensor: of a cache, the part of one layer; of a state, the slot `layer`. */
void *executor_address(const executor *executor, plan_tensor_id id, int64_t layer);

/* Copies a page of the KV cache, K and V of every layer. */
void executor_copy_page(executor *executor, int32_t from, int32_t to);

/* A page from or to `data`: see machine_read_page(). */
void executor_read_page(const executor *executor, int32_t page, void *data);
void executor_write_page(executor *executor, int32_t page, const void *data);

/* float32 [outputs][vocab_size] of the last run that included lm_head; may be changed before
 * sampling. */
float *executor_logits(const executor *executor);
