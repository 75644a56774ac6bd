/* The operators of padded-batch engines, each compared with its definition, and all of them
 * together, from the fused projection to packed rows, compared with rope and paged_prefill. */
#include "op/masked_softmax/masked_softmax.h"
#include "op/padding.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/rope/rope.h"

#include <math.h>

#include "op_test.h"

/* Sequences of the batch: one starts, one goes on, one decodes, one has nothing to do. */
enum {
    BS = 4,
    N_LAYERS = 2,
    LAYER = 1,
    N_HEADS = 4,
    N_KV_HEADS = 2,
    HEAD = 8,
    N_ALL = N_HEADS + 2 * N_KV_HEADS,
    MAX_Q = 6,
    MAX_KV = 17,
    MAX_SEQ = 20,
    MAX_POSITIONS = 32,
    N_TOKENS = 6 + 3 + 1,
    PAGE = 4,
    PAGES_EACH = MAX_SEQ / PAGE
};
static int32_t q_lens[BS] = {6, 3, 1, 0}, history[BS] = {0, 8, 16, 5};
#define SCALE (1 / sqrt((double)HEAD))

static tensor i32_tensor(int32_t *values, int64_t n)
{
    return tensor_1d(values, DTYPE_I32, n);
}

static double *at4(const tensor *view, int64_t a, int64_t b, int64_t c)
{
    return (double *)((char *)tensor_row2(view, a, b) + c * view->stride[2]);
}

/* --- the whole way --------------------------------------------------------------------------- */

typedef struct batch {
    tensor qkv, bias, cos_sin, k_cache, v_cache; /* caches: (N_LAYERS, BS, KV, MAX_SEQ, HEAD) */
    int32_t offsets[N_TOKENS], positions[N_TOKENS], sequence[N_TOKENS];
} batch;

static void make_batch(batch *all)
{
    all->qkv = random_tensor(DTYPE_F64, 1, SHAPE(N_TOKENS, N_ALL * HEAD));
    all->bias = random_tensor(DTYPE_F64, 2, SHAPE(N_ALL * HEAD));
    all->k_cache = random_tensor(DTYPE_F64, 3, SHAPE(N_LAYERS, BS, N_KV_HEADS, MAX_SEQ, HEAD));
    all->v_cache = random_tensor(DTYPE_F64, 4, SHAPE(N_LAYERS, BS, N_KV_HEADS, MAX_SEQ, HEAD));
    all->cos_sin = zeros(DTYPE_F32, SHAPE(MAX_POSITIONS, HEAD));
    for (int p = 0; p < MAX_POSITIONS; p++) {
        float *row = tensor_row(&all->cos_sin, p);
        for (int i = 0; i < HEAD / 2; i++) {
            double angle = p * pow(100, -2.0 * i / HEAD);
            row[i] = (float)cos(angle);
            row[HEAD / 2 + i] = (float)sin(angle);
        }
    }
    assert_int_equal(padding_offsets(q_lens, BS, MAX_Q, all->offsets), N_TOKENS);
    for (int b = 0, t = 0; b < BS; b++) {
        for (int i = 0; i < q_lens[b]; i++, t++) {
            all->positions[t] = history[b] + i;
            all->sequence[t] = b;
        }
    }
}

/* scores[b, h, q, i] = q[b, h, q] . k[b, h, i] */
static void multiply_keys(const tensor *q, const tensor *k, const tensor *scores)
{
    for (int64_t row = 0; row < BS * N_HEADS * MAX_Q; row++) {
        int64_t b = row / MAX_Q / N_HEADS, h = row / MAX_Q % N_HEADS, i = row % MAX_Q;
        for (int64_t j = 0; j < MAX_KV; j++) {
            double sum = 0;
            for (int d = 0; d < HEAD; d++)
                sum += at4(q, b, h, i)[d] * at4(k, b, h, j)[d];
            at4(scores, b, h, i)[j] = sum;
        }
    }
}

