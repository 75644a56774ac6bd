/* Texts of definitions read apart: what export writes and import needs again. */
#ifndef QUIPU_WORKBENCH_EXCHANGE_H
#define QUIPU_WORKBENCH_EXCHANGE_H

#include "base/status.h"
#include "workbench/definitions.h"

#include <cjson/cJSON.h>
#include <stdint.h>

const definition *definition_find(const char *name); /* NULL: none */

cJSON *definition_json(const definition *definition);

/* Value of a variable axis in a workload's text "M=16 ..."; -1 if it is not there. */
int64_t workload_axis(const char *workload, const char *axis, size_t length);

/* The operator's case for one of the definition's workloads. */
void definition_case(const definition *definition, const char *workload, char *text, size_t size);

/* "name-n" as a UUID made of its hash. */
void workload_uuid(const char *definition, int n, char uuid[40]);

/* {"uuid", "axes", "inputs"}; files of index tensors are named as export writes them. */
cJSON *workload_json(const definition *definition, int n);

#endif
