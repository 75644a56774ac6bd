/* The lifetime table: see plan_print_lifetimes() in print.h. */
#include "lower/print.h"

#include "base/json.h"
#include "base/output.h"
#include "lower/lower.h"
#include "lower/print_ranks.h"
#include "plan/lifetime.h"
#include "plan/weights.h"

#include <stdlib.h>
#include <string.h>

/* All that is printed of one plan. */
typedef struct lifetime_view {
    const program *program;
    const program *ranks;   /* [options.ranks], of the same cut; NULL: one rank */
    const plan_cell *cells; /* [n_steps][n_tensors] */
    program_bytes bytes;
    int64_t largest_context;
    uint64_t available;
} lifetime_view;

static void shape_text(const plan_tensor *t, strbuf *out)
{
    strbuf_putc(out, '(');
    for (int d = 0; d < t->rank; d++)
        strbuf_printf(out, "%s%s", d ? ", " : "", t->dims[d].brief);
    strbuf_putc(out, ')');
}

/* A column: the tensors whose cells are the same in every step. Most columns have one. */
typedef struct column {
    int ids[PLAN_MAX_TENSORS], count;
    strbuf *lines; /* of its header, from top to bottom */
    int n_lines, width;
} column;

/* A part of the table that a screen can hold. */
typedef struct panel {
    const char *title;
    column columns[PLAN_MAX_TENSORS];
    int n_columns, n_lines; /* of the tallest header */
} panel;

static bool same_lifetime(const lifetime_view *v, int a, int b)
{
    if (v->program->tensors[a].kind != v->program->tensors[b].kind) return false;
    for (int step = 0; step < v->program->n_steps; step++) {
        const plan_cell *row = &v->cells[step * v->program->n_tensors];
        if (memcmp(&row[a], &row[b], sizeof *row) != 0) return false;
    }
    return true;
}

static void panel_add(const lifetime_view *v, panel *p, int id)
{
    column *last = p->n_columns ? &p->columns[p->n_columns - 1] : NULL;
    if (!last || !same_lifetime(v, last->ids[0], id)) last = &p->columns[p->n_columns++];
    last->ids[last->count++] = id;
}

/* Name, type and shape on lines of their own; type and shape on one line if several tensors share
 * the column. False if memory is out. */
static bool make_header(const program *program, column *c)
{
    bool alone = c->count == 1;
    c->n_lines = c->count * (alone ? 3 : 2);
    c->lines = calloc((size_t)c->n_lines, sizeof *c->lines);
    if (!c->lines) return false;
    for (int i = 0; i < c->count; i++) {
        const plan_tensor *t = &program->tensors[c->ids[i]];
        strbuf *line = &c->lines[2 * i];
        strbuf_puts(line, t->name);
        strbuf_puts(++line, dtype_name(t->type));
        if (alone)
            line++;
        else
            strbuf_putc(line, ' ');
        shape_text(t, line);
    }
    c->width = 3; /* the longest cell */
    for (int i = 0; i < c->n_lines; i++) {
        if ((int)c->lines[i].length > c->width) c->width = (int)c->lines[i].length;
    }
    return true;
}

static bool panel_finish(const lifetime_view *v, panel *p)
{
    for (int i = 0; i < p->n_columns; i++) {
        if (!make_header(v->program, &p->columns[i])) return false;
        if (p->columns[i].n_lines > p->n_lines) p->n_lines = p->columns[i].n_lines;
    }
    return true;
}

static void panel_free(panel *p)
{
    for (int i = 0; i < p->n_columns; i++) {
        for (int line = 0; p->columns[i].lines && line < p->columns[i].n_lines; line++)
            strbuf_free(&p->columns[i].lines[line]);
        free(p->columns[i].lines);
    }
}

/* One panel for tensors that flow from step to step, one for those that steps look things up in. */
static void fill_panels(const lifetime_view *v, panel panels[2])
{
    panels[0].title = "tokens, positions and activations";
    panels[1].title = "the cache, and what the host maps for paging and sampling";
    for (int id = 0; id < v->program->n_tensors; id++) {
        plan_kind kind = v->program->tensors[id].kind;
        if (kind == PLAN_ABSENT) continue;
        bool flows = kind == PLAN_ACTIVATION || kind == PLAN_OUTPUT || kind == PLAN_CARRIED ||
                     id == PLAN_TOKEN_IDS || id == PLAN_POSITION_IDS;
        panel_add(v, &panels[flows ? 0 : 1], id);
    }
}

