/* Quantised weights in the order of chains: see packed.h. */
#include "vm/cuda/packed.h"

#include "base/checked.h"
#include "vm/cuda/weights.h"

#include <stdlib.h>

static int kind_of(dtype type)
{
    switch (type) {
    case DTYPE_Q4_0:
        return PACKED_Q4_0;
    case DTYPE_Q4_1:
    case DTYPE_Q4_K:
        return PACKED_Q4;
    case DTYPE_Q6_K:
        return PACKED_Q6;
    case DTYPE_F8_128:
        return PACKED_F8;
    default:
        return PACKED_NONE;
    }
}

static int64_t row_groups(int64_t rows)
{
    return (rows + PACKED_GROUP_ROWS - 1) / PACKED_GROUP_ROWS;
}

static size_t part_bytes(const packed_part *part)
{
    return (size_t)packed_groups(part->rows, part->columns) * PACKED_GROUP_UNITS *
           (size_t)packed_unit_bytes(part->kind);
}

/* Bytes of a row as products name it. */
static size_t element_bytes(const cuda_packed *packed)
{
    return packed->in_f8 ? 1 : 2;
}

/* The weight of up that belongs to a gate, if it has the same type and is named next to the gate;
 * or -1. */
static int up_of(const program *p, const size_t *named_at, const cuda_packed *packed, int weight)
{
    const program_weight *gate = &p->weights[weight];
    if (gate->slot != WEIGHT_FFN_GATE) return -1;
    const int up = program_find_weight(p, WEIGHT_FFN_UP, gate->layer, false);
    const size_t bytes =
        (size_t)(gate->whole.shape[0] * gate->whole.shape[1]) * element_bytes(packed);
    if (up < 0 || p->weights[up].whole.type != gate->whole.type ||
        named_at[up] != named_at[weight] + bytes || gate->whole.shape[0] % 8 != 0)
        return -1;
    return up;
}

/* Adds the part that begins with a weight. False: the weight has no such order. */
static bool add_part(const program *p, const size_t *named_at, int weight, cuda_packed *out)
{
    const tensor *whole = &p->weights[weight].whole; /* of one rank */
    packed_part part = {.named_at = named_at[weight],
                        .at = out->bytes,
                        .weights = {weight, up_of(p, named_at, out, weight)},
                        .columns = whole->shape[1],
                        .kind = kind_of(whole->type)};
    const bool pairs = part.weights[1] >= 0;
    part.rows = whole->shape[0] * (pairs ? 2 : 1);
    if (part.kind == PACKED_NONE || (part.kind == PACKED_F8) != out->in_f8 ||
        part.columns % PACKED_COLUMNS != 0 || part.rows > INT32_MAX)
        return false;
    part.scales_at = out->scale_bytes;
    out->parts[out->n_parts++] = part;
    out->bytes += round_up(part_bytes(&part), CUDA_ALIGNMENT);
    if (out->in_f8) out->scale_bytes += (size_t)row_groups(part.rows) * PACKED_GROUP_ROWS * 4;
    return true;
}

/* Whether a weight is in the part of its gate. */
static bool is_an_up(const program *p, const size_t *named_at, const cuda_packed *packed,
                     int weight)
{
    if (p->weights[weight].slot != WEIGHT_FFN_UP) return false;
    const int gate = program_find_weight(p, WEIGHT_FFN_GATE, p->weights[weight].layer, false);
    return gate >= 0 && up_of(p, named_at, packed, gate) == weight;
}

qp_status cuda_packed_place(const program *p, const size_t *named_at, bool in_f8, cuda_packed *out,
                            qp_error *error)
{
    *out = (cuda_packed){.parts = calloc((size_t)p->n_weights + 1, sizeof *out->parts),
                         .in_f8 = in_f8};
    if (!out->parts) return error_no_memory(error, "the table of packed weights", 0);
    for (int i = 0; i < p->n_weights; i++) {
        if (p->weights[i].stored != i || named_at[i] == CUDA_AS_STORED) continue;
        if (is_an_up(p, named_at, out, i) || add_part(p, named_at, i, out)) continue;
        out->n_parts = 0;
        out->bytes = out->scale_bytes = 0;
        return QP_OK;
    }
    for (int i = 0; i < out->n_parts; i++)
        out->parts[i].scales_at += out->bytes;
    /* A tile may read as many scales after the last as it has rows. */
    if (in_f8 && out->n_parts > 0) out->scale_bytes += LINEAR_STREAM_ROWS * 4;
    out->bytes += round_up(out->scale_bytes, CUDA_ALIGNMENT);
    return QP_OK;
}

