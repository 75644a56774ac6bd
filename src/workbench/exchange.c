/* Parses definitions and workloads of FlashInfer-Bench: see exchange.h. */
#include "workbench/exchange.h"

#include "base/hash.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const definition *definition_find(const char *name)
{
    for (const definition *d = definitions; d->name; d++) {
        if (strcmp(d->name, name) == 0) return d;
    }
    return NULL;
}

/* Reads the next word of a text; false at its end. */
static bool next_word(const char **text, char word[256])
{
    *text += strspn(*text, " ");
    size_t length = strcspn(*text, " ");
    snprintf(word, 256, "%.*s", (int)length, *text);
    *text += length;
    return length > 0;
}

static cJSON *axes_json(const char *text)
{
    cJSON *axes = cJSON_CreateObject();
    char word[256];
    while (next_word(&text, word)) {
        char *value = strchr(word, '=');
        if (value) *value++ = '\0';
        cJSON *axis = cJSON_AddObjectToObject(axes, word);
        cJSON_AddStringToObject(axis, "type", value ? "const" : "var");
        if (value) cJSON_AddNumberToObject(axis, "value", strtod(value, NULL));
    }
    return axes;
}

/* Parses "name:dtype[axis,axis]"; a scalar has no brackets. */
static cJSON *tensors_json(const char *text)
{
    cJSON *tensors = cJSON_CreateObject();
    char word[256];
    while (next_word(&text, word)) {
        char *type = strchr(word, ':');
        *type++ = '\0';
        char *shape = strchr(type, '[');
        if (shape) *shape++ = '\0';
        cJSON *tensor = cJSON_AddObjectToObject(tensors, word);
        if (shape) {
            cJSON *axes = cJSON_AddArrayToObject(tensor, "shape");
            for (char *axis = strtok(shape, ",]"); axis; axis = strtok(NULL, ",]"))
                cJSON_AddItemToArray(axes, cJSON_CreateString(axis));
        } else {
            cJSON_AddNullToObject(tensor, "shape");
        }
        cJSON_AddStringToObject(tensor, "dtype", type);
    }
    return tensors;
}

cJSON *definition_json(const definition *definition)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "name", definition->name);
    cJSON_AddStringToObject(tree, "description", definition->description);
    cJSON_AddStringToObject(tree, "op_type", definition->op_type);
    cJSON *tags = cJSON_AddArrayToObject(tree, "tags");
    cJSON_AddItemToArray(tags, cJSON_CreateString("model:llama-3.1-8b"));
    cJSON_AddItemToObject(tree, "axes", axes_json(definition->axes));
    if (definition->constraints[0]) {
        cJSON *constraints = cJSON_AddArrayToObject(tree, "constraints");
        for (int i = 0; definition->constraints[i]; i++)
            cJSON_AddItemToArray(constraints, cJSON_CreateString(definition->constraints[i]));
    }
    cJSON_AddItemToObject(tree, "inputs", tensors_json(definition->inputs));
    cJSON_AddItemToObject(tree, "outputs", tensors_json(definition->outputs));
    cJSON_AddStringToObject(tree, "reference", definition->reference);
    return tree;
}

/* The value of a variable axis in a workload's text "M=16 ..."; -1 if it is absent. */
static int64_t workload_axis(const char *workload, const char *axis, size_t length)
{
    char word[256];
    while (next_word(&workload, word)) {
        if (strncmp(word, axis, length) == 0 && word[length] == '=')
            return strtoll(word + length + 1, NULL, 10);
    }
    return -1;
}

void definition_case(const definition *definition, const char *workload, char *text, size_t size)
{
    size_t used = 0;
    for (const char *at = definition->call; *at && used + 32 < size;) {
        if (*at != '{') {
            text[used++] = *at++;
            continue;
        }
        /* Replaces "{axis}" or "{axis-1}". */
        size_t length = strcspn(++at, "-}");
        int64_t value = workload_axis(workload, at, length) - (at[length] == '-');
        used += (size_t)snprintf(text + used, size - used, "%lld", (long long)value);
        at += strcspn(at, "}") + 1;
    }
    text[used] = '\0';
}

void workload_uuid(const char *definition, int n, char uuid[40])
{
    uint64_t high = 0, low = (uint64_t)n;
    for (const char *c = definition; *c; c++) {
        high = hash_mix(high ^ (unsigned char)*c);
        low = hash_mix(low + high);
    }
    snprintf(uuid, 40, "%08x-%04x-4%03x-8%03x-%012llx", (unsigned)(high >> 32),
             (unsigned)(high >> 16 & 0xffff), (unsigned)(high & 0xfff), (unsigned)(low >> 52),
             (unsigned long long)(low & 0xffffffffffffu));
}

static cJSON *input_json(const definition *definition, const char *name, const char *uuid)
{
    cJSON *input = cJSON_CreateObject();
    const char *fixed = definition->fixed ? definition->fixed : "";
    char word[256];
    while (next_word(&fixed, word)) {
        size_t length = strcspn(word, "=");
        if (strlen(name) != length || memcmp(word, name, length) != 0) continue;
        if (word[length] == '=') {
            cJSON_AddStringToObject(input, "type", "scalar");
            cJSON_AddNumberToObject(input, "value", strtod(word + length + 1, NULL));
        } else {
            char path[512];
            snprintf(path, sizeof path, "blob/workloads/%s/%s/%s.safetensors", definition->op_type,
                     definition->name, uuid);
            cJSON_AddStringToObject(input, "type", "safetensors");
            cJSON_AddStringToObject(input, "path", path);
            cJSON_AddStringToObject(input, "tensor_key", name);
        }
        return input;
    }
    cJSON_AddStringToObject(input, "type", "random");
    return input;
}

/* A workload as JSON, {"uuid", "axes", "inputs"}; files of index tensors have the names that export
 * gives them. */
static cJSON *workload_json(const definition *definition, int n)
{
    char uuid[40], word[256];
    workload_uuid(definition->name, n, uuid);
    cJSON *tree = cJSON_CreateObject(), *axes = cJSON_CreateObject();
    const char *text = definition->workloads[n];
    while (next_word(&text, word)) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        cJSON_AddNumberToObject(axes, word, strtod(value, NULL));
    }
    cJSON_AddStringToObject(tree, "uuid", uuid);
    cJSON_AddItemToObject(tree, "axes", axes);
    cJSON *inputs = cJSON_AddObjectToObject(tree, "inputs");
    const char *names = definition->inputs;
    while (next_word(&names, word)) {
        word[strcspn(word, ":")] = '\0';
        cJSON_AddItemToObject(inputs, word, input_json(definition, word, uuid));
    }
    return tree;
}

cJSON *workload_line(const definition *definition, int n)
{
    cJSON *trace = cJSON_CreateObject();
    cJSON_AddStringToObject(trace, "definition", definition->name);
    cJSON_AddItemToObject(trace, "workload", workload_json(definition, n));
    cJSON_AddNullToObject(trace, "solution");
    cJSON_AddNullToObject(trace, "evaluation");
    return trace;
}

qp_status exchange_list(dataset_list *all, dataset_list *workloads, qp_error *error)
{
    for (const definition *d = definitions; d->name; d++) {
        TRY(dataset_add(all, definition_json(d), d->name, error));
        for (int n = 0; d->workloads[n]; n++)
            TRY(dataset_add(workloads, workload_line(d, n), d->name, error));
    }
    return QP_OK;
}
