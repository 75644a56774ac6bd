/* Products of 9 to 64 rows on the GPU as steps of a chain, beside the same by a kernel each, in
 * shapes that no model has: they cut a weight alike, so that bits are the same however many rows
 * and tiles there are, and the sums are those of a CPU.
 */
#include "gpu_bench.h"
#include "gpu_test.h"
#include "op/linear/linear.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "vm/cuda_chain.h"
#include "vm/cuda_linear.h"
#include "vm/cuda_linear_stream.h"

#include <math.h>

enum {
    WORKSPACE = 16 << 20,
    LOOKED_AT = 37, /* every so manieth element is held against a CPU's sum */
};

enum { OF_X, OF_WEIGHT, OF_RESIDUAL, OF_DOWN };

static op_call product_of(tensor x, tensor weight, tensor out, const tensor *residual)
{
    op_call call = {.end = weight.shape[0]};
    call.tensors[LINEAR_X] = x;
    call.tensors[LINEAR_WEIGHT] = weight;
    call.tensors[LINEAR_OUT] = out;
    if (residual) call.tensors[LINEAR_RESIDUAL] = *residual;
    return call;
}

static void check_same(const bench *b, const tensor *plain, const tensor *found, const char *what,
                       int64_t depth)
{
    const int64_t n = plain->shape[0], features = plain->shape[1];
    const size_t bytes = (size_t)(n * features) * sizeof(float);
    float *expected = fetch(b, plain->data, bytes), *is = fetch(b, found->data, bytes);
    for (int64_t i = 0; i < n * features; i++)
        if (memcmp(&is[i], &expected[i], sizeof(float)) != 0)
            fail_msg("%s, %d rows, %d by %d: feature %d of row %d is %g, not %g", what, (int)n,
                     (int)features, (int)depth, (int)(i % features), (int)(i / features),
                     (double)is[i], (double)expected[i]);
    free(expected);
    free(is);
}

/* ---- a product that is added to its output ------------------------------------------------- */

static double sum_of(int64_t row, int64_t feature, int64_t depth)
{
    double sum = 0;
    for (int64_t i = 0; i < depth; i++)
        sum += (double)bf16_to_f32(f32_to_bf16(number(OF_X, row * depth + i))) *
               (double)bf16_to_f32(f32_to_bf16(number(OF_WEIGHT, feature * depth + i)));
    return sum;
}

static void check_sums(const bench *b, const tensor *found, int64_t depth)
{
    const int64_t n = found->shape[0], features = found->shape[1];
    float *is = fetch(b, found->data, (size_t)(n * features) * sizeof *is);
    for (int64_t i = 0; i < n * features; i += LOOKED_AT) {
        double sum = (double)number(OF_RESIDUAL, i) + sum_of(i / features, i % features, depth);
        if (!(fabs((double)is[i] - sum) <= 2e-7 * (double)depth))
            fail_msg("%d rows, %d by %d: feature %d of row %d is %g, not %g", (int)n, (int)features,
                     (int)depth, (int)(i % features), (int)(i / features), (double)is[i], sum);
    }
    free(is);
}

static void check_product(bench *b, int64_t n, int64_t features, int64_t depth)
{
    qp_error error;
    cuda_chain chain;
    cuda_address narrowed;
    tensor x = carry_matrix(b, OF_X, DTYPE_F32, n, depth),
           weight = carry_matrix(b, OF_WEIGHT, DTYPE_BF16, features, depth);
    tensor plain = carry_matrix(b, OF_RESIDUAL, DTYPE_F32, n, features), found;
    found = carry_matrix(b, OF_RESIDUAL, DTYPE_F32, n, features);
    op_call alone = product_of(x, weight, plain, &plain),
            step = product_of(x, weight, found, &found);
    assert_true(cuda_linear_stream_accepts(&alone) && cuda_linear_stream_pays(&alone));
    run_plainly(b, OP_LINEAR, &alone);
    b->ops.narrowed.rank = 0;
    assert_ok(cuda_linear_narrow_x(&b->ops, &x, &narrowed, &error));
    assert_true(cuda_chain_begin(&b->ops, n, &chain));
    assert_true(cuda_chain_product(&chain, &step));
    assert_true(cuda_chain_is_whole(&chain));
    assert_ok(cuda_chain_launch(&chain, &error));
    check_same(b, &plain, &found, "a product", depth);
    check_sums(b, &found, depth);
    clear_bench(b);
}