/* Appends one line of a table: no spaces at its end. */
static void end_line(strbuf *out)
{
    while (out->length && out->data[out->length - 1] == ' ')
        out->data[--out->length] = '\0';
    strbuf_putc(out, '\n');
}

static void print_row(const lifetime_view *v, const panel *p, int step, strbuf *out)
{
    const program_step *s = &v->program->steps[step];
    strbuf_printf(out, "%-14s  %-6s", s->name, s->graph ? "graph" : "kernel");
    for (int i = 0; i < p->n_columns; i++) {
        char text[8];
        plan_cell_text(&v->cells[step * v->program->n_tensors + p->columns[i].ids[0]], text);
        strbuf_printf(out, " | %-*s", p->columns[i].width, text);
    }
    end_line(out);
}

/* The headers end on the same line. */
static void print_header(const panel *p, strbuf *out)
{
    strbuf_printf(out, "%s\n\n", p->title);
    for (int line = 0; line < p->n_lines; line++) {
        bool first = line == p->n_lines - 3;
        strbuf_printf(out, "%-14s  %-6s", first ? "step" : "", first ? "info" : "");
        for (int i = 0; i < p->n_columns; i++) {
            const column *c = &p->columns[i];
            int own = line - (p->n_lines - c->n_lines);
            strbuf_printf(out, " | %-*s", c->width, own >= 0 ? strbuf_text(&c->lines[own]) : "");
        }
        end_line(out);
    }
    for (int i = 0; i < 22; i++)
        strbuf_putc(out, '-');
    for (int i = 0; i < p->n_columns; i++) {
        strbuf_puts(out, "-+-");
        for (int n = 0; n < p->columns[i].width; n++)
            strbuf_putc(out, '-');
    }
    strbuf_putc(out, '\n');
}

/* Of the layer that begins at step `first`. */
static int steps_of_layer(const program *p, int first)
{
    int end = first;
    while (end < p->n_steps && p->steps[end].layer == p->steps[first].layer)
        end++;
    return end - first;
}

/* Whether the layer that begins at step `b` has the steps and rows of the layer at `a`. */
static bool same_layer(const lifetime_view *v, int a, int b, int count)
{
    const program *p = v->program;
    if (steps_of_layer(p, b) != count) return false;
    for (int i = 0; i < count; i++)
        if (strcmp(p->steps[a + i].name, p->steps[b + i].name) != 0) return false;
    const int n = v->program->n_tensors;
    size_t row = (size_t)n * sizeof *v->cells;
    return memcmp(&v->cells[a * n], &v->cells[b * n], row * (size_t)count) == 0;
}

/* Layers with equal rows are printed once. */
static int print_layers(const lifetime_view *v, const panel *panel, int first, strbuf *out)
{
    const program *p = v->program;
    int count = steps_of_layer(p, first), last = first;
    while (last + count < p->n_steps && p->steps[last + count].layer >= 0 &&
           same_layer(v, first, last + count, count))
        last += count;
    int64_t from = p->steps[first].layer, to = p->steps[last].layer;
    if (from == to)
        strbuf_printf(out, "--- layer %lld\n", (long long)from);
    else
        strbuf_printf(out, "--- layers %lld to %lld, each\n", (long long)from, (long long)to);
    for (int i = 0; i < count; i++)
        print_row(v, panel, first + i, out);
    return last + count;
}

static void legend_line(const char *brief, const char *symbol, int64_t size, strbuf *out)
{
    strbuf_printf(out, "%-16s  %-22s %10lld\n", brief, symbol, (long long)size);
}

