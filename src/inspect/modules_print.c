/* The tree of a model's modules: see modules_print.h. Its rows are a list in the order in which
 * they are printed; a row with deeper rows after it is a group. */
#include "inspect/modules_print.h"

#include "base/json.h"
#include "base/output.h"
#include "inspect/modules.h"
#include "model/family/family.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 32, TEXT = 96, COUNTS_AT = 90 };

typedef struct module_row {
    int depth;
    char path[TEXT];      /* "model.layers.*.self_attn.q_proj" */
    char name[TEXT];      /* "q_proj" */
    char class[TEXT];     /* "Linear" */
    char arguments[TEXT]; /* "in_features=2048, out_features=512, bias=False"; empty: a group */
    int64_t in, out;      /* features; 0: it has none */
    int64_t parameters;   /* of one of them; of a group the sum */
    int64_t count;        /* alike: of a layer's modules the number of layers */
    const char *tied;     /* the module that has its weight, or NULL */
} module_row;

typedef struct module_rows {
    const model *model;
    const model_config *config;
    char family[TEXT]; /* "Llama": what classes begin with */
    module_row rows[MAX_ROWS];
    int n;
} module_rows;

/* "LlamaForCausalLM" without what follows the family's name. */
static void name_family(module_rows *m)
{
    const char *architecture = m->config->family->json[0], *end = strstr(architecture, "ForCausal");
    snprintf(m->family, sizeof m->family, "%.*s",
             end ? (int)(end - architecture) : (int)strlen(architecture), architecture);
}

/* A row without arguments; `parent` may be empty. */
static module_row *add_row(module_rows *m, int depth, const char *parent, const char *name,
                           const char *class_name)
{
    module_row *row = &m->rows[m->n++];
    *row = (module_row){.depth = depth, .count = 1};
    snprintf(row->path, sizeof row->path, "%.40s%s%.40s", parent, *parent ? "." : "", name);
    snprintf(row->name, sizeof row->name, "%.40s", name);
    snprintf(row->class, sizeof row->class, "%.80s", class_name);
    return row;
}

static module_row *add_family_row(module_rows *m, int depth, const char *parent, const char *name,
                                  const char *suffix)
{
    char class_name[2 * TEXT];
    snprintf(class_name, sizeof class_name, "%s%s", m->family, suffix);
    return add_row(m, depth, parent, name, class_name);
}

/* All rows of a fused tensor. */
static int64_t rows_of(const model_config *c, const family_fused *fused)
{
    int64_t all = 0;
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        int64_t rows, columns;
        weight_shape(c, (weight_slot)slot, &rows, &columns);
        if (fused->slots >> slot & 1) all += rows;
    }
    return all;
}

/* Class and arguments by what the weight is. */
static void describe_weight(module_rows *m, module_row *row, weight_slot slot,
                            const model_weight *weight)
{
    const tensor *w = &weight->weight;
    const family_fused *fused = family_fused_of(m->config->family, slot);
    row->parameters = tensor_elements(w) + (weight->bias.rank ? tensor_elements(&weight->bias) : 0);
    if (weight_get_info(slot)->is_norm) {
        snprintf(row->class, sizeof row->class, "%.60sRMSNorm", m->family);
        snprintf(row->arguments, sizeof row->arguments, "(%lld,), eps=%g", (long long)w->shape[0],
                 m->config->rms_norm_eps);
        return;
    }
    const int64_t experts = weight_get_info(slot)->per_expert ? m->config->n_experts : 1;
    row->in = w->shape[1];
    row->out = fused ? rows_of(m->config, fused) : w->shape[0] / experts;
    if (fused) row->parameters = row->parameters / w->shape[0] * row->out;
    if (slot == WEIGHT_TOKEN_EMBD)
        snprintf(row->arguments, sizeof row->arguments, "%lld, %lld", (long long)w->shape[0],
                 (long long)w->shape[1]);
    else
        snprintf(row->arguments, sizeof row->arguments,
                 "in_features=%lld, out_features=%lld, bias=%s", (long long)row->in,
                 (long long)row->out, weight->bias.rank ? "True" : "False");
}

/* A module with a weight, if the model has it and it is not in that of a slot before it. */
static void add_weight(module_rows *m, int depth, const char *parent, weight_slot slot)
{
    const family_fused *fused = family_fused_of(m->config->family, slot);
    if (!family_has(m->config->family, slot)) return;
    if (fused && fused->slots & ((1u << slot) - 1)) return;
    const char *stem = module_stem(m->config, slot), *dot = strrchr(stem, '.');
    const model_weight *weight = model_get_weight(m->model, slot, 0);
    const bool embedding = slot == WEIGHT_TOKEN_EMBD;
    module_row *row =
        add_row(m, depth, parent, dot ? dot + 1 : stem, embedding ? "Embedding" : "Linear");
    describe_weight(m, row, slot, weight);
    if (weight_get_info(slot)->per_layer) row->count = m->config->n_layers;
    if (slot != WEIGHT_OUTPUT || !m->config->tied) return;
    row->tied = module_stem(m->config, WEIGHT_TOKEN_EMBD);
    row->parameters = 0;
}

