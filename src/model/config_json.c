/* A model's sizes from a Hugging Face config.json, in its older and its newer spellings. */
#include "model/config_read.h"

#include <string.h>

static qp_status read_family(const cJSON *json, const char *where, model_config *out,
                             qp_error *error)
{
    const cJSON *architectures = json_get(json, "architectures");
    const cJSON *first = cJSON_IsArray(architectures) ? architectures->child : NULL;
    const char *name = cJSON_IsString(first) ? first->valuestring : NULL;
    const char *type = NULL;
    TRY(json_get_string(json, "model_type", where, &type, error));
    if (!name) name = type;
    out->family = name ? family_by_json(name) : NULL;
    if (out->family) return QP_OK;
    char quoted[SLICE_QUOTE_SIZE], known[256];
    return error_set(error, QP_UNSUPPORTED,
                     "%s: architecture \"%s\" is not supported%s; expected one of %s", where,
                     name ? slice_quote(slice_of(name), quoted) : "(none given)",
                     name ? family_refusal_json(name) : "", family_list_json(known, sizeof known));
}

/* Keys whose models are computed in another way than the tensors' names would say. */
static qp_status refuse_other_arithmetic(const cJSON *json, const char *where, qp_error *error)
{
    static const struct {
        const char *key, *why;
    } keys[] = {
        {"compression_config", "weights compressed in this way are not read: use the model before "
                               "compression, or a GGUF file of it"},
        {"use_bidirectional_attention", "quipu computes attention to earlier positions only"},
        {"clip_qkv", "quipu computes without clipping"},
        {"rope_interleaved", "the rows of q and k must be in the order for RoPE on halves"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *item = json_get(json, keys[i].key);
        bool neutral =
            !item || cJSON_IsFalse(item) || (cJSON_IsNumber(item) && item->valuedouble == 0);
        if (!neutral)
            return error_set(error, QP_UNSUPPORTED, "%s: \"%s\" is set: %s", where, keys[i].key,
                             keys[i].why);
    }
    return QP_OK;
}

/* Experts in a family that has none. */
static qp_status refuse_experts(const cJSON *json, const char *where, const model_config *c,
                                qp_error *error)
{
    const char *key = config_experts_key(json);
    const cJSON *item = json_get(json, key);
    if (c->family->experts || !item || (cJSON_IsNumber(item) && item->valuedouble == 0))
        return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "%s: \"%s\" is set: a mixture of experts of the family %s is not supported; "
                     "only dense models are",
                     where, key, c->family->name);
}

static qp_status require_i64(const cJSON *json, const char *key, const char *where, int64_t *out,
                             qp_error *error)
{
    if (!json_get(json, key))
        return error_set(error, QP_FORMAT, "%s: \"%s\" is missing", where, key);
    return json_get_i64(json, key, where, out, error);
}

static qp_status read_activation(const cJSON *json, const char *where, const model_family *family,
                                 qp_error *error)
{
    static const char *const names[] = {
        [FAMILY_SILU] = "silu", [FAMILY_GELU_TANH] = "gelu_pytorch_tanh"};
    const char *expected = names[family->activation], *activation = expected;
    TRY(json_get_string(json, "hidden_act", where, &activation, error));
    TRY(json_get_string(json, "hidden_activation", where, &activation, error));
    if (strcmp(activation, expected) == 0) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "%s: activation \"%s\" is not supported; expected %s",
                     where, activation, expected);
}

static qp_status read_biases(const cJSON *json, const char *where, model_config *out,
                             qp_error *error)
{
    for (int i = 0; i < FAMILY_MAX_BIASES; i++) {
        const family_bias *rule = &out->family->biases[i];
        bool biased = !rule->key || rule->usual;
        if (rule->key) TRY(json_get_bool(json, rule->key, where, &biased, error));
        if (biased) out->biases |= rule->slots;
    }
    return QP_OK;
}

qp_status config_from_json(const cJSON *json, const char *where, arena *arena, model_config *out,
                           qp_error *error)
{
    *out = (model_config){.rms_norm_eps = 1e-6};
    if (!cJSON_IsObject(json))
        return error_set(error, QP_FORMAT, "%s: must be an object, found %s", where,
                         json_type_name(json));
    TRY(read_family(json, where, out, error));
    TRY(refuse_other_arithmetic(json, where, error));
    TRY(refuse_experts(json, where, out, error));
    TRY(read_activation(json, where, out->family, error));
    TRY(require_i64(json, "hidden_size", where, &out->hidden_size, error));
    if (!out->family->experts)
        TRY(require_i64(json, "intermediate_size", where, &out->intermediate_size, error));
    TRY(config_read_experts(json, where, out, error));
    out->norms_span_heads = out->family->norms_span_heads;
    TRY(require_i64(json, "num_hidden_layers", where, &out->n_layers, error));
    TRY(require_i64(json, "num_attention_heads", where, &out->n_heads, error));
    TRY(require_i64(json, "vocab_size", where, &out->vocab_size, error));
    const model_family *family = out->family;
    bool usual = family->n_kv_heads && !cJSON_HasObjectItem(json, "num_key_value_heads");
    out->n_kv_heads = usual ? family->n_kv_heads : out->n_heads;
    TRY(json_get_i64(json, "num_key_value_heads", where, &out->n_kv_heads, error));
    if (out->n_heads > 0) out->head_dim = out->hidden_size / out->n_heads;
    if (family->head_dim) out->head_dim = family->head_dim;
    TRY(json_get_i64(json, "head_dim", where, &out->head_dim, error));
    out->context_length = family->context_length;
    TRY(json_get_i64(json, "max_position_embeddings", where, &out->context_length, error));
    if (family->norms_center) out->rms_norm_eps = 1e-5;
    TRY(json_get_double(json, family->norms_center ? "layer_norm_eps" : "rms_norm_eps", where,
                        &out->rms_norm_eps, error));
    out->tied = family->tied;
    TRY(json_get_bool(json, "tie_word_embeddings", where, &out->tied, error));
    TRY(read_biases(json, where, out, error));
    out->rope = (rope_config){.dim = 2, .theta = 1}; /* the sizes first: RoPE is read by them */
    const cJSON *quantization = json_get(json, "quantization_config");
    if (quantization && !cJSON_IsFalse(quantization))
        TRY(config_read_quantization(quantization, where, out, error));
    TRY(config_check(out, where, error));
    TRY(config_read_rope(json, where, arena, out, error));
    TRY(config_scales_of_json(json, where, out, error));
    TRY(config_read_layers(json, where, out, error));
    const char *name = "";
    TRY(json_get_string(json, "_name_or_path", where, &name, error));
    out->name = arena_strdup(arena, name);
    if (!out->name) return error_no_memory(error, "the model's name", strlen(name));
    return config_check(out, where, error);
}
