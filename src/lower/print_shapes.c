/* Shapes of a forward pass: see plan_print_shapes() in print.h. */
#include "lower/print.h"

#include "base/json.h"
#include "base/output.h"
#include "lower/lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A view as "[n_tokens, n_heads, head_dim]". */
static void symbolic_shape(const program_view *view, strbuf *out)
{
    strbuf_putc(out, '[');
    for (int d = 0; d < view->rank; d++)
        strbuf_printf(out, "%s%s", d ? ", " : "", view->symbols[d]);
    strbuf_putc(out, ']');
}

/* A tensor of the plan, whole: "[n_tokens, 2 * intermediate_size]". */
static void symbolic_tensor(const plan_tensor *t, strbuf *out)
{
    strbuf_putc(out, '[');
    for (int d = 0; d < t->rank; d++)
        strbuf_printf(out, "%s%s", d ? ", " : "", t->dims[d].symbol);
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
    const char *step, *op;
    const char *tensor; /* the plan's tensor that is written */
    const char *part;   /* which part or view of it; "" for all of it */
    strbuf symbolic, prefill, decode;
} shape_row;

typedef struct shape_printer {
    const program *program;
    program_sizes prefill, decode;
    bool json;
    int op_width, shape_width; /* of their columns */
    const char *step;          /* of the row before */
    strbuf *out;
    cJSON *rows;
} shape_printer;

/* "[n_tokens, 512]" as an array of names and numbers. */
static cJSON *shape_array(const char *text)
{
    cJSON *array = cJSON_CreateArray();
    for (const char *at = text + strspn(text, "[, "); *at && *at != ']'; at += strspn(at, ", ")) {
        char word[64];
        size_t length = strcspn(at, ",]");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        bool number = strspn(word, "0123456789") == length;
        cJSON_AddItemToArray(array, number ? cJSON_CreateNumber(strtod(word, NULL))
                                           : cJSON_CreateString(word));
        at += length;
    }
    return array;
}

static void print_row(shape_printer *s, shape_row *row)
{
    if (s->json) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "step", row->step);
        cJSON_AddStringToObject(item, "op", row->op);
        cJSON_AddStringToObject(item, "tensor", row->tensor);
        cJSON_AddStringToObject(item, "part", row->part);
        cJSON_AddItemToObject(item, "shape", shape_array(strbuf_text(&row->symbolic)));
        cJSON_AddItemToObject(item, "prefill", shape_array(strbuf_text(&row->prefill)));
        cJSON_AddItemToObject(item, "decode", shape_array(strbuf_text(&row->decode)));
        cJSON_AddItemToArray(s->rows, item);
    } else {
        strbuf_printf(s->out, "%-15s %-*s %-10s %-9s %-*s %-19s %s\n",
                      row->step == s->step ? "" : row->step, s->op_width, row->op, row->tensor,
                      row->part, s->shape_width, strbuf_text(&row->symbolic),
                      strbuf_text(&row->prefill), strbuf_text(&row->decode));
    }
    s->step = row->step;
    strbuf_free(&row->symbolic);
    strbuf_free(&row->prefill);
    strbuf_free(&row->decode);
}

static void fill_shapes(const shape_printer *s, int view, shape_row *row)
{
    symbolic_shape(&s->program->views[view], &row->symbolic);
    tensor of = program_bind_view(s->program, view, NULL, s->prefill.of);
    concrete_shape(&of, &row->prefill);
    of = program_bind_view(s->program, view, NULL, s->decode.of);
    concrete_shape(&of, &row->decode);
}

static void whole_shape(const plan_tensor *t, const program_sizes *sizes, strbuf *out)
{
    tensor of = {.rank = t->rank};
    for (int d = 0; d < t->rank; d++)
        of.shape[d] = t->dims[d].size < 0 ? sizes->of[-t->dims[d].size] : t->dims[d].size;
    concrete_shape(&of, out);
}

/* What the part of a tensor that a node writes is called: by the weight that it comes from, where
 * there is one, else by the operator. */
