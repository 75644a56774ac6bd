/* Instructions in parts: see parts.h. */
#include "vm/parts.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "base/clock.h"
#include "op/add/add.h"
#include "op/attention/attention.h"
#include "op/attention/ragged.h"
#include "op/embedding/embedding.h"
#include "op/exp/exp.h"
#include "op/kv_append/kv_append.h"
#include "op/linear/linear.h"
#include "op/normalize/normalize.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/reduce_max/reduce_max.h"
#include "tensor/float16.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct parts {
    const schedule *schedule;
    uint32_t cpu_features;
    parts_sink *sink;
    void *context;
    int64_t n_rows, n_positions, head_dim, n_features; /* at most */
    float *keys;    /* (head_dim, n_positions): of one KV head, transposed */
    float *values;  /* (n_positions, head_dim) */
    float *scores;  /* (n_rows, n_positions) */
    float *largest; /* (n_rows) */
    float *row;     /* (head_dim) */
    float *product; /* (n_rows, n_features): before the residual is added */
    buffer memory;
    /* The part that runs now. */
    const instruction *in;
    uint64_t begin, end;
};

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The largest sizes that any node needs for its parts. */
static void find_sizes(parts *p)
{
    const schedule *s = p->schedule;
    p->n_rows = larger(s->program->capacity.of[AXIS_TOKENS], s->program->capacity.of[AXIS_OUTPUTS]);
    for (int n = 0; n < s->n_nodes; n++) {
        op_call call;
        program_bind(s->program, n, NULL, s->program->capacity.of, &call);
        if (s->program->nodes[n].op == OP_PAGED_PREFILL) {
            const tensor *cache = &call.tensors[PAGED_PREFILL_K_CACHE];
            p->n_positions = larger(p->n_positions, cache->shape[0] * cache->shape[1]);
            p->n_rows = larger(p->n_rows, call.tensors[PAGED_PREFILL_Q].shape[1]);
            p->head_dim = larger(p->head_dim, cache->shape[3]);
        }
        if (s->program->nodes[n].op == OP_LINEAR && call.tensors[LINEAR_RESIDUAL].rank > 0)
            p->n_features = larger(p->n_features, call.tensors[LINEAR_OUT].shape[1]);
    }
}

static qp_status take_memory(parts *p, qp_error *error)
{
    size_t cache = (size_t)(p->n_positions * p->head_dim), scores, product, total;
    bool fits = checked_mul((size_t)p->n_rows, (size_t)p->n_positions, &scores) &&
                checked_mul((size_t)p->n_rows, (size_t)p->n_features, &product) &&
                checked_mul(2 * cache + scores + product + (size_t)(p->n_rows + p->head_dim),
                            sizeof(float), &total);
    if (!fits) return error_set(error, QP_NO_MEMORY, "attention in parts is too large to address");
    if (total == 0) return QP_OK;
    TRY(buffer_alloc(&p->memory, total, "attention in parts", error));
    memset(p->memory.data, 0, total); /* so that no page fault falls into a measured time */
    p->keys = p->memory.data;
    p->values = p->keys + cache;
    p->scores = p->values + cache;
    p->product = p->scores + scores;
    p->largest = p->product + product;
    p->row = p->largest + p->n_rows;
    return QP_OK;
}

qp_status parts_create(const schedule *s, uint32_t cpu_features, parts_sink *sink, void *context,
                       parts **out, qp_error *error)
{
    *out = NULL;
    parts *p = calloc(1, sizeof *p);
    if (!p) return error_no_memory(error, "attention in parts", sizeof *p);
    p->schedule = s;
    p->cpu_features = cpu_features;
    p->sink = sink;
    p->context = context;
    find_sizes(p);
    qp_status status = take_memory(p, error);
    if (status == QP_OK)
        *out = p;
    else
        parts_destroy(p);
    return status;
}

void parts_destroy(parts *p)
{
    if (!p) return;
    buffer_free(&p->memory);
    free(p);
}

static void begin_part(parts *p)
{
    p->begin = clock_ns();
}

static void end_part(parts *p)
{
    p->end = clock_ns();
}

/* Reports the part that has just ended; `format` prints its shape. */
__attribute__((format(printf, 4, 5))) static void tell_part(parts *p, const char *kind,
                                                            op_cost cost, const char *format, ...)
{
    timeline_part part = {.in = p->in,
                          .kind = kind,
                          .begin = p->begin,
                          .end = p->end,
                          .flops = cost.flops,
                          .bytes = cost.bytes};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(part.shape, sizeof part.shape, format, arguments);
    va_end(arguments);
    p->sink(p->context, &part);
}

