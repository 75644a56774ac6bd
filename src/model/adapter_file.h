/* One LoRA adapter as its files hold it: for each weight W that it adapts two matrices A and B, so
 * that the adapted weight is W + scaling * B A.
 *
 * A GGUF file has "blk.N.attn_q.weight.lora_a" and ".lora_b", as llama.cpp's converter writes them;
 * a directory of PEFT has adapter_config.json and adapter_model.safetensors. What changes a model
 * otherwise (embeddings, whole modules, biases, DoRA's magnitudes) is refused by name.
 */
#pragma once

#include "base/json.h"
#include "model/source.h"

typedef struct adapter_file {
    const char *path;
    const model_config *config; /* of the model that it is for */
    weight_source source;       /* its tensors, by the names that the model's family has */
    cJSON *json;                /* adapter_config.json; NULL: it is a GGUF file */
    double alpha;
    int64_t rank;   /* that the config gives; 0: the tensors' */
    bool by_square; /* scaling is alpha / sqrt(rank), else alpha / rank */
    bool halves;    /* rows of q and k are in the order for RoPE on halves, else on pairs */
    int64_t n_read; /* tensors that adapter_file_get() has given out */
} adapter_file;

/* The two matrices of a weight. */
typedef struct adapter_pair {
    tensor a;             /* (rank, in_features); of rank 0: the weight is not adapted */
    tensor b;             /* (out_features of all slots that share the tensor, rank) */
    double scaling;       /* alpha / rank, or what the config says of this weight */
    bool shared;          /* several slots are in this tensor */
    int64_t turned, head; /* the first `turned` rows of each `head` rows of b are in the other of
                           * the two orders for RoPE than the model's; 0: none are */
} adapter_pair;

/* QP_UNSUPPORTED and QP_FORMAT name what is not a LoRA adapter of this model. adapter_file_close()
 * the result, also after a failure. */
qp_status adapter_file_open(const char *path, const model_config *config, arena *arena,
                            adapter_file *out, qp_error *error);
void adapter_file_close(adapter_file *file);

/* The pair of a slot. QP_FORMAT: one of the two is missing, their ranks or sizes do not fit the
 * model, or a value is not finite. */
qp_status adapter_file_get(adapter_file *file, weight_slot slot, int64_t layer, adapter_pair *out,
                           qp_error *error);

/* The row of pair->b that is row `row` of the slot's weight as the model has it. */
int64_t adapter_file_row(const adapter_file *file, weight_slot slot, const adapter_pair *pair,
                         int64_t row);

/* QP_UNSUPPORTED names a tensor that was not asked for, after all slots that may be adapted were:
 * without it the model would compute something else. */
qp_status adapter_file_check_unread(const adapter_file *file, uint32_t slots, qp_error *error);
