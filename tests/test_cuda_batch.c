/* Batches on the GPU: a sequence's logits have the same bits in every run, in any row, beside any
 * other sequences. Also which products use which kernel, which needs no GPU. */
#include "engine_test.h"
#include "gpu_test.h"
#include "kernels_for_tests.h"
#include "op/linear/linear.h"
#include "op/linear/linear_eight_cuda.h"
#include "op/linear/linear_stream_cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 64,
    COMPARED = 9,
    STEPS = 3,
    RUNS = 100,
    LONG = 1600, /* positions that attention cuts into two parts */
    FEW = 7,     /* multiprocessors: each has many heads of many sequences then */
    CONTEXT = LONG + STEPS,
};

static int32_t token_of(int session, int position)
{
    return (session * 131 + position * 17 + 3) % 500;
}

/* Lengths with which sessions end in different sixteens of positions and different pages. */
static int prompt_of(int session, int n, bool one_long)
{
    return one_long && session == n - 1 ? LONG : 20 + session * 7;
}

/* Sequences that stand side by side. */
typedef struct sequences {
    qp_engine *engine;
    int n;
    bool one_long; /* the last of them is LONG */
    qp_session *sessions[MOST];
    int32_t tokens[MOST][CONTEXT];
    float *logits; /* [n][vocab_size], after the last step of each */
} sequences;

/* Reads a prompt into each of n sessions, alone. end_sequences() them. */
static void open_sequences(sequences *s, qp_engine *engine, int n, bool one_long)
{
    qp_error error;
    s->engine = engine;
    s->n = n;
    s->one_long = one_long;
    s->logits = calloc((size_t)n * (size_t)qp_engine_get_info(engine)->vocab_size, sizeof(float));
    assert_non_null(s->logits);
    for (int i = 0; i < n; i++) {
        int prompt = prompt_of(i, n, one_long);
        for (int t = 0; t < prompt + STEPS; t++)
            s->tokens[i][t] = token_of(i, t);
        s->sessions[i] = open_session(engine);
        qp_input input = {
            .session = s->sessions[i], .tokens = s->tokens[i], .count = (size_t)prompt};
        assert_ok(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error));
    }
}

/* Closes the sessions; their logits, to free(). */
static float *end_sequences(sequences *s)
{
    for (int i = 0; i < s->n; i++)
        qp_session_close(s->sessions[i]);
    return s->logits;
}

/* Reads STEPS tokens of all sequences side by side behind their prompts; `turned` says by how many
 * rows. */
static void run_steps(sequences *s, int turned)
{
    qp_input inputs[MOST];
    float *rows[MOST];
    qp_error error;
    logit_sink sink = {rows, (size_t)qp_engine_get_info(s->engine)->vocab_size};
    for (int i = 0; i < s->n; i++)
        qp_session_truncate(s->sessions[i], (size_t)prompt_of(i, s->n, s->one_long), NULL);
    for (int step = 0; step < STEPS; step++) {
        for (int row = 0; row < s->n; row++) {
            int i = (row + turned) % s->n;
            rows[row] = s->logits + (size_t)i * sink.vocab_size;
            inputs[row] =
                (qp_input){.session = s->sessions[i],
                           .tokens = &s->tokens[i][prompt_of(i, s->n, s->one_long) + step],
                           .count = 1};
        }
        assert_ok(qp_eval(s->engine, inputs, (size_t)s->n, take_logits, &sink, NULL, &error));
    }
}

/* On `multiprocessors` multiprocessors of the GPU; 0: on all. */
static qp_engine *open_for_batches(const char *model, int multiprocessors)
{
    qp_engine *engine = open_engine((qp_engine_options){.model = model,
                                                        .context = CONTEXT,
                                                        .max_sessions = MOST,
                                                        .device = "cuda",
                                                        .exec = "cuda"});
    if (multiprocessors) engine->device.n_multiprocessors = multiprocessors;
    return engine;
}

static size_t bytes_of_logits(const qp_engine *engine, int n)
{
    return (size_t)n * (size_t)qp_engine_get_info(engine)->vocab_size * sizeof(float);
}

static const char *const models[] = {"synthetic:tiny:BF16", "synthetic:smollm2-135m:BF16"};