/* Numbers of FP8 lie without their scales. */
static void take_numbers(const packed_part *part, cuda_address from, const size_t *scales_at,
                         const cuda_packed *packed, packed_matrix *m)
{
    m->type = DTYPE_F8;
    m->row_bytes = part->columns;
    m->scales_to = packed->memory.address + part->scales_at;
    for (int i = 0; i < 2 && part->weights[i] >= 0; i++)
        m->scales_from[i] = from + scales_at[part->weights[i]];
}

qp_status cuda_packed_make(const program *p, cuda_device *device, cuda_address from,
                           const size_t *offsets, const size_t *scales_at, cuda_packed *packed,
                           qp_error *error)
{
    enum { THREADS = 256, BLOCKS = 2048 };
    cuda_function kernel;
    TRY(cuda_buffer_alloc(device, packed->bytes, "weights in the order of chains", &packed->memory,
                          error));
    TRY(cuda_device_function(device, "linear_packed", "pack_matrix", 0, &kernel, error));
    for (int i = 0; i < packed->n_parts; i++) {
        const packed_part *part = &packed->parts[i];
        const tensor *whole = &p->weights[part->weights[0]].whole;
        packed_matrix m = {.from = {from + offsets[part->weights[0]]},
                           .to = packed->memory.address + part->at,
                           .row_bytes = whole->stride[0],
                           .type = (int32_t)whole->type,
                           .kind = part->kind,
                           .rows = (int32_t)part->rows,
                           .columns = (int32_t)part->columns};
        if (part->weights[1] >= 0) m.from[1] = from + offsets[part->weights[1]];
        if (packed->in_f8) take_numbers(part, from, scales_at, packed, &m);
        TRY(cuda_check(device->driver->launch(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0,
                                              device->stream, (void *[]){&m}, NULL),
                       "arranging weights", error));
    }
    return cuda_device_wait(device, "arranging weights", error);
}

void cuda_packed_free(const cuda_device *device, cuda_packed *packed)
{
    if (packed->parts) cuda_buffer_free(device, &packed->memory);
    free(packed->parts);
    *packed = (cuda_packed){0};
}

static const packed_part *find_part(const cuda_packed *packed, size_t named_at)
{
    for (int i = 0; i < packed->n_parts; i++)
        if (packed->parts[i].named_at == named_at) return &packed->parts[i];
    return NULL;
}

bool cuda_packed_find(const cuda_packed *packed, size_t named_at, int64_t rows, bool pairs,
                      int tile_rows, cuda_address memory, chain_packed *out)
{
    int64_t done = 0;
    size_t end = 0;
    int n = 0;
    *out = (chain_packed){.first = {0, INT32_MAX, INT32_MAX}};
    for (int i = 0; i < CHAIN_PACKED_PARTS && done < rows; i++) {
        const packed_part *part = find_part(packed, named_at);
        if (!part || (part->weights[1] >= 0) != pairs) return false;
        const bool follows = n > 0 && done % PACKED_GROUP_ROWS == 0 && part->at == end &&
                             part->kind == out->kind[n - 1];
        if (!follows) {
            if (done % tile_rows != 0) return false;
            out->from[n] = memory + part->at;
            out->scales[n] = packed->in_f8 ? memory + part->scales_at : 0;
            out->first[n] = (int32_t)(done / PACKED_GROUP_ROWS);
            out->kind[n++] = part->kind;
        }
        end = part->at + part_bytes(part);
        done += part->rows;
        named_at += (size_t)(part->rows * part->columns) * element_bytes(packed);
    }
    out->n_groups = (int32_t)row_groups(rows);
    return done == rows;
}
