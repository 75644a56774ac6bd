/* Chains in a launch list: which nodes are one. See launch_list.h and chain.h. */
#include "op/linear/linear.h"
#include "op/rope/rope.h"
#include "vm/cuda/chain.h"
#include "vm/cuda/launch_list.h"

#include <stdlib.h>
#include <string.h>

/* kv_append with the head_norm and the rope before it, as one step; returns how many nodes they
 * are, or 0. */
static int append_nodes(lowering *l, int at, cuda_chain *chain)
{
    const op_call *norm = NULL, *rope = NULL;
    for (int n = 0; n < 3 && at + n < l->n_nodes; n++) {
        const op_code op = l->nodes[at + n].op;
        const op_call *call = lower_call(l, at + n);
        if (lower_is_custom(l, op, call)) return 0;
        if (op == OP_KV_APPEND) return cuda_chain_append(chain, norm, rope, call) ? n + 1 : 0;
        if (op == OP_HEAD_NORM && n == 0)
            norm = call;
        else if (op == OP_ROPE && !rope)
            rope = call;
        else
            return 0;
    }
    return 0;
}

/* A product, merged with those after it, and with the activation after them. */
static int product_nodes(lowering *l, int at, cuda_chain *chain)
{
    op_call call = *lower_call(l, at);
    const int n = lower_merge(l, at, &call);
    if (at + n < l->n_nodes && l->nodes[at + n].op == OP_SILU_AND_MUL &&
        !lower_is_custom(l, OP_SILU_AND_MUL, lower_call(l, at + n)) &&
        cuda_chain_activated(chain, &call, lower_call(l, at + n)))
        return n + 1;
    return cuda_chain_product(chain, &call) ? n : 0;
}

/* Appends to the chain the nodes from `at` on that one step takes together; returns how many, or 0.
 */
static int chain_nodes(lowering *l, int at, cuda_chain *chain)
{
    const lowered_node *node = &l->nodes[at];
    const op_call *call = lower_call(l, at);
    if (lower_is_custom(l, node->op, call)) return 0;
    switch (node->op) {
    case OP_ALL_REDUCE:
        return node->nothing ||
               (lower_ranks_are_alike(l->program) && cuda_chain_reduce(chain, call));
    case OP_EMBEDDING:
        return cuda_chain_gather(chain, call);
    case OP_RMS_NORM:
        return cuda_chain_norm(chain, call);
    case OP_HEAD_NORM:
    case OP_ROPE:
    case OP_KV_APPEND:
        return append_nodes(l, at, chain);
    case OP_PAGED_DECODE:
        return cuda_chain_attention(chain, call);
    case OP_LINEAR:
        return product_nodes(l, at, chain);
    case OP_ARGMAX: /* of logits that nothing else reads */
        return node->n_nodes == 0 && cuda_chain_likeliest(chain, call);
    default:
        return 0;
    }
}

/* Chains of weights in FP8 leave x in F16, which other kernels do not take. */
static bool is_in_f8(const launch_setting *setting)
{
    return setting->packed && setting->packed->in_f8;
}

static bool begin(const lowering *l, const launch_setting *setting, const tensor *narrowed,
                  cuda_address narrowed_at, cuda_chain *chain)
{
    const int64_t tokens = l->of->sizes.of[AXIS_TOKENS];
    if (tokens <= l->ops->few_rows ||
        !cuda_chain_begin(l->ops, tokens, narrowed, narrowed_at, l->of->n_chunks, chain))
        return false;
    if (setting->packed)
        cuda_chain_pack(chain, setting->packed,
                        cuda_area_address(is_in_f8(setting) ? LAUNCH_WEIGHTS : LAUNCH_DECODED, 0),
                        cuda_area_address(LAUNCH_PACKED, 0));
    chain->tiles = setting->tiles;
    return true;
}

/* Copies a chain without the steps that it does not have. */
static void copy_chain(cuda_chain *to, const cuda_chain *from)
{
    const char *rest = (const char *)&from->run.steps[CHAIN_MAX_STEPS];
    const size_t used = (size_t)((const char *)&from->run.steps[from->run.n_steps] -
                                 (const char *)from),
                 at = (size_t)(rest - (const char *)from);
    memcpy(to, from, used);
    memcpy((char *)to + at, rest, sizeof *from - at);
}

