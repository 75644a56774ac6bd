/* The sizes of a model, whatever file they came from. config_read.h reads them. */
#pragma once

#include "base/strbuf.h"
#include "model/rope.h"

#include <stdbool.h>
#include <stdint.h>

enum { CONFIG_MAX_LAYERS = 1 << 12 };

/* A set of layers. */
typedef struct layer_set {
    uint64_t bits[CONFIG_MAX_LAYERS / 64];
} layer_set;

static inline bool layer_set_has(const layer_set *set, int64_t layer)
{
    return set->bits[layer / 64] >> (layer % 64) & 1;
}
static inline void layer_set_add(layer_set *set, int64_t layer)
{
    set->bits[layer / 64] |= (uint64_t)1 << (layer % 64);
}
/* How many of the first n_layers it has. */
int64_t layer_set_count(const layer_set *set, int64_t n_layers);
/* Appends them: "0 to 2, 4, 6 to 9". */
void layer_set_print(const layer_set *set, int64_t n_layers, strbuf *out);

/* How a text becomes a vector, as the model's files say; the numbers are those of GGUF's key
 * pooling_type. */
typedef enum model_pooling {
    POOLING_NONE, /* they do not say */
    POOLING_MEAN, /* the mean of the last hidden states */
    POOLING_FIRST,
    POOLING_LAST, /* the last token's state */
    POOLING_RANK, /* a score, not a vector */
    POOLING_COUNT
} model_pooling;

/* What a family multiplies by, and bounds: scales.c. */
typedef struct model_scales {
    double embedding, residual,
        logits;                       /* the residual's: of what attention and the MLP add; 0: 1 */
    double attention;                 /* of the scores; 0: 1 / sqrt(head_dim) */
    double attention_cap, logits_cap; /* values v become cap * tanh(v / cap); 0: they stay */
} model_scales;

/* silu_and_mul's parameters, where they are not the usual ones; alpha 0: they are. */
typedef struct model_swiglu {
    double alpha, limit, added;
} model_swiglu;

/* LoRA adapters that are applied as the model runs: see adapter.h. */
typedef struct model_adapters {
    int64_t n;       /* 0: none */
    int64_t rank;    /* the largest */
    uint32_t slots;  /* weights that any of them adapts */
    uint64_t merged; /* a checksum of those that were added to weights; 0: there are none */
} model_adapters;

/* How a directory stores matrices of whole numbers: see int_weights.h. */
typedef enum int_layout {
    INT_NONE,
    INT_GPTQ,    /* zeros are stored less 1 */
    INT_GPTQ_V2, /* zeros are stored as they are */
    INT_AWQ,
    INT_COMPRESSED, /* compressed-tensors' pack-quantized */
} int_layout;

typedef struct model_config {
    const struct model_family *family;
    const char *name; /* for people: general.name, the folder's or the preset's name */
    int64_t hidden_size;
    int64_t intermediate_size; /* of the FFN, or of each expert */
    int64_t n_layers;
    int64_t n_heads;
    int64_t n_kv_heads;
    int64_t head_dim;
    int64_t vocab_size;
    int64_t context_length; /* positions that the model was trained for */
    int64_t window;         /* the latest positions that attention looks at; 0: all */
    layer_set windowed;     /* layers that have the window, where there is one */
    bool windowed_unknown;  /* it is not known which */
    layer_set no_rope;      /* layers that do not rotate q and k */
    double rms_norm_eps;
    bool tied;              /* the output projection is the embedding table */
    uint32_t biases;        /* slots (family/family.h) that must have a bias */
    uint32_t biases_if_any; /* slots whose bias is used where the file has one */
    /* Elements that share a scale in matrices of FP8, by config.json; 0: it does not say. */
    int64_t fp8_block_rows, fp8_block_columns;
    int_layout int_layout;
    int64_t int_bits, int_group; /* 4 or 8; inputs of a group, at most 0: all of a row */
    bool int_zeros;              /* INT_COMPRESSED has zeros */
    bool fp8_by_rows;            /* all elements of a row share a scale in all matrices of F8_128 */
    rope_config rope;
    rope_config rope_local; /* of the layers in `windowed`; dim 0: they turn as the others do */
    model_pooling pooling;
    model_scales scales;
    bool norms_span_heads; /* norms of q and k, if there are any, are of all heads together */
    /* Of a mixture of experts: */
    int64_t n_experts;       /* of a layer; 0: the model is dense */
    int64_t n_experts_used;  /* by a token */
    bool experts_normalised; /* the shares of those add up to 1 */
    model_swiglu swiglu;
    model_adapters adapters;
} model_config;

/* A context within which no window matters: every machine and every plan computes it. */
static inline int64_t config_usual_context(const model_config *c)
{
    return c->window > 0 && c->window < c->context_length ? c->window : c->context_length;
}

static inline int64_t config_q_hidden_units(const model_config *c)
{
    return c->n_heads * c->head_dim;
}
static inline int64_t config_kv_hidden_units(const model_config *c)
{
    return c->n_kv_heads * c->head_dim;
}
/* Elements of the norms of q and k. */
static inline int64_t config_q_norm_units(const model_config *c)
{
    return c->norms_span_heads ? config_q_hidden_units(c) : c->head_dim;
}
static inline int64_t config_k_norm_units(const model_config *c)
{
    return c->norms_span_heads ? config_kv_hidden_units(c) : c->head_dim;
}
/* Rows of the gate or up weights of all experts. */
static inline int64_t config_expert_units(const model_config *c)
{
    return c->n_experts * c->intermediate_size;
}
static inline int64_t config_qkv_hidden_units(const model_config *c)
{
    return (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
}
