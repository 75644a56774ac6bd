/* Ranks on the GPUs of one host: all_reduce and all_gather with rows of many sizes and ranks that
 * are late by turns, a rank that never comes, and models on two GPUs compared with one, by the
 * machine cuda: these need two GPUs. Ranks that share one GPU, and NCCL with one rank. The
 * megakernel: test_mega_ranks.c.
 */
#include "engine_test.h"
#include "gpu_test.h"
#include "likeliest.h"
#include "ranks_test.h"

#include "base/clock.h"
#include "base/hash.h"
#include "cuda/nccl.h"
#include "cuda/ranks.h"
#include "op/exchange_cuda.h"
#include "op/rms_norm/rms_norm.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 2048 * 4100, WEIGHTS = 8192, LATE_BYTES = 256 << 20 };

typedef struct bench {
    cuda_device device;
    cuda_ranks ranks;
    cuda_ops ops[RANKS];
    cuda_buffer x[RANKS], late[RANKS];
    float *host[RANKS], *result, *expected;
} bench;

/* Weights of norms, after the rows. */
static cuda_address weight_of(const bench *b, int r)
{
    return b->x[r].address + (MOST - WEIGHTS) * sizeof(float);
}

static void fill_weight(bench *b, int r)
{
    const cuda_device *d = b->ranks.devices[r];
    for (int i = 0; i < WEIGHTS; i++)
        b->host[r][i] = hash_uniform(hash_random(7, 0, (uint64_t)i)) + 0.5f;
    assert_ok(cuda_check(
        d->driver->copy_to_device(weight_of(b, r), b->host[r], WEIGHTS * sizeof(float), d->stream),
        "copying", &error));
    assert_ok(cuda_device_wait(d, "copying", &error));
}

static void bench_open(bench *b)
{
    memset(b, 0, sizeof *b);
    assert_ok(cuda_device_open(&b->device, &error));
    assert_ok(cuda_ranks_open(&b->ranks, &b->device, NULL, RANKS, CUDA_BY_PEERS, &error));
    b->result = malloc(MOST * sizeof(float));
    b->expected = malloc(MOST * sizeof(float));
    for (int r = 0; r < RANKS; r++) {
        cuda_device *d = b->ranks.devices[r];
        b->host[r] = malloc(MOST * sizeof(float));
        assert_ok(cuda_device_enter(d, &error));
        assert_ok(cuda_ops_init(&b->ops[r], d, 0, false, &error));
        assert_ok(cuda_buffer_alloc(d, MOST * sizeof(float), "x", &b->x[r], &error));
        fill_weight(b, r);
        assert_ok(cuda_buffer_alloc(d, LATE_BYTES, "delays", &b->late[r], &error));
        b->ops[r].exchange = &b->ranks.exchanges[r];
    }
}

static void bench_close(bench *b)
{
    for (int r = 0; r < RANKS; r++) {
        cuda_device *d = b->ranks.devices[r];
        assert_ok(cuda_device_enter(d, &error));
        cuda_buffer_free(d, &b->late[r]);
        cuda_buffer_free(d, &b->x[r]);
        cuda_ops_free(&b->ops[r]);
        free(b->host[r]);
    }
    free(b->result);
    free(b->expected);
    cuda_ranks_close(&b->ranks);
    cuda_device_close(&b->device);
}

static void fill(bench *b, int64_t elements, uint64_t seed)
{
    for (int r = 0; r < RANKS; r++) {
        const cuda_device *d = b->ranks.devices[r];
        for (int64_t i = 0; i < elements; i++)
            b->host[r][i] = hash_uniform(hash_random(seed, (uint64_t)r, (uint64_t)i)) - 0.5f;
        assert_ok(cuda_device_enter(d, &error));
        assert_ok(cuda_check(d->driver->copy_to_device(b->x[r].address, b->host[r],
                                                       (size_t)elements * sizeof(float), d->stream),
                             "copying", &error));
    }
}

