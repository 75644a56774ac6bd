/* Features of GPUs, and which kernels' rows they let run. This needs no GPU. */
#include "op/cuda_ops.h"
#include "test.h"

enum { NEWEST = CUDA_COPY_ENGINE | CUDA_DEPENDENT_LAUNCH | CUDA_CLUSTERS | CUDA_E4M3 };

static void test_capabilities(void **state)
{
    (void)state;
    assert_int_equal(cuda_features_of(8, 0), 0);
    assert_int_equal(cuda_features_of(8, 6), 0);
    assert_int_equal(cuda_features_of(8, 9), CUDA_E4M3);
    assert_int_equal(cuda_features_of(9, 0), NEWEST | CUDA_WGMMA | CUDA_CODE_90A);
    assert_int_equal(cuda_features_of(10, 0), NEWEST);
    assert_int_equal(cuda_features_of(12, 1), NEWEST);
}

static void test_described(void **state)
{
    (void)state;
    cuda_device h200, b200;
    assert_true(cuda_device_describe("sm_90", &h200));
    assert_true(cuda_device_describe("sm_100", &b200));
    assert_false(cuda_device_describe("sm_20", &b200));
    assert_true(cuda_device_has(&h200, CUDA_WGMMA_TILES));
    assert_false(cuda_device_has(&b200, CUDA_WGMMA_TILES));
    assert_true(cuda_device_has(&b200, CUDA_COPY_ENGINE));
}

static void test_missing(void **state)
{
    (void)state;
    assert_null(cuda_feature_missing(NEWEST, CUDA_E4M3));
    assert_string_equal(cuda_feature_missing(NEWEST, CUDA_WGMMA_TILES), "wgmma");
    assert_string_equal(cuda_feature_missing(0, CUDA_E4M3), "E4M3");
}

/* Each operator has rows without needs, so that every GPU runs it; a row runs only where all of its
 * needs are met. */
static void test_rows(void **state)
{
    (void)state;
    cuda_device old = {.features = cuda_features_of(8, 0)}, h200;
    const cuda_ops few = {.device = &old};
    assert_true(cuda_device_describe("sm_90", &h200));
    for (int op = 0; op < OP_COUNT; op++) {
        int n = 0, n_old = 0;
        for (const cuda_kernel *k = op_get(op)->cuda; k && k->name; k++) {
            const bool alone = !k->needs_blas && !k->needs_ranks;
            n += alone;
            n_old += alone && cuda_kernel_runs(&few, k);
            assert_int_equal(cuda_kernel_runs(&few, k), alone && k->needs == 0);
            assert_int_equal(cuda_kernel_runs(&(cuda_ops){.device = &h200, .has_blas = true}, k),
                             !k->needs_ranks);
        }
        assert_true(n == 0 || n_old > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capabilities),
        cmocka_unit_test(test_described),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