/* ---- Attention ----------------------------------------------------------------------------- */

/* Rows that attend with one KV head: all its heads of one token, or one head of several tokens. */
typedef struct attention_block {
    const float *q;               /* (rows, head_dim) */
    float *out;                   /* (rows, head_dim); may be q */
    int64_t q_stride, out_stride; /* in floats */
    int64_t rows, head_dim;
    int64_t visible,
        more; /* positions that the first row sees, and how many more each next row sees */
} attention_block;

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

static op_cost multiply_cost(int64_t rows, int64_t inner, int64_t columns)
{
    double elements = (double)(rows * inner + inner * columns + rows * columns);
    return (op_cost){2 * (double)(rows * inner * columns), elements * sizeof(float)};
}

static void load_row(dtype type, const void *row, int64_t n, float *out)
{
    const uint16_t *halves = row;
    if (type == DTYPE_F32) memcpy(out, row, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n && type == DTYPE_F16; i++)
        out[i] = f16_to_f32(halves[i]);
    for (int64_t i = 0; i < n && type == DTYPE_BF16; i++)
        out[i] = bf16_to_f32(halves[i]);
}

/* Gathers the first n positions of one KV head from the pages; transposes the keys. */
static void gather(parts *p, const op_call *call, int64_t sequence, int64_t head, int64_t n)
{
    const tensor *k = &call->tensors[PAGED_PREFILL_K_CACHE]; /* (n_pages, page_size, n_kv, dh) */
    const tensor *v = &call->tensors[PAGED_PREFILL_V_CACHE];
    const int32_t *indptr = call->tensors[PAGED_PREFILL_KV_INDPTR].data;
    const int32_t *pages = call->tensors[PAGED_PREFILL_KV_INDICES].data;
    int64_t page_size = k->shape[1], dim = k->shape[3];
    begin_part(p);
    for (int64_t j = 0; j < n; j++) {
        int64_t page = pages[indptr[sequence] + j / page_size], slot = j % page_size;
        load_row(k->type, (char *)tensor_row2(k, page, slot) + head * k->stride[2], dim, p->row);
        for (int64_t i = 0; i < dim; i++)
            p->keys[i * p->n_positions + j] = p->row[i];
        load_row(v->type, (char *)tensor_row2(v, page, slot) + head * v->stride[2], dim,
                 p->values + j * dim);
    }
    end_part(p);
    double element = (double)(dtype_block_bytes(k->type) + dtype_block_bytes(v->type));
    double bytes = (double)(n * dim) * (element + 2 * sizeof(float));
    tell_part(p, "MemCopy", (op_cost){0, bytes}, "2x%lldx%lld", (long long)n, (long long)dim);
}

/* Runs one of softmax's operators over the scores, with its fastest kernel. */
static void run_softmax_part(parts *p, op_code code, const char *kind, op_call *call)
{
    const op_info *op = op_get(code);
    call->end = op->units(call);
    op_kernel *kernel = op_select(op, p->cpu_features, call, NULL);
    begin_part(p);
    kernel(call);
    end_part(p);
    const tensor *x = &call->tensors[0];
    tell_part(p, kind, op_cost_of(op, call), "%lldx%lld", (long long)x->shape[0],
              (long long)x->shape[1]);
}

static void softmax(parts *p, const tensor *scores, double scale)
{
    tensor largest = tensor_1d(p->largest, DTYPE_F32, scores->shape[0]);
    op_call reduce = {.tensors = {[REDUCE_MAX_X] = *scores, [REDUCE_MAX_MAX] = largest}};
    run_softmax_part(p, OP_REDUCE_MAX, "ReduceMax", &reduce);
    op_call power = {.tensors = {[EXP_X] = *scores, [EXP_MAX] = largest, [EXP_OUT] = *scores},
                     .params = {[EXP_SCALE] = scale}};
    run_softmax_part(p, OP_EXP, "ElementwiseExp", &power);
    op_call divide = {.tensors = {[NORMALIZE_X] = *scores, [NORMALIZE_OUT] = *scores}};
    run_softmax_part(p, OP_NORMALIZE, "Normalize", &divide);
}

/* Masks the scores of positions that a row does not see. */
static void mask(parts *p, const attention_block *b, int64_t columns)
{
    begin_part(p);
    int64_t masked = 0;
    for (int64_t r = 0; r < b->rows; r++) {
        for (int64_t j = b->visible + r * b->more; j < columns; j++, masked++)
            p->scores[r * p->n_positions + j] = -INFINITY;
    }
    end_part(p);
    tell_part(p, "Mask", (op_cost){0, (double)masked * sizeof(float)}, "%lldx%lld",
              (long long)b->rows, (long long)columns);
}

