/* Operators as references: see own.h. */
#include "workbench/own.h"

#include "op/harness/case.h"
#include "workbench/exchange.h"

#include <stdio.h>
#include <string.h>

static bool same_tensors(const schema_definition *a, const schema_definition *b)
{
    for (int t = 0; t < a->n_inputs + a->n_outputs; t++) {
        const schema_tensor *x = &a->tensors[t], *y = &b->tensors[t];
        if (strcmp(x->name, y->name) != 0 || x->type != y->type || x->rank != y->rank) return false;
        for (int d = 0; d < x->rank; d++) {
            const schema_axis *p = &a->axes[x->axes[d]], *q = &b->axes[y->axes[d]];
            if (strcmp(p->name, q->name) != 0 || p->size != q->size) return false;
        }
    }
    return true;
}

const definition *own_find(const schema_definition *definition)
{
    schema_definition known;
    qp_error error;
    const struct definition *own = definition_find(definition->name);
    if (!own) return NULL;
    cJSON *tree = definition_json(own);
    bool same = schema_read_definition(tree, own->name, &known, &error) == QP_OK &&
                known.n_inputs == definition->n_inputs &&
                known.n_outputs == definition->n_outputs && same_tensors(&known, definition);
    cJSON_Delete(tree);
    return same ? own : NULL;
}

void own_case(const definition *own, const schema_definition *definition,
              const schema_workload *workload, char *text, size_t size)
{
    char sizes[1024] = "";
    for (int a = 0, used = 0; a < definition->n_axes && used < (int)sizeof sizes - 256; a++)
        used += snprintf(sizes + used, sizeof sizes - (size_t)used, "%.200s=%lld ",
                         definition->axes[a].name, (long long)workload->sizes[a]);
    definition_case(own, sizes, text, size);
}

/* Index of the definition's tensor that is the operator's tensor `name`: FUNCTION_ONES, or -1 if
 * there is none. */
static int place_of(const definition *own, const schema_definition *definition, const char *name)
{
    const size_t length = strlen(name);
    const char *at = own->tensors;
    while (strncmp(at, name, length) != 0 || at[length] != '=') {
        at = strchr(at, ' ');
        if (!at++) return -1;
    }
    at += length + 1;
    const size_t n = strcspn(at, " ");
    if (n == 1 && *at == '1') return FUNCTION_ONES;
    for (int t = 0; t < definition->n_inputs + definition->n_outputs; t++) {
        if (strlen(definition->tensors[t].name) == n &&
            memcmp(definition->tensors[t].name, at, n) == 0)
            return t;
    }
    return -1;
}

bool own_source(const definition *own, const schema_definition *definition,
                const schema_workload *workload, function_source *out)
{
    char text[1024];
    op_case about;
    qp_error error;
    if (!own || !own->tensors) return false;
    *out = (function_source){.op = op_find(own->op)};
    own_case(own, definition, workload, text, sizeof text);
    if (op_case_parse(out->op, text, &about, &error) != QP_OK) return false;
    memcpy(out->call.params, about.params, sizeof out->call.params);
    for (int t = 0; t < op_n_tensors(out->op); t++) {
        const tensor *view = &about.tensors[t].view;
        out->call.tensors[t] = *view;
        out->places[t] = view->rank ? place_of(own, definition, out->op->tensors[t].name) : -1;
    }
    for (int t = 0; t < definition->n_inputs; t++) {
        const char *name = definition->tensors[t].name;
        int param = definition->tensors[t].rank < 0 ? op_param_index(out->op, name) : -1;
        if (param >= 0 && workload->inputs[t].kind == SOURCE_SCALAR)
            out->call.params[param] = workload->inputs[t].value->valuedouble;
    }
    return true;
}
