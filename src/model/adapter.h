/* LoRA adapters of a model, as the model's programs read them, or added to its weights.
 *
 * Products that read the same rows (q, k and v; gate and up) have their A matrices one after the
 * other in one tensor of the first of these slots, so that a pass multiplies the rows once:
 *
 *     lora_a  (n_adapters * slots * rank, in_features)   of the first slot that shares x
 *     lora_b  (n_adapters * out_features, rank)          of each slot
 *
 * `rank` is the largest of all adapters; smaller ones, and weights that an adapter leaves as they
 * are, have zeros.
 */
#pragma once

#include "model/model.h"
#include "model/source.h"

enum { ADAPTER_MAX = 64, ADAPTER_MAX_RANK = 1024 };

/* The first slot of those that read the same rows as `slot`, and how many of the adapted ones come
 * before it. */
weight_slot adapter_leader(weight_slot slot);
int64_t adapter_place(const model_config *config, weight_slot slot);

/* How many slots that read these rows are adapted. */
int64_t adapter_sharers(const model_config *config, weight_slot slot);

/* The matrices of a slot without data, in F32: its B, or its A, which only a leader has. */
tensor adapter_sizes(const model_config *config, weight_slot slot, bool b);

/* A weight of the model and what adapters add to it. */
typedef model_weight *adapter_weight_of(void *model, weight_slot slot, int64_t layer);

/* Opens the adapters of source->options, [n], and makes their matrices, in memory of the
 * source; fills config->adapters and infos, [n]. Merged ones are added to the weights in
 * float32, and rounded to the weights' type: QP_UNSUPPORTED names a weight that is quantised. */
qp_status adapter_open_all(weight_source *source, model_config *config, model_adapter *infos,
                           adapter_weight_of *weight_of, void *model, qp_error *error);
