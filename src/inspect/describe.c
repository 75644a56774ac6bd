/* Describes a model in words or as JSON: qp_describe_model() in quipu.h. */
#include "base/json.h"
#include "base/output.h"
#include "base/printable.h"
#include "base/strbuf.h"
#include "file/mapping.h"
#include "file/synthetic.h"
#include "engine/vocabulary.h"
#include "model/family/family.h"
#include "model/model.h"
#include "quipu.h"

#include <math.h>
#include <stdio.h>

/* What is described; each part may be absent. */
typedef struct description {
    const char *path;
    model *model;              /* NULL: only a vocabulary */
    gguf *file;                /* the model's, or `own` */
    gguf *own;                 /* opened here: a file without tensors */
    qp_vocabulary *vocabulary; /* NULL: none, or it cannot be read */
    qp_error vocabulary_error; /* why it cannot be read */
} description;

typedef struct type_count {
    int64_t tensors, elements;
    uint64_t bytes;
} type_count;

static void count_tensor(type_count *counts, const tensor *view)
{
    if (view->rank == 0) return;
    type_count *count = &counts[view->type];
    count->tensors++;
    count->elements += tensor_elements(view);
    count->bytes += tensor_bytes(view);
}

/* Counts every weight once; a tied output projection is the embedding. */
static void count_types(const model *m, type_count counts[DTYPE_COUNT])
{
    const model_config *c = model_get_config(m);
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        if (slot == WEIGHT_OUTPUT && c->tied) continue;
        int64_t layers = weight_get_info((weight_slot)slot)->per_layer ? c->n_layers : 1;
        for (int64_t layer = 0; layer < layers; layer++) {
            const model_weight *weight = model_get_weight(m, (weight_slot)slot, layer);
            count_tensor(counts, &weight->weight);
            count_tensor(counts, &weight->bias);
        }
    }
}

/* A name and a number of the model; both output formats use this list. */
typedef struct model_fact {
    const char *name;
    double value;
} model_fact;

enum { N_FACTS = 13 };

/* How many they are: those of experts only of a mixture. */
static int list_facts(const model *m, model_fact facts[N_FACTS])
{
    const model_config *c = model_get_config(m);
    const model_fact list[N_FACTS] = {
        {"hidden_size", (double)c->hidden_size},
        {"intermediate_size", (double)c->intermediate_size},
        {"n_layers", (double)c->n_layers},
        {"n_heads", (double)c->n_heads},
        {"n_kv_heads", (double)c->n_kv_heads},
        {"head_dim", (double)c->head_dim},
        {"vocab_size", (double)c->vocab_size},
        {"context_length", (double)c->context_length},
        {"rms_norm_eps", c->rms_norm_eps},
        {"rope_theta", c->rope.theta},
        {"weight_bytes", (double)model_weight_bytes(m)},
        {"n_experts", (double)c->n_experts},
        {"n_experts_used", (double)c->n_experts_used},
    };
    for (int i = 0; i < N_FACTS; i++)
        facts[i] = list[i];
    return c->n_experts ? N_FACTS : N_FACTS - 2;
}

/* How RoPE is scaled; GGUF gives a divisor for each frequency. */
static const char *rope_name(const rope_config *rope)
{
    const bool named = !rope->divisors || rope->scaling == ROPE_LONGROPE;
    return named ? rope_scaling_name(rope->scaling) : "by a tensor of divisors";
}

/* A role of a token and its id, -1 where no token has it. */
typedef struct token_role {
    const char *name;
    int32_t id;
} token_role;

enum { N_ROLES = 5 };

static void list_roles(const tokenizer *tokenizer, token_role roles[N_ROLES])
{
    tokenizer_special special = tokenizer_special_ids(tokenizer);
    roles[0] = (token_role){"bos_token", special.bos};
    roles[1] = (token_role){"eos_token", special.eos};
    roles[2] = (token_role){"eot_token", special.eot};
    roles[3] = (token_role){"unknown_token", special.unknown};
    roles[4] = (token_role){"padding_token", special.padding};
}