/* What readers of the usual drawing of a pass find otherwise here. */
static void print_differences(const program *p, strbuf *out)
{
    strbuf_puts(out, "attn_qkv and ffn_up are graphs because each product has a weight of its own; "
                     "ffn holds gate beside up, as silu_and_mul reads it.\n"
                     "setup is a graph because the host maps all inputs of the pass with it.\n");
    if (p->options.form == PLAN_PADDED)
        strbuf_puts(out, "pad_rope reads its positions in rope_rows, as rows of the table cos_sin; "
                         "no step reads pos.\n");
    else
        strbuf_puts(out, "rope reads its positions in rope_rows, as rows of the table cos_sin; "
                         "attention reads pos.\n");
    if (p->options.ranks > 1 && p->options.cut == PLAN_GATHER)
        strbuf_puts(out,
                    "Ranks cut every product by its outputs and gather them (--cut gather), so "
                    "attention, activation, attn_output and ffn_down touch the gathered tensors "
                    "too; with --cut reduce ranks add partial sums in attn_allreduce and "
                    "ffn_allreduce.\n");
}

static void print_legend(const program *p, strbuf *out)
{
    if (p->options.sums)
        strbuf_puts(out, "x and x_next have memory of their own and change places from pass to "
                         "pass: each pass clears the sums of the next.\n\n");
    strbuf_puts(out, "+ created  o kept  m mapped from the host  r read  w written  x destroyed\n");
    strbuf_puts(out, "kernel: one operator  graph: several, or an exchange between ranks\n");
    if (!p->options.fuse && !p->options.sums) print_differences(p, out);
    strbuf_putc(out, '\n');
    const char *seen[PLAN_MAX_TENSORS * TENSOR_MAX_RANK] = {"1"};
    int n_seen = 1;
    for (int id = 0; id < p->n_tensors; id++) {
        const plan_tensor *t = &p->tensors[id];
        for (int d = 0; d < t->rank; d++) {
            bool known = false;
            for (int i = 0; i < n_seen; i++)
                known = known || strcmp(seen[i], t->dims[d].brief) == 0;
            if (known) continue;
            seen[n_seen++] = t->dims[d].brief;
            int64_t size = t->dims[d].size;
            legend_line(t->dims[d].brief, t->dims[d].symbol,
                        size < 0 ? p->capacity.of[-size] : size, out);
        }
    }
    legend_line("nh", "n_heads", p->config.n_heads, out);
    legend_line("di", "intermediate_size", p->config.intermediate_size, out);
}

static void print_places(const program *p, strbuf *out)
{
    strbuf_puts(out, "\narena               offset          bytes\n");
    for (int id = 0; id < p->n_tensors; id++) {
        const plan_tensor *t = &p->tensors[id];
        if (t->kind == PLAN_ACTIVATION || t->kind == PLAN_OUTPUT)
            strbuf_printf(out, "%-12s %13zu %14zu\n", t->name, t->offset, t->bytes);
    }
}

static void print_bytes(const lifetime_view *v, strbuf *out)
{
    const program_bytes *b = &v->bytes;
    const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {{"weights", b->weights},    {"arena", b->arena},           {"sums", b->sums},
                {"KV cache", b->kv_cache},  {"RoPE table", b->rope_table}, {"requests", b->state},
                {"batch state", b->inputs}, {"everything", b->total}};
    strbuf_puts(out, "\nmemory                bytes         MiB\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (i == 2 && b->sums == 0) continue;
        strbuf_printf(out, "%-12s %14llu %11.2f\n", rows[i].name, (unsigned long long)rows[i].bytes,
                      (double)rows[i].bytes / 0x1p20);
    }
    strbuf_printf(out,
                  "\ncontext %lld; the largest that fits in %.2f GiB is %lld (the model was "
                  "trained for %lld)\n",
                  (long long)v->program->options.context, (double)v->available / 0x1p30,
                  (long long)v->largest_context, (long long)v->program->config.context_length);
}

static void print_panel(const lifetime_view *v, const panel *p, strbuf *out)
{
    print_header(p, out);
    for (int step = 0; step < v->program->n_steps;) {
        if (v->program->steps[step].layer >= 0) {
            step = print_layers(v, p, step, out);
            if (v->program->steps[step].layer < 0) strbuf_puts(out, "--- after the layers\n");
        } else {
            print_row(v, p, step++, out);
        }
    }
    strbuf_putc(out, '\n');
}

static void print_text(const lifetime_view *v, strbuf *out)
{
    panel panels[2] = {0};
    fill_panels(v, panels);
    for (int i = 0; i < 2; i++) {
        if (panel_finish(v, &panels[i]))
            print_panel(v, &panels[i], out);
        else
            out->failed = true;
        panel_free(&panels[i]);
    }
    print_legend(v->program, out);
    print_places(v->program, out);
    print_bytes(v, out);
    if (v->ranks) plan_ranks_print(v->ranks, out);
}

