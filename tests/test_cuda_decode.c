/* Many sequences decoding on the GPU: groups of passes make the same tokens as single passes. They
 * are the likeliest in the order of op/argmax, also where the product itself finds them and stores
 * no logits.
 */
#include "engine_test.h"
#include "gpu_test.h"
#include "op/argmax/argmax.h"
#include "op/linear/linear.h"
#include "tensor/float16.h"
#include "vm/cuda/chain.h"
#include "op/linear/linear_wide_cuda.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    MOST = 64,
    WIDE = 70,   /* sequences, whose products are cuBLASLt's */
    PASSES = 21, /* two groups and a part of one */
    FEW = 9,
    MANY = 600, /* passes, which somebody cancels */
};

static int32_t token_of(int session, int position)
{
    return (session * 131 + position * 17 + 3) % 500;
}

static int prompt_of(int session)
{
    return 20 + session * 7;
}

/* Opens n sessions with a prompt each. */
static void open_sessions(qp_engine *engine, int n, qp_session **sessions)
{
    qp_error error;
    for (int i = 0; i < n; i++) {
        int32_t prompt[20 + 7 * WIDE];
        int count = prompt_of(i);
        for (int t = 0; t < count; t++)
            prompt[t] = token_of(i, t);
        sessions[i] = open_session(engine);
        qp_input input = {.session = sessions[i], .tokens = prompt, .count = (size_t)count};
        assert_ok(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error));
    }
}

static int32_t likeliest(const float *row, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return (int32_t)best;
}

/* PASSES passes one by one, each token found in logits that came to this machine. */
static void follow_likeliest(qp_engine *engine, int n, qp_session **sessions, int32_t *tokens)
{
    qp_error error;
    qp_input inputs[WIDE];
    float *rows[WIDE];
    size_t vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size;
    float *all = calloc((size_t)n * vocab_size, sizeof *all);
    logit_sink sink = {rows, vocab_size};
    for (int pass = 0; pass < PASSES; pass++, tokens += n) {
        for (int i = 0; i < n; i++) {
            rows[i] = all + (size_t)i * vocab_size;
            inputs[i] = (qp_input){.session = sessions[i], .tokens = tokens + i, .count = 1};
        }
        assert_ok(qp_eval(engine, inputs, (size_t)n, take_logits, &sink, NULL, &error));
        for (int i = 0; i < n; i++)
            tokens[n + i] = likeliest(rows[i], vocab_size);
    }
    free(all);
}

/* What n sessions decode in `calls` calls is what they get pass by pass. */
static void check_decoding(qp_engine *engine, int n, int calls)
{
    static int32_t expected[(PASSES + 1) * WIDE], found[(PASSES + 1) * WIDE];
    qp_session *sessions[WIDE];
    qp_error error;
    open_sessions(engine, n, sessions);
    for (int i = 0; i < n; i++)
        expected[i] = found[i] = token_of(i, 7);
    follow_likeliest(engine, n, sessions, expected);
    for (int i = 0; i < n; i++)
        qp_session_truncate(sessions[i], (size_t)prompt_of(i), NULL);
    for (int call = 0; call < calls; call++) {
        size_t first = (size_t)(PASSES * call / calls), end = (size_t)(PASSES * (call + 1) / calls);
        assert_ok(qp_decode(engine, sessions, (size_t)n, end - first, found + first * (size_t)n,
                            NULL, &error));
    }
    for (int i = 0; i < n * (PASSES + 1); i++)
        if (found[i] != expected[i])
            fail_msg("%d sessions in %d calls: token %d of session %d is %d, not %d", n, calls,
                     i / n, i % n, found[i], expected[i]);
    for (int i = 0; i < n; i++) {
        size_t held;
        qp_session_tokens(sessions[i], &held);
        assert_int_equal(held, prompt_of(i) + PASSES);
        qp_session_close(sessions[i]);
    }
}

static void test_decoding(void **state)
{
    (void)state;
    static const char *const models[] = {"synthetic:tiny:BF16", "synthetic:smollm2-135m:BF16",
                                         "synthetic:tiny:Q8_0"};
    static const int batches[] = {9, MOST, WIDE, 33};
    require_gpu();
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        qp_engine *engine = open_engine((qp_engine_options){.model = models[m],
                                                            .context = 20 + 7 * WIDE + PASSES,
                                                            .max_sessions = WIDE,
                                                            .device = "cuda",
                                                            .exec = "cuda"});
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++)
            check_decoding(engine, batches[b], 1 + (int)b % 3);
        qp_engine_close(engine);
    }
}

