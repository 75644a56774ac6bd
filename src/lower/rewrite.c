/* The engine of rules: see rewrite.h. */
#include "lower/rewrite.h"

#include "lower/draft.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rewriter {
    plan_builder *draft;
    const rewrite *rule;
    const char *name; /* the rule's */
    rewrite_log *log; /* NULL: none is wanted */
    bool *dead;       /* [draft->n_nodes]: removed by this rule */
    struct added {
        int at; /* before the node of this number */
        plan_node node;
    } * added; /* in the order of `at` */
    int n_added, added_capacity;
};

/* ---- values -------------------------------------------------------------------------------- */

static bool is_written(const plan_node *node, int t)
{
    return node->operands[t].kind == OPERAND_TENSOR &&
           op_writes(op_get(node->op)->tensors[t].direction);
}

static bool is_read(const plan_node *node, int t)
{
    return node->operands[t].kind == OPERAND_TENSOR &&
           op_reads(op_get(node->op)->tensors[t].direction);
}

/* Whether two operands share elements: of a cache in the same layer. */
static bool overlap(const plan_builder *b, const plan_node *a, int t, const plan_node *c, int u)
{
    const plan_operand *x = &a->operands[t], *y = &c->operands[u];
    if (x->kind != OPERAND_TENSOR || y->kind != OPERAND_TENSOR || x->id != y->id) return false;
    if (b->program->tensors[x->id].kind == PLAN_CACHE) return a->layer == c->layer;
    return x->columns == 0 || y->columns == 0 ||
           (x->first_column < y->first_column + y->columns &&
            y->first_column < x->first_column + x->columns);
}

static bool writes_of(const rewriter *w, int writer, int node, int t)
{
    const plan_node *a = &w->draft->nodes[writer], *b = &w->draft->nodes[node];
    for (int u = 0; u < op_n_tensors(op_get(a->op)); u++)
        if (is_written(a, u) && overlap(w->draft, a, u, b, t)) return true;
    return false;
}

/* The node that wrote what an operand reads; with nth = 1 the one before that; -1: none. */
static int writer_of(const rewriter *w, int node, int t, int nth)
{
    for (int n = node - 1; n >= 0; n--)
        if (!w->dead[n] && writes_of(w, n, node, t) && nth-- == 0) return n;
    return -1;
}

static bool is_matched(const match *m, int node)
{
    for (int k = 0; k < REWRITE_NODES; k++)
        if (m->node[k] == node) return true;
    return false;
}

/* A node outside the match that reads what node k wrote; -1: none. */
static int reader_outside(const match *m, int k)
{
    const plan_builder *b = m->draft;
    const int from = m->node[k];
    for (int t = 0; t < op_n_tensors(op_get(b->nodes[from].op)); t++) {
        if (!is_written(&b->nodes[from], t)) continue;
        bool over = false;
        for (int n = from + 1; n < b->n_nodes && !over; n++) {
            const plan_node *node = &b->nodes[n];
            if (m->of->dead[n]) continue;
            for (int u = 0; u < op_n_tensors(op_get(node->op)); u++) {
                if (!overlap(b, &b->nodes[from], t, node, u)) continue;
                if (is_read(node, u) && !is_matched(m, n)) return n;
                over |= is_written(node, u);
            }
        }
    }
    return -1;
}

/* ---- matching ------------------------------------------------------------------------------ */

/* Whether the pattern has a node k. */
static bool has(const rewrite *rule, int k)
{
    return k < REWRITE_NODES && (k == 0 || rule->of[k].operand);
}

static int find_nearest(const match *m, const pattern *p)
{
    int n = m->node[p->from] - 1;
    while (n >= 0 && (m->of->dead[n] || m->draft->nodes[n].op != p->op))
        n--;
    return n;
}

