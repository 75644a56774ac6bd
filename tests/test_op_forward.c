/* The operators of the forward pass except attention, compared with values computed by hand and
 * with torch's in float64, and checked for properties that hold for any input. */
#include "op/all_reduce/all_reduce.h"
#include "op/embedding/embedding.h"
#include "op/linear/linear.h"
#include "op/rms_norm/rms_norm.h"
#include "op/rope/rope.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op_test.h"

#include "golden/op_forward.inc"

static const dtype weight_types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0,
                                     DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q2_K, DTYPE_Q3_K,
                                     DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
enum { N_WEIGHT_TYPES = sizeof weight_types / sizeof *weight_types };

static const dtype float_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64};
enum { N_FLOAT_TYPES = sizeof float_types / sizeof *float_types };

/* A view of a matrix's columns [begin, begin + count). */
static tensor columns(tensor view, int64_t begin, int64_t count)
{
    return tensor_slice(view, view.rank - 1, begin, count);
}

static void embedding_takes_rows_of_every_type(void **state)
{
    (void)state;
    for (int t = 0; t < N_WEIGHT_TYPES; t++) {
        tensor table = random_tensor(weight_types[t], 3, SHAPE(9, 512));
        tensor ids = INDICES(8, 0, 3, 3);
        tensor out = zeros(DTYPE_F32, SHAPE(4, 512));
        op_call call = {.tensors = {ids, columns(table, 0, 256), columns(out, 256, 256)}};
        run(&op_embedding, &call);
        for (int64_t row = 0; row < 4; row++) {
            float expected[256];
            int32_t id = ((const int32_t *)ids.data)[row];
            dtype_decode(table.type, tensor_row(&table, id), expected, 256);
            const float *found = tensor_row(&out, row);
            assert_memory_equal(found + 256, expected, sizeof expected);
            for (int i = 0; i < 256; i++)
                assert_true(found[i] == 0);
        }
    }
}

static void embedding_gathers_float64_rows_exactly(void **state)
{
    (void)state;
    tensor table = random_tensor(DTYPE_F64, 5, SHAPE(3, 7)), out = zeros(DTYPE_F64, SHAPE(1, 7));
    ((double *)table.data)[14] = 1 + 0x1p-50;
    op_call call = {.tensors = {INDICES(2), table, out}};
    run(&op_embedding, &call);
    assert_memory_equal(out.data, tensor_row(&table, 2), 7 * sizeof(double));
}

static void embedding_refuses_ids_outside_the_table(void **state)
{
    (void)state;
    tensor table = zeros(DTYPE_F32, SHAPE(4, 8)), out = zeros(DTYPE_F32, SHAPE(2, 8));
    op_call call = {.tensors = {INDICES(0, 4), table, out}};
    assert_refused(&op_embedding, &call, "ids[1] = 4 is outside the table of 4 rows");
    call.tensors[EMBEDDING_IDS] = INDICES(-1, 0);
    assert_refused(&op_embedding, &call, "ids[0] = -1");
    call.tensors[EMBEDDING_IDS].data = NULL; /* a plan's view */
    assert_binds(&op_embedding, &call);
}

static void rms_norm_agrees_with_torch(void **state)
{
    (void)state;
    tensor x = golden_tensor(DTYPE_F32, 1, SHAPE(3, 20));
    tensor weight = golden_tensor(DTYPE_F32, 3, SHAPE(20)), out = zeros(DTYPE_F64, SHAPE(3, 20));
    op_call call = {.tensors = {x, weight, out}, .params = {1e-5}};
    run(&op_rms_norm, &call);
    assert_near(&out, golden_rms_norm, 1e-15);
}

