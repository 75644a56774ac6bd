/* Attention over ragged and paged keys and values, the operator that appends to the pages, and the
 * merging of states, compared with torch's results and with each other, to the bit where the
 * contract requires it. */
#include "op/attention/attention.h"
#include "op/paged_decode/paged_decode.h"
#include "attention_batch.h"

#include "golden/op_forward.inc"

static void check_golden(int64_t qo_len, int64_t kv_len, int64_t seed, const double *out,
                         const double *lse)
{
    batch batch = {.n_sequences = 1, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8};
    batch.qo_len[0] = (int)qo_len;
    batch.kv_len[0] = (int)kv_len;
    make_batch(&batch, DTYPE_F32, 1);
    batch.q = golden_tensor(DTYPE_F32, seed, SHAPE(qo_len, 4, 8));
    batch.k = golden_tensor(DTYPE_F32, seed + 1, SHAPE(kv_len, 2, 8));
    batch.v = golden_tensor(DTYPE_F32, seed + 2, SHAPE(kv_len, 2, 8));
    op_call call = ragged_call(&batch);
    call.tensors[RAGGED_PREFILL_OUT] = zeros(DTYPE_F64, SHAPE(qo_len, 4, 8));
    call.tensors[RAGGED_PREFILL_LSE] = zeros(DTYPE_F64, SHAPE(qo_len, 4));
    run(&op_ragged_prefill, &call);
    assert_near(&call.tensors[RAGGED_PREFILL_OUT], out, 1e-14);
    assert_near(&call.tensors[RAGGED_PREFILL_LSE], lse, 1e-14);
}

static void attention_agrees_with_torch(void **state)
{
    (void)state;
    check_golden(5, 9, 12, golden_attention_one, golden_attention_one_lse);
    check_golden(3, 3, 15, golden_attention_two, golden_attention_two_lse);
}

/* softmax(q K^T * scale) V over positions [0, n_visible) the slow way; returns the base-2 sum. */
static double naive_head(const batch *batch, int sequence, int64_t token, int head, int n_visible,
                         double scale, double *out)
{
    int64_t first = ((const int32_t *)batch->kv_indptr.data)[sequence];
    int kv_head = head / (batch->n_heads / batch->n_kv_heads);
    const float *q = tensor_row2(&batch->q, token, head);
    double sum = 0;
    memset(out, 0, (size_t)batch->head_dim * sizeof *out);
    for (int j = 0; j < n_visible; j++) {
        const float *k = tensor_row2(&batch->k, first + j, kv_head);
        const float *v = tensor_row2(&batch->v, first + j, kv_head);
        double score = 0;
        for (int i = 0; i < batch->head_dim; i++)
            score += (double)q[i] * k[i];
        double weight = exp(score * scale);
        sum += weight;
        for (int i = 0; i < batch->head_dim; i++)
            out[i] += weight * v[i];
    }
    for (int i = 0; i < batch->head_dim; i++)
        out[i] = n_visible ? out[i] / sum : 0;
    return log2(sum);
}

static void check_against_naive(const batch *batch, const op_call *call, bool causal, double scale)
{
    const tensor *out = &call->tensors[RAGGED_PREFILL_OUT];
    const tensor *lse = &call->tensors[RAGGED_PREFILL_LSE];
    int64_t token = 0;
    for (int b = 0; b < batch->n_sequences; b++) {
        for (int i = 0; i < batch->qo_len[b]; i++, token++) {
            int visible = batch->kv_len[b];
            for (int j = visible - 1;
                 causal && j >= 0 && j + batch->qo_len[b] > batch->kv_len[b] + i; j--)
                visible--;
            for (int head = 0; head < batch->n_heads; head++) {
                double expected[64];
                double sum = naive_head(batch, b, token, head, visible, scale, expected);
                tensor row = tensor_1d(tensor_row2(out, token, head), DTYPE_F32, batch->head_dim);
                assert_near(&row, expected, 1e-6);
                float found = ((const float *)tensor_row(lse, token))[head];
                assert_true(visible ? fabs(found - sum) < 1e-5 : found == -INFINITY);
            }
        }
    }
}

static void ragged_agrees_with_a_plain_softmax(void **state)
{
    (void)state;
    batch batch = common_batch();
    op_call call = ragged_call(&batch);
    for (int causal = 0; causal < 2; causal++) {
        call.params[RAGGED_PREFILL_CAUSAL] = causal;
        call.params[RAGGED_PREFILL_SM_SCALE] = causal ? 0 : 0.7;
        run(&op_ragged_prefill, &call);
        check_against_naive(&batch, &call, causal, causal ? 1 / sqrt(20) : 0.7);
    }
}

