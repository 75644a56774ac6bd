/* Experts of gpt-oss in safetensors: see joined_experts.h. */
#include "model/joined_experts.h"

#include "tensor/codec_blocks.h"

#include <stdio.h>
#include <string.h>

enum { NAME_SIZE = 192 };

static qp_status refuse(const safetensors *file, const stored_tensor *stored, const char *expected,
                        qp_error *error)
{
    char quoted[SLICE_QUOTE_SIZE], found[128];
    return error_set(error, QP_FORMAT, "%s: tensor \"%s\" must be %s, found %s",
                     safetensors_path(file), slice_quote(stored->name, quoted), expected,
                     stored_tensor_describe(stored, found, sizeof found));
}

static bool is_plain(dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

static qp_status find_plain(const safetensors *file, const stored_tensor *stored,
                            joined_experts *out, qp_error *error)
{
    if (stored->rank != 3 || stored->shape[0] != out->n_experts ||
        stored->shape[2] % out->step != 0 || !is_plain(stored->type))
        return refuse(file, stored, "of F32, F16 or BF16, (experts, columns, rows)", error);
    out->type = stored->type;
    out->plain = stored->data;
    out->columns = stored->shape[1];
    out->rows = stored->shape[2];
    return QP_OK;
}

static bool is_bytes(const stored_tensor *stored)
{
    return strcmp(stored->type_name, "U8") == 0;
}

static qp_status find_blocks(const safetensors *file, const char *name, const stored_tensor *blocks,
                             joined_experts *out, qp_error *error)
{
    char full[NAME_SIZE];
    snprintf(full, sizeof full, "%s_scales", name);
    const stored_tensor *scales = safetensors_find_tensor(file, full);
    if (!scales)
        return error_set(error, QP_FORMAT,
                         "%s: tensor \"%s\" is missing, but \"%s_blocks\" is there",
                         safetensors_path(file), full, name);
    if (!is_bytes(blocks) || blocks->rank != 4 || blocks->shape[0] != out->n_experts ||
        blocks->shape[1] % out->step != 0 || blocks->shape[3] != BLOCK_32 / 2)
        return refuse(file, blocks, "of U8, (experts, rows, columns / 32, 16)", error);
    if (!is_bytes(scales) || scales->rank != 3 ||
        memcmp(scales->shape, blocks->shape, 3 * sizeof *scales->shape) != 0)
        return refuse(file, scales, "of U8, with a scale for each block", error);
    out->type = DTYPE_MXFP4;
    out->blocks = blocks->data;
    out->scales = scales->data;
    out->rows = blocks->shape[1];
    out->columns = blocks->shape[2] * BLOCK_32;
    return QP_OK;
}

qp_status joined_experts_find(const safetensors *file, const char *name, int64_t n_experts,
                              int64_t step, int64_t first, joined_experts *out, qp_error *error)
{
    char full[NAME_SIZE];
    *out =
        (joined_experts){.type = DTYPE_COUNT, .n_experts = n_experts, .step = step, .first = first};
    snprintf(full, sizeof full, "%s_blocks", name);
    const stored_tensor *blocks = safetensors_find_tensor(file, full);
    if (blocks) return find_blocks(file, name, blocks, out, error);
    const stored_tensor *plain = safetensors_find_tensor(file, name);
    return plain ? find_plain(file, plain, out, error) : QP_OK;
}

/* Two neighbouring values a byte become values i and i + 16. */
static void reorder(const uint8_t *from, uint8_t *to)
{
    for (int i = 0; i < BLOCK_32 / 2; i++) {
        const int low = from[i / 2] >> (i % 2 * 4) & 15;
        const int high = from[BLOCK_32 / 4 + i / 2] >> (i % 2 * 4) & 15;
        to[i] = (uint8_t)(low | high << 4);
    }
}

/* A row of MXFP4 by its number among the stored rows of all experts. */
static void read_blocks(const joined_experts *x, int64_t row, block_mxfp4 *to)
{
    const int64_t n_blocks = x->columns / BLOCK_32;
    for (int64_t b = 0; b < n_blocks; b++) {
        to[b].e = x->scales[row * n_blocks + b];
        reorder(x->blocks + (row * n_blocks + b) * (BLOCK_32 / 2), to[b].qs);
    }
}

static void read_plain(const joined_experts *x, int64_t expert, int64_t row, char *to)
{
    const size_t element = dtype_block_bytes(x->type);
    const char *from = x->plain + (size_t)(expert * x->columns * x->rows + row) * element;
    for (int64_t i = 0; i < x->columns; i++, from += (size_t)x->rows * element)
        memcpy(to + (size_t)i * element, from, element);
}

void joined_experts_read(const joined_experts *x, int64_t begin, int64_t rows, void *dst)
{
    const int64_t each = x->rows / x->step;
    const size_t row_bytes = dtype_row_bytes(x->type, x->columns);
    for (int64_t i = begin; i < begin + rows; i++) {
        const int64_t expert = i / each, row = i % each * x->step + x->first;
        char *to = (char *)dst + (size_t)(i - begin) * row_bytes;
        if (x->plain)
            read_plain(x, expert, row, to);
        else
            read_blocks(x, expert * x->rows + row, (block_mxfp4 *)to);
    }
}