static const char *template_state(const qp_vocabulary *v)
{
    const chat_template *t = &v->templates.plain;
    if (!t->source) return "none";
    return t->compiled ? "yes" : t->error.message;
}

static void print_line(strbuf *out, const char *name, const char *value)
{
    strbuf_printf(out, "%-20s ", name);
    strbuf_put_printable(out, value, strlen(value));
    strbuf_putc(out, '\n');
}

/* The positions that a token sees, and in which layers. */
static void print_window(const model_config *c, strbuf *out)
{
    const bool all = layer_set_count(&c->windowed, c->n_layers) == c->n_layers;
    strbuf_printf(out, "%-20s %lld", "sliding_window", (long long)c->window);
    if (c->windowed_unknown) {
        strbuf_puts(out, ", in some layers");
    } else if (!all) {
        strbuf_puts(out, ", in layers ");
        layer_set_print(&c->windowed, c->n_layers, out);
    }
    strbuf_putc(out, '\n');
}

static void print_no_rope(const model_config *c, strbuf *out)
{
    if (layer_set_count(&c->no_rope, c->n_layers) == 0) return;
    strbuf_printf(out, "%-20s layers ", "without_rope");
    layer_set_print(&c->no_rope, c->n_layers, out);
    strbuf_putc(out, '\n');
}

/* What a family multiplies by and bounds, where it does. */
static int list_scales(const model_config *c, model_fact facts[6])
{
    const model_scales *s = &c->scales;
    const model_fact all[] = {{"embedding_scale", s->embedding},
                              {"residual_scale", s->residual},
                              {"logits_scale", s->logits},
                              {"attention_scale", s->attention},
                              {"attention_soft_cap", s->attention_cap},
                              {"logits_soft_cap", s->logits_cap}};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value != 0) facts[n++] = all[i];
    return n;
}

static void json_layers(cJSON *root, const char *name, const layer_set *set, int64_t n_layers)
{
    cJSON *list = cJSON_AddArrayToObject(root, name);
    for (int64_t layer = 0; layer < n_layers; layer++)
        if (layer_set_has(set, layer))
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)layer));
}

static void print_model(const model *m, const type_count *counts, strbuf *out)
{
    const model_config *c = model_get_config(m);
    model_fact facts[N_FACTS];
    const int n_facts = list_facts(m, facts);
    print_line(out, "name", c->name);
    print_line(out, "family", c->family->name);
    for (int i = 0; i < n_facts; i++) {
        bool whole = facts[i].value == floor(facts[i].value);
        strbuf_printf(out, whole ? "%-20s %.0f\n" : "%-20s %.7g\n", facts[i].name, facts[i].value);
    }
    if (c->window) print_window(c, out);
    model_fact scales[6];
    const int n_scales = list_scales(c, scales);
    for (int i = 0; i < n_scales; i++)
        strbuf_printf(out, "%-20s %.7g\n", scales[i].name, scales[i].value);
    print_line(out, "rope_scaling", rope_name(&c->rope));
    if (c->rope_local.dim)
        strbuf_printf(out, "%-20s %.7g, in layers that slide\n", "rope_theta", c->rope_local.theta);
    print_no_rope(c, out);
    print_line(out, "rope_pairs", c->rope.interleaved ? "interleaved" : "NeoX");
    print_line(out, "output", c->tied ? "tied to the embedding" : "of its own");
    if (model_is_config(m))
        print_line(out, "weights", "missing: sizes and type are those of config.json");
    if (model_fp8_matrices(m))
        strbuf_printf(
            out,
            "%-20s %lld matrices in FP8 (E4M3), of which a CPU reads %lld as they are and "
            "the rest as BF16, a GPU all as BF16; inputs are not rounded\n",
            "stored", (long long)model_fp8_matrices(m), (long long)model_fp8_kept(m));
    type_count total = {0};
    strbuf_puts(out, "\ntype    tensors        elements           bytes\n");
    for (int type = 0; type < DTYPE_COUNT; type++) {
        const type_count *count = &counts[type];
        if (count->tensors == 0) continue;
        strbuf_printf(out, "%-6s %8lld %15lld %15llu\n", dtype_name((dtype)type),
                      (long long)count->tensors, (long long)count->elements,
                      (unsigned long long)count->bytes);
        total.tensors += count->tensors;
        total.elements += count->elements;
        total.bytes += count->bytes;
    }
    strbuf_printf(out, "%-6s %8lld %15lld %15llu\n", "all", (long long)total.tensors,
                  (long long)total.elements, (unsigned long long)total.bytes);
}

