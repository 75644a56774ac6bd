/* Shapes of a forward pass: see plan_print_shapes() in print.h. */
#include "plan/print.h"

#include "base/json.h"
#include "plan/plan.h"

#include <stdlib.h>

/* A node's operand as "[n_tokens, n_heads, head_dim]". */
static void symbolic_shape(const plan *p, const plan_operand *operand, strbuf *out)
{
    const plan_tensor *t = &p->tensors[operand->id];
    strbuf_putc(out, '[');
    for (int d = 0; d < t->rank; d++) {
        bool part = d == t->rank - 1 && operand->columns;
        strbuf_printf(out, "%s%s", d ? ", " : "", part ? operand->symbols[0] : t->dims[d].symbol);
        if (part && operand->symbols[1]) strbuf_printf(out, ", %s", operand->symbols[1]);
    }
    strbuf_putc(out, ']');
}

static void concrete_shape(const tensor *view, strbuf *out)
{
    strbuf_putc(out, '[');
    for (int d = 0; d < view->rank; d++)
        strbuf_printf(out, "%s%lld", d ? ", " : "", (long long)view->shape[d]);
    strbuf_putc(out, ']');
}

typedef struct shape_row {
    const char *step, *op, *operand;
    strbuf symbolic, prefill, decode;
} shape_row;

typedef struct shape_printer {
    const plan *plan;
    plan_sizes prefill, decode;
    bool json;
    strbuf *out;
    cJSON *rows;
} shape_printer;

static void print_row(shape_printer *s, const shape_row *row)
{
    if (!s->json) {
        strbuf_printf(s->out, "%-15s %-14s %-8s %-40s %-24s %s\n", row->step, row->op, row->operand,
                      strbuf_text(&row->symbolic), strbuf_text(&row->prefill),
                      strbuf_text(&row->decode));
        return;
    }
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "step", row->step);
    cJSON_AddStringToObject(item, "op", row->op);
    cJSON_AddStringToObject(item, "tensor", row->operand);
    cJSON_AddStringToObject(item, "shape", strbuf_text(&row->symbolic));
    cJSON_AddStringToObject(item, "prefill", strbuf_text(&row->prefill));
    cJSON_AddStringToObject(item, "decode", strbuf_text(&row->decode));
    cJSON_AddItemToArray(s->rows, item);
}

/* What one node writes. */
static void print_node(shape_printer *s, const char *step, const plan_node *node)
{
    static const plan_memory nowhere;
    const op_info *op = op_get(node->op);
    for (int i = 0; i < op_n_tensors(op); i++) {
        if (op->tensors[i].direction == OP_IN || node->operands[i].kind != OPERAND_TENSOR) continue;
        shape_row row = {.step = step, .op = op->name, .operand = op->tensors[i].name};
        symbolic_shape(s->plan, &node->operands[i], &row.symbolic);
        tensor view = plan_bind_operand(s->plan, node, i, &nowhere, &s->prefill);
        concrete_shape(&view, &row.prefill);
        view = plan_bind_operand(s->plan, node, i, &nowhere, &s->decode);
        concrete_shape(&view, &row.decode);
        print_row(s, &row);
        strbuf_free(&row.symbolic);
        strbuf_free(&row.prefill);
        strbuf_free(&row.decode);
    }
}

static void print_steps(shape_printer *s)
{
    const plan *p = s->plan;
    for (int i = 0; i < p->n_steps; i++) {
        const plan_step *step = &p->steps[i];
        if (step->layer > 0) continue; /* all layers are alike */
        bool first_of_layers = step->layer == 0 && (i == 0 || p->steps[i - 1].layer < 0);
        if (first_of_layers && !s->json)
            strbuf_printf(s->out, "each of %lld layers:\n", (long long)p->config.n_layers);
        if (step->layer < 0 && i > 0 && p->steps[i - 1].layer >= 0 && !s->json)
            strbuf_puts(s->out, "after the layers:\n");
        for (int n = 0; n < step->n_nodes; n++)
            print_node(s, step->name, &p->nodes[step->first_node + n]);
    }
}

static plan_sizes sizes_of(const plan *p, int64_t tokens, int64_t sequences)
{
    plan_sizes sizes = p->capacity;
    sizes.of[-PLAN_TOKENS] = tokens;
    sizes.of[-PLAN_SEQUENCES] = sizes.of[-PLAN_OUTPUTS] = sequences;
    sizes.of[-PLAN_SEQUENCE_ENDS] = sequences + 1;
    return sizes;
}

static qp_status print_plan(const plan *p, int64_t tokens, int64_t batch, bool json, strbuf *out,
                            qp_error *error)
{
    shape_printer s = {.plan = p,
                       .prefill = sizes_of(p, tokens, 1),
                       .decode = sizes_of(p, batch, batch),
                       .json = json,
                       .out = out};
    if (json) s.rows = cJSON_CreateArray();
    if (!json)
        strbuf_printf(out, "%-15s %-14s %-8s %-40s %-24s %s\n", "step", "operator", "writes",
                      "shape", "prefill", "decode");
    print_steps(&s);
    if (json) {
        char *text = cJSON_Print(s.rows);
        cJSON_Delete(s.rows);
        if (!text) return error_no_memory(error, "the shapes", 0);
        strbuf_printf(out, "%s\n", text);
        free(text);
    }
    return out->failed ? error_no_memory(error, "the shapes", out->length) : QP_OK;
}

qp_status plan_print_shapes(const char *path, int64_t tokens, int64_t batch, bool json, strbuf *out,
                            qp_error *error)
{
    model *model;
    model_options sizes_only = {.sizes_only = true};
    TRY(model_open(path, &sizes_only, &model, error));
    plan_options options = plan_default_options(model_get_config(model));
    options.max_tokens = tokens > batch ? tokens : batch;
    options.max_sequences = options.max_outputs = batch;
    plan p;
    qp_status status = plan_build(model_get_config(model), &options, &p, error);
    if (status == QP_OK) status = print_plan(&p, tokens, batch, json, out, error);
    plan_free(&p);
    model_close(model);
    return status;
}
