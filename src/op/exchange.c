/* Exchanges between ranks: see exchange.h. */
#include "op/exchange.h"

#include "op/all_gather/all_gather.h"
#include "op/all_reduce/all_reduce.h"
#include "op/element.h"

#include <assert.h>
#include <string.h>

enum { PIECE_BYTES = 64 << 10 };

/* Of the columns [first, first + count) of each row, which follow it. */
typedef struct columns_header {
    int64_t first, count;
    char room[48]; /* rows begin at a cache line */
} columns_header;

/* Ranks that are at another node, or have a batch of another size, notice by this. */
static uint32_t tag_of(uint32_t what, const tensor *out)
{
    return what * 0x9e3779b9u ^ (uint32_t)out->shape[0] * 31u ^ (uint32_t)out->shape[1];
}

/* Rows that are copied from one place to another. */
typedef struct row_copy {
    const char *from;
    char *to;
    size_t from_stride, to_stride, bytes;
    int64_t n_rows, rows_each; /* of a piece */
} row_copy;

static void copy_piece(void *context, int64_t piece)
{
    const row_copy *c = context;
    const int64_t begin = piece * c->rows_each, end = begin + c->rows_each;
    for (int64_t row = begin; row < end && row < c->n_rows; row++)
        memcpy(c->to + (size_t)row * c->to_stride, c->from + (size_t)row * c->from_stride,
               c->bytes);
}

/* Rows of `bytes` bytes that are a piece for one thread. */
static int64_t rows_of_piece(int64_t n_rows, size_t bytes)
{
    int64_t rows = (int64_t)(PIECE_BYTES / (bytes ? bytes : PIECE_BYTES));
    const int64_t least = (n_rows + CREW_MOST_PIECES - 1) / CREW_MOST_PIECES;
    if (rows < least) rows = least;
    return rows ? rows : 1;
}

static void copy_rows(comm *group, const char *from, size_t from_stride, char *to, size_t to_stride,
                      int64_t n_rows, size_t bytes)
{
    const int64_t each = rows_of_piece(n_rows, bytes);
    row_copy c = {from, to, from_stride, to_stride, bytes, n_rows, each};
    if (from == to) return;
    crew_run(comm_crew(group), (n_rows + each - 1) / each, copy_piece, &c);
}

/* Every rank puts its columns into rows that all have in common, and waits for the others. */
static void exchange_common(const op_call *call)
{
    const tensor *part = &call->tensors[ALL_GATHER_PART], *out = &call->tensors[ALL_GATHER_OUT];
    comm *group = exchange_group(call);
    const size_t element = dtype_block_bytes(out->type);
    copy_rows(group, part->data, (size_t)part->stride[0],
              (char *)out->data + (size_t)call->params[ALL_GATHER_FIRST] * element,
              (size_t)out->stride[0], out->shape[0], (size_t)part->shape[1] * element);
    comm_exchange(group, tag_of(OP_ALL_GATHER, out), 0, 0, COMM_BUSY);
}

void exchange_columns(const op_call *call)
{
    if (comm_is_common(exchange_group(call), call->tensors[ALL_GATHER_OUT].data)) {
        exchange_common(call);
        return;
    }
    const tensor *part = &call->tensors[ALL_GATHER_PART]; /* (n_rows, n_own) */
    const tensor *out = &call->tensors[ALL_GATHER_OUT];   /* (n_rows, n_columns) */
    const size_t element = dtype_block_bytes(out->type),
                 row_bytes = (size_t)part->shape[1] * element;
    const size_t bytes = sizeof(columns_header) + (size_t)out->shape[0] * row_bytes;
    const size_t most = sizeof(columns_header) + (size_t)(out->shape[0] * out->shape[1]) * element;
    columns_header *own = comm_stage(exchange_group(call), bytes);
    assert(part->type == out->type && call->begin == 0 && call->end == tensor_elements(out));
    if (!own) return;
    *own =
        (columns_header){.first = (int64_t)call->params[ALL_GATHER_FIRST], .count = part->shape[1]};
    copy_rows(exchange_group(call), part->data, (size_t)part->stride[0], (char *)(own + 1),
              row_bytes, out->shape[0], row_bytes);
    const comm_part *parts =
        comm_exchange(exchange_group(call), tag_of(OP_ALL_GATHER, out), bytes, most, COMM_BUSY);
    for (int r = 0; parts && r < comm_size(exchange_group(call)); r++) {
        const columns_header *from = parts[r].data;
        const size_t count = (size_t)from->count * element;
        if (r == comm_rank(exchange_group(call)) &&
            part->data == (char *)out->data + (size_t)from->first * element)
            continue;
        copy_rows(exchange_group(call), (const char *)(from + 1), count,
                  (char *)out->data + (size_t)from->first * element, (size_t)out->stride[0],
                  out->shape[0], count);
    }
}

