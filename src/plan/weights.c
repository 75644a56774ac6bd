/* The weights of a program, read from its model: see weights.h. */
#include "plan/weights.h"

#include "model/model.h"
#include "plan/plan.h"

int program_find_weight(const program *p, weight_slot slot, int64_t layer, bool bias)
{
    const int64_t row = weight_get_info(slot)->per_layer ? layer + 1 : 0;
    const int area = p->weight_areas[(row * WEIGHT_COUNT + slot) * 2 + bias];
    return area ? p->areas[area - 1].index : -1;
}

void program_attach(program *p, const model *model)
{
    const model_config *config = model_get_config(model);
    p->model = model;
    p->config.name = config->name;
    p->config.rope.divisors = config->rope.divisors;
    for (int i = 0; i < p->n_weights; i++) {
        program_weight *w = &p->weights[i];
        const model_weight *of = model_get_weight(model, w->slot, w->layer);
        w->whole = w->bias ? of->bias : of->weight;
    }
}

const char *program_model_path(const program *p)
{
    return model_path(p->model);
}

uint64_t program_weight_bytes(const program *p)
{
    return model_weight_bytes(p->model);
}

uint64_t program_read_bytes(const program *p)
{
    return model_read_bytes(p->model);
}

void program_read_weight(const program *p, int weight, int64_t begin, int64_t rows, void *dst)
{
    const program_weight *w = &p->weights[weight];
    model_read_rows(p->model, w->slot, w->layer, w->bias, begin, rows, dst);
}

bool program_weight_stream(const program *p, int weight, synthetic_stream *out)
{
    const program_weight *w = &p->weights[weight];
    return model_synthetic_stream(p->model, w->slot, w->layer, w->bias, out);
}

/* Only matrices and norms are large enough to be given back; biases stay. */
bool program_weight_is_mapped(const program *p, int weight)
{
    const program_weight *w = &p->weights[weight];
    return !w->bias && model_is_mapped(p->model, w->slot, w->layer);
}

void program_release_weight(const program *p, int weight)
{
    const program_weight *w = &p->weights[weight];
    if (!w->bias) model_release_weight(p->model, w->slot, w->layer);
}

void program_read_sparsely(const program *p, int weight)
{
    const program_weight *w = &p->weights[weight];
    if (!w->bias) model_read_sparsely(p->model, w->slot, w->layer);
}

void program_discard_weight(const program *p, int weight)
{
    const program_weight *w = &p->weights[weight];
    if (!w->bias) model_discard_weight(p->model, w->slot, w->layer);
}