static void pages_give_the_bits_of_ragged(void **state)
{
    (void)state;
    batch batch = common_batch();
    op_call ragged = ragged_call(&batch);
    run(&op_ragged_prefill, &ragged);
    static const int page_sizes[] = {1, 5, 16, 128};
    for (int i = 0; i < 8; i++) {
        cache cache = make_cache(&batch, page_sizes[i / 2], i % 2);
        fill_cache(&batch, &cache);
        op_call paged = paged_call(&batch, &cache);
        run_cut(&op_paged_prefill, &paged, (uint64_t)i);
        assert_same_bits(&paged.tensors[PAGED_PREFILL_OUT], &ragged.tensors[RAGGED_PREFILL_OUT]);
        assert_same_bits(&paged.tensors[PAGED_PREFILL_LSE], &ragged.tensors[RAGGED_PREFILL_LSE]);
    }
}

/* Slots that hold no position keep what was there: NaN, in every page type and layout. */
static void append_touches_its_slots_only(void **state)
{
    (void)state;
    batch batch = common_batch();
    cache cache = make_cache(&batch, 5, true);
    fill_cache(&batch, &cache);
    int64_t filled = 0, n_pages = cache.k.shape[0];
    for (int64_t page = 0; page < n_pages; page++) {
        for (int64_t slot = 0; slot < 5; slot++) {
            const char *heads = tensor_row2(&cache.k, page, slot);
            bool used = !isnan(*(const float *)heads);
            filled += used;
            for (int64_t i = 0; i < 20; i++)
                assert_true(isnan(((const float *)(heads + cache.k.stride[2]))[i]) == !used);
        }
    }
    assert_int_equal(filled, batch.k.shape[0]);
}

static void append_rounds_to_the_type_of_the_cache(void **state)
{
    (void)state;
    batch batch = {.n_sequences = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 4, .kv_len = {2}};
    make_batch(&batch, DTYPE_F32, 1);
    cache cache = make_cache(&batch, 2, false);
    cache.k = zeros(DTYPE_F16, 4, cache.k.shape);
    cache.v = zeros(DTYPE_BF16, 4, cache.v.shape);
    fill_cache(&batch, &cache);
    int32_t page = ((const int32_t *)cache.indices.data)[0];
    for (int64_t i = 0; i < 8; i++) {
        uint16_t k = ((const uint16_t *)tensor_row2(&cache.k, page, i / 4))[i % 4];
        uint16_t v = ((const uint16_t *)tensor_row2(&cache.v, page, i / 4))[i % 4];
        assert_int_equal(k, f32_to_f16(((const float *)batch.k.data)[i]));
        assert_int_equal(v, f32_to_bf16(((const float *)batch.v.data)[i]));
    }
}

/* The queries of one sequence [first, first + count) as a call of their own. The cache then holds
 * positions up to the chunk's end only, as it does while a prompt comes in. */
static void run_chunk(const batch *all, int sequence, int page_size, int first, int count,
                      tensor *out)
{
    int64_t token = ((const int32_t *)all->qo_indptr.data)[sequence] + first;
    int64_t kv_first = ((const int32_t *)all->kv_indptr.data)[sequence];
    int visible = all->kv_len[sequence] - all->qo_len[sequence] + first + count;
    batch chunk = *all;
    chunk.n_sequences = 1;
    chunk.qo_len[0] = count;
    chunk.kv_len[0] = visible;
    chunk.qo_indptr = borders(1, chunk.qo_len);
    chunk.kv_indptr = borders(1, chunk.kv_len);
    chunk.q = tensor_slice(all->q, 0, token, count);
    chunk.k = tensor_slice(all->k, 0, kv_first, visible);
    chunk.v = tensor_slice(all->v, 0, kv_first, visible);
    cache cache = make_cache(&chunk, page_size, false);
    fill_cache(&chunk, &cache);
    op_call call = paged_call(&chunk, &cache);
    call.tensors[PAGED_PREFILL_OUT] = tensor_slice(*out, 0, token, count);
    run(&op_paged_prefill, &call);
}