static const char *kind_name(plan_kind kind)
{
    static const char *const names[] = {"absent", "input", "activation", "output",
                                        "table",  "cache", "sums"};
    return names[kind];
}

static cJSON *json_tensor(const program *p, const plan_tensor *t)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "name", t->name);
    cJSON_AddStringToObject(item, "kind", kind_name(t->kind));
    cJSON_AddStringToObject(item, "dtype", dtype_name(t->type));
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    cJSON *symbols = cJSON_AddArrayToObject(item, "symbols");
    for (int d = 0; d < t->rank; d++) {
        int64_t size = t->dims[d].size;
        cJSON_AddItemToArray(shape,
                             cJSON_CreateNumber((double)(size < 0 ? p->capacity.of[-size] : size)));
        cJSON_AddItemToArray(symbols, cJSON_CreateString(t->dims[d].symbol));
    }
    cJSON_AddNumberToObject(item, "bytes", (double)t->bytes);
    if (t->kind == PLAN_ACTIVATION || t->kind == PLAN_OUTPUT)
        cJSON_AddNumberToObject(item, "offset", (double)t->offset);
    return item;
}

static cJSON *json_step(const lifetime_view *v, int index)
{
    const program *p = v->program;
    const program_step *step = &p->steps[index];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "step", step->name);
    cJSON_AddNumberToObject(item, "layer", (double)step->layer);
    cJSON_AddStringToObject(item, "info", step->graph ? "graph" : "kernel");
    cJSON *ops = cJSON_AddArrayToObject(item, "operators");
    for (int n = 0; n < step->n_nodes; n++)
        cJSON_AddItemToArray(ops,
                             cJSON_CreateString(op_get(p->nodes[step->first_node + n].op)->name));
    cJSON *cells = cJSON_AddObjectToObject(item, "cells");
    for (int id = 0; id < p->n_tensors; id++) {
        char text[8];
        plan_cell_text(&v->cells[index * p->n_tensors + id], text);
        if (*text) cJSON_AddStringToObject(cells, p->tensors[id].name, text);
    }
    return item;
}

static qp_status print_json(const lifetime_view *v, const char *gpu, strbuf *out, qp_error *error)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *tensors = cJSON_AddArrayToObject(root, "tensors");
    for (int id = 0; id < v->program->n_tensors; id++) {
        if (v->program->tensors[id].kind == PLAN_ABSENT) continue;
        cJSON_AddItemToArray(tensors, json_tensor(v->program, &v->program->tensors[id]));
    }
    cJSON *steps = cJSON_AddArrayToObject(root, "steps");
    for (int i = 0; i < v->program->n_steps; i++)
        cJSON_AddItemToArray(steps, json_step(v, i));
    cJSON *bytes = cJSON_AddObjectToObject(root, "bytes");
    cJSON_AddNumberToObject(bytes, "weights", (double)v->bytes.weights);
    cJSON_AddNumberToObject(bytes, "kv_cache", (double)v->bytes.kv_cache);
    cJSON_AddNumberToObject(bytes, "arena", (double)v->bytes.arena);
    if (v->bytes.sums) cJSON_AddNumberToObject(bytes, "sums", (double)v->bytes.sums);
    cJSON_AddNumberToObject(bytes, "rope_table", (double)v->bytes.rope_table);
    cJSON_AddNumberToObject(bytes, "requests", (double)v->bytes.state);
    cJSON_AddNumberToObject(bytes, "batch_state", (double)v->bytes.inputs);
    cJSON_AddNumberToObject(bytes, "total", (double)v->bytes.total);
    if (v->ranks) plan_ranks_json(v->ranks, root);
    cJSON_AddNumberToObject(root, "context", (double)v->program->options.context);
    cJSON_AddNumberToObject(root, "largest_context", (double)v->largest_context);
    if (gpu) cJSON_AddRawToObject(root, "gpu", gpu);
    return output_json(root, out, error);
}