/* A chain of as many nodes as possible; returns how many. */
static int longest_chain(lowering *l, int at, bool in_f8, cuda_chain *chain, cuda_chain *whole)
{
    cuda_chain normed;
    const lowered_node *nodes = l->nodes;
    int n_whole = 0, n_normed = 0;
    for (int i = at, taken; i < l->n_nodes; i += taken) {
        const int n_steps = chain->run.n_steps;
        taken = chain_nodes(l, i, chain);
        if (taken == 0) {
            lower_refuse(l, LOWER_RULE_persistent, i, "a chain cannot continue with this node");
            break;
        }
        if (chain->run.n_steps > n_steps) chain->nodes[n_steps] = nodes[i].node;
        if (cuda_chain_ends_with_norm(chain) && !in_f8) {
            copy_chain(&normed, chain);
            n_normed = i + taken - at;
        }
        if (!cuda_chain_is_whole(chain)) continue;
        copy_chain(whole, chain);
        n_whole = i + taken - at;
    }
    if (n_whole == 0 || n_normed == 0 || !cuda_chain_is_full(chain) || at + n_whole == l->n_nodes ||
        !lower_feeds_product(l, at + n_normed - 1, &normed.x))
        return n_whole;
    copy_chain(whole, &normed);
    return n_normed;
}

qp_status launch_take_run(lowering *l, int at, lowered_group *g, int *count, qp_error *error)
{
    const launch_setting *setting = l->context;
    const tensor none = {0}, *narrowed = g->left.in_f8 ? &none : &g->left.rows;
    cuda_chain chain, whole;
    if (!begin(l, setting, narrowed, g->left.at, &chain)) {
        if (at == 0)
            lower_refuse(l, LOWER_RULE_persistent, at,
                         "the pass has more than 64 rows or few, or the GPU has no such kernels");
        return QP_OK;
    }
    *count = longest_chain(l, at, is_in_f8(setting), &chain, &whole);
    if (*count == 0) return QP_OK;
    g->run = calloc(1, sizeof whole);
    if (!g->run) return error_no_memory(error, "a chain", sizeof whole);
    const bool normed = cuda_chain_ends_with_norm(&whole);
    g->input =
        narrowed->rank && whole.run.steps[0].kind == CHAIN_PRODUCT ? LAUNCH_BF16 : LAUNCH_PLAIN;
    g->output = normed ? LAUNCH_BF16 : LAUNCH_PLAIN;
    g->left.rows = normed ? whole.x : none;
    g->left.at = whole.x_at;
    g->left.in_f8 = false;
    g->n_nodes = 0;
    for (int i = at; i < at + *count; i++)
        g->n_nodes += l->nodes[i].n_nodes;
    if (l->nodes[at + *count - 1].op == OP_ARGMAX) g->epilogue = "argmax";
    copy_chain(g->run, &whole);
    return QP_OK;
}

static qp_status keep_step_nodes(launch_list *l, const cuda_chain *chain, launch_entry *entry,
                                 qp_error *error)
{
    const int n = l->n_step_nodes + chain->run.n_steps;
    int *larger = realloc(l->step_nodes, (size_t)n * sizeof *larger);
    if (!larger) return error_no_memory(error, "a chain's steps", (size_t)n * sizeof *larger);
    l->step_nodes = larger;
    memcpy(larger + l->n_step_nodes, chain->nodes, (size_t)chain->run.n_steps * sizeof *larger);
    entry->step = l->n_step_nodes;
    l->n_step_nodes = n;
    return QP_OK;
}

qp_status launch_run(launch_list *list, launch_entry *entry, const lowered_group *g,
                     qp_error *error)
{
    cuda_chain *chain = g->run;
    const int n_steps = chain->run.n_steps;
    TRY(cuda_chain_launch(chain, error));
    if (chain->run.n_steps > n_steps) chain->nodes[n_steps] = g->node + g->n_nodes - 1; /* parts */
    return keep_step_nodes(list, chain, entry, error);
}
