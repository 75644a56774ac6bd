/* How the heads of q and k turn, by config.json: rope_theta with rope_scaling, or rope_parameters,
 * as transformers' modeling_rope_utils.py reads them. */
#include "model/config_read.h"

#include <math.h>
#include <string.h>

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

/* Phi 3 calls longrope by two older names. */
static const char *current_name(const cJSON *scaling, const char *kind)
{
    const bool by_factors = json_get(scaling, "long_factor") != NULL;
    const bool older = strcmp(kind, "su") == 0 || strcmp(kind, "yarn") == 0;
    return by_factors && older ? "longrope" : kind;
}

static qp_status find_kind(const cJSON *scaling, const char *where, rope_scaling *out,
                           qp_error *error)
{
    static const char *const needed[ROPE_SCALINGS][5] = {
        [ROPE_LINEAR] = {"factor"},
        [ROPE_DYNAMIC] = {"factor"},
        [ROPE_LLAMA3] = {"factor", "low_freq_factor", "high_freq_factor",
                         "original_max_position_embeddings"},
        [ROPE_YARN] = {"factor"},
        [ROPE_LONGROPE] = {"short_factor", "long_factor"}};
    const char *kind = "default";
    TRY(json_get_string(scaling, "type", where, &kind, error));
    TRY(json_get_string(scaling, "rope_type", where, &kind, error));
    kind = current_name(scaling, kind);
    int found = -1;
    for (int s = ROPE_DEFAULT; s < ROPE_SCALINGS; s++) {
        if (strcmp(kind, rope_scaling_name((rope_scaling)s)) == 0) found = s;
    }
    char quoted[SLICE_QUOTE_SIZE];
    if (found < 0)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: RoPE scaling \"%s\" is not supported; expected default, linear, "
                         "dynamic, llama3, yarn or longrope",
                         where, slice_quote(slice_of(kind), quoted));
    *out = (rope_scaling)found;
    return require_keys(scaling, needed[found], where, kind, error);
}

/* What a longrope divides frequencies by: a number for each pair. */
static qp_status read_divisors(const cJSON *scaling, const char *key, const char *where,
                               arena *arena, const rope_config *rope, const float **out,
                               qp_error *error)
{
    const cJSON *list = json_get(scaling, key), *item;
    const int64_t half = rope->dim / 2;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != half)
        return error_set(error, QP_FORMAT,
                         "%s: \"%s\" must be an array of a number for each of %lld pairs, found %s "
                         "of %d",
                         where, key, (long long)half, json_type_name(list),
                         cJSON_GetArraySize(list));
    float *divisors = arena_alloc(arena, (size_t)half, sizeof *divisors);
    if (!divisors) return error_no_memory(error, "RoPE's divisors", (size_t)half);
    *out = divisors;
    cJSON_ArrayForEach(item, list)
    {
        const double value = cJSON_IsNumber(item) ? item->valuedouble : 0;
        if (!(value >= 1e-6 && value <= 1e9))
            return error_set(error, QP_FORMAT, "%s: \"%s\" must hold positive numbers", where, key);
        *divisors++ = (float)value;
    }
    return QP_OK;
}

static qp_status read_yarn(const cJSON *scaling, const char *where, rope_config *rope,
                           qp_error *error)
{
    double factor = 0, mscale = 0, all = 0;
    bool truncate = true;
    rope->beta_fast = 32, rope->beta_slow = 1;
    TRY(json_get_double(scaling, "beta_fast", where, &rope->beta_fast, error));
    TRY(json_get_double(scaling, "beta_slow", where, &rope->beta_slow, error));
    TRY(json_get_bool(scaling, "truncate", where, &truncate, error));
    TRY(json_get_double(scaling, "attention_factor", where, &factor, error));
    TRY(json_get_double(scaling, "mscale", where, &mscale, error));
    TRY(json_get_double(scaling, "mscale_all_dim", where, &all, error));
    rope->beta_exact = !truncate;
    rope->attention_factor = factor != 0 ? factor : rope_yarn_attention(rope->factor);
    if (factor == 0 && mscale != 0 && all != 0) {
        const double more = rope_yarn_attention(rope->factor) - 1;
        rope->attention_factor = (1 + mscale * more) / (1 + all * more);
    }
    return QP_OK;
}

/* The factor by which longrope lengthens the context gives its attention factor, and follows from
 * the contexts where it is not written. */
static qp_status read_longrope(const cJSON *scaling, const char *where, arena *arena,
                               int64_t context, rope_config *rope, qp_error *error)
{
    double factor = 0;
    TRY(read_divisors(scaling, "short_factor", where, arena, rope, &rope->divisors, error));
    TRY(read_divisors(scaling, "long_factor", where, arena, rope, &rope->long_divisors, error));
    TRY(json_get_double(scaling, "attention_factor", where, &factor, error));
    const double original = (double)rope->original_context;
    const double longer = json_get(scaling, "factor") ? rope->factor : (double)context / original;
    const double usual = longer > 1 ? sqrt(1 + log(longer) / log(original)) : 1;
    rope->attention_factor = factor != 0 ? factor : usual;
    return QP_OK;
}

