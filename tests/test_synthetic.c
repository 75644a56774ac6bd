/* Synthetic weights: names, documented deviations, the same bits for any order of rows. */
#include "test.h"

#include "file/synthetic.h"
#include "tensor/codec.h"

#include <math.h>

static const dtype types[] = {DTYPE_F32,    DTYPE_F16,    DTYPE_BF16,  DTYPE_Q8_0, DTYPE_Q4_0,
                              DTYPE_Q4_1,   DTYPE_Q5_0,   DTYPE_Q5_1,  DTYPE_Q4_K, DTYPE_Q6_K,
                              DTYPE_F8_128, DTYPE_IQ4_NL, DTYPE_IQ4_XS};
enum { N_TYPES = sizeof types / sizeof *types };

static void test_names(void **state)
{
    (void)state;
    qp_error error = {0};
    synthetic_spec spec;
    assert_true(synthetic_is_name("synthetic:tiny") && !synthetic_is_name("tiny.gguf"));
    assert_ok(synthetic_parse("synthetic:llama-3.2-1b", NULL, DTYPE_BF16, &spec, &error));
    assert_string_equal(spec.config->name, "llama-3.2-1b");
    assert_int_equal(spec.type, DTYPE_BF16);
    assert_int_equal(spec.seed, 0);
    assert_ok(synthetic_parse("synthetic:tiny:q4_k:18446744073709551615", NULL, DTYPE_BF16, &spec,
                              &error));
    assert_int_equal(spec.type, DTYPE_Q4_K);
    assert_int_equal(spec.other, DTYPE_Q4_K);
    assert_true(spec.seed == UINT64_MAX);
    assert_ok(synthetic_parse("synthetic:tiny:Q4_0+q6_k:7", NULL, DTYPE_BF16, &spec, &error));
    assert_int_equal(spec.type, DTYPE_Q4_0);
    assert_int_equal(spec.other, DTYPE_Q6_K);
    assert_int_equal(spec.seed, 7);
    assert_ok(synthetic_parse("synthetic:tiny:F8+BF16", NULL, DTYPE_BF16, &spec, &error));
    assert_int_equal(spec.type, DTYPE_F8_128);
    assert_int_equal(spec.other, DTYPE_BF16);
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"synthetic:llama", "no preset \"llama\"; there are llama-3.2-1b, llama-3.2-3b"},
        {"synthetic:", "no preset \"\""},
        {"synthetic:tiny:Q9", "cannot make type \"Q9\"; expected one of F32, F16"},
        {"synthetic:tiny:Q8_K", "cannot make type \"Q8_K\""},
        {"synthetic:tiny:Q4_0+", "cannot make type \"\""},
        {"synthetic:tiny:Q4_0+Q9:7", "cannot make type \"Q9\""},
        {"synthetic:smollm2-135m:Q4_0+Q6_K", "Q6_K needs rows of a multiple of 256"},
        {"synthetic:smollm2-135m:F8", "F8_128 needs rows of a multiple of 128"},
        {"synthetic:tiny:F32:x", "found \"x\""},
        {"synthetic:tiny:F32:-1", "found \"-1\""},
        {"synthetic:tiny:F32: 1", "found \" 1\""},
        {"synthetic:tiny:F32:", "the seed must be a whole number"},
        {"synthetic:tiny:F32:18446744073709551616", "below 2^64"},
        {"synthetic:tiny:F32:1:2", "found \"1:2\""},
        {"synthetic:smollm2-135m:Q4_K",
         "multiple of 256 elements, but smollm2-135m has rows of 576"},
        {"tiny", "expected synthetic:PRESET"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(synthetic_parse(wrong[i].text, NULL, DTYPE_BF16, &spec, &error),
                         QP_INVALID);
        if (!strstr(error.message, wrong[i].message))
            fail_msg("expected \"%s\" in: %s", wrong[i].message, error.message);
    }
}