static void rms_norm_by_hand(void **state)
{
    (void)state;
    tensor x = zeros(DTYPE_F32, SHAPE(2, 2)), weight = zeros(DTYPE_F32, SHAPE(2));
    memcpy(x.data, (float[]){3, 4, 0, 0}, 16);
    memcpy(weight.data, (float[]){5, -10}, 8);
    op_call call = {.tensors = {x, weight, x}, .params = {0}};
    call.params[RMS_NORM_EPS] = 0.25; /* (9 + 16) / 2 + 0.25 = 12.75 */
    run(&op_rms_norm, &call);
    assert_near(&x, (double[]){15 / sqrt(12.75), -40 / sqrt(12.75), 0, 0}, 1e-7);
}

static void add_rms_norm_agrees_with_torch(void **state)
{
    (void)state;
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        dtype type = float_types[t];
        tensor x = golden_tensor(type, 1, SHAPE(3, 20));
        tensor residual = golden_tensor(type, 2, SHAPE(3, 20));
        op_call call = {.tensors = {x, residual, golden_tensor(type, 3, SHAPE(20))},
                        .params = {1e-5}};
        run(&op_add_rms_norm, &call);
        double tolerance = type == DTYPE_F64   ? 1e-15
                           : type == DTYPE_F32 ? 1e-7
                           : type == DTYPE_F16 ? 0x1p-11
                                               : 0x1p-8;
        assert_near(&x, golden_add_rms_norm, tolerance);
        assert_near(&residual, golden_add, tolerance);
    }
}

/* The norm must see the sum that was not rounded to the residual's type. */
static void add_rms_norm_keeps_what_the_residual_cannot(void **state)
{
    (void)state;
    tensor x = zeros(DTYPE_F32, SHAPE(1, 2)), residual = zeros(DTYPE_BF16, SHAPE(1, 2));
    tensor weight = zeros(DTYPE_F32, SHAPE(2));
    for (int i = 0; i < 2; i++) {
        ((float *)x.data)[i] = i ? 3 : 0;
        ((float *)weight.data)[i] = 256;
        element_store(DTYPE_BF16, residual.data, i, 512);
    }
    op_call call = {.tensors = {x, residual, weight}, .params = {0}};
    run(&op_add_rms_norm, &call);
    double scale = 256 / sqrt((512. * 512 + 515. * 515) / 2);
    assert_true(element_load(DTYPE_BF16, residual.data, 1) == 516); /* the nearest BF16 to 515 */
    assert_near(&x, (double[]){512 * scale, 515 * scale}, 1e-7);
}

static void silu_and_mul_agrees_with_torch(void **state)
{
    (void)state;
    tensor x = golden_tensor(DTYPE_F32, 4, SHAPE(3, 26)), out = zeros(DTYPE_F64, SHAPE(3, 13));
    op_call call = {.tensors = {x, out}, .params = {1}}; /* alpha */
    run_cut(&op_silu_and_mul, &call, 1);
    assert_near(&out, golden_silu_and_mul, 1e-15);

    tensor first_half = columns(x, 0, 13), up = copy_of(&x);
    call.tensors[SILU_AND_MUL_OUT] = first_half;
    run_cut(&op_silu_and_mul, &call, 2);
    assert_near(&first_half, golden_silu_and_mul, 1e-7);
    up = columns(up, 13, 13);
    tensor after = columns(x, 13, 13);
    assert_same_bits(&after, &up);
}

static void silu_and_mul_at_extremes(void **state)
{
    (void)state;
    tensor x = zeros(DTYPE_F32, SHAPE(1, 10)), out = zeros(DTYPE_F32, SHAPE(1, 5));
    float gates[] = {1e30f, -1e30f, 0, NAN, INFINITY};
    for (int i = 0; i < 5; i++) {
        ((float *)x.data)[i] = gates[i];
        ((float *)x.data)[5 + i] = 2;
    }
    op_call call = {.tensors = {x, out}, .params = {1}};
    run(&op_silu_and_mul, &call);
    const float *found = out.data;
    assert_true(found[0] == 2e30f && found[1] == 0 && found[2] == 0);
    assert_true(isnan(found[3]) && found[4] == INFINITY);
}

