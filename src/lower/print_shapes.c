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
    int64_t layer;             /* of the rows; -1: none */
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
        cJSON_AddNumberToObject(item, "layer", (double)s->layer);
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

static void print_step(shape_printer *s, int index)
{
    const program_step *step = &s->program->steps[index];
    s->layer = step->layer;
    print_whole(s, step);
    for (int n = 0; n < step->n_nodes; n++)
        print_node(s, step->first_node + n);
}

/* One past the last step of the layer that begins at step `first`. */
static int end_of_layer(const program *p, int first)
{
    int end = first;
    while (end < p->n_steps && p->steps[end].layer == p->steps[first].layer)
        end++;
    return end;
}

/* Whether two steps of layers have the same name and operators, which write the same parts. */
static bool same_step(const program *p, const program_step *a, const program_step *b)
{
    if (strcmp(a->name, b->name) != 0 || a->n_nodes != b->n_nodes) return false;
    for (int n = 0; n < a->n_nodes; n++) {
        const int x = a->first_node + n, y = b->first_node + n;
        if (p->nodes[x].op != p->nodes[y].op) return false;
        for (int i = 0; i < op_n_tensors(op_get(p->nodes[x].op)); i++)
            if (program_tensor_of(p, x, i) != program_tensor_of(p, y, i)) return false;
    }
    return true;
}

static bool same_layer(const program *p, int a, int b)
{
    const int count = end_of_layer(p, a) - a;
    if (end_of_layer(p, b) - b != count) return false;
    for (int i = 0; i < count; i++)
        if (!same_step(p, &p->steps[a + i], &p->steps[b + i])) return false;
    return true;
}

/* The first step of the layer after the one at `first`; the end of the layers: -1. */
static int next_layer(const program *p, int first)
{
    const int end = end_of_layer(p, first);
    return end < p->n_steps && p->steps[end].layer >= 0 ? end : -1;
}

/* Whether a layer before the one at step `first`, the layers beginning at `begin`, is alike. */
static bool printed_before(const program *p, int begin, int first)
{
    for (int at = begin; at != first; at = next_layer(p, at))
        if (same_layer(p, at, first)) return true;
    return false;
}

/* "layer 0", "each of 32 layers", "each of the layers 1 to 31". */
static void print_which_layers(const shape_printer *s, int begin, int first)
{
    const program *p = s->program;
    layer_set alike = {0};
    for (int at = begin; at >= 0; at = next_layer(p, at))
        if (same_layer(p, first, at)) layer_set_add(&alike, p->steps[at].layer);
    const int64_t count = layer_set_count(&alike, p->config.n_layers);
    if (count == 1) {
        strbuf_printf(s->out, "--- layer %lld\n", (long long)p->steps[first].layer);
    } else if (count == p->config.n_layers) {
        strbuf_printf(s->out, "--- each of %lld layers\n", (long long)count);
    } else {
        strbuf_puts(s->out, "--- each of the layers ");
        layer_set_print(&alike, p->config.n_layers, s->out);
        strbuf_putc(s->out, '\n');
    }
}

/* Layers that are alike are printed once. */
static void print_layers(shape_printer *s, int begin)
{
    const program *p = s->program;
    for (int first = begin; first >= 0; first = next_layer(p, first)) {
        if (printed_before(p, begin, first)) continue;
        if (!s->json) print_which_layers(s, begin, first);
        for (int i = first; i < end_of_layer(p, first); i++)
            print_step(s, i);
    }
}

static void print_steps(shape_printer *s)
{
    const program *p = s->program;
    for (int i = 0; i < p->n_steps; i++) {
        const bool first = i == 0 || p->steps[i - 1].layer < 0;
        if (p->steps[i].layer >= 0) {
            if (first) print_layers(s, i);
            continue;
        }
        if (!first && !s->json) strbuf_puts(s->out, "--- after the layers\n");
        print_step(s, i);
    }
}

