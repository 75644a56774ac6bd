/* What a model is, in words or as JSON: qp_describe_model() in quipu.h. */
#include "base/json.h"
#include "base/strbuf.h"
#include "model/model.h"
#include "quipu.h"

#include <stdlib.h>

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

/* Every weight once; a tied output is the embedding. */
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

/* A name and a number of the model's; the one list behind both forms. */
typedef struct model_fact {
    const char *name;
    double value;
} model_fact;

enum { N_FACTS = 11 };

static void list_facts(const model *m, model_fact facts[N_FACTS])
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
    };
    for (int i = 0; i < N_FACTS; i++)
        facts[i] = list[i];
}

/* How RoPE is scaled; GGUF says it by a divisor for each frequency. */
static const char *rope_name(const rope_config *rope)
{
    return rope->divisors ? "by a tensor of divisors" : rope_scaling_name(rope->scaling);
}

static void describe_text(const model *m, const type_count *counts, strbuf *out)
{
    const model_config *c = model_get_config(m);
    model_fact facts[N_FACTS];
    list_facts(m, facts);
    strbuf_printf(out, "%-20s %s\n%-20s %s\n", "name", c->name, "family",
                  model_family_name(c->family));
    for (int i = 0; i < N_FACTS; i++)
        strbuf_printf(out, "%-20s %.10g\n", facts[i].name, facts[i].value);
    strbuf_printf(out, "%-20s %s\n%-20s %s\n%-20s %s\n", "rope_scaling", rope_name(&c->rope),
                  "rope_pairs", c->rope.interleaved ? "interleaved" : "NeoX", "output",
                  c->tied ? "tied to the embedding" : "of its own");
    strbuf_puts(out, "\ntype    tensors      elements         bytes\n");
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (counts[type].tensors == 0) continue;
        strbuf_printf(out, "%-6s %8lld %13lld %13llu\n", dtype_name((dtype)type),
                      (long long)counts[type].tensors, (long long)counts[type].elements,
                      (unsigned long long)counts[type].bytes);
    }
    const gguf *file = model_gguf(m);
    if (!file) return;
    strbuf_puts(out, "\nmetadata\n");
    for (size_t i = 0; i < gguf_key_count(file); i++) {
        const gguf_value *value = gguf_key_at(file, i);
        char text[160], key[SLICE_QUOTE_SIZE];
        strbuf_printf(out, "%-42s %s\n", slice_quote(value->key, key),
                      gguf_value_describe(value, text, sizeof text));
    }
}

static void describe_json(const model *m, const type_count *counts, strbuf *out)
{
    const model_config *c = model_get_config(m);
    model_fact facts[N_FACTS];
    list_facts(m, facts);
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "name", c->name);
    cJSON_AddStringToObject(root, "family", model_family_name(c->family));
    for (int i = 0; i < N_FACTS; i++)
        cJSON_AddNumberToObject(root, facts[i].name, facts[i].value);
    cJSON_AddStringToObject(root, "rope_scaling", rope_name(&c->rope));
    cJSON_AddBoolToObject(root, "rope_interleaved", c->rope.interleaved);
    cJSON_AddBoolToObject(root, "tied", c->tied);
    cJSON *types = cJSON_AddObjectToObject(root, "types");
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (counts[type].tensors == 0) continue;
        cJSON *item = cJSON_AddObjectToObject(types, dtype_name((dtype)type));
        cJSON_AddNumberToObject(item, "tensors", (double)counts[type].tensors);
        cJSON_AddNumberToObject(item, "elements", (double)counts[type].elements);
        cJSON_AddNumberToObject(item, "bytes", (double)counts[type].bytes);
    }
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text)
        strbuf_printf(out, "%s\n", text);
    else
        out->failed = true;
    free(text);
}

qp_status qp_describe_model(const char *path, bool json, char **text, qp_error *error)
{
    *text = NULL;
    model *m;
    model_options sizes_only = {.sizes_only = true};
    TRY(model_open(path, &sizes_only, &m, error));
    type_count counts[DTYPE_COUNT] = {0};
    count_types(m, counts);
    strbuf out = {0};
    if (json)
        describe_json(m, counts, &out);
    else
        describe_text(m, counts, &out);
    model_close(m);
    *text = strbuf_take(&out);
    return *text ? QP_OK : error_no_memory(error, "the description", 0);
}
