/* Lowers a pass to launches: see launches.h. Here: the order in which rules are taken, and what
 * they ask; launch_rules.c has the rules. */
#include "lower/launch_rules.h"

#include "lower/draft.h"

#include <stdlib.h>
#include <string.h>

/* ---- what rules ask ------------------------------------------------------------------------- */

bool lower_takes(const lowering *l, int rule)
{
    return l->rules >> rule & 1;
}

void lower_took(lowering *l, int rule)
{
    l->taken[rule]++;
}

void lower_refuse(const lowering *l, int rule, int at, const char *why)
{
    char label[64];
    const program *p = l->program;
    if (!l->log || !lower_takes(l, rule) || l->nodes[at].n_nodes == 0) return;
    program_step_label(p, p->nodes[l->nodes[at].node].step, label, sizeof label);
    rewrite_log_add(l->log, lower_rule_name(rule), label, why);
}

op_call *lower_call(const lowering *l, int at)
{
    lowered_node *node = &l->nodes[at];
    op_call *call = &l->calls[node->call];
    if (!node->bound) l->bind(l->context, &l->of->sizes, node->node, call);
    node->bound = true;
    return call;
}

const lowered_group *lower_last(const lowering *l)
{
    return l->n_groups > 0 ? &l->groups[l->n_groups - 1] : NULL;
}

bool lower_is_custom(const lowering *l, op_code op, const op_call *call)
{
    return cuda_ops_custom(l->ops->custom, op, call);
}

bool lower_same_rows(const tensor *a, const tensor *b)
{
    return a->data == b->data && a->type == b->type && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->stride[0] == b->stride[0];
}

bool lower_ranks_are_alike(const program *p)
{
    const int64_t n = p->options.ranks, kv = p->whole.n_kv_heads;
    return p->whole.n_heads % n == 0 && (kv % n == 0 || n % kv == 0) &&
           p->whole.intermediate_size % n == 0;
}

/* ---- nodes and groups ------------------------------------------------------------------------ */

op_call *lower_add_node(lowering *l, int at, lowered_node node)
{
    memmove(&l->nodes[at + 1], &l->nodes[at], (size_t)(l->n_nodes - at) * sizeof *l->nodes);
    node.call = l->n_calls++;
    node.bound = node.n_nodes == 0; /* the rule binds it */
    l->nodes[at] = node;
    l->n_nodes++;
    return &l->calls[node.call];
}

lowered_group *lower_add_group(lowering *l, const lowered_node *node)
{
    lowered_group *g = &l->groups[l->n_groups++];
    *g = (lowered_group){.node = node->node,
                         .n_nodes = node->n_nodes,
                         .op = node->op,
                         .call = node->call,
                         .input = node->input,
                         .cut = node->cut,
                         .continues = node->continues};
    if (l->n_groups > 1) g->left = g[-1].left;
    return g;
}

/* Takes the program nodes [begin, end) as they are. */
static qp_status take_nodes(lowering *l, int begin, int end, qp_error *error)
{
    enum { ADDED = 4 }; /* two gathers, the likeliest tokens, and x made whole at the end */
    const size_t n = (size_t)(end - begin);
    /* Besides: a second call of attention and a launch that makes x whole, for each node. */
    l->calls = malloc((3 * n + ADDED) * sizeof *l->calls);
    l->nodes = malloc((n + ADDED) * sizeof *l->nodes);
    l->groups = malloc((3 * n + ADDED) * sizeof *l->groups);
    if (!l->calls || !l->nodes || !l->groups)
        return error_no_memory(error, "a pass of launches", 3 * n * sizeof *l->calls);
    for (int node = begin; node < end; node++)
        lower_add_node(l, l->n_nodes,
                       (lowered_node){.node = node,
                                      .n_nodes = 1,
                                      .op = l->program->nodes[node].op,
                                      .nothing = program_is_noop(l->program, node)});
    return QP_OK;
}

/* ---- groups in their order ------------------------------------------------------------------ */

static qp_status no_kernel(const program *p, op_code op, qp_error *error)
{
    const bool fused = p->options.fuse || p->options.sums;
    return error_set(error, QP_UNSUPPORTED, "the GPU has no kernel of %s for this model: %s",
                     op_get(op)->name,
                     fused && !op_get(op)->cuda
                         ? "fused operators run on a CPU and in the megakernel; leave --fuse and "
                           "--sums out"
                         : "use --device cpu");
}

/* Makes the group of the nodes from `at` on that one kernel launches, *count of them. */
static qp_status group_nodes(lowering *l, int at, lowered_group *g, int *count, qp_error *error)
{
    const lowered_node *node = &l->nodes[at];
    *count = 1;
    if (node->cut) {
        g->kernel = &all_gather_cuda[0];
        g->left.cut_x.rank = 0;
    }
    if (node->nothing || node->cut) return QP_OK;
    lower_call(l, at);
    if (node->op == OP_LINEAR) *count = lower_merge_products(l, at, g);
    g->kernel = cuda_ops_choose(l->ops, node->op, &l->calls[g->call]);
    if (!g->kernel) return no_kernel(l->program, node->op, error);
    const int fused = lower_fuse(l, at + *count, g);
    if (fused == 0) lower_narrow(l, at, g);
    *count += fused;
    lower_join(l);
    if (fused == 0) lower_split(l);
    return QP_OK;
}

/* Makes the group that begins at a node; *count is how many nodes it has. */
static qp_status make_group(lowering *l, int at, int *count, qp_error *error)
{
    lowered_group *g = lower_add_group(l, &l->nodes[at]);
    *count = 0;
    if (lower_takes(l, LOWER_RULE_persistent)) TRY(l->take_run(l, at, g, count, error));
    if (*count == 0) return group_nodes(l, at, g, count, error);
    lower_took(l, LOWER_RULE_persistent);
    return QP_OK;
}

qp_status lower_begin(lowering *l, qp_error *error)
{
    const program_step *steps = l->program->steps;
    const launch_class *of = l->of;
    l->done = of->first == of->last;
    if (l->done) return QP_OK;
    if (l->explained) l->log = calloc(1, sizeof *l->log);
    if (l->log) l->log->out = &l->why;
    l->end = steps[of->last - 1].first_node + steps[of->last - 1].n_nodes;
    TRY(take_nodes(l, steps[of->first].first_node, l->end, error));
    if (of->likeliest) lower_likeliest(l);
    for (int at = 0; at < l->n_nodes; at++)
        lower_decode(l, at);
    l->done = l->n_nodes == 0;
    return QP_OK;
}

qp_status lower_next(lowering *l, qp_error *error)
{
    int count;
    lower_gather_wanted(l, l->at);
    TRY(make_group(l, l->at, &count, error));
    l->at += count;
    l->done = l->at == l->n_nodes;
    if (l->done) lower_join_at_end(l);
    return QP_OK;
}

/* Tells which rules were taken, and why not. */
static void explain(lowering *l)
{
    strbuf *out = l->explained;
    rewrite_log_end(l->log);
    for (int i = 0; i < LOWER_RULES; i++)
        if (lower_takes(l, i)) lower_tell_rule(i, l->taken[i], out);
    strbuf_puts(out, strbuf_text(&l->why));
    strbuf_free(&l->why);
}

void lower_end(lowering *l)
{
    if (l->log) explain(l);
    for (int i = 0; i < l->n_groups; i++)
        free(l->groups[i].run);
    free(l->log);
    free(l->calls);
    free(l->nodes);
    free(l->groups);
}