static bool small; /* those alone that compute-sanitizer is quick with */

static void test_products(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {
        {2048, 2048}, {2048, 8192}, {576, 1536}, {3072, 2048}, {4096, 1000}, /* features, depth */
        {1000, 200},  {68, 72},     {132, 4104}, {64, 64},     {2052, 584},
    };
    static const int64_t rows[] = {9, 16, 17, 33, 64};
    bench b;
    if (!gpu_is_here()) skip();
    open_bench(&b, WORKSPACE);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            if (small ? shapes[s][0] <= 132 : s > 1 || r % 2 == s)
                check_product(&b, rows[r], shapes[s][0], shapes[s][1]);
    close_bench(&b);
}

/* ---- an MLP -------------------------------------------------------------------------------- */

static op_call silu_of(tensor x)
{
    op_call silu = {.end = x.shape[0] * x.shape[1] / 2};
    silu.tensors[SILU_AND_MUL_X] = x;
    silu.tensors[SILU_AND_MUL_OUT] = tensor_slice(x, 1, 0, x.shape[1] / 2);
    return silu;
}

/* Gate and up of `features` each, silu_and_mul, down to `depth` columns, which are added. */
static void check_mlp(bench *b, int64_t n, int64_t features, int64_t depth)
{
    qp_error error;
    cuda_chain chain;
    cuda_address narrowed;
    tensor x = carry_matrix(b, OF_X, DTYPE_F32, n, depth);
    tensor up = carry_matrix(b, OF_WEIGHT, DTYPE_BF16, 2 * features, depth);
    tensor down = carry_matrix(b, OF_DOWN, DTYPE_BF16, depth, features);
    size_t bytes = (size_t)(n * 2 * features) * sizeof(float);
    tensor between = tensor_2d(carry_guards(b, bytes), DTYPE_F32, n, 2 * features);
    tensor plain = carry_matrix(b, OF_RESIDUAL, DTYPE_F32, n, depth), found;
    found = carry_matrix(b, OF_RESIDUAL, DTYPE_F32, n, depth);
    op_call first = product_of(x, up, between, NULL), silu = silu_of(between);
    const tensor *activated = &silu.tensors[SILU_AND_MUL_OUT];
    op_call alone = product_of(*activated, down, plain, &plain);
    op_call step = product_of(*activated, down, found, &found);
    assert_true(cuda_linear_stream_activates(&b->ops, &first, &silu));
    assert_ok(cuda_linear_stream_silu(&b->ops, &first, &silu, &error));
    run_plainly(b, OP_LINEAR, &alone);
    b->ops.narrowed.rank = 0;
    assert_ok(cuda_linear_narrow_x(&b->ops, &x, &narrowed, &error));
    assert_true(cuda_chain_begin(&b->ops, n, &chain));
    assert_true(cuda_chain_activated(&chain, &first, &silu));
    assert_true(cuda_chain_product(&chain, &step));
    assert_true(cuda_chain_is_whole(&chain));
    assert_ok(cuda_chain_launch(&chain, &error));
    check_same(b, &plain, &found, "an MLP", depth);
    clear_bench(b);
}

static void test_mlps(void **state)
{
    (void)state;
    bench b;
    if (!gpu_is_here()) skip();
    open_bench(&b, WORKSPACE);
    check_mlp(&b, 9, 5000, 72);
    check_mlp(&b, 17, 4296, 200);
    if (!small) check_mlp(&b, 33, 4608, 1032);
    if (!small) check_mlp(&b, 64, 8192, 2048);
    close_bench(&b);
}

/* test_cuda_products [small] */
int main(int argc, char **argv)
{
    small = argc > 1 && strcmp(argv[1], "small") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_mlps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