/* out[b, h, q] = sum_i p[b, h, q, i] v[b, h, i] */
static void multiply_values(const tensor *p, const tensor *v, const tensor *out)
{
    for (int64_t row = 0; row < BS * N_HEADS * MAX_Q; row++) {
        int64_t b = row / MAX_Q / N_HEADS, h = row / MAX_Q % N_HEADS, i = row % MAX_Q;
        for (int64_t j = 0; j < MAX_KV; j++) {
            for (int d = 0; d < HEAD; d++)
                at4(out, b, h, i)[d] += at4(p, b, h, i)[j] * at4(v, b, h, j)[d];
        }
    }
}

/* The padded engine; appends to the batch's caches; the result (N_TOKENS, N_HEADS * HEAD). */
static tensor attend_padded(batch *all, bool interleaved)
{
    tensor q = zeros(DTYPE_F64, SHAPE(BS, N_HEADS, MAX_Q, HEAD));
    tensor k = zeros(DTYPE_F64, SHAPE(BS, N_KV_HEADS, MAX_Q, HEAD)), v = k;
    v.data = zeros(DTYPE_F64, SHAPE(BS, N_KV_HEADS, MAX_Q, HEAD)).data;
    op_call pad = {.tensors = {all->qkv, all->bias, i32_tensor(all->offsets, N_TOKENS),
                               i32_tensor(all->positions, N_TOKENS), all->cos_sin, q, k, v},
                   .params = {interleaved}};
    run(&op_bias_pad_rope, &pad);

    op_call concat = {.tensors = {k, v, i32_tensor(q_lens, BS), i32_tensor(history, BS),
                                  all->k_cache, all->v_cache},
                      .params = {LAYER}};
    run(&op_concat_past_kv, &concat);

    int32_t kv_lens[BS];
    for (int b = 0; b < BS; b++)
        kv_lens[b] = history[b] + q_lens[b];
    tensor all_k = random_tensor(DTYPE_F64, 8, SHAPE(BS, N_HEADS, MAX_KV, HEAD));
    tensor all_v = random_tensor(DTYPE_F64, 9, SHAPE(BS, N_HEADS, MAX_KV, HEAD));
    op_call repeat = {
        .tensors = {all->k_cache, all->v_cache, i32_tensor(kv_lens, BS), all_k, all_v},
        .params = {LAYER}};
    run(&op_repeat_kv, &repeat);

    tensor scores = zeros(DTYPE_F64, SHAPE(BS, N_HEADS, MAX_Q, MAX_KV));
    tensor mask = zeros(DTYPE_F32, SHAPE(BS, MAX_Q, MAX_KV));
    masked_softmax_causal_mask(&mask, q_lens, history);
    multiply_keys(&q, &all_k, &scores);
    op_call softmax = {.tensors = {scores, mask, scores}, .params = {SCALE}};
    run(&op_masked_softmax, &softmax);

    tensor out = zeros(DTYPE_F64, SHAPE(BS, N_HEADS, MAX_Q, HEAD));
    multiply_values(&scores, &all_v, &out);
    tensor packed = zeros(DTYPE_F64, SHAPE(N_TOKENS, N_HEADS * HEAD));
    op_call unpad = {.tensors = {out, i32_tensor(all->offsets, N_TOKENS), packed}};
    run(&op_unpad, &unpad);
    return packed;
}