static void print_vocabulary(const qp_vocabulary *v, strbuf *out)
{
    const tokenizer *t = v->tokenizer;
    const char *pre = tokenizer_pre_name(t);
    token_role roles[N_ROLES];
    list_roles(t, roles);
    strbuf_printf(out, *pre ? "%-20s %s, %s\n" : "%-20s %s%s\n", "tokenizer",
                  tokenizer_model_name(t), pre);
    strbuf_printf(out, "%-20s %d\n", "tokens", tokenizer_vocab_size(t));
    for (int i = 0; i < N_ROLES; i++) {
        size_t length;
        const char *piece = tokenizer_piece(t, roles[i].id, &length);
        char text[SLICE_QUOTE_SIZE];
        if (roles[i].id < 0) continue;
        slice_quote((text_slice){piece, length}, text);
        strbuf_printf(out, "%-20s %d %s\n", roles[i].name, roles[i].id, text);
    }
    print_line(out, "chat_template", template_state(v));
}

static void print_text(const description *d, const type_count *counts, strbuf *out)
{
    if (d->model)
        print_model(d->model, counts, out);
    else
        strbuf_printf(out, "%s: a vocabulary without weights\n", d->path);
    if (d->vocabulary || d->vocabulary_error.status != QP_OK) strbuf_putc(out, '\n');
    if (d->vocabulary)
        print_vocabulary(d->vocabulary, out);
    else if (d->vocabulary_error.status != QP_OK)
        print_line(out, "tokenizer", d->vocabulary_error.message);
    if (!d->file) return;
    strbuf_puts(out, "\nmetadata\n");
    for (size_t i = 0; i < gguf_key_count(d->file); i++) {
        const gguf_value *value = gguf_key_at(d->file, i);
        char text[160], key[SLICE_QUOTE_SIZE];
        strbuf_printf(out, "%-42s %s\n", slice_quote(value->key, key),
                      gguf_value_describe(value, text, sizeof text));
    }
}

static void json_model(cJSON *root, const model *m, const type_count *counts)
{
    const model_config *c = model_get_config(m);
    model_fact facts[N_FACTS];
    const int n_facts = list_facts(m, facts);
    cJSON_AddStringToObject(root, "name", c->name);
    cJSON_AddStringToObject(root, "family", c->family->name);
    for (int i = 0; i < n_facts; i++)
        cJSON_AddNumberToObject(root, facts[i].name, facts[i].value);
    if (c->window) {
        cJSON_AddNumberToObject(root, "sliding_window", (double)c->window);
        if (!c->windowed_unknown) json_layers(root, "sliding_layers", &c->windowed, c->n_layers);
    }
    if (layer_set_count(&c->no_rope, c->n_layers))
        json_layers(root, "layers_without_rope", &c->no_rope, c->n_layers);
    model_fact scales[6];
    const int n_scales = list_scales(c, scales);
    for (int i = 0; i < n_scales; i++)
        cJSON_AddNumberToObject(root, scales[i].name, scales[i].value);
    cJSON_AddStringToObject(root, "rope_scaling", rope_name(&c->rope));
    if (c->rope_local.dim) cJSON_AddNumberToObject(root, "rope_local_theta", c->rope_local.theta);
    cJSON_AddBoolToObject(root, "rope_interleaved", c->rope.interleaved);
    cJSON_AddBoolToObject(root, "tied", c->tied);
    cJSON_AddBoolToObject(root, "has_weights", !model_is_config(m));
    if (model_fp8_matrices(m))
        cJSON_AddNumberToObject(root, "fp8_matrices", (double)model_fp8_matrices(m));
    if (model_fp8_kept(m))
        cJSON_AddNumberToObject(root, "fp8_matrices_kept", (double)model_fp8_kept(m));
    cJSON *types = cJSON_AddObjectToObject(root, "types");
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (counts[type].tensors == 0) continue;
        cJSON *item = cJSON_AddObjectToObject(types, dtype_name((dtype)type));
        cJSON_AddNumberToObject(item, "tensors", (double)counts[type].tensors);
        cJSON_AddNumberToObject(item, "elements", (double)counts[type].elements);
        cJSON_AddNumberToObject(item, "bytes", (double)counts[type].bytes);
    }
}

