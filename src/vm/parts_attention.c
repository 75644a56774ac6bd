/* Attention in parts: see parts.h. For each sequence and KV head the pages are put together
 * (Concat), each query head gets a copy where heads share keys (RepeatKV), and then come q K^T, the
 * mask, softmax in three passes, and its product with V. Finally the outputs of the heads are put
 * together. */
#include "vm/parts_run.h"

#include "op/attention/attention.h"
#include "op/attention/ragged.h"
#include "op/exp/exp.h"
#include "op/normalize/normalize.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/reduce_max/reduce_max.h"
#include "tensor/float8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Rows of one query head: consecutive tokens of a sequence. */
typedef struct attention_block {
    const float *q;   /* (rows, head_dim) */
    float *out;       /* (rows, head_dim), contiguous */
    int64_t q_stride; /* in floats */
    int64_t rows, head_dim;
    int64_t visible,
        more; /* positions that the first row sees, and how many more each next row sees */
} attention_block;

/* The part [begin, end) of a call's units that belongs to one sequence. */
typedef struct sequence_slice {
    const op_call *call;
    int64_t sequence, begin, end;     /* units: token * n_heads + head */
    int64_t first, tokens, kv_length; /* of the sequence */
    double scale;
} sequence_slice;

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* out (rows, columns) = a (rows, inner) b (inner, columns); strides in floats. Each row of out is a
 * sum of rows of b, which compilers vectorise without help. */
static void multiply(const float *a, int64_t a_stride, const float *b, int64_t b_stride, float *out,
                     int64_t out_stride, int64_t rows, int64_t inner, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++) {
        float *restrict sum = out + r * out_stride;
        memset(sum, 0, (size_t)columns * sizeof *sum);
        for (int64_t i = 0; i < inner; i++) {
            float factor = a[r * a_stride + i];
            const float *restrict row = b + i * b_stride;
            for (int64_t j = 0; j < columns; j++)
                sum[j] += factor * row[j];
        }
    }
}

static void add_product(parts *p, int64_t rows, int64_t inner, int64_t columns)
{
    const double elements = (double)(rows * inner + inner * columns + rows * columns);
    const op_cost cost = {2 * (double)(rows * inner * columns), elements * sizeof(float)};
    part_shape shape = {.type = DTYPE_F32, .elements = rows * columns};
    snprintf(shape.inputs, sizeof shape.inputs, "%lldx%lld, %lldx%lld", (long long)rows,
             (long long)inner, (long long)inner, (long long)columns);
    snprintf(shape.outputs, sizeof shape.outputs, "%lldx%lld", (long long)rows, (long long)columns);
    parts_add(p, "MatMul", cost, &shape);
}

/* ---- Keys and values ----------------------------------------------------------------------- */

static void load_row(dtype type, const void *row, int64_t n, float *out)
{
    const uint16_t *halves = row;
    if (type == DTYPE_F32) memcpy(out, row, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n && type == DTYPE_F16; i++)
        out[i] = f16_to_f32(halves[i]);
    for (int64_t i = 0; i < n && type == DTYPE_BF16; i++)
        out[i] = bf16_to_f32(halves[i]);
    for (int64_t i = 0; i < n && type == DTYPE_F8; i++)
        out[i] = f8_to_f32(((const uint8_t *)row)[i]);
}

/* Puts the first n positions of one KV head together from their pages; transposes the keys. */
static void join_pages(parts *p, const sequence_slice *s, int64_t head, int64_t n)
{
    const tensor *k = &s->call->tensors[PAGED_PREFILL_K_CACHE]; /* (n_pages, page_size, n_kv, dh) */
    const tensor *v = &s->call->tensors[PAGED_PREFILL_V_CACHE];
    const int32_t *indptr = s->call->tensors[PAGED_PREFILL_KV_INDPTR].data;
    const int32_t *pages = s->call->tensors[PAGED_PREFILL_KV_INDICES].data;
    const int64_t page_size = k->shape[1], dim = k->shape[3];
    parts_begin(p);
    for (int64_t j = 0; j < n; j++) {
        int64_t page = pages[indptr[s->sequence] + j / page_size], slot = j % page_size;
        load_row(k->type, (char *)tensor_row2(k, page, slot) + head * k->stride[2], dim, p->row);
        for (int64_t i = 0; i < dim; i++)
            p->keys[i * p->n_positions + j] = p->row[i];
        load_row(v->type, (char *)tensor_row2(v, page, slot) + head * v->stride[2], dim,
                 p->values + j * dim);
    }
    parts_end(p);
    double element = (double)(dtype_block_bytes(k->type) + dtype_block_bytes(v->type));
    const op_cost cost = {0, (double)(n * dim) * (element + 2 * sizeof(float))};
    part_shape shape = {
        .type = k->type, .elements = 2 * n * dim, .cached = (double)(n * dim) * element};
    snprintf(shape.inputs, sizeof shape.inputs, "2x%lld pages of %lldx%lld",
             (long long)((n + page_size - 1) / page_size), (long long)page_size, (long long)dim);
    snprintf(shape.outputs, sizeof shape.outputs, "2x%lldx%lld", (long long)n, (long long)dim);
    parts_add(p, "Concat", cost, &shape);
}

