/* Custom kernels on the machine `cuda`, over the fake driver (fake_cuda/README.md): which
 * calls they get, what is no longer fused, and what is refused. Their launches do nothing, and
 * quipu's own kernels do not run either.
 */
#include "engine_test.h"
#include "fake_gpu.h"

#include "quipu_kernel.h"

enum { MODEL_LAYERS = 2, NORMS = 2 * MODEL_LAYERS + 1, SEQUENCES = 9 };
static const char model_name[] = "synthetic:tiny:BF16";

/* What the launcher saw since it was last cleared. */
static struct {
    int calls, single, several, scratch_missing, bad;
    int fails_with;
} seen;

static int launch(const op_call *call, void *stream)
{
    const int64_t rows = call->tensors[0].shape[0];
    seen.calls++;
    seen.single += rows == 1;
    seen.several += rows > 1;
    seen.scratch_missing += !call->scratch;
    seen.bad += !stream || call->begin != 0 || call->end < 1 || call->tensors[0].rank != 2;
    for (int t = 0; t < 3; t++) /* addresses of the fake GPU, not areas */
        seen.bad += !call->tensors[t].data || (uintptr_t)call->tensors[t].data >> 52 != 0;
    return seen.fails_with;
}

static bool accepts_one_row(const op_call *call)
{
    return call->tensors[0].shape[0] == 1;
}

static bool accepts_nothing(const op_call *call)
{
    (void)call;
    return false;
}

static size_t scratch_bytes(const op_call *call)
{
    return (size_t)call->tensors[0].shape[0] * 4096;
}

static size_t scratch_that_grows(const op_call *call)
{
    return call->tensors[0].shape[0] == 3 ? (size_t)1 << 30 : 0;
}

static void begin(void)
{
    require_fake_gpu();
    memset(&seen, 0, sizeof seen);
}

static qp_engine_options options_of(const qp_cuda_kernel *kernels, size_t n, int64_t sessions)
{
    return (qp_engine_options){.size = sizeof(qp_engine_options),
                               .model = model_name,
                               .threads = 1,
                               .context = 64,
                               .max_sessions = sessions,
                               .max_outputs = 4 * SEQUENCES,
                               .cuda_kernels = kernels,
                               .n_cuda_kernels = n};
}

/* Evaluates three tokens in each of the sessions, then one. */
static void run_passes(qp_engine *engine, size_t sessions)
{
    static const int32_t ids[] = {1, 2, 3};
    qp_session *of[SEQUENCES];
    qp_error error;
    int32_t next[SEQUENCES + SEQUENCES * 3] = {0};
    for (size_t i = 0; i < sessions; i++) {
        of[i] = open_session(engine);
        free(eval_rows(engine, of[i], ids, 3));
    }
    assert_ok(qp_decode(engine, of, sessions, 1, next, NULL, &error));
    for (size_t i = 0; i < sessions; i++)
        qp_session_close(of[i]);
}

static void every_call_of_the_operator(void **state)
{
    (void)state;
    begin();
    const qp_cuda_kernel kernel = {
        .op = "rms_norm", .launch = launch, .scratch_bytes = scratch_bytes};
    qp_engine *engine = open_engine(options_of(&kernel, 1, 1));
    run_passes(engine, 1);
    assert_int_equal(seen.bad, 0);
    assert_int_equal(seen.scratch_missing, 0);
    assert_true(seen.several >= NORMS - 1 && seen.single >= NORMS);
    assert_int_equal(seen.calls % NORMS, 0);
    qp_engine_close(engine);
}

/* Nine sequences are a chain without it; with it each norm is a launch of its own. */
static void chains_end_before_it(void **state)
{
    (void)state;
    begin();
    const qp_cuda_kernel kernel = {.op = "rms_norm", .launch = launch};
    qp_engine *engine = open_engine(options_of(&kernel, 1, SEQUENCES));
    run_passes(engine, SEQUENCES);
    assert_int_equal(seen.bad, 0);
    assert_int_equal(seen.calls % NORMS, 0);
    assert_true(seen.several >= NORMS);
    qp_engine_close(engine);
}

static void calls_that_it_declines(void **state)
{
    (void)state;
    begin();
    const qp_cuda_kernel kernel = {.op = "rms_norm", .launch = launch, .accepts = accepts_one_row};
    qp_engine *engine = open_engine(options_of(&kernel, 1, 1));
    run_passes(engine, 1);
    assert_int_equal(seen.several, 0);
    assert_true(seen.single >= NORMS);
    qp_engine_close(engine);
}