static void json_vocabulary(cJSON *root, const qp_vocabulary *v)
{
    cJSON *item = cJSON_AddObjectToObject(root, "tokenizer");
    token_role roles[N_ROLES];
    list_roles(v->tokenizer, roles);
    cJSON_AddStringToObject(item, "model", tokenizer_model_name(v->tokenizer));
    cJSON_AddStringToObject(item, "pre", tokenizer_pre_name(v->tokenizer));
    cJSON_AddNumberToObject(item, "tokens", tokenizer_vocab_size(v->tokenizer));
    for (int i = 0; i < N_ROLES; i++) {
        if (roles[i].id >= 0) cJSON_AddNumberToObject(item, roles[i].name, roles[i].id);
    }
    cJSON_AddBoolToObject(item, "chat_template", v->templates.plain.compiled != NULL);
}

static void print_json(const description *d, const type_count *counts, strbuf *out)
{
    cJSON *root = cJSON_CreateObject();
    if (d->model) json_model(root, d->model, counts);
    if (d->vocabulary) json_vocabulary(root, d->vocabulary);
    output_json(root, out, NULL);
}

static qp_status open_model(description *d, qp_error *error)
{
    model_options sizes_only = {.sizes_only = true, .config_is_enough = true};
    TRY(model_open(d->path, &sizes_only, &d->model, error));
    d->file = model_gguf(d->model);
    /* A vocabulary that cannot be read is reported, and the rest is described. */
    vocabulary_open_beside(d->model, &d->vocabulary, &d->vocabulary_error);
    return QP_OK;
}

static qp_status open_parts(description *d, qp_error *error)
{
    const char *dot = strrchr(d->path, '.');
    if (synthetic_is_name(d->path) ||
        (dot && strcmp(dot, ".json") == 0 && !file_is_directory(d->path)))
        return open_model(d, error);
    if (file_is_directory(d->path)) {
        char path[4096];
        int length = snprintf(path, sizeof path, "%s/config.json", d->path);
        if (length < (int)sizeof path && file_exists(path)) return open_model(d, error);
        if (qp_vocabulary_open(d->path, &d->vocabulary, error) == QP_OK) return QP_OK;
        return error_prefix(error, "neither weights nor a vocabulary");
    }
    TRY(gguf_open(d->path, &d->own, error));
    if (gguf_tensor_count(d->own) > 0) return open_model(d, error);
    d->file = d->own;
    return qp_vocabulary_open(d->path, &d->vocabulary, error);
}

qp_status qp_describe_model(const char *path, bool json, char **text, qp_error *error)
{
    *text = NULL;
    description d = {.path = path};
    type_count counts[DTYPE_COUNT] = {0};
    strbuf out = {0};
    qp_status status = open_parts(&d, error);
    if (status == QP_OK) {
        if (d.model) count_types(d.model, counts);
        if (json)
            print_json(&d, counts, &out);
        else
            print_text(&d, counts, &out);
        *text = strbuf_take(&out);
        if (!*text) status = error_no_memory(error, "the description", 0);
    }
    qp_vocabulary_close(d.vocabulary);
    model_close(d.model);
    gguf_close(d.own);
    return status;
}
