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
        {"num_local_experts", "a mixture of experts is not supported; only dense models are"},
        {"num_experts", "a mixture of experts is not supported; only dense models are"},
        {"attn_logit_softcapping", "quipu computes without a soft cap"},
        {"final_logit_softcapping", "quipu computes without a soft cap"},
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

static qp_status require_i64(const cJSON *json, const char *key, const char *where, int64_t *out,
                             qp_error *error)
{
    if (!json_get(json, key))
        return error_set(error, QP_FORMAT, "%s: \"%s\" is missing", where, key);
    return json_get_i64(json, key, where, out, error);
}

/* A scaling has no usual values: without a key it would be another scaling. */
static qp_status require_keys(const cJSON *scaling, const char *const *keys, const char *where,
                              const char *kind, qp_error *error)
{
    for (; *keys; keys++) {
        if (!json_get(scaling, *keys))
            return error_set(error, QP_FORMAT,
                             "%s: RoPE scaling \"%s\" needs \"%s\", which is missing", where, kind,
                             *keys);
    }
    return QP_OK;
}

static qp_status read_scaling(const cJSON *scaling, const char *where, rope_config *rope,
                              qp_error *error)
{
    static const char *const needed[][5] = {
        [ROPE_DEFAULT] = {NULL},
        [ROPE_LINEAR] = {"factor", NULL},
        [ROPE_DYNAMIC] = {"factor", NULL},
        [ROPE_LLAMA3] = {"factor", "low_freq_factor", "high_freq_factor",
                         "original_max_position_embeddings", NULL}};
    const char *kind = "default";
    TRY(json_get_string(scaling, "type", where, &kind, error));
    TRY(json_get_string(scaling, "rope_type", where, &kind, error));
    int found = -1;
    for (int s = ROPE_DEFAULT; s <= ROPE_LLAMA3; s++) {
        if (strcmp(kind, rope_scaling_name((rope_scaling)s)) == 0) found = s;
    }
    char quoted[SLICE_QUOTE_SIZE];
    if (found < 0)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: RoPE scaling \"%s\" is not supported; expected default, linear, "
                         "dynamic or llama3",
                         where, slice_quote(slice_of(kind), quoted));
    TRY(require_keys(scaling, needed[found], where, kind, error));
    rope->scaling = (rope_scaling)found;
    TRY(json_get_double(scaling, "factor", where, &rope->factor, error));
    TRY(json_get_double(scaling, "rope_theta", where, &rope->theta, error));
    TRY(json_get_double(scaling, "low_freq_factor", where, &rope->low_freq_factor, error));
    TRY(json_get_double(scaling, "high_freq_factor", where, &rope->high_freq_factor, error));
    /* Dynamic scaling counts from max_position_embeddings, whatever else is written. */
    if (rope->scaling != ROPE_LLAMA3) return QP_OK;
    return json_get_i64(scaling, "original_max_position_embeddings", where, &rope->original_context,
                        error);
}

/* These families rotate whole heads. transformers computes so too whatever the key says, but a
 * model that has been trained in another way would then speak nonsense. */
static qp_status refuse_partial(const cJSON *json, const char *where, qp_error *error)
{
    double share = 1;
    TRY(json_get_double(json, "partial_rotary_factor", where, &share, error));
    if (share == 1) return QP_OK;
    return error_set(
        error, QP_UNSUPPORTED,
        "%s: \"partial_rotary_factor\" is %g; models of this architecture rotate whole "
        "heads: expected 1 or no such key",
        where, share);
}

static qp_status read_rope(const cJSON *json, const char *where, const model_config *config,
                           rope_config *rope, qp_error *error)
{
    const double usual = config->family->rope_theta;
    *rope = (rope_config){.dim = config->head_dim,
                          .theta = usual > 0 ? usual : 10000,
                          .factor = 1,
                          .original_context = config->context_length};
    TRY(json_get_double(json, "rope_theta", where, &rope->theta, error));
    TRY(refuse_partial(json, where, error));
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *scaling = json_get(json, keys[i]);
        if (!scaling) continue;
        if (!cJSON_IsObject(scaling))
            return error_set(error, QP_FORMAT, "%s: \"%s\" must be an object, found %s", where,
                             keys[i], json_type_name(scaling));
        for (const cJSON *item = scaling->child; item; item = item->next) {
            if (cJSON_IsObject(item))
                return error_set(error, QP_UNSUPPORTED,
                                 "%s: \"%s\" differs between kinds of layers; only models with "
                                 "equal layers can be run",
                                 where, keys[i]);
        }
        TRY(refuse_partial(scaling, where, error));
        TRY(read_scaling(scaling, where, rope, error));
    }
    return QP_OK;
}

static qp_status read_activation(const cJSON *json, const char *where, qp_error *error)
{
    const char *activation = "silu";
    TRY(json_get_string(json, "hidden_act", where, &activation, error));
    if (strcmp(activation, "silu") == 0) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "%s: activation \"%s\" is not supported; expected silu",
                     where, activation);
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
    TRY(read_activation(json, where, error));
    TRY(require_i64(json, "hidden_size", where, &out->hidden_size, error));
    TRY(require_i64(json, "intermediate_size", where, &out->intermediate_size, error));
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
    TRY(json_get_double(json, "rms_norm_eps", where, &out->rms_norm_eps, error));
    out->tied = family->tied;
    TRY(json_get_bool(json, "tie_word_embeddings", where, &out->tied, error));
    TRY(read_biases(json, where, out, error));
    out->rope = (rope_config){.dim = 2, .theta = 1}; /* the sizes first: RoPE is read by them */
    const cJSON *quantization = json_get(json, "quantization_config");
    if (quantization && !cJSON_IsFalse(quantization))
        TRY(config_read_quantization(quantization, where, out, error));
    TRY(config_check(out, where, error));
    TRY(read_rope(json, where, out, &out->rope, error));
    TRY(config_read_layers(json, where, out, error));
    const char *name = "";
    TRY(json_get_string(json, "_name_or_path", where, &name, error));
    out->name = arena_strdup(arena, name);
    if (!out->name) return error_no_memory(error, "the model's name", strlen(name));
    return config_check(out, where, error);
}