static void *cancel_soon(void *cancel)
{
    usleep(5000);
    *(volatile int *)cancel = 1;
    return NULL;
}

/* What was on its way when somebody cancelled is in the sessions, which go on from there. */
static void test_cancelling(void **state)
{
    (void)state;
    static int32_t expected[(MANY + 1) * FEW], found[(MANY + 1) * FEW];
    qp_session *sessions[FEW];
    qp_error error;
    volatile int cancel = 0;
    pthread_t other;
    size_t held = 0;
    require_gpu();
    qp_engine *engine = open_engine((qp_engine_options){.model = "synthetic:tiny:BF16",
                                                        .context = 20 + 7 * FEW + MANY,
                                                        .max_sessions = FEW,
                                                        .device = "cuda",
                                                        .exec = "cuda"});
    open_sessions(engine, FEW, sessions);
    for (int i = 0; i < FEW; i++)
        expected[i] = found[i] = token_of(i, 7);
    assert_ok(qp_decode(engine, sessions, FEW, MANY, expected, NULL, &error));
    for (int i = 0; i < FEW; i++)
        qp_session_truncate(sessions[i], (size_t)prompt_of(i), NULL);
    assert_int_equal(pthread_create(&other, NULL, cancel_soon, (void *)&cancel), 0);
    qp_status status = qp_decode(engine, sessions, FEW, MANY, found, &cancel, &error);
    pthread_join(other, NULL);
    assert_int_equal(status, QP_CANCELLED);
    qp_session_tokens(sessions[0], &held);
    size_t done = held - (size_t)prompt_of(0);
    assert_in_range(done, 0, MANY - 1);
    for (int i = 0; i < FEW; i++) {
        qp_session_tokens(sessions[i], &held);
        assert_int_equal(held, (size_t)prompt_of(i) + done);
    }
    assert_ok(qp_decode(engine, sessions, FEW, MANY - done, found + done * FEW, NULL, &error));
    assert_memory_equal(found, expected, sizeof found);
    for (int i = 0; i < FEW; i++)
        qp_session_close(sessions[i]);
    qp_engine_close(engine);
}

/* ---- the likeliest of a product ------------------------------------------------------------ */

enum { DEPTH = 64, MOST_ROWS = 500 };

/* Few values, so that the largest of a column is there often. Features 0 and 200 give NaN. */
static uint16_t weight_of(int64_t feature, int column)
{
    if (feature == 0 || feature == 200) return 0x7fc0;
    uint32_t hash = (uint32_t)feature * 2654435761u ^ (uint32_t)column * 40503u;
    int value = (int)((hash ^ hash >> 15) * 2246822519u >> 24) % 97 - (column % 2 ? 48 : 120);
    return f32_to_bf16((float)value);
}

/* Row r picks column (r + shift) % DEPTH; the last row of all is NaN. */
static float x_of(int64_t row, int64_t n, int column, int shift)
{
    if (row == n - 1) return NAN;
    return (row + shift) % DEPTH == column;
}

static int32_t expected_of(int64_t row, int64_t n, int64_t features, int shift)
{
    int32_t best = -1;
    float most = -INFINITY;
    if (row == n - 1) return 0; /* all are NaN, which are all the least */
    for (int64_t f = 0; f < features; f++) {
        float value = bf16_to_f32(weight_of(f, (int)((row + shift) % DEPTH)));
        if (value > most) most = value, best = (int32_t)f;
    }
    return best;
}

static cuda_buffer upload(const cuda_device *device, const void *data, size_t bytes)
{
    cuda_buffer buffer = {0};
    qp_error error;
    assert_ok(cuda_buffer_alloc(device, bytes, "a test's operand", &buffer, &error));
    if (data)
        assert_int_equal(
            device->driver->copy_to_device(buffer.address, data, bytes, device->stream), 0);
    assert_ok(cuda_device_wait(device, "copying", &error));
    return buffer;
}