static qp_status print_plan(const program *p, const plan_print_options *o, strbuf *out,
                            qp_error *error)
{
    plan_cell *cells;
    program *ranks = NULL;
    TRY(lifetime_compute(p, &cells, error));
    qp_status status = p->options.ranks > 1 ? plan_ranks_build(p, &ranks, error) : QP_OK;
    lifetime_view view = {.program = p,
                          .ranks = ranks,
                          .cells = cells,
                          .bytes = program_count_bytes(p, program_weight_bytes(p)),
                          .available = o->available};
    view.largest_context =
        lower_largest_context(&p->whole, &p->options, view.bytes.weights, o->available);
    if (status == QP_OK && o->json)
        status = print_json(&view, o->gpu, out, error);
    else if (status == QP_OK)
        print_text(&view, out);
    plan_ranks_free(ranks, p->options.ranks);
    free(cells);
    if (status == QP_OK && out->failed) status = error_no_memory(error, "the plan", out->length);
    return status;
}

qp_status plan_print_tokens(int64_t *tokens, int64_t context, int64_t sequences, qp_error *error)
{
    enum { USUAL = 512 };
    const int64_t room = context * sequences;
    if (*tokens == 0) *tokens = room < USUAL ? room : USUAL;
    if (*tokens <= room || context < 1) return QP_OK; /* the plan says what is wrong with that */
    return error_set(error, QP_INVALID,
                     "%lld tokens: %lld sequence%s of %lld positions hold%s %lld; choose fewer, or "
                     "a larger context",
                     (long long)*tokens, (long long)sequences, sequences == 1 ? "" : "s",
                     (long long)context, sequences == 1 ? "s" : "", (long long)room);
}

static qp_status check_types(const plan_print_options *o, qp_error *error)
{
    if (dtype_from_name(o->kv_type) == DTYPE_COUNT)
        return error_set(error, QP_INVALID,
                         "the KV cache must be F32, F16, BF16 or F8, found \"%s\"", o->kv_type);
    if (!o->act_type || dtype_from_name(o->act_type) != DTYPE_COUNT) return QP_OK;
    return error_set(error, QP_INVALID, "activations must be F32 or BF16, found \"%s\"",
                     o->act_type);
}

static qp_status choose_options(const plan_print_options *o, const model_config *config,
                                plan_options *out, qp_error *error)
{
    *out = plan_default_options(config);
    if (o->context) out->context = o->context;
    out->max_tokens = o->tokens;
    TRY(plan_print_tokens(&out->max_tokens, out->context, o->sequences, error));
    out->max_sequences = out->max_outputs = o->sequences;
    if (out->max_tokens < out->max_sequences) out->max_tokens = out->max_sequences;
    out->page_size = o->page_size;
    out->kv_type = dtype_from_name(o->kv_type);
    if (o->act_type) out->act_type = dtype_from_name(o->act_type);
    out->ranks = (int)o->ranks;
    out->rank = (int)o->rank;
    out->cut = o->reduce ? PLAN_REDUCE : PLAN_GATHER;
    out->form = o->form;
    out->target = o->gpu ? PLAN_FOR_ANY : PLAN_FOR_CPU;
    out->fuse = o->fuse;
    out->sums = o->sums;
    out->kv_partitions = o->kv_partitions;
    return lower_parse_rules(o->rules, out, error);
}

qp_status plan_print_open(const plan_print_options *o, model **model, program *out, qp_error *error)
{
    const model_options sizes_only = {
        .sizes_only = true, .config_is_enough = true, .adapters = o->adapters};
    plan_options options;
    *model = NULL;
    *out = (program){0};
    TRY(check_types(o, error));
    TRY(model_open(o->model, &sizes_only, model, error));
    const model_config *config = model_get_config(*model);
    qp_status status = choose_options(o, config, &options, error);
    if (status == QP_OK) status = lower_build(config, *model, &options, out, error);
    if (status == QP_OK) return QP_OK;
    program_free(out);
    model_close(*model);
    *model = NULL;
    return status;
}

qp_status plan_print_lifetimes(const plan_print_options *o, strbuf *out, qp_error *error)
{
    model *model;
    program p;
    TRY(plan_print_open(o, &model, &p, error));
    qp_status status = print_plan(&p, o, out, error);
    if (status == QP_OK && o->verbose && !o->json) {
        strbuf_puts(out, "\nrules\n");
        status = lower_explain(model_get_config(model), model, &p.options, out, error);
    }
    program_free(&p);
    model_close(model);
    return status;
}
