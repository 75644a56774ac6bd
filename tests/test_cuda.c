/* The GPU's host side without a GPU: figures that need none, and messages about what is missing. On
 * a machine with a GPU, `./dev cuda-test` tests the rest. */
#include "vm/cuda/executor.h"
#include "inspect/cuda_print.h"
#include "test.h"
#include "op/cuda_ops.h"

#include "op/table.h"
#include "lower/lower.h"

#include <cjson/cJSON.h>
#include <string.h>

static bool gpu_is_here(void)
{
    cuda_device device;
    bool here = cuda_device_open(&device, NULL) == QP_OK;
    cuda_device_close(&device);
    return here;
}

/* What a program says that asks for a GPU where there is none. */
static void no_gpu_is_an_error_that_says_so(void **state)
{
    (void)state;
    if (gpu_is_here()) skip_because("of machines without a GPU");
    qp_engine *engine = NULL;
    qp_error error;
    qp_engine_options options = {
        .size = sizeof options, .model = "synthetic:tiny", .threads = 1, .device = "cuda"};
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_DEVICE);
    assert_null(engine);
    assert_non_null(strstr(error.message, "--device cpu"));
}

static void devices_have_names(void **state)
{
    (void)state;
    qp_engine *engine = NULL;
    qp_error error;
    qp_engine_options options = {
        .size = sizeof options, .model = "synthetic:tiny", .threads = 1, .device = "tpu"};
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "tpu"));
    options.device = "cuda";
    options.exec = "reference";
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "--exec reference"));
}

static void automatic_takes_the_cpu_and_says_why(void **state)
{
    (void)state;
    if (gpu_is_here()) skip_because("of machines without a GPU");
    qp_engine *engine = NULL;
    qp_error error;
    qp_engine_options options = {
        .size = sizeof options, .model = "synthetic:tiny", .threads = 1, .device = "auto"};
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_OK);
    assert_string_equal(qp_engine_get_info(engine)->device, "cpu");
    qp_engine_close(engine);
    options.exec = "megakernel"; /* is no CPU's, whatever the device says */
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_DEVICE);
    assert_non_null(strstr(error.message, "--exec megakernel runs on a GPU, but "));
}

static void a_failed_driver_call_is_named(void **state)
{
    (void)state;
    qp_error error;
    assert_int_equal(cuda_check(0, "nothing", &error), QP_OK);
    assert_int_equal(cuda_check(2, "taking memory", &error), QP_NO_MEMORY);
    assert_non_null(strstr(error.message, "taking memory failed"));
    assert_non_null(strstr(error.message, "--context"));
    assert_int_equal(cuda_check(700, "running it", &error), QP_DEVICE);
}

/* Every operator of a forward pass has a kernel, and one without `pays` that takes what others
 * leave; fused ones run on a CPU and within the megakernel. */
static void every_step_has_a_kernel(void **state)
{
    (void)state;
    const op_code needed[] = {
        OP_EMBEDDING,     OP_RMS_NORM,     OP_ADD_RMS_NORM,  OP_LINEAR,         OP_ROPE,
        OP_KV_APPEND,     OP_PAGED_DECODE, OP_PAGED_PREFILL, OP_RAGGED_PREFILL, OP_MERGE_STATE,
        OP_MERGE_STATES,  OP_SILU_AND_MUL, OP_ADD,           OP_ARGMAX,         OP_TOP_K,
        OP_ADJUST_LOGITS, OP_HEAD_NORM,    OP_SAMPLING};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        const cuda_kernel *found = NULL;
        for (const cuda_kernel *k = op_get(needed[i])->cuda; k && k->name; k++) {
            assert_non_null(k->accepts);
            assert_true(k->launch || k->fusions);
            assert_int_equal(k->op, needed[i]);
            if (!k->pays) found = k;
        }
        assert_non_null(found);
    }
}

static void memory_is_counted_exactly(void **state)
{
    (void)state;
    model *model;
    program program;
    qp_error error;
    model_options sizes_only = {.sizes_only = true};
    assert_int_equal(model_open("synthetic:llama-3.2-1b:Q4_K", &sizes_only, &model, &error), QP_OK);
    plan_options options = plan_default_options(model_get_config(model));
    options.context = 4096;
    assert_int_equal(lower_build(model_get_config(model), model, &options, &program, &error),
                     QP_OK);
    cuda_bytes bytes = cuda_executor_count(&program, NULL);
    /* Every tensor of this model is a multiple of the alignment already. */
    assert_int_equal(bytes.weights, model_weight_bytes(model));
    assert_int_equal(bytes.kv_cache, 2 * 16 * 4096 * 8 * 64 * 2);
    assert_int_equal(bytes.arena, program.arena_bytes);
    /* cuBLASLt's own, counters, and for the output's product a row in BF16 and 64 MiB of decoded
     * weights. */
    assert_int_equal(bytes.workspace, (32 << 20) + 16384 * 4 + 2048 * 2 + (64 << 20));
    assert_int_equal(bytes.total, bytes.weights + bytes.arena + bytes.kv_cache + bytes.rope_table +
                                      bytes.state + bytes.inputs + bytes.workspace);
    program_free(&program);
    model_close(model);
}