/* The sizes hang together, and parameters add up to what the models' names say. */
static void test_presets(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double billions;
    } sizes[] = {
        {"llama-3.2-1b", 1.2358},   {"llama-3.2-3b", 3.2127},    {"llama-3.1-8b", 8.0303},
        {"llama-3.1-70b", 70.5537}, {"internlm2-1.8b", 1.8891},  {"smollm2-135m", 0.1345},
        {"mistral-7b", 7.2480},     {"qwen2.5-0.5b", 0.4940},    {"qwen2.5-1.5b", 1.5437},
        {"qwen3-0.6b", 0.5960},     {"mistral-7b-v0.1", 7.2417}, {"qwen3-8b", 8.1907},
        {"smollm3-3b", 3.0751},     {"gemma3-1b", 0.9998},       {"gemma3-4b", 3.8801},
        {"phi-4", 14.6595},         {"phi-4-mini", 3.8360},      {"tiny", 0.0014},
        {"tiny-qwen2", 0.0079},     {"tiny-qwen3", 0.0025},      {"tiny-smollm3", 0.0030},
        {"tiny-mistral", 0.0024},   {"tiny-gemma2", 0.0025},     {"tiny-gemma3", 0.0025},
        {"tiny-granite", 0.0016},   {"qwen3-30b-a3b", 30.5321},  {"olmoe-1b-7b", 6.9191},
        {"gpt-oss-20b", 20.9079},   {"tiny-qwen3moe", 0.0081},   {"tiny-olmoe", 0.0039},
        {"tiny-mixtral", 0.0042},   {"tiny-gpt-oss", 0.0038},    {"wide", 0.5453},
    };
    size_t i = 0;
    for (const synthetic_config *c; (c = synthetic_preset((int)i)); i++) {
        assert_string_equal(c->name, sizes[i].name);
        assert_int_equal(c->n_heads % c->n_kv_heads, 0);
        int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
        int64_t ffn = 3 * c->intermediate_size;
        if (c->n_experts) ffn = c->n_experts * (ffn + 1); /* and the router */
        int64_t layer = c->hidden_size * (2 * q + 2 * kv + ffn + 2);
        int64_t total = c->n_layers * layer + c->hidden_size +
                        c->vocab_size * c->hidden_size * (c->tied ? 1 : 2);
        assert_true(fabs((double)total * 1e-9 - sizes[i].billions) < 1e-4);
    }
    assert_int_equal(i, sizeof sizes / sizeof *sizes);
    assert_null(synthetic_preset(-1));
}

static void test_deviation(void **state)
{
    (void)state;
    enum { ROWS = 64, COLS = 1024, N = ROWS * COLS };
    static float values[N];
    static uint8_t bytes[4 * N];
    synthetic_spec spec = {.config = synthetic_preset(0), .seed = 3};
    synthetic_distribution wanted = {0.0f, 0.02f};
    for (int t = 0; t < N_TYPES; t++) {
        synthetic_fill(&spec, 5, types[t], wanted, bytes, 0, ROWS, COLS);
        dtype_decode(types[t], bytes, values, N);
        double sum = 0, squares = 0, most = 0;
        for (int i = 0; i < N; i++) {
            sum += (double)values[i];
            squares += (double)values[i] * (double)values[i];
            most = fmax(most, fabs((double)values[i]));
        }
        double deviation = sqrt(squares / N), mean = sum / N;
        if (fabs(deviation / 0.02 - 1) > 0.02 || fabs(mean) > 0.02 * 0.02 || most > 0.1)
            fail_msg("%s: deviation %g, mean %g, largest %g", dtype_name(types[t]), deviation, mean,
                     most);
    }
}

static void test_any_order(void **state)
{
    (void)state;
    enum { ROWS = 7 };
    static uint8_t whole[ROWS * 257 * 4], parts[sizeof whole];
    synthetic_spec spec = {.config = synthetic_preset(0), .seed = 9};
    synthetic_distribution wanted = {0.0f, 1.0f};
    for (int t = 0; t < N_TYPES; t++) {
        int64_t cols = dtype_is_quantized(types[t]) ? 256 : 257; /* odd: rows split a hash */
        size_t row = dtype_row_bytes(types[t], cols);
        synthetic_fill(&spec, 1, types[t], wanted, whole, 0, ROWS, cols);
        for (int r = ROWS - 1; r >= 0; r--)
            synthetic_fill(&spec, 1, types[t], wanted, parts + (size_t)r * row, r, 1, cols);
        assert_memory_equal(whole, parts, ROWS * row);
        synthetic_fill(&spec, 2, types[t], wanted, parts, 0, ROWS, cols);
        assert_memory_not_equal(whole, parts, ROWS * row);
        spec.seed++;
        synthetic_fill(&spec, 1, types[t], wanted, parts, 0, ROWS, cols);
        assert_memory_not_equal(whole, parts, ROWS * row);
    }
}

