/* Chains in a launch list: which nodes are one. See launch_builder.h. */
#include "op/linear/linear.h"
#include "op/rope/rope.h"
#include "op/rows_cuda.h"
#include "vm/cuda/launch_builder.h"

#include <stdlib.h>
#include <string.h>

/* kv_append with the head_norm and the rope before it, as one step; returns how many nodes they
 * are, or 0. */
static int append_nodes(const launch_builder *b, int node, cuda_chain *chain)
{
    op_call calls[3];
    const op_call *norm = NULL, *rope = NULL;
    for (int n = 0; n < 3 && node + n < b->end; n++) {
        const op_code op = b->program->nodes[node + n].op;
        launch_bind_node(b, node + n, &calls[n]);
        if (launch_is_custom(b, op, &calls[n])) return 0;
        if (op == OP_KV_APPEND) return cuda_chain_append(chain, norm, rope, &calls[n]) ? n + 1 : 0;
        if (op == OP_HEAD_NORM && n == 0)
            norm = &calls[n];
        else if (op == OP_ROPE && !rope)
            rope = &calls[n];
        else
            return 0;
    }
    return 0;
}

/* Appends to the chain the nodes from `node` on that one step takes together; returns how many, or
 * 0. */
static int chain_nodes(const launch_builder *b, int node, cuda_chain *chain)
{
    op_call calls[2];
    launch_bind_node(b, node, &calls[0]);
    if (launch_is_custom(b, b->program->nodes[node].op, &calls[0])) return 0;
    switch (b->program->nodes[node].op) {
    case OP_ALL_REDUCE:
        return program_is_noop(b->program, node) ||
               (launch_ranks_are_alike(b->program) && cuda_chain_reduce(chain, &calls[0]));
    case OP_EMBEDDING:
        return cuda_chain_gather(chain, &calls[0]);
    case OP_RMS_NORM:
        return cuda_chain_norm(chain, &calls[0]);
    case OP_HEAD_NORM:
    case OP_ROPE:
    case OP_KV_APPEND:
        return append_nodes(b, node, chain);
    case OP_PAGED_PREFILL:
        return launch_take_decoding(b, OP_PAGED_PREFILL, &calls[0]) == OP_PAGED_DECODE &&
               !launch_is_custom(b, OP_PAGED_DECODE, &calls[0]) &&
               cuda_chain_attention(chain, &calls[0]);
    case OP_LINEAR: {
        int n = launch_join_products(b, node, &calls[0]);
        if (node + n < b->end && b->program->nodes[node + n].op == OP_SILU_AND_MUL) {
            launch_bind_node(b, node + n, &calls[1]);
            if (!launch_is_custom(b, OP_SILU_AND_MUL, &calls[1]) &&
                cuda_chain_activated(chain, &calls[0], &calls[1]))
                return n + 1;
        }
        return cuda_chain_product(chain, &calls[0]) ? n : 0;
    }
    default:
        return 0;
    }
}

static qp_status keep_step_nodes(launch_builder *b, const cuda_chain *chain, launch_entry *entry,
                                 qp_error *error)
{
    launch_list *l = b->list;
    const int n = l->n_step_nodes + chain->run.n_steps;
    int *larger = realloc(l->step_nodes, (size_t)n * sizeof *larger);
    if (!larger) return error_no_memory(error, "a chain's steps", (size_t)n * sizeof *larger);
    l->step_nodes = larger;
    memcpy(larger + l->n_step_nodes, chain->nodes, (size_t)chain->run.n_steps * sizeof *larger);
    entry->step = l->n_step_nodes;
    l->n_step_nodes = n;
    return QP_OK;
}

qp_status launch_add_chain(launch_builder *b, int node, int *count, bool *likeliest,
                           qp_error *error)
{
    cuda_chain chain, whole, normed;
    int n_normed = 0;
    *count = 0;
    /* Chains of weights in FP8 leave x in F16, which other kernels do not take. */
    const bool in_f8 = b->setting->packed && b->setting->packed->in_f8;
    const tensor none = {0}, *narrowed = b->narrowed_in_f8 ? &none : &b->narrowed;
    if (!b->chains || !cuda_chain_begin(&b->ops, b->of->sizes.of[AXIS_TOKENS], narrowed,
                                        b->narrowed_at, b->of->n_chunks, &chain))
        return QP_OK;
    if (b->setting->packed)
        cuda_chain_pack(&chain, b->setting->packed,
                        cuda_area_address(in_f8 ? LAUNCH_WEIGHTS : LAUNCH_DECODED, 0),
                        cuda_area_address(LAUNCH_PACKED, 0));
    chain.tiles = b->setting->tiles;
    for (int n = node, taken; n < b->end; n += taken) {
        const int n_steps = chain.run.n_steps;
        taken = chain_nodes(b, n, &chain);
        if (taken == 0) break;
        if (chain.run.n_steps > n_steps) chain.nodes[n_steps] = n;
        if (cuda_chain_ends_with_norm(&chain) && !in_f8) {
            normed = chain;
            n_normed = n + taken - node;
        }
        if (!cuda_chain_is_whole(&chain)) continue;
        whole = chain;
        *count = n + taken - node;
    }
    if (*count == 0) return QP_OK;
    if (cuda_chain_is_full(&chain) && node + *count < b->end && n_normed > 0 &&
        launch_feeds_product(b, node + n_normed - 1, &normed.x)) {
        whole = normed;
        *count = n_normed;
    }
    const op_call argmax = launch_likeliest_call(b);
    const bool found = *likeliest && node + *count == b->end &&
                       !launch_is_custom(b, OP_ARGMAX, &argmax) &&
                       cuda_chain_likeliest(&whole, &argmax);
    if (found) *likeliest = false;
    launch_entry entry = launch_entry_at(b, node);
    entry.n_nodes = *count;
    entry.chain = true;
    entry.follows = true; /* before that it may only read weights */
    entry.epilogue = found ? "argmax" : NULL;
    entry.input =
        narrowed->rank && whole.run.steps[0].kind == CHAIN_PRODUCT ? LAUNCH_BF16 : LAUNCH_PLAIN;
    const int n_steps = whole.run.n_steps;
    TRY(cuda_chain_launch(&whole, error));
    if (whole.run.n_steps > n_steps) whole.nodes[n_steps] = node + *count - 1; /* adds parts */
    TRY(keep_step_nodes(b, &whole, &entry, error));
    entry.output = whole.x.rank ? LAUNCH_BF16 : LAUNCH_PLAIN;
    launch_leave_narrowed(b, &whole.x, whole.x_at);
    return launch_add_entry(b, &entry, error);
}