static void linear_agrees_with_torch(void **state)
{
    (void)state;
    tensor x = golden_tensor(DTYPE_F32, 5, SHAPE(3, 19));
    tensor weight = golden_tensor(DTYPE_BF16, 6, SHAPE(7, 19));
    tensor bias = golden_tensor(DTYPE_F16, 7, SHAPE(7));
    tensor out = golden_tensor(DTYPE_F64, 8, SHAPE(3, 7)); /* the residual, in place */
    op_call call = {.tensors = {x, weight, bias, out, out}};
    run_cut(&op_linear, &call, 3);
    assert_near(&out, golden_linear, 1e-15);
}

/* out[row, feature] the slow way. */
static double naive_dot(const tensor *x, const tensor *weight, int64_t row, int64_t feature)
{
    float *w = arena_alloc(&memory, (size_t)x->shape[1], sizeof *w);
    dtype_decode(weight->type, tensor_row(weight, feature), w, x->shape[1]);
    double sum = 0;
    for (int64_t i = 0; i < x->shape[1]; i++)
        sum += w[i] * element_load(x->type, tensor_row(x, row), i);
    return sum;
}

static void check_linear(dtype x_type, dtype weight_type)
{
    tensor x = random_tensor(x_type, 11, SHAPE(3, 520));
    tensor weight = random_tensor(weight_type, 12, SHAPE(21, 1024));
    tensor wide = zeros(DTYPE_F64, SHAPE(3, 30)), out = columns(wide, 5, 21);
    x = columns(x, 4, 512);
    weight = columns(weight, 256, 512);
    op_call call = {.tensors = {[LINEAR_X] = x, [LINEAR_WEIGHT] = weight, [LINEAR_OUT] = out}};
    run(&op_linear, &call);
    double expected[63], norm = 0;
    for (int64_t row = 0; row < 3; row++) {
        for (int64_t feature = 0; feature < 21; feature++) {
            double value = naive_dot(&x, &weight, row, feature);
            expected[row * 21 + feature] = value;
            norm = fabs(value) > norm ? fabs(value) : norm;
        }
    }
    assert_near(&out, expected, 1e-13 * (1 + norm));
    for (int64_t row = 0; row < 3; row++) {
        for (int64_t i = 0; i < 30; i++)
            assert_true((i >= 5 && i < 26) ||
                        element_load(DTYPE_F64, tensor_row(&wide, row), i) == 0);
    }
}

static void linear_agrees_with_a_plain_sum_for_every_type(void **state)
{
    (void)state;
    for (int t = 0; t < N_WEIGHT_TYPES; t++) {
        for (int x = 0; x < N_FLOAT_TYPES; x++)
            check_linear(float_types[x], weight_types[t]);
    }
}

static void linear_rows_do_not_depend_on_batch_or_slice(void **state)
{
    (void)state;
    tensor x = random_tensor(DTYPE_F32, 21, SHAPE(19, 576));
    tensor weight = random_tensor(DTYPE_Q4_1, 22, SHAPE(45, 576));
    tensor whole = zeros(DTYPE_F32, SHAPE(19, 45)), cut = zeros(DTYPE_F32, SHAPE(19, 45));
    op_call call = {.tensors = {[LINEAR_X] = x, [LINEAR_WEIGHT] = weight, [LINEAR_OUT] = whole}};
    run(&op_linear, &call);
    call.tensors[LINEAR_OUT] = cut;
    for (uint64_t seed = 0; seed < 5; seed++) {
        memset(cut.data, 0, tensor_bytes(&cut));
        run_cut(&op_linear, &call, seed);
        assert_same_bits(&cut, &whole);
    }
    memset(cut.data, 0, tensor_bytes(&cut));
    for (int64_t row = 0; row < 19; row++) {
        call.tensors[LINEAR_X] = tensor_slice(x, 0, row, 1);
        call.tensors[LINEAR_OUT] = tensor_slice(cut, 0, row, 1);
        run(&op_linear, &call);
    }
    assert_same_bits(&cut, &whole);
}