/* The sequences of the first of `batches`, which end with 0, in all of them; in batches of 10 one
 * is LONG. */
static void check_neighbours(const char *model, const int *batches, int multiprocessors)
{
    static sequences s;
    qp_engine *engine = open_for_batches(model, multiprocessors);
    float *expected = NULL;
    for (int b = 0; batches[b]; b++) {
        /* Beside a long one attention is a kernel of its own, not a step of the batch's. */
        open_sequences(&s, engine, batches[b], batches[b] == 10);
        run_steps(&s, b);
        float *found = end_sequences(&s);
        if (!expected) expected = found;
        if (memcmp(expected, found, bytes_of_logits(engine, batches[0])) != 0)
            fail_msg("%s: other logits in a batch of %d", model, batches[b]);
        if (found != expected) free(found);
    }
    free(expected);
    qp_engine_close(engine);
}

static void test_neighbours(void **state)
{
    (void)state;
    static const int batches[] = {COMPARED, 16, 17, 33, MOST, 10, 0};
    require_gpu();
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        check_neighbours(models[m], batches, 0);
    check_neighbours(models[1], (const int[]){2, 8, COMPARED, MOST, 0}, 0);
}

/* Few and many sequences of weights in any type, which batches read in BF16. */
static void test_few_neighbours(void **state)
{
    (void)state;
    static const char *const few[] = {
        "synthetic:tiny:BF16", "synthetic:tiny:F16",  "synthetic:tiny:Q8_0", "synthetic:tiny:Q4_0",
        "synthetic:tiny:Q4_1", "synthetic:tiny:Q4_K", "synthetic:tiny:Q6_K", "synthetic:tiny:Q5_0"};
    require_gpu();
    for (size_t m = 0; m < sizeof few / sizeof *few; m++)
        check_neighbours(few[m], (const int[]){2, 5, 8, 9, 33, MOST, 0}, 0);
    check_neighbours("synthetic:smollm2-135m:Q8_0", (const int[]){2, 8, 16, 17, 63, 0}, 0);
}

/* Weights in FP8: sequences that are alone are batches too. */
static void test_f8_neighbours(void **state)
{
    (void)state;
    require_gpu();
    check_neighbours("synthetic:tiny:F8", (const int[]){1, 2, 5, 9, 10, 33, MOST, 0}, 0);
    check_neighbours("synthetic:llama-3.2-1b:F8", (const int[]){1, 2, 8, 10, 17, MOST, 0}, 0);
    check_neighbours("synthetic:tiny:F8+BF16", (const int[]){1, 9, MOST, 0}, 0);
}

/* The logits of `n` sequences with the weights in the order of chains, or in BF16. */
static float *logits_with(const char *model, int n, bool packed, size_t *count)
{
    static sequences s;
    qp_engine *engine = open_for_batches(model, 0);
    cuda_executor *x = cuda_machine_executor(engine_memory(engine));
    assert_non_null(x->setting.packed);
    if (!packed) x->setting.packed = NULL;
    *count = bytes_of_logits(engine, n) / sizeof(float);
    open_sequences(&s, engine, n, false);
    run_steps(&s, 1);
    float *logits = end_sequences(&s);
    qp_engine_close(engine);
    return logits;
}

static float largest(const float *v, size_t count)
{
    float most = 0;
    for (size_t i = 0; i < count; i++)
        most = fmaxf(most, fabsf(v[i]));
    return most;
}

/* Chains decode quantised weights to the numbers that they have in BF16; of types with a minimum
 * to these or, seldom, to their neighbours. */
static void test_packed(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        float most; /* difference, as a part of the largest logit */
    } cases[] = {{"synthetic:tiny:Q4_0", 0},         {"synthetic:tiny:Q6_K", 0},
                 {"synthetic:tiny:Q4_1", 0.01f},     {"synthetic:tiny:Q4_K", 0.01f},
                 {"synthetic:smollm2-135m:Q4_0", 0}, {"synthetic:llama-3.2-1b:Q4_K+Q6_K", 0.01f}};
    require_gpu();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int n = 5; n <= MOST; n += 22) {
            size_t count;
            float *decoded = logits_with(cases[c].model, n, false, &count);
            float *packed = logits_with(cases[c].model, n, true, &count);
            const float most = largest(decoded, count);
            for (size_t i = 0; i < count; i++)
                decoded[i] -= packed[i];
            const float differs = largest(decoded, count);
            assert_true(most > 0);
            if (!(differs <= cases[c].most * most))
                fail_msg("%s: logits of %d sequences differ by %g of %g", cases[c].model, n,
                         (double)differs, (double)most);
            free(decoded);
            free(packed);
        }
}

