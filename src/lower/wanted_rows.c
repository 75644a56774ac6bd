/* The rows of a pass that its end works on.
 *
 *     attn_out  [n_wanted, q_hidden_units]   attention's output in the rows that are wanted
 *     x_out     [n_wanted, hidden_size]      the residual stream in these
 *     x_out_    [n_wanted, hidden_size]      normalised
 *     ffn_out   [n_wanted, 2 * intermediate_size]   and in the same way a mixture's tensors
 *
 * After the last layer's attention nothing reads rows whose logits (or hidden states) are not
 * wanted: their keys and values are in the cache. In a pass that reads a prompt those are nearly
 * all, so the wanted rows are gathered there, in place of after the layer.
 */
#include "lower/rewrite.h"

#include "op/linear_experts/linear_experts.h"

enum { WANTED_GATHER, WANTED_ATTEND };

bool lower_goes_by_rows(op_code op)
{
    return op == OP_LINEAR || op == OP_RMS_NORM || op == OP_SILU_AND_MUL || op == OP_ALL_REDUCE ||
           op == OP_GELU_AND_MUL || op == OP_ADD || op == OP_SCALE || op == OP_CENTER ||
           op == OP_ROUTE || op == OP_LINEAR_EXPERTS || op == OP_ATTENTION_SINKS;
}

bool lower_node_goes_by_rows(const program *p, int node)
{
    return lower_goes_by_rows(p->nodes[node].op) &&
           (p->nodes[node].op != OP_LINEAR_EXPERTS ||
            program_tensor_of(p, node, LINEAR_EXPERTS_IDS) != PLAN_ADAPTER_IDS);
}

/* What the nodes after attention are. */
typedef struct wanted_look {
    bool by_rows, adapted;
} wanted_look;

static void look(void *context, plan_node *node)
{
    wanted_look *found = context;
    found->by_rows &= lower_goes_by_rows(node->op);
    found->adapted |=
        node->op == OP_LINEAR_EXPERTS && node->operands[LINEAR_EXPERTS_IDS].id == PLAN_ADAPTER_IDS;
}

static const char *refuse_wanted(const match *m)
{
    const plan_options *o = &m->draft->program->options;
    wanted_look found = {.by_rows = true};
    if (match_operand(m, WANTED_GATHER, "ids")->id != PLAN_OUTPUT_ROWS) return "";
    match_visit(m, WANTED_ATTEND, WANTED_GATHER, look, &found);
    if (found.adapted) return "adapters are those of all rows";
    if (!found.by_rows) return "a step after the last attention does not go row by row";
    if (o->ranks > 1) return "ranks exchange all rows";
    if (o->sums) return "each value of the residual is a sum, in a place of its own";
    if (o->act_type != DTYPE_F32) return "activations are not in F32";
    return o->max_tokens <= o->max_outputs ? "a pass has no other rows" : NULL;
}

typedef struct tail {
    match *m;
    int twin[PLAN_MAX_TENSORS]; /* of a tensor, in the wanted rows; 0: not yet */
} tail;

/* The tensor in the wanted rows, with the columns that an operand sees. */
static int add_twin(tail *t, const plan_operand *of)
{
    static const char *const names[PLAN_NAMED] = {[PLAN_ATTN] = "attn_out",
                                                  [PLAN_X_NORM] = "x_out_",
                                                  [PLAN_FFN] = "ffn_out",
                                                  [PLAN_ROUTER_LOGITS] = "router_out",
                                                  [PLAN_EXPERT_IDS] = "experts_out",
                                                  [PLAN_EXPERT_SHARES] = "shares_out",
                                                  [PLAN_EXPERTS] = "ffn_out",
                                                  [PLAN_ATTN_SUMS] = "attn_sums_out"};
    if (of->id == PLAN_X) return PLAN_X_OUT;
    plan_tensor like = t->m->draft->program->tensors[of->id];
    like.dims[0] = (plan_dim){"n_wanted", "nw", -AXIS_WANTED};
    if (of->id == PLAN_ATTN) like.dims[1] = (plan_dim){of->symbols[0], "nh dh", of->columns};
    return match_add_tensor(t->m, names[of->id], &like);
}

/* Gathers what was written before the end of the pass. */
static void gather(tail *t, const plan_operand *from, int to)
{
    plan_node node = match_begin(t->m, WANTED_ATTEND, OP_EMBEDDING);
    plan_operand rows = *from;
    rows.heads = 0; /* whole rows, also of what is seen as heads */
    node.layer = -1;
    node_tensor(&node, "ids", PLAN_OUTPUT_ROWS);
    node_tensor(&node, "table", PLAN_X);
    node.operands[op_tensor_index(op_get(OP_EMBEDDING), "table")] =
        from->id == PLAN_X ? (plan_operand){.kind = OPERAND_TENSOR, .id = PLAN_X} : rows;
    node_tensor(&node, "out", (plan_tensor_id)to);
    match_add_after(t->m, WANTED_ATTEND, &node);
}

/* Lets a node work on the wanted rows. */
static void narrow(void *context, plan_node *node)
{
    tail *t = context;
    const op_info *op = op_get(node->op);
    for (int i = 0; i < op_n_tensors(op); i++) {
        plan_operand *operand = &node->operands[i];
        if (operand->kind != OPERAND_TENSOR) continue;
        int *twin = &t->twin[operand->id];
        if (!*twin) {
            *twin = add_twin(t, operand);
            if (op_reads(op->tensors[i].direction)) gather(t, operand, *twin);
        }
        operand->id = *twin;
    }
}

static void replace_wanted(match *m)
{
    tail t = {.m = m};
    match_visit(m, WANTED_ATTEND, WANTED_GATHER, narrow, &t);
    match_remove(m);
}

const rewrite rewrite_wanted_rows = {
    .summary = "the rows whose logits are wanted are gathered before the end of the last layer",
    .of = {{OP_EMBEDDING}, {OP_PAGED_PREFILL, "", WANTED_GATHER, .nearest = true, .stays = true}},
    .refuses = refuse_wanted,
    .replace = replace_wanted};
