/* The sizes of a model: what holds for every source of them. See config.h. */
#include "model/config_read.h"

#include <assert.h>
#include <math.h>

int64_t layer_set_count(const layer_set *set, int64_t n_layers)
{
    int64_t count = 0;
    for (int64_t layer = 0; layer < n_layers; layer++)
        count += layer_set_has(set, layer);
    return count;
}

void layer_set_print(const layer_set *set, int64_t n_layers, strbuf *out)
{
    const char *between = "";
    for (int64_t first = 0, last; first < n_layers; first = last + 1) {
        for (last = first; last < n_layers && layer_set_has(set, last);)
            last++;
        if (last == first) continue;
        strbuf_printf(out, "%s%lld", between, (long long)first);
        if (last - first > 1) strbuf_printf(out, " to %lld", (long long)last - 1);
        between = ", ";
    }
}

void config_drop_local_rope(model_config *c)
{
    if (c->window == 0) c->rope_local = (rope_config){0};
}

static qp_status check_size(const char *where, const char *name, int64_t value, int64_t most,
                            qp_error *error)
{
    if (value >= 1 && value <= most) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: %s must be 1 to %lld, found %lld", where, name,
                     (long long)most, (long long)value);
}

qp_status config_check_rope(const rope_config *rope, int64_t head_dim, const char *where,
                            qp_error *error)
{
    if (rope->dim < 2 || rope->dim % 2 || rope->dim > head_dim)
        return error_set(error, QP_FORMAT,
                         "%s: the rotary dimension must be even and at most head_dim %lld, "
                         "found %lld",
                         where, (long long)head_dim, (long long)rope->dim);
    if (!(rope->theta >= 1) || !isfinite(rope->theta))
        return error_set(error, QP_FORMAT, "%s: rope_theta must be at least 1, found %g", where,
                         rope->theta);
    if (rope->scaling == ROPE_DEFAULT) return QP_OK;
    if (!(rope->factor >= 1) || !isfinite(rope->factor))
        return error_set(error, QP_FORMAT,
                         "%s: the RoPE scaling factor must be at least 1, found %g", where,
                         rope->factor);
    if (rope->scaling == ROPE_LLAMA3 &&
        !(rope->low_freq_factor > 0 && rope->high_freq_factor > rope->low_freq_factor &&
          isfinite(rope->high_freq_factor)))
        return error_set(error, QP_FORMAT,
                         "%s: llama3 RoPE needs 0 < low_freq_factor < high_freq_factor, "
                         "found %g and %g",
                         where, rope->low_freq_factor, rope->high_freq_factor);
    if (rope->scaling == ROPE_DYNAMIC && rope->dim <= 2)
        return error_set(error, QP_FORMAT,
                         "%s: dynamic RoPE scaling needs a rotary dimension above 2", where);
    if (rope->scaling == ROPE_YARN &&
        !(rope->theta > 1 && rope->beta_slow > 0 && rope->beta_fast >= rope->beta_slow &&
          isfinite(rope->beta_fast)))
        return error_set(error, QP_FORMAT,
                         "%s: yarn RoPE needs rope_theta > 1 and 0 < beta_slow <= beta_fast, found "
                         "%g, %g and %g",
                         where, rope->theta, rope->beta_slow, rope->beta_fast);
    if (!(rope->attention_factor >= 0 && rope->attention_factor <= 1000))
        return error_set(
            error, QP_FORMAT,
            "%s: the attention factor of RoPE must be positive and at most 1000, found "
            "%g",
            where, rope->attention_factor);
    return rope->scaling == ROPE_LINEAR ? QP_OK
                                        : check_size(where, "original_max_position_embeddings",
                                                     rope->original_context, 1 << 30, error);
}

/* Both tables have a row for each position. */
static qp_status check_local_rope(const model_config *c, const char *where, qp_error *error)
{
    if (c->rope.scaling == ROPE_DYNAMIC || c->rope_local.scaling != ROPE_DEFAULT ||
        c->rope_local.dim != c->rope.dim)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: RoPE of layers that slide must not be scaled and must turn as many "
                         "elements as that of the others, which must not be dynamic",
                         where);
    return config_check_rope(&c->rope_local, c->head_dim, where, error);
}

