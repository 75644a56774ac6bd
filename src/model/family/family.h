/* A family of models: what sets it apart from others, as data. One struct a family, one file each.
 *
 * All families share one forward pass (plan/llama.c) and one set of weights (weights.def). A family
 * says how it is named in config.json and in GGUF, which of the weights it has and what they are
 * called, which of them have biases, how GGUF orders the rows of q and k, and what holds where
 * config.json is silent. Every tensor of a model file must be one that the family's rows name.
 */
#pragma once

#include "file/slice.h"
#include "model/config.h"
#include "model/weights.h"

#include <stdint.h>

enum { FAMILY_MAX_NAMES = 3, FAMILY_MAX_BIASES = 2, FAMILY_MAX_UNUSED = 4, FAMILY_MAX_FUSED = 2 };

/* A set of slots. */
#define SLOT(NAME) (1u << WEIGHT_##NAME)
enum {
    SLOTS_QKV = SLOT(ATTN_Q) | SLOT(ATTN_K) | SLOT(ATTN_V),
    SLOTS_ATTENTION = SLOTS_QKV | SLOT(ATTN_OUTPUT),
    SLOTS_EXPERTS = SLOT(GATE_EXPERTS) | SLOT(UP_EXPERTS) | SLOT(DOWN_EXPERTS),
    SLOTS_FFN = SLOT(FFN_GATE) | SLOT(FFN_UP) | SLOT(FFN_DOWN),
};

/* The multipliers and caps that files of a family may give: config_scales.c. */
typedef enum family_scales {
    SCALES_CAPS = 1,        /* Gemma: attn_logit_softcapping, final_logit_softcapping */
    SCALES_QUERY = 2,       /* Gemma: query_pre_attn_scalar */
    SCALES_MULTIPLIERS = 4, /* Granite: of embeddings, attention, residuals and logits */
    SCALES_LOGITS = 8,      /* Command-R: logit_scale */
} family_scales;

/* Weights that have biases: where a key of config.json is true, or always. */
typedef struct family_bias {
    uint32_t slots;
    const char *key; /* NULL: always */
    bool usual;      /* without the key */
} family_bias;

/* A tensor that holds the rows of several weights. */
typedef struct family_fused {
    uint32_t slots;
    const char *json, *gguf; /* names as of other tensors; NULL: there they are apart */
    bool by_kv_head; /* for each KV head its query heads, its key and its value; else the rows
                      * of a slot are together, in the order of weights.def */
} family_fused;

