/* Batches on the GPU: a sequence's logits are the same bits whatever sequences stand beside it; and
 * which products their own kernel takes, which is known without a GPU. */
#include "engine_test.h"
#include "op/linear/linear.h"
#include "vm/cuda_driver.h"
#include "vm/cuda_linear_stream.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST = 64,
    COMPARED = 9,
    STEPS = 3,
    LONG = 1600, /* positions that attention cuts into two parts */
    CONTEXT = LONG + STEPS,
};

static bool gpu_is_here(void)
{
    cuda_device device;
    bool here = cuda_device_open(&device, NULL) == QP_OK && device.major == 9;
    cuda_device_close(&device);
    return here;
}

static int32_t token_of(int session, int position)
{
    return (session * 131 + position * 17 + 3) % 500;
}

/* Of so many tokens that sessions end in different sixteens of positions and different pages. */
static int prompt_of(int session, int n, bool one_long)
{
    return one_long && session == n - 1 ? LONG : 20 + session * 7;
}

/* Reads a prompt into each of n sessions, alone, then STEPS tokens side by side; logits behind the
 * last of all sessions, to free(). `one_long`: the last of them is LONG. */
static float *last_logits(qp_engine *engine, int n, bool one_long)
{
    qp_session *sessions[MOST];
    qp_input inputs[MOST];
    static int32_t tokens[MOST][CONTEXT];
    float *rows[MOST];
    size_t vocab_size = (size_t)qp_engine_get_info(engine).vocab_size;
    float *all = calloc((size_t)n * vocab_size, sizeof *all);
    qp_error error;
    for (int i = 0; i < n; i++) {
        int prompt = prompt_of(i, n, one_long);
        for (int t = 0; t < prompt + STEPS; t++)
            tokens[i][t] = token_of(i, t);
        sessions[i] = open_session(engine);
        rows[i] = all + (size_t)i * vocab_size;
        inputs[i] =
            (qp_input){.session = sessions[i], .tokens = tokens[i], .count = (size_t)prompt};
        assert_ok(qp_eval(engine, &inputs[i], 1, NULL, NULL, NULL, &error));
        inputs[i].count = 1;
    }
    logit_sink sink = {rows, vocab_size};
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < n; i++)
            inputs[i].tokens = &tokens[i][prompt_of(i, n, one_long) + step];
        assert_ok(qp_eval(engine, inputs, (size_t)n, take_logits, &sink, NULL, &error));
    }
    for (int i = 0; i < n; i++)
        qp_session_close(sessions[i]);
    return all;
}

static void test_neighbours(void **state)
{
    (void)state;
    static const char *const models[] = {"synthetic:tiny:BF16", "synthetic:smollm2-135m:BF16"};
    static const int batches[] = {9, 16, 17, 33, MOST, 10};
    if (!gpu_is_here()) skip();
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        qp_engine *engine = open_engine((qp_engine_options){.model = models[m],
                                                            .context = CONTEXT,
                                                            .max_sessions = MOST,
                                                            .device = "cuda",
                                                            .exec = "ops"});
        size_t bytes = COMPARED * (size_t)qp_engine_get_info(engine).vocab_size * sizeof(float);
        float *expected = last_logits(engine, batches[0], false);
        for (size_t b = 1; b < sizeof batches / sizeof *batches; b++) {
            /* Beside a long one attention is a kernel of its own, not a step of the batch's. */
            float *found = last_logits(engine, batches[b], batches[b] == 10);
            if (memcmp(expected, found, bytes) != 0)
                fail_msg("%s: other logits in a batch of %d", models[m], batches[b]);
            free(found);
        }
        free(expected);
        qp_engine_close(engine);
    }
}

/* A call over made-up addresses: nothing is read. */
static op_call product(int64_t rows, int64_t in_features, int64_t out_features, dtype type)
{
    op_call call = {.end = out_features};
    call.tensors[LINEAR_X] = tensor_2d((void *)0x1000, DTYPE_F32, rows, in_features);
    call.tensors[LINEAR_WEIGHT] = tensor_2d((void *)0x2000, type, out_features, in_features);
    call.tensors[LINEAR_OUT] = tensor_2d((void *)0x3000, DTYPE_F32, rows, out_features);
    return call;
}

static bool is_taken(int64_t rows, int64_t in_features, dtype type)
{
    op_call call = product(rows, in_features, 256, type);
    return cuda_linear_stream_accepts(&call) && cuda_linear_stream_pays(&call);
}

static void test_choice(void **state)
{
    (void)state;
    assert_false(is_taken(8, 2048, DTYPE_BF16));
    assert_true(is_taken(9, 2048, DTYPE_BF16));
    assert_true(is_taken(64, 2048, DTYPE_BF16));
    assert_false(is_taken(65, 2048, DTYPE_BF16)); /* cuBLASLt's */
    assert_false(is_taken(64, 2044, DTYPE_BF16)); /* rows of BF16 not at multiples of 16 bytes */
    assert_false(is_taken(64, 2048, DTYPE_F16));
    assert_false(is_taken(64, 2048, DTYPE_Q8_0));
}

static void test_ranks(void **state)
{
    (void)state;
    assert_int_equal(cuda_stream_ranks(16, 32, 132), 8);  /* 2,048 features */
    assert_int_equal(cuda_stream_ranks(24, 32, 132), 5);  /* 3,072: 120 blocks of 7 steps at most */
    assert_int_equal(cuda_stream_ranks(48, 64, 132), 8);  /* 6,144: 3 turns of 8 */
    assert_int_equal(cuda_stream_ranks(128, 32, 132), 1); /* 16,384 */
    assert_int_equal(cuda_stream_ranks(1, 1, 132), 1);    /* no part is empty */
    assert_int_equal(cuda_stream_ranks(1, 3, 132), 3);
    assert_int_equal(cuda_stream_ranks(1, 9, 132), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
