/* Names of modules: see modules.h. */
#include "inspect/modules.h"

#include "model/family/family.h"

#include <stdio.h>
#include <string.h>

const char *module_stem(const model_config *config, weight_slot slot)
{
    const char *stem = config->family->tensors[slot];
    return stem ? stem : family_fused_of(config->family, slot)->json;
}

/* "model.layers.3.", or nothing outside of the layers. */
static int print_layer(int64_t layer, char *text, size_t size)
{
    text[0] = '\0';
    return layer < 0 ? 0 : snprintf(text, size, "model.layers.%lld.", (long long)layer);
}

/* The module that a weight of this slot is inside of: "self_attn" of "self_attn.q_proj". */
static void print_parent(const model_config *config, weight_slot slot, int64_t layer, char *text,
                         size_t size)
{
    const char *stem = module_stem(config, slot), *dot = strrchr(stem, '.');
    const int used = print_layer(layer, text, size);
    snprintf(text + used, size - (size_t)used, "%.*s", dot ? (int)(dot - stem) : 0, stem);
}

/* The first weight of a node that is no bias; NULL: it has none. */
static const program_weight *weight_of(const program *program, int node)
{
    for (int t = 0; t < op_n_tensors(op_get(program->nodes[node].op)); t++) {
        const program_weight *weight = program_weight_of(program, node, t);
        if (weight && !weight->bias) return weight;
    }
    return NULL;
}

/* Where work without weights belongs. */
static void print_place(const program *program, const program_node *node, const char *kind,
                        char *text, size_t size)
{
    const model_config *c = &program->config;
    if (node->layer < 0) {
        snprintf(text, size, "model");
    } else if (strcmp(kind, "Add") == 0) {
        snprintf(text, size, "model.layers.%lld", (long long)node->layer);
    } else if (node->op == OP_SILU_AND_MUL || node->op == OP_GELU_AND_MUL) {
        print_parent(c, WEIGHT_FFN_DOWN, node->layer, text, size);
        if (strcmp(kind, "SiLU") == 0) strncat(text, ".act_fn", size - strlen(text) - 1);
    } else {
        print_parent(c, WEIGHT_ATTN_OUTPUT, node->layer, text, size);
    }
}

static char *keep(timeline *t, const char *text)
{
    return arena_strdup(&t->memory, text);
}

/* A tied output projection has the embedding's weight. */
static void name_weight(timeline *t, const program *program, const program_weight *weight,
                        timeline_node *node)
{
    const model_config *c = &program->config;
    char text[160];
    const int used = print_layer(weight->layer, text, sizeof text);
    snprintf(text + used, sizeof text - (size_t)used, "%s",
             module_stem(c, (weight_slot)weight->slot));
    node->module = keep(t, text);
    if (c->tied && weight->slot == WEIGHT_OUTPUT)
        snprintf(text, sizeof text, "%s", module_stem(c, WEIGHT_TOKEN_EMBD));
    strncat(text, ".weight", sizeof text - strlen(text) - 1);
    node->weight = keep(t, text);
}

static void name_node(timeline *t, const program *program, timeline_node *node)
{
    const program_weight *weight = weight_of(program, node->of);
    const char *kind = t->kinds[node->kind];
    if (weight && strcmp(kind, "Add") != 0) {
        name_weight(t, program, weight, node);
        return;
    }
    char text[160];
    print_place(program, &program->nodes[node->of], kind, text, sizeof text);
    node->module = keep(t, text);
}

qp_status modules_name_nodes(timeline *t, const program *program, qp_error *error)
{
    for (int i = 0; i < t->n_nodes; i++) {
        timeline_node *node = &t->nodes[i];
        if (node->module || !node->name) continue;
        name_node(t, program, node);
        if (!node->module) return error_no_memory(error, "the names of modules", 0);
    }
    return QP_OK;
}