/* Rows that are added, of all ranks. */
typedef struct row_sum {
    const comm_part *parts;
    int n_ranks;
    size_t row_bytes;
    const tensor *out;
    int64_t rows_each;
} row_sum;

/* A row in float32, with the same bits as add_row(). */
static void add_floats(const row_sum *s, size_t offset, float *to)
{
    enum { BLOCK = 256 };
    double sums[BLOCK];
    for (int64_t begin = 0; begin < s->out->shape[1]; begin += BLOCK) {
        const int64_t left = s->out->shape[1] - begin;
        const int n = left < BLOCK ? (int)left : BLOCK;
        for (int r = 0; r < s->n_ranks; r++) {
            const float *part = (const float *)((const char *)s->parts[r].data + offset) + begin;
            for (int i = 0; i < n; i++)
                sums[i] = r ? sums[i] + (double)part[i] : (double)part[i];
        }
        for (int i = 0; i < n; i++)
            to[begin + i] = (float)sums[i];
    }
}

/* One row, in the order of the ranks. */
static void add_row(const row_sum *s, int64_t row)
{
    const size_t offset = (size_t)row * s->row_bytes;
    const dtype type = s->out->type;
    void *to = tensor_row(s->out, row);
    if (type == DTYPE_F32) {
        add_floats(s, offset, to);
        return;
    }
    for (int64_t i = 0; i < s->out->shape[1]; i++) {
        double sum = element_load(type, (const char *)s->parts[0].data + offset, i);
        for (int r = 1; r < s->n_ranks; r++)
            sum += element_load(type, (const char *)s->parts[r].data + offset, i);
        element_store(type, to, i, sum);
    }
}

static void add_piece(void *context, int64_t piece)
{
    const row_sum *s = context;
    const int64_t begin = piece * s->rows_each, end = begin + s->rows_each;
    for (int64_t row = begin; row < end && row < s->out->shape[0]; row++)
        add_row(s, row);
}

void exchange_sum(const op_call *call)
{
    const tensor *own = &call->tensors[ALL_REDUCE_PARTS]; /* (n_ranks, n_rows, n_columns) */
    const tensor *out = &call->tensors[ALL_REDUCE_OUT];   /* (n_rows, n_columns) */
    const size_t row_bytes = (size_t)out->shape[1] * dtype_block_bytes(out->type);
    const size_t bytes = (size_t)out->shape[0] * row_bytes;
    char *stage = comm_stage(exchange_group(call), bytes);
    assert(own->type == out->type && call->begin == 0 && call->end == tensor_elements(out));
    if (!stage) return;
    copy_rows(exchange_group(call), own->data, (size_t)own->stride[1], stage, row_bytes,
              out->shape[0], row_bytes);
    const comm_part *parts =
        comm_exchange(exchange_group(call), tag_of(OP_ALL_REDUCE, out), bytes, bytes, COMM_BUSY);
    if (!parts) return;
    const int64_t each = rows_of_piece(out->shape[0], row_bytes);
    row_sum sum = {parts, comm_size(exchange_group(call)), row_bytes, out, each};
    crew_run(comm_crew(exchange_group(call)), (out->shape[0] + each - 1) / each, add_piece, &sum);
}
