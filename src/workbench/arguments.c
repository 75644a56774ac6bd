/* A workload's arguments: see arguments.h. */
#include "workbench/arguments.h"

#include "base/checked.h"
#include "base/platform.h"
#include "file/safetensors.h"

#include <stdio.h>
#include <string.h>

enum { POISON = 0xb6, SHARES = 8 };

static int n_tensors(const schema_definition *definition)
{
    return definition->n_inputs + definition->n_outputs;
}

size_t arguments_bytes(const arguments *a, int t)
{
    return a->elements[t] * a->definition->tensors[t].type->bytes;
}

/* After each tensor lies a guard of 256 bytes or more, which no function may write. */
static size_t end_of_guard(const arguments *a, int t)
{
    return round_up(a->offset[t] + arguments_bytes(a, t), ARGUMENTS_ALIGNMENT) +
           ARGUMENTS_ALIGNMENT;
}

/* --- the layout ------------------------------------------------------------------------------ */

static qp_status too_large(const arguments *a, qp_error *error)
{
    return error_set(error, QP_NO_MEMORY,
                     "workload %.60s of %.100s: its tensors take more than 1/%d of the available "
                     "memory",
                     a->workload->uuid, a->definition->name, SHARES);
}

static qp_status lay_out(arguments *a, qp_error *error)
{
    const uint64_t most = platform_free_memory() / SHARES;
    a->total = ARGUMENTS_TEXT_BYTES;
    for (int t = 0; t < n_tensors(a->definition); t++) {
        const schema_tensor *tensor = &a->definition->tensors[t];
        uint64_t elements = tensor->rank >= 0;
        for (int d = 0; d < tensor->rank; d++) {
            const uint64_t size = (uint64_t)schema_size(a->definition, a->workload, t, d);
            if (size && elements > most / size) return too_large(a, error);
            elements *= size;
        }
        a->offset[t] = a->total;
        a->elements[t] = elements;
        if (elements * tensor->type->bytes > most) return too_large(a, error);
        a->total = end_of_guard(a, t);
        if (a->total > most) return too_large(a, error);
    }
    return QP_OK;
}

/* --- inputs ---------------------------------------------------------------------------------- */

static void *input_of(const arguments *a, int t)
{
    return (char *)a->memory.data + a->offset[t];
}

static qp_status check_stored(const arguments *a, int t, const stored_tensor *stored,
                              const char *path, qp_error *error)
{
    const schema_tensor *tensor = &a->definition->tensors[t];
    bool same = strcmp(stored->type_name, tensor->type->stored) == 0 &&
                stored->rank == tensor->rank && stored->bytes == arguments_bytes(a, t);
    for (int d = 0; same && d < tensor->rank; d++)
        same = stored->shape[d] == schema_size(a->definition, a->workload, t, d);
    if (same) return QP_OK;
    char found[160], shape[160] = "";
    for (int d = 0, used = 0; d < tensor->rank; d++)
        used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%lld", d ? ", " : "",
                         (long long)schema_size(a->definition, a->workload, t, d));
    return error_set(error, QP_FORMAT,
                     "%s: the input \"%.60s\" of workload %.60s must be %s [%s], "
                     "found %s",
                     path, tensor->name, a->workload->uuid, tensor->type->stored, shape,
                     stored_tensor_describe(stored, found, sizeof found));
}

static qp_status load(const arguments *a, int t, const char *folder, qp_error *error)
{
    const schema_source *source = &a->workload->inputs[t];
    char path[4200];
    safetensors *file;
    snprintf(path, sizeof path, "%s/%s", folder, source->path);
    TRY(safetensors_open(path, &file, error));
    const stored_tensor *stored = safetensors_find_tensor(file, source->key);
    qp_status status =
        stored ? check_stored(a, t, stored, path, error)
               : error_set(error, QP_FORMAT, "%s: it has no tensor \"%.100s\"", path, source->key);
    if (status == QP_OK) memcpy(input_of(a, t), stored->data, stored->bytes);
    safetensors_close(file);
    return status;
}

