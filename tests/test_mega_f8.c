/* The megakernel with weights in FP8 has the logits of the reference. */
#include "engine_test.h"
#include "gpu_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NEAR_ROWS = 24 };

/* Logits of NEAR_ROWS tokens, one after the other, by a machine; to free(). */
static float *near_rows(qp_engine_options options, size_t *floats)
{
    qp_engine *engine = open_engine(options);
    qp_session *session = open_session(engine);
    const size_t v = (size_t)qp_engine_get_info(engine)->vocab_size;
    float *rows = malloc(NEAR_ROWS * v * sizeof *rows);
    assert_non_null(rows);
    for (int i = 0; i < NEAR_ROWS; i++) {
        const int32_t id = (i * 97 + 5) % 500;
        float *row = eval_rows(engine, session, &id, 1);
        memcpy(rows + (size_t)i * v, row, v * sizeof *row);
        free(row);
    }
    *floats = NEAR_ROWS * v;
    qp_session_close(session);
    qp_engine_close(engine);
    return rows;
}

/* Weights in FP8: the machine `cuda` rounds activations for them, so tokens may differ. The
 * reference does not; larger models are near the machine `cuda`. */
static void it_reads_weights_in_fp8(void **state)
{
    (void)state;
    require_gpu();
    static const struct {
        const char *model, *kv_type, *device, *exec;
        double most; /* of the difference's norm, in the logits' */
    } cases[] = {{"synthetic:tiny:F8", "F16", "cpu", "reference", 1e-4},
                 {"synthetic:tiny:F8", "BF16", "cpu", "reference", 1e-3},
                 {"synthetic:tiny:F8+BF16", "F16", "cpu", "reference", 1e-4},
                 {"synthetic:llama-3.2-1b:F8", "F16", "cuda", "cuda", 1e-2},
                 {"synthetic:llama-3.1-8b:F8+BF16", "F16", "cuda", "cuda", 1e-2}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t n;
        double difference = 0, norm = 0;
        qp_engine_options options = {.size = sizeof options,
                                     .model = cases[c].model,
                                     .device = cases[c].device,
                                     .exec = cases[c].exec,
                                     .kv_type = cases[c].kv_type,
                                     .context = 512};
        float *expected = near_rows(options, &n);
        options.device = "cuda";
        options.exec = "megakernel";
        float *found = near_rows(options, &n);
        for (size_t i = 0; i < n; i++) {
            const double d = (double)found[i] - (double)expected[i];
            difference += d * d;
            norm += (double)expected[i] * (double)expected[i];
        }
        print_message("%s: %.2g of the logits' norm\n", cases[c].model, sqrt(difference / norm));
        assert_true(sqrt(difference / norm) < cases[c].most); /* not NaN */
        free(expected);
        free(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_reads_weights_in_fp8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