static void *at(const cuda_buffer *buffer)
{
    return (void *)(uintptr_t)buffer->address;
}

/* By a chain of one product, or of many rows by a kernel of its own. */
static void find_likeliest(cuda_ops *ops, const op_call *linear, const op_call *argmax)
{
    const tensor *rows = &linear->tensors[LINEAR_X];
    const cuda_forms forms = {0};
    cuda_chain chain;
    qp_error error;
    if (rows->shape[0] > MOST) {
        const op_call calls[] = {*linear, *argmax};
        assert_true(cuda_linear_wide_finds(ops, calls));
        assert_ok(cuda_linear_wide_likeliest(ops, calls, &forms, &error));
        return;
    }
    assert_ok(cuda_narrow_x(ops, rows, &error));
    assert_true(cuda_chain_begin(ops, rows->shape[0], rows, cuda_narrow_place(ops), 0, &chain));
    assert_true(cuda_chain_product(&chain, linear));
    assert_true(cuda_chain_likeliest(&chain, argmax));
    assert_ok(cuda_chain_launch(&chain, &error));
}

/* Two launches, of `n` rows. */
static void check_likeliest(cuda_device *device, int64_t n, int64_t features)
{
    qp_error error;
    cuda_ops ops;
    float x[MOST_ROWS * DEPTH];
    int32_t found[MOST_ROWS];
    uint16_t *weight = malloc((size_t)(features * DEPTH) * 2);
    for (int64_t i = 0; i < features * DEPTH; i++)
        weight[i] = weight_of(i / DEPTH, (int)(i % DEPTH));
    cuda_buffer on_gpu[] = {upload(device, NULL, sizeof x),
                            upload(device, weight, (size_t)(features * DEPTH) * 2),
                            upload(device, NULL, sizeof found)};
    void *logits = (void *)0x1000; /* never written */
    op_call linear = {.end = features}, argmax = {.end = n};
    linear.tensors[LINEAR_X] = tensor_2d(at(&on_gpu[0]), DTYPE_F32, n, DEPTH);
    linear.tensors[LINEAR_WEIGHT] = tensor_2d(at(&on_gpu[1]), DTYPE_BF16, features, DEPTH);
    linear.tensors[LINEAR_OUT] = tensor_2d(logits, DTYPE_F32, n, features);
    argmax.tensors[ARGMAX_LOGITS] = linear.tensors[LINEAR_OUT];
    argmax.tensors[ARGMAX_IDS] = tensor_1d(at(&on_gpu[2]), DTYPE_I32, n);
    assert_ok(
        cuda_ops_init(&ops, device, cuda_ops_workspace(NULL, OP_LINEAR, &linear), false, &error));
    for (int shift = 0; shift < 2; shift++) {
        for (int64_t i = 0; i < n * DEPTH; i++)
            x[i] = x_of(i / DEPTH, n, (int)(i % DEPTH), shift);
        device->driver->copy_to_device(on_gpu[0].address, x, sizeof x, device->stream);
        find_likeliest(&ops, &linear, &argmax);
        device->driver->copy_to_host(found, on_gpu[2].address, sizeof found, device->stream);
        assert_ok(cuda_device_wait(device, "a product", &error));
        for (int64_t row = 0; row < n; row++)
            if (found[row] != expected_of(row, n, features, shift))
                fail_msg("row %d of %d, %d features: %d, not %d", (int)row, (int)n, (int)features,
                         found[row], expected_of(row, n, features, shift));
    }
    cuda_ops_free(&ops);
    for (int i = 0; i < 3; i++)
        cuda_buffer_free(device, &on_gpu[i]);
    free(weight);
}

static void test_likeliest(void **state)
{
    (void)state;
    static const int64_t features[] = {200, 16896, 20000, 49157};
    cuda_device device;
    qp_error error;
    require_gpu();
    assert_ok(cuda_device_open(&device, &error));
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        for (int64_t n = 9; n <= MOST; n += 11)
            check_likeliest(&device, n, features[i]);
    check_likeliest(&device, 200, 16896);
    check_likeliest(&device, 256, 49152 - 7 * 8);
    check_likeliest(&device, MOST_ROWS, 49152);
    cuda_device_close(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoding),
        cmocka_unit_test(test_cancelling),
        cmocka_unit_test(test_likeliest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