static const char *part_name(const program *p, int node, int index)
{
    const op_info *op = op_get(p->nodes[node].op);
    const char *name = NULL;
    int n_weights = 0;
    if (program_operand(p, node, index)->columns == 0) return "";
    for (int i = 0; i < op_n_tensors(op); i++) {
        const program_weight *weight = program_weight_of(p, node, i);
        if (!weight || weight->bias) continue;
        name = weight_get_info((weight_slot)weight->slot)->name;
        n_weights++;
    }
    return n_weights == 1 ? name : op->tensors[index].name;
}

static bool is_output(const program *p, int node, int index)
{
    return op_get(p->nodes[node].op)->tensors[index].direction != OP_IN &&
           program_tensor_of(p, node, index) >= 0;
}

/* What one node writes. */
static void print_node(shape_printer *s, int node)
{
    const program *p = s->program;
    const op_info *op = op_get(p->nodes[node].op);
    for (int i = 0; i < op_n_tensors(op); i++) {
        if (!is_output(p, node, i)) continue;
        shape_row row = {.step = p->nodes[node].name,
                         .op = op->name,
                         .tensor = p->tensors[program_tensor_of(p, node, i)].name,
                         .part = part_name(p, node, i)};
        fill_shapes(s, p->nodes[node].operands[i], &row);
        print_row(s, &row);
    }
}

/* The tensor that several nodes of a step write the parts of, as a whole. */
static void print_whole(shape_printer *s, const program_step *step)
{
    const program *p = s->program;
    const int first = step->first_node;
    if (step->n_nodes < 2 || p->nodes[first].op != OP_LINEAR) return;
    for (int i = 0; i < op_n_tensors(op_get(p->nodes[first].op)); i++) {
        if (!is_output(p, first, i)) continue;
        const plan_tensor *whole = &p->tensors[program_tensor_of(p, first, i)];
        shape_row row = {.step = step->name, .op = "", .tensor = whole->name, .part = ""};
        symbolic_tensor(whole, &row.symbolic);
        whole_shape(whole, &s->prefill, &row.prefill);
        whole_shape(whole, &s->decode, &row.decode);
        print_row(s, &row);
    }
}

/* A layer that has the steps of all. */
static int64_t fullest_layer(const program *p)
{
    for (int64_t layer = 0; layer < p->config.n_layers; layer++)
        if (!layer_set_has(&p->config.no_rope, layer)) return layer;
    return 0;
}

static void print_count_of_layers(const model_config *c, strbuf *out)
{
    const int64_t without = layer_set_count(&c->no_rope, c->n_layers);
    strbuf_printf(out, "--- each of %lld layers", (long long)c->n_layers);
    if (without) strbuf_printf(out, ", %lld of them without rope", (long long)without);
    strbuf_putc(out, '\n');
}

static void print_steps(shape_printer *s)
{
    const program *p = s->program;
    const int64_t shown = fullest_layer(p);
    for (int i = 0; i < p->n_steps; i++) {
        const program_step *step = &p->steps[i];
        if (step->layer >= 0 && step->layer != shown) continue;
        bool first_of_layers = step->layer == shown && (i == 0 || p->steps[i - 1].layer != shown);
        if (first_of_layers && !s->json) print_count_of_layers(&p->config, s->out);
        if (step->layer < 0 && i > 0 && p->steps[i - 1].layer >= 0 && !s->json)
            strbuf_puts(s->out, "--- after the layers\n");
        print_whole(s, step);
        for (int n = 0; n < step->n_nodes; n++)
            print_node(s, step->first_node + n);
    }
}

