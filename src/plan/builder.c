/* What llama.c writes a forward pass with: see builder.h. */
#include "plan/builder.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* If memory runs out, a new node is written here; lower_build() then fails. */
static plan_node lost_node;

static void *grow(void *items, int *capacity, int count, size_t size)
{
    if (count < *capacity) return items;
    int wanted = *capacity ? *capacity * 2 : 64;
    void *larger = realloc(items, (size_t)wanted * size);
    if (larger) *capacity = wanted;
    return larger;
}

static void open_step(plan_builder *b, const char *name, bool graph)
{
    program *p = b->program;
    program_step *steps = grow(p->steps, &b->step_capacity, p->n_steps, sizeof *steps);
    if (!steps) {
        b->failed = true;
        return;
    }
    p->steps = steps;
    steps[p->n_steps++] =
        (program_step){.name = name, .layer = b->layer, .graph = graph, .first_node = b->n_nodes};
}

void builder_kernel(plan_builder *b, const char *name)
{
    open_step(b, name, false);
}

void builder_graph(plan_builder *b, const char *name)
{
    open_step(b, name, true);
}

void builder_graph_if(plan_builder *b, bool graph, const char *name)
{
    open_step(b, name, graph);
}

plan_node *builder_node(plan_builder *b, op_code op)
{
    program *p = b->program;
    plan_node *nodes = grow(b->nodes, &b->node_capacity, b->n_nodes, sizeof *nodes);
    if (!nodes || b->failed) {
        b->failed = true;
        lost_node = (plan_node){.op = op};
        return &lost_node;
    }
    b->nodes = nodes;
    plan_node *node = &nodes[b->n_nodes++];
    *node = (plan_node){.op = op, .layer = b->layer, .step = p->n_steps - 1};
    const op_info *info = op_get(op);
    for (int i = 0; i < op_n_params(info); i++)
        node->params[i] = (float)info->params[i].value;
    program_step *step = &p->steps[p->n_steps - 1];
    step->n_nodes++;
    assert(step->graph || step->n_nodes == 1);
    return node;
}

static plan_operand *operand_of(plan_node *node, const char *name)
{
    int index = op_tensor_index(op_get(node->op), name);
    assert(index >= 0);
    return &node->operands[index];
}

void node_tensor(plan_node *node, const char *name, plan_tensor_id id)
{
    *operand_of(node, name) = (plan_operand){.kind = OPERAND_TENSOR, .id = id};
}

void node_weight(plan_node *node, const char *name, weight_slot slot)
{
    *operand_of(node, name) = (plan_operand){.kind = OPERAND_WEIGHT, .id = slot};
}

void node_bias(plan_node *node, const char *name, weight_slot slot)
{
    *operand_of(node, name) = (plan_operand){.kind = OPERAND_BIAS, .id = slot};
}

void node_lora_a(plan_node *node, weight_slot slot)
{
    *operand_of(node, "weight") = (plan_operand){.kind = OPERAND_LORA_A, .id = slot};
}

void node_lora_b(plan_node *node, weight_slot slot)
{
    *operand_of(node, "weight") = (plan_operand){.kind = OPERAND_LORA_B, .id = slot};
}

void node_param(plan_node *node, const char *name, double value)
{
    int index = op_param_index(op_get(node->op), name);
    assert(index >= 0);
    node->params[index] = (float)value;
}

void node_columns(plan_node *node, const char *name, plan_tensor_id id, int64_t first,
                  int64_t count, const char *symbol)
{
    *operand_of(node, name) = (plan_operand){.kind = OPERAND_TENSOR,
                                             .id = id,
                                             .first_column = first,
                                             .columns = count,
                                             .symbols = {symbol}};
}

void node_parts(plan_node *node, const char *name, plan_tensor_id id, int64_t ranks)
{
    node_tensor(node, name, id);
    operand_of(node, name)->ranks = ranks;
}

void node_heads(plan_node *node, const char *name, plan_tensor_id id, int64_t first, int64_t count,
                int64_t heads, const char *symbol)
{
    node_columns(node, name, id, first, count, symbol);
    plan_operand *operand = operand_of(node, name);
    operand->heads = heads;
    operand->symbols[1] = "head_dim";
}

void node_row(plan_node *node, const char *name, plan_tensor_id id, int64_t first, int64_t count,
              const char *symbol)
{
    node_heads(node, name, id, first, count, 1, "1");
    operand_of(node, name)->symbols[1] = symbol;
}

void node_blocks(plan_node *node, const char *name, plan_tensor_id id, int64_t count, int64_t size,
                 const char *const symbols[static 2])
{
    node_heads(node, name, id, 0, count * size, count, symbols[0]);
    operand_of(node, name)->symbols[1] = symbols[1];
}

void node_choice(plan_node *node, const char *name, plan_tensor_id id, int64_t choice,
                 const char *symbol)
{
    node_tensor(node, name, id);
    operand_of(node, name)->choice = 1 + choice;
    operand_of(node, name)->symbols[0] = symbol;
}

void node_slots(plan_node *node, const char *name, plan_tensor_id id)
{
    node_tensor(node, name, id);
    operand_of(node, name)->slots = true;
}

void node_rows(plan_node *node, const char *name, program_axis axis, const char *symbol)
{
    plan_operand *operand = operand_of(node, name);
    assert(operand->kind == OPERAND_TENSOR);
    operand->rows = axis;
    operand->rows_symbol = symbol;
}

void builder_tensor(plan_builder *b, plan_tensor_id id, const char *name, plan_kind kind,
                    dtype type, int rank, const plan_dim *dims)
{
    plan_tensor *t = &b->program->tensors[id];
    *t = (plan_tensor){.name = name, .kind = kind, .type = type, .rank = rank};
    memcpy(t->dims, dims, (size_t)rank * sizeof *dims);
}
