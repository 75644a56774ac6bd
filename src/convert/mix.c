/* llama.cpp's mixes: see mix.h. */
#include "convert/mix.h"

#include "model/family/family.h"

#include <string.h>
#include <strings.h>

/* The numbers are llama.cpp's file types; the plainest mix of a type comes first. */
static const mix mixes[] = {
    {"F32", 0, DTYPE_F32},        {"F16", 1, DTYPE_F16},        {"BF16", 32, DTYPE_BF16},
    {"Q8_0", 7, DTYPE_Q8_0},      {"Q4_0", 2, DTYPE_Q4_0},      {"Q4_1", 3, DTYPE_Q4_1},
    {"Q5_0", 8, DTYPE_Q5_0},      {"Q5_1", 9, DTYPE_Q5_1},      {"Q2_K", 10, DTYPE_Q2_K},
    {"Q3_K_S", 11, DTYPE_Q3_K},   {"Q3_K_M", 12, DTYPE_Q3_K},   {"Q3_K_L", 13, DTYPE_Q3_K},
    {"IQ4_NL", 25, DTYPE_IQ4_NL}, {"IQ4_XS", 30, DTYPE_IQ4_XS}, {"Q4_K_S", 14, DTYPE_Q4_K},
    {"Q4_K_M", 15, DTYPE_Q4_K},   {"Q5_K_S", 16, DTYPE_Q5_K},   {"Q5_K_M", 17, DTYPE_Q5_K},
    {"Q6_K", 18, DTYPE_Q6_K},     {"MXFP4", 38, DTYPE_MXFP4},   {"MXFP4_MOE", 38, DTYPE_MXFP4},
};
enum { N_MIXES = sizeof mixes / sizeof *mixes };

qp_status mix_find(const char *name, const mix **out, qp_error *error)
{
    strbuf names = {0};
    for (int i = 0; i < N_MIXES; i++) {
        if (strcasecmp(name, mixes[i].name) == 0) {
            *out = &mixes[i];
            strbuf_free(&names);
            return QP_OK;
        }
        strbuf_printf(&names, "%s%s", i ? ", " : "", mixes[i].name);
    }
    error_set(error, QP_INVALID, "no type \"%.32s\"; expected one of %s", name,
              strbuf_text(&names));
    strbuf_free(&names);
    return QP_INVALID;
}

const mix *mix_of_type(dtype type)
{
    for (int i = 0; i < N_MIXES; i++) {
        if (mixes[i].usual == type) return &mixes[i];
    }
    return NULL;
}

static bool is(const mix *mix, const char *name)
{
    return strcmp(mix->name, name) == 0;
}

/* Layers to which the _M mixes give more bits: the first and last eighth, and every third of the
 * rest. */
static bool is_favoured(int64_t layer, int64_t n_layers)
{
    return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

static dtype choose_attn_v(const mix *mix, const model_config *c, int64_t layer)
{
    bool m = is(mix, "Q4_K_M") || is(mix, "Q5_K_M");
    if (is(mix, "Q2_K")) return c->n_heads / c->n_kv_heads >= 4 ? DTYPE_Q4_K : DTYPE_Q3_K;
    if (is(mix, "Q3_K_M")) return layer < 2 ? DTYPE_Q5_K : DTYPE_Q4_K;
    if (is(mix, "Q3_K_L")) return DTYPE_Q5_K;
    if (m && is_favoured(layer, c->n_layers)) return DTYPE_Q6_K;
    if (is(mix, "Q4_K_S") && layer < 4) return DTYPE_Q5_K;
    if (dtype_has_levels(mix->usual) && c->n_heads / c->n_kv_heads >= 4) return DTYPE_Q5_K;
    /* Models of 70B, where eight query heads share a value matrix. */
    bool shared = c->n_layers == 80 && c->n_heads != c->n_kv_heads;
    if (shared && (mix->usual == DTYPE_Q3_K || mix->usual == DTYPE_Q4_K)) return DTYPE_Q5_K;
    return mix->usual;
}

static dtype choose_ffn_down(const mix *mix, const model_config *c, int64_t layer)
{
    bool m = is(mix, "Q4_K_M") || is(mix, "Q5_K_M");
    if (is(mix, "Q2_K")) return DTYPE_Q3_K;
    if (is(mix, "Q3_K_M")) return layer < c->n_layers / 16 ? DTYPE_Q5_K : DTYPE_Q4_K;
    if (is(mix, "Q3_K_L")) return DTYPE_Q5_K;
    if (m && is_favoured(layer, c->n_layers)) return DTYPE_Q6_K;
    bool first = is(mix, "Q4_K_S") || dtype_has_levels(mix->usual);
    if (first && layer < c->n_layers / 8) return DTYPE_Q5_K;
    return mix->usual;
}

static dtype choose_attn_output(const mix *mix)
{
    if (is(mix, "Q2_K")) return DTYPE_Q3_K;
    if (is(mix, "Q3_K_M")) return DTYPE_Q4_K;
    if (is(mix, "Q3_K_L")) return DTYPE_Q5_K;
    return mix->usual;
}

static dtype choose_slot(const mix *mix, const model_config *config, weight_slot slot,
                         int64_t layer)
{
    switch (slot) {
    case WEIGHT_TOKEN_EMBD:
        if (!config->tied) return mix->usual;
        return mix->usual == DTYPE_Q8_0 ? DTYPE_Q8_0 : DTYPE_Q6_K;
    case WEIGHT_OUTPUT:
        return mix->usual == DTYPE_Q8_0 ? DTYPE_Q8_0 : DTYPE_Q6_K;
    case WEIGHT_ATTN_V:
        return choose_attn_v(mix, config, layer);
    case WEIGHT_ATTN_OUTPUT:
        return choose_attn_output(mix);
    case WEIGHT_FFN_DOWN:
    case WEIGHT_DOWN_EXPERTS:
        return choose_ffn_down(mix, config, layer);
    default:
        return mix->usual;
    }
}

/* The next larger type with smaller blocks, for rows that are not whole blocks. */
static dtype with_smaller_blocks(dtype type)
{
    switch (type) {
    case DTYPE_IQ4_XS:
        return DTYPE_IQ4_NL;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
        return DTYPE_Q4_0;
    case DTYPE_Q4_K:
        return DTYPE_Q5_0;
    case DTYPE_Q5_K:
        return DTYPE_Q5_1;
    case DTYPE_Q6_K:
        return DTYPE_Q8_0;
    default:
        return DTYPE_F16;
    }
}

dtype mix_choose(const mix *mix, const model_config *config, weight_slot slot, int64_t layer,
                 int64_t columns, bool pure)
{
    dtype type = mix->usual;
    if (slot == WEIGHT_ROUTER) return DTYPE_F32;
    if (is(mix, "MXFP4_MOE") && !(SLOTS_EXPERTS >> slot & 1))
        type = DTYPE_Q8_0;
    else if (!pure && dtype_is_quantized(type))
        type = choose_slot(mix, config, slot, layer);
    while (columns % dtype_block_elements(type))
        type = with_smaller_blocks(type);
    return type;
}