/* Copies the first n positions of keys and values for one of several query heads. */
static void repeat(parts *p, int64_t n, int64_t dim)
{
    float *keys = p->repeated, *values = keys + p->n_positions * p->head_dim;
    parts_begin(p);
    for (int64_t i = 0; i < dim; i++)
        memcpy(keys + i * p->n_positions, p->keys + i * p->n_positions, (size_t)n * sizeof *keys);
    memcpy(values, p->values, (size_t)(n * dim) * sizeof *values);
    parts_end(p);
    const op_cost cost = {0, 4 * (double)(n * dim) * sizeof(float)};
    part_shape shape = {.type = DTYPE_F32, .elements = 2 * n * dim};
    snprintf(shape.inputs, sizeof shape.inputs, "2x%lldx%lld", (long long)n, (long long)dim);
    snprintf(shape.outputs, sizeof shape.outputs, "2x%lldx%lld", (long long)n, (long long)dim);
    parts_add(p, "RepeatKV", cost, &shape);
}

/* ---- A head -------------------------------------------------------------------------------- */

/* Runs one of softmax's operators over the scores, with its fastest kernel. */
static void run_softmax_part(parts *p, op_code code, const char *kind, op_call *call, int out)
{
    const op_info *op = op_get(code);
    call->end = op->units(call);
    op_kernel *kernel = op_select(op, p->cpu_features, call, NULL);
    parts_begin(p);
    kernel(call);
    parts_end(p);
    part_shape shape = {.type = DTYPE_F32, .elements = tensor_elements(&call->tensors[out])};
    parts_print_shape(&call->tensors[0], shape.inputs, sizeof shape.inputs);
    parts_print_shape(&call->tensors[out], shape.outputs, sizeof shape.outputs);
    parts_add(p, kind, op_cost_of(op, call), &shape);
}

static void softmax(parts *p, const tensor *scores, double scale)
{
    tensor largest = tensor_1d(p->largest, DTYPE_F32, scores->shape[0]);
    op_call reduce = {.tensors = {[REDUCE_MAX_X] = *scores, [REDUCE_MAX_MAX] = largest}};
    run_softmax_part(p, OP_REDUCE_MAX, "ReduceMax", &reduce, REDUCE_MAX_MAX);
    op_call power = {.tensors = {[EXP_X] = *scores, [EXP_MAX] = largest, [EXP_OUT] = *scores},
                     .params = {[EXP_SCALE] = scale}};
    run_softmax_part(p, OP_EXP, "ElementwiseExp", &power, EXP_OUT);
    op_call divide = {.tensors = {[NORMALIZE_X] = *scores, [NORMALIZE_OUT] = *scores}};
    run_softmax_part(p, OP_NORMALIZE, "Normalize", &divide, NORMALIZE_OUT);
}

/* Masks the scores of positions that a row does not see. */
static void mask(parts *p, const attention_block *b, const tensor *scores)
{
    const int64_t columns = scores->shape[1];
    int64_t masked = 0;
    parts_begin(p);
    for (int64_t r = 0; r < b->rows; r++) {
        for (int64_t j = b->visible + r * b->more; j < columns; j++, masked++)
            p->scores[r * p->n_positions + j] = -INFINITY;
    }
    parts_end(p);
    part_shape shape = {.type = DTYPE_F32, .elements = b->rows * columns};
    parts_print_shape(scores, shape.inputs, sizeof shape.inputs);
    parts_print_shape(scores, shape.outputs, sizeof shape.outputs);
    parts_add(p, "Mask", (op_cost){0, (double)masked * sizeof(float)}, &shape);
}

/* keys (head_dim, n_positions), values (n_positions, head_dim) */
static void attend(parts *p, const attention_block *b, const float *keys, const float *values,
                   double scale)
{
    const int64_t columns = b->visible + (b->rows - 1) * b->more, dim = b->head_dim;
    tensor scores = tensor_2d(p->scores, DTYPE_F32, b->rows, columns);
    scores.stride[0] = p->n_positions * (int64_t)sizeof(float);
    parts_begin(p);
    multiply(b->q, b->q_stride, keys, p->n_positions, p->scores, p->n_positions, b->rows, dim,
             columns);
    parts_end(p);
    add_product(p, b->rows, dim, columns);
    if (b->more && b->rows > 1) mask(p, b, &scores);
    softmax(p, &scores, scale);
    parts_begin(p);
    multiply(p->scores, p->n_positions, values, dim, b->out, dim, b->rows, columns, dim);
    parts_end(p);
    add_product(p, b->rows, columns, dim);
}

