/* Copies of a call: see copies.h. */
#include "op/bench/copies.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

size_t copies_span(const tensor *view)
{
    if (view->rank == 0 || tensor_elements(view) == 0) return 0;
    size_t bytes = dtype_row_bytes(view->type, view->shape[view->rank - 1]);
    for (int d = 0; d < view->rank - 1; d++)
        bytes += (size_t)((view->shape[d] - 1) * view->stride[d]);
    return bytes;
}

/* The first tensor before `t` with the same address, or `t`: out may be residual. */
static int memory_of(const op_call *call, int t)
{
    for (int other = 0; other < t; other++) {
        if (call->tensors[t].data && call->tensors[other].data == call->tensors[t].data)
            return other;
    }
    return t;
}

/* Room for the memory of all views that begin at tensor t. */
static size_t room_for(const op_info *op, const op_call *call, int t)
{
    size_t most = 0;
    for (int other = t; other < op_n_tensors(op); other++) {
        size_t span = copies_span(&call->tensors[other]);
        if (memory_of(call, other) == t && span > most) most = span;
    }
    return round_up(most, ALIGNMENT);
}

static size_t packed_bytes(const op_call *call, const op_variant *variant)
{
    return variant && variant->packed_bytes ? round_up(variant->packed_bytes(call), ALIGNMENT) : 0;
}

size_t copies_bytes(const op_info *op, const op_call *call, const op_variant *variant)
{
    size_t bytes = packed_bytes(call, variant);
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (memory_of(call, t) == t) bytes += room_for(op, call, t);
    }
    return bytes;
}

typedef struct pack_job {
    const op_info *op;
    const op_variant *variant;
    op_call *call;
    void *packed;
} pack_job;

static void pack_share(void *context, int worker, int n_workers)
{
    const pack_job *job = context;
    op_call call = *job->call;
    int64_t units = job->op->units(&call), group = job->variant->pack_units;
    thread_share((units + group - 1) / group, worker, n_workers, &call.begin, &call.end);
    call.begin *= group;
    call.end = call.end * group < units ? call.end * group : units;
    if (call.begin < call.end) job->variant->pack(&call, job->packed);
}

/* One copy at `memory`. */
static void copy_call(const op_info *op, const op_call *call, char *memory, op_call *copy)
{
    *copy = *call;
    for (int t = 0; t < op_n_tensors(op); t++) {
        int first = memory_of(call, t);
        if (first < t) {
            copy->tensors[t].data = copy->tensors[first].data;
            continue;
        }
        size_t room = room_for(op, call, t), span = copies_span(&call->tensors[t]);
        if (room == 0) continue;
        copy->tensors[t].data = memory;
        memcpy(memory, call->tensors[t].data, span);
        memory += room;
    }
}

qp_status copies_create(const op_info *op, const op_call *call, const op_variant *variant,
                        int count, thread_pool *pool, call_copies *out, qp_error *error)
{
    size_t packed = packed_bytes(call, variant), bytes = copies_bytes(op, call, variant);
    *out = (call_copies){.calls = calloc((size_t)count, sizeof *out->calls)};
    if (!out->calls)
        return error_no_memory(error, "copies of a call", (size_t)count * sizeof *call);
    qp_status status = buffer_alloc(&out->memory, bytes * (size_t)count, "copies of a call", error);
    if (status != QP_OK) {
        copies_free(out);
        return status;
    }
    char *memory = out->memory.data;
    for (out->count = 0; out->count < count; out->count++, memory += bytes) {
        op_call *copy = &out->calls[out->count];
        copy_call(op, call, memory + packed, copy);
        if (!packed) continue;
        pack_job job = {op, variant, copy, memory};
        if (out->count == 0)
            thread_pool_run(pool, pack_share, &job);
        else
            memcpy(memory, out->memory.data, packed);
        copy->packed = memory;
    }
    return QP_OK;
}

void copies_free(call_copies *copies)
{
    buffer_free(&copies->memory);
    free(copies->calls);
    *copies = (call_copies){0};
}