static void chunks_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    batch batch = {.n_sequences = 2,
                   .n_heads = 3,
                   .n_kv_heads = 1,
                   .head_dim = 24,
                   .qo_len = {70, 41},
                   .kv_len = {70, 120}};
    make_batch(&batch, DTYPE_F16, 5);
    op_call whole = ragged_call(&batch);
    run(&op_ragged_prefill, &whole);
    static const int sizes[] = {1, 7, 64};
    for (int i = 0; i < 3; i++) {
        tensor out = zeros(DTYPE_F32, 3, batch.q.shape);
        for (int b = 0; b < 2; b++) {
            for (int first = 0; first < batch.qo_len[b]; first += sizes[i]) {
                int rest = batch.qo_len[b] - first;
                run_chunk(&batch, b, 16, first, rest < sizes[i] ? rest : sizes[i], &out);
            }
        }
        assert_same_bits(&out, &whole.tensors[RAGGED_PREFILL_OUT]);
    }
}

static void decode_gives_the_bits_of_prefill(void **state)
{
    (void)state;
    batch batch = {.n_sequences = 4,
                   .n_heads = 8,
                   .n_kv_heads = 1,
                   .head_dim = 64,
                   .qo_len = {1, 1, 1, 1},
                   .kv_len = {54, 0, 97, 1}};
    make_batch(&batch, DTYPE_BF16, 9);
    cache cache = make_cache(&batch, 8, true);
    fill_cache(&batch, &cache);
    op_call prefill = paged_call(&batch, &cache), decode = {0};
    run(&op_paged_prefill, &prefill);
    decode.tensors[PAGED_DECODE_Q] = batch.q;
    decode.tensors[PAGED_DECODE_K_CACHE] = cache.k;
    decode.tensors[PAGED_DECODE_V_CACHE] = cache.v;
    decode.tensors[PAGED_DECODE_KV_INDPTR] = cache.indptr;
    decode.tensors[PAGED_DECODE_KV_INDICES] = cache.indices;
    decode.tensors[PAGED_DECODE_KV_LAST_PAGE_LEN] = cache.last;
    decode.tensors[PAGED_DECODE_OUT] = zeros(DTYPE_F32, SHAPE(4, 8, 64));
    decode.tensors[PAGED_DECODE_LSE] = zeros(DTYPE_F32, SHAPE(4, 8));
    run_cut(&op_paged_decode, &decode, 3);
    assert_same_bits(&decode.tensors[PAGED_DECODE_OUT], &prefill.tensors[PAGED_PREFILL_OUT]);
    assert_same_bits(&decode.tensors[PAGED_DECODE_LSE], &prefill.tensors[PAGED_PREFILL_LSE]);
    const float *lse = decode.tensors[PAGED_DECODE_LSE].data;
    assert_true(lse[8] == -INFINITY && lse[7] > -INFINITY);
}

static void rows_that_see_nothing_are_zero(void **state)
{
    (void)state;
    batch batch = {.n_sequences = 2,
                   .n_heads = 2,
                   .n_kv_heads = 2,
                   .head_dim = 4,
                   .qo_len = {34, 9},
                   .kv_len = {1, 0}};
    make_batch(&batch, DTYPE_F32, 6);
    op_call call = ragged_call(&batch);
    memset(call.tensors[RAGGED_PREFILL_OUT].data, 0xff, 43 * 2 * 4 * sizeof(float));
    run(&op_ragged_prefill, &call);
    const float *out = call.tensors[RAGGED_PREFILL_OUT].data;
    const float *lse = call.tensors[RAGGED_PREFILL_LSE].data;
    for (int row = 0; row < 43 * 2; row++) {
        bool sees = row / 2 == 33; /* the last of 34 queries sees the only key */
        assert_true(sees == (lse[row] != -INFINITY));
        for (int i = 0; i < 4; i++)
            assert_true(out[row * 4 + i] == (sees ? ((float *)batch.v.data)[row % 2 * 4 + i] : 0));
    }
    op_cost cost = op_cost_of(&op_ragged_prefill, &call);
    assert_true(cost.flops == 4 * 1 * 2 * 4); /* one pair, two heads of four */
}

static void output_may_replace_the_queries(void **state)
{
    (void)state;
    batch batch = common_batch();
    op_call call = ragged_call(&batch);
    run(&op_ragged_prefill, &call);
    tensor expected = call.tensors[RAGGED_PREFILL_OUT];
    call.tensors[RAGGED_PREFILL_OUT] = batch.q;
    call.tensors[RAGGED_PREFILL_LSE] = (tensor){0};
    run_cut(&op_ragged_prefill, &call, 2);
    assert_same_bits(&batch.q, &expected);
}