/* The tokens whose row of this head is in the slice: [first, last). */
static void rows_of_head(const sequence_slice *s, int64_t head, int64_t *first, int64_t *last)
{
    const int64_t heads = s->call->tensors[PAGED_PREFILL_Q].shape[1];
    *first = s->begin / heads + (head < s->begin % heads);
    *last = (s->end - 1) / heads + (head <= (s->end - 1) % heads);
}

static float *head_of(const parts *p, int64_t head)
{
    return p->heads + head * p->n_rows * p->head_dim;
}

static void attend_head(parts *p, const sequence_slice *s, int64_t head, bool shared)
{
    const op_call *call = s->call;
    const tensor *q = &call->tensors[PAGED_PREFILL_Q];
    const bool causal = call->params[PAGED_PREFILL_CAUSAL] != 0;
    int64_t first, last;
    rows_of_head(s, head, &first, &last);
    if (first >= last) return;
    const attention_block block = {
        .q = tensor_row2(q, first, head),
        .out = head_of(p, head),
        .q_stride = q->stride[0] / (int64_t)sizeof(float),
        .rows = last - first,
        .head_dim = q->shape[2],
        .visible = attention_visible(causal, first - s->first, s->tokens, s->kv_length),
        .more = causal};
    if (shared) repeat(p, block.visible + (block.rows - 1) * block.more, block.head_dim);
    const float *keys = shared ? p->repeated : p->keys;
    const float *values = shared ? p->repeated + p->n_positions * p->head_dim : p->values;
    attend(p, &block, keys, values, s->scale);
}

/* Puts the heads [begin, end) together in rows of the output. */
static void join_heads(parts *p, const sequence_slice *s, int64_t begin, int64_t end)
{
    const tensor *out = &s->call->tensors[PAGED_PREFILL_OUT];
    const int64_t dim = out->shape[2];
    int64_t rows = 0, first, last;
    parts_begin(p);
    for (int64_t head = begin; head < end; head++) {
        rows_of_head(s, head, &first, &last);
        for (int64_t token = first; token < last; token++, rows++)
            memcpy(tensor_row2(out, token, head), head_of(p, head) + (token - first) * dim,
                   (size_t)dim * sizeof(float));
    }
    parts_end(p);
    part_shape shape = {.type = DTYPE_F32, .elements = rows * dim};
    const int64_t heads = end - begin, tokens = rows / heads;
    snprintf(shape.inputs, sizeof shape.inputs, "%lld of %lldx%lld", (long long)heads,
             (long long)tokens, (long long)dim);
    snprintf(shape.outputs, sizeof shape.outputs, "%lldx%lld", (long long)tokens,
             (long long)(heads * dim));
    parts_add(p, "Concat", (op_cost){0, 2 * (double)(rows * dim) * sizeof(float)}, &shape);
}

static void attend_sequence(parts *p, const sequence_slice *s, int64_t begin, int64_t end)
{
    const op_call *call = s->call;
    const int64_t heads = call->tensors[PAGED_PREFILL_Q].shape[1];
    const int64_t group = heads / call->tensors[PAGED_PREFILL_K_CACHE].shape[2];
    const bool causal = call->params[PAGED_PREFILL_CAUSAL] != 0;
    const int64_t last = (s->end - 1) / heads;
    const int64_t n = attention_visible(causal, last - s->first, s->tokens, s->kv_length);
    if (s->begin / heads == last) { /* some heads of one token */
        begin = larger(begin, s->begin % heads);
        end = smaller(end, (s->end - 1) % heads + 1);
    }
    if (begin >= end) return;
    for (int64_t head = begin; head < end; head++) {
        if (head == begin || head % group == 0) join_pages(p, s, head / group, n);
        attend_head(p, s, head, group > 1);
    }
    join_heads(p, s, begin, end);
}

void parts_run_attention(parts *p, const op_call *call, int64_t begin, int64_t end)
{
    const tensor *q = &call->tensors[PAGED_PREFILL_Q];
    const tensor *qo_indptr = &call->tensors[PAGED_PREFILL_QO_INDPTR];
    const int32_t *border = qo_indptr->data;
    const page_table table = {.kv_indptr = &call->tensors[PAGED_PREFILL_KV_INDPTR],
                              .kv_indices = &call->tensors[PAGED_PREFILL_KV_INDICES],
                              .kv_last_page_len = &call->tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN],
                              .k_cache = &call->tensors[PAGED_PREFILL_K_CACHE]};
    const int64_t heads = q->shape[1];
    double scale = call->params[PAGED_PREFILL_SM_SCALE];
    if (scale == 0) scale = 1 / sqrt((double)q->shape[2]);
    for (int64_t b = 0; b < indptr_sequences(qo_indptr); b++) {
        sequence_slice s = {.call = call,
                            .sequence = b,
                            .begin = larger(call->begin, border[b] * heads),
                            .end = smaller(call->end, border[b + 1] * heads),
                            .first = border[b],
                            .tokens = indptr_count(qo_indptr, b),
                            .kv_length = page_table_length(&table, b),
                            .scale = scale};
        if (s.begin < s.end) attend_sequence(p, &s, begin, end);
    }
}