static int find(const match *m, const pattern *p)
{
    if (p->nearest) return find_nearest(m, p);
    int from = p->from, t = -1;
    for (;; from = m->of->rule->of[from].from) {
        if (m->node[from] >= 0)
            t = op_tensor_index(op_get(m->draft->nodes[m->node[from]].op), p->operand);
        if (t >= 0 || from == 0) break;
    }
    const int n = t < 0 ? -1 : writer_of(m->of, m->node[from], t, p->nth);
    return n >= 0 && m->draft->nodes[n].op == p->op ? n : -1;
}

static bool match_at(rewriter *w, int node, match *m)
{
    *m = (match){.of = w, .draft = w->draft};
    for (int k = 0; k < REWRITE_NODES; k++)
        m->node[k] = -1;
    if (w->dead[node] || w->draft->nodes[node].op != w->rule->of[0].op) return false;
    m->node[0] = node;
    for (int k = 1; has(w->rule, k); k++) {
        m->node[k] = find(m, &w->rule->of[k]);
        if (m->node[k] < 0 && !w->rule->of[k].optional) return false;
    }
    return true;
}

static const char *label_of(const rewriter *w, int node, char label[64])
{
    return program_step_label(w->draft->program, w->draft->nodes[node].step, label, 64);
}

/* Notes why a match is not replaced. */
static void note(const rewriter *w, int node, const char *why)
{
    char label[64];
    if (w->log && *why) rewrite_log_add(w->log, w->name, label_of(w, node, label), why);
}

/* Counts a match that is replaced; false: no more are. */
static bool take(const rewriter *w, int node)
{
    program *p = w->draft->program;
    char label[64];
    if (p->options.rules_end && p->n_matches + 1 >= p->options.rules_end) return false;
    p->n_matches++;
    snprintf(p->last_rule, sizeof p->last_rule, "%s at %s", w->name, label_of(w, node, label));
    return true;
}

/* Whether no other node reads what the match no longer writes. */
static bool is_closed(const match *m)
{
    for (int k = 1; has(m->of->rule, k); k++) {
        const pattern *p = &m->of->rule->of[k];
        if (p->stays || m->node[k] < 0) continue;
        const int reader = reader_outside(m, k);
        char why[128];
        if (reader < 0) continue;
        snprintf(why, sizeof why, "%s also reads what %s writes",
                 m->draft->program->steps[m->draft->nodes[reader].step].name,
                 m->draft->program->steps[match_node(m, k)->step].name);
        note(m->of, m->node[0], why);
        return false;
    }
    return true;
}

/* ---- what rules are written with ------------------------------------------------------------ */

const plan_node *match_node(const match *m, int k)
{
    return m->node[k] < 0 ? NULL : &m->draft->nodes[m->node[k]];
}

const plan_operand *match_operand(const match *m, int k, const char *name)
{
    const plan_node *node = match_node(m, k);
    return &node->operands[op_tensor_index(op_get(node->op), name)];
}

bool match_feeds(const match *m, int writer, int k, const char *operand)
{
    const int t = op_tensor_index(op_get(match_node(m, k)->op), operand);
    return writer_of(m->of, m->node[k], t, 0) == m->node[writer];
}

plan_node match_begin(const match *m, int k, op_code op)
{
    const plan_node *like = match_node(m, k);
    plan_node node = {.op = op, .layer = like->layer, .step = like->step};
    for (int i = 0; i < op_n_params(op_get(op)); i++)
        node.params[i] = (float)op_get(op)->params[i].value;
    return node;
}

void match_take(const match *m, plan_node *to, const char *name, int k, const char *from)
{
    to->operands[op_tensor_index(op_get(to->op), name)] = *match_operand(m, k, from);
}

void match_take_params(const match *m, plan_node *to, int k)
{
    const op_info *into = op_get(to->op), *of = op_get(match_node(m, k)->op);
    for (int i = 0; i < op_n_params(of); i++) {
        const int index = op_param_index(into, of->params[i].name);
        if (index >= 0) to->params[index] = match_node(m, k)->params[i];
    }
}

