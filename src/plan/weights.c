/* The weights of a program, read from its model: see weights.h. */
#include "plan/weights.h"

#include "base/buffer.h"
#include "model/model.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

int program_find_weight_part(const program *p, weight_slot slot, int64_t layer, int part)
{
    const int64_t row = weight_get_info(slot)->per_layer ? layer + 1 : 0;
    const int area = p->weight_areas[(row * WEIGHT_COUNT + slot) * PROGRAM_WEIGHT_PARTS + part];
    return area ? p->areas[area - 1].index : -1;
}

int program_find_weight(const program *p, weight_slot slot, int64_t layer, bool bias)
{
    return program_find_weight_part(p, slot, layer, bias);
}

void program_attach(program *p, const model *model)
{
    const model_config *config = model_get_config(model);
    p->model = model;
    p->config.name = config->name;
    p->config.rope.divisors = config->rope.divisors;
    p->config.rope_local.divisors = config->rope_local.divisors;
    p->config.rope.long_divisors = config->rope.long_divisors;
    for (int i = 0; i < p->n_weights; i++) {
        program_weight *w = &p->weights[i];
        const model_weight *of = model_get_weight(model, w->slot, w->layer);
        w->whole = w->lora ? (w->lora == WEIGHT_LORA_A ? of->lora_a : of->lora_b)
                           : (w->bias ? of->bias : of->weight);
    }
}

const char *program_model_path(const program *p)
{
    return model_path(p->model);
}

static uint64_t part_bytes(const program_weight *w)
{
    const tensor part = program_weight_part(w);
    return tensor_bytes(&part);
}

uint64_t program_weight_bytes(const program *p)
{
    uint64_t bytes = 0;
    for (int i = 0; i < p->n_weights; i++)
        if (p->weights[i].stored == i) bytes += part_bytes(&p->weights[i]);
    return bytes;
}

uint64_t program_read_bytes(const program *p)
{
    const int table = program_find_weight(p, WEIGHT_TOKEN_EMBD, -1, false);
    uint64_t bytes = 0;
    for (int i = 0; i < p->n_weights; i++)
        bytes += i == table ? 0 : part_bytes(&p->weights[i]);
    if (table < 0 || p->config.tied) return bytes; /* the row is one of those that are read */
    const tensor *whole = &p->weights[table].whole;
    return bytes + tensor_bytes(whole) / (uint64_t)whole->shape[0];
}

static size_t stored_bytes(dtype type, int64_t elements)
{
    return (size_t)(elements / (int64_t)dtype_block_elements(type)) * dtype_block_bytes(type);
}

/* Rows [begin, begin + rows) of the part, all columns. */
static void read_rows(const program *p, const program_weight *w, int64_t begin, int64_t rows,
                      char *dst)
{
    const int64_t each = w->rows.count, whole = program_weight_whole_rows(w);
    const size_t row_bytes =
        stored_bytes(w->whole.type, w->whole.rank == 2 ? w->whole.shape[1] : 1);
    for (int64_t end = begin + rows, n; begin < end; begin += n, dst += (size_t)n * row_bytes) {
        const int64_t expert = begin / each, row = begin % each;
        n = row + end - begin < each ? end - begin : each - row;
        model_read_rows(p->model, w->slot, w->layer, w->bias, expert * whole + w->rows.first + row,
                        n, dst);
    }
}

/* Columns of rows, from whole rows; of a vector its columns. */
static qp_status read_columns(const program *p, const program_weight *w, int64_t begin,
                              int64_t rows, char *dst, qp_error *error)
{
    const size_t row_bytes = stored_bytes(w->whole.type, w->whole.shape[w->whole.rank - 1]);
    const size_t skip = stored_bytes(w->whole.type, w->columns.first);
    const size_t bytes = stored_bytes(w->whole.type, w->columns.count);
    char *row = malloc(row_bytes);
    if (!row) return error_no_memory(error, "a row of a weight", row_bytes);
    for (int64_t i = 0; i < rows; i++) {
        read_rows(p, w, begin + i, 1, row);
        memcpy(dst + (size_t)i * bytes, row + skip, bytes);
    }
    free(row);
    return QP_OK;
}

qp_status program_read_weight(const program *p, int weight, int64_t begin, int64_t rows, void *dst,
                              qp_error *error)
{
    const program_weight *w = &p->weights[weight];
    if (w->lora) {
        const size_t row_bytes = stored_bytes(w->whole.type, w->whole.shape[1]);
        memcpy(dst, (const char *)w->whole.data + (size_t)begin * row_bytes,
               (size_t)rows * row_bytes);
        return QP_OK;
    }
    if (program_weight_has_columns(w) || (w->whole.rank == 1 && !w->bias))
        return read_columns(p, w, begin, rows, dst, error);
    read_rows(p, w, begin, rows, dst);
    return QP_OK;
}

bool program_weight_stream(const program *p, int weight, synthetic_stream *out)
{
    const program_weight *w = &p->weights[weight];
    return !w->lora && model_synthetic_stream(p->model, w->slot, w->layer, w->bias, out);
}

/* Whether it lies as the model has it. Only matrices and norms are large enough to be given back;
 * biases stay, and so do adapters, which lie in memory. */
static bool is_plain(const program_weight *w)
{
    return !w->bias && !w->lora;
}

bool program_weight_is_mapped(const program *p, int weight)
{
    const program_weight *w = &p->weights[weight];
    return is_plain(w) && model_is_mapped(p->model, w->slot, w->layer);
}

static bool is_cut(const program_weight *w)
{
    return !program_weight_has_rows(w) || program_weight_has_columns(w);
}

void program_release_weight(const program *p, int weight)
{
    const program_weight *w = &p->weights[weight];
    const tensor part = program_weight_part(w);
    if (is_plain(w) && !is_cut(w))
        model_release_weight(p->model, w->slot, w->layer);
    else if (part.data && program_weight_is_mapped(p, weight))
        buffer_release_pages(part.data, tensor_bytes(&part));
}

void program_read_sparsely(const program *p, int weight)
{
    const program_weight *w = &p->weights[weight];
    if (is_plain(w)) model_read_sparsely(p->model, w->slot, w->layer);
}

void program_discard_weight(const program *p, int weight)
{
    const program_weight *w = &p->weights[weight];
    if (is_plain(w) && !is_cut(w)) model_discard_weight(p->model, w->slot, w->layer);
}