static void set_scalar(arguments *a, int t, uint64_t seed)
{
    const schema_source *source = &a->workload->inputs[t];
    const value_type *type = a->definition->tensors[t].type;
    char value[8];
    if (source->kind == SOURCE_SCALAR) {
        a->scalars[t] =
            cJSON_IsBool(source->value) ? cJSON_IsTrue(source->value) : source->value->valuedouble;
        return;
    }
    values_randomize(type, value, 1, seed + (uint64_t)t);
    a->scalars[t] = value_at(type, value, 0);
}

/* Random probabilities are the softmax of random numbers. */
static bool is_probabilities(const arguments *a, int t)
{
    const schema_tensor *tensor = &a->definition->tensors[t];
    return strcmp(a->definition->op_type, "sampling") == 0 && strcmp(tensor->name, "probs") == 0 &&
           tensor->rank > 0 && tensor->type->low == tensor->type->high;
}

void arguments_randomize(arguments *a, uint64_t seed)
{
    for (int t = 0; t < a->definition->n_inputs; t++) {
        if (a->workload->inputs[t].kind != SOURCE_RANDOM) continue;
        values_randomize(a->definition->tensors[t].type, input_of(a, t), a->elements[t],
                         seed * SCHEMA_MAX_TENSORS + (uint64_t)t);
        if (is_probabilities(a, t)) {
            const int last = a->definition->tensors[t].rank - 1;
            const size_t n = (size_t)schema_size(a->definition, a->workload, t, last);
            values_softmax(a->definition->tensors[t].type, input_of(a, t),
                           n ? a->elements[t] / n : 0, n);
        }
    }
}

qp_status arguments_create(const schema_definition *definition, const schema_workload *workload,
                           const char *folder, uint64_t seed, arguments *out, qp_error *error)
{
    *out = (arguments){.definition = definition, .workload = workload};
    TRY(lay_out(out, error));
    TRY(buffer_alloc(&out->memory, out->total, "a workload's tensors", error));
    qp_status status = QP_OK;
    for (int t = 0; t < definition->n_inputs && status == QP_OK; t++) {
        if (definition->tensors[t].rank < 0)
            set_scalar(out, t, seed);
        else if (workload->inputs[t].kind == SOURCE_STORED)
            status = load(out, t, folder, error);
    }
    arguments_randomize(out, seed);
    if (status != QP_OK) arguments_free(out);
    return status;
}

void arguments_free(arguments *a)
{
    buffer_free(&a->memory);
}

/* --- in the memory of a function ------------------------------------------------------------- */

void arguments_put(const arguments *a, char *memory)
{
    const int n_inputs = a->definition->n_inputs;
    memset(memory, 0, ARGUMENTS_TEXT_BYTES);
    memset(memory + ARGUMENTS_TEXT_BYTES, POISON, a->total - ARGUMENTS_TEXT_BYTES);
    for (int t = 0; t < n_inputs; t++)
        memcpy(memory + a->offset[t], input_of(a, t), arguments_bytes(a, t));
}

bool arguments_intact(const arguments *a, const char *memory, char *what, size_t size)
{
    for (int t = 0; t < n_tensors(a->definition); t++) {
        const size_t end = a->offset[t] + arguments_bytes(a, t);
        const char *name = a->definition->tensors[t].name;
        bool is_input = t < a->definition->n_inputs;
        if (is_input && memcmp(memory + a->offset[t], input_of(a, t), end - a->offset[t]) != 0) {
            snprintf(what, size, "it changed its input \"%.60s\"", name);
            return false;
        }
        for (size_t at = end; at < end_of_guard(a, t); at++) {
            if ((unsigned char)memory[at] == POISON) continue;
            snprintf(what, size, "it wrote behind the end of \"%.60s\"", name);
            return false;
        }
    }
    return true;
}