/* The same by packed rows and pages: sequence b has the pages b * PAGES_EACH + .... */
static tensor attend_paged(const batch *all, bool interleaved)
{
    tensor rows = random_tensor(DTYPE_F64, 0, SHAPE(N_TOKENS, N_ALL * HEAD));
    for (int64_t i = 0; i < N_TOKENS * N_ALL * HEAD; i++)
        ((double *)rows.data)[i] =
            ((double *)all->qkv.data)[i] + ((double *)all->bias.data)[i % (N_ALL * HEAD)];
    tensor q = tensor_split(tensor_slice(rows, 1, 0, N_HEADS * HEAD), 1, N_HEADS);
    tensor k =
        tensor_split(tensor_slice(rows, 1, N_HEADS * HEAD, N_KV_HEADS * HEAD), 1, N_KV_HEADS);
    tensor v = tensor_split(tensor_slice(rows, 1, (N_HEADS + N_KV_HEADS) * HEAD, N_KV_HEADS * HEAD),
                            1, N_KV_HEADS);
    op_call rope = {.tensors = {[ROPE_POSITIONS] = i32_tensor((int32_t *)all->positions, N_TOKENS),
                                [ROPE_Q] = q,
                                [ROPE_K] = k,
                                [ROPE_COS_SIN] = all->cos_sin},
                    .params = {interleaved}};
    run(&op_rope, &rope);

    tensor pages[2];
    int32_t qo_indptr[BS + 1] = {0}, kv_indptr[BS + 1] = {0}, last[BS], page_ids[BS * PAGES_EACH];
    for (int which = 0; which < 2; which++) {
        const tensor *cache = which ? &all->v_cache : &all->k_cache, *fresh = which ? &v : &k;
        pages[which] = zeros(DTYPE_F64, SHAPE(BS * PAGES_EACH, PAGE, N_KV_HEADS, HEAD));
        for (int row = 0; row < BS * MAX_SEQ * N_KV_HEADS; row++) {
            int b = row / N_KV_HEADS / MAX_SEQ, i = row / N_KV_HEADS % MAX_SEQ,
                h = row % N_KV_HEADS;
            double *to = at4(&pages[which], b * PAGES_EACH + i / PAGE, i % PAGE, h);
            memcpy(to,
                   (char *)tensor_row2(cache, LAYER, b) + h * cache->stride[2] +
                       i * cache->stride[3],
                   HEAD * sizeof *to);
        }
        for (int t = 0; t < N_TOKENS; t++) {
            int i = all->positions[t], page = all->sequence[t] * PAGES_EACH + i / PAGE;
            for (int h = 0; h < N_KV_HEADS; h++)
                memcpy(at4(&pages[which], page, i % PAGE, h), tensor_row2(fresh, t, h),
                       HEAD * sizeof(double));
        }
    }
    for (int b = 0, n = 0; b < BS; b++) {
        int length = history[b] + q_lens[b], count = (length + PAGE - 1) / PAGE;
        for (int i = 0; i < count; i++)
            page_ids[n++] = b * PAGES_EACH + i;
        qo_indptr[b + 1] = qo_indptr[b] + q_lens[b];
        kv_indptr[b + 1] = n;
        last[b] = length - (count - 1) * PAGE;
    }
    tensor out = zeros(DTYPE_F64, SHAPE(N_TOKENS, N_HEADS, HEAD));
    op_call attend = {.tensors = {q, pages[0], pages[1], i32_tensor(qo_indptr, BS + 1),
                                  i32_tensor(kv_indptr, BS + 1),
                                  i32_tensor(page_ids, kv_indptr[BS]), i32_tensor(last, BS), out},
                      .params = {[PAGED_PREFILL_CAUSAL] = 1}};
    run(&op_paged_prefill, &attend);
    return out;
}

static void assert_close(const double *a, const double *b, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs(a[i] - b[i]) <= tolerance))
            fail_msg("element %lld: %.17g and %.17g", (long long)i, a[i], b[i]);
    }
}

static void padded_attention_is_paged_attention(void **state)
{
    (void)state;
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        batch all;
        make_batch(&all);
        tensor paged = attend_paged(&all, interleaved);
        tensor padded = attend_padded(&all, interleaved);
        assert_close(padded.data, paged.data, N_TOKENS * N_HEADS * HEAD, 1e-13);
    }
}

/* --- one by one ------------------------------------------------------------------------------ */

static void padding_counts_the_empty_slots(void **state)
{
    (void)state;
    int32_t lengths[3] = {2, 0, 3}, offsets[5];
    assert_int_equal(padding_offsets(lengths, 3, 4, offsets), 5);
    const int32_t expected[5] = {0, 0, 6, 6, 6};
    assert_memory_equal(offsets, expected, sizeof offsets);
    const int64_t tokens[12] = {0, 1, -1, -1, -1, -1, -1, -1, 2, 3, 4, -1};
    for (int64_t slot = 0; slot < 12; slot++)
        assert_int_equal(padding_token(offsets, 5, slot), tokens[slot]);
    assert_int_equal(padding_token(offsets, 0, 0), -1);
}

