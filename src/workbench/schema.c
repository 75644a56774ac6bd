/* Reads FlashInfer-Bench's definitions, workloads and solutions: see schema.h. */
#include "workbench/schema.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>

enum { MAX_SOURCES = 64, MAX_SIZE = INT32_MAX };

qp_status schema_string(const cJSON *object, const char *key, const char *where, const char **out,
                        qp_error *error)
{
    *out = NULL;
    TRY(json_get_string(object, key, where, out, error));
    if (*out && **out) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: \"%s\" is missing", where, key);
}

/* Whether a relative path stays below the folder that it is relative to. */
static bool is_inside(const char *path)
{
    if (path[0] == '/' || path[0] == '\0' || strlen(path) > 200) return false;
    for (const char *part = path; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL) {
        if (strncmp(part, "..", 2) == 0) return false;
    }
    return true;
}

static qp_status need_object(const cJSON *tree, const char *key, const char *where,
                             const cJSON **out, qp_error *error)
{
    *out = json_get(tree, key);
    if (cJSON_IsObject(*out)) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: \"%s\" must be an object", where, key);
}

/* --- definitions ----------------------------------------------------------------------------- */

static qp_status read_axis(const cJSON *tree, const char *where, schema_definition *out,
                           qp_error *error)
{
    const char *type;
    int64_t size = -1;
    if (out->n_axes == SCHEMA_MAX_AXES)
        return error_set(error, QP_UNSUPPORTED, "%s: more than %d axes", where, SCHEMA_MAX_AXES);
    TRY(schema_string(tree, "type", where, &type, error));
    bool constant = strcmp(type, "const") == 0;
    if (!constant && strcmp(type, "var") != 0)
        return error_set(error, QP_FORMAT,
                         "%s: the type of axis \"%.60s\" must be \"const\" or \"var\", found "
                         "\"%.60s\"",
                         where, tree->string, type);
    if (constant) TRY(json_get_i64(tree, "value", where, &size, error));
    if (constant && (size < 0 || size > MAX_SIZE))
        return error_set(error, QP_FORMAT, "%s: axis \"%.60s\" needs a value from 0 to %d", where,
                         tree->string, MAX_SIZE);
    out->axes[out->n_axes++] = (schema_axis){tree->string, size};
    return QP_OK;
}

static int find_axis(const schema_definition *definition, const char *name)
{
    for (int a = 0; name && a < definition->n_axes; a++) {
        if (strcmp(definition->axes[a].name, name) == 0) return a;
    }
    return -1;
}

static qp_status read_tensor(const cJSON *tree, const char *where, schema_definition *out,
                             qp_error *error)
{
    const int at = out->n_inputs + out->n_outputs;
    const char *type;
    if (at == SCHEMA_MAX_TENSORS)
        return error_set(error, QP_UNSUPPORTED, "%s: more than %d inputs and outputs", where,
                         SCHEMA_MAX_TENSORS);
    schema_tensor *tensor = &out->tensors[at];
    *tensor = (schema_tensor){.name = tree->string, .rank = -1};
    TRY(schema_string(tree, "dtype", where, &type, error));
    tensor->type = value_type_find(type);
    if (!tensor->type)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: \"%.60s\" has the dtype %.60s, which quipu "
                         "does not read",
                         where, tree->string, type);
    const cJSON *shape = json_get(tree, "shape"), *axis;
    if (!shape) return QP_OK;
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > SCHEMA_MAX_RANK)
        return error_set(error, QP_FORMAT,
                         "%s: the shape of \"%.60s\" must be null or an array of "
                         "at most %d axes",
                         where, tree->string, SCHEMA_MAX_RANK);
    tensor->rank = 0;
    cJSON_ArrayForEach(axis, shape)
    {
        int found = find_axis(out, cJSON_GetStringValue(axis));
        if (found < 0)
            return error_set(error, QP_FORMAT,
                             "%s: the shape of \"%.60s\" names an axis that the "
                             "definition does not have",
                             where, tree->string);
        tensor->axes[tensor->rank++] = found;
    }
    return QP_OK;
}

qp_status schema_read_definition(const cJSON *tree, const char *where, schema_definition *out,
                                 qp_error *error)
{
    const cJSON *axes, *inputs, *outputs, *item;
    *out = (schema_definition){0};
    TRY(schema_string(tree, "name", where, &out->name, error));
    TRY(schema_string(tree, "op_type", where, &out->op_type, error));
    TRY(schema_string(tree, "reference", where, &out->reference, error));
    TRY(need_object(tree, "axes", where, &axes, error));
    TRY(need_object(tree, "inputs", where, &inputs, error));
    TRY(need_object(tree, "outputs", where, &outputs, error));
    if (!is_inside(out->name) || !is_inside(out->op_type) || strpbrk(out->name, "/\\") ||
        strpbrk(out->op_type, "/\\"))
        return error_set(error, QP_FORMAT, "%s: name and op_type must be names of files", where);
    cJSON_ArrayForEach(item, axes) TRY(read_axis(item, where, out, error));
    cJSON_ArrayForEach(item, inputs)
    {
        TRY(read_tensor(item, where, out, error));
        out->n_inputs++;
    }
    cJSON_ArrayForEach(item, outputs)
    {
        TRY(read_tensor(item, where, out, error));
        if (out->tensors[out->n_inputs + out->n_outputs].rank < 0)
            return error_set(error, QP_UNSUPPORTED,
                             "%s: the output \"%.60s\" is a scalar; outputs "
                             "must be tensors",
                             where, item->string);
        out->n_outputs++;
    }
    if (out->n_outputs > 0) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: the definition has no outputs", where);
}

/* --- workloads ------------------------------------------------------------------------------- */

