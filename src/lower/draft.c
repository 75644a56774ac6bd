/* Steps and tensors of a draft: see draft.h. */
#include "lower/draft.h"

#include "op/exchange.h"

#include <stdio.h>
#include <string.h>

/* ---- the log ------------------------------------------------------------------------------- */

void rewrite_log_end(rewrite_log *log)
{
    if (log->count == 0) return;
    strbuf_printf(log->out, "%-13s not at %s", log->last_rule, log->first);
    if (log->count > 1) strbuf_printf(log->out, " to %s, %d times", log->latest, log->count);
    strbuf_printf(log->out, ": %s\n", log->last_why);
    log->count = 0;
}

void rewrite_log_add(rewrite_log *log, const char *rule, const char *label, const char *why)
{
    if (strcmp(log->last_rule, rule) != 0 || strcmp(log->last_why, why) != 0) {
        rewrite_log_end(log);
        snprintf(log->last_rule, sizeof log->last_rule, "%s", rule);
        snprintf(log->last_why, sizeof log->last_why, "%s", why);
        snprintf(log->first, sizeof log->first, "%s", label);
    }
    snprintf(log->latest, sizeof log->latest, "%s", label);
    log->count++;
}

/* ---- steps --------------------------------------------------------------------------------- */

/* Several kernels, or an exchange, are a graph. A step that no rule changed stays what it is. */
static bool is_graph(const plan_builder *b, const program_step *before, int first, int n)
{
    if (n == before->n_nodes) return before->graph;
    return n > 1 || op_exchanges(b->nodes[first].op);
}

void draft_group_steps(plan_builder *b)
{
    program *p = b->program;
    int node = 0, kept = 0;
    for (int s = 0; s < p->n_steps; s++) {
        program_step step = p->steps[s];
        const int first = node;
        while (node < b->n_nodes && b->nodes[node].step == s)
            b->nodes[node++].step = kept;
        if (node == first && step.n_nodes > 0) continue;
        step.graph = is_graph(b, &step, first, node - first);
        step.first_node = first;
        step.n_nodes = node - first;
        p->steps[kept++] = step;
    }
    p->n_steps = kept;
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* Visits the operands that see a tensor. */
typedef void visit_operand(void *context, const op_tensor *about, plan_operand *operand);

static void visit(plan_builder *b, int id, visit_operand *with, void *context)
{
    for (int n = 0; n < b->n_nodes; n++) {
        plan_node *node = &b->nodes[n];
        for (int t = 0; t < op_n_tensors(op_get(node->op)); t++)
            if (node->operands[t].kind == OPERAND_TENSOR && node->operands[t].id == id)
                with(context, &op_get(node->op)->tensors[t], &node->operands[t]);
    }
}

typedef struct extent {
    bool used, whole; /* whether any node sees it, and all of its columns */
    int64_t end;      /* else the last column that any sees */
} extent;

static void measure(void *context, const op_tensor *about, plan_operand *operand)
{
    (void)about;
    extent *e = context;
    const int64_t end = operand->first_column + operand->columns;
    e->used = true;
    e->whole |= operand->columns == 0;
    if (end > e->end) e->end = end;
}

/* What writes the columns that are left writes the whole tensor. */
static void widen(void *context, const op_tensor *about, plan_operand *operand)
{
    const extent *e = context;
    if (about->direction != OP_OUT || operand->heads || operand->columns != e->end) return;
    operand->columns = 0;
    operand->symbols[0] = NULL;
}

/* What the first columns of a tensor are called, where those after them are not always used. */
static bool name_columns(int id, plan_dim *dim)
{
    if (id == PLAN_ATTN) *dim = (plan_dim){"q_hidden_units", "nh dh", dim->size};
    if (id == PLAN_FFN) *dim = (plan_dim){"intermediate_size", "di", dim->size};
    return id == PLAN_ATTN || id == PLAN_FFN;
}

void draft_trim_tensors(plan_builder *b)
{
    for (int id = 0; id < b->program->n_tensors; id++) {
        plan_tensor *t = &b->program->tensors[id];
        extent e = {0};
        if (t->kind != PLAN_ACTIVATION && t->kind != PLAN_OUTPUT) continue;
        visit(b, id, measure, &e);
        plan_dim *last = &t->dims[t->rank - 1];
        if (!e.used) *t = (plan_tensor){.kind = PLAN_ABSENT};
        if (!e.used || e.whole || e.end >= last->size || !name_columns(id, last)) continue;
        last->size = e.end;
        visit(b, id, widen, &e);
    }
}