static void attend(parts *p, const attention_block *b, double scale)
{
    int64_t columns = b->visible + (b->rows - 1) * b->more;
    begin_part(p);
    multiply(b->q, b->q_stride, p->keys, p->n_positions, p->scores, p->n_positions, b->rows,
             b->head_dim, columns);
    end_part(p);
    tell_part(p, "MatMul", multiply_cost(b->rows, b->head_dim, columns), "%lldx%lld * %lldx%lld",
              (long long)b->rows, (long long)b->head_dim, (long long)b->head_dim,
              (long long)columns);
    if (b->more && b->rows > 1) mask(p, b, columns);
    tensor scores = tensor_2d(p->scores, DTYPE_F32, b->rows, columns);
    scores.stride[0] = p->n_positions * (int64_t)sizeof(float);
    softmax(p, &scores, scale);
    begin_part(p);
    multiply(p->scores, p->n_positions, p->values, b->head_dim, b->out, b->out_stride, b->rows,
             columns, b->head_dim);
    end_part(p);
    tell_part(p, "MatMul", multiply_cost(b->rows, columns, b->head_dim), "%lldx%lld * %lldx%lld",
              (long long)b->rows, (long long)columns, (long long)columns, (long long)b->head_dim);
}

/* The part [begin, end) of an instruction's units that belongs to one sequence. */
typedef struct sequence_slice {
    int64_t sequence, begin, end;     /* units: token * n_heads + head */
    int64_t first, tokens, kv_length; /* of the sequence */
} sequence_slice;

/* Collects rows from (token, head) on; each next row is one token or one head further. */
static attention_block make_block(const op_call *call, const sequence_slice *s, int64_t token,
                                  int64_t head, int64_t rows, bool by_token)
{
    const tensor *q = &call->tensors[PAGED_PREFILL_Q], *out = &call->tensors[PAGED_PREFILL_OUT];
    bool causal = call->params[PAGED_PREFILL_CAUSAL] != 0;
    int dimension = by_token ? 0 : 1;
    return (attention_block){
        .q = tensor_row2(q, token, head),
        .out = tensor_row2(out, token, head),
        .q_stride = q->stride[dimension] / (int64_t)sizeof(float),
        .out_stride = out->stride[dimension] / (int64_t)sizeof(float),
        .rows = rows,
        .head_dim = q->shape[2],
        .visible = attention_visible(causal, token - s->first, s->tokens, s->kv_length),
        .more = causal && by_token};
}

/* All rows of the slice that read one KV head. */
static void attend_group(parts *p, const op_call *call, const sequence_slice *s, int64_t kv_head,
                         double scale)
{
    int64_t heads = call->tensors[PAGED_PREFILL_Q].shape[1];
    int64_t group = heads / call->tensors[PAGED_PREFILL_K_CACHE].shape[2];
    int64_t from = s->begin / heads, to = (s->end - 1) / heads; /* tokens, including the last */
    int64_t low = kv_head * group, high = low + group;
    if (from == to) {
        low = larger(low, s->begin % heads);
        if (high > (s->end - 1) % heads + 1) high = (s->end - 1) % heads + 1;
    }
    if (low >= high) return;
    bool causal = call->params[PAGED_PREFILL_CAUSAL] != 0;
    gather(p, call, s->sequence, kv_head,
           attention_visible(causal, to - s->first, s->tokens, s->kv_length));
    if (from == to) {
        attention_block block = make_block(call, s, from, low, high - low, false);
        attend(p, &block, scale);
        return;
    }
    for (int64_t head = low; head < high; head++) {
        int64_t first = from + (head < s->begin % heads);
        int64_t last = to - (head > (s->end - 1) % heads);
        if (first > last) continue;
        attention_block block = make_block(call, s, first, head, last - first + 1, true);
        attend(p, &block, scale);
    }
}

static void run_attention(parts *p, const op_call *call)
{
    const tensor *q = &call->tensors[PAGED_PREFILL_Q];
    const tensor *qo_indptr = &call->tensors[PAGED_PREFILL_QO_INDPTR];
    const int32_t *border = qo_indptr->data;
    page_table table = {.kv_indptr = &call->tensors[PAGED_PREFILL_KV_INDPTR],
                        .kv_indices = &call->tensors[PAGED_PREFILL_KV_INDICES],
                        .kv_last_page_len = &call->tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN],
                        .k_cache = &call->tensors[PAGED_PREFILL_K_CACHE]};
    int64_t heads = q->shape[1], n_kv_heads = table.k_cache->shape[2];
    double scale = call->params[PAGED_PREFILL_SM_SCALE];
    if (scale == 0) scale = 1 / sqrt((double)q->shape[2]);
    for (int64_t b = 0; b < indptr_sequences(qo_indptr); b++) {
        sequence_slice s = {.sequence = b,
                            .begin = larger(call->begin, border[b] * heads),
                            .end = border[b + 1] * heads,
                            .first = border[b],
                            .tokens = indptr_count(qo_indptr, b),
                            .kv_length = page_table_length(&table, b)};
        if (s.end > call->end) s.end = call->end;
        for (int64_t head = 0; head < n_kv_heads && s.begin < s.end; head++)
            attend_group(p, call, &s, head, scale);
    }
}

