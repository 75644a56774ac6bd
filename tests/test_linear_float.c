/* The variants of linear for float weights: close to the reference, with the same bits however rows
 * and features are cut and for all vector variants; weights are also packed in parts. */
#include "op_test.h"

#include "base/checked.h"
#include "base/cpu.h"
#include "op/linear/linear.h"

#include <math.h>

typedef struct shape {
    int64_t n_rows, in_features, out_features;
    bool bias, residual;
} shape;

static const dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_128};
static const shape shapes[] = {
    {1, 64, 48, false, false},    {1, 111, 19, true, false},   {2, 600, 33, false, true},
    {3, 257, 32, true, true},     {7, 500, 65, false, false},  {12, 256, 40, true, false},
    {13, 300, 300, false, true},  {40, 513, 70, true, true},   {300, 270, 37, false, false},
    {541, 33, 290, false, false}, {5, 0, 35, true, true},      {0, 64, 8, false, false},
    {1, 1, 1, false, false},      {1, 1280, 97, true, false},  {1, 640, 30, false, true},
    {4, 384, 66, true, true},     {90, 640, 600, true, false},
};

enum { N_TYPES = sizeof types / sizeof *types, N_SHAPES = sizeof shapes / sizeof *shapes };

/* Whether rows are whole blocks of the type. */
static bool fits(const shape *s, dtype type)
{
    return s->in_features % dtype_block_elements(type) == 0;
}

static op_call make_call(const shape *s, dtype type)
{
    op_call call = {0};
    call.tensors[LINEAR_X] = random_tensor(DTYPE_F32, 1, SHAPE(s->n_rows, s->in_features));
    call.tensors[LINEAR_WEIGHT] = random_tensor(type, 2, SHAPE(s->out_features, s->in_features));
    if (s->bias) call.tensors[LINEAR_BIAS] = random_tensor(DTYPE_F32, 3, SHAPE(s->out_features));
    if (s->residual)
        call.tensors[LINEAR_RESIDUAL] =
            random_tensor(DTYPE_F32, 4, SHAPE(s->n_rows, s->out_features));
    call.tensors[LINEAR_OUT] = zeros(DTYPE_F32, SHAPE(s->n_rows, s->out_features));
    memset(call.tensors[LINEAR_OUT].data, 0xff, tensor_bytes(&call.tensors[LINEAR_OUT]));
    assert_binds(&op_linear, &call);
    return call;
}

/* In shares that begin at multiples of pack_units, the last first, over poisoned memory. */
static void pack(op_call *call, const op_variant *variant)
{
    int64_t units = op_linear.units(call), step = 3 * variant->pack_units;
    size_t bytes = variant->packed_bytes(call);
    void *packed = arena_alloc(&memory, bytes + 64, 1);
    packed = (void *)round_up((uintptr_t)packed, 64);
    memset(packed, 0xff, bytes);
    for (int64_t begin = (units - 1) / step * step; begin >= 0; begin -= step) {
        call->begin = begin;
        call->end = begin + step < units ? begin + step : units;
        variant->pack(call, packed);
    }
    call->packed = packed;
}

/* Units [begin, end), scratch full of NaNs and no larger than asked for. */
static void run_part(const op_variant *variant, const op_call *call, int64_t begin, int64_t end)
{
    op_call slice = *call;
    size_t bytes = variant->scratch_bytes(call);
    slice.begin = begin;
    slice.end = end;
    slice.scratch = bytes ? aligned_alloc(64, bytes) : NULL;
    if (slice.scratch) memset(slice.scratch, 0xff, bytes);
    variant->kernel(&slice);
    free(slice.scratch);
}

static void run_all(const op_variant *variant, op_call *call)
{
    pack(call, variant);
    run_part(variant, call, 0, op_linear.units(call));
}

/* The usable variants that accept the call, in turn from *at; NULL after the last. */
static const op_variant *next_variant(const op_call *call, int *at)
{
    uint32_t features = cpu_features(0);
    for (; op_linear.variants[*at].name; ++*at) {
        const op_variant *variant = &op_linear.variants[*at];
        if ((variant->needs & ~features) == 0 && variant->accepts(call)) {
            ++*at;
            return variant;
        }
    }
    return NULL;
}

