/* Lists what is compared: the outputs of every node, as they are after its step. */
#include "inspect/diff/diff_compare.h"

#include <stdio.h>
#include <stdlib.h>

static bool overlap(const program_view *a, const program_view *b)
{
    if (a->columns == 0 || b->columns == 0) return true;
    return a->first_column < b->first_column + b->columns &&
           b->first_column < a->first_column + a->columns;
}

/* Whether an operand is an output that no later node of its step overwrites. */
static bool is_left(const program *p, int step, int n, int operand)
{
    const int id = program_tensor_of(p, n, operand);
    const program_view *it = program_operand(p, n, operand);
    if (op_get(p->nodes[n].op)->tensors[operand].direction == OP_IN) return false;
    if (id < 0 || p->tensors[id].kind == PLAN_INPUT) return false;
    for (int m = n + 1; m < p->steps[step].first_node + p->steps[step].n_nodes; m++) {
        const op_info *op = op_get(p->nodes[m].op);
        for (int i = 0; i < op_n_tensors(op); i++) {
            if (op->tensors[i].direction != OP_IN && program_tensor_of(p, m, i) == id &&
                overlap(it, program_operand(p, m, i)))
                return false;
        }
    }
    return true;
}

void diff_list_rows(const program *p, const machine *a, const machine *b,
                    const diff_request *request, diff_report *report)
{
    report->rows = calloc((size_t)p->n_nodes * OP_MAX_TENSORS, sizeof *report->rows);
    for (int s = request->first; s < request->last && report->rows; s++) {
        const program_step *step = &p->steps[s];
        for (int n = step->first_node; n < step->first_node + step->n_nodes; n++) {
            machine_kernel of_a = machine_kernel_of(a, n);
            machine_kernel of_b = machine_kernel_of(b, n);
            bool same = diff_same_kernel(&of_a, &of_b);
            bool rounds = diff_rounding(&of_a) != diff_rounding(&of_b);
            for (int i = 0; i < op_n_tensors(op_get(p->nodes[n].op)); i++) {
                plan_tensor_id id = (plan_tensor_id)program_tensor_of(p, n, i);
                if (is_left(p, s, n, i) && machine_keeps(b, id))
                    report->rows[report->n_rows++] = (diff_row){
                        .step = s, .node = n, .operand = i, .same_kernel = same, .rounds = rounds};
            }
        }
    }
}

void diff_report_free(diff_report *report)
{
    free(report->rows);
    *report = (diff_report){0};
}

const char *diff_row_name(const program *p, const diff_row *row, char *text, size_t size)
{
    const program_view *operand = program_operand(p, row->node, row->operand);
    const char *name = program_area_of(p, row->node, row->operand)->name;
    if (operand->columns == 0)
        snprintf(text, size, "%s", name);
    else
        snprintf(text, size, "%s[%lld:%lld]", name, (long long)operand->first_column,
                 (long long)(operand->first_column + operand->columns));
    return text;
}