static void print_legend(const shape_printer *s, strbuf *out)
{
    const program *p = s->program;
    const model_config *c = &p->config;
    const long long heads = c->n_heads, kv_heads = c->n_kv_heads, dim = c->head_dim;
    const long long tokens = s->prefill.of[AXIS_TOKENS], batch = s->decode.of[AXIS_SEQUENCES];
    const long long prompts = s->prefill.of[AXIS_SEQUENCES];
    strbuf_printf(out, "\nn_tokens           %lld in prefill of ", tokens);
    if (prompts == 1)
        strbuf_puts(out, "one sequence");
    else
        strbuf_printf(out, "%lld sequences of %lld each", prompts, tokens / prompts);
    strbuf_printf(out,
                  "; in decode one for each of n_sequences = %lld\n"
                  "n_outputs          rows whose logits are wanted: the last of each sequence\n"
                  "q_hidden_units     n_heads * head_dim = %lld * %lld = %lld\n"
                  "kv_hidden_units    n_kv_heads * head_dim = %lld * %lld = %lld\n"
                  "qkv_hidden_units   (n_heads + 2 * n_kv_heads) * head_dim = %lld\n",
                  batch, heads, dim, heads * dim, kv_heads, dim, kv_heads * dim,
                  (heads + 2 * kv_heads) * dim);
    if (p->options.form == PLAN_FLASHINFER)
        strbuf_puts(out, "n_prefill_tokens   n_tokens if a sequence has several, else none; "
                         "n_decode_tokens the reverse\n");
    if (p->options.form == PLAN_PADDED)
        strbuf_puts(out, "max_q_len          new tokens of the longest sequence, to whose length "
                         "the others are padded\n"
                         "max_kv_len         cached and new tokens of the longest sequence\n"
                         "padded_q           heads before positions, so that the products of "
                         "attention read one matrix a head; engines that keep [bs, max_q_len, "
                         "n_heads, head_dim] exchange the two\n");
    if (!p->options.fuse && !p->options.sums && !c->n_experts)
        strbuf_puts(out, "ffn                gate beside up, [n_tokens, 2 * intermediate_size], as "
                         "FlashInfer's silu_and_mul reads it; engines that keep [2, n_tokens, "
                         "intermediate_size] have the same numbers\n");
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

/* A rectangle of prompts is what `padded` is for; the others show one. */
static int64_t prompts_of(plan_form form, int64_t batch)
{
    return form == PLAN_PADDED ? batch : 1;
}

static qp_status print_plan(const program *p, int64_t tokens, int64_t batch, bool json, strbuf *out,
                            qp_error *error)
{
    const int64_t prompts = prompts_of(p->options.form, batch), most = p->options.context;
    const int64_t length = tokens < most ? tokens + 1 : most; /* with the token that is decoded */
    shape_printer s = {.program = p,
                       .prefill = sizes_of(p, tokens * prompts, prompts, tokens),
                       .decode = sizes_of(p, batch, batch, length),
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
    int64_t tokens = o->tokens;
    qp_status status = plan_print_tokens(&tokens, options.context, 1, error);
    const int64_t prompts = prompts_of(o->form, o->batch), all = tokens * prompts;
    options.max_tokens = all > o->batch ? all : o->batch;
    options.max_sequences = options.max_outputs = o->batch;
    if (o->act_type) options.act_type = dtype_from_name(o->act_type);
    options.form = o->form;
    options.fuse = o->fuse;
    options.sums = o->sums;
    options.kv_partitions = o->kv_partitions;
    program p = {0};
    if (status == QP_OK) status = lower_parse_rules(o->rules, &options, error);
    if (status == QP_OK) status = lower_build(model_get_config(model), model, &options, &p, error);
    if (status == QP_OK) status = print_plan(&p, tokens, o->batch, o->json, out, error);
    program_free(&p);
    model_close(model);
    return status;
}