/* A GPU makes elements one by one from the same stream. */
static void test_single_elements(void **state)
{
    (void)state;
    enum { COLS = 768 };
    uint8_t row[4 * COLS], block[SYNTHETIC_MAX_BLOCK];
    synthetic_spec spec = {.config = synthetic_preset(0), .seed = 1};
    synthetic_distribution wanted = {0.0f, 0.5f};
    for (int t = 0; t < N_TYPES; t++) {
        if (types[t] == DTYPE_F8_128) continue; /* encoded on the GPU */
        synthetic_stream stream = synthetic_stream_of(&spec, 4, types[t], wanted);
        synthetic_fill(&spec, 4, types[t], wanted, row, 2, 1, COLS);
        int64_t n = dtype_block_elements(types[t]);
        size_t bytes = dtype_block_bytes(types[t]);
        for (int64_t i = 0; i < COLS / n; i++) {
            uint64_t index = (uint64_t)(2 * (COLS / n) + i);
            float value = synthetic_value(&stream, index);
            uint16_t half = types[t] == DTYPE_F16 ? f32_to_f16(value) : f32_to_bf16(value);
            if (n > 1)
                synthetic_block(&stream, types[t], index, block);
            else if (types[t] == DTYPE_F32)
                memcpy(block, &value, sizeof value);
            else
                memcpy(block, &half, sizeof half);
            assert_memory_equal(block, row + (size_t)i * bytes, bytes);
        }
    }
}

/* The bits must never change, because figures of different machines are compared. */
static void test_bits(void **state)
{
    (void)state;
    static const uint64_t expected[N_TYPES] = {
        0xfe0261e5cea30df8u, 0x21251085cd421010u, 0xa83a21ce40d8b8f0u, 0x30195e2c9ea4fa99u,
        0x4d7f9e504482590cu, 0xebe633b60dc88b8bu, 0x33bb32d60ab42897u, 0x277cc6800b7637afu,
        0x6c622bee4849857eu, 0xb73750a719588001u, 0x7f56eecb9c8d69f9u, 0xa61eee2c0f196f77u,
        0x15161d1ec4968798u,
    };
    enum { COLS = 512 };
    uint8_t row[4 * COLS];
    synthetic_spec spec;
    qp_error error = {0};
    assert_ok(synthetic_parse("synthetic:tiny:F32:42", NULL, DTYPE_BF16, &spec, &error));
    for (int t = 0; t < N_TYPES; t++) {
        synthetic_fill(&spec, synthetic_tensor_id("blk.0.ffn_up.weight"), types[t],
                       synthetic_distribution_of(spec.config, SYNTHETIC_LINEAR, COLS), row, 3, 1,
                       COLS);
        uint64_t sum = 0;
        for (size_t i = 0; i < dtype_row_bytes(types[t], COLS); i++)
            sum = hash_mix(sum ^ row[i]);
        if (sum != expected[t])
            fail_msg("%s: 0x%llx", dtype_name(types[t]), (unsigned long long)sum);
    }
}

static void test_distributions(void **state)
{
    (void)state;
    const synthetic_config *c = synthetic_preset(2); /* llama-3.1-8b: 32 layers, untied */
    assert_true(synthetic_distribution_of(c, SYNTHETIC_EMBEDDING, 4096).deviation == 1);
    assert_true(synthetic_distribution_of(c, SYNTHETIC_LINEAR, 4096).deviation == 0x1p-6f);
    assert_true(synthetic_distribution_of(c, SYNTHETIC_RESIDUAL, 4096).deviation == 0x1p-9f);
    assert_true(synthetic_distribution_of(c, SYNTHETIC_NORM, 4096).mean == 1);
    c = synthetic_preset(0); /* llama-3.2-1b, tied */
    assert_true(synthetic_distribution_of(c, SYNTHETIC_EMBEDDING, 2048).deviation ==
                (float)(1 / sqrt(2048)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_deviation),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_single_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