static void padding_is_zeros(void **state)
{
    (void)state;
    batch all;
    make_batch(&all);
    tensor q = random_tensor(DTYPE_F64, 5, SHAPE(BS, N_HEADS, MAX_Q, HEAD));
    tensor k = random_tensor(DTYPE_F64, 6, SHAPE(BS, N_KV_HEADS, MAX_Q, HEAD));
    tensor v = random_tensor(DTYPE_F64, 7, SHAPE(BS, N_KV_HEADS, MAX_Q, HEAD));
    op_call pad = {.tensors = {all.qkv,
                               {0},
                               i32_tensor(all.offsets, N_TOKENS),
                               i32_tensor(all.positions, N_TOKENS),
                               all.cos_sin,
                               q,
                               k,
                               v}};
    run(&op_bias_pad_rope, &pad);
    const tensor *outputs[3] = {&q, &k, &v};
    for (int which = 0; which < 3; which++) {
        for (int b = 0; b < BS; b++) {
            for (int s = 0; s < MAX_Q; s++) {
                double sum = 0;
                for (int i = 0; i < HEAD; i++)
                    sum += fabs(at4(outputs[which], b, 1, s)[i]);
                assert_true(s < q_lens[b] ? sum > 0.1 : sum == 0);
            }
        }
    }
    /* A value head is copied: sequence 1's second token is the eighth of all. */
    const double *row = tensor_row(&all.qkv, 7);
    assert_memory_equal(at4(&v, 1, 1, 1), row + (N_HEADS + N_KV_HEADS + 1) * HEAD,
                        HEAD * sizeof(double));
}

/* The teaching engine's mask hid the history. */
static void masks_show_history_and_hide_the_future(void **state)
{
    (void)state;
    int32_t lengths[2] = {2, 1}, past[2] = {0, 3};
    float mask[2][2][5];
    tensor view = tensor_3d(mask, DTYPE_F32, 2, 2, 5);
    masked_softmax_causal_mask(&view, lengths, past);
    const float expected[2][2][5] = {{{1, 0, 0, 0, 0}, {1, 1, 0, 0, 0}},
                                     {{1, 1, 1, 1, 0}, {0, 0, 0, 0, 0}}};
    assert_memory_equal(mask, expected, sizeof mask);
}

static void masked_softmax_of_known_rows(void **state)
{
    (void)state;
    double scores[3][4] = {{0, log(3), 99, 0}, {NAN, 1, 2, 3}, {-INFINITY, -INFINITY, 5, 5}};
    float mask[3][4] = {{1, 1, 0, 0}, {0, 0, 0, 0}, {1, 1, 0, 0}};
    tensor view = tensor_make(scores, DTYPE_F64, SHAPE(1, 1, 3, 4));
    op_call call = {.tensors = {view, tensor_3d(mask, DTYPE_F32, 1, 3, 4), view}, .params = {1}};
    run(&op_masked_softmax, &call);
    const double expected[3][4] = {{0.25, 0.75, 0, 0}, {0}, {0}};
    assert_close(scores[0], expected[0], 12, 1e-15);

    call.params[MASKED_SOFTMAX_SCALE] = 0;
    assert_refused(&op_masked_softmax, &call, "scale");
}

static void the_parts_make_a_softmax(void **state)
{
    (void)state;
    double x[2][3] = {{1000, 1001, 1002}, {-INFINITY, -INFINITY, -INFINITY}}, max[2];
    tensor view = tensor_2d(x, DTYPE_F64, 2, 3), maxima = tensor_1d(max, DTYPE_F64, 2);
    run(&op_reduce_max, &(op_call){.tensors = {view, maxima}});
    assert_true(max[0] == 1002 && max[1] == -INFINITY);
    run(&op_exp, &(op_call){.tensors = {view, maxima, view}, .params = {1}});
    run(&op_normalize, &(op_call){.tensors = {view, view}});
    const double expected[6] = {0.09003057317038046, 0.24472847105479767, 0.6652409557748219};
    assert_close(x[0], expected, 6, 1e-15);
}

