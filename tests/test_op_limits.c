/* What limits attention: windows, caps of the scores, masks of the caller's. Compared with the
 * plain formula, with each other to the bit, and with attention over what is seen alone. And a
 * prefix that sequences share, computed once for all of them. */
#include "op/merge_state/merge_state.h"
#include "op/paged_decode/paged_decode.h"
#include "attention_batch.h"

#include "base/cpu.h"

/* What a query sees, for the plain formula. */
typedef struct limits {
    bool causal;
    int window;
    double cap;
    const uint32_t *mask; /* of the whole call */
} limits;

static batch long_batch(void)
{
    batch batch = {.n_sequences = 4,
                   .n_heads = 4,
                   .n_kv_heads = 2,
                   .head_dim = 20,
                   .qo_len = {3, 0, 70, 5},
                   .kv_len = {3, 9, 197, 2}};
    make_batch(&batch, DTYPE_F32, 300);
    return batch;
}

/* Words of the masks of sequences before b. */
static int64_t mask_words(const batch *batch, int b)
{
    int64_t words = 0;
    for (int i = 0; i < b; i++)
        words += ((int64_t)batch->qo_len[i] * batch->kv_len[i] + 31) / 32;
    return words;
}

static bool is_seen(const batch *batch, const limits *with, int b, int i, int j)
{
    int own = batch->kv_len[b] - batch->qo_len[b] + i;
    if (with->window && j <= own - with->window) return false;
    if (!with->mask) return !with->causal || j <= own;
    int64_t bit = (int64_t)i * batch->kv_len[b] + j;
    return with->mask[mask_words(batch, b) + bit / 32] >> bit % 32 & 1;
}

/* One head of query i of a sequence the slow way; returns the base-2 sum. */
static double naive_head(const batch *batch, const limits *with, int b, int i, int head,
                         double *out)
{
    int64_t token = ((const int32_t *)batch->qo_indptr.data)[b] + i;
    int64_t first = ((const int32_t *)batch->kv_indptr.data)[b];
    int kv_head = head / (batch->n_heads / batch->n_kv_heads);
    const float *q = tensor_row2(&batch->q, token, head);
    double sum = 0;
    memset(out, 0, (size_t)batch->head_dim * sizeof *out);
    for (int j = 0; j < batch->kv_len[b]; j++) {
        const float *k = tensor_row2(&batch->k, first + j, kv_head);
        const float *v = tensor_row2(&batch->v, first + j, kv_head);
        double score = 0;
        if (!is_seen(batch, with, b, i, j)) continue;
        for (int d = 0; d < batch->head_dim; d++)
            score += (double)q[d] * k[d] / sqrt(batch->head_dim);
        double weight = exp(with->cap != 0 ? with->cap * tanh(score / with->cap) : score);
        sum += weight;
        for (int d = 0; d < batch->head_dim; d++)
            out[d] += weight * v[d];
    }
    for (int d = 0; d < batch->head_dim; d++)
        out[d] = sum > 0 ? out[d] / sum : 0;
    return log2(sum);
}

static void check_against_naive(const batch *batch, const op_call *call, const limits *with)
{
    const tensor *out = &call->tensors[RAGGED_PREFILL_OUT];
    const tensor *lse = &call->tensors[RAGGED_PREFILL_LSE];
    int64_t token = 0;
    for (int b = 0; b < batch->n_sequences; b++) {
        for (int i = 0; i < batch->qo_len[b]; i++, token++) {
            for (int head = 0; head < batch->n_heads; head++) {
                double expected[64], sum = naive_head(batch, with, b, i, head, expected);
                tensor row = tensor_1d(tensor_row2(out, token, head), DTYPE_F32, batch->head_dim);
                assert_near(&row, expected, 1e-6);
                float found = ((const float *)tensor_row(lse, token))[head];
                assert_true(isinf(sum) ? found == -INFINITY : fabs(found - sum) < 1e-5);
            }
        }
    }
}

static tensor random_masks(const batch *batch)
{
    tensor mask = zeros(DTYPE_I32, SHAPE(mask_words(batch, batch->n_sequences)));
    uint32_t *words = mask.data;
    for (int64_t i = 0; i < mask.shape[0]; i++)
        words[i] = i % 11 == 3 ? 0 : (uint32_t)hash_random(5, 0, (uint64_t)i);
    return mask;
}

