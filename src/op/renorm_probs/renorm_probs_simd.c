/* renorm_probs in vectors. A histogram over the upper bits of the probabilities finds the bin that
 * holds the threshold; the search of the reference then looks only at that bin. */
#include "op/renorm_probs/renorm_probs.h"

#include "op/prob_weight.h"
#include "op/sampling/sampling_row.h"
#include "op/simd.h"

enum {
    BIN_SHIFT = 20, /* of a positive float's bits: 8 of the exponent, 3 of the mantissa */
    BINS = 1 << (31 - BIN_SHIFT),
    PARTIAL = 16 /* sums in doubles, whatever the width */
};

/* One row. */
typedef struct fast_row {
    uint64_t *shares; /* (n) weights of candidates */
    uint32_t *keys;   /* (n) their keys */
    float *values;    /* (n + 16) no NaN, not negative, then zeros */
    uint64_t *sums;   /* (BINS) */
    int64_t *counts;  /* (BINS) */
    int64_t n;
} fast_row;

static fast_row lay_out(void *scratch, int64_t n)
{
    fast_row row = {.sums = scratch, .n = n};
    row.counts = (int64_t *)(row.sums + BINS);
    row.shares = (uint64_t *)(row.counts + BINS);
    row.values = (float *)(row.shares + n);
    row.keys = (uint32_t *)(row.values + n + PARTIAL);
    return row;
}

SIMD_FN void read_row(dtype type, const void *in, const fast_row *row)
{
    memset(row->values + row->n, 0, PARTIAL * sizeof(float));
    for (int64_t i = 0; i < row->n; i += LANES) {
        vf value = vf_max(vf_load_n(type, in, i, row->n - i), vf_zero());
        vf_store_n(DTYPE_F32, row->values, i, row->n - i, value);
    }
}

/* The bin in which the threshold lies, and what lies above it. */
static int find_bin(const fast_row *row, renorm_limits limits, above *larger)
{
    memset(row->sums, 0, BINS * sizeof *row->sums);
    memset(row->counts, 0, BINS * sizeof *row->counts);
    for (int64_t i = 0; i < row->n; i++) {
        uint32_t bin = float_bits(row->values[i]) >> BIN_SHIFT;
        row->counts[bin]++;
        row->sums[bin] += prob_weight(row->values[i]);
    }
    above all = {0};
    int chosen = -1;
    for (int bin = BINS - 1; bin >= 0; bin--) {
        if (row->counts[bin] == 0) continue;
        if (chosen >= 0 && (all.count >= limits.count || (double)all.weight >= limits.weight))
            break;
        chosen = bin;
        *larger = all;
        all.count += row->counts[bin];
        all.weight += row->sums[bin];
    }
    return chosen;
}

/* The least value that both filters keep. */
static float lowest_value(const fast_row *row, renorm_limits limits)
{
    above larger = {0};
    uint32_t bin = (uint32_t)find_bin(row, limits, &larger);
    int64_t count = 0;
    for (int64_t i = 0; i < row->n; i++) {
        row->keys[count] = key_of(row->values[i]);
        row->shares[count] = prob_weight(row->values[i]);
        count += float_bits(row->values[i]) >> BIN_SHIFT == bin;
    }
    return logit_of(threshold(row->keys, row->shares, count, larger, limits.count, limits.weight));
}

/* The sum of the values from `lowest` on. */
static double sum_kept(const fast_row *row, float lowest)
{
    enum { HALVES = 2 * PARTIAL / LANES };
    vd sums[HALVES];
    for (int part = 0; part < HALVES; part++)
        sums[part] = vd_set1(0);
    for (int64_t i = 0; i < row->n; i += PARTIAL) {
        for (int part = 0; part < HALVES; part++) {
            vf value = vf_loadu(row->values + i + part / 2 * LANES);
            value = vf_where_ge(value, value, vf_set1(lowest));
            sums[part] = vd_add(sums[part], vd_widen(value, part % 2));
        }
    }
    double lanes[PARTIAL];
    for (int part = 0; part < HALVES; part++)
        vu_storeu((uint64_t *)lanes + part * LANES / 2, vd_bits(sums[part]));
    for (int half = PARTIAL / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

SIMD_FN void write_row(dtype type, void *out, const fast_row *row, float lowest)
{
    double sum = sum_kept(row, lowest);
    vf inverse = vf_set1(sum > 0 ? (float)(1 / sum) : 0), limit = vf_set1(lowest);
    for (int64_t i = 0; i < row->n; i += LANES) {
        vf value = vf_loadu(row->values + i);
        vf_store_n(type, out, i, row->n - i, vf_where_ge(vf_mul(value, inverse), value, limit));
    }
}

SIMD_KERNEL(renorm_probs)(const op_call *call)
{
    const tensor *probs = &call->tensors[RENORM_PROBS_PROBS]; /* (n_rows, vocab_size) */
    const tensor *out = &call->tensors[RENORM_PROBS_OUT];     /* (n_rows, vocab_size) */
    fast_row row = lay_out(call->scratch, probs->shape[1]);
    for (int64_t at = call->begin; at < call->end; at++) {
        renorm_limits limits = renorm_limits_of(call, at);
        read_row(probs->type, tensor_row(probs, at), &row);
        float lowest = limits.any ? lowest_value(&row, limits) : 0;
        write_row(out->type, tensor_row(out, at), &row, lowest);
    }
}
