/* Modules of a model by the names that PyTorch and safetensors have for them: traces name the
 * module that a piece of work belongs to, and its weight. Names come from the model's family, also
 * for a GGUF file.
 */
#pragma once

#include "model/config.h"
#include "model/weights.h"
#include "plan/program.h"
#include "schedule/timeline.h"

/* "self_attn.q_proj", without "model.layers.N." of a layer's; of one fused tensor for q, k and v
 * its name. */
const char *module_stem(const model_config *config, weight_slot slot);

/* Gives the nodes of a timeline their modules and weights, those that have none yet. */
qp_status modules_name_nodes(timeline *timeline, const program *program, qp_error *error);
