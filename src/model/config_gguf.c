/* A model's sizes from the keys of a GGUF file. Keys are "ARCHITECTURE.name". */
#include "model/config_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads keys of one architecture and remembers the first error. */
typedef struct key_reader {
    const gguf *file;
    const char *architecture;
    qp_error *error;
    qp_status status;
    char key[128];
} key_reader;

static const char *full_key(key_reader *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->architecture, name);
    return r->key;
}

static void read_i64(key_reader *r, const char *name, int64_t *out)
{
    if (r->status == QP_OK) r->status = gguf_get_i64(r->file, full_key(r, name), out, r->error);
}

static void read_double(key_reader *r, const char *name, double *out)
{
    if (r->status == QP_OK) r->status = gguf_get_double(r->file, full_key(r, name), out, r->error);
}

static void require(key_reader *r, const char *name)
{
    if (r->status == QP_OK && !gguf_find(r->file, full_key(r, name)))
        r->status =
            error_set(r->error, QP_FORMAT, "%s: key \"%s\" is missing", gguf_path(r->file), r->key);
}

/* A number, or an array with the same number for every layer. */
static void read_per_layer(key_reader *r, const char *name, int64_t *out)
{
    if (r->status != QP_OK) return;
    const gguf_value *value = gguf_find(r->file, full_key(r, name));
    if (!value || value->type != GGUF_ARRAY) {
        read_i64(r, name, out);
        return;
    }
    int64_t *values;
    size_t count;
    r->status = gguf_get_i64_array(r->file, r->key, &values, &count, r->error);
    if (r->status != QP_OK) return;
    for (size_t i = 0; i < count && r->status == QP_OK; i++) {
        *out = values[0];
        if (values[i] != values[0])
            r->status =
                error_set(r->error, QP_UNSUPPORTED,
                          "%s: key \"%s\" differs between layers (%lld and %lld); only "
                          "models with equal layers can be run",
                          gguf_path(r->file), r->key, (long long)values[0], (long long)values[i]);
    }
    free(values);
}

/* The window and its layers: those of sliding_window_pattern, a flag for each layer, or by the
 * architecture. */
static void read_window(key_reader *r, model_config *out)
{
    static const char pattern[] = "attention.sliding_window_pattern";
    int64_t *flags = NULL;
    size_t count = 0;
    read_i64(r, "attention.sliding_window", &out->window);
    const gguf_value *value = gguf_find(r->file, full_key(r, pattern));
    const bool each = value && value->type == GGUF_ARRAY;
    if (r->status == QP_OK && each)
        r->status = gguf_get_i64_array(r->file, r->key, &flags, &count, r->error);
    if (r->status != QP_OK) return;
    if (each && (int64_t)count < out->n_layers)
        r->status = error_set(r->error, QP_FORMAT,
                              "%s: key \"%s\" has %zu flags; expected one for each of %lld layers",
                              gguf_path(r->file), r->key, count, (long long)out->n_layers);
    for (int64_t layer = 0; layer < out->n_layers && r->status == QP_OK; layer++)
        if (!each || flags[layer]) layer_set_add(&out->windowed, layer);
    free(flags);
    if (!each && out->family->windowed == WINDOW_MOST) {
        int64_t interval = out->family->window_interval;
        read_i64(r, pattern, &interval);
        if (interval < 1 && r->status == QP_OK)
            r->status =
                error_set(r->error, QP_FORMAT, "%s: key \"%s\" must be at least 1, found %lld",
                          gguf_path(r->file), r->key, (long long)interval);
        if (r->status == QP_OK) out->windowed = family_sliding(interval, out->n_layers);
        return;
    }
    out->windowed_unknown = !each && (value || out->family->window_by_switch);
}

const char *config_gguf_epsilon(const model_family *family)
{
    return family->norms_center ? "attention.layer_norm_epsilon"
                                : "attention.layer_norm_rms_epsilon";
}

