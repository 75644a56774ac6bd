/* masked_softmax in vectors: a row of visible scores in scratch, its maximum, exponentials and
 * their sum, and the quotients. */
#include "op/masked_softmax/masked_softmax.h"

#include "op/element.h"
#include "op/simd.h"

#include <float.h>

/* Copies a row of scores, minus infinity where it is masked. */
SIMD_FN void take_visible(const tensor *scores, const void *in, const tensor *mask,
                          const void *visible, float *row)
{
    const int64_t n = scores->shape[3];
    if (scores->type == DTYPE_F32 && mask->type == DTYPE_F32) {
        const float *values = in, *seen = visible;
        for (int64_t i = 0; i < n; i++)
            row[i] = seen[i] != 0 ? values[i] : -INFINITY;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        bool seen = element_load(mask->type, visible, i) != 0;
        row[i] = seen ? (float)element_load(scores->type, in, i) : -INFINITY;
    }
}

SIMD_FN float largest_of(const float *row, int64_t n)
{
    vf most = vf_set1(-INFINITY);
    for (int64_t i = 0; i < n; i += LANES)
        most = vf_max(most, vf_first_n(vf_load_n(DTYPE_F32, row, i, n - i), n - i, most));
    return vf_max_of_lanes(most);
}

/* Replaces a row by its exponentials; returns their sum. */
SIMD_FN float exponentiate(float *row, int64_t n, vf largest, vf scale)
{
    vf sums[SUMS];
    for (int s = 0; s < SUMS; s++)
        sums[s] = vf_zero();
    for (int64_t first = 0; first < n; first += SUMS * LANES) {
        for (int s = 0; s < SUMS; s++) {
            int64_t i = first + s * LANES;
            if (i >= n) break;
            vf value = vf_load_n(DTYPE_F32, row, i, n - i);
            vf power = vf_exp(vf_mul(vf_sub(value, largest), scale));
            /* Only minus infinity is below -FLT_MAX, even where the maximum is minus infinity. */
            power = vf_first_n(vf_where_ge(power, value, vf_set1(-FLT_MAX)), n - i, vf_zero());
            vf_store_n(DTYPE_F32, row, i, n - i, power);
            sums[s] = vf_add(sums[s], power);
        }
    }
    return vf_total(sums);
}

SIMD_KERNEL(masked_softmax)(const op_call *call)
{
    const tensor *scores = &call->tensors[MASKED_SOFTMAX_SCORES]; /* (bs, n_heads, q, kv) */
    const tensor *mask = &call->tensors[MASKED_SOFTMAX_MASK];     /* (bs, q, kv) */
    const tensor *out = &call->tensors[MASKED_SOFTMAX_PROBABILITIES];
    int64_t n_heads = scores->shape[1], q_len = scores->shape[2], n = scores->shape[3];
    const vf scale = vf_set1((float)call->params[MASKED_SOFTMAX_SCALE]);
    float *row = call->scratch;
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t q = unit % q_len, head = unit / q_len % n_heads, b = unit / q_len / n_heads;
        const char *in = (const char *)tensor_row2(scores, b, head) + q * scores->stride[2];
        char *to = (char *)tensor_row2(out, b, head) + q * out->stride[2];
        take_visible(scores, in, mask, tensor_row2(mask, b, q), row);
        float sum = exponentiate(row, n, vf_set1(largest_of(row, n)), scale);
        vf divisor = vf_set1(sum == 0 ? 1 : sum);
        for (int64_t i = 0; i < n; i += LANES)
            vf_store_n(out->type, to, i, n - i,
                       vf_div(vf_load_n(DTYPE_F32, row, i, n - i), divisor));
    }
}
