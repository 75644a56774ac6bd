/* top_k in vectors: most elements are below the last of those kept so far and are skipped, a vector
 * at a time; the others go through the reference's heap. */
#include "op/top_k/top_k.h"

#include "base/threads.h"
#include "op/element.h"
#include "op/simd.h"
#include "op/top_k/heap.h"

#include <math.h>

static void offer(entry *heap, int64_t k, float value, int32_t id)
{
    entry next = {isnan(value) ? -INFINITY : value, id};
    if (next.id < 0 || !entry_before(next, heap[0])) return;
    heap[0] = next;
    heap_sift(heap, k, 0);
}

/* A value that at least k of elements [begin, end) reach: the least of the maxima of k parts or a
 * few more; minus infinity where there are too few. */
SIMD_FN float reached_by(dtype type, const void *row, int64_t begin, int64_t end, int64_t k)
{
    int64_t parts = (k + LANES - 1) / LANES, vectors = (end - begin) / LANES;
    vf least = vf_set1(INFINITY);
    if (parts > vectors) return -INFINITY;
    for (int64_t part = 0; part < parts; part++) {
        vf largest = vf_set1(-INFINITY);
        for (int64_t i = part; i < vectors; i += parts)
            largest = vf_max(vf_load(type, row, begin + i * LANES), largest);
        least = vf_min(least, largest);
    }
    return -vf_max_of_lanes(vf_sub(vf_zero(), least));
}

/* The first k of elements [begin, end) of a row, in order, in heap (k > 0). */
SIMD_FN void select_block(dtype type, const void *row, const int32_t *ids, int64_t begin,
                          int64_t end, entry *heap, int64_t k)
{
    for (int64_t i = 0; i < k; i++)
        heap[i] = (entry){-INFINITY, -1};
    /* Candidates may be missing: then the values do not say how many there are. */
    float bound = ids ? -INFINITY : reached_by(type, row, begin, end, k);
    for (int64_t i = begin; i < end; i += LANES) {
        vf x = vf_load_n(type, row, i, end - i);
        unsigned above = (1u << (end - i < LANES ? end - i : LANES)) - 1;
        /* Of equals the id decides, and NaN is equal to minus infinity. */
        if (heap[0].id >= 0 && heap[0].value > bound) bound = (float)heap[0].value;
        if (bound > -INFINITY) above &= vf_ge_mask(x, vf_set1(bound));
        if (!above) continue;
        float values[LANES];
        vf_storeu(values, x);
        for (; above; above &= above - 1) {
            int lane = __builtin_ctz(above);
            offer(heap, k, values[lane], ids ? ids[i + lane] : (int32_t)(i + lane));
        }
    }
    heap_order(heap, k);
}

SIMD_FN void select_blocks(const op_call *call, dtype type)
{
    const tensor *logits = &call->tensors[TOP_K_LOGITS];         /* (n_rows, n_values) */
    const tensor *candidates = &call->tensors[TOP_K_CANDIDATES]; /* (n_rows, n_values) */
    const tensor *values = &call->tensors[TOP_K_VALUES];         /* (n_rows, n_blocks, k) */
    const tensor *ids = &call->tensors[TOP_K_IDS];               /* (n_rows, n_blocks, k) */
    int64_t n_blocks = values->shape[1], k = values->shape[2];
    entry *best = call->scratch;
    for (int64_t unit = call->begin; k > 0 && unit < call->end; unit++) {
        int64_t row = unit / n_blocks, block = unit % n_blocks, begin, end;
        thread_share(logits->shape[1], (int)block, (int)n_blocks, &begin, &end);
        const int32_t *own = candidates->rank ? tensor_row(candidates, row) : NULL;
        select_block(type, tensor_row(logits, row), own, begin, end, best, k);
        void *value = tensor_row2(values, row, block);
        int32_t *id = tensor_row2(ids, row, block);
        for (int64_t i = 0; i < k; i++) {
            element_store(values->type, value, i, best[i].value);
            id[i] = best[i].id;
        }
    }
}

SIMD_KERNEL(top_k)(const op_call *call)
{
    dtype type = call->tensors[TOP_K_LOGITS].type;
    if (type == DTYPE_F32)
        select_blocks(call, DTYPE_F32);
    else
        select_blocks(call, type);
}