/* Another rank is late each time. */
static void delay(bench *b, int r, uint64_t seed)
{
    const cuda_device *d = b->ranks.devices[r];
    for (uint64_t i = hash_random(seed, 99, (uint64_t)r) % 4; i > 0; i--)
        assert_ok(cuda_check(
            d->driver->memory_set(b->late[r].address, (unsigned char)i, LATE_BYTES, d->stream),
            "delaying", &error));
}

static void compare(bench *b, int64_t elements)
{
    for (int r = 0; r < RANKS; r++) {
        const cuda_device *d = b->ranks.devices[r];
        const size_t bytes = (size_t)elements * sizeof(float);
        assert_ok(cuda_device_enter(d, &error));
        assert_ok(cuda_check(d->driver->copy_to_host(b->result, b->x[r].address, bytes, d->stream),
                             "copying", &error));
        assert_ok(cuda_device_wait(d, "the exchange", &error));
        assert_memory_equal(b->result, b->expected, bytes);
    }
    assert_ok(cuda_ranks_check(&b->ranks, &error));
}

static const struct {
    int64_t rows, columns;
} sizes[] = {{1, 64},    {1, 2048},  {8, 8192},   {3, 111},
             {64, 4096}, {65, 4100}, {700, 1001}, {2048, 4096}};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static void test_sums(void **state)
{
    (void)state;
    require_gpus();
    bench b;
    bench_open(&b);
    for (uint64_t round = 0; round < 5 * N_SIZES; round++) {
        const int64_t rows = sizes[round % N_SIZES].rows, columns = sizes[round % N_SIZES].columns;
        fill(&b, rows * columns, round);
        for (int r = 0; r < RANKS; r++) {
            const tensor x = tensor_2d(cuda_host_form(b.x[r].address), DTYPE_F32, rows, columns);
            assert_ok(cuda_device_enter(b.ranks.devices[r], &error));
            delay(&b, r, round);
            assert_ok(cuda_exchange(&b.ops[r], "all_reduce", &x, &x, 0, &error));
        }
        for (int64_t i = 0; i < rows * columns; i++)
            b.expected[i] = b.host[0][i] + b.host[1][i];
        compare(&b, rows * columns);
    }
    bench_close(&b);
}

/* Unequal shares; a rank's own columns lie where they belong. */
static void test_columns(void **state)
{
    (void)state;
    require_gpus();
    bench b;
    bench_open(&b);
    for (uint64_t round = 0; round < 5 * N_SIZES; round++) {
        const int64_t rows = sizes[round % N_SIZES].rows, columns = sizes[round % N_SIZES].columns;
        const int64_t border = round % 3 == 0 ? columns / 8 * 4 : columns / 3;
        fill(&b, rows * columns, round);
        for (int r = 0; r < RANKS; r++) {
            const int64_t first = r ? border : 0, count = r ? columns - border : border;
            const tensor out = tensor_2d(cuda_host_form(b.x[r].address), DTYPE_F32, rows, columns);
            tensor part = out;
            part.data = (float *)part.data + first;
            part.shape[1] = count;
            assert_ok(cuda_device_enter(b.ranks.devices[r], &error));
            delay(&b, r, round);
            assert_ok(cuda_exchange(&b.ops[r], "all_gather", &part, &out, first, &error));
        }
        for (int64_t i = 0; i < rows * columns; i++)
            b.expected[i] = b.host[i % columns >= border][i];
        compare(&b, rows * columns);
    }
    bench_close(&b);
}

/* The likeliest columns of rows that are cut by columns, some of whose largest are equal or none.
 */
