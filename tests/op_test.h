/* What the suites of operators share: tensors of test values, runs that are whole or cut into
 * units, comparisons.
 *
 * Memory comes from one arena, which op_test_teardown frees after each test.
 */
#pragma once

#include "base/arena.h"
#include "base/hash.h"
#include "op/element.h"
#include "op/table.h"
#include "tensor/codec.h"
#include "test.h"

static arena memory;

static inline int op_test_teardown(void **state)
{
    (void)state;
    arena_free(&memory);
    memory = (arena){0};
    return 0;
}

#define op_test(function) cmocka_unit_test_teardown(function, op_test_teardown)

/* The shape's values between braces: SHAPE(2, 3, 4). */
#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* A value that scripts/op_goldens.py makes too: exact in every float type. */
static inline double golden_value(int64_t i, int64_t seed)
{
    return (double)((i * 37 + seed * 101) % 251 - 125) / 64;
}

/* A contiguous tensor of zeros. */
static inline tensor zeros(dtype type, int rank, const int64_t *shape)
{
    tensor view = tensor_make(NULL, type, rank, shape);
    view.data = arena_alloc(&memory, tensor_bytes(&view) + 1, 1);
    assert_non_null(view.data);
    return view;
}

/* A contiguous tensor of golden_value(i, seed). */
static inline tensor golden_tensor(dtype type, int64_t seed, int rank, const int64_t *shape)
{
    tensor view = zeros(type, rank, shape);
    for (int64_t i = 0; i < tensor_elements(&view); i++)
        element_store(type, view.data, i, golden_value(i, seed));
    return view;
}

/* A value of a bell-like distribution with deviation 1. */
static inline float random_value(uint64_t seed, int64_t i)
{
    float sum = 0;
    for (uint64_t part = 0; part < 3; part++)
        sum += hash_uniform(hash_random(seed, part, (uint64_t)i)) - 0.5f;
    return 2 * sum;
}

/* A contiguous tensor of random values of any weight type; formats that cannot be encoded get
 * random bytes, small enough for their scales to be finite. */
static inline tensor random_tensor(dtype type, uint64_t seed, int rank, const int64_t *shape)
{
    tensor view = zeros(type, rank, shape);
    int64_t n = tensor_elements(&view);
    if (type == DTYPE_F64 || !dtype_can_encode(type)) {
        uint8_t *bytes = view.data;
        for (size_t i = 0; type != DTYPE_F64 && i < tensor_bytes(&view); i++)
            bytes[i] = hash_random(seed, 0, i) & 0x2f;
        for (int64_t i = 0; type == DTYPE_F64 && i < n; i++)
            ((double *)view.data)[i] = random_value(seed, i);
        return view;
    }
    float *values = arena_alloc(&memory, (size_t)n + 1, sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = random_value(seed, i);
    dtype_encode(type, values, view.data, n);
    return view;
}

/* A vector of indices. */
static inline tensor indices(int n, const int32_t *values)
{
    tensor view = zeros(DTYPE_I32, SHAPE(n));
    memcpy(view.data, values, (size_t)n * sizeof *values);
    return view;
}
#define INDICES(...)                                                                               \
    indices((int)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)),                             \
            (const int32_t[]){__VA_ARGS__})

/* A contiguous copy, dense even where the view is strided; rank at most 3. */
static inline tensor copy_of(const tensor *view)
{
    tensor copy = zeros(view->type, view->rank, view->shape);
    size_t row = dtype_row_bytes(view->type, view->shape[view->rank - 1]);
    int64_t n0 = view->rank > 1 ? view->shape[0] : 1, n1 = view->rank > 2 ? view->shape[1] : 1;
    for (int64_t i = 0; row > 0 && i < n0 * n1; i++)
        memcpy((char *)copy.data + (size_t)i * row, tensor_row2(view, i / n1, i % n1), row);
    return copy;
}

static inline void assert_binds(const op_info *op, const op_call *call)
{
    qp_error error = {0};
    assert_ok(op_bind(op, call, NULL, &error));
}

/* The call must be refused with a message that has `part` in it. */
static inline void assert_refused(const op_info *op, const op_call *call, const char *part)
{
    qp_error error = {0};
    assert_int_equal(op_bind(op, call, NULL, &error), QP_INVALID);
    if (!strstr(error.message, part)) fail_msg("\"%s\" is not in \"%s\"", part, error.message);
}

/* Runs units [begin, end) with scratch full of NaNs. */
static inline void run_slice(const op_info *op, const op_call *call, int64_t begin, int64_t end)
{
    op_call slice = *call;
    size_t bytes = op->scratch_bytes ? op->scratch_bytes(call) : 0;
    void *scratch = bytes ? malloc(bytes) : NULL;
    if (scratch) memset(scratch, 0xff, bytes);
    slice.begin = begin;
    slice.end = end;
    slice.scratch = scratch;
    op->reference(&slice);
    free(scratch);
}

static inline void run(const op_info *op, const op_call *call)
{
    assert_binds(op, call);
    run_slice(op, call, 0, op->units(call));
}

/* The same in random slices, the last ones first. */
static inline void run_cut(const op_info *op, const op_call *call, uint64_t seed)
{
    assert_binds(op, call);
    for (int64_t end = op->units(call); end > 0;) {
        int64_t count = 1 + (int64_t)(hash_random(seed, 9, (uint64_t)end) % 7);
        int64_t begin = end > count ? end - count : 0;
        run_slice(op, call, begin, end);
        end = begin;
    }
}

static inline void assert_same_bits(const tensor *a, const tensor *b)
{
    tensor left = copy_of(a), right = copy_of(b);
    assert_int_equal(tensor_elements(a), tensor_elements(b));
    assert_memory_equal(left.data, right.data, tensor_bytes(&left));
}

/* Every element within `tolerance` of the expected, relative to values above 1. */
static inline void assert_near(const tensor *view, const double *expected, double tolerance)
{
    tensor dense = copy_of(view);
    for (int64_t i = 0; i < tensor_elements(&dense); i++) {
        double found = element_load(dense.type, dense.data, i), scale = fabs(expected[i]);
        if (!(fabs(found - expected[i]) <= tolerance * (scale > 1 ? scale : 1)))
            fail_msg("element %lld: expected %.17g, found %.17g", (long long)i, expected[i], found);
    }
}
