/* Configurations for people who know transformers: see config_print.h. */
#include "inspect/config_print.h"

#include "base/json.h"
#include "base/output.h"
#include "base/strbuf.h"
#include "engine/vocabulary.h"
#include "file/mapping.h"
#include "model/family/family.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys whose whole numbers Python prints with ".0". */
static const char *const float_keys[] = {
    "attention_dropout",    "initializer_range", "rms_norm_eps",     "rope_theta", "factor",
    "low_freq_factor",      "high_freq_factor",  "attention_factor", "beta_fast",  "beta_slow",
    "partial_rotary_factor"};

static bool is_float(const char *key)
{
    for (size_t i = 0; i < sizeof float_keys / sizeof *float_keys; i++)
        if (key && strcmp(float_keys[i], key) == 0) return true;
    return false;
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(cJSON *const *)a)->string, (*(cJSON *const *)b)->string);
}

static void print_value(const cJSON *value, int depth, strbuf *out);

/* The members of an object in the order of their keys, or those of a list. */
static void print_members(const cJSON *parent, int depth, strbuf *out)
{
    const int n = cJSON_GetArraySize(parent);
    const cJSON **members = calloc((size_t)n + 1, sizeof *members), *member;
    int at = 0;
    out->failed |= !members;
    if (!members) return;
    cJSON_ArrayForEach(member, parent) members[at++] = member;
    if (cJSON_IsObject(parent)) qsort(members, (size_t)n, sizeof *members, by_key);
    for (int i = 0; i < n; i++) {
        strbuf_printf(out, "%*s", 2 * depth + 2, "");
        if (cJSON_IsObject(parent)) strbuf_printf(out, "\"%s\": ", members[i]->string);
        print_value(members[i], depth + 1, out);
        strbuf_puts(out, i + 1 < n ? ",\n" : "\n");
    }
    free(members);
}

static void print_value(const cJSON *value, int depth, strbuf *out)
{
    const bool object = cJSON_IsObject(value), list = cJSON_IsArray(value);
    if ((object || list) && value->child) {
        strbuf_puts(out, object ? "{\n" : "[\n");
        print_members(value, depth, out);
        strbuf_printf(out, "%*s%c", 2 * depth, "", object ? '}' : ']');
        return;
    }
    char *text = cJSON_PrintUnformatted(value);
    out->failed |= !text;
    if (text) strbuf_puts(out, text);
    if (text && cJSON_IsNumber(value) && is_float(value->string) && !strpbrk(text, ".e"))
        strbuf_puts(out, ".0");
    free(text);
}

/* Adds a member that the model's own config.json has not; frees it otherwise. */
static void offer(cJSON *root, const char *key, cJSON *value)
{
    if (cJSON_HasObjectItem(root, key))
        cJSON_Delete(value);
    else
        cJSON_AddItemToObject(root, key, value);
}

static void offer_number(cJSON *root, const char *key, double value)
{
    offer(root, key, cJSON_CreateNumber(value));
}

/* GGUF has only the divisors: llama3's with these numbers, if they give the same ones. */
static bool is_llama3(const rope_config *rope, rope_config *found)
{
    float most = 0;
    for (int64_t i = 0; i < rope->dim / 2; i++)
        most = fmaxf(most, rope->divisors[i]);
    *found = (rope_config){.scaling = ROPE_LLAMA3,
                           .dim = rope->dim,
                           .theta = rope->theta,
                           .factor = most,
                           .low_freq_factor = 1,
                           .high_freq_factor = 4,
                           .original_context = 8192};
    for (int64_t i = 0; i < rope->dim / 2; i++)
        if (fabsf(rope_divisor(found, i) - rope->divisors[i]) > 1e-4f * rope->divisors[i])
            return false;
    return true;
}

static cJSON *rope_scaling_json(const rope_config *given)
{
    rope_config llama3;
    const rope_config *rope = given;
    if (given->divisors && given->scaling == ROPE_DEFAULT) {
        if (!is_llama3(given, &llama3)) return cJSON_CreateString("by a tensor of divisors");
        rope = &llama3;
    }
    if (rope->scaling == ROPE_DEFAULT) return cJSON_CreateNull();
    cJSON *item = cJSON_CreateObject();
    cJSON_AddNumberToObject(item, "factor", rope->factor);
    if (rope->scaling == ROPE_LLAMA3) {
        cJSON_AddNumberToObject(item, "high_freq_factor", rope->high_freq_factor);
        cJSON_AddNumberToObject(item, "low_freq_factor", rope->low_freq_factor);
    }
    if (rope->original_context)
        cJSON_AddNumberToObject(item, "original_max_position_embeddings",
                                (double)rope->original_context);
    cJSON_AddStringToObject(item, "rope_type", rope_scaling_name(rope->scaling));
    return item;
}

/* What the weights are computed in by transformers, which decodes quantised ones. */
static const char *torch_dtype(const model *m)
{
    const dtype type = model_get_weight(m, WEIGHT_ATTN_Q, 0)->weight.type;
    return type == DTYPE_BF16 ? "bfloat16" : type == DTYPE_F16 ? "float16" : "float32";
}