static void test_likeliest(void **state)
{
    (void)state;
    require_gpus();
    static const struct {
        int64_t rows, columns;
    } shapes[] = {{1, 128256}, {8, 4096}, {64, 32001}, {200, 512}};
    bench b;
    bench_open(&b);
    for (uint64_t round = 0; round < 16; round++) {
        const int64_t rows = shapes[round % 4].rows, columns = shapes[round % 4].columns;
        const int64_t border = columns / 3;
        fill(&b, rows * columns, round);
        for (int r = 0; r < RANKS; r++) {
            const cuda_device *d = b.ranks.devices[r];
            for (int64_t i = 0; i < rows; i++)
                for (int64_t k = 0; k < 6; k++) /* equal ones, on both ranks */
                    b.host[r][i * columns + (i * 37 + k * columns / 6) % columns] =
                        i % 3 == 0 ? 2 : b.host[0][i * columns];
            assert_ok(cuda_device_enter(d, &error));
            assert_ok(cuda_check(d->driver->copy_to_device(b.x[r].address, b.host[r],
                                                           (size_t)(rows * columns) * sizeof(float),
                                                           d->stream),
                                 "copying", &error));
        }
        for (int r = 0; r < RANKS; r++) {
            const int64_t first = r ? border : 0, count = r ? columns - border : border;
            tensor part = tensor_2d(cuda_host_form(b.x[r].address), DTYPE_F32, rows, columns);
            part.data = (float *)part.data + first;
            part.shape[1] = count;
            const tensor ids = tensor_1d(cuda_host_form(b.late[r].address), DTYPE_I32, rows);
            assert_ok(cuda_device_enter(b.ranks.devices[r], &error));
            assert_ok(cuda_exchange_likeliest(&b.ops[r], &part, first, &ids, &error));
        }
        for (int r = 0; r < RANKS; r++) {
            int32_t found[200];
            const cuda_device *d = b.ranks.devices[r];
            assert_ok(cuda_device_enter(d, &error));
            assert_ok(cuda_check(d->driver->copy_to_host(found, b.late[r].address,
                                                         (size_t)rows * sizeof *found, d->stream),
                                 "copying", &error));
            assert_ok(cuda_device_wait(d, "the exchange", &error));
            for (int64_t i = 0; i < rows; i++) {
                int64_t best = 0;
                for (int64_t k = 1; k < columns; k++)
                    if (b.host[k >= border][i * columns + k] >
                        b.host[best >= border][i * columns + best])
                        best = k;
                assert_int_equal(found[i], best);
            }
        }
    }
    assert_ok(cuda_ranks_check(&b.ranks, &error));
    bench_close(&b);
}

/* rms_norm of x, to `late`. */
static op_call norm_call(const bench *b, int r, int64_t rows, int64_t columns)
{
    op_call call = {.end = rows};
    call.tensors[RMS_NORM_X] = tensor_2d(cuda_host_form(b->x[r].address), DTYPE_F32, rows, columns);
    call.tensors[RMS_NORM_WEIGHT] = tensor_1d(cuda_host_form(weight_of(b, r)), DTYPE_F32, columns);
    call.tensors[RMS_NORM_OUT] =
        tensor_2d(cuda_host_form(b->late[r].address), DTYPE_F32, rows, columns);
    call.params[RMS_NORM_EPS] = 1e-5f;
    return call;
}

static void read_norm(bench *b, int r, float *out, size_t bytes)
{
    const cuda_device *d = b->ranks.devices[r];
    assert_ok(cuda_check(d->driver->copy_to_host(out, b->late[r].address, bytes, d->stream),
                         "copying", &error));
    assert_ok(cuda_device_wait(d, "the norm", &error));
}

