/* Matrices in FP8: see fp8.h. */
#include "model/fp8.h"

#include "base/names.h"
#include "tensor/codec.h"
#include "tensor/codec_blocks.h"
#include "tensor/float8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const scale_suffixes[] = {"_scale", "_scale_inv"};
enum { N_SUFFIXES = sizeof scale_suffixes / sizeof *scale_suffixes, TENSOR_NAME_SIZE = 192 };

bool fp8_is_stored(const safetensors *file, const char *name)
{
    const stored_tensor *stored = safetensors_find_tensor(file, name);
    return stored && strcmp(stored->type_name, "F8_E4M3") == 0;
}

/* ---- Scales ------------------------------------------------------------------------------------
 */

static int64_t blocks_of(int64_t n, int64_t block)
{
    return n / block + (n % block != 0);
}

/* Sets the blocks that the scales' shape means: one for all, one a row, or a grid. */
static bool fit_blocks(const stored_tensor *scales, const model_config *config, fp8_matrix *m)
{
    const int64_t down = scales->shape[0], across = scales->rank > 1 ? scales->shape[1] : 1;
    const int64_t block_rows = config->fp8_block_rows ? config->fp8_block_rows : FP8_BLOCK;
    const int64_t block_columns = config->fp8_block_columns ? config->fp8_block_columns : FP8_BLOCK;
    if (scales->rank > 2) return false;
    if (down == 1 && across == 1) {
        m->block_rows = m->rows, m->block_columns = m->columns;
    } else if (down == m->rows && across == 1) {
        m->block_rows = 1, m->block_columns = m->columns;
    } else {
        m->block_rows = block_rows, m->block_columns = block_columns;
        return down == blocks_of(m->rows, block_rows) &&
               across == blocks_of(m->columns, block_columns);
    }
    return true;
}

/* The tensor that has the scales of `name`; NULL with an error if there is none, or are two. */
static const stored_tensor *find_scales(const safetensors *file, const char *name, qp_error *error)
{
    const stored_tensor *found[N_SUFFIXES];
    for (int i = 0; i < N_SUFFIXES; i++) {
        char full[TENSOR_NAME_SIZE];
        snprintf(full, sizeof full, "%s%s", name, scale_suffixes[i]);
        found[i] = safetensors_find_tensor(file, full);
    }
    if (found[0] && found[1])
        error_set(error, QP_FORMAT,
                  "%s: tensor \"%s\" has both \"%s_scale\" and \"%s_scale_inv\"; expected one",
                  safetensors_path(file), name, name, name);
    else if (!found[0] && !found[1])
        error_set(error, QP_FORMAT,
                  "%s: tensor \"%s\" is in FP8, and its scales are missing: expected a tensor "
                  "\"%s_scale\" or \"%s_scale_inv\"",
                  safetensors_path(file), name, name, name);
    else
        return found[0] ? found[0] : found[1];
    return NULL;
}

static qp_status refuse_scales(const safetensors *file, const model_config *config,
                               const fp8_matrix *m, const stored_tensor *scales, qp_error *error)
{
    const long long rows = config->fp8_block_rows ? config->fp8_block_rows : FP8_BLOCK;
    const long long columns = config->fp8_block_columns ? config->fp8_block_columns : FP8_BLOCK;
    char quoted[SLICE_QUOTE_SIZE], found[128];
    return error_set(error, QP_FORMAT,
                     "%s: tensor \"%s\" must hold numbers of F32, F16 or BF16, one for the matrix "
                     "of %lld x %lld, one a row, or one for each %lld x %lld elements; found %s",
                     safetensors_path(file), slice_quote(scales->name, quoted), (long long)m->rows,
                     (long long)m->columns, rows, columns,
                     stored_tensor_describe(scales, found, sizeof found));
}

static bool is_scale_type(dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

qp_status fp8_find(const safetensors *file, const model_config *config, const char *name,
                   fp8_matrix *out, qp_error *error)
{
    const stored_tensor *stored = safetensors_find_tensor(file, name);
    if (stored->rank != 2 || stored->bytes == 0)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: tensor \"%s\" is in FP8; only matrices with elements are read in it",
                         safetensors_path(file), name);
    const stored_tensor *scales = find_scales(file, name, error);
    if (!scales) return QP_FORMAT;
    fp8_matrix m = {.data = stored->data,
                    .rows = stored->shape[0],
                    .columns = stored->shape[1],
                    .scales = scales->data,
                    .scale_type = scales->type};
    if (!is_scale_type(scales->type) || !fit_blocks(scales, config, &m))
        return refuse_scales(file, config, &m, scales, error);
    *out = m;
    return QP_OK;
}