static void linear_refuses_shapes_that_do_not_fit(void **state)
{
    (void)state;
    op_call call = {.tensors = {[LINEAR_X] = zeros(DTYPE_F32, SHAPE(2, 64)),
                                [LINEAR_WEIGHT] = zeros(DTYPE_Q8_0, SHAPE(3, 96)),
                                [LINEAR_OUT] = zeros(DTYPE_F32, SHAPE(2, 3))}};
    assert_refused(&op_linear, &call, "weight must be [out_features, in_features]");
    call.tensors[LINEAR_WEIGHT] = zeros(DTYPE_Q8_0, SHAPE(3, 64));
    assert_binds(&op_linear, &call);
    call.tensors[LINEAR_BIAS] = zeros(DTYPE_F32, SHAPE(4));
    assert_refused(&op_linear, &call, "bias");
    call.tensors[LINEAR_BIAS] = (tensor){0};
    call.tensors[LINEAR_X].shape[1] = call.tensors[LINEAR_WEIGHT].shape[1] = 48;
    assert_refused(&op_linear, &call, "whole blocks of Q8_0");
}

static op_call rope_call(bool interleaved)
{
    return (op_call){.tensors = {INDICES(2, 0, 4), golden_tensor(DTYPE_F64, 9, SHAPE(3, 2, 8)),
                                 golden_tensor(DTYPE_F64, 10, SHAPE(3, 1, 8)),
                                 golden_tensor(DTYPE_F32, 11, SHAPE(5, 6))},
                     .params = {interleaved}};
}

static void rope_agrees_with_transformers(void **state)
{
    (void)state;
    op_call call = rope_call(false);
    run(&op_rope, &call);
    assert_near(&call.tensors[ROPE_Q], golden_rope_neox_q, 1e-15);
    assert_near(&call.tensors[ROPE_K], golden_rope_neox_k, 1e-15);
    call = rope_call(true);
    run_cut(&op_rope, &call, 4);
    assert_near(&call.tensors[ROPE_Q], golden_rope_interleaved_q, 1e-15);
    assert_near(&call.tensors[ROPE_K], golden_rope_interleaved_k, 1e-15);
}

/* A table of true cosines and sines, as a model makes it. */
static tensor rotations(int64_t max_positions, int64_t rotary_dim)
{
    tensor table = zeros(DTYPE_F32, SHAPE(max_positions, rotary_dim));
    for (int64_t p = 0; p < max_positions; p++) {
        float *row = tensor_row(&table, p);
        for (int64_t i = 0; i < rotary_dim / 2; i++) {
            double angle = (double)p * pow(10000, -2. * (double)i / (double)rotary_dim);
            row[i] = (float)cos(angle);
            row[rotary_dim / 2 + i] = (float)sin(angle);
        }
    }
    return table;
}