/* Runs the call by its reference, and by every kernel that this processor has. */
static void run_all(const batch *batch, const op_call *call, const limits *with)
{
    size_t bytes = op_ragged_prefill.scratch_bytes(call);
    void *scratch = arena_alloc(&memory, bytes, 64);
    run_cut(&op_ragged_prefill, call, 3);
    check_against_naive(batch, call, with);
    for (const op_variant *v = op_ragged_prefill.variants; v->name; v++) {
        if (v->needs & ~cpu_features(0)) continue;
        op_call own = *call;
        memset(scratch, 0xff, bytes);
        own.scratch = scratch;
        own.end = op_ragged_prefill.units(&own);
        v->kernel(&own);
        check_against_naive(batch, &own, with);
    }
}

static void limits_agree_with_the_plain_formula(void **state)
{
    (void)state;
    static const limits all[] = {
        {.causal = true, .window = 1},   {.causal = true, .window = 40},
        {.causal = true, .window = 500}, {.window = 150},
        {.causal = true, .cap = 0.5},    {.causal = true, .window = 65, .cap = 30},
    };
    batch batch = long_batch();
    op_call call = ragged_call(&batch);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        call.params[RAGGED_PREFILL_CAUSAL] = all[i].causal;
        call.params[RAGGED_PREFILL_WINDOW] = all[i].window;
        call.params[RAGGED_PREFILL_SOFT_CAP] = all[i].cap;
        run_all(&batch, &call, &all[i]);
    }
    tensor mask = random_masks(&batch);
    call.tensors[RAGGED_PREFILL_MASK] = mask;
    for (int window = 0; window < 120; window += 60) {
        call.params[RAGGED_PREFILL_WINDOW] = window;
        call.params[RAGGED_PREFILL_SOFT_CAP] = window / 30;
        run_all(&batch, &call, &(limits){.window = window, .cap = window / 30, .mask = mask.data});
    }
}

/* A mask that says what causal and a window say gives their bits, and pages those of ragged keys.
 */
static void masks_give_the_bits_of_rules(void **state)
{
    (void)state;
    batch batch = long_batch();
    const limits rule = {.causal = true, .window = 50};
    cache cache = make_cache(&batch, 7, false);
    fill_cache(&batch, &cache);
    op_call ruled = ragged_call(&batch), masked = ragged_call(&batch);
    op_call paged = paged_call(&batch, &cache);
    ruled.params[RAGGED_PREFILL_WINDOW] = rule.window;
    tensor mask = zeros(DTYPE_I32, SHAPE(mask_words(&batch, batch.n_sequences)));
    for (int b = 0; b < batch.n_sequences; b++) {
        uint32_t *words = (uint32_t *)mask.data + mask_words(&batch, b);
        for (int i = 0; i < batch.qo_len[b]; i++) {
            for (int j = 0; j < batch.kv_len[b]; j++) {
                int bit = i * batch.kv_len[b] + j;
                if (is_seen(&batch, &rule, b, i, j)) words[bit / 32] |= 1u << bit % 32;
            }
        }
    }
    masked.tensors[RAGGED_PREFILL_MASK] = paged.tensors[PAGED_PREFILL_MASK] = mask;
    run(&op_ragged_prefill, &ruled);
    run(&op_ragged_prefill, &masked);
    run_cut(&op_paged_prefill, &paged, 2);
    for (int t = RAGGED_PREFILL_OUT; t <= RAGGED_PREFILL_LSE; t++) {
        assert_same_bits(&masked.tensors[t], &ruled.tensors[t]);
        assert_same_bits(&paged.tensors[t - RAGGED_PREFILL_OUT + PAGED_PREFILL_OUT],
                         &ruled.tensors[t]);
    }
    assert_true(op_ragged_prefill.derive(&ruled, "attended_pairs") ==
                op_ragged_prefill.derive(&masked, "attended_pairs"));
}

/* The last queries alone, as a later chunk of the prompt, have the bits that they have in the
 * whole: their tiles begin at other positions and hold other queries. */
