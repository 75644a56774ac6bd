/* Definitions, workloads and solutions of data sets: what is accepted has indices within its tables
 * and sizes that are known. The input is an array of JSON: a definition, a workload of it, a
 * solution.
 */
#include "base/json.h"
#include "workbench/schema.h"

#include <stdlib.h>

static void must(bool good)
{
    if (!good) abort();
}

static void check_definition(const schema_definition *d)
{
    must(d->name && d->n_axes >= 0 && d->n_axes <= SCHEMA_MAX_AXES);
    must(d->n_inputs >= 0 && d->n_outputs >= 0 && d->n_inputs + d->n_outputs <= SCHEMA_MAX_TENSORS);
    for (int t = 0; t < d->n_inputs + d->n_outputs; t++) {
        const schema_tensor *tensor = &d->tensors[t];
        must(tensor->name && tensor->type && tensor->rank >= -1 && tensor->rank <= SCHEMA_MAX_RANK);
        for (int i = 0; i < tensor->rank; i++)
            must(tensor->axes[i] >= 0 && tensor->axes[i] < d->n_axes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static schema_definition definition;
    static schema_workload workload;
    static schema_solution solution;
    qp_error error = {0};
    cJSON *tree;
    if (json_parse((const char *)data, size, "input", &tree, &error) != QP_OK) return 0;
    const cJSON *parts[3];
    for (int i = 0; i < 3; i++)
        parts[i] = cJSON_GetArrayItem(tree, i);
    if (schema_read_definition(parts[0], "definition", &definition, &error) == QP_OK) {
        check_definition(&definition);
        if (parts[1] &&
            schema_read_workload(&definition, parts[1], "workload", &workload, &error) == QP_OK)
            for (int a = 0; a < definition.n_axes; a++)
                must(workload.sizes[a] >= 0);
    }
    must(error.message[0] || parts[0]);
    if (parts[2] && schema_read_solution(parts[2], "solution", &solution, &error) == QP_OK) {
        must(solution.name && solution.sources && solution.symbol[0]);
        must(solution.file[0] && solution.file[0] != '/');
    }
    cJSON_Delete(tree);
    return 0;
}
