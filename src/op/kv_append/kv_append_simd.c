/* kv_append with rows converted in vectors. */
#include "op/kv_append/kv_append.h"

#include "op/attention/ragged.h"
#include "op/convert_simd.inc"

/* Copies a token's heads into the slot of a page. */
static void append(const tensor *from, int64_t token, const tensor *cache, int64_t page,
                   int64_t slot)
{
    char *to = tensor_row2(cache, page, slot);
    for (int64_t head = 0; head < from->shape[1]; head++)
        convert_row(from->type, tensor_row2(from, token, head), cache->type,
                    to + head * cache->stride[2], from->shape[2]);
}

SIMD_KERNEL(kv_append)(const op_call *call)
{
    const tensor *qo_indptr = &call->tensors[KV_APPEND_QO_INDPTR];
    const int32_t *positions = call->tensors[KV_APPEND_POSITIONS].data;
    page_table table = kv_append_table(call);
    int64_t page_size = table.k_cache->shape[1];
    for (int64_t t = call->begin; t < call->end; t++) {
        const int32_t *pages = page_table_pages(&table, indptr_find(qo_indptr, t));
        int64_t page = pages[positions[t] / page_size], slot = positions[t] % page_size;
        append(&call->tensors[KV_APPEND_K], t, &call->tensors[KV_APPEND_K_CACHE], page, slot);
        append(&call->tensors[KV_APPEND_V], t, &call->tensors[KV_APPEND_V_CACHE], page, slot);
    }
}