/* The norm of a sum, in one launch, has the bits of two launches. */
static void test_norms_of_sums(void **state)
{
    (void)state;
    require_gpus();
    static const int64_t columns_of[] = {64, 2048, 4096, 8192};
    bench b;
    bench_open(&b);
    for (uint64_t round = 0; round < 32; round++) {
        const int64_t rows = 1 + (int64_t)round % 8, columns = columns_of[round % 4];
        const size_t bytes = (size_t)(rows * columns) * sizeof(float);
        fill(&b, rows * columns, round);
        for (int r = 0; r < RANKS; r++) {
            assert_ok(cuda_device_enter(b.ranks.devices[r], &error));
            const op_call norm = norm_call(&b, r, rows, columns);
            const tensor *x = &norm.tensors[RMS_NORM_X];
            delay(&b, r, round);
            assert_true(cuda_exchange_norm_accepts(x, &norm));
            assert_ok(cuda_exchange_norm(&b.ops[r], x, x, &norm, &error));
        }
        for (int64_t i = 0; i < rows * columns; i++)
            b.expected[i] = b.host[0][i] + b.host[1][i];
        compare(&b, rows * columns);
        for (int r = 0; r < RANKS; r++) {
            assert_ok(cuda_device_enter(b.ranks.devices[r], &error));
            const op_call norm = norm_call(&b, r, rows, columns);
            read_norm(&b, r, b.result, bytes);
            assert_ok(cuda_ops_launch(&b.ops[r], cuda_ops_choose(&b.ops[r], OP_RMS_NORM, &norm),
                                      &norm, &error));
            read_norm(&b, r, b.expected, bytes);
            assert_memory_equal(b.result, b.expected, bytes);
        }
    }
    bench_close(&b);
}

/* A rank that waits in vain ends by itself, and names the rank that it waited for; further waits
 * end at once. */
static void test_a_rank_that_never_comes(void **state)
{
    (void)state;
    require_gpus();
    bench b;
    bench_open(&b);
    const tensor x = tensor_2d(cuda_host_form(b.x[0].address), DTYPE_F32, 8, 8192);
    assert_ok(cuda_device_enter(b.ranks.devices[0], &error));
    for (int i = 0; i < 100; i++)
        assert_ok(cuda_exchange(&b.ops[0], "all_reduce", &x, &x, 0, &error));
    assert_ok(cuda_device_wait(b.ranks.devices[0], "the exchange", &error));
    assert_int_equal(cuda_ranks_check(&b.ranks, &error), QP_DEVICE);
    assert_non_null(strstr(error.message, "for rows of rank 1"));
    bench_close(&b);
}

enum { FEW = 6, MANY = 40, DECODED = 24 };

typedef struct answer {
    float *few, *many; /* [FEW or MANY][vocab_size] */
    int32_t tokens[DECODED + 1];
    size_t vocab_size;
} answer;

/* Logits of few rows and of many, and tokens, which are decoded in groups of passes. */
static answer answer_of(const char *model, int ranks, const char *gpus, const char *cut)
{
    int32_t ids[MANY];
    answer a = {0};
    qp_engine *e = open_engine((qp_engine_options){
        .model = model, .exec = "cuda", .context = 256, .ranks = ranks, .gpus = gpus, .cut = cut});
    for (int i = 0; i < MANY; i++)
        ids[i] = (i * 7 + 3) % 64;
    a.vocab_size = (size_t)qp_engine_get_info(e)->vocab_size;
    a.few = eval_fresh(e, ids, FEW);
    a.many = eval_fresh(e, ids, MANY);
    qp_session *session = open_session(e);
    free(eval_rows(e, session, ids, FEW));
    a.tokens[0] = ids[FEW];
    assert_ok(qp_decode(e, &session, 1, DECODED, a.tokens, NULL, &error));
    qp_session_close(session);
    qp_engine_close(e);
    return a;
}

static void free_answer(answer *a)
{
    free(a->few);
    free(a->many);
}

/* Two GPUs compute what one computes: with unequal shares, tied and untied outputs, biases, norms
 * of q and k, quantised weights. For few rows `gather` gives the bits of one GPU if shares are
 * large enough for the same kernels. */
static void test_models(void **state)
{
    (void)state;
    require_gpus();
    static const char *const models[] = {
        "synthetic:tiny:BF16",          "synthetic:tiny:Q4_0", "golden/models/llama-tied-gqa3",
        "golden/models/llama-mlp-bias", "golden/models/qwen3", "golden/models/internlm2"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        answer one = answer_of(models[i], 1, NULL, NULL);
        const size_t v = one.vocab_size;
        for (int gather = 0; gather < 2; gather++) {
            answer two = answer_of(models[i], RANKS, NULL, gather ? "gather" : "reduce");
            assert_near(one.few, two.few, FEW * v);
            assert_near(one.many, two.many, MANY * v);
            if (gather && strstr(models[i], "tiny")) {
                assert_memory_equal(one.few, two.few, FEW * v * sizeof(float));
                assert_memory_equal(one.tokens, two.tokens, sizeof one.tokens);
            }
            free_answer(&two);
        }
        free_answer(&one);
    }
}