/* An operator that is fused with the product before it runs by itself. */
static void operators_that_are_fused(void **state)
{
    (void)state;
    begin();
    static const char *const names[] = {"silu_and_mul", "rope", "kv_append", "linear", "embedding"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const qp_cuda_kernel kernel = {.op = names[i], .launch = launch};
        qp_engine *engine = open_engine(options_of(&kernel, 1, SEQUENCES));
        memset(&seen, 0, sizeof seen);
        run_passes(engine, SEQUENCES);
        assert_true(seen.calls >= 2 * (i < 4 ? MODEL_LAYERS : 1));
        qp_engine_close(engine);
    }
}

/* paged_decode takes the place of paged_prefill where several sequences decode. */
static void attention_of_sequences_that_decode(void **state)
{
    (void)state;
    begin();
    const qp_cuda_kernel kernel = {.op = "paged_prefill", .launch = launch};
    qp_engine *engine = open_engine(options_of(&kernel, 1, SEQUENCES));
    run_passes(engine, SEQUENCES);
    assert_true(seen.calls >= 2 * MODEL_LAYERS);
    qp_engine_close(engine);
}

static void an_error_names_it(void **state)
{
    (void)state;
    begin();
    const qp_cuda_kernel kernel = {.op = "rms_norm", .name = "mine.cu", .launch = launch};
    const int32_t id = 1;
    qp_error error;
    qp_engine *engine = open_engine(options_of(&kernel, 1, 1));
    qp_session *session = open_session(engine);
    const qp_input input = {.session = session, .tokens = &id, .count = 1};
    seen.fails_with = 1;
    assert_int_not_equal(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error), QP_OK);
    assert_non_null(strstr(error.message, "launching mine.cu"));
    qp_session_close(session);
    qp_engine_close(engine);
}

static void refuse(qp_engine_options options, const char *text)
{
    qp_error error;
    qp_engine *engine = NULL;
    assert_int_not_equal(qp_engine_open(&options, &engine, &error), QP_OK);
    if (!strstr(error.message, text)) fail_msg("expected \"%s\" in: %s", text, error.message);
}

static void cpu_kernel(const op_call *call)
{
    (void)call;
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    begin();
    qp_cuda_kernel kernels[] = {{.op = "rms_norm", .launch = launch},
                                {.op = "rms_norm", .launch = launch}};
    const qp_kernel own = {.op = "rms_norm", .kernel = cpu_kernel};
    qp_engine_options options = options_of(kernels, 1, 1);
    refuse(options_of(kernels, 2, 1), "two kernels for a GPU are given for rms_norm");
    options.device = "cpu";
    refuse(options, "--device cpu excludes that");
    options.device = NULL;
    options.exec = "megakernel";
    refuse(options, "the megakernel is one kernel for whole passes");
    options.exec = "threads";
    refuse(options, "the machine threads does not run custom kernels for a GPU");
    options.exec = NULL;
    options.kernels = &own;
    options.n_kernels = 1;
    refuse(options, "for the CPU and for a GPU");
    options = options_of(kernels, 1, 1);
    options.ranks = 2;
    options.device = "cuda";
    refuse(options, "run on one GPU");
    kernels[0].accepts = accepts_nothing;
    refuse(options_of(kernels, 1, 1), "accepts none of this model's 5 calls of rms_norm");
    kernels[0] = (qp_cuda_kernel){.op = "add_rms_norm", .launch = launch};
    refuse(options_of(kernels, 1, 1), "this forward pass has no add_rms_norm");
    kernels[0] = (qp_cuda_kernel){.op = "nothing", .launch = launch};
    refuse(options_of(kernels, 1, 1), "which does not exist");
    kernels[0] = (qp_cuda_kernel){.op = "rms_norm"};
    refuse(options_of(kernels, 1, 1), "has no function");
    kernels[0] = (qp_cuda_kernel){.op = "paged_decode", .launch = launch};
    refuse(options_of(kernels, 1, 1), "this forward pass has no paged_decode");
}

static void scratch_that_only_small_calls_want(void **state)
{
    (void)state;
    begin();
    const qp_cuda_kernel kernel = {
        .op = "rms_norm", .launch = launch, .scratch_bytes = scratch_that_grows};
    const int32_t ids[] = {1, 2, 3};
    qp_error error;
    qp_engine *engine = open_engine(options_of(&kernel, 1, 1));
    qp_session *session = open_session(engine);
    const qp_input input = {.session = session, .tokens = ids, .count = 3};
    assert_int_equal(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "bytes of scratch"));
    qp_session_close(session);
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_of_the_operator),
        cmocka_unit_test(chains_end_before_it),
        cmocka_unit_test(calls_that_it_declines),
        cmocka_unit_test(operators_that_are_fused),
        cmocka_unit_test(attention_of_sequences_that_decode),
        cmocka_unit_test(an_error_names_it),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(scratch_that_only_small_calls_want),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