static cJSON *token_json(int32_t id)
{
    return id >= 0 ? cJSON_CreateNumber(id) : cJSON_CreateNull();
}

static void add_tokens(cJSON *root, const model *m)
{
    qp_vocabulary *vocabulary = NULL;
    tokenizer_special special = {.bos = -1, .eos = -1};
    if (vocabulary_open_beside(m, &vocabulary, NULL) == QP_OK && vocabulary)
        special = tokenizer_special_ids(vocabulary->tokenizer);
    offer(root, "bos_token_id", token_json(special.bos));
    offer(root, "eos_token_id", token_json(special.eos));
    qp_vocabulary_close(vocabulary);
}

static void add_sizes(cJSON *root, const model *m)
{
    const model_config *c = model_get_config(m);
    char eps[32];
    offer_number(root, "head_dim", (double)c->head_dim);
    offer_number(root, "hidden_size", (double)c->hidden_size);
    offer_number(root, "intermediate_size", (double)c->intermediate_size);
    offer_number(root, "max_position_embeddings", (double)c->context_length);
    offer_number(root, "num_attention_heads", (double)c->n_heads);
    offer_number(root, "num_hidden_layers", (double)c->n_layers);
    offer_number(root, "num_key_value_heads", (double)c->n_kv_heads);
    snprintf(eps, sizeof eps, "%.7g", c->rms_norm_eps); /* GGUF has a float */
    offer_number(root, "rms_norm_eps", strtod(eps, NULL));
    offer_number(root, "rope_theta", c->rope.theta);
    offer_number(root, "vocab_size", (double)c->vocab_size);
    offer(root, "rope_scaling", rope_scaling_json(&c->rope));
    offer(root, "tie_word_embeddings", cJSON_CreateBool(c->tied));
}

static bool has_bias(const model *m, weight_slot slot)
{
    return family_has(model_get_config(m)->family, slot) && model_get_weight(m, slot, 0)->bias.rank;
}

/* What does not change a pass: the names, and LlamaConfig's defaults. */
static void add_names(cJSON *root, const model *m)
{
    const model_family *family = model_get_config(m)->family;
    cJSON *architectures = cJSON_CreateArray();
    cJSON_AddItemToArray(architectures, cJSON_CreateString(family->json[0]));
    offer(root, "architectures", architectures);
    offer(root, "model_type", cJSON_CreateString(family->json[1] ? family->json[1] : family->name));
    offer(root, "hidden_act",
          cJSON_CreateString(family->activation == FAMILY_SILU ? "silu" : "gelu_pytorch_tanh"));
    offer(root, "attention_bias", cJSON_CreateBool(has_bias(m, WEIGHT_ATTN_Q)));
    offer(root, "mlp_bias", cJSON_CreateBool(has_bias(m, WEIGHT_FFN_DOWN)));
    offer(root, "torch_dtype", cJSON_CreateString(torch_dtype(m)));
    offer_number(root, "attention_dropout", 0);
    offer_number(root, "initializer_range", 0.02);
    offer_number(root, "pretraining_tp", 1);
    offer(root, "use_cache", cJSON_CreateTrue());
    offer(root, "transformers_version", cJSON_CreateString("4.51.3"));
    offer(root, "_attn_implementation_autoset", cJSON_CreateTrue());
}

/* The model's config.json, where there is one; else an empty object. */
static cJSON *read_own(const char *path)
{
    char file[4096];
    mapping map = {0};
    snprintf(file, sizeof file, file_is_directory(path) ? "%s/config.json" : "%s", path);
    const char *dot = strrchr(file, '.');
    cJSON *own = NULL;
    if (dot && strcmp(dot, ".json") == 0 && mapping_open(file, &map, NULL) == QP_OK) {
        own = cJSON_ParseWithLength((const char *)map.data, map.size);
        mapping_close(&map);
    }
    if (cJSON_IsObject(own)) return own;
    cJSON_Delete(own);
    return cJSON_CreateObject();
}

static void print_config(const model *m, cJSON *root, strbuf *out)
{
    const char *name = model_get_config(m)->family->json[0], *end = strstr(name, "ForCausal");
    add_names(root, m);
    add_sizes(root, m);
    add_tokens(root, m);
    strbuf_printf(out, "%.*sConfig ", end ? (int)(end - name) : (int)strlen(name), name);
    print_value(root, 0, out);
    strbuf_putc(out, '\n');
}

qp_status config_describe(const char *path, char **text, qp_error *error)
{
    const model_options sizes_only = {.sizes_only = true, .config_is_enough = true};
    model *m = NULL;
    strbuf out = {0};
    *text = NULL;
    TRY(model_open(path, &sizes_only, &m, error));
    cJSON *root = read_own(path);
    if (root) print_config(m, root, &out);
    cJSON_Delete(root);
    model_close(m);
    *text = strbuf_take(&out);
    return *text ? QP_OK : error_no_memory(error, "the configuration", 0);
}