static qp_status read_architecture(const gguf *file, model_config *out, qp_error *error)
{
    text_slice name = {0};
    TRY(gguf_get_string(file, "general.architecture", &name, error));
    if (!name.data)
        return error_set(error, QP_FORMAT, "%s: key \"general.architecture\" is missing",
                         gguf_path(file));
    char quoted[SLICE_QUOTE_SIZE], known[256], text[64];
    int64_t experts = 0;
    if (name.length < sizeof text) {
        snprintf(text, sizeof text, "%.*s", (int)name.length, name.data);
        TRY(config_gguf_experts(file, text, &experts, error));
    }
    out->family = family_by_gguf(name, experts > 0);
    if (out->family) return QP_OK;
    if (family_by_gguf(name, experts <= 0))
        return error_set(error, experts > 0 ? QP_UNSUPPORTED : QP_FORMAT,
                         "%s: key \"%s.expert_count\" is %lld, but the architecture %s is %s",
                         gguf_path(file), text, (long long)experts, text,
                         experts > 0 ? "only supported as dense models" : "a mixture of experts");
    return error_set(error, QP_UNSUPPORTED,
                     "%s: architecture \"%s\" is not supported%s; expected one of %s",
                     gguf_path(file), slice_quote(name, quoted), family_refusal_gguf(name),
                     family_list_gguf(known, sizeof known));
}

/* As llama.cpp computes it: attn_factor comes on top of YaRN's own. */
static void read_yarn(key_reader *r, double factor, bool exact, rope_config *rope)
{
    double attention = 1;
    rope->scaling = ROPE_YARN;
    rope->factor = factor;
    rope->beta_fast = 32, rope->beta_slow = 1;
    rope->beta_exact = exact;
    if (factor == 0) require(r, "rope.scaling.factor");
    read_double(r, "rope.scaling.yarn_beta_fast", &rope->beta_fast);
    read_double(r, "rope.scaling.yarn_beta_slow", &rope->beta_slow);
    read_double(r, "rope.scaling.attn_factor", &attention);
    rope->attention_factor = attention * rope_yarn_attention(factor);
}

/* A longrope's divisors are tensors, rope_factors_short.weight and rope_factors_long.weight. */
static bool has_long_factors(const key_reader *r)
{
    return gguf_find_tensor(r->file, "rope_factors_long.weight") != NULL;
}

static void read_rope(key_reader *r, const model_config *config, rope_config *rope)
{
    *rope = (rope_config){.interleaved = config->family->gguf_pairs,
                          .dim = config->head_dim,
                          .theta = 10000,
                          .factor = 1,
                          .original_context = config->context_length};
    read_i64(r, "rope.dimension_count", &rope->dim);
    read_double(r, "rope.freq_base", &rope->theta);
    read_i64(r, "rope.scaling.original_context_length", &rope->original_context);
    if (has_long_factors(r)) {
        rope->scaling = ROPE_LONGROPE;
        read_double(r, "rope.scaling.attn_factor", &rope->attention_factor);
    }
    text_slice kind = {0};
    if (r->status == QP_OK)
        r->status = gguf_get_string(r->file, full_key(r, "rope.scaling.type"), &kind, r->error);
    if (r->status != QP_OK) return;
    double factor = 0;
    read_double(r, "rope.scale_linear", &factor); /* the key's older name */
    read_double(r, "rope.scaling.factor", &factor);
    if (kind.data && slice_is(kind, "yarn")) {
        read_yarn(r, factor, config->family->yarn_exact, rope);
        return;
    }
    bool none = !kind.data || slice_is(kind, "none") || slice_is(kind, "longrope");
    if (none && (kind.data || factor == 0)) return;
    if (none || slice_is(kind, "linear")) {
        rope->scaling = ROPE_LINEAR;
        rope->factor = factor;
        if (factor == 0) require(r, "rope.scaling.factor");
        return;
    }
    char quoted[SLICE_QUOTE_SIZE];
    r->status =
        error_set(r->error, QP_UNSUPPORTED,
                  "%s: RoPE scaling \"%s\" is not supported; expected none, linear, yarn or "
                  "longrope (llama3's comes as the tensor rope_freqs.weight)",
                  gguf_path(r->file), slice_quote(kind, quoted));
}

/* Keys that other architectures compute with: these models only with the value that has no effect,
 * which is `neutral`. */
static void refuse_other_arithmetic(key_reader *r, const rope_config *rope)
{
    static const struct {
        const char *name;
        double neutral;
    } keys[] = {{"attention.clamp_kqv", 0},
                {"attention.max_alibi_bias", 0},
                {"rope.scaling.yarn_log_multiplier", 0},
                {"rope.scaling.yarn_ext_factor", 1},
                {"rope.scaling.attn_factor", 1},
                {"expert_weights_scale", 1},
                {"expert_gating_func", 1}};
    const bool scales_angles = rope->scaling == ROPE_YARN || rope->scaling == ROPE_LONGROPE;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && r->status == QP_OK; i++) {
        double value = keys[i].neutral;
        if (scales_angles && strstr(keys[i].name, "attn_factor")) continue;
        read_double(r, keys[i].name, &value);
        if (r->status == QP_OK && value != keys[i].neutral && value != 0)
            r->status = error_set(r->error, QP_UNSUPPORTED,
                                  "%s: key \"%s\" is %g, with which quipu does not compute; "
                                  "expected %g or no such key",
                                  gguf_path(r->file), r->key, value, keys[i].neutral);
    }
}