/* NaN and huge values stay in the heads whose keys, values or queries hold them. */
static void nan_stays_where_it_is_seen(void **state)
{
    (void)state;
    batch batch = common_batch();
    ((float *)tensor_row2(&batch.q, 0, 1))[3] = NAN;       /* sequence 0, head 1 */
    ((float *)tensor_row2(&batch.k, 12 + 90, 1))[0] = NAN; /* sequence 2, heads 3 .. 5 */
    ((float *)tensor_row2(&batch.k, 109, 0))[0] = 1e30f;   /* sequence 3, heads 0 .. 2 */
    op_call call = ragged_call(&batch);
    run(&op_ragged_prefill, &call);
    for (int64_t token = 0; token < 26; token++) {
        for (int head = 0; head < 6; head++) {
            /* Token 3 + i sees position 90 of 97 when 90 + 17 <= 97 + i. */
            bool nan = (token == 0 && head == 1) || (token >= 13 && token < 20 && head >= 3);
            const float *out = tensor_row2(&call.tensors[RAGGED_PREFILL_OUT], token, head);
            assert_true(isnan(out[0]) == nan);
        }
    }
}

static void scores_of_minus_infinity_weigh_nothing(void **state)
{
    (void)state;
    batch batch = {.n_sequences = 1,
                   .n_heads = 1,
                   .n_kv_heads = 1,
                   .head_dim = 1,
                   .qo_len = {2},
                   .kv_len = {40}};
    make_batch(&batch, DTYPE_F32, 6);
    float *q = batch.q.data, *k = batch.k.data, *v = batch.v.data;
    for (int j = 0; j < 40; j++) {
        k[j] = j < 39 ? -INFINITY : 0.5f;
        v[j] = 1 + (float)j;
    }
    q[0] = q[1] = 1;
    op_call call = ragged_call(&batch);
    run(&op_ragged_prefill, &call);
    const float *out = call.tensors[RAGGED_PREFILL_OUT].data;
    const float *lse = call.tensors[RAGGED_PREFILL_LSE].data;
    assert_true(out[0] == 0 && lse[0] == -INFINITY);
    assert_true(out[1] == 40 && fabs(lse[1] - 0.5 / log(2)) < 1e-6);
}

/* Weights are relative to the maximum, wherever it lies and wherever it comes. */
static void far_scores_neither_overflow_nor_vanish(void **state)
{
    (void)state;
    batch batch = {.n_sequences = 1,
                   .n_heads = 1,
                   .n_kv_heads = 1,
                   .head_dim = 1,
                   .qo_len = {2},
                   .kv_len = {80}};
    make_batch(&batch, DTYPE_F32, 6);
    float *q = batch.q.data, *k = batch.k.data, *v = batch.v.data;
    for (int j = 0; j < 80; j++) {
        k[j] = (float)(j - 20000);
        v[j] = (float)j;
    }
    q[0] = 1; /* rising scores, the first at -20000 */
    q[1] = -1;
    op_call call = ragged_call(&batch);
    call.params[RAGGED_PREFILL_CAUSAL] = 0;
    run(&op_ragged_prefill, &call);
    double sum = 0, mean = 0; /* of a geometric series away from its largest term */
    for (int i = 0; i < 80; i++) {
        sum += exp(-i);
        mean += exp(-i) * i;
    }
    mean /= sum;
    assert_near(&call.tensors[RAGGED_PREFILL_OUT], (double[]){79 - mean, mean}, 1e-7);
    double lse[] = {(79 - 20000) / log(2) + log2(sum), 20000 / log(2) + log2(sum)};
    assert_near(&call.tensors[RAGGED_PREFILL_LSE], lse, 1e-7);
}

