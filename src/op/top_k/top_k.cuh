/* top_k on the GPU: k times the first entry that comes after the last one taken. */
#pragma once

#include "op/argmax/argmax.cuh"
#include "op/top_k/top_k.h"

DEVICE_FN ranked top_k_next(const tensor &logits, const int32_t *ids, const char *in, int64_t begin,
                            int64_t end, ranked last, bool any, ranked *cells)
{
    ranked best = {-CUDART_INF_F, -1};
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        ranked next = {rank_value(device_load(logits.type, in, i)), ids ? ids[i] : (int32_t)i};
        if (next.id < 0 || (any && !ranked_before(last, next))) continue;
        if (ranked_before(next, best)) best = next;
    }
    return block_first(best, cells);
}

DEVICE_FN void top_k_block(const op_call &call, int64_t begin, int64_t end)
{
    __shared__ ranked cells[MAX_WARPS];
    const tensor &logits = call.tensors[TOP_K_LOGITS];
    const tensor &candidates = call.tensors[TOP_K_CANDIDATES];
    const tensor &values = call.tensors[TOP_K_VALUES], &ids = call.tensors[TOP_K_IDS];
    int64_t n = logits.shape[1], n_blocks = values.shape[1];
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t row = unit / n_blocks, block = unit % n_blocks;
        int64_t each = n / n_blocks, more = n % n_blocks;
        int64_t first = block * each + (block < more ? block : more);
        int64_t behind = first + each + (block < more);
        const int32_t *from =
            candidates.rank ? (const int32_t *)device_row(candidates, row) : nullptr;
        ranked last = {0, 0};
        bool ended = false;
        for (int64_t k = 0; k < values.shape[2]; k++) {
            if (!ended)
                last = top_k_next(logits, from, device_row(logits, row), first, behind, last, k > 0,
                                  cells);
            if (last.id < 0) ended = true;
            if (threadIdx.x != 0) continue;
            device_store(values.type, device_row2(values, row, block), k,
                         ended ? -CUDART_INF_F : last.value);
            ((int32_t *)device_row2(ids, row, block))[k] = ended ? -1 : last.id;
        }
    }
}
