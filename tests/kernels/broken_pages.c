/* A paged_decode that reads past the page table: all positions of the last page, and one more
 * page. */
#include "quipu_kernel.h"

#include <math.h>

enum { Q, K_CACHE, V_CACHE, KV_INDPTR, KV_INDICES, KV_LAST_PAGE_LEN, OUT, LSE };
enum { SM_SCALE };

bool paged_decode_accepts(const op_call *call);
void paged_decode_kernel(const op_call *call);

bool paged_decode_accepts(const op_call *call)
{
    for (int t = Q; t <= OUT; t++) {
        bool floats = t < KV_INDPTR || t > KV_LAST_PAGE_LEN;
        if (floats && call->tensors[t].type != DTYPE_F32) return false;
    }
    return true;
}

static const float *cache_row(const op_call *call, int which, int64_t first, int64_t j,
                              int64_t head)
{
    const tensor *cache = &call->tensors[which];
    int64_t page_size = cache->shape[1];
    int64_t page = ((const int32_t *)call->tensors[KV_INDICES].data)[first + j / page_size];
    return (const float *)((const char *)cache->data + page * cache->stride[0] +
                           j % page_size * cache->stride[1] + head * cache->stride[2]);
}

static void decode(const op_call *call, int64_t sequence, int64_t head)
{
    const tensor *q = &call->tensors[Q], *k = &call->tensors[K_CACHE];
    const tensor *out = &call->tensors[OUT], *lse = &call->tensors[LSE];
    const int32_t *indptr = call->tensors[KV_INDPTR].data;
    int64_t n = q->shape[2], kv_head = head / (q->shape[1] / k->shape[2]);
    int64_t n_kv = (indptr[sequence + 1] - indptr[sequence] + 1) * k->shape[1];
    float scale = call->params[SM_SCALE] != 0 ? (float)call->params[SM_SCALE] : 1 / sqrtf((float)n);
    const float *query =
        (const float *)((char *)q->data + sequence * q->stride[0] + head * q->stride[1]);
    float *to = (float *)((char *)out->data + sequence * out->stride[0] + head * out->stride[1]);
    float sum = 0, values[256] = {0};
    for (int64_t j = 0; j < n_kv; j++) {
        const float *key = cache_row(call, K_CACHE, indptr[sequence], j, kv_head);
        const float *value = cache_row(call, V_CACHE, indptr[sequence], j, kv_head);
        float score = 0;
        for (int64_t i = 0; i < n; i++)
            score += query[i] * key[i];
        float weight = expf(score * scale);
        sum += weight;
        for (int64_t i = 0; i < n; i++)
            values[i] += weight * value[i];
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = values[i] / sum;
    if (lse->rank) ((float *)((char *)lse->data + sequence * lse->stride[0]))[head] = log2f(sum);
}

void paged_decode_kernel(const op_call *call)
{
    int64_t n_heads = call->tensors[Q].shape[1];
    for (int64_t unit = call->begin; unit < call->end; unit++)
        decode(call, unit / n_heads, unit % n_heads);
}