typedef struct model_family {
    const char *name; /* for people: "qwen2" */
    const char *gguf; /* general.architecture, and what GGUF keys begin with */
    const char *json[FAMILY_MAX_NAMES + 1]; /* in config.json: architectures[0] and model_type */

    /* In safetensors a layer's tensors begin with "model.layers.N.", and all end with ".weight" or
     * ".bias"; this is what stands between, NULL for weights that the family does not have. A '*'
     * is the number of an expert, each of which has a tensor of its own; a '.' at the end leaves
     * ".weight" out (joined_experts.h). */
    const char *tensors[WEIGHT_COUNT];
    family_fused fused[FAMILY_MAX_FUSED]; /* of weights whose own names in safetensors are NULL */
    const char *unused[FAMILY_MAX_UNUSED + 1]; /* whole names after "model." or "model.layers.N.",
                                                * of tensors that a forward pass does not need */
    family_bias biases[FAMILY_MAX_BIASES];

    enum { FAMILY_SILU, FAMILY_GELU_TANH } activation;
    bool norms_add_one;       /* safetensors hold the weights of norms less 1 */
    bool scales_embedding;    /* by sqrt(hidden_size) */
    uint32_t scales;          /* family_scales */
    model_scales usual;       /* without their keys; 0: no multiplier */
    int64_t scores_by_hidden; /* a GGUF file with so many layers divides scores by
                               * sqrt(hidden_size / n_heads) */
    bool pairs;               /* safetensors order rows of q and k for RoPE on pairs */
    bool gguf_pairs;        /* GGUF orders the rows of q and k for RoPE on pairs (2i, 2i + 1); else
                             * for halves (i, i + half), as safetensors does */
    bool gguf_needs_output; /* GGUF has an output projection of its own also where it is tied */

    /* What holds without the key in config.json. */
    int64_t context_length; /* max_position_embeddings */
    int64_t n_kv_heads;     /* num_key_value_heads; 0: n_heads */
    int64_t head_dim;       /* 0: hidden_size / n_heads */
    double rope_theta;      /* 0: 10000 */
    double partial_rotary;  /* partial_rotary_factor; 0: heads turn whole, whatever the key says */
    bool local_rope;        /* layers that slide turn by frequencies of their own, not scaled */
    double local_theta;     /* their rope_local_base_freq; 0: rope_theta */
    bool tied;              /* tie_word_embeddings */
    int64_t window;         /* sliding_window; 0: none */
    bool window_by_switch;  /* a window is used only where use_sliding_window is true */
    /* Layers that have the window without layer_types. */
    enum {
        WINDOW_ALL,
        WINDOW_LAST, /* from max_window_layers (28) on */
        WINDOW_NO_ROPE,
        WINDOW_MOST /* all but every Nth, by sliding_window_pattern */
    } windowed;
    int64_t window_interval;     /* WINDOW_MOST: N without the key */
    bool window_by_types;        /* layer_types says which layers have it */
    int64_t no_rope_interval;    /* no_rope_layer_interval N: every Nth layer does not rotate q and
                                  * k; 0: all layers do, and config.json has no such keys */
    bool no_rope_unless_sliding; /* only layers that slide rotate q and k, in config.json too */
    bool norms_span_heads;       /* the norms of q and k are of all heads together */
    bool norms_center;           /* norms subtract the mean: layer norms without a bias */
    bool parallel;               /* the MLP reads the norm that attention reads */

    /* Of a mixture of experts. */
    bool experts;                /* models have them */
    const char *expert_size_key; /* the intermediate size of each */
    bool experts_normalised;     /* norm_topk_prob in GGUF */
    bool experts_switch;         /* config.json has norm_topk_prob; without it false */
    model_swiglu swiglu;         /* its limit is swiglu_limit */

    const char *gguf_ffn_norm; /* FFN_NORM in GGUF; NULL: its usual name */
    bool yarn_exact;           /* in GGUF, bounds of yarn are not rounded to whole pairs */
} model_family;

#define FAMILY(NAME) extern const model_family family_##NAME;
#include "model/family/families.def"
#undef FAMILY

/* The stems that Llama and most families after it have in safetensors: of all but the FFN, with a
 * dense one, and with experts. */
#define FAMILY_ATTENTION_TENSORS                                                                   \
    [WEIGHT_TOKEN_EMBD] = "model.embed_tokens", [WEIGHT_ATTN_NORM] = "input_layernorm",            \
    [WEIGHT_ATTN_Q] = "self_attn.q_proj", [WEIGHT_ATTN_K] = "self_attn.k_proj",                    \
    [WEIGHT_ATTN_V] = "self_attn.v_proj", [WEIGHT_ATTN_OUTPUT] = "self_attn.o_proj",               \
    [WEIGHT_FFN_NORM] = "post_attention_layernorm", [WEIGHT_OUTPUT_NORM] = "model.norm",           \
    [WEIGHT_OUTPUT] = "lm_head"
#define FAMILY_LLAMA_TENSORS                                                                       \
    FAMILY_ATTENTION_TENSORS, [WEIGHT_FFN_GATE] = "mlp.gate_proj",                                 \
                              [WEIGHT_FFN_UP] = "mlp.up_proj", [WEIGHT_FFN_DOWN] = "mlp.down_proj"
#define FAMILY_EXPERTS_TENSORS                                                                     \
    FAMILY_ATTENTION_TENSORS, [WEIGHT_ROUTER] = "mlp.gate",                                        \
                              [WEIGHT_GATE_EXPERTS] = "mlp.experts.*.gate_proj",                   \
                              [WEIGHT_UP_EXPERTS] = "mlp.experts.*.up_proj",                       \
                              [WEIGHT_DOWN_EXPERTS] = "mlp.experts.*.down_proj"