static qp_status read_scaling(const cJSON *json, const cJSON *scaling, const char *where,
                              arena *arena, int64_t context, rope_config *rope, qp_error *error)
{
    TRY(find_kind(scaling, where, &rope->scaling, error));
    TRY(json_get_double(scaling, "factor", where, &rope->factor, error));
    TRY(json_get_double(scaling, "rope_theta", where, &rope->theta, error));
    TRY(json_get_double(scaling, "low_freq_factor", where, &rope->low_freq_factor, error));
    TRY(json_get_double(scaling, "high_freq_factor", where, &rope->high_freq_factor, error));
    /* Dynamic scaling counts from max_position_embeddings, whatever else is written. */
    if (rope->scaling < ROPE_LLAMA3) return QP_OK;
    TRY(json_get_i64(scaling, "original_max_position_embeddings", where, &rope->original_context,
                     error));
    TRY(json_get_i64(json, "original_max_position_embeddings", where, &rope->original_context,
                     error));
    if (rope->original_context < 2)
        return error_set(error, QP_FORMAT,
                         "%s: \"original_max_position_embeddings\" must be at least 2, found %lld",
                         where, (long long)rope->original_context);
    if (rope->scaling == ROPE_YARN) return read_yarn(scaling, where, rope, error);
    if (rope->scaling == ROPE_LLAMA3) return QP_OK;
    return read_longrope(scaling, where, arena, context, rope, error);
}

/* The share of each head that turns. Of families that rotate whole heads transformers does so
 * whatever the key says, but a model that has been trained in another way would then speak
 * nonsense. */
static qp_status read_partial(const cJSON *json, const char *where, const model_config *config,
                              rope_config *rope, qp_error *error)
{
    double share = 1;
    if (!json_get(json, "partial_rotary_factor")) return QP_OK;
    TRY(json_get_double(json, "partial_rotary_factor", where, &share, error));
    if (share != 1 && config->family->partial_rotary == 0)
        return error_set(
            error, QP_UNSUPPORTED,
            "%s: \"partial_rotary_factor\" is %g; models of this architecture rotate whole "
            "heads: expected 1 or no such key",
            where, share);
    if (!(share > 0 && share <= 1))
        return error_set(error, QP_FORMAT,
                         "%s: \"partial_rotary_factor\" must be above 0 and at most 1, found %g",
                         where, share);
    rope->dim = (int64_t)((double)config->head_dim * share);
    return config_check_rope(rope, config->head_dim, where, error);
}

/* transformers 5 writes an object for each kind of layer where layers that slide turn otherwise. */
static qp_status read_parameters(const cJSON *json, const char *key, const char *kind,
                                 const char *where, arena *arena, const model_config *config,
                                 rope_config *rope, qp_error *error)
{
    const cJSON *scaling = json_get(json, key);
    if (!scaling) return QP_OK;
    if (config->family->local_rope && cJSON_IsObject(scaling)) {
        const cJSON *of_kind = json_get(scaling, kind);
        const bool each = of_kind || json_get(scaling, "full_attention");
        if (!each && strcmp(kind, "full_attention") != 0) return QP_OK;
        if (each) scaling = of_kind;
        if (!scaling) return QP_OK;
    }
    if (!cJSON_IsObject(scaling))
        return error_set(error, QP_FORMAT, "%s: \"%s\" must be an object, found %s", where, key,
                         json_type_name(scaling));
    for (const cJSON *item = scaling->child; item; item = item->next) {
        if (cJSON_IsObject(item))
            return error_set(error, QP_UNSUPPORTED,
                             "%s: \"%s\" differs between kinds of layers; only models with "
                             "equal layers can be run",
                             where, key);
    }
    TRY(read_partial(scaling, where, config, rope, error));
    return read_scaling(json, scaling, where, arena, config->context_length, rope, error);
}

qp_status config_read_rope(const cJSON *json, const char *where, arena *arena, model_config *out,
                           qp_error *error)
{
    const model_family *family = out->family;
    const double share = family->partial_rotary;
    rope_config rope = {.interleaved = family->pairs,
                        .dim = (int64_t)((double)out->head_dim * (share > 0 ? share : 1)),
                        .theta = family->rope_theta > 0 ? family->rope_theta : 10000,
                        .factor = 1,
                        .original_context = out->context_length};
    TRY(json_get_double(json, "rope_theta", where, &rope.theta, error));
    TRY(read_partial(json, where, out, &rope, error));
    rope_config local = rope;
    local.theta = family->local_theta > 0 ? family->local_theta : rope.theta;
    TRY(json_get_double(json, "rope_local_base_freq", where, &local.theta, error));
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    for (int i = 0; i < 2; i++) {
        TRY(read_parameters(json, keys[i], "full_attention", where, arena, out, &rope, error));
        if (family->local_rope)
            TRY(read_parameters(json, keys[i], "sliding_attention", where, arena, out, &local,
                                error));
    }
    out->rope = rope;
    if (family->local_rope) out->rope_local = local;
    return QP_OK;
}
