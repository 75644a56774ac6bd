/* The numbers of a mixture of experts, by config.json and by a GGUF file's keys. */
#include "model/config_read.h"

#include <math.h>
#include <stdio.h>

const char *config_experts_key(const cJSON *json)
{
    return json_get(json, "num_local_experts") ? "num_local_experts" : "num_experts";
}

static qp_status require_count(const cJSON *json, const char *key, const char *where, int64_t *out,
                               qp_error *error)
{
    if (!json_get(json, key))
        return error_set(error, QP_FORMAT,
                         "%s: \"%s\" is missing, but the model is a mixture of "
                         "experts",
                         where, key);
    return json_get_i64(json, key, where, out, error);
}

/* Qwen's keys of layers that have a dense FFN. */
static qp_status refuse_dense_layers(const cJSON *json, const char *where, qp_error *error)
{
    int64_t step = 1;
    TRY(json_get_i64(json, "decoder_sparse_step", where, &step, error));
    const cJSON *dense = json_get(json, "mlp_only_layers");
    if (step == 1 && cJSON_GetArraySize(dense) == 0) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "%s: %s says that some layers have no experts; only models with equal layers "
                     "can be run",
                     where, step == 1 ? "\"mlp_only_layers\"" : "\"decoder_sparse_step\"");
}

qp_status config_read_experts(const cJSON *json, const char *where, model_config *out,
                              qp_error *error)
{
    const model_family *family = out->family;
    if (!family->experts) return QP_OK;
    TRY(require_count(json, config_experts_key(json), where, &out->n_experts, error));
    TRY(require_count(json, "num_experts_per_tok", where, &out->n_experts_used, error));
    TRY(require_count(json, family->expert_size_key, where, &out->intermediate_size, error));
    TRY(refuse_dense_layers(json, where, error));
    out->swiglu = family->swiglu;
    if (family->swiglu.alpha > 0)
        TRY(json_get_double(json, "swiglu_limit", where, &out->swiglu.limit, error));
    out->experts_normalised = family->experts_normalised && !family->experts_switch;
    if (!family->experts_switch) return QP_OK;
    return json_get_bool(json, "norm_topk_prob", where, &out->experts_normalised, error);
}

/* The number of a key of the architecture, if it is there. */
static qp_status read_key(const gguf *file, const char *architecture, const char *name,
                          int64_t *out, qp_error *error)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    return gguf_get_i64(file, key, out, error);
}

qp_status config_gguf_experts(const gguf *file, const char *architecture, int64_t *out,
                              qp_error *error)
{
    *out = 0;
    return read_key(file, architecture, "expert_count", out, error);
}

/* Keys that change how experts are chosen or what they compute. */
static qp_status refuse_other_routing(const gguf *file, const char *architecture, qp_error *error)
{
    static const char *const keys[] = {"expert_shared_count", "expert_group_count",
                                       "leading_dense_block_count"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t value = 0;
        TRY(read_key(file, architecture, keys[i], &value, error));
        if (value != 0)
            return error_set(error, QP_UNSUPPORTED,
                             "%s: key \"%s.%s\" is %lld, with which quipu does not compute; "
                             "expected 0 or no such key",
                             gguf_path(file), architecture, keys[i], (long long)value);
    }
    return QP_OK;
}

qp_status config_read_gguf_experts(const gguf *file, model_config *out, qp_error *error)
{
    const char *architecture = out->family->gguf;
    if (!out->family->experts) return QP_OK;
    TRY(refuse_other_routing(file, architecture, error));
    TRY(config_gguf_experts(file, architecture, &out->n_experts, error));
    TRY(read_key(file, architecture, "expert_used_count", &out->n_experts_used, error));
    TRY(read_key(file, architecture, "expert_feed_forward_length", &out->intermediate_size, error));
    out->experts_normalised = out->family->experts_normalised;
    out->swiglu = out->family->swiglu;
    return QP_OK;
}

qp_status config_check_experts(const model_config *c, const char *where, qp_error *error)
{
    enum { MOST = 4096, MOST_USED = 256 };
    if (!c->family->experts) return QP_OK;
    if (c->n_experts < 1 || c->n_experts > MOST)
        return error_set(error, QP_FORMAT, "%s: the number of experts must be 1 to %d, found %lld",
                         where, MOST, (long long)c->n_experts);
    const int64_t most = c->n_experts < MOST_USED ? c->n_experts : MOST_USED;
    if (c->n_experts_used < 1 || c->n_experts_used > most)
        return error_set(error, QP_FORMAT,
                         "%s: the experts that a token uses must be 1 to %lld of %lld, found %lld",
                         where, (long long)most, (long long)c->n_experts,
                         (long long)c->n_experts_used);
    if (c->swiglu.limit >= 0 && isfinite(c->swiglu.limit)) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: \"swiglu_limit\" must be at least 0, found %g", where,
                     c->swiglu.limit);
}