static void windows_have_the_same_bits_in_chunks(void **state)
{
    (void)state;
    batch whole = {.n_sequences = 1, .n_heads = 4, .n_kv_heads = 2, .head_dim = 20};
    whole.qo_len[0] = 90;
    whole.kv_len[0] = 210;
    make_batch(&whole, DTYPE_F32, 21);
    for (const op_variant *v = op_ragged_prefill.variants; v->name; v++) {
        if (v->needs & ~cpu_features(0)) continue;
        op_call call = ragged_call(&whole);
        call.params[RAGGED_PREFILL_WINDOW] = 70;
        call.params[RAGGED_PREFILL_SOFT_CAP] = 2;
        call.scratch = arena_alloc(&memory, op_ragged_prefill.scratch_bytes(&call), 64);
        call.end = op_ragged_prefill.units(&call);
        v->kernel(&call);
        for (int count = 1; count < 90; count += 22) {
            batch last = whole;
            last.qo_len[0] = count;
            last.qo_indptr = borders(1, last.qo_len);
            last.q = tensor_slice(whole.q, 0, 90 - count, count);
            op_call chunk = ragged_call(&last);
            memcpy(chunk.params, call.params, sizeof chunk.params);
            chunk.scratch = call.scratch;
            chunk.end = op_ragged_prefill.units(&chunk);
            v->kernel(&chunk);
            tensor same = tensor_slice(call.tensors[RAGGED_PREFILL_OUT], 0, 90 - count, count);
            assert_same_bits(&chunk.tensors[RAGGED_PREFILL_OUT], &same);
        }
    }
}

/* What is hidden may be anything. */
static void hidden_positions_are_not_read(void **state)
{
    (void)state;
    batch batch = {.n_sequences = 1, .n_heads = 2, .n_kv_heads = 1, .head_dim = 20};
    batch.qo_len[0] = 1;
    batch.kv_len[0] = 150;
    make_batch(&batch, DTYPE_F32, 9);
    for (int64_t i = 0; i < 100 * 20; i++) /* positions 0 .. 99 */
        ((float *)batch.k.data)[i] = ((float *)batch.v.data)[i] = i % 2 ? NAN : INFINITY;
    op_call call = ragged_call(&batch);
    const limits rule = {.causal = true, .window = 50, .cap = 3};
    call.params[RAGGED_PREFILL_WINDOW] = rule.window;
    call.params[RAGGED_PREFILL_SOFT_CAP] = rule.cap;
    run_all(&batch, &call, &rule);
}

static void windows_of_decode_are_those_of_prefill(void **state)
{
    (void)state;
    batch batch = {.n_sequences = 3, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16};
    for (int b = 0; b < 3; b++)
        batch.qo_len[b] = 1, batch.kv_len[b] = 1 + 90 * b;
    make_batch(&batch, DTYPE_F32, 12);
    cache cache = make_cache(&batch, 16, true);
    fill_cache(&batch, &cache);
    op_call prefill = paged_call(&batch, &cache);
    prefill.params[PAGED_PREFILL_WINDOW] = 33;
    prefill.params[PAGED_PREFILL_SOFT_CAP] = 4;
    op_call decode = {.tensors = {batch.q, cache.k, cache.v, cache.indptr, cache.indices,
                                  cache.last, zeros(DTYPE_F32, SHAPE(3, 4, 16)),
                                  zeros(DTYPE_F32, SHAPE(3, 4))},
                      .params = {[PAGED_DECODE_WINDOW] = 33, [PAGED_DECODE_SOFT_CAP] = 4}};
    run(&op_paged_prefill, &prefill);
    run(&op_paged_decode, &decode);
    assert_same_bits(&decode.tensors[PAGED_DECODE_OUT], &prefill.tensors[PAGED_PREFILL_OUT]);
    assert_true(op_paged_decode.derive(&decode, "kv_tokens") == 1 + 33 + 33);
}

static void limits_that_cannot_be_are_refused(void **state)
{
    (void)state;
    batch batch = long_batch();
    op_call call = ragged_call(&batch);
    call.params[RAGGED_PREFILL_WINDOW] = -1;
    assert_refused(&op_ragged_prefill, &call, "window must be a whole number");
    call.params[RAGGED_PREFILL_WINDOW] = 2.5;
    assert_refused(&op_ragged_prefill, &call, "found 2.5");
    call.params[RAGGED_PREFILL_WINDOW] = 0;
    call.params[RAGGED_PREFILL_SOFT_CAP] = -3;
    assert_refused(&op_ragged_prefill, &call, "logits_soft_cap must be positive");
    call.params[RAGGED_PREFILL_SOFT_CAP] = 0;
    call.tensors[RAGGED_PREFILL_MASK] = zeros(DTYPE_I32, SHAPE(432));
    assert_refused(&op_ragged_prefill, &call, "take 433 words of 32 bits, mask has 432");
}

