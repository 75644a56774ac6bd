/* Exchanges between ranks: see exchange.h. */
#include "op/exchange.h"

#include "op/all_gather/all_gather.h"
#include "op/all_reduce/all_reduce.h"
#include "op/element.h"

#include <assert.h>
#include <string.h>

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

static void copy_rows(const char *from, size_t from_stride, char *to, size_t to_stride,
                      int64_t n_rows, size_t bytes)
{
    if (from == to) return;
    for (int64_t row = 0; row < n_rows; row++)
        memcpy(to + (size_t)row * to_stride, from + (size_t)row * from_stride, bytes);
}

void exchange_columns(const op_call *call)
{
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
    copy_rows(part->data, (size_t)part->stride[0], (char *)(own + 1), row_bytes, out->shape[0],
              row_bytes);
    const comm_part *parts =
        comm_exchange(exchange_group(call), tag_of(OP_ALL_GATHER, out), bytes, most, COMM_BUSY);
    for (int r = 0; parts && r < comm_size(exchange_group(call)); r++) {
        const columns_header *from = parts[r].data;
        const size_t count = (size_t)from->count * element;
        if (r == comm_rank(exchange_group(call)) &&
            part->data == (char *)out->data + (size_t)from->first * element)
            continue;
        copy_rows((const char *)(from + 1), count,
                  (char *)out->data + (size_t)from->first * element, (size_t)out->stride[0],
                  out->shape[0], count);
    }
}

/* One row, in the order of the ranks. */
static void add_row(const comm_part *parts, int n_ranks, size_t offset, const tensor *out,
                    int64_t row)
{
    void *to = tensor_row(out, row);
    for (int64_t i = 0; i < out->shape[1]; i++) {
        double sum = element_load(out->type, (const char *)parts[0].data + offset, i);
        for (int r = 1; r < n_ranks; r++)
            sum += element_load(out->type, (const char *)parts[r].data + offset, i);
        element_store(out->type, to, i, sum);
    }
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
    copy_rows(own->data, (size_t)own->stride[1], stage, row_bytes, out->shape[0], row_bytes);
    const comm_part *parts =
        comm_exchange(exchange_group(call), tag_of(OP_ALL_REDUCE, out), bytes, bytes, COMM_BUSY);
    for (int64_t row = 0; parts && row < out->shape[0]; row++)
        add_row(parts, comm_size(exchange_group(call)), (size_t)row * row_bytes, out, row);
}
