/* Launch rules on nodes, and those that add launches: see launch_rules.h. */
#include "lower/launch_rules.h"

#include "base/checked.h"
#include "op/argmax/argmax.h"
#include "op/attention/attention_cuda.h"
#include "op/embedding/embedding.h"
#include "op/linear/linear.h"
#include "op/linear/linear_stream.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/rms_norm/rms_norm.h"

/* ---- the likeliest tokens -------------------------------------------------------------------- */

void lower_likeliest(lowering *l)
{
    const int64_t n = l->of->sizes.of[AXIS_OUTPUTS];
    op_call *call = lower_add_node(l, l->n_nodes, (lowered_node){.node = l->end, .op = OP_ARGMAX});
    *call = (op_call){.end = n};
    call->tensors[ARGMAX_LOGITS] =
        tensor_2d(l->memory->data[PLAN_LOGITS], DTYPE_F32, n, l->program->config.vocab_size);
    call->tensors[ARGMAX_IDS] = tensor_1d(cuda_host_form(l->likeliest), DTYPE_I32, n);
}

/* ---- decode, split -------------------------------------------------------------------------- */

bool lower_all_decode(const lowering *l)
{
    return l->of->n_chunks > 0 && l->of->n_decode == 0;
}

bool lower_is_single(const program *program, const int64_t *sizes)
{
    return program->config.n_experts > 0 && !program->options.few_alike &&
           sizes[AXIS_TOKENS] == 1 && sizes[AXIS_SEQUENCES] == 1;
}

void lower_decode(lowering *l, int at)
{
    lowered_node *node = &l->nodes[at];
    const bool all = lower_all_decode(l);
    if (!lower_takes(l, LOWER_RULE_decode) || node->op != OP_PAGED_PREFILL ||
        !(all || lower_is_single(l->program, l->of->sizes.of)) ||
        lower_is_custom(l, node->op, lower_call(l, at)))
        return;
    node->op = all ? cuda_take_decoding(l->ops, lower_call(l, at))
                   : cuda_take_single(l->ops, lower_call(l, at));
    if (node->op == OP_PAGED_DECODE)
        lower_took(l, LOWER_RULE_decode);
    else
        lower_refuse(l, LOWER_RULE_decode, at, "blocks of positions are slower for these heads");
}

/* A tile of paged_prefill has a hundred rows, of which a sequence with one token uses a few. Only
 * kernels with tiles let the other launch begin at the right time. The second launch runs while the
 * first one's last blocks do. */
void lower_split(lowering *l)
{
    op_call decode, others;
    lowered_group *g = &l->groups[l->n_groups - 1];
    if (!lower_takes(l, LOWER_RULE_split) || l->of->n_decode == 0 || !g->kernel ||
        g->kernel->launch != cuda_prefill || g->kernel->custom_launch)
        return;
    cuda_split_prefill(&l->calls[g->call], l->of->n_decode, &decode, &others);
    if (lower_is_custom(l, OP_PAGED_DECODE, &decode) || !cuda_decode_accepts(&decode) ||
        !cuda_decode_pays(l->ops, &decode) ||
        cuda_ops_choose(l->ops, OP_PAGED_PREFILL, &others) != g->kernel)
        return;
    lower_took(l, LOWER_RULE_split);
    g->forms.beside = g->continues = true;
    lowered_group *second = &l->groups[l->n_groups++];
    *second = *g;
    second->n_nodes = 0;
    second->op = OP_PAGED_DECODE;
    second->kernel = cuda_ops_choose(l->ops, OP_PAGED_DECODE, &decode);
    second->forms.out_rows = l->calls[g->call].tensors[PAGED_PREFILL_Q].shape[0];
    second->continues = false;
    second->call = l->n_calls++;
    l->calls[g->call] = others;
    l->calls[second->call] = decode;
}

/* ---- gather_wanted --------------------------------------------------------------------------- */

/* After the last layer's attention nothing reads rows whose logits are not wanted: their keys and
 * values are in the cache. In a pass that reads prompts those are nearly all. */

static bool is_gather(const program *p, int node)
{
    return p->nodes[node].op == OP_EMBEDDING &&
           program_tensor_of(p, node, EMBEDDING_IDS) == PLAN_OUTPUT_ROWS &&
           program_tensor_of(p, node, EMBEDDING_TABLE) == PLAN_X;
}

/* Whether a node is an output projection. Of several ranks that add partial sums only the first one
 * has a residual. */
static bool adds_attention(const program *p, int node)
{
    const bool others = p->options.rank > 0 && p->options.cut == PLAN_REDUCE;
    return p->nodes[node].op == OP_LINEAR && program_tensor_of(p, node, LINEAR_X) == PLAN_ATTN &&
           (others || program_tensor_of(p, node, LINEAR_RESIDUAL) == PLAN_X) &&
           program_tensor_of(p, node, LINEAR_OUT) == PLAN_X;
}

/* Whether the gathered rows of x and of attention's output fit where norms leave their rows: the
 * same on all ranks. */
static bool gathered_fit(const program *p, const int64_t *sizes)
{
    const int64_t columns = p->whole.n_heads * p->whole.head_dim;
    const int64_t hidden = p->config.hidden_size, rows = sizes[AXIS_OUTPUTS];
    return rows > 0 && 2 * rows <= sizes[AXIS_TOKENS] &&
           rows * (hidden + columns) + CUDA_ALIGNMENT <= sizes[AXIS_TOKENS] * hidden;
}

/* The node that gathers the wanted rows after the layer of output projection `at`, if only nodes
 * that work by rows are between them; else 0. */