/* Ranks that share a GPU exchange through the host's memory; weights of all types. */
static void test_models_on_one_gpu(void **state)
{
    (void)state;
    require_gpu();
    static const char *const models[] = {
        "synthetic:tiny:BF16",           "synthetic:tiny:F16",
        "synthetic:tiny:Q8_0",           "synthetic:tiny:Q4_0",
        "golden/models/llama-tied-gqa3", "golden/models/llama-mlp-bias",
        "golden/models/qwen3",           "golden/models/internlm2"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        answer one = answer_of(models[i], 1, NULL, NULL);
        const size_t v = one.vocab_size;
        for (int way = 0; way < 4; way++) {
            const int ranks = way < 2 ? 2 : 3;
            const bool gather = way % 2;
            answer several = answer_of(models[i], ranks, ranks == 2 ? "0,0" : "0,0,0",
                                       gather ? "gather" : "reduce");
            assert_near(one.few, several.few, FEW * v);
            assert_near(one.many, several.many, MANY * v);
            if (gather && ranks == 2 && strstr(models[i], "tiny")) {
                assert_memory_equal(one.few, several.few, FEW * v * sizeof(float));
                assert_memory_equal(one.tokens, several.tokens, sizeof one.tokens);
            }
            free_answer(&several);
        }
        free_answer(&one);
    }
}

static bool never(const void *context)
{
    (void)context;
    return false;
}

/* NCCL with one rank: it is found, a group is opened, sums are the rows themselves, in a graph too,
 * and the group ends. */
static void test_nccl_alone(void **state)
{
    (void)state;
    require_gpu();
    enum { N = 1 << 19 };
    int version;
    char id[NCCL_ID_BYTES];
    cuda_device d;
    cuda_buffer from, to;
    nccl_group *group;
    cuda_graph graph;
    cuda_graph_exec exec;
    if (nccl_version(&version, &error) != QP_OK) skip_because("%s", error.message);
    assert_ok(cuda_device_open(&d, &error));
    assert_ok(nccl_make_id(id, &error));
    assert_ok(nccl_open(&d, id, 0, 1, never, NULL, &group, &error));
    assert_ok(cuda_buffer_alloc(&d, N * sizeof(float), "rows", &from, &error));
    assert_ok(cuda_buffer_alloc(&d, N * sizeof(float), "rows", &to, &error));
    uint32_t *rows = malloc(N * sizeof *rows), *found = malloc(N * sizeof *found);
    for (int i = 0; i < N; i++)
        rows[i] = (uint32_t)i * 2654435761u;
    nccl_begin(group);
    assert_int_equal(d.driver->copy_to_device(from.address, rows, N * sizeof *rows, d.stream), 0);
    assert_ok(nccl_sum(group, from.address, to.address, N, NCCL_WORDS, &error));
    assert_int_equal(d.driver->capture_begin(d.stream, CUDA_CAPTURE_THREAD_LOCAL), 0);
    assert_ok(nccl_sum(group, from.address, to.address, N, NCCL_WORDS, &error));
    assert_int_equal(d.driver->capture_end(d.stream, &graph), 0);
    assert_int_equal(d.driver->graph_instantiate(&exec, graph, 0), 0);
    d.driver->graph_destroy(graph);
    for (int i = 0; i < 10; i++)
        assert_int_equal(d.driver->graph_launch(exec, d.stream), 0);
    assert_int_equal(d.driver->copy_to_host(found, to.address, N * sizeof *found, d.stream), 0);
    assert_ok(cuda_device_wait(&d, "the sums", &error));
    nccl_end(group);
    assert_ok(nccl_check(group, &error));
    assert_memory_equal(rows, found, N * sizeof *rows);
    d.driver->graph_exec_destroy(exec);
    const uint64_t start = clock_ns();
    nccl_close(group);
    assert_true(clock_ns() - start < UINT64_C(2000000000));
    cuda_buffer_free(&d, &from);
    cuda_buffer_free(&d, &to);
    cuda_device_close(&d);
    free(rows);
    free(found);
}