void match_take_paging(const match *m, plan_node *to, int k)
{
    static const char *const names[] = {"qo_indptr",        "kv_indptr", "kv_indices",
                                        "kv_last_page_len", "k_cache",   "v_cache"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        match_take(m, to, names[i], k, names[i]);
}

void match_remove(match *m)
{
    for (int i = 0; has(m->of->rule, i); i++)
        if (m->node[i] >= 0 && !m->of->rule->of[i].stays) m->of->dead[m->node[i]] = true;
}

void match_put(match *m, int k, const plan_node *node)
{
    match_remove(m);
    m->draft->nodes[m->node[k]] = *node;
    m->of->dead[m->node[k]] = false;
}

static void add_at(rewriter *w, int at, const plan_node *node)
{
    if (w->n_added == w->added_capacity) {
        const int capacity = w->added_capacity ? 2 * w->added_capacity : 16;
        struct added *larger = realloc(w->added, (size_t)capacity * sizeof *larger);
        if (!larger) {
            w->draft->failed = true;
            return;
        }
        w->added = larger;
        w->added_capacity = capacity;
    }
    int i = w->n_added++;
    for (; i > 0 && w->added[i - 1].at > at; i--)
        w->added[i] = w->added[i - 1];
    w->added[i] = (struct added){at, *node};
}

void match_add_after(match *m, int k, const plan_node *node)
{
    add_at(m->of, m->node[k] + 1, node);
}

void match_join_steps(match *m, int from, int to)
{
    const int gone = match_node(m, from)->step, step = match_node(m, to)->step;
    for (int n = 0; n < m->draft->n_nodes; n++)
        if (m->draft->nodes[n].step == gone) m->draft->nodes[n].step = step;
}

void match_visit(const match *m, int k, int end, rewrite_visit *visit, void *context)
{
    const int last = end < 0 ? m->draft->n_nodes : m->node[end];
    for (int n = m->node[k] + 1; n < last; n++)
        if (!m->of->dead[n]) visit(context, &m->draft->nodes[n]);
}

int match_add_tensor(match *m, const char *name, const plan_tensor *like)
{
    program *p = m->draft->program;
    assert(p->n_tensors < PLAN_MAX_TENSORS); /* rules add a few, and each is taken once */
    p->tensors[p->n_tensors] = *like;
    p->tensors[p->n_tensors].name = name;
    return p->n_tensors++;
}

/* ---- a rule over the whole draft ------------------------------------------------------------ */

/* Writes the nodes that are left and those that were added, in order. */
static bool write_nodes(rewriter *w)
{
    plan_builder *b = w->draft;
    plan_node *nodes = malloc((size_t)(b->n_nodes + w->n_added + 1) * sizeof *nodes);
    int n = 0, a = 0;
    if (!nodes || b->failed) {
        free(nodes);
        return false;
    }
    for (int i = 0; i <= b->n_nodes; i++) {
        for (; a < w->n_added && w->added[a].at == i; a++)
            nodes[n++] = w->added[a].node;
        if (i < b->n_nodes && !w->dead[i]) nodes[n++] = b->nodes[i];
    }
    free(b->nodes);
    b->nodes = nodes;
    b->n_nodes = b->node_capacity = n;
    draft_group_steps(b);
    return true;
}

bool rewrite_draft(plan_builder *draft, const char *name, const rewrite *rule, rewrite_log *log,
                   int *count)
{
    rewriter w = {.draft = draft,
                  .rule = rule,
                  .name = name,
                  .log = log,
                  .dead = calloc((size_t)draft->n_nodes + 1, sizeof *w.dead)};
    *count = 0;
    for (int n = 0; w.dead && n < draft->n_nodes; n++) {
        match m;
        if (!match_at(&w, n, &m)) continue;
        const char *why = rule->refuses ? rule->refuses(&m) : NULL;
        if (why) note(&w, n, why);
        if (why || !is_closed(&m) || !take(&w, n)) continue;
        rule->replace(&m);
        ++*count;
    }
    const bool good = w.dead && (*count == 0 || write_nodes(&w));
    free(w.dead);
    free(w.added);
    return good;
}