static void assert_close_to_oracle(const op_call *call)
{
    op_call oracle = *call;
    const tensor *out = &call->tensors[LINEAR_OUT];
    oracle.tensors[LINEAR_OUT] = zeros(DTYPE_F64, out->rank, out->shape);
    run(&op_linear, &oracle);
    double n = (double)call->tensors[LINEAR_X].shape[1], error = 0, norm = 0;
    for (int64_t i = 0; i < tensor_elements(out); i++) {
        double expected = ((double *)oracle.tensors[LINEAR_OUT].data)[i];
        double off = element_load(DTYPE_F32, out->data, i) - expected;
        error += off * off;
        norm += expected * expected;
    }
    if (!(sqrt(error) <= 2e-7 * sqrt(n < 256 ? 1 + n : 256) * sqrt(norm)))
        fail_msg("relative error %g", sqrt(error / norm));
}

static void test_values(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        for (int s = 0; s < N_SHAPES; s++) {
            if (!fits(&shapes[s], types[t])) continue;
            op_call call = make_call(&shapes[s], types[t]);
            tensor first = {0};
            int at = 0;
            for (const op_variant *v; (v = next_variant(&call, &at));) {
                run_all(v, &call);
                assert_close_to_oracle(&call);
                /* SSE2 has no fused multiply-add. */
                if (v->needs & CPU_AMX_BF16 || strcmp(v->name, "sse2") == 0) continue;
                if (first.data) assert_same_bits(&first, &call.tensors[LINEAR_OUT]);
                first = copy_of(&call.tensors[LINEAR_OUT]);
            }
            arena_free(&memory);
            memory = (arena){0};
        }
    }
}

/* A row alone, rows of x with gaps between, and features in slices of any length. */
static void test_cuts(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        const int64_t in_features = types[t] == DTYPE_F8_128 ? 640 : 530;
        op_call call = make_call(&(shape){41, in_features, 103, true, true}, types[t]);
        tensor *out = &call.tensors[LINEAR_OUT];
        int at = 0;
        for (const op_variant *v; (v = next_variant(&call, &at));) {
            run_all(v, &call);
            tensor whole = copy_of(out);
            memset(out->data, 0xff, tensor_bytes(out));
            for (int64_t end = 103, count = 1; end > 0; end -= count, count = count * 2 % 37)
                run_part(v, &call, end > count ? end - count : 0, end);
            assert_same_bits(&whole, out);

            memset(out->data, 0xff, tensor_bytes(out));
            for (int64_t row = 0, count = 1; row < 41; row += count, count = count % 14 + 1) {
                op_call part = call;
                int64_t n = row + count < 41 ? count : 41 - row;
                part.tensors[LINEAR_X] = tensor_slice(call.tensors[LINEAR_X], 0, row, n);
                part.tensors[LINEAR_RESIDUAL] =
                    tensor_slice(call.tensors[LINEAR_RESIDUAL], 0, row, n);
                part.tensors[LINEAR_OUT] = tensor_slice(*out, 0, row, n);
                run_part(v, &part, 0, 103);
            }
            assert_same_bits(&whole, out);
        }
    }
}

/* Products and sums around the smallest numbers: denormals must come out alike for any number of
 * rows, too. */
static void test_denormals(void **state)
{
    (void)state;
    op_call call = make_call(&(shape){40, 100, 64, false, false}, DTYPE_BF16);
    float *x = call.tensors[LINEAR_X].data;
    for (int64_t i = 0; i < 40 * 100; i++)
        x[i] *= i % 3 ? 0x1p-124f : 0x1p-140f;
    int at = 0;
    for (const op_variant *v; (v = next_variant(&call, &at));) {
        run_all(v, &call);
        tensor whole = copy_of(&call.tensors[LINEAR_OUT]);
        for (int64_t row = 0, count = 1; row < 40; row += count, count++) {
            op_call part = call;
            int64_t n = row + count < 40 ? count : 40 - row;
            part.tensors[LINEAR_X] = tensor_slice(call.tensors[LINEAR_X], 0, row, n);
            part.tensors[LINEAR_OUT] = tensor_slice(call.tensors[LINEAR_OUT], 0, row, n);
            run_part(v, &part, 0, 64);
        }
        assert_same_bits(&whole, &call.tensors[LINEAR_OUT]);
    }
}

/* Every number of E4M3 is a weight; a NaN makes its feature NaN, and no other, for any number of
 * rows. */