static double dot_of(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* What rope is for: lengths stay, and scores depend on distances alone. */
static void rope_keeps_lengths_and_scores_of_distances(void **state)
{
    (void)state;
    enum { N = 12, D = 64 };
    tensor same_q = random_tensor(DTYPE_F64, 31, SHAPE(1, 1, D));
    tensor same_k = random_tensor(DTYPE_F64, 32, SHAPE(1, 1, D));
    tensor q = zeros(DTYPE_F64, SHAPE(N, 1, D)), k = zeros(DTYPE_F64, SHAPE(N, 1, D));
    tensor positions = zeros(DTYPE_I32, SHAPE(N));
    for (int t = 0; t < N; t++) {
        memcpy(tensor_row(&q, t), same_q.data, D * sizeof(double));
        memcpy(tensor_row(&k, t), same_k.data, D * sizeof(double));
        ((int32_t *)positions.data)[t] = 100 + 7 * t;
    }
    op_call call = {.tensors = {positions, q, k, rotations(400, D)}};
    run(&op_rope, &call);
    double length = dot_of(same_q.data, same_q.data, D);
    double score = dot_of(tensor_row(&q, 3), tensor_row(&k, 0), D);
    for (int t = 0; t < N; t++) {
        const double *row = tensor_row(&q, t);
        assert_true(fabs(dot_of(row, row, D) - length) < 1e-5 * length);
        if (t < 3) continue;
        assert_true(fabs(dot_of(row, tensor_row(&k, t - 3), D) - score) < 1e-4);
    }
}

/* The pairings are one rotation under a permutation of the elements; views into fused qkv rows. */
static void rope_pairings_are_permutations(void **state)
{
    (void)state;
    enum { N = 5, H = 3, K = 1, D = 32, ROTARY = 24, ROW = (H + 2 * K) * D };
    tensor neox = random_tensor(DTYPE_F32, 33, SHAPE(N, ROW));
    tensor pairs = zeros(DTYPE_F32, SHAPE(N, ROW)), before = copy_of(&neox);
    int from[D];
    for (int i = 0; i < D; i++)
        from[i] = i >= ROTARY ? i : i % 2 ? ROTARY / 2 + i / 2 : i / 2;
    for (int64_t i = 0; i < N * ROW; i++)
        ((float *)pairs.data)[i] = ((const float *)neox.data)[i / D * D + from[i % D]];
    op_call call = {.tensors = {INDICES(0, 9, 3, 3, 1), [ROPE_COS_SIN] = rotations(10, ROTARY)}};
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        tensor rows = interleaved ? pairs : neox;
        call.tensors[ROPE_Q] = tensor_split(columns(rows, 0, H * D), 1, H);
        call.tensors[ROPE_K] = tensor_split(columns(rows, H * D, K * D), 1, K);
        call.params[ROPE_INTERLEAVED] = interleaved;
        run(&op_rope, &call);
    }
    const float *a = neox.data, *b = pairs.data, *was = before.data;
    for (int64_t i = 0; i < N * ROW; i++) {
        assert_true(b[i] == a[i / D * D + from[i % D]]);
        bool turns = i % ROW < (H + K) * D && i % D < ROTARY && i >= ROW; /* token 0: position 0 */
        assert_true(turns || a[i] == was[i]);
    }
}

static void rope_refuses_what_the_table_lacks(void **state)
{
    (void)state;
    op_call call = rope_call(false);
    call.tensors[ROPE_POSITIONS] = INDICES(0, 1, 5);
    assert_refused(&op_rope, &call, "positions[2] = 5 is outside the table of 5 positions");
    call = rope_call(false);
    call.tensors[ROPE_COS_SIN] = zeros(DTYPE_F32, SHAPE(5, 10));
    assert_refused(&op_rope, &call, "rotary_dim must be even and at most head_dim 8, found 10");
    call.tensors[ROPE_COS_SIN] = zeros(DTYPE_F32, SHAPE(5, 3));
    assert_refused(&op_rope, &call, "found 3");
}

static void add_in_place_and_cut(void **state)
{
    (void)state;
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        tensor a = golden_tensor(float_types[t], 1, SHAPE(3, 20));
        tensor b = golden_tensor(DTYPE_F32, 2, SHAPE(3, 20));
        op_call call = {.tensors = {a, b, a}};
        run_cut(&op_add, &call, (uint64_t)t);
        assert_near(&a, golden_add, float_types[t] == DTYPE_BF16 ? 0x1p-8 : 0x1p-11);
    }
}