/* The same sequences again and again, in other rows each time: first by the usual kernels, then by
 * those whose warps sleep. */
static void check_runs(const char *model, int n, int multiprocessors)
{
    static sequences s;
    float *first = NULL;
    qp_error error;
    for (int delayed = 0; delayed < 2; delayed++) {
        qp_engine *engine = open_for_batches(model, multiprocessors);
        size_t bytes = bytes_of_logits(engine, n);
        if (delayed) assert_ok(delay_batches(engine, &error));
        open_sequences(&s, engine, n, false);
        for (int run = 0; run < RUNS / 2; run++) {
            memset(s.logits, 0, bytes);
            run_steps(&s, run % n);
            if (!first) {
                first = malloc(bytes);
                assert_non_null(first);
                memcpy(first, s.logits, bytes);
            }
            if (memcmp(first, s.logits, bytes) != 0)
                fail_msg("%s: other logits of %d sequences in run %d by %s kernels", model, n, run,
                         delayed ? "delayed" : "usual");
        }
        free(end_sequences(&s));
        qp_engine_close(engine);
    }
    free(first);
}

static void test_runs(void **state)
{
    (void)state;
    static const int batches[] = {COMPARED, 33, MOST};
    require_gpu();
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++)
            check_runs(models[m], batches[b], 0);
}

/* What families have besides a Llama's layers: biases, norms of heads, layers without RoPE,
 * windows, groups of six heads. In a batch of 10 they are kernels of their own in part. */
static void test_families(void **state)
{
    (void)state;
    static const char *const families[] = {
        "synthetic:tiny-smollm3:BF16", "synthetic:tiny-qwen2:BF16", "synthetic:tiny-qwen2:Q4_K",
        "synthetic:tiny-qwen3:BF16",   "synthetic:tiny-qwen3:Q4_0", "synthetic:tiny-mistral:BF16",
        "synthetic:qwen2.5-0.5b:BF16"};
    require_gpu();
    for (size_t m = 0; m < sizeof families / sizeof *families; m++)
        check_neighbours(families[m], (const int[]){2, COMPARED, 33, MOST, 10, 0}, 0);
    check_runs(families[0], COMPARED, 0);
}