/* And those of Gemma: norms before and after attention and the MLP. */
#define FAMILY_GEMMA_TENSORS                                                                       \
    [WEIGHT_TOKEN_EMBD] = "model.embed_tokens", [WEIGHT_ATTN_NORM] = "input_layernorm",            \
    [WEIGHT_ATTN_Q] = "self_attn.q_proj", [WEIGHT_ATTN_K] = "self_attn.k_proj",                    \
    [WEIGHT_ATTN_V] = "self_attn.v_proj", [WEIGHT_ATTN_OUTPUT] = "self_attn.o_proj",               \
    [WEIGHT_ATTN_POST_NORM] = "post_attention_layernorm",                                          \
    [WEIGHT_FFN_NORM] = "pre_feedforward_layernorm",                                               \
    [WEIGHT_FFN_POST_NORM] = "post_feedforward_layernorm", [WEIGHT_FFN_GATE] = "mlp.gate_proj",    \
    [WEIGHT_FFN_UP] = "mlp.up_proj", [WEIGHT_FFN_DOWN] = "mlp.down_proj",                          \
    [WEIGHT_OUTPUT_NORM] = "model.norm", [WEIGHT_OUTPUT] = "lm_head"

/* And those of OLMo 2 and 3: norms only after attention and the MLP. */
#define FAMILY_OLMO_TENSORS                                                                        \
    [WEIGHT_TOKEN_EMBD] = "model.embed_tokens", [WEIGHT_ATTN_Q] = "self_attn.q_proj",              \
    [WEIGHT_ATTN_K] = "self_attn.k_proj", [WEIGHT_ATTN_V] = "self_attn.v_proj",                    \
    [WEIGHT_ATTN_Q_NORM] = "self_attn.q_norm", [WEIGHT_ATTN_K_NORM] = "self_attn.k_norm",          \
    [WEIGHT_ATTN_OUTPUT] = "self_attn.o_proj",                                                     \
    [WEIGHT_ATTN_POST_NORM] = "post_attention_layernorm", [WEIGHT_FFN_GATE] = "mlp.gate_proj",     \
    [WEIGHT_FFN_UP] = "mlp.up_proj", [WEIGHT_FFN_DOWN] = "mlp.down_proj",                          \
    [WEIGHT_FFN_POST_NORM] = "post_feedforward_layernorm", [WEIGHT_OUTPUT_NORM] = "model.norm",    \
    [WEIGHT_OUTPUT] = "lm_head"

/* NULL where no family has that name. */
const model_family *family_by_json(const char *name);
/* `experts`: whether the file is a mixture of experts, which may be a family of its own. */
const model_family *family_by_gguf(text_slice architecture, bool experts);
const model_family *family_by_name(const char *name);

/* The names that a message offers: "llama, internlm2, ..." of GGUF; of config.json's architectures.
 * Written into text, which is returned. */
const char *family_list_gguf(char *text, size_t size);
const char *family_list_json(char *text, size_t size);

/* Why an architecture of config.json or of GGUF is not read, with ": " before it; "" where nothing
 * is known of it. */
const char *family_refusal_json(const char *name);
const char *family_refusal_gguf(text_slice architecture);

/* The tensor that holds a weight's rows beside others'; NULL: it has one of its own. */
const family_fused *family_fused_of(const model_family *family, weight_slot slot);

/* A weight's name in GGUF without "blk.N." and ".weight". */
const char *family_gguf_name(const model_family *family, weight_slot slot);

/* Whether the family has the weight. */
bool family_has(const model_family *family, weight_slot slot);

/* The slots that a file of the family may have biases for; those that always have one. */
uint32_t family_may_be_biased(const model_family *family);
uint32_t family_always_biased(const model_family *family);

/* Of WINDOW_MOST, the layers that slide where every `interval`th does not. */
layer_set family_sliding(int64_t interval, int64_t n_layers);

/* The layers that do not rotate q and k, where the model says nothing else of them. */
layer_set family_no_rope(const model_family *family, int64_t n_layers);