/* ---- several sequences ----------------------------------------------------------------------- */

enum { SEQUENCES = 8, PASSES = 40, BATCHES = 3 };

typedef struct batch_answer {
    float *logits; /* [SEQUENCES][vocab_size] */
    int32_t tokens[SEQUENCES * (PASSES + 1)];
} batch_answer;

/* Logits of a pass of eight sequences of different lengths, and the tokens that follow. */
static batch_answer batch_answer_of(qp_engine *e)
{
    const size_t v = (size_t)qp_engine_get_info(e)->vocab_size;
    batch_answer a = {.logits = calloc(SEQUENCES * v, sizeof *a.logits)};
    qp_session *sessions[SEQUENCES];
    qp_input inputs[SEQUENCES];
    float *rows[SEQUENCES];
    int32_t ids[SEQUENCES * SEQUENCES];
    for (int i = 0; i < SEQUENCES * SEQUENCES; i++)
        ids[i] = (i * 13 + 5) % 500;
    for (int i = 0; i < SEQUENCES; i++) {
        sessions[i] = open_session(e);
        free(eval_rows(e, sessions[i], ids, (size_t)(1 + i)));
        rows[i] = a.logits + (size_t)i * v;
        inputs[i] = (qp_input){.session = sessions[i], .tokens = ids + 9 * i, .count = 1};
        a.tokens[i] = ids[7 * i];
    }
    logit_sink sink = {.rows = rows, .vocab_size = v};
    assert_ok(qp_eval(e, inputs, SEQUENCES, take_logits, &sink, NULL, &error));
    assert_ok(qp_decode(e, sessions, SEQUENCES, PASSES, a.tokens, NULL, &error));
    for (int i = 0; i < SEQUENCES; i++)
        qp_session_close(sessions[i]);
    return a;
}

/* Chains sum rows over ranks: what one GPU computes, and the same bits each time. */
static void test_batches(void **state)
{
    (void)state;
    require_gpus();
    static const char *const models[] = {"synthetic:tiny:BF16", "synthetic:llama-3.2-1b:BF16",
                                         "synthetic:mistral-7b:BF16", "synthetic:wide:BF16"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        qp_engine_options options = {.model = models[i],
                                     .exec = "cuda",
                                     .context = 256,
                                     .max_sessions = SEQUENCES,
                                     .max_outputs = SEQUENCES,
                                     .ranks = 1};
        qp_engine *one = open_engine(options);
        const size_t v = (size_t)qp_engine_get_info(one)->vocab_size;
        const batch_answer expected = batch_answer_of(one);
        qp_engine_close(one);
        options.ranks = RANKS;
        qp_engine *two = open_engine(options);
        const batch_answer first = batch_answer_of(two);
        for (size_t row = 0; row < SEQUENCES; row++)
            assert_near(expected.logits + row * v, first.logits + row * v, v);
        for (int again = 1; again < BATCHES; again++) {
            const batch_answer next = batch_answer_of(two);
            assert_memory_equal(first.logits, next.logits, SEQUENCES * v * sizeof(float));
            assert_memory_equal(first.tokens, next.tokens, sizeof first.tokens);
            free(next.logits);
        }
        qp_engine_close(two);
        free(expected.logits);
        free(first.logits);
    }
}

/* ---- prompts --------------------------------------------------------------------------------- */

enum { LONG_PROMPT = 1301, AGAIN = 5 };

/* Keeps the logits of the last row it sees; or of all rows, in their order. */
typedef struct row_sink {
    float *rows;
    size_t vocab_size, n;
    bool every;
} row_sink;