/* Of the block in row `i` and column `j` of blocks. */
static float scale_at(const fp8_matrix *m, int64_t i, int64_t j)
{
    const int64_t at = i * blocks_of(m->columns, m->block_columns) + j;
    float scale;
    dtype_decode(m->scale_type, m->scales + (size_t)at * dtype_block_bytes(m->scale_type), &scale,
                 1);
    return scale;
}

qp_status fp8_check_scales(const fp8_matrix *m, const char *path, const char *name, qp_error *error)
{
    const int64_t down = blocks_of(m->rows, m->block_rows);
    const int64_t across = blocks_of(m->columns, m->block_columns);
    for (int64_t i = 0; i < down; i++)
        for (int64_t j = 0; j < across; j++) {
            const float scale = scale_at(m, i, j);
            if (!isfinite(scale))
                return error_set(error, QP_FORMAT,
                                 "%s: tensor \"%s\": the scale of row %lld, column %lld is %g; "
                                 "expected a finite number",
                                 path, name, (long long)(i * m->block_rows),
                                 (long long)(j * m->block_columns), (double)scale);
        }
    return QP_OK;
}

/* ---- Elements ----------------------------------------------------------------------------------
 */

/* Columns [from, to) of `rows` rows that share a scale: what each byte stands for is computed once.
 */
static void decode_block(const fp8_matrix *m, float scale, int64_t row, int64_t rows, int64_t from,
                         int64_t to, uint16_t *dst)
{
    uint16_t numbers[256];
    for (int i = 0; i < 256; i++)
        numbers[i] = f32_to_bf16(f8_to_f32((uint8_t)i) * scale);
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *bytes = m->data + (size_t)((row + r) * m->columns);
        uint16_t *out = dst + (size_t)(r * m->columns);
        for (int64_t i = from; i < to; i++)
            out[i] = numbers[bytes[i]];
    }
}

void fp8_decode(const fp8_matrix *m, int64_t begin, int64_t rows, uint16_t *dst)
{
    const int64_t end = begin + rows;
    for (int64_t row = begin, next; row < end; row = next) {
        next = (row / m->block_rows + 1) * m->block_rows;
        if (next > end) next = end;
        for (int64_t from = 0; from < m->columns; from += m->block_columns) {
            const int64_t to =
                m->columns - from < m->block_columns ? m->columns : from + m->block_columns;
            const float scale = scale_at(m, row / m->block_rows, from / m->block_columns);
            decode_block(m, scale, row, next - row, from, to,
                         dst + (size_t)((row - begin) * m->columns));
        }
    }
}

dtype fp8_type(const fp8_matrix *m)
{
    const bool whole = m->columns % BLOCK_128 == 0 &&
                       (m->block_columns == m->columns || m->block_columns % BLOCK_128 == 0);
    return whole ? DTYPE_F8_128 : DTYPE_BF16;
}

void fp8_join_scales(const fp8_matrix *m, int64_t begin, int64_t rows, void *dst)
{
    char *to = dst;
    for (int64_t row = begin; row < begin + rows; row++)
        for (int64_t i = 0; i < m->columns; i += BLOCK_128, to += sizeof(block_f8_128)) {
            block_f8_128 block = {.d = scale_at(m, row / m->block_rows, i / m->block_columns)};
            memcpy(block.qs, m->data + (size_t)(row * m->columns + i), BLOCK_128);
            memcpy(to, &block, sizeof block);
        }
}

/* ---- Tensors that belong to a matrix ----------------------------------------------------------
 */

bool fp8_is_companion(const safetensors *file, const char *name)
{
    static const struct {
        const char *suffix, *matrix; /* what takes its place in the matrix's name */
    } companions[] = {
        {".weight_scale", ".weight"},
        {".weight_scale_inv", ".weight"},
        {".input_scale", ".weight"},
        {".input_scale_ub", ".weight"},
        {".output_scale", ".weight"},
        {".k_proj.k_scale", ".k_proj.weight"},
        {".v_proj.v_scale", ".v_proj.weight"},
        {".self_attn.k_scale", ".self_attn.k_proj.weight"},
        {".self_attn.v_scale", ".self_attn.v_proj.weight"},
    };
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof companions / sizeof *companions; i++) {
        const size_t end = strlen(companions[i].suffix);
        char matrix[TENSOR_NAME_SIZE];
        if (!name_ends_with(name, companions[i].suffix)) continue;
        const int written = snprintf(matrix, sizeof matrix, "%.*s%s", (int)(length - end), name,
                                     companions[i].matrix);
        if (written < (int)sizeof matrix && fp8_is_stored(file, matrix)) return true;
    }
    return false;
}