/* "self_attn" of "self_attn.q_proj" */
static void group_name(const module_rows *m, weight_slot slot, char name[TEXT])
{
    const char *stem = module_stem(m->config, slot), *dot = strrchr(stem, '.');
    snprintf(name, TEXT, "%.*s", dot ? (int)(dot - stem) : 0, stem);
}

static void add_attention(module_rows *m, const char *layer)
{
    static const weight_slot slots[] = {WEIGHT_ATTN_Q,      WEIGHT_ATTN_K,      WEIGHT_ATTN_V,
                                        WEIGHT_ATTN_OUTPUT, WEIGHT_ATTN_Q_NORM, WEIGHT_ATTN_K_NORM};
    char name[TEXT];
    group_name(m, WEIGHT_ATTN_OUTPUT, name);
    module_row *group = add_family_row(m, 4, layer, name, "Attention");
    group->count = m->config->n_layers;
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        add_weight(m, 5, group->path, slots[i]);
}

/* The router, and the weights of all experts. */
static void add_experts(module_rows *m, const char *layer)
{
    static const weight_slot slots[] = {WEIGHT_GATE_EXPERTS, WEIGHT_UP_EXPERTS,
                                        WEIGHT_DOWN_EXPERTS};
    char name[TEXT];
    group_name(m, WEIGHT_ROUTER, name);
    module_row *group = add_family_row(m, 4, layer, name, "SparseMoeBlock");
    group->count = m->config->n_layers;
    add_weight(m, 5, group->path, WEIGHT_ROUTER);
    module_row *experts = add_row(m, 5, group->path, "experts", "ModuleList");
    experts->count = m->config->n_layers;
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        add_weight(m, 6, experts->path, slots[i]);
}

static void add_mlp(module_rows *m, const char *layer)
{
    char name[TEXT];
    if (m->config->n_experts) {
        add_experts(m, layer);
        return;
    }
    group_name(m, WEIGHT_FFN_DOWN, name);
    module_row *group = add_family_row(m, 4, layer, name, "MLP");
    group->count = m->config->n_layers;
    add_weight(m, 5, group->path, WEIGHT_FFN_GATE);
    add_weight(m, 5, group->path, WEIGHT_FFN_UP);
    add_weight(m, 5, group->path, WEIGHT_FFN_DOWN);
    static const char *const activations[] = {
        [FAMILY_SILU] = "SiLU", [FAMILY_GELU_TANH] = "GELUTanh"};
    add_row(m, 5, group->path, "act_fn", activations[m->config->family->activation])->count =
        m->config->n_layers;
}

static void add_rows(module_rows *m)
{
    const int64_t layers = m->config->n_layers;
    char name[TEXT];
    add_row(m, 0, "", "", m->config->family->json[0]);
    add_family_row(m, 1, "", "model", "Model");
    add_weight(m, 2, "model", WEIGHT_TOKEN_EMBD);
    add_row(m, 2, "model", "layers", "ModuleList");
    if (layers > 1)
        snprintf(name, sizeof name, "(0-%lld): %lld x ", (long long)layers - 1, (long long)layers);
    else
        snprintf(name, sizeof name, "(0): ");
    module_row *layer = add_family_row(m, 3, "model.layers", "*", "DecoderLayer");
    layer->count = layers;
    memcpy(layer->name, name, sizeof layer->name);
    add_attention(m, layer->path);
    add_mlp(m, layer->path);
    add_weight(m, 4, layer->path, WEIGHT_ATTN_NORM);
    add_weight(m, 4, layer->path, WEIGHT_ATTN_POST_NORM);
    add_weight(m, 4, layer->path, WEIGHT_FFN_NORM);
    add_weight(m, 4, layer->path, WEIGHT_FFN_POST_NORM);
    add_weight(m, 2, "model", WEIGHT_OUTPUT_NORM);
    add_family_row(m, 2, "model", "rotary_emb", "RotaryEmbedding");
    add_weight(m, 1, "", WEIGHT_OUTPUT);
}

static bool is_group(const module_rows *m, int row)
{
    return row + 1 < m->n && m->rows[row + 1].depth > m->rows[row].depth;
}

/* Parameters of groups: of one of them, where there are several alike. */
static void sum_groups(module_rows *m)
{
    for (int i = 0; i < m->n; i++) {
        module_row *group = &m->rows[i];
        if (!is_group(m, i)) continue;
        for (int k = i + 1; k < m->n && m->rows[k].depth > group->depth; k++)
            if (!is_group(m, k)) group->parameters += m->rows[k].parameters * m->rows[k].count;
        group->parameters /= group->count;
    }
}

