/* Proof that the schedules of several ranks fit together: see verify.h. */
#include "op/exchange.h"
#include "schedule/verifier.h"
#include "schedule/verify.h"

/* The next node from `node` on that exchanges rows; n_nodes: none. */
static int next_exchange(const schedule *s, int node)
{
    while (node < s->n_nodes &&
           (!op_exchanges(s->program->nodes[node].op) || program_is_noop(s->program, node)))
        node++;
    return node;
}

qp_status verifier_check_exchanges(const verifier *v)
{
    int32_t last = -1;
    for (int node = next_exchange(v->s, 0); node < v->s->n_nodes;
         node = next_exchange(v->s, node + 1)) {
        const int32_t index = v->by_node[v->node_first[node]];
        const instruction *in = verifier_at(v, index);
        if (v->node_first[node + 1] - v->node_first[node] != 1 ||
            in->tokens.end != INSTRUCTION_ALL_TOKENS)
            return verifier_refuse(v, index, "an exchange between ranks is cut");
        if (last >= 0 && !verifier_is_before(v, last, index))
            return verifier_refuse(v, index,
                                   "it may begin before an earlier exchange between ranks");
        last = index;
    }
    return QP_OK;
}

/* Columns that all ranks have after an exchange. */
static int64_t columns_of(const program *p, int node)
{
    const op_info *op = op_get(p->nodes[node].op);
    const program_view *out = program_operand(p, node, op_n_tensors(op) - 1);
    return out->shape[out->rank - 1];
}

static qp_status compare_exchanges(const schedule *first, const schedule *other, int rank,
                                   qp_error *error)
{
    int a = next_exchange(first, 0), b = next_exchange(other, 0);
    for (int number = 0; a < first->n_nodes || b < other->n_nodes; number++) {
        const program_node *x = &first->program->nodes[a], *y = &other->program->nodes[b];
        if (a == first->n_nodes || b == other->n_nodes || x->op != y->op || x->layer != y->layer ||
            x->row_axis != y->row_axis ||
            columns_of(first->program, a) != columns_of(other->program, b))
            return error_set(error, QP_INVALID,
                             "schedule: exchange %d of rank %d is not that of rank 0", number,
                             rank);
        a = next_exchange(first, a + 1);
        b = next_exchange(other, b + 1);
    }
    return QP_OK;
}

qp_status schedule_verify_ranks(const schedule *const *ranks, int n_ranks, qp_error *error)
{
    for (int r = 0; r < n_ranks; r++) {
        TRY(schedule_verify(ranks[r], error));
        TRY(compare_exchanges(ranks[0], ranks[r], r, error));
    }
    return QP_OK;
}
