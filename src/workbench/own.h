/* quipu's own operators as references of FlashInfer-Bench's definitions. */
#pragma once

#include "workbench/definitions.h"
#include "workbench/function.h"

/* The definition that `quipu ops export` writes under that name, with the same axes, inputs and
 * outputs; NULL: none. */
const definition *own_find(const schema_definition *definition);

/* The text of the operator's case for a workload; see definition_case(). */
void own_case(const definition *own, const schema_definition *definition,
              const schema_workload *workload, char *text, size_t size);

/* Its operator's reference as a function of the definition. False: their tensors are not the same.
 */
bool own_source(const definition *own, const schema_definition *definition,
                const schema_workload *workload, function_source *out);