static void merging_two_halves_gives_the_whole(void **state)
{
    (void)state;
    batch whole = {.n_sequences = 1,
                   .n_heads = 6,
                   .n_kv_heads = 2,
                   .head_dim = 16,
                   .qo_len = {11},
                   .kv_len = {90}};
    make_batch(&whole, DTYPE_F32, 40);
    op_call calls[3];
    for (int part = 0; part < 3; part++) {
        batch half = whole;
        half.kv_len[0] = part == 0 ? 90 : part == 1 ? 37 : 53;
        half.kv_indptr = borders(1, half.kv_len);
        half.k = tensor_slice(whole.k, 0, part == 2 ? 37 : 0, half.kv_len[0]);
        half.v = tensor_slice(whole.v, 0, part == 2 ? 37 : 0, half.kv_len[0]);
        calls[part] = ragged_call(&half);
        calls[part].params[RAGGED_PREFILL_CAUSAL] = 0;
        for (int t = RAGGED_PREFILL_OUT; t <= RAGGED_PREFILL_LSE; t++)
            calls[part].tensors[t] =
                zeros(DTYPE_F64, calls[part].tensors[t].rank, calls[part].tensors[t].shape);
        run(&op_ragged_prefill, &calls[part]);
    }
    tensor v = calls[1].tensors[RAGGED_PREFILL_OUT], s = calls[1].tensors[RAGGED_PREFILL_LSE];
    op_call merge = {.tensors = {v, s, calls[2].tensors[RAGGED_PREFILL_OUT],
                                 calls[2].tensors[RAGGED_PREFILL_LSE], v, s}};
    run_cut(&op_merge_state, &merge, 1);
    assert_near(&v, calls[0].tensors[RAGGED_PREFILL_OUT].data, 1e-14);
    assert_near(&s, calls[0].tensors[RAGGED_PREFILL_LSE].data, 1e-14);
}

static void merging_empty_states(void **state)
{
    (void)state;
    tensor v_a = zeros(DTYPE_F32, SHAPE(1, 3, 2)), s_a = zeros(DTYPE_F32, SHAPE(1, 3));
    tensor v_b = zeros(DTYPE_F32, SHAPE(1, 3, 2)), s_b = zeros(DTYPE_F32, SHAPE(1, 3));
    tensor v = zeros(DTYPE_F32, SHAPE(1, 3, 2)), s = zeros(DTYPE_F32, SHAPE(1, 3));
    memcpy(v_a.data, (float[]){1, 2, 3, 4, 5, 6}, 24);
    memcpy(v_b.data, (float[]){7, 8, 9, 10, 11, 12}, 24);
    memcpy(s_a.data, (float[]){-INFINITY, -INFINITY, 700}, 12);
    memcpy(s_b.data, (float[]){-INFINITY, 3, 700}, 12);
    op_call call = {.tensors = {v_a, s_a, v_b, s_b, v, s}};
    run(&op_merge_state, &call);
    assert_near(&v, (double[]){0, 0, 9, 10, 8, 9}, 0);
    const float *sums = s.data;
    assert_true(sums[0] == -INFINITY && sums[1] == 3 && sums[2] == 701);
}

static void contents_of_index_tensors_are_checked(void **state)
{
    (void)state;
    batch batch = common_batch();
    cache cache = make_cache(&batch, 16, false);
    op_call good = paged_call(&batch, &cache), call = good;
    assert_binds(&op_paged_prefill, &good);

    call.tensors[PAGED_PREFILL_QO_INDPTR] = INDICES(0, 3, 2, 20, 21, 26);
    assert_refused(&op_paged_prefill, &call, "qo_indptr must not fall, found 2 after 3 at 2");
    call.tensors[PAGED_PREFILL_QO_INDPTR] = INDICES(1, 3, 3, 20, 21, 26);
    assert_refused(&op_paged_prefill, &call, "qo_indptr[0] must be 0, found 1");
    call.tensors[PAGED_PREFILL_QO_INDPTR] = INDICES(0, 3, 3, 20, 21, 25);
    assert_refused(&op_paged_prefill, &call, "qo_indptr must end at 26, found 25");
    call = good;
    call.tensors[PAGED_PREFILL_KV_INDICES] = copy_of(&cache.indices);
    ((int32_t *)call.tensors[PAGED_PREFILL_KV_INDICES].data)[4] = (int32_t)cache.k.shape[0];
    assert_refused(&op_paged_prefill, &call, "kv_indices[4]");
    call = good;
    call.tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN] = INDICES(3, 9, 17, 6, 2);
    assert_refused(&op_paged_prefill, &call, "kv_last_page_len[2] must be in 1 .. 16, found 17");
    call = good;
    call.tensors[PAGED_PREFILL_Q].shape[1] = call.tensors[PAGED_PREFILL_OUT].shape[1] =
        call.tensors[PAGED_PREFILL_LSE].shape[1] = 5;
    assert_refused(&op_paged_prefill, &call, "n_heads 5 is not a multiple of n_kv_heads 2");
    call = good;
    call.tensors[PAGED_PREFILL_QO_INDPTR] = INDICES(0, 26);
    assert_refused(&op_paged_prefill, &call, "n_sequences + 1");
}

