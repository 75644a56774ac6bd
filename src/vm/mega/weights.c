/* Weights in the megakernel's order: for 16-bit weights, W_down transposed and W_o by KV heads;
 * quantised weights as fragments. */
#include "vm/mega/parts.h"

#include <stdlib.h>

static size_t count_down(const model_config *c)
{
    return 2 * (size_t)(c->n_layers * c->hidden_size * c->intermediate_size);
}

size_t mega_count_weights(const program *p)
{
    return mega_is_quantized(p) ? mega_count_fragments(p) : count_down(&p->config);
}

/* W_down transposed: the weights of one feature for all outputs are contiguous. If there are more
 * than 2,048 outputs, all rows of the first 2,048 come before those of the next 2,048. */
static qp_status transpose_down(cuda_mega *m, qp_error *error)
{
    const cuda_executor *x = m->executor;
    const model_config *c = &x->program->config;
    int rows = (int)c->hidden_size, exchanges = rows > MEGA_COLUMNS,
        columns = (int)c->intermediate_size;
    size_t bytes = (size_t)rows * (size_t)columns * 2;
    cuda_function transpose;
    TRY(cuda_buffer_alloc(x->device, count_down(c), "W_down transposed", &m->weights, error));
    TRY(cuda_device_function(x->device, "mega_weights", "mega_transpose", 0, &transpose, error));
    for (int64_t layer = 0; layer < c->n_layers; layer++) {
        cuda_address from = cuda_weights_address(&x->weights, WEIGHT_FFN_DOWN, layer);
        cuda_address to = m->weights.address + (size_t)layer * bytes;
        for (int rest = rows, some; rest > 0; rest -= some) {
            some = rest < MEGA_COLUMNS ? rest : MEGA_COLUMNS;
            TRY(cuda_check(x->device->driver->launch(
                               transpose, (unsigned)(columns + 31) / 32, (unsigned)(some + 31) / 32,
                               1, 32, 8, 1, 0, x->device->stream,
                               (void *[]){&from, &to, &some, &columns, &exchanges}, NULL),
                           "transposing weights", error));
            from += (size_t)some * (size_t)columns * 2;
            to += (size_t)some * (size_t)columns * 2;
        }
    }
    return cuda_device_wait(x->device, "transposing weights", error);
}

void mega_set_matrix(const cuda_mega *m, mega_weights *w, int i, weight_slot slot, int64_t layer)
{
    const cuda_executor *x = m->executor;
    const model_config *c = &x->program->config;
    if (m->quantized) {
        const int weight = program_find_weight(x->program, slot, layer, false);
        w->kinds[i] = (uint8_t)mega_fragment_kind(x->program, weight);
        w->matrix[i] = m->weights.address + m->fragments[layer + 1][slot];
    } else if (slot == WEIGHT_FFN_DOWN) {
        w->matrix[i] =
            m->weights.address + (size_t)(layer * c->intermediate_size * c->hidden_size * 2);
    } else {
        w->matrix[i] = cuda_weights_address(&x->weights, slot, layer);
    }
}

static qp_status make_map(const cuda_mega *m, void *map, cuda_address at, const uint64_t sizes[3],
                          const uint64_t strides[2], const uint32_t box[3], int swizzle,
                          qp_error *error)
{
    const uint32_t steps[3] = {1, 1, 1};
    return cuda_check(m->executor->device->driver->tensor_map(
                          map, CUDA_MAP_BF16, 3, (void *)(uintptr_t)at, sizes, strides, box, steps,
                          0, swizzle, CUDA_MAP_PROMOTION_128, 0),
                      "describing a tensor to the GPU", error);
}

/* Makes a layer's tensor map. */
typedef qp_status make_layer_map(const cuda_mega *m, void *map, int64_t layer, qp_error *error);

/* `each`: maps of a layer. */
static qp_status make_maps(const cuda_mega *m, make_layer_map *make, size_t each, cuda_address to,
                           qp_error *error)
{
    const cuda_executor *x = m->executor;
    int64_t layers = x->program->config.n_layers;
    size_t bytes = (size_t)layers * each * MEGA_MAP_BYTES;
    char *maps = aligned_alloc(MEGA_MAP_BYTES, bytes);
    if (!maps) return error_no_memory(error, "tensor maps", bytes);
    qp_status status = QP_OK;
    for (int64_t l = 0; l < layers && status == QP_OK; l++)
        status = make(m, maps + (size_t)l * each * MEGA_MAP_BYTES, l, error);
    if (status == QP_OK) status = mega_copy(x->device, to, maps, bytes, error);
    free(maps);
    return status;
}

/* W_o: a box is a KV head's columns of some rows: 64 columns of all rows, then the next 64, as the
 * tensor cores read them. */
static qp_status map_output(const cuda_mega *m, void *map, int64_t layer, qp_error *error)
{
    const cuda_executor *x = m->executor;
    const model_config *c = &x->program->config;
    uint64_t q = (uint64_t)config_q_hidden_units(c), hidden = (uint64_t)c->hidden_size;
    uint32_t groups = (uint32_t)(q / (uint64_t)c->n_kv_heads / 64);
    return make_map(m, map, cuda_weights_address(&x->weights, WEIGHT_ATTN_OUTPUT, layer),
                    (uint64_t[]){64, hidden, q / 64}, (uint64_t[]){2 * q, 128},
                    (uint32_t[]){64, (uint32_t)m->arguments.box_rows, groups}, CUDA_MAP_SWIZZLE_128,
                    error);
}

/* W_down transposed, a map for each block of columns: a box is all features of a block by some
 * groups of 64 columns. Where there are several blocks, eights are exchanged already. */
static qp_status map_down(const cuda_mega *m, void *map, int64_t layer, qp_error *error)
{
    const model_config *c = &m->executor->program->config;
    const uint64_t hidden = (uint64_t)c->hidden_size, features = (uint64_t)c->intermediate_size;
    const int blocks = mega_column_blocks(c);
    cuda_address at = m->weights.address + (uint64_t)layer * features * hidden * 2;
    for (int i = 0; i < blocks; i++) {
        const uint64_t rest = hidden - (uint64_t)i * MEGA_COLUMNS;
        const uint64_t columns = rest < MEGA_COLUMNS ? rest : MEGA_COLUMNS;
        const uint32_t box[] = {64, (uint32_t)m->batch.down_rows, (uint32_t)m->batch.down_groups};
        TRY(make_map(m, (char *)map + i * MEGA_MAP_BYTES, at,
                     (uint64_t[]){64, features, columns / 64}, (uint64_t[]){2 * columns, 128}, box,
                     blocks > 1 ? CUDA_MAP_SWIZZLE_NONE : CUDA_MAP_SWIZZLE_128, error));
        at += features * columns * 2;
    }
    return QP_OK;
}

qp_status mega_make_down_maps(const cuda_mega *m, qp_error *error)
{
    const size_t blocks = (size_t)mega_column_blocks(&m->executor->program->config);
    return make_maps(m, map_down, blocks, m->batch.down_maps, error);
}

qp_status mega_make_weights(cuda_mega *m, qp_error *error)
{
    if (m->quantized) return mega_make_fragments(m, error);
    const cuda_device *device = m->executor->device;
    TRY(transpose_down(m, error));
    TRY(cuda_buffer_alloc(device, (size_t)m->executor->program->config.n_layers * MEGA_MAP_BYTES,
                          "tensor maps", &m->maps, error));
    m->arguments.maps = m->maps.address;
    return make_maps(m, map_output, 1, m->maps.address, error);
}