static void test_every_f8(void **state)
{
    (void)state;
    enum { INPUTS = 256, FEATURES = 64, ROWS = 20, SPOILT = 37 };
    static const int64_t counts[] = {1, 2, 5, 13, ROWS};
    for (int spoilt = 0; spoilt < 2; spoilt++) {
        op_call call = make_call(&(shape){ROWS, INPUTS, FEATURES, false, false}, DTYPE_F8_128);
        const tensor *weight = &call.tensors[LINEAR_WEIGHT], *out = &call.tensors[LINEAR_OUT];
        for (int64_t row = 0; row < FEATURES; row++)
            for (int i = 0; i < INPUTS; i++) {
                uint8_t *block = (uint8_t *)tensor_row(weight, row) + i / 128 * 132;
                const uint8_t bits = (uint8_t)(i + row);
                block[4 + i % 128] = (bits & 0x7f) == 0x7f ? 0 : bits;
            }
        if (spoilt) *((uint8_t *)tensor_row(weight, SPOILT) + 132 + 4 + 50) = 0xff;
        int at = 0;
        for (const op_variant *v; (v = next_variant(&call, &at));) {
            run_all(v, &call);
            tensor whole = copy_of(out);
            if (!spoilt) assert_close_to_oracle(&call);
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                op_call part = call;
                part.tensors[LINEAR_X].shape[0] = part.tensors[LINEAR_OUT].shape[0] = counts[i];
                memset(out->data, 0xff, tensor_bytes(out));
                run_part(v, &part, 0, FEATURES);
                for (int64_t k = 0; k < counts[i] * FEATURES; k++) {
                    const float found = ((float *)out->data)[k];
                    assert_int_equal(isnan(found), spoilt && k % FEATURES == SPOILT);
                    if (!isnan(found)) assert_true(found == ((float *)whole.data)[k]);
                }
            }
        }
    }
}

/* Columns of wider tensors; out is residual. */
static void test_strides(void **state)
{
    (void)state;
    op_call call = make_call(&(shape){15, 300, 50, false, true}, DTYPE_BF16);
    tensor wide_x = random_tensor(DTYPE_F32, 5, SHAPE(15, 320));
    tensor wide_out = random_tensor(DTYPE_F32, 6, SHAPE(15, 64));
    tensor wide_weight = random_tensor(DTYPE_BF16, 7, SHAPE(50, 307));
    call.tensors[LINEAR_X] = tensor_slice(wide_x, 1, 3, 300);
    call.tensors[LINEAR_WEIGHT] = tensor_slice(wide_weight, 1, 7, 300);
    tensor before = copy_of(&wide_out);
    int at = 0;
    for (const op_variant *v; (v = next_variant(&call, &at));) {
        op_call dense = call;
        call.tensors[LINEAR_RESIDUAL] = call.tensors[LINEAR_OUT] = tensor_slice(wide_out, 1, 9, 50);
        dense.tensors[LINEAR_RESIDUAL] = copy_of(&call.tensors[LINEAR_OUT]);
        dense.tensors[LINEAR_X] = copy_of(&call.tensors[LINEAR_X]);
        dense.tensors[LINEAR_WEIGHT] = copy_of(&call.tensors[LINEAR_WEIGHT]);
        dense.tensors[LINEAR_OUT] = zeros(DTYPE_F32, SHAPE(15, 50));
        run_all(v, &dense);
        run_all(v, &call);
        assert_same_bits(&dense.tensors[LINEAR_OUT], &call.tensors[LINEAR_OUT]);
        for (int64_t row = 0; row < 15; row++) {
            assert_memory_equal(tensor_row(&wide_out, row), tensor_row(&before, row), 9 * 4);
            assert_memory_equal((float *)tensor_row(&wide_out, row) + 59,
                                (float *)tensor_row(&before, row) + 59, 5 * 4);
        }
        wide_out = copy_of(&before);
    }
}

static void test_what_is_left_to_others(void **state)
{
    (void)state;
    op_call call = make_call(&(shape){1, 64, 8, true, true}, DTYPE_BF16);
    const op_variant *variant;
    op_select(&op_linear, CPU_LEVEL_AVX512, &call, &variant);
    for (int t = 0; t < 5; t++) {
        op_call other = call;
        other.tensors[t].type = t == LINEAR_WEIGHT ? DTYPE_Q8_0 : DTYPE_F16;
        if (variant) assert_false(variant->accepts(&other));
    }
    op_select(&op_linear, 0, &call, &variant);
    assert_null(variant);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(test_values),   op_test(test_cuts),    op_test(test_denormals),
        op_test(test_every_f8), op_test(test_strides), op_test(test_what_is_left_to_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
