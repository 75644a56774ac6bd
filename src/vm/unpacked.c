/* Products with weights that are still in their file: see unpacked.h. */
#include "vm/unpacked.h"

#include "base/checked.h"
#include "op/linear/linear.h"
#include "plan/weights.h"

enum { ALIGNMENT = 64 };

/* The part of the call that makes output features [begin, end). */
static op_call part_of(const op_call *call, int64_t begin, int64_t end)
{
    const int64_t n = end - begin;
    op_call part = *call;
    tensor *t = part.tensors;
    t[LINEAR_WEIGHT] = tensor_slice(t[LINEAR_WEIGHT], 0, begin, n);
    t[LINEAR_OUT] = tensor_slice(t[LINEAR_OUT], 1, begin, n);
    if (t[LINEAR_BIAS].rank) t[LINEAR_BIAS] = tensor_slice(t[LINEAR_BIAS], 0, begin, n);
    if (t[LINEAR_RESIDUAL].rank) t[LINEAR_RESIDUAL] = tensor_slice(t[LINEAR_RESIDUAL], 1, begin, n);
    part.begin = 0;
    part.end = n;
    return part;
}

static size_t stored_bytes(const op_call *call)
{
    return round_up(tensor_bytes(&call->tensors[LINEAR_WEIGHT]), ALIGNMENT);
}

static size_t bytes_of_rows(const op_variant *variant, const op_call *call, int64_t rows)
{
    const op_call part = part_of(call, 0, rows);
    return stored_bytes(&part) + round_up(variant->packed_bytes(&part), ALIGNMENT);
}

/* Rows that fit into a room, in whole groups of the variant, but at least one group. */
static int64_t rows_at_a_time(const op_variant *variant, const op_call *call)
{
    const int64_t rows = call->tensors[LINEAR_WEIGHT].shape[0], group = variant->pack_units;
    if (rows <= group) return rows;
    const size_t bytes = bytes_of_rows(variant, call, group);
    const int64_t fit = (int64_t)(UNPACKED_ROOM / bytes) * group;
    return fit < group ? group : fit > rows ? rows : fit;
}

size_t unpacked_room(const op_variant *variant, const op_call *call)
{
    return bytes_of_rows(variant, call, rows_at_a_time(variant, call));
}

void unpacked_kernel(const op_call *call)
{
    const unpacked *u = call->packed;
    const int64_t rows = call->tensors[LINEAR_WEIGHT].shape[0], group = u->variant->pack_units;
    const int64_t each = rows_at_a_time(u->variant, call);
    char *stored = (char *)call->scratch + u->room_at;
    bool kept = call->scratch_kept;
    for (int64_t begin = call->begin / group * group, end; begin < call->end; begin = end) {
        end = begin + each < rows ? begin + each : rows;
        op_call part = part_of(call, begin, end);
        part.tensors[LINEAR_WEIGHT].data = stored;
        char *packed = stored + stored_bytes(&part);
        program_read_weight(u->program, u->weight, begin, end - begin, stored, NULL);
        u->variant->pack(&part, packed);
        part.packed = packed;
        part.begin = call->begin > begin ? call->begin - begin : 0;
        part.end = (call->end < end ? call->end : end) - begin;
        part.scratch_kept = kept;
        u->variant->kernel(&part);
        kept = true; /* the rows of x that the kernel has prepared */
    }
}