/* Where a block has up to 28 heads of sequences. */
static void test_few_multiprocessors(void **state)
{
    (void)state;
    static const int batches[] = {COMPARED, 33, MOST, 10, 0};
    require_gpu();
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        check_neighbours(models[m], batches, FEW);
        check_runs(models[m], MOST, FEW);
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

static const cuda_ops alone = {.few_rows = CUDA_FEW_ROWS}, among = {.few_rows = 1};

static bool is_taken(const cuda_ops *ops, int64_t rows, int64_t in_features, dtype type)
{
    op_call call = product(rows, in_features, 256, type);
    return cuda_linear_stream_accepts(&call) && cuda_linear_stream_pays(ops, &call);
}

static void test_choice(void **state)
{
    (void)state;
    assert_false(is_taken(&alone, 8, 2048, DTYPE_BF16));
    assert_true(is_taken(&alone, 9, 2048, DTYPE_BF16));
    assert_true(is_taken(&alone, 64, 2048, DTYPE_BF16));
    assert_false(is_taken(&alone, 65, 2048, DTYPE_BF16)); /* cuBLASLt's */
    assert_false(
        is_taken(&alone, 64, 2044, DTYPE_BF16)); /* rows of BF16 not at multiples of 16 bytes */
    assert_false(is_taken(&alone, 64, 2048, DTYPE_F16));
    assert_false(is_taken(&alone, 64, 2048, DTYPE_Q8_0));
    /* Where an engine has several sequences, batches of two to 64 rows have the same bits. */
    assert_false(is_taken(&among, 1, 2048, DTYPE_BF16));
    assert_true(is_taken(&among, 2, 2048, DTYPE_BF16));
    assert_true(is_taken(&among, 64, 2048, DTYPE_BF16));
}

static bool eight_takes_of(const cuda_ops *ops, int64_t rows, int64_t in_features, dtype type)
{
    op_call call = product(rows, in_features, 256, type);
    return cuda_linear_eight_accepts(&call) && cuda_linear_eight_pays(ops, &call);
}

static bool eight_takes(int64_t rows, int64_t in_features, dtype type)
{
    return eight_takes_of(&alone, rows, in_features, type);
}

/* Few rows are taken or not whatever their number, so that a row has the same bits. */
static void test_choice_of_few(void **state)
{
    (void)state;
    for (int rows = 1; rows <= 8; rows++) {
        assert_true(eight_takes(rows, 2048, DTYPE_BF16));
        assert_true(eight_takes(rows, 576, DTYPE_Q4_1)); /* rows of 360 bytes */
        assert_true(eight_takes(rows, 512, DTYPE_Q6_K));
        assert_false(eight_takes(rows, 768, DTYPE_Q6_K)); /* rows of 630 bytes */
        assert_false(eight_takes(rows, 2056, DTYPE_F16)); /* no whole 32 */
        assert_false(eight_takes(rows, 2048, DTYPE_Q5_0));
        assert_false(eight_takes(rows, 2048, DTYPE_F32));
    }
    assert_false(eight_takes(9, 2048, DTYPE_BF16));
    assert_true(eight_takes_of(&among, 1, 2048, DTYPE_BF16));
    assert_false(eight_takes_of(&among, 2, 2048, DTYPE_BF16));
    assert_true(eight_takes(63, 2048, DTYPE_F16));
    assert_true(eight_takes(63, 2048, DTYPE_Q4_K));
    assert_false(eight_takes(64, 2048, DTYPE_Q4_K)); /* cuBLASLt's */
    op_call call = product(3, 2048, 256, DTYPE_Q8_0);
    call.tensors[LINEAR_X].type = DTYPE_BF16;
    assert_false(cuda_linear_eight_accepts(&call));
    call = product(3, 2048, 256, DTYPE_Q4_K);
    call.tensors[LINEAR_WEIGHT].data = (char *)call.tensors[LINEAR_WEIGHT].data + 8;
    assert_false(cuda_linear_eight_accepts(&call));
    call.tensors[LINEAR_WEIGHT].type = DTYPE_Q6_K;
    assert_true(cuda_linear_eight_accepts(&call));
    call.tensors[LINEAR_WEIGHT].shape[0] = 15; /* no tile of rows */
    assert_false(cuda_linear_eight_accepts(&call));
}

static void assert_cut(int64_t features, int64_t n_steps, int rows, int ranks)
{
    cuda_stream_cut cut = cuda_stream_cut_of(features, n_steps, 132);
    assert_int_equal(cut.rows, rows);
    assert_int_equal(cut.ranks, ranks);
}

static void test_cuts(void **state)
{
    (void)state;
    assert_cut(2048, 32, 64, 4); /* 128 blocks; as of 128 rows in 8 parts, but half as many */
    assert_cut(2048, 128, 64, 4);
    assert_cut(3072, 32, 64, 2);   /* 96 blocks of 16 steps */
    assert_cut(5120, 48, 128, 3);  /* 120 of 16 */
    assert_cut(6144, 64, 128, 2);  /* 96 of 32 */
    assert_cut(16384, 32, 128, 1); /* enough tiles */
    assert_cut(128, 1, 128, 1);    /* no part is empty */
    assert_cut(128, 3, 128, 3);
    assert_cut(960, 9, 128, 5); /* and those of low tiles are whole stages */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),   cmocka_unit_test(test_choice_of_few),
        cmocka_unit_test(test_cuts),     cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_families), cmocka_unit_test(test_few_neighbours),
        cmocka_unit_test(test_packed),   cmocka_unit_test(test_f8_neighbours),
        cmocka_unit_test(test_runs),     cmocka_unit_test(test_few_multiprocessors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