/* Without a bias, and in place, it is add_rms_norm. */
static void add_residual_rms_norm_is_add_rms_norm(void **state)
{
    (void)state;
    enum { ROWS = 5, SIZE = 48 };
    tensor x = random_tensor(DTYPE_F64, 1, SHAPE(ROWS, SIZE)),
           residual = random_tensor(DTYPE_F64, 2, SHAPE(ROWS, SIZE));
    tensor same_x = random_tensor(DTYPE_F64, 1, SHAPE(ROWS, SIZE));
    tensor same_residual = random_tensor(DTYPE_F64, 2, SHAPE(ROWS, SIZE));
    tensor weight = random_tensor(DTYPE_F64, 3, SHAPE(SIZE)),
           bias = random_tensor(DTYPE_F64, 4, SHAPE(SIZE));
    run(&op_add_residual_rms_norm,
        &(op_call){.tensors = {x, {0}, residual, weight, x}, .params = {1e-5}});
    run(&op_add_rms_norm, &(op_call){.tensors = {same_x, same_residual, weight}, .params = {1e-5}});
    assert_close(x.data, same_x.data, ROWS * SIZE, 1e-14);
    assert_close(residual.data, same_residual.data, ROWS * SIZE, 0);

    run(&op_add_residual_rms_norm,
        &(op_call){.tensors = {x, bias, residual, weight, x}, .params = {1e-5}});
    double expected = ((double *)same_residual.data)[SIZE + 3] + ((double *)same_x.data)[SIZE + 3] +
                      ((double *)bias.data)[3];
    assert_close((double *)residual.data + SIZE + 3, &expected, 1, 1e-14);
}

static void bad_indices_are_refused(void **state)
{
    (void)state;
    batch all;
    make_batch(&all);
    tensor x = zeros(DTYPE_F64, SHAPE(BS, N_HEADS, MAX_Q, HEAD));
    tensor out = zeros(DTYPE_F64, SHAPE(N_TOKENS, N_HEADS * HEAD));
    op_call unpad = {.tensors = {x, i32_tensor(all.offsets, N_TOKENS), out}};
    all.offsets[4] = -1;
    assert_refused(&op_unpad, &unpad, "padding_offsets[4]");
    all.offsets[4] = 0;
    all.offsets[N_TOKENS - 1] = BS * MAX_Q;
    assert_refused(&op_unpad, &unpad, "24 slots");

    tensor k = zeros(DTYPE_F64, SHAPE(BS, N_KV_HEADS, MAX_Q, HEAD));
    int32_t lengths[BS] = {1, 1, 7, 1}, past[BS] = {0, 0, 0, MAX_SEQ};
    op_call concat = {
        .tensors = {k, k, i32_tensor(lengths, BS), i32_tensor(past, BS), all.k_cache, all.v_cache},
        .params = {N_LAYERS}};
    assert_refused(&op_concat_past_kv, &concat, "layer");
    concat.params[0] = 0;
    assert_refused(&op_concat_past_kv, &concat, "q_lens[2]");
    lengths[2] = 6;
    assert_refused(&op_concat_past_kv, &concat, "history[3]");

    tensor repeated = zeros(DTYPE_F64, SHAPE(BS, 3, MAX_KV, HEAD));
    op_call repeat = {
        .tensors = {all.k_cache, all.v_cache, i32_tensor(lengths, BS), repeated, repeated}};
    assert_refused(&op_repeat_kv, &repeat, "multiple");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(padded_attention_is_paged_attention),
        op_test(padding_counts_the_empty_slots),
        op_test(padding_is_zeros),
        op_test(masks_show_history_and_hide_the_future),
        op_test(masked_softmax_of_known_rows),
        op_test(the_parts_make_a_softmax),
        op_test(add_residual_rms_norm_is_add_rms_norm),
        op_test(bad_indices_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