static qp_status keep_row(void *context, size_t input, size_t token, const float *logits)
{
    row_sink *s = context;
    (void)input, (void)token;
    memcpy(s->rows + (s->every ? s->n : 0) * s->vocab_size, logits, s->vocab_size * sizeof *logits);
    s->n++;
    return QP_OK;
}

/* Logits of all rows of a prompt, or of its last row. */
static float *prompt_of(qp_engine *e, bool every_row)
{
    int32_t ids[LONG_PROMPT];
    const size_t v = (size_t)qp_engine_get_info(e)->vocab_size, n = every_row ? LONG_PROMPT : 1;
    row_sink sink = {.rows = calloc(n * v, sizeof(float)), .vocab_size = v, .every = every_row};
    qp_session *session = open_session(e);
    for (int i = 0; i < LONG_PROMPT; i++)
        ids[i] = (i * 13 + i * i % 7) % 500;
    const qp_input input = {
        .session = session, .tokens = ids, .count = LONG_PROMPT, .every_row = every_row};
    assert_ok(qp_eval(e, &input, 1, keep_row, &sink, NULL, &error));
    assert_int_equal(sink.n, n);
    qp_session_close(session);
    return sink.rows;
}

/* Ranks cut the rows of a prompt among them, an odd number too: what one GPU computes, and the same
 * bits each time. */
static void test_prompts(void **state)
{
    (void)state;
    require_gpus();
    static const char *const models[] = {"synthetic:tiny:BF16", "synthetic:llama-3.2-1b:BF16",
                                         "synthetic:wide:BF16", "synthetic:tiny:Q8_0"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        qp_engine_options options = {.model = models[i], .exec = "cuda", .context = 2048};
        const bool every_row = strstr(models[i], "tiny") != NULL;
        options.ranks = 1;
        qp_engine *one = open_engine(options);
        const size_t n =
            (size_t)qp_engine_get_info(one)->vocab_size * (every_row ? LONG_PROMPT : 1);
        float *expected = prompt_of(one, every_row);
        qp_engine_close(one);
        options.ranks = RANKS;
        qp_engine *two = open_engine(options);
        float *first = prompt_of(two, every_row);
        assert_near(expected, first, n);
        for (int again = 1; again < AGAIN; again++) {
            float *next = prompt_of(two, every_row);
            assert_memory_equal(first, next, n * sizeof(float));
            free(next);
        }
        qp_engine_close(two);
        free(expected);
        free(first);
    }
}

/* ---- speculation ----------------------------------------------------------------------------- */

enum { SPECULATED = 200 };

static void speculated_tokens(const char *speculate, const char *draft, int ranks, token_list *out)
{
    qp_engine *e = open_engine((qp_engine_options){.model = "synthetic:tiny:BF16",
                                                   .exec = "cuda",
                                                   .context = 512,
                                                   .ranks = ranks,
                                                   .speculate = speculate,
                                                   .draft = draft});
    assert_ok(generate(e, SPECULATED, 16, out, &error));
    assert_int_equal(out->count, SPECULATED);
    qp_engine_close(e);
}

/* Proposed tokens are verified on all ranks: the answer stays the same. */
static void test_speculation(void **state)
{
    (void)state;
    require_gpus();
    static token_list expected, found;
    speculated_tokens(NULL, NULL, RANKS, &expected);
    speculated_tokens("lookup", NULL, RANKS, &found);
    assert_memory_equal(expected.of, found.of, SPECULATED * sizeof *found.of);
    speculated_tokens(NULL, "synthetic:tiny:BF16:2", RANKS, &found);
    assert_memory_equal(expected.of, found.of, SPECULATED * sizeof *found.of);
}

/* An argument chooses tests. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_norms_of_sums),
        cmocka_unit_test(test_likeliest),
        cmocka_unit_test(test_a_rank_that_never_comes),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_models_on_one_gpu),
        cmocka_unit_test(test_nccl_alone),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_speculation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