static void all_reduce_adds_in_the_order_of_ranks(void **state)
{
    (void)state;
    tensor parts = zeros(DTYPE_F32, SHAPE(3, 1, 4)), out = zeros(DTYPE_F64, SHAPE(1, 4));
    float values[] = {1, 0x1p60f, 5, -1, 2, -0x1p60f, NAN, 1, 3, 1, 0, 0.5f};
    memcpy(parts.data, values, sizeof values);
    op_call call = {.tensors = {parts, out}};
    run_cut(&op_all_reduce, &call, 5);
    const double *found = out.data;
    assert_true(found[0] == 6 && found[1] == 1 && isnan(found[2]) && found[3] == 0.5);

    tensor first = tensor_1d(parts.data, DTYPE_F32, 4);
    call.tensors[ALL_REDUCE_OUT] = tensor_split(first, 0, 1);
    run(&op_all_reduce, &call);
    assert_true(((const float *)parts.data)[0] == 6 && ((const float *)parts.data)[4] == 2);
}

static void all_reduce_is_free_at_one_rank(void **state)
{
    (void)state;
    tensor x = random_tensor(DTYPE_F32, 6, SHAPE(1, 3, 5)), was = copy_of(&x);
    tensor rows = tensor_2d(x.data, DTYPE_F32, 3, 5), copy = zeros(DTYPE_F32, SHAPE(3, 5));
    op_call call = {.tensors = {x, rows}};
    run(&op_all_reduce, &call);
    assert_same_bits(&x, &was);
    call.tensors[ALL_REDUCE_OUT] = copy;
    run(&op_all_reduce, &call);
    assert_same_bits(&copy, &rows);
    call.tensors[ALL_REDUCE_PARTS] = zeros(DTYPE_F32, SHAPE(0, 3, 5));
    assert_refused(&op_all_reduce, &call, "at least one rank");
}

/* Whole products of large matrices overflow 32 bits in bytes and FLOPs; the cost must not. */
static void costs_follow_the_shapes(void **state)
{
    (void)state;
    op_call call = {.tensors = {[LINEAR_X] = tensor_2d(NULL, DTYPE_F32, 512, 4096),
                                [LINEAR_WEIGHT] = tensor_2d(NULL, DTYPE_Q4_0, 128256, 4096),
                                [LINEAR_OUT] = tensor_2d(NULL, DTYPE_F32, 512, 128256)}};
    assert_binds(&op_linear, &call);
    op_cost cost = op_cost_of(&op_linear, &call);
    assert_true(cost.flops == 2. * 512 * 4096 * 128256);
    assert_true(cost.bytes == 4. * 512 * (4096 + 128256) + 128256. * 4096 / 32 * 18);

    call = (op_call){.tensors = {tensor_1d(NULL, DTYPE_I32, 3), tensor_2d(NULL, DTYPE_F16, 999, 64),
                                 tensor_2d(NULL, DTYPE_F32, 3, 64)}};
    assert_true(op_cost_of(&op_embedding, &call).bytes == 3 * (4 + 64. * (2 + 4)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(embedding_takes_rows_of_every_type),
        op_test(embedding_gathers_float64_rows_exactly),
        op_test(embedding_refuses_ids_outside_the_table),
        op_test(rms_norm_agrees_with_torch),
        op_test(rms_norm_by_hand),
        op_test(add_rms_norm_agrees_with_torch),
        op_test(add_rms_norm_keeps_what_the_residual_cannot),
        op_test(silu_and_mul_agrees_with_torch),
        op_test(silu_and_mul_at_extremes),
        op_test(linear_agrees_with_torch),
        op_test(linear_agrees_with_a_plain_sum_for_every_type),
        op_test(linear_rows_do_not_depend_on_batch_or_slice),
        op_test(linear_refuses_shapes_that_do_not_fit),
        op_test(rope_agrees_with_transformers),
        op_test(rope_keeps_lengths_and_scores_of_distances),
        op_test(rope_pairings_are_permutations),
        op_test(rope_refuses_what_the_table_lacks),
        op_test(add_in_place_and_cut),
        op_test(all_reduce_adds_in_the_order_of_ranks),
        op_test(all_reduce_is_free_at_one_rank),
        op_test(costs_follow_the_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
