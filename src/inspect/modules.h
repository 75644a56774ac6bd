/* Modules of a model by the names that PyTorch and safetensors have for them.
 *
 * Traces name the module that a piece of work belongs to, and its weight; `quipu info --modules`
 * prints them as a tree. Names come from the model's family, also for a GGUF file.
 */
#ifndef QUIPU_INSPECT_MODULES_H
#define QUIPU_INSPECT_MODULES_H

#include "base/strbuf.h"
#include "model/model.h"
#include "plan/program.h"
#include "schedule/timeline.h"

/* "self_attn.q_proj", without "model.layers.N." of a layer's; of one fused tensor for q, k and v
 * its name. */
const char *module_stem(const model_config *config, weight_slot slot);

/* Gives the nodes of a timeline their modules and weights, those that have none yet. */
qp_status modules_name_nodes(timeline *timeline, const program *program, qp_error *error);

/* The modules as a tree, as PyTorch prints them: name, class, features; and the number of
 * parameters of each. */
void modules_print(const model *model, strbuf *out);

/* The same as a JSON array, a row a module: name, class, in_features, out_features, parameters. */
void modules_print_json(const model *model, strbuf *out);

#endif
