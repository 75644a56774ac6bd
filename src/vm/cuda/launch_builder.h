/* What the parts of a launch list's builder share: the state while a list is made, questions about
 * the nodes that come next, and entries. See launch_list.h.
 */
#ifndef QUIPU_VM_CUDA_LAUNCH_BUILDER_H
#define QUIPU_VM_CUDA_LAUNCH_BUILDER_H

#include "vm/cuda/launch_list.h"
#include "vm/cuda/wanted_rows.h"

typedef struct launch_builder {
    const launch_setting *setting;
    const launch_class *of;
    const program *program;
    int end;     /* after the last node */
    bool early;  /* kernels may start before their predecessor has ended */
    bool chains; /* rows are enough for chains */
    bool finds;  /* the likeliest tokens are yet to be found */
    cuda_ops ops;
    tensor narrowed; /* the rows that are in BF16; rank 0: none */
    cuda_address narrowed_at;
    bool narrowed_in_f8; /* they are in FP8 instead */
    wanted_rows wanted;
    tensor cut_x;      /* the x of which each rank has its own rows alone; rank 0: none */
    tensor q, moved_q; /* q, and the moved copy of it that attention reads; rank 0: none */
    launch_list *list;
    launch_sink *sink;
    void *context; /* of `sink` */
} launch_builder;

/* ---- operands ------------------------------------------------------------------------------ */

void launch_bind_node(const launch_builder *b, int node, op_call *call);
bool launch_same_rows(const tensor *a, const tensor *b);
bool launch_same_view(const tensor *a, const tensor *b);

/* The first output among a call's tensors; its heads as one row. */
tensor launch_output_of(op_code op, const op_call *call);

/* ---- what the next nodes need --------------------------------------------------------------- */

/* Whether a node, a product, takes its rows in BF16; or in FP8, with scales of groups, or of rows.
 */
typedef bool launch_takes(const launch_builder *b, int node);
launch_takes launch_multiplies_narrowed, launch_multiplies_f8_groups, launch_multiplies_f8_rows;

/* Whether what a node writes is what the next node, a product, reads; and in BF16. */
bool launch_is_multiplied(const launch_builder *b, int node, const tensor *out);
bool launch_feeds_product(const launch_builder *b, int node, const tensor *out);

/* Whether only such products read a node's output. Any node may read the output of the pass's last
 * node, unless it is also the program's last node. */
bool launch_feeds_alone(const launch_builder *b, int node, launch_takes *takes);

/* Whether products have the same shapes on all ranks up to the logits, so that all ranks make the
 * same launches. */
bool launch_ranks_are_alike(const program *program);

bool launch_all_decode(const launch_builder *b);

/* Whether a custom kernel runs a call. */
bool launch_is_custom(const launch_builder *b, op_code op, const op_call *call);

/* If all sequences of the pass decode, attention runs as paged_decode where that pays. */
op_code launch_take_decoding(const launch_builder *b, op_code op, op_call *call);

/* Merges a product with those after it, as many as possible; returns the number of products. */
int launch_join_products(const launch_builder *b, int node, op_call *call);

/* The likeliest token of each row of logits. */
op_call launch_likeliest_call(const launch_builder *b);

/* ---- entries ------------------------------------------------------------------------------- */

launch_entry launch_entry_at(const launch_builder *b, int node);
qp_status launch_add_entry(launch_builder *b, const launch_entry *entry, qp_error *error);
void launch_leave_narrowed(launch_builder *b, const tensor *rows, cuda_address at);

/* Makes a chain of as many nodes as possible; *count is their number, 0 if no chain is possible.
 * *likeliest: whether the chain also finds the likeliest tokens. */
qp_status launch_add_chain(launch_builder *b, int node, int *count, bool *likeliest,
                           qp_error *error);

#endif
