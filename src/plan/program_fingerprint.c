/* A number for a program, which differs for another one: see builder.h. */
#include "plan/builder.h"

#include "base/hash.h"

#include <string.h>

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return hash_mix(hash ^ value);
}

/* `sized`: with sizes in bytes; without them a view of the cache is the same for all its types. */
static uint64_t mix_view(uint64_t hash, const program_view *view, bool sized)
{
    hash = mix(hash, (uint64_t)view->area);
    if (!sized) {
        for (int d = 0; d < view->rank; d++)
            hash = mix(hash, (uint64_t)view->shape[d]);
        return mix(hash, (uint64_t)view->rank);
    }
    hash = mix(hash, view->offset);
    hash = mix(hash, (uint64_t)view->type);
    hash = mix(hash, (uint64_t)view->rank);
    for (int d = 0; d < TENSOR_MAX_RANK; d++)
        hash = mix(mix(hash, (uint64_t)view->shape[d]), (uint64_t)view->stride[d]);
    return hash;
}

static uint64_t mix_node(uint64_t hash, const program_node *node)
{
    for (const char *name = op_get(node->op)->name; *name; name++)
        hash = mix(hash, (uint64_t)*name);
    hash = mix(hash, (uint64_t)node->op);
    hash = mix(hash, (uint64_t)node->step);
    hash = mix(hash, (uint64_t)node->layer);
    hash = mix(hash, (uint64_t)node->row_axis);
    for (int i = 0; i < OP_MAX_TENSORS; i++)
        hash = mix(hash, node->operands[i]);
    for (int i = 0; i < OP_MAX_PARAMS; i++) {
        uint32_t bits;
        memcpy(&bits, &node->params[i], sizeof bits);
        hash = mix(hash, bits);
    }
    return hash;
}

static bool is_cache(const program_area *area)
{
    return area->base == BASE_K_CACHE || area->base == BASE_V_CACHE;
}

static uint64_t fingerprint(const program *p, bool sized)
{
    uint64_t hash = mix(OP_MAX_TENSORS, OP_COUNT);
    for (int i = 0; i < p->n_areas; i++) {
        const program_area *area = &p->areas[i];
        hash = mix(mix(hash, (uint64_t)area->base), (uint64_t)area->index);
        if (sized) hash = mix(mix(mix(hash, area->offset), area->bytes), area->row_bytes);
    }
    for (int i = 0; i < p->n_weights; i++) {
        const program_weight *weight = &p->weights[i];
        hash = mix(mix(hash, (uint64_t)weight->slot), (uint64_t)weight->layer);
        if (weight->lora) hash = mix(hash, (uint64_t)weight->lora);
        hash = mix(hash, (uint64_t)weight->bias);
        hash = mix(mix(hash, (uint64_t)weight->rows.first), (uint64_t)weight->columns.first);
    }
    for (int i = 0; i < p->n_views; i++)
        hash = mix_view(hash, &p->views[i], sized || !is_cache(&p->areas[p->views[i].area]));
    for (int i = 0; i < p->n_nodes; i++)
        hash = mix_node(hash, &p->nodes[i]);
    for (int axis = 0; axis < AXES && sized; axis++)
        hash = mix(hash, (uint64_t)p->capacity.of[axis]);
    return hash;
}

void program_take_fingerprints(program *p)
{
    p->fingerprint = fingerprint(p, true);
    p->form_fingerprint = fingerprint(p, false);
}
