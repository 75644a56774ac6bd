/* The parameters of the GPU's norm kernels, as far as they can be checked without a GPU. */
#include "op/add_rms_norm/add_rms_norm.h"
#include "op/rms_norm/rms_norm.h"
#include "test.h"
#include "op/rows_cuda.h"

/* Places that are looked at, not read. */
static _Alignas(16) char memory[4096];

static tensor rows(dtype type, int64_t count, int64_t n, int64_t stride)
{
    int64_t element = type == DTYPE_F32 ? 4 : 2;
    return (tensor){
        .type = type, .rank = 2, .shape = {count, n}, .stride = {stride, element}, .data = memory};
}

static tensor vector(dtype type, int64_t n)
{
    return (tensor){.type = type,
                    .rank = 1,
                    .shape = {n},
                    .stride = {type == DTYPE_F32 ? 4 : 2},
                    .data = memory};
}

static op_call norm_of(int64_t n)
{
    op_call call = {.end = 3};
    call.tensors[RMS_NORM_X] = rows(DTYPE_F32, 3, n, n * 4);
    call.tensors[RMS_NORM_WEIGHT] = vector(DTYPE_BF16, n);
    call.tensors[RMS_NORM_OUT] = rows(DTYPE_F32, 3, n, n * 4);
    return call;
}

static bool by_eights(const op_call *call)
{
    norm_rows of = cuda_norm_rows(call);
    return cuda_norm_by_eights(&of);
}

/* A weight is one row: what lies between its elements is no distance between rows. */
static void test_weights_are_rows(void **state)
{
    (void)state;
    op_call call = norm_of(64);
    assert_true(by_eights(&call));
    call.tensors[RMS_NORM_WEIGHT] = vector(DTYPE_F32, 64);
    assert_true(by_eights(&call));
    assert_int_equal(cuda_norm_rows(&call).weight.stride, 0);
}

static void test_what_lies_otherwise(void **state)
{
    (void)state;
    op_call call = norm_of(60);
    assert_false(by_eights(&call)); /* no eights */
    call = norm_of(64);
    call.tensors[RMS_NORM_WEIGHT].data = memory + 2;
    assert_false(by_eights(&call));
    call = norm_of(64);
    call.tensors[RMS_NORM_X].stride[0] = 65 * 4;
    assert_false(by_eights(&call));
    call = norm_of(64);
    call.tensors[RMS_NORM_OUT].data = memory + 8;
    assert_false(by_eights(&call));
}

static void test_residuals(void **state)
{
    (void)state;
    op_call call = {.end = 3};
    call.tensors[ADD_RMS_NORM_X] = rows(DTYPE_BF16, 3, 64, 128);
    call.tensors[ADD_RMS_NORM_RESIDUAL] = rows(DTYPE_F32, 3, 64, 256);
    call.tensors[ADD_RMS_NORM_WEIGHT] = vector(DTYPE_BF16, 64);
    norm_rows of = cuda_add_norm_rows(&call);
    assert_true(cuda_norm_by_eights(&of));
    assert_ptr_equal(of.out.data, memory);
    call.tensors[ADD_RMS_NORM_RESIDUAL].data = memory + 4;
    of = cuda_add_norm_rows(&call);
    assert_false(cuda_norm_by_eights(&of));
}

static void test_small_norms(void **state)
{
    (void)state;
    norm_rows rows = {.n = 4096};
    assert_true(cuda_norm_is_small(&rows, 528, 132));
    assert_false(cuda_norm_is_small(&rows, 527, 132));
    rows.n = 8192; /* twice the threads, from half as many rows */
    assert_true(cuda_norm_is_small(&rows, 264, 132));
    assert_false(cuda_norm_is_small(&rows, 263, 132));
    rows.n = 8200; /* more than the eights that a thread has */
    assert_false(cuda_norm_is_small(&rows, 2048, 132));
    rows.n = 1024; /* one eight a thread as it is */
    assert_false(cuda_norm_is_small(&rows, 2048, 132));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_are_rows),
        cmocka_unit_test(test_what_lies_otherwise),
        cmocka_unit_test(test_residuals),
        cmocka_unit_test(test_small_norms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