/* A prefix that all sequences share is one ragged sequence for the queries of all of them, its
 * attention is computed once, and merge_state joins it with that over each sequence's own pages. */
static void a_shared_prefix_is_computed_once(void **state)
{
    (void)state;
    enum { PREFIX = 48, PAGE = 16, HEADS = 4, DIM = 16 };
    batch whole = {.n_sequences = 3,
                   .n_heads = HEADS,
                   .n_kv_heads = 2,
                   .head_dim = DIM,
                   .qo_len = {1, 5, 1},
                   .kv_len = {PREFIX + 1, PREFIX + 70, PREFIX + 33}};
    make_batch(&whole, DTYPE_F32, 77);
    const int32_t *begin = whole.kv_indptr.data, *first = whole.qo_indptr.data;
    for (int b = 1; b < 3; b++) { /* the same prefix everywhere */
        tensor k = tensor_slice(whole.k, 0, begin[b], PREFIX);
        tensor v = tensor_slice(whole.v, 0, begin[b], PREFIX);
        memcpy(k.data, whole.k.data, tensor_bytes(&k));
        memcpy(v.data, whole.v.data, tensor_bytes(&v));
    }
    cache pages = make_cache(&whole, PAGE, false);
    fill_cache(&whole, &pages);
    op_call plain = paged_call(&whole, &pages);
    run(&op_paged_prefill, &plain);

    int64_t n = first[3];
    batch shared = whole;
    shared.n_sequences = 1;
    shared.qo_len[0] = (int)n;
    shared.kv_len[0] = PREFIX;
    shared.qo_indptr = borders(1, shared.qo_len);
    shared.kv_indptr = borders(1, shared.kv_len);
    shared.k = tensor_slice(whole.k, 0, 0, PREFIX);
    shared.v = tensor_slice(whole.v, 0, 0, PREFIX);
    op_call over_prefix = ragged_call(&shared);
    over_prefix.params[RAGGED_PREFILL_CAUSAL] = 0; /* every query comes after it */
    run(&op_ragged_prefill, &over_prefix);

    /* The same pages without those of the prefix. */
    op_call over_own = paged_call(&whole, &pages);
    const int32_t *old = pages.indptr.data, *page = pages.indices.data;
    tensor indptr = zeros(DTYPE_I32, SHAPE(4));
    tensor own = zeros(DTYPE_I32, SHAPE(old[3] - 3 * (PREFIX / PAGE)));
    int32_t *border = indptr.data, *to = own.data;
    for (int b = 0; b < 3; b++) {
        int count = old[b + 1] - old[b] - PREFIX / PAGE;
        memcpy(to + border[b], page + old[b] + PREFIX / PAGE, (size_t)count * sizeof *to);
        border[b + 1] = border[b] + count;
    }
    over_own.tensors[PAGED_PREFILL_KV_INDPTR] = indptr;
    over_own.tensors[PAGED_PREFILL_KV_INDICES] = own;
    run(&op_paged_prefill, &over_own);

    op_call merge = {
        .tensors = {over_prefix.tensors[RAGGED_PREFILL_OUT],
                    over_prefix.tensors[RAGGED_PREFILL_LSE], over_own.tensors[PAGED_PREFILL_OUT],
                    over_own.tensors[PAGED_PREFILL_LSE], zeros(DTYPE_F32, SHAPE(n, HEADS, DIM)),
                    zeros(DTYPE_F32, SHAPE(n, HEADS))}};
    run(&op_merge_state, &merge);
    const float *expected = plain.tensors[PAGED_PREFILL_OUT].data;
    const float *found = merge.tensors[MERGE_STATE_V].data;
    for (int64_t i = 0; i < n * HEADS * DIM; i++)
        assert_true(fabsf(found[i] - expected[i]) < 1e-6f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(limits_agree_with_the_plain_formula),    op_test(masks_give_the_bits_of_rules),
        op_test(windows_have_the_same_bits_in_chunks),   op_test(hidden_positions_are_not_read),
        op_test(windows_of_decode_are_those_of_prefill), op_test(limits_that_cannot_be_are_refused),
        op_test(a_shared_prefix_is_computed_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