/* The base of layers that slide, whose RoPE is not scaled. */
static void read_local_rope(key_reader *r, model_config *out)
{
    const model_family *family = out->family;
    if (!family->local_rope) return;
    out->rope_local = out->rope;
    out->rope_local.scaling = ROPE_DEFAULT;
    out->rope_local.attention_factor = 0;
    if (family->local_theta > 0) out->rope_local.theta = family->local_theta;
    read_double(r, "rope.freq_base_swa", &out->rope_local.theta);
}

static void read_pooling(key_reader *r, model_pooling *out)
{
    int64_t kind = POOLING_NONE;
    read_i64(r, "pooling_type", &kind);
    if (r->status == QP_OK && (kind < 0 || kind >= POOLING_COUNT))
        r->status = error_set(r->error, QP_UNSUPPORTED,
                              "%s: key \"%s\" is %lld; expected a kind of pooling from 0 to %d",
                              gguf_path(r->file), r->key, (long long)kind, POOLING_COUNT - 1);
    *out = (model_pooling)kind;
}

qp_status config_from_gguf(const gguf *file, arena *arena, model_config *out, qp_error *error)
{
    *out = (model_config){0};
    TRY(read_architecture(file, out, error));
    key_reader r = {.file = file, .architecture = out->family->gguf, .error = error};
    out->biases = family_always_biased(out->family);
    out->biases_if_any = family_may_be_biased(out->family);
    const char *const required[] = {"context_length",       "embedding_length",
                                    "block_count",          "feed_forward_length",
                                    "attention.head_count", config_gguf_epsilon(out->family)};
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        require(&r, required[i]);
    read_i64(&r, "context_length", &out->context_length);
    read_i64(&r, "embedding_length", &out->hidden_size);
    read_i64(&r, "block_count", &out->n_layers);
    read_per_layer(&r, "feed_forward_length", &out->intermediate_size);
    read_per_layer(&r, "attention.head_count", &out->n_heads);
    if (r.status == QP_OK) r.status = config_read_gguf_experts(file, out, error);
    out->norms_span_heads = out->family->norms_span_heads;
    out->n_kv_heads = out->n_heads;
    read_per_layer(&r, "attention.head_count_kv", &out->n_kv_heads);
    read_double(&r, config_gguf_epsilon(out->family), &out->rms_norm_eps);
    if (out->n_heads > 0) out->head_dim = out->hidden_size / out->n_heads;
    read_i64(&r, "attention.key_length", &out->head_dim);
    int64_t value_length = out->head_dim;
    read_i64(&r, "attention.value_length", &value_length);
    if (r.status == QP_OK && value_length != out->head_dim)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: keys of %lld and values of %lld elements a head are not supported; "
                         "they must be equal",
                         gguf_path(file), (long long)out->head_dim, (long long)value_length);
    out->tied = !gguf_find_tensor(file, "output.weight");
    const stored_tensor *table = gguf_find_tensor(file, "token_embd.weight");
    if (table && table->rank == 2) out->vocab_size = table->shape[0];
    read_rope(&r, out, &out->rope);
    read_local_rope(&r, out);
    refuse_other_arithmetic(&r, &out->rope);
    if (r.status == QP_OK) r.status = config_scales_of_gguf(file, out, error);
    read_pooling(&r, &out->pooling);
    TRY(r.status);
    text_slice name = {0};
    TRY(gguf_get_string(file, "general.name", &name, error));
    out->name = name.data ? arena_strndup(arena, name.data, name.length) : "";
    if (!out->name) return error_no_memory(error, "the model's name", name.length);
    if (!table)
        return error_set(error, QP_FORMAT,
                         "%s: tensor \"token_embd.weight\" is missing: this file holds a "
                         "vocabulary or a part of a model, not a whole one",
                         gguf_path(file));
    TRY(config_check(out, gguf_path(file), error));
    out->no_rope = family_no_rope(out->family, out->n_layers);
    read_window(&r, out);
    TRY(r.status);
    config_drop_local_rope(out);
    return config_check(out, gguf_path(file), error);
}
