/* Parses the texts of definitions: export writes them and import reads them. */
#pragma once

#include "base/status.h"
#include "workbench/dataset.h"
#include "workbench/definitions.h"

#include <cjson/cJSON.h>
#include <stdint.h>

const definition *definition_find(const char *name); /* NULL: none */

cJSON *definition_json(const definition *definition);

/* All definitions and their workloads, as a data set's files would hold them. */
qp_status exchange_list(dataset_list *definitions, dataset_list *workloads, qp_error *error);

/* A line of such a file of workloads: a trace without solution and evaluation. */
cJSON *workload_line(const definition *definition, int n);

/* The operator's case for one of the definition's workloads. */
void definition_case(const definition *definition, const char *workload, char *text, size_t size);

/* A UUID made from the hash of "name-n". */
void workload_uuid(const char *definition, int n, char uuid[40]);