/* Whether a module is this one: "model.layers.0" is that of "model.layers.*" for one layer. */
static bool is_named(const module_row *row, const char *name, int64_t n_layers)
{
    const char *star = strchr(row->path, '*');
    if (!star) return strcmp(row->path, name) == 0;
    const size_t before = (size_t)(star - row->path);
    char *end;
    if (strncmp(row->path, name, before) != 0) return false;
    const long layer = strtol(name + before, &end, 10);
    return end > name + before && layer >= 0 && layer < n_layers && strcmp(star + 1, end) == 0;
}

/* Keeps one module and those in it. */
static qp_status keep_only(module_rows *m, const char *name, qp_error *error)
{
    int first = 0, end;
    while (first < m->n && !is_named(&m->rows[first], name, m->config->n_layers))
        first++;
    if (first == m->n)
        return error_set(error, QP_INVALID,
                         "no module \"%s\"; --modules lists them: model.embed_tokens, "
                         "model.layers.0 to model.layers.%lld, model.layers.0.self_attn and so on",
                         name, (long long)m->config->n_layers - 1);
    for (end = first + 1; end < m->n && m->rows[end].depth > m->rows[first].depth;)
        end++;
    m->n = end - first;
    memmove(m->rows, &m->rows[first], (size_t)m->n * sizeof *m->rows);
    for (int i = m->n - 1; i >= 0; i--)
        m->rows[i].depth -= m->rows[0].depth;
    m->rows[0].name[0] = '\0';
    return QP_OK;
}

static qp_status make_rows(const model *model, const char *only, module_rows *m, qp_error *error)
{
    *m = (module_rows){.model = model, .config = model_get_config(model)};
    name_family(m);
    add_rows(m);
    sum_groups(m);
    return only ? keep_only(m, only, error) : QP_OK;
}

/* "(q_proj): Linear(...)"; a layer's name says how many there are. */
static void print_row(const module_rows *m, int i, strbuf *out)
{
    const module_row *row = &m->rows[i];
    const size_t begin = out->length;
    strbuf_printf(out, "%*s", 2 * row->depth, "");
    strbuf_printf(out, row->name[0] == '(' || !row->name[0] ? "%s" : "(%s): ", row->name);
    /* A norm's shape is a tuple, in parentheses of its own. */
    strbuf_printf(out, "%s(%s%s", row->class, row->arguments, is_group(m, i) ? "" : ")");
    const size_t used = out->length - begin;
    const int width = used < COUNTS_AT ? (int)(COUNTS_AT - used) : 1;
    if (row->tied)
        strbuf_printf(out, "%*s%s's\n", width + 1, "", row->tied);
    else
        strbuf_printf(out, "%*s%14lld\n", width, "", (long long)row->parameters);
}

static void print_text(const module_rows *m, strbuf *out)
{
    strbuf_printf(out, "%-*s%14s\n", COUNTS_AT, "", "parameters");
    for (int i = 0; i < m->n; i++) {
        const int next = i + 1 < m->n ? m->rows[i + 1].depth : 0;
        print_row(m, i, out);
        for (int level = m->rows[i].depth - 1; level >= next; level--)
            strbuf_printf(out, "%*s)\n", 2 * level, "");
    }
}

static void print_json(const module_rows *m, strbuf *out)
{
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "modules");
    for (int i = 0; i < m->n; i++) {
        const module_row *row = &m->rows[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(list, item);
        cJSON_AddStringToObject(item, "name", row->path);
        cJSON_AddStringToObject(item, "class", row->class);
        cJSON_AddNumberToObject(item, "count", (double)row->count);
        if (row->in) cJSON_AddNumberToObject(item, "in_features", (double)row->in);
        if (row->out) cJSON_AddNumberToObject(item, "out_features", (double)row->out);
        cJSON_AddNumberToObject(item, "parameters", (double)row->parameters);
        if (row->tied) cJSON_AddStringToObject(item, "weight_of", row->tied);
    }
    output_json(root, out, NULL);
}

qp_status modules_describe(const char *path, const char *only, bool json, char **text,
                           qp_error *error)
{
    const model_options sizes_only = {.sizes_only = true, .config_is_enough = true};
    model *model = NULL;
    strbuf out = {0};
    *text = NULL;
    TRY(model_open(path, &sizes_only, &model, error));
    module_rows *m = malloc(sizeof *m);
    qp_status status = m ? make_rows(model, only, m, error)
                         : error_no_memory(error, "the list of modules", sizeof *m);
    if (status == QP_OK) {
        (json ? print_json : print_text)(m, &out);
        *text = strbuf_take(&out);
        if (!*text) status = error_no_memory(error, "the list of modules", 0);
    }
    strbuf_free(&out);
    free(m);
    model_close(model);
    return status;
}