static int find_gather(const lowering *l, int at)
{
    const program *p = l->program;
    const lowered_node *nodes = l->nodes;
    const int n = l->n_nodes;
    if (at == 0 || nodes[at].n_nodes == 0 || l->of->sizes.of[AXIS_TOKENS] <= LINEAR_STREAM_MAX_X ||
        nodes[at - 1].op != OP_PAGED_PREFILL || !adds_attention(p, nodes[at].node))
        return 0;
    int i = at + 1;
    while (i < n && nodes[i].n_nodes > 0 && lower_node_goes_by_rows(p, nodes[i].node))
        i++;
    if (i + 1 >= n || nodes[i].n_nodes == 0 || !is_gather(p, nodes[i].node) ||
        nodes[i + 1].op != OP_RMS_NORM ||
        program_tensor_of(p, nodes[i + 1].node, RMS_NORM_X) != PLAN_X_OUT)
        return 0;
    if (gathered_fit(p, l->of->sizes.of)) return i;
    lower_refuse(l, LOWER_RULE_gather_wanted, at, "too many rows are wanted to gather them first");
    return 0;
}

static void add_gather(lowering *l, int at, bool cut, const tensor *ids, const tensor *table,
                       const tensor *out)
{
    op_call *call = lower_add_node(
        l, at,
        (lowered_node){
            .node = l->nodes[at].node, .op = OP_EMBEDDING, .continues = true, .cut = cut});
    *call = (op_call){.end = out->shape[0]};
    call->tensors[EMBEDDING_IDS] = *ids;
    call->tensors[EMBEDDING_TABLE] = *table;
    call->tensors[EMBEDDING_OUT] = *out;
}

/* Binds the nodes from the output projection to the norm after the gather to the wanted rows, which
 * lie where norms leave theirs. */
static void bind_wanted(lowering *l, int at, int gather)
{
    program_sizes few = l->of->sizes;
    few.of[AXIS_TOKENS] = few.of[AXIS_OUTPUTS];
    for (int i = at; i <= gather + 1; i++)
        l->bind(l->context, &few, l->nodes[i].node, lower_call(l, i));
    lower_call(l, gather + 1)->tensors[RMS_NORM_X] =
        lower_call(l, gather)->tensors[EMBEDDING_TABLE];
    l->nodes[gather].nothing = true;
}

void lower_gather_wanted(lowering *l, int at)
{
    const int gather = lower_takes(l, LOWER_RULE_gather_wanted) ? find_gather(l, at) : 0;
    if (gather == 0) return;
    lower_took(l, LOWER_RULE_gather_wanted);
    const lowered_group *last = lower_last(l);
    op_call *output = lower_call(l, at);
    tensor attended = output->tensors[LINEAR_X], residual = output->tensors[LINEAR_RESIDUAL];
    if (last && last->left.rows.rank == attended.rank &&
        lower_same_rows(&last->left.rows, &attended))
        attended = tensor_2d(cuda_host_form(last->left.at), DTYPE_BF16, attended.shape[0],
                             attended.shape[1]);
    bind_wanted(l, at, gather);
    const tensor ids = lower_call(l, gather)->tensors[EMBEDDING_IDS];
    const tensor *out = &output->tensors[LINEAR_OUT];
    char *place = l->memory->data[PLAN_X_NORM];
    const tensor x = tensor_2d(place, DTYPE_F32, out->shape[0], out->shape[1]);
    const size_t bytes =
        round_up((size_t)(x.shape[0] * x.shape[1]) * sizeof(float), CUDA_ALIGNMENT);
    output->tensors[LINEAR_X] =
        tensor_2d(place + bytes, DTYPE_F32, x.shape[0], output->tensors[LINEAR_X].shape[1]);
    if (residual.rank) output->tensors[LINEAR_RESIDUAL] = x;
    const bool cut = last && last->left.cut_x.rank;
    if (cut || residual.rank) add_gather(l, at, cut, &ids, cut ? &last->left.cut_x : &residual, &x);
    add_gather(l, at, false, &ids, &attended, &output->tensors[LINEAR_X]);
}

/* ---- join ------------------------------------------------------------------------------------ */

/* Whether a call reads or writes x. */
static bool touches(const tensor *x, op_code op, const op_call *call)
{
    for (int t = 0; t < op_n_tensors(op_get(op)); t++)
        if (call->tensors[t].rank && call->tensors[t].data == x->data) return true;
    return false;
}

/* Fills a group that makes x whole. */
static void make_whole(lowering *l, const tensor *x, lowered_group *g)
{
    g->op = OP_EMBEDDING;
    g->call = l->n_calls++;
    g->kernel = &all_gather_cuda[0];
    g->cut = true;
    op_call *call = &l->calls[g->call];
    *call = (op_call){0};
    call->tensors[EMBEDDING_TABLE] = call->tensors[EMBEDDING_OUT] = *x;
}

void lower_join(lowering *l)
{
    lowered_group *g = &l->groups[l->n_groups - 1];
    if (!g->left.cut_x.rank || (g->fusion && g->fusion->sums) ||
        !touches(&g->left.cut_x, g->op, &l->calls[g->call]))
        return;
    const tensor x = g->left.cut_x;
    g->left.cut_x.rank = 0;
    g[1] = *g;
    *g = (lowered_group){.node = g->node, .continues = true};
    make_whole(l, &x, g);
    l->n_groups++;
}

void lower_join_at_end(lowering *l)
{
    const lowered_group *last = lower_last(l);
    if (!last || !last->left.cut_x.rank) return;
    const tensor x = last->left.cut_x;
    make_whole(l, &x, lower_add_group(l, &(lowered_node){.node = l->end}));
}