qp_status config_check(const model_config *c, const char *where, qp_error *error)
{
    TRY(check_size(where, "hidden_size", c->hidden_size, 1 << 20, error));
    TRY(check_size(where, "intermediate_size", c->intermediate_size, 1 << 22, error));
    TRY(check_size(where, "the number of layers", c->n_layers, CONFIG_MAX_LAYERS, error));
    TRY(check_size(where, "the number of attention heads", c->n_heads, 1 << 12, error));
    TRY(check_size(where, "the number of KV heads", c->n_kv_heads, c->n_heads, error));
    TRY(check_size(where, "head_dim", c->head_dim, 1 << 12, error));
    TRY(check_size(where, "vocab_size", c->vocab_size, 1 << 22, error));
    TRY(check_size(where, "the context length", c->context_length, 1 << 30, error));
    if (c->window < 0 || c->window > 1 << 30)
        return error_set(error, QP_FORMAT, "%s: the sliding window must be 0 to %d, found %lld",
                         where, 1 << 30, (long long)c->window);
    if (c->n_heads % c->n_kv_heads)
        return error_set(error, QP_FORMAT,
                         "%s: the number of attention heads, %lld, must be a multiple of the "
                         "number of KV heads, %lld",
                         where, (long long)c->n_heads, (long long)c->n_kv_heads);
    if (!(c->rms_norm_eps >= 0 && c->rms_norm_eps < 1))
        return error_set(error, QP_FORMAT, "%s: rms_norm_eps must be 0 to 1, found %g", where,
                         c->rms_norm_eps);
    if (c->rope_local.dim) TRY(check_local_rope(c, where, error));
    TRY(config_check_experts(c, where, error));
    return config_check_rope(&c->rope, c->head_dim, where, error);
}

qp_status config_from_synthetic(const synthetic_spec *spec, model_config *out, qp_error *error)
{
    const synthetic_config *from = spec->config;
    const model_family *family = family_by_name(from->family);
    bool scaled = from->rope_factor != 0;
    assert(family);
    *out = (model_config){
        .family = family,
        .name = from->name,
        .hidden_size = from->hidden_size,
        .intermediate_size = from->intermediate_size,
        .n_layers = from->n_layers,
        .n_heads = from->n_heads,
        .n_kv_heads = from->n_kv_heads,
        .head_dim = from->head_dim,
        .vocab_size = from->vocab_size,
        .context_length = from->context_length,
        .rms_norm_eps = from->rms_norm_eps,
        .tied = from->tied,
        .biases = family_always_biased(family),
        .no_rope = family_no_rope(family, from->n_layers),
        .rope = {.scaling = scaled ? ROPE_LLAMA3 : ROPE_DEFAULT,
                 .interleaved = family->gguf_pairs,
                 .dim = from->head_dim,
                 .theta = from->rope_theta,
                 .factor = scaled ? from->rope_factor : 1,
                 .low_freq_factor = SYNTHETIC_ROPE_LOW,
                 .high_freq_factor = SYNTHETIC_ROPE_HIGH,
                 .original_context = SYNTHETIC_ROPE_ORIGINAL},
        .window = from->window,
        .norms_span_heads = family->norms_span_heads,
        .n_experts = from->n_experts,
        .n_experts_used = from->n_experts_used,
        .experts_normalised = family->experts_normalised,
        .swiglu = family->swiglu,
    };
    out->scales = config_usual_scales(out);
    if (family->local_rope) {
        out->rope_local = out->rope;
        out->rope_local.theta = family->local_theta > 0 ? family->local_theta : from->rope_theta;
    }
    if (from->window && family->windowed == WINDOW_MOST)
        out->windowed = family_sliding(family->window_interval, from->n_layers);
    else
        for (int64_t layer = 0; layer < from->n_layers && from->window; layer++)
            layer_set_add(&out->windowed, layer);
    return config_check(out, from->name, error);
}
