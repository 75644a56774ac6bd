/* Matrices of whole numbers in groups: see int_weights.h. */
#include "model/int_weights.h"

#include "base/names.h"
#include "tensor/codec.h"
#include "tensor/codec_blocks.h"
#include "tensor/float16.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME = 224, BLOCK = 32 };

/* Names of the parts, in place of "weight". */
typedef struct part_names {
    const char *words, *zeros, *scales, *groups;
} part_names;

static const part_names parts[] = {
    [INT_GPTQ] = {"qweight", "qzeros", "scales", "g_idx"},
    [INT_GPTQ_V2] = {"qweight", "qzeros", "scales", "g_idx"},
    [INT_AWQ] = {"qweight", "qzeros", "scales", NULL},
    [INT_COMPRESSED] = {"weight_packed", "weight_zero_point", "weight_scale", "weight_g_idx"},
};

/* "X.weight" with another last word. */
static const stored_tensor *find_part(const safetensors *file, const char *name, const char *part)
{
    char full[NAME];
    if (!part || !name_ends_with(name, ".weight")) return NULL;
    snprintf(full, sizeof full, "%.*s%s", (int)(strlen(name) - strlen("weight")), name, part);
    return safetensors_find_tensor(file, full);
}

bool int_is_stored(const safetensors *file, const model_config *c, const char *name)
{
    return c->int_layout != INT_NONE && find_part(file, name, parts[c->int_layout].words);
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static int64_t divide_up(int64_t n, int64_t by)
{
    return n / by + (n % by != 0);
}

static qp_status check_part(const safetensors *file, const stored_tensor *part, const char *type,
                            int64_t rows, int64_t columns, qp_error *error)
{
    char quoted[SLICE_QUOTE_SIZE], found[128];
    const bool vector = columns == 0;
    const bool typed =
        type ? strcmp(part->type_name, type) == 0
             : part->type == DTYPE_F16 || part->type == DTYPE_BF16 || part->type == DTYPE_F32;
    if (typed && part->rank == (vector ? 1 : 2) && part->shape[0] == rows &&
        (vector || part->shape[1] == columns))
        return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s: tensor \"%s\" must be %s [%lld%s%.0lld] by the matrix and its groups, "
                     "found %s",
                     safetensors_path(file), slice_quote(part->name, quoted),
                     type ? type : "F16, BF16 or F32", (long long)rows, vector ? "" : ", ",
                     (long long)columns, stored_tensor_describe(part, found, sizeof found));
}

/* Rows, columns and the number of groups, by the words and the scales. */
static qp_status find_sizes(const safetensors *file, const model_config *c, int_matrix *m,
                            qp_error *error)
{
    char quoted[SLICE_QUOTE_SIZE], found[128];
    const int64_t n = 32 / m->bits;
    const stored_tensor *w = m->words, *s = m->scales;
    if (w->rank != 2 || s->rank != 2 || strcmp(w->type_name, "I32") != 0)
        return error_set(error, QP_FORMAT,
                         "%s: tensor \"%s\" must be I32 with two dimensions, and its scales have "
                         "two, found %s",
                         safetensors_path(file), slice_quote(w->name, quoted),
                         stored_tensor_describe(w, found, sizeof found));
    if (m->layout == INT_COMPRESSED)
        m->rows = w->shape[0], m->columns = w->shape[1] * n;
    else if (m->layout == INT_AWQ)
        m->rows = w->shape[1] * n, m->columns = w->shape[0];
    else
        m->rows = w->shape[1], m->columns = w->shape[0] * n;
    m->group_size = c->int_group > 0 ? c->int_group : m->columns;
    m->n_groups = divide_up(m->columns, m->group_size);
    return QP_OK;
}