static void print_legend(const shape_printer *s, strbuf *out)
{
    const program *p = s->program;
    const model_config *c = &p->config;
    const long long heads = c->n_heads, kv_heads = c->n_kv_heads, dim = c->head_dim;
    const long long tokens = s->prefill.of[AXIS_TOKENS], batch = s->decode.of[AXIS_SEQUENCES];
    strbuf_printf(out,
                  "\nn_tokens           %lld in prefill of one sequence; in decode one for each of "
                  "n_sequences = %lld\n"
                  "n_outputs          rows whose logits are wanted: the last of each sequence\n"
                  "q_hidden_units     n_heads * head_dim = %lld * %lld = %lld\n"
                  "kv_hidden_units    n_kv_heads * head_dim = %lld * %lld = %lld\n"
                  "qkv_hidden_units   (n_heads + 2 * n_kv_heads) * head_dim = %lld\n",
                  tokens, batch, heads, dim, heads * dim, kv_heads, dim, kv_heads * dim,
                  (heads + 2 * kv_heads) * dim);
    if (p->options.form == PLAN_FLASHINFER)
        strbuf_puts(out, "n_prefill_tokens   n_tokens if a sequence has several, else none; "
                         "n_decode_tokens the reverse\n");
    if (p->options.form == PLAN_PADDED)
        strbuf_puts(out, "max_q_len          new tokens of the longest sequence, to whose length "
                         "the others are padded\n"
                         "max_kv_len         cached and new tokens of the longest sequence\n");
    strbuf_printf(out,
                  "n_pages            of the KV cache, for a context of %lld in pages of %lld\n",
                  (long long)p->options.context, (long long)p->options.page_size);
}

/* `length`: positions of the longest sequence, with the new ones. */
static program_sizes sizes_of(const program *p, int64_t tokens, int64_t sequences, int64_t length)
{
    program_sizes sizes = p->capacity;
    sizes.of[AXIS_TOKENS] = tokens;
    sizes.of[AXIS_SEQUENCES] = sequences;
    program_set_outputs(sizes.of, sequences);
    sizes.of[AXIS_SEQUENCE_ENDS] = sequences + 1;
    sizes.of[AXIS_LONGEST_Q] = tokens / sequences;
    sizes.of[AXIS_LONGEST_KV] = length;
    program_set_phase(&sizes);
    return sizes;
}

static qp_status print_plan(const program *p, int64_t tokens, int64_t batch, bool json, strbuf *out,
                            qp_error *error)
{
    shape_printer s = {.program = p,
                       .prefill = sizes_of(p, tokens, 1, tokens),
                       .decode = sizes_of(p, batch, batch, tokens + 1),
                       .json = json,
                       .op_width = p->options.form == PLAN_PADDED ? 21 : 17,
                       .shape_width = p->options.form == PLAN_PADDED ? 53 : 43,
                       .out = out};
    if (json) s.rows = cJSON_CreateArray();
    if (!json)
        strbuf_printf(out, "%-15s %-*s %-10s %-9s %-*s %-19s %s\n", "step", s.op_width, "operator",
                      "writes", "part", s.shape_width, "shape", "prefill", "decode");
    print_steps(&s);
    if (!json) print_legend(&s, out);
    return json ? output_json(s.rows, out, error) : output_done(out, error);
}

qp_status plan_print_shapes(const shapes_print_options *o, strbuf *out, qp_error *error)
{
    model *model;
    model_options sizes_only = {.sizes_only = true, .config_is_enough = true};
    TRY(model_open(o->model, &sizes_only, &model, error));
    plan_options options = plan_default_options(model_get_config(model));
    options.max_tokens = o->tokens > o->batch ? o->tokens : o->batch;
    options.max_sequences = options.max_outputs = o->batch;
    if (o->act_type) options.act_type = dtype_from_name(o->act_type);
    options.form = o->form;
    options.fuse = o->fuse;
    options.sums = o->sums;
    options.kv_partitions = o->kv_partitions;
    program p = {0};
    qp_status status = lower_parse_rules(o->rules, &options, error);
    if (status == QP_OK) status = lower_build(model_get_config(model), model, &options, &p, error);
    if (status == QP_OK) status = print_plan(&p, o->tokens, o->batch, o->json, out, error);
    program_free(&p);
    model_close(model);
    return status;
}