/* Sequences that decode side by side have room for the parts of their attention. */
static void parts_of_attention_are_counted(void **state)
{
    (void)state;
    model *model;
    program program;
    qp_error error;
    model_options sizes_only = {.sizes_only = true};
    assert_int_equal(model_open("synthetic:tiny:BF16", &sizes_only, &model, &error), QP_OK);
    const model_config *config = model_get_config(model);
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        plan_options options = plan_default_options(config);
        options.context = i ? 4096 : 1536;
        options.max_sequences = options.max_tokens = 64;
        assert_int_equal(lower_build(config, NULL, &options, &program, &error), QP_OK);
        bytes[i] = cuda_executor_count(&program, NULL).workspace;
        program_free(&program);
    }
    if (config->head_dim == 64)
        assert_int_equal(bytes[1] >= (size_t)64 * 4 * (size_t)config->n_heads * 66 * 4, true);
    assert_true(bytes[1] >= bytes[0]);
    model_close(model);
}

static void memory_is_printed_without_a_gpu(void **state)
{
    (void)state;
    const cuda_print_options options = {
        .model = "synthetic:tiny", .tokens = 16, .sequences = 1, .page_size = 16, .kv_type = "F16"};
    strbuf text = {0};
    qp_error error;
    assert_int_equal(cuda_print_run(&options, &text, &error), QP_OK);
    assert_non_null(strstr(strbuf_text(&text), "workspace"));
    assert_non_null(strstr(strbuf_text(&text), "GPU"));
    strbuf_free(&text);
}

/* With --memory, the run is compared with that: it fits, fits without the megakernel, or does not.
 */
static void memory_is_compared_with_what_is_named(void **state)
{
    (void)state;
    static const struct {
        uint64_t memory;
        const char *verdict;
        int64_t least, most; /* of the largest context */
    } cases[] = {{80 << 20, "fits", 2048, 2048},
                 {40000000, "fits without the megakernel (--exec cuda)", 2048, 2048},
                 {37 << 20, "does not fit", 1024, 2032},
                 {30 << 20, "does not fit", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_print_options options = {.model = "synthetic:tiny",
                                      .tokens = 16,
                                      .sequences = 1,
                                      .page_size = 16,
                                      .kv_type = "F16",
                                      .memory = cases[i].memory,
                                      .json = true};
        strbuf text = {0};
        qp_error error;
        assert_int_equal(cuda_print_run(&options, &text, &error), QP_OK);
        cJSON *json = cJSON_Parse(strbuf_text(&text));
        const char *found = cJSON_GetObjectItem(json, "verdict")->valuestring;
        double context = cJSON_GetObjectItem(json, "largest_context")->valuedouble;
        if (strcmp(found, cases[i].verdict) != 0) fail_msg("%s", strbuf_text(&text));
        assert_in_range((int64_t)context, cases[i].least, cases[i].most);
        if (context > 0) { /* it does fit, and a page more does not */
            options.context = (int64_t)context;
            options.json = false;
            strbuf_clear(&text);
            assert_int_equal(cuda_print_run(&options, &text, &error), QP_OK);
            assert_non_null(strstr(strbuf_text(&text), "the run fits"));
        }
        cJSON_Delete(json);
        strbuf_free(&text);
    }
}

/* Weights made on the GPU have the bits of those made here: the generator's numbers agree. */
static void synthetic_streams_make_the_weights(void **state)
{
    (void)state;
    model *model;
    qp_error error;
    assert_int_equal(model_open("synthetic:tiny:BF16", NULL, &model, &error), QP_OK);
    for (int64_t layer = 0; layer < 2; layer++) {
        synthetic_stream stream;
        const tensor *view = &model_get_weight(model, WEIGHT_FFN_DOWN, layer)->weight;
        const uint16_t *values = view->data;
        assert_true(model_synthetic_stream(model, WEIGHT_FFN_DOWN, layer, false, &stream));
        for (uint64_t i = 0; i < 5000; i += 7)
            assert_int_equal(values[i], f32_to_bf16(synthetic_value(&stream, i)));
    }
    model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_gpu_is_an_error_that_says_so),
        cmocka_unit_test(devices_have_names),
        cmocka_unit_test(automatic_takes_the_cpu_and_says_why),
        cmocka_unit_test(a_failed_driver_call_is_named),
        cmocka_unit_test(every_step_has_a_kernel),
        cmocka_unit_test(memory_is_counted_exactly),
        cmocka_unit_test(parts_of_attention_are_counted),
        cmocka_unit_test(memory_is_printed_without_a_gpu),
        cmocka_unit_test(memory_is_compared_with_what_is_named),
        cmocka_unit_test(synthetic_streams_make_the_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