/* ---- Products and the rest ----------------------------------------------------------------- */

/* The kind of an operator that runs as one part. */
static const char *kind_of(const schedule *s, const instruction *in)
{
    switch ((int)in->opcode) {
    case OP_EMBEDDING: {
        const program_view *table = &s->program->views[in->operands[EMBEDDING_TABLE]];
        return s->program->areas[table->area].base == BASE_WEIGHT ? "Embedding" : "MemCopy";
    }
    case OP_RMS_NORM:
        return "RMSNorm";
    case OP_LINEAR:
        return "Linear";
    case OP_ROPE:
        return "RoPE";
    case OP_KV_APPEND:
        return "MemCopy";
    case OP_SILU_AND_MUL:
        return "SiLU";
    case OP_ADD:
        return "Add";
    case OP_SAMPLING:
        return "Sample";
    default:
        return op_get((op_code)in->opcode)->name;
    }
}

static op_cost cost_of_slice(const op_info *op, const op_call *call)
{
    op_cost cost = op_cost_of(op, call);
    double share = (double)(call->end - call->begin) / (double)op->units(call);
    return (op_cost){cost.flops * share, cost.bytes * share};
}

static void run_linear(parts *p, const op_call *call, op_kernel *kernel)
{
    const op_info *op = op_get(OP_LINEAR);
    const tensor *x = &call->tensors[LINEAR_X], *out = &call->tensors[LINEAR_OUT];
    int64_t rows = x->shape[0], first = call->begin, columns = call->end - call->begin;
    op_call product = *call;
    bool adds = call->tensors[LINEAR_RESIDUAL].rank > 0;
    if (adds) {
        product.tensors[LINEAR_RESIDUAL] = (tensor){0};
        product.tensors[LINEAR_OUT] = tensor_2d(p->product, DTYPE_F32, rows, out->shape[1]);
    }
    begin_part(p);
    kernel(&product);
    end_part(p);
    tell_part(p, "Linear", cost_of_slice(op, &product), "%lldx%lld * %lldx%lld", (long long)rows,
              (long long)x->shape[1], (long long)x->shape[1], (long long)columns);
    if (!adds) return;
    op_call add = {
        .tensors = {[ADD_A] = tensor_slice(call->tensors[LINEAR_RESIDUAL], 1, first, columns),
                    [ADD_B] = tensor_slice(product.tensors[LINEAR_OUT], 1, first, columns),
                    [ADD_OUT] = tensor_slice(*out, 1, first, columns)}};
    const op_info *adder = op_get(OP_ADD);
    add.end = adder->units(&add);
    op_kernel *add_kernel = op_select(adder, p->cpu_features, &add, NULL);
    begin_part(p);
    add_kernel(&add);
    end_part(p);
    tell_part(p, "Add", op_cost_of(adder, &add), "%lldx%lld", (long long)rows, (long long)columns);
}

static void run_whole(parts *p, const op_call *call, op_kernel *kernel)
{
    const op_info *op = op_get((op_code)p->in->opcode);
    begin_part(p);
    kernel(call);
    end_part(p);
    const tensor *out = NULL;
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (op->tensors[t].direction != OP_IN && !out) out = &call->tensors[t];
    }
    if (p->in->opcode == OP_KV_APPEND) out = &call->tensors[KV_APPEND_K]; /* not the whole cache */
    char shape[48] = "";
    for (int d = 0, used = 0; out && d < out->rank && used < (int)sizeof shape - 24; d++)
        used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%lld", d ? "x" : "",
                         (long long)out->shape[d]);
    tell_part(p, kind_of(p->schedule, p->in), cost_of_slice(op, call), "%s", shape);
}

void parts_run(void *context, const instruction *in, const op_call *call, op_kernel *kernel)
{
    parts *p = context;
    p->in = in;
    if (in->opcode == OP_PAGED_PREFILL)
        run_attention(p, call);
    else if (in->opcode == OP_LINEAR)
        run_linear(p, call, kernel);
    else
        run_whole(p, call, kernel);
}
