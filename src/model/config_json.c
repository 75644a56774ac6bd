/* A model's sizes from a Hugging Face config.json, in its older and its newer spellings. */
#include "model/config.h"

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
    static const struct {
        const char *name;
        model_family family;
    } known[] = {{"LlamaForCausalLM", FAMILY_LLAMA},         {"llama", FAMILY_LLAMA},
                 {"MistralForCausalLM", FAMILY_LLAMA},       {"mistral", FAMILY_LLAMA},
                 {"InternLM2ForCausalLM", FAMILY_INTERNLM2}, {"internlm2", FAMILY_INTERNLM2}};
    for (size_t i = 0; name && i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        out->family = known[i].family;
        return QP_OK;
    }
    return error_set(error, QP_UNSUPPORTED,
                     "%s: architecture \"%s\" is not supported; expected LlamaForCausalLM, "
                     "MistralForCausalLM or InternLM2ForCausalLM",
                     where, name ? name : "(none given)");
}

static qp_status require_i64(const cJSON *json, const char *key, const char *where, int64_t *out,
                             qp_error *error)
{
    if (!json_get(json, key))
        return error_set(error, QP_FORMAT, "%s: \"%s\" is missing", where, key);
    return json_get_i64(json, key, where, out, error);
}

static qp_status read_scaling(const cJSON *scaling, const char *where, rope_config *rope,
                              qp_error *error)
{
    const char *kind = "default";
    TRY(json_get_string(scaling, "type", where, &kind, error));
    TRY(json_get_string(scaling, "rope_type", where, &kind, error));
    int found = -1;
    for (int s = ROPE_DEFAULT; s <= ROPE_LLAMA3; s++) {
        if (strcmp(kind, rope_scaling_name((rope_scaling)s)) == 0) found = s;
    }
    if (found < 0)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: RoPE scaling \"%s\" is not supported; expected default, linear, "
                         "dynamic or llama3",
                         where, kind);
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

static qp_status read_rope(const cJSON *json, const char *where, const model_config *config,
                           rope_config *rope, qp_error *error)
{
    *rope = (rope_config){.theta = 10000,
                          .factor = 1,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4,
                          .original_context = config->context_length};
    TRY(json_get_double(json, "rope_theta", where, &rope->theta, error));
    double share = 1;
    TRY(json_get_double(json, "partial_rotary_factor", where, &share, error));
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *scaling = json_get(json, keys[i]);
        if (!scaling) continue;
        if (!cJSON_IsObject(scaling))
            return error_set(error, QP_FORMAT, "%s: \"%s\" must be an object, found %s", where,
                             keys[i], json_type_name(scaling));
        TRY(json_get_double(scaling, "partial_rotary_factor", where, &share, error));
        TRY(read_scaling(scaling, where, rope, error));
    }
    if (!(share > 0 && share <= 1))
        return error_set(error, QP_FORMAT, "%s: \"partial_rotary_factor\" must be 0 to 1, found %g",
                         where, share);
    rope->dim = (int64_t)((double)config->head_dim * share);
    return QP_OK;
}

/* Within its window a sliding window attends to everything, so the context ends there. */
static qp_status read_window(const cJSON *json, const char *where, int64_t *context_length,
                             qp_error *error)
{
    bool used = true;
    int64_t window = 0;
    TRY(json_get_bool(json, "use_sliding_window", where, &used, error));
    TRY(json_get_i64(json, "sliding_window", where, &window, error));
    if (used && window > 0 && window < *context_length) *context_length = window;
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
    if (out->family == FAMILY_INTERNLM2)
        return json_get_bool(json, "bias", where, &out->attention_bias, error);
    TRY(json_get_bool(json, "attention_bias", where, &out->attention_bias, error));
    return json_get_bool(json, "mlp_bias", where, &out->mlp_bias, error);
}

qp_status config_from_json(const cJSON *json, const char *where, arena *arena, model_config *out,
                           qp_error *error)
{
    *out = (model_config){.context_length = 2048, .rms_norm_eps = 1e-6};
    if (!cJSON_IsObject(json))
        return error_set(error, QP_FORMAT, "%s: must be an object, found %s", where,
                         json_type_name(json));
    TRY(read_family(json, where, out, error));
    TRY(read_activation(json, where, error));
    TRY(require_i64(json, "hidden_size", where, &out->hidden_size, error));
    TRY(require_i64(json, "intermediate_size", where, &out->intermediate_size, error));
    TRY(require_i64(json, "num_hidden_layers", where, &out->n_layers, error));
    TRY(require_i64(json, "num_attention_heads", where, &out->n_heads, error));
    TRY(require_i64(json, "vocab_size", where, &out->vocab_size, error));
    out->n_kv_heads = out->n_heads;
    TRY(json_get_i64(json, "num_key_value_heads", where, &out->n_kv_heads, error));
    if (out->n_heads > 0) out->head_dim = out->hidden_size / out->n_heads;
    TRY(json_get_i64(json, "head_dim", where, &out->head_dim, error));
    TRY(json_get_i64(json, "max_position_embeddings", where, &out->context_length, error));
    TRY(json_get_double(json, "rms_norm_eps", where, &out->rms_norm_eps, error));
    TRY(json_get_bool(json, "tie_word_embeddings", where, &out->tied, error));
    TRY(read_biases(json, where, out, error));
    out->rope = (rope_config){.dim = 2, .theta = 1}; /* the sizes first: RoPE is read by them */
    TRY(config_check(out, where, error));
    TRY(read_rope(json, where, out, &out->rope, error));
    TRY(read_window(json, where, &out->context_length, error));
    const char *name = "";
    TRY(json_get_string(json, "_name_or_path", where, &name, error));
    out->name = arena_strdup(arena, name);
    if (!out->name) return error_no_memory(error, "the model's name", strlen(name));
    return config_check(out, where, error);
}
