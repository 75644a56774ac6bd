/* Shared by the files of source: names, memory, and the experts of safetensors. */
#pragma once

#include "model/source.h"

/* What the names of a layer's tensors begin with, before its number. */
#define SOURCE_JSON_LAYER "model.layers."
#define SOURCE_GGUF_LAYER "blk."

/* A slot's name without what comes before and after it; NULL: the family has none. '*' stands for
 * the number of an expert, and a full stop at the end says that nothing follows. */
const char *source_stem(const weight_source *source, weight_slot slot);

/* Whether the source keeps a slot's rows in a tensor of several; all rows of such a tensor, and
 * which of them is row `row` of the slot. */
bool source_is_fused(const weight_source *source, weight_slot slot);
int64_t source_fused_rows(const model_config *config, weight_slot slot);
int64_t source_fused_row(const model_config *config, weight_slot slot, int64_t row);

/* Memory that is freed with the source. */
qp_status source_own_memory(weight_source *source, size_t bytes, const char *name, void **data,
                            qp_error *error);

/* ---- Experts: source_experts.c --------------------------------------------------------------- */

/* How safetensors hold a slot: not as one for each expert of a layer, in a tensor for each expert,
 * or in one tensor of all in which gate and up lie in turn (joined_experts.h). */
typedef enum source_experts_form {
    SOURCE_NO_EXPERTS,
    SOURCE_SPLIT_EXPERTS,
    SOURCE_JOINED_EXPERTS
} source_experts_form;
source_experts_form source_experts(const weight_source *source, weight_slot slot);

/* source_get() of experts of either form. */
qp_status source_get_experts(weight_source *source, weight_slot slot, int64_t layer, bool bias,
                             const char *name, tensor *out, qp_error *error);

/* source_read_rows() of those whose view has no data. */
void source_read_experts(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                         const tensor *view, int64_t begin, int64_t rows, void *dst);