static void append_refuses_positions_beyond_the_pages(void **state)
{
    (void)state;
    batch batch = {.n_sequences = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 4, .kv_len = {19}};
    make_batch(&batch, DTYPE_F32, 1);
    cache cache = make_cache(&batch, 16, false);
    op_call call = append_call(&cache);
    call.tensors[KV_APPEND_K] = tensor_slice(batch.k, 0, 0, 2);
    call.tensors[KV_APPEND_V] = tensor_slice(batch.v, 0, 0, 2);
    call.tensors[KV_APPEND_QO_INDPTR] = INDICES(0, 2);
    call.tensors[KV_APPEND_POSITIONS] = INDICES(17, 18);
    assert_binds(&op_kv_append, &call);
    call.tensors[KV_APPEND_POSITIONS] = INDICES(18, 19);
    assert_refused(&op_kv_append, &call, "positions[1] = 19 is outside its sequence's pages");
    call.tensors[KV_APPEND_POSITIONS] = INDICES(-1, 0);
    assert_refused(&op_kv_append, &call, "positions[0] = -1");
}

/* The contents that prepare() makes for test calls must themselves pass the checks. */
static void prepared_calls_bind_and_count(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        batch batch = {.n_sequences = 3, .n_heads = 2, .n_kv_heads = 1, .head_dim = 4};
        batch.qo_len[0] = 1 + (int)(seed % 9);
        batch.kv_len[0] = 60;
        make_batch(&batch, DTYPE_F32, 1);
        cache cache = make_cache(&batch, 5, false); /* 12 pages in use of 15 */
        op_call prefill = paged_call(&batch, &cache), append = append_call(&cache);
        op_paged_prefill.prepare(&prefill, seed);
        assert_binds(&op_paged_prefill, &prefill);
        double tokens = op_paged_prefill.derive(&prefill, "kv_tokens");
        double pairs = op_paged_prefill.derive(&prefill, "attended_pairs");
        assert_true(tokens > 0 && tokens <= 60);
        assert_true(pairs >= 1 && pairs <= tokens * batch.qo_len[0]);

        append.tensors[KV_APPEND_K] = append.tensors[KV_APPEND_V] =
            zeros(DTYPE_F32, SHAPE(batch.qo_len[0], 1, 4));
        append.tensors[KV_APPEND_QO_INDPTR] = batch.qo_indptr;
        append.tensors[KV_APPEND_POSITIONS] = zeros(DTYPE_I32, SHAPE(batch.qo_len[0]));
        op_kv_append.prepare(&append, seed);
        assert_binds(&op_kv_append, &append);
    }
}

static void costs_without_contents_are_of_the_queries_alone(void **state)
{
    (void)state;
    batch batch = common_batch();
    cache cache = make_cache(&batch, 16, false);
    op_call call = paged_call(&batch, &cache);
    op_cost full = op_cost_of(&op_paged_prefill, &call);
    double pairs = 6 + (17 * 80 + 17 * 18 / 2) + 54 + 3; /* 5 queries on 2 positions: 0 0 0 1 2 */
    assert_true(full.flops == 4 * pairs * 6 * 20);
    assert_true(full.bytes == 26 * 6 * 20 * 8 + (3 + 9 + 97 + 54 + 2) * 2 * 20 * 8);
    for (int t = 0; t < OP_MAX_TENSORS; t++)
        call.tensors[t].data = NULL;
    assert_binds(&op_paged_prefill, &call);
    op_cost bare = op_cost_of(&op_paged_prefill, &call);
    assert_true(bare.flops == 0 && bare.bytes == 26 * 6 * 20 * 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(attention_agrees_with_torch),
        op_test(ragged_agrees_with_a_plain_softmax),
        op_test(pages_give_the_bits_of_ragged),
        op_test(append_touches_its_slots_only),
        op_test(append_rounds_to_the_type_of_the_cache),
        op_test(chunks_give_the_bits_of_the_whole),
        op_test(decode_gives_the_bits_of_prefill),
        op_test(rows_that_see_nothing_are_zero),
        op_test(output_may_replace_the_queries),
        op_test(nan_stays_where_it_is_seen),
        op_test(scores_of_minus_infinity_weigh_nothing),
        op_test(far_scores_neither_overflow_nor_vanish),
        op_test(merging_two_halves_gives_the_whole),
        op_test(merging_empty_states),
        op_test(contents_of_index_tensors_are_checked),
        op_test(append_refuses_positions_beyond_the_pages),
        op_test(prepared_calls_bind_and_count),
        op_test(costs_without_contents_are_of_the_queries_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