static qp_status read_source(const schema_tensor *tensor, const cJSON *tree, const char *where,
                             schema_source *out, qp_error *error)
{
    const char *type = "random";
    *out = (schema_source){.kind = SOURCE_RANDOM};
    TRY(json_get_string(tree, "type", where, &type, error));
    if (strcmp(type, "random") == 0) return QP_OK;
    if (strcmp(type, "scalar") == 0) {
        out->kind = SOURCE_SCALAR;
        out->value = json_get(tree, "value");
        if (tensor->rank < 0 && (cJSON_IsNumber(out->value) || cJSON_IsBool(out->value)))
            return QP_OK;
        return error_set(error, QP_FORMAT,
                         "%s: the scalar input \"%.60s\" needs a number as its "
                         "value, and no shape in the definition",
                         where, tensor->name);
    }
    if (strcmp(type, "safetensors") != 0)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: the type of input \"%.60s\" must be random, "
                         "scalar or safetensors, found \"%.60s\"",
                         where, tensor->name, type);
    out->kind = SOURCE_STORED;
    TRY(schema_string(tree, "path", where, &out->path, error));
    TRY(schema_string(tree, "tensor_key", where, &out->key, error));
    const char *path = strncmp(out->path, "./", 2) == 0 ? out->path + 2 : out->path;
    if (is_inside(path) && tensor->rank >= 0) return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s: the file of input \"%.60s\" must lie inside the data "
                     "set, found '%.200s'",
                     where, tensor->name, out->path);
}

qp_status schema_read_workload(const schema_definition *definition, const cJSON *tree,
                               const char *where, schema_workload *out, qp_error *error)
{
    const cJSON *axes, *inputs;
    *out = (schema_workload){.tree = tree};
    TRY(schema_string(tree, "uuid", where, &out->uuid, error));
    TRY(need_object(tree, "axes", where, &axes, error));
    TRY(need_object(tree, "inputs", where, &inputs, error));
    for (int a = 0; a < definition->n_axes; a++) {
        const schema_axis *axis = &definition->axes[a];
        out->sizes[a] = axis->size;
        if (axis->size < 0) TRY(json_get_i64(axes, axis->name, where, &out->sizes[a], error));
        if (out->sizes[a] < 0 || out->sizes[a] > MAX_SIZE)
            return error_set(error, QP_FORMAT,
                             "%s: workload %.60s needs a size from 0 to %d for "
                             "axis \"%.60s\"",
                             where, out->uuid, MAX_SIZE, axis->name);
    }
    for (int t = 0; t < definition->n_inputs; t++) {
        const schema_tensor *tensor = &definition->tensors[t];
        TRY(read_source(tensor, json_get(inputs, tensor->name), where, &out->inputs[t], error));
    }
    return QP_OK;
}

int64_t schema_size(const schema_definition *definition, const schema_workload *workload, int t,
                    int d)
{
    return workload->sizes[definition->tensors[t].axes[d]];
}

/* --- solutions ------------------------------------------------------------------------------- */

static qp_status read_entry(const char *where, schema_solution *out, qp_error *error)
{
    const char *colons = strstr(out->entry, "::");
    if (!colons || (size_t)(colons - out->entry) >= sizeof out->file || !colons[2] ||
        strlen(colons + 2) >= sizeof out->symbol)
        return error_set(error, QP_FORMAT,
                         "%s: entry_point must be FILE::FUNCTION, found \"%.200s\"", where,
                         out->entry);
    snprintf(out->file, sizeof out->file, "%.*s", (int)(colons - out->entry), out->entry);
    snprintf(out->symbol, sizeof out->symbol, "%s", colons + 2);
    return QP_OK;
}

static qp_status check_sources(const char *where, const schema_solution *solution, qp_error *error)
{
    const cJSON *source;
    bool entry = false;
    if (!cJSON_IsArray(solution->sources) || cJSON_GetArraySize(solution->sources) > MAX_SOURCES)
        return error_set(error, QP_FORMAT, "%s: \"sources\" must be an array of at most %d files",
                         where, MAX_SOURCES);
    cJSON_ArrayForEach(source, solution->sources)
    {
        const char *path, *content;
        TRY(schema_string(source, "path", where, &path, error));
        TRY(schema_string(source, "content", where, &content, error));
        if (!is_inside(path))
            return error_set(error, QP_FORMAT,
                             "%s: a source's path must lie inside, found '%.200s'", where, path);
        entry = entry || strcmp(path, solution->file) == 0;
    }
    if (entry) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: the entry point's file %s is not among the sources",
                     where, solution->file);
}

qp_status schema_read_solution(const cJSON *tree, const char *where, schema_solution *out,
                               qp_error *error)
{
    *out = (schema_solution){.fills_outputs = true, .author = ""};
    TRY(schema_string(tree, "name", where, &out->name, error));
    TRY(schema_string(tree, "definition", where, &out->definition, error));
    TRY(json_get_string(tree, "author", where, &out->author, error));
    const cJSON *spec = json_get(tree, "spec");
    TRY(schema_string(spec, "language", where, &out->language, error));
    TRY(schema_string(spec, "entry_point", where, &out->entry, error));
    TRY(json_get_string(spec, "binding", where, &out->binding, error));
    TRY(json_get_bool(spec, "destination_passing_style", where, &out->fills_outputs, error));
    static const char *const languages[] = {"c", "cpp", "cuda", "python", "triton", "tilelang"};
    bool known = false;
    for (size_t i = 0; i < sizeof languages / sizeof *languages; i++)
        known = known || strcmp(out->language, languages[i]) == 0;
    if (!known)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: language must be c, cpp, cuda, python, triton or tilelang, found "
                         "'%.40s'",
                         where, out->language);
    out->sources = json_get(tree, "sources");
    TRY(read_entry(where, out, error));
    return check_sources(where, out, error);
}