static qp_status check_parts(const safetensors *file, const int_matrix *m, qp_error *error)
{
    const int64_t n = 32 / m->bits;
    if (m->layout == INT_COMPRESSED) {
        TRY(check_part(file, m->scales, NULL, m->rows, m->n_groups, error));
        if (m->zeros)
            TRY(check_part(file, m->zeros, "I32", divide_up(m->rows, n), m->n_groups, error));
    } else {
        TRY(check_part(file, m->scales, NULL, m->n_groups, m->rows, error));
        TRY(check_part(file, m->zeros, "I32", m->n_groups, divide_up(m->rows, n), error));
    }
    return m->groups ? check_part(file, m->groups, "I32", m->columns, 0, error) : QP_OK;
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static uint32_t word_at(const stored_tensor *t, int64_t i)
{
    uint32_t word;
    memcpy(&word, (const char *)t->data + (size_t)i * sizeof word, sizeof word);
    return word;
}

/* The number in a word's place. AWQ packs eight columns in an order of its own. */
static int number_in(const int_matrix *m, uint32_t word, int64_t place)
{
    static const int awq[] = {0, 4, 1, 5, 2, 6, 3, 7}; /* where column i of eight is */
    if (m->layout == INT_AWQ) place = awq[place];
    return (int)(word >> (place * m->bits) & ((1u << m->bits) - 1));
}

static int number_at(const int_matrix *m, int64_t row, int64_t column)
{
    const int64_t n = 32 / m->bits, across = m->words->shape[1];
    if (m->layout == INT_COMPRESSED)
        return number_in(m, word_at(m->words, row * across + column / n), column % n);
    if (m->layout == INT_AWQ)
        return number_in(m, word_at(m->words, column * across + row / n), row % n);
    return number_in(m, word_at(m->words, column / n * across + row), column % n);
}

static int zero_at(const int_matrix *m, int64_t row, int64_t group)
{
    const int64_t n = 32 / m->bits;
    if (!m->zeros) return 1 << (m->bits - 1);
    const int64_t across = m->zeros->shape[1];
    if (m->layout == INT_COMPRESSED)
        return number_in(m, word_at(m->zeros, row / n * across + group), row % n);
    return number_in(m, word_at(m->zeros, group * across + row / n), row % n) +
           (m->layout == INT_GPTQ); /* which stores the zero less 1 */
}

static float scale_at(const int_matrix *m, int64_t row, int64_t group)
{
    float scale;
    const int64_t at =
        m->layout == INT_COMPRESSED ? row * m->n_groups + group : group * m->rows + row;
    dtype_decode(m->scales->type,
                 (const char *)m->scales->data + (size_t)at * dtype_block_bytes(m->scales->type),
                 &scale, 1);
    return scale;
}

static int64_t group_at(const int_matrix *m, int64_t column)
{
    return m->groups ? (int32_t)word_at(m->groups, column) : column / m->group_size;
}

/* The groups of inputs, which are left out where they are in order: always without an order that
 * was stored, of which compressed-tensors writes -1. */
static qp_status check_groups(const safetensors *file, int_matrix *m, const char *name,
                              qp_error *error)
{
    bool in_order = true;
    int64_t none = 0;
    for (int64_t i = 0; m->groups && i < m->columns; i++) {
        const int64_t group = group_at(m, i);
        none += m->layout == INT_COMPRESSED && group == -1;
        in_order &= group == i / m->group_size;
        if (none == i + 1 || (group >= 0 && group < m->n_groups && none == 0)) continue;
        return error_set(
            error, QP_FORMAT,
            "%s: tensor \"%s\": input %lld is of group %lld, and there are groups 0 to "
            "%lld",
            safetensors_path(file), name, (long long)i, (long long)group,
            (long long)m->n_groups - 1);
    }
    if (in_order || none) m->groups = NULL;
    return QP_OK;
}

qp_status int_check_scales(const int_matrix *m, const char *path, const char *name, qp_error *error)
{
    for (int64_t row = 0; row < m->rows; row++)
        for (int64_t group = 0; group < m->n_groups; group++)
            if (!isfinite(scale_at(m, row, group)))
                return error_set(error, QP_FORMAT,
                                 "%s: tensor \"%s\": the scale of row %lld, group %lld must be "
                                 "finite, found %g",
                                 path, name, (long long)row, (long long)group,
                                 (double)scale_at(m, row, group));
    return QP_OK;
}

qp_status int_find(const safetensors *file, const model_config *c, const char *name,
                   int_matrix *out, qp_error *error)
{
    const part_names *names = &parts[c->int_layout];
    int_matrix m = {.layout = c->int_layout,
                    .bits = (int)c->int_bits,
                    .words = find_part(file, name, names->words),
                    .zeros = find_part(file, name, names->zeros),
                    .scales = find_part(file, name, names->scales),
                    .groups = find_part(file, name, names->groups)};
    const bool needs_zeros = m.layout != INT_COMPRESSED || c->int_zeros;
    const char *missing = !m.scales ? names->scales : needs_zeros && !m.zeros ? names->zeros : NULL;
    if (missing)
        return error_set(error, QP_FORMAT,
                         "%s: tensor \"%s\" is stored as \"%s\", but its \"%s\" is missing",
                         safetensors_path(file), name, names->words, missing);
    TRY(find_sizes(file, c, &m, error));
    TRY(check_parts(file, &m, error));
    TRY(check_groups(file, &m, name, error));
    *out = m;
    return QP_OK;
}

/* ---- In types of blocks ---------------------------------------------------------------------- */

dtype int_type(const int_matrix *m)
{
    const int middle = 1 << (m->bits - 1);
    if (m->groups || m->columns % BLOCK || (m->n_groups > 1 && m->group_size % BLOCK))
        return DTYPE_F32;
    for (int64_t row = 0; row < m->rows; row++)
        for (int64_t group = 0; group < m->n_groups; group++) {
            const float scale = scale_at(m, row, group);
            if (zero_at(m, row, group) != middle || f16_to_f32(f32_to_f16(scale)) != scale)
                return DTYPE_F32;
        }
    return m->bits == 4 ? DTYPE_Q4_0 : DTYPE_Q8_0;
}

static void read_q4_0(const int_matrix *m, int64_t row, block_q4_0 *out)
{
    for (int64_t at = 0; at < m->columns; at += BLOCK) {
        block_q4_0 block = {.d = f32_to_f16(scale_at(m, row, at / m->group_size))};
        for (int i = 0; i < BLOCK / 2; i++)
            block.qs[i] =
                (uint8_t)(number_at(m, row, at + i) | number_at(m, row, at + BLOCK / 2 + i) << 4);
        memcpy(out++, &block, sizeof block);
    }
}

static void read_q8_0(const int_matrix *m, int64_t row, block_q8_0 *out)
{
    for (int64_t at = 0; at < m->columns; at += BLOCK) {
        block_q8_0 block = {.d = f32_to_f16(scale_at(m, row, at / m->group_size))};
        for (int i = 0; i < BLOCK; i++)
            block.qs[i] = (int8_t)(number_at(m, row, at + i) - 128);
        memcpy(out++, &block, sizeof block);
    }
}

static void read_f32(const int_matrix *m, int64_t row, float *out)
{
    for (int64_t i = 0; i < m->columns; i++) {
        const int64_t group = group_at(m, i);
        out[i] = scale_at(m, row, group) * (float)(number_at(m, row, i) - zero_at(m, row, group));
    }
}

void int_read(const int_matrix *m, dtype type, int64_t begin, int64_t rows, void *dst)
{
    const size_t row_bytes = dtype_row_bytes(type, m->columns);
    for (int64_t i = 0; i < rows; i++) {
        void *to = (char *)dst + (size_t)i * row_bytes;
        if (type == DTYPE_Q4_0)
            read_q4_0(m, begin + i, to);
        else if (type == DTYPE_Q8_0)
            read_q8_0(m, begin + i, to);
        else
            read_f32(m, begin + i, to);
    }
}

/* ---- Tensors that belong to a matrix --------------------------------------------------------- */

static bool is_zero(const stored_tensor *t)
{
    const char *bytes = t->data;
    for (uint64_t i = 0; i < t->bytes; i++)
        if (bytes[i]) return false;
    return true;
}

bool int_is_companion(const safetensors *file, const model_config *c, const char *name)
{
    char matrix[NAME];
    const char *dot = strrchr(name, '.');
    if (c->int_layout == INT_NONE || !dot) return false;
    const part_names *own = &parts[c->int_layout];
    const char *const names[] = {own->words, own->zeros, own->scales, own->groups, "weight_shape"};
    const int written = snprintf(matrix, sizeof matrix, "%.*s.weight", (int)(dot - name), name);
    if (written >= (int)sizeof matrix || !int_is_stored(file, c, matrix)) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i] && strcmp(dot + 1, names[i]) == 0) return true;
    return strcmp(dot + 1, "bias") == 0 && is_zero(safetensors_find_tensor(file, name));
}
