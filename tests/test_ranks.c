/* Several ranks as one machine. With the cut `gather` every tensor, the logits and the tokens have
 * the bits of one rank, on every machine of the CPU, for any number of ranks that can share the
 * model; with `reduce` they are near. What is written and read goes through all ranks. A rank that
 * fails ends the others.
 */
#include "test.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "comm/comm_parts.h"
#include "lower/lower.h"
#include "schedule/build.h"
#include "vm/machine.h"
#include "vm/ranks.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTEXT = 32, PAGE = 4, PROMPT = 7, STEPS = 4, MOST_VOCAB = 1024 };

static qp_error error;

typedef struct bench {
    model *model;
    program program;
    thread_pool *pool;
    machine machine;
    batch batch;
    int32_t pages[CONTEXT / PAGE];
} bench;

static void bench_open(bench *b, const char *path, const machine_type *type, int n_ranks,
                       plan_cut cut, bool fuse)
{
    *b = (bench){0};
    assert_ok(model_open(path, NULL, &b->model, &error));
    plan_options o = plan_default_options(model_get_config(b->model));
    o.max_tokens = 16, o.context = CONTEXT, o.page_size = PAGE, o.fuse = fuse;
    assert_ok(lower_build(model_get_config(b->model), b->model, &o, &b->program, &error));
    assert_ok(thread_pool_create(1, &b->pool, &error));
    assert_ok(batch_init(&b->batch, &b->program, &error));
    const schedule_options schedule = schedule_run_options(&b->program);
    const machine_setup setup = {.program = &b->program,
                                 .pool = b->pool,
                                 .cpu_features = cpu_features(0),
                                 .schedule = &schedule,
                                 .inner = type,
                                 .n_ranks = n_ranks,
                                 .cut = cut};
    assert_ok(machine_open(n_ranks > 1 ? &machine_ranks : type, &setup, &b->machine, &error));
    for (int i = 0; i < CONTEXT / PAGE; i++)
        b->pages[i] = CONTEXT / PAGE - 1 - i;
}

static void bench_close(bench *b)
{
    machine_close(&b->machine);
    batch_free(&b->batch);
    thread_pool_destroy(b->pool);
    program_free(&b->program);
    model_close(b->model);
}

static void fill(bench *b, const int32_t *ids, int n, int past)
{
    batch_clear(&b->batch);
    batch_add(&b->batch, ids, n, past, b->pages);
    batch_set_angles(&b->batch, 0, past, n, past + n);
    batch_want(&b->batch, n - 1);
    ((int64_t *)b->batch.of[PLAN_SEEDS])[0] = 7;
    batch_i32(&b->batch, PLAN_SAMPLE_POSITIONS)[0] = past + n;
    ((float *)b->batch.of[PLAN_TEMPERATURES])[0] = 1.5F;
    batch_i32(&b->batch, PLAN_TOP_KS)[0] = 0;
    ((float *)b->batch.of[PLAN_TOP_PS])[0] = 1;
    ((float *)b->batch.of[PLAN_MIN_PS])[0] = 0;
}

/* What a conversation leaves: logits of each pass, sampled tokens, and the cache of layer 0. */
typedef struct outcome {
    float logits[STEPS + 1][MOST_VOCAB];
    int32_t tokens[STEPS + 1];
    char cache[2][CONTEXT * 4096];
    size_t cache_bytes;
} outcome;

static void converse(bench *b, outcome *out)
{
    int32_t ids[PROMPT];
    const int64_t vocab = b->program.config.vocab_size;
    assert_true(vocab <= MOST_VOCAB);
    for (int i = 0; i < PROMPT; i++)
        ids[i] = (int32_t)((37 * i + 3) % (vocab < 250 ? vocab : 250));
    for (int step = 0; step <= STEPS; step++) {
        const machine_request r = {.batch = &b->batch,
                                   .choice = step % 2 ? MACHINE_SAMPLED : MACHINE_LIKELIEST,
                                   .logits = true,
                                   .tokens = &out->tokens[step]};
        fill(b, step ? &out->tokens[step - 1] : ids, step ? 1 : PROMPT,
             step ? PROMPT + step - 1 : 0);
        assert_ok(machine_pass(&b->machine, &r, &error));
        memcpy(out->logits[step], machine_logits(&b->machine), (size_t)vocab * sizeof(float));
    }
    out->cache_bytes = b->program.tensors[PLAN_K_CACHE].bytes;
    assert_true(out->cache_bytes <= sizeof out->cache[0]);
    for (int i = 0; i < 2; i++)
        assert_ok(machine_read(&b->machine, (plan_tensor_id)(PLAN_K_CACHE + i), 0, out->cache[i],
                               out->cache_bytes, &error));
}

static const char *const models[] = {"golden/models/llama-tied-gqa3",
                                     "golden/models/llama-gqa4-sharded",
                                     "golden/models/llama-gqa8-f16.gguf",
                                     "golden/models/llama-attention-bias",
                                     "golden/models/llama-mlp-bias",
                                     "golden/models/llama-minimal",
                                     "golden/models/llama-blocks32.gguf",
                                     "golden/models/llama-blocks256.gguf",
                                     "golden/models/internlm2",
                                     "golden/models/qwen2",
                                     "golden/models/qwen3",
                                     "golden/models/llama-dynamic",
                                     "golden/models/mistral",
                                     "golden/models/gemma2",
                                     "golden/models/gemma3-types.gguf",
                                     "golden/models/glm4",
                                     "golden/models/granite.gguf",
                                     "golden/models/olmo2",
                                     "golden/models/olmoe.gguf",
                                     "golden/models/mixtral",
                                     "golden/models/qwen3moe.gguf",
                                     "golden/models/gpt-oss",
                                     "golden/models/gpt-oss-mxfp4.gguf",
                                     "golden/models/cohere2.gguf"};
enum { N_MODELS = sizeof models / sizeof *models };

static void assert_same(const outcome *a, const outcome *b, const char *model, const char *type,
                        int n)
{
    if (memcmp(a->logits, b->logits, sizeof a->logits) != 0 ||
        memcmp(a->tokens, b->tokens, sizeof a->tokens) != 0)
        fail_msg("%s: %d ranks of %s give other logits or tokens than one", model, n, type);
    for (int i = 0; i < 2; i++)
        if (memcmp(a->cache[i], b->cache[i], a->cache_bytes) != 0)
            fail_msg("%s: %d ranks of %s leave another cache than one", model, n, type);
}

/* Of a model whose norms span all heads a rank has whole KV heads. */
static int64_t most_ranks(const model_config *c)
{
    return c->norms_span_heads ? c->n_kv_heads : c->n_heads;
}

static void ranks_give_the_bits_of_one(void **state)
{
    (void)state;
    static const machine_type *const types[] = {&machine_reference, &machine_serial,
                                                &machine_threads, &machine_operators};
    static outcome one, several;
    for (int m = 0; m < N_MODELS; m++) {
        for (int t = 0; t < 4; t++) {
            bench b;
            int64_t heads = 0;
            for (int n = 1; n <= 8; n += n < 4 ? 1 : 4) {
                if ((n > 2 && t < 2) || (n > 4 && t == 3)) continue; /* references are slow */
                if (n > 1 && n > heads) continue;
                outcome *out = n == 1 ? &one : &several;
                bench_open(&b, models[m], types[t], n, PLAN_GATHER, false);
                heads = most_ranks(&b.program.config);
                memset(out, 0, sizeof *out);
                converse(&b, out);
                bench_close(&b);
                if (n > 1) assert_same(&one, &several, models[m], types[t]->name, n);
            }
        }
    }
}

static void fused_programs_have_ranks_too(void **state)
{
    (void)state;
    static outcome one, several;
    bench b;
    for (int m = 0; m < N_MODELS; m++) {
        bench_open(&b, models[m], &machine_threads, 1, PLAN_GATHER, true);
        memset(&one, 0, sizeof one);
        converse(&b, &one);
        bench_close(&b);
        bench_open(&b, models[m], &machine_threads, 2, PLAN_GATHER, true);
        memset(&several, 0, sizeof several);
        converse(&b, &several);
        bench_close(&b);
        assert_same(&one, &several, models[m], "threads, fused", 2);
    }
}

/* Partial sums are rounded in another order. */
static void partial_sums_are_near(void **state)
{
    (void)state;
    static outcome one, several;
    for (int m = 0; m < N_MODELS; m++) {
        bench b;
        const int64_t vocab = MOST_VOCAB;
        if (strstr(models[m], "blocks256") || strstr(models[m], "mxfp4"))
            continue; /* a row of the down projection is one block, which is not cut */
        bench_open(&b, models[m], &machine_threads, 1, PLAN_GATHER, false);
        memset(&one, 0, sizeof one);
        converse(&b, &one);
        bench_close(&b);
        bench_open(&b, models[m], &machine_threads, 2, PLAN_REDUCE, false);
        memset(&several, 0, sizeof several);
        converse(&b, &several);
        bench_close(&b);
        double difference = 0, norm = 0;
        for (int64_t i = 0; i < vocab; i++) {
            difference += pow((double)one.logits[0][i] - (double)several.logits[0][i], 2);
            norm += pow((double)one.logits[0][i], 2);
        }
        if (!(difference <= 1e-8 * norm))
            fail_msg("%s: partial sums differ by %g of %g", models[m], sqrt(difference),
                     sqrt(norm));
    }
}

/* What is written to ranks is read from them, and goes where their kernels look for it. */
static void tensors_are_taken_apart_and_put_together(void **state)
{
    static const plan_tensor_id ids[] = {PLAN_X,       PLAN_ATTN,    PLAN_FFN,     PLAN_K_CACHE,
                                         PLAN_V_CACHE, PLAN_HISTORY, PLAN_EXPERTS, PLAN_ATTN_SUMS};
    bench b;
    const bool experts = *state;
    bench_open(&b, experts ? "golden/models/gpt-oss" : models[0], &machine_threads, experts ? 2 : 3,
               PLAN_GATHER, false);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const size_t bytes = b.program.tensors[ids[i]].kind == PLAN_STATE
                                 ? (size_t)b.program.config.vocab_size * 4
                                 : b.program.tensors[ids[i]].bytes;
        if (bytes == 0) continue; /* the model has none */
        unsigned char *data = malloc(bytes), *found = malloc(bytes);
        for (size_t k = 0; k < bytes; k++)
            data[k] = (unsigned char)(k * 31 + i);
        assert_ok(machine_write(&b.machine, ids[i], 0, data, bytes, &error));
        memset(found, 0, bytes);
        assert_ok(machine_read(&b.machine, ids[i], 0, found, bytes, &error));
        assert_memory_equal(found, data, bytes);
        free(data);
        free(found);
    }
    const size_t bytes = machine_page_bytes(&b.program);
    unsigned char *page = malloc(bytes), *copy = malloc(bytes);
    for (size_t k = 0; k < bytes; k++)
        page[k] = (unsigned char)(k * 7);
    assert_ok(machine_write_page(&b.machine, 1, page, &error));
    assert_ok(machine_copy_page(&b.machine, 1, 2, &error));
    assert_ok(machine_read_page(&b.machine, 2, copy, &error));
    assert_memory_equal(copy, page, bytes);
    free(page);
    free(copy);
    bench_close(&b);
}

/* ---- the group ----------------------------------------------------------------------------- */

enum { SIZE = 3, ROUNDS = 2000 };

static void *talk(void *context)
{
    comm *c = context;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const size_t bytes = (size_t)(comm_rank(c) + 1) * sizeof(uint32_t) * (i % 5 + 1);
        uint32_t *stage = comm_stage(c, bytes);
        for (size_t k = 0; k < bytes / sizeof *stage; k++)
            stage[k] = i * 16 + (uint32_t)comm_rank(c);
        const comm_part *parts = comm_exchange(c, i, bytes, 100, COMM_BUSY);
        if (!parts) return "an exchange failed";
        for (uint32_t r = 0; r < SIZE; r++) {
            const uint32_t *words = parts[r].data;
            const size_t n = parts[r].bytes / sizeof *words;
            if (n != (r + 1) * (i % 5 + 1)) return "a part has another size";
            for (size_t k = 0; k < n; k++)
                if (words[k] != i * 16 + r) return "a part has other words";
        }
    }
    return NULL;
}

static void all_talk(void *(*talks)(void *context))
{
    comm *ends[SIZE];
    pthread_t threads[SIZE];
    assert_ok(comm_threads_open(SIZE, ends, &error));
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, talks, ends[i]), 0);
    for (int i = 0; i < SIZE; i++) {
        void *problem;
        pthread_join(threads[i], &problem);
        if (problem) fail_msg("%s", (const char *)problem);
    }
    for (int i = 0; i < SIZE; i++)
        comm_close(ends[i]);
}

static void exchanges_deliver_what_was_given(void **state)
{
    (void)state;
    all_talk(talk);
}

enum { COMMON = 1000 };

/* Every rank writes its cells of memory that all have, and finds those of all, round after round.
 */
static void *talk_in_common(void *context)
{
    comm *c = context;
    uint32_t *at[2];
    for (int i = 0; i < 2; i++) {
        at[i] = comm_common(c, COMMON * sizeof(uint32_t));
        if (!at[i] || !comm_is_common(c, at[i])) return "there is no common memory";
    }
    if (at[1] - at[0] < COMMON) return "two parts of it overlap";
    if (comm_common(c, COMM_COMMON)) return "there is more of it than there is";
    if (comm_is_common(c, &at)) return "other memory is common";
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t *cells = at[i % 2];
        for (uint32_t k = (uint32_t)comm_rank(c); k < COMMON; k += SIZE)
            cells[k] = i ^ k;
        if (!comm_exchange(c, i, 0, 0, COMM_BUSY)) return "an exchange failed";
        for (uint32_t k = 0; k < COMMON; k++)
            if (cells[k] != (i ^ k)) return "a cell has another number";
    }
    return NULL;
}

static void ranks_of_a_process_have_memory_in_common(void **state)
{
    (void)state;
    all_talk(talk_in_common);
}

static void failures_name_their_rank(void **state)
{
    (void)state;
    comm *ends[2];
    assert_ok(comm_threads_open(2, ends, &error)); /* rank 1 never comes */
    ends[0]->patience_ms = 30;
    assert_non_null(comm_stage(ends[0], 8));
    assert_null(comm_exchange(ends[0], 1, 8, 8, COMM_BUSY));
    assert_int_equal(comm_check(ends[1], &error), QP_IO);
    assert_non_null(strstr(error.message, "rank 1 has not answered rank 0"));
    assert_null(comm_exchange(ends[1], 1, 8, 8, COMM_IDLE)); /* at once */
    comm_close(ends[0]);
    comm_close(ends[1]);
    assert_ok(comm_threads_open(2, ends, &error));
    comm_abort(ends[1], "the disk is full");
    assert_int_equal(comm_check(ends[0], &error), QP_IO);
    assert_string_equal(error.message, "rank 1: the disk is full");
    comm_close(ends[0]);
    comm_close(ends[1]);
}

static void *answer_once(void *context)
{
    return comm_stage(context, 8) ? (void *)(uintptr_t)comm_exchange(context, 1, 8, 8, COMM_BUSY)
                                  : NULL;
}

/* A rank that has been idle for long is not more patient for it with ranks that wait for it. */
static void idle_time_is_no_work(void **state)
{
    (void)state;
    comm *ends[2];
    pthread_t thread;
    assert_ok(comm_threads_open(2, ends, &error));
    assert_int_equal(pthread_create(&thread, NULL, answer_once, ends[1]), 0);
    assert_non_null(answer_once(ends[0]));
    pthread_join(thread, NULL);
    ends[0]->patience_ms = 10;
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    const uint64_t begin = clock_ns();
    assert_non_null(comm_stage(ends[0], 8));
    assert_null(comm_exchange(ends[0], 2, 8, 8, COMM_READY));
    assert_true(clock_ns() - begin < 1000000000);
    comm_close(ends[0]);
    comm_close(ends[1]);
}

/* ---- delays -------------------------------------------------------------------------------- */

enum { MOST_DELAYED = 3 };

static const comm_type *prompt_type; /* what exchanges without delay */
static atomic_uint chance;

/* Sleeps up to 2 ms before one exchange in eight. */
static bool exchange_late(comm *c, uint32_t tag, size_t bytes, size_t most, comm_wait wait)
{
    const unsigned n = atomic_fetch_add(&chance, 1) * 2654435761u;
    if (n >> 29 == 0) nanosleep(&(struct timespec){.tv_nsec = n % 2000000}, NULL);
    return prompt_type->exchange(c, tag, bytes, most, wait);
}

typedef struct late_rank {
    machine_setup setup;
    pthread_t thread;
} late_rank;

static void *follow_late(void *context)
{
    const late_rank *r = context;
    qp_error why;
    return ranks_follow(&r->setup, &why) == QP_OK ? NULL : context;
}

/* As processes are opened, each with its place in the group, in this one. */
static void converse_late(const char *model, int n_ranks, plan_cut cut, outcome *out)
{
    bench b;
    comm *ends[MOST_DELAYED];
    late_rank others[MOST_DELAYED];
    bench_open(&b, model, &machine_threads, 1, cut, false);
    machine_close(&b.machine);
    assert_ok(comm_threads_open(n_ranks, ends, &error));
    prompt_type = ends[0]->type;
    comm_type late = *prompt_type;
    late.exchange = exchange_late;
    const schedule_options schedule = schedule_run_options(&b.program);
    machine_setup setup = {.program = &b.program,
                           .pool = b.pool,
                           .cpu_features = cpu_features(0),
                           .schedule = &schedule,
                           .inner = &machine_threads,
                           .cut = cut};
    for (int r = 0; r < n_ranks; r++)
        ends[r]->type = &late;
    for (int r = 1; r < n_ranks; r++) {
        others[r].setup = setup;
        others[r].setup.group = ends[r];
        assert_ok(thread_pool_create(2, &others[r].setup.pool, &error));
        assert_int_equal(pthread_create(&others[r].thread, NULL, follow_late, &others[r]), 0);
    }
    setup.group = ends[0];
    assert_ok(machine_open(&machine_ranks, &setup, &b.machine, &error));
    converse(&b, out);
    machine_close(&b.machine);
    for (int r = 1; r < n_ranks; r++) {
        void *failed = NULL;
        pthread_join(others[r].thread, &failed);
        assert_null(failed);
        thread_pool_destroy(others[r].setup.pool);
    }
    for (int r = 0; r < n_ranks; r++)
        comm_close(ends[r]);
    b.machine = (machine){0};
    bench_close(&b);
}

/* Whoever comes late to an exchange, the bits stay. */
static void delays_change_nothing(void **state)
{
    (void)state;
    static outcome want, found;
    for (int n = 2; n <= MOST_DELAYED; n++) {
        for (int cut = PLAN_GATHER; cut <= PLAN_REDUCE; cut++) {
            bench b;
            bench_open(&b, models[5], &machine_threads, n, (plan_cut)cut, false);
            converse(&b, &want);
            bench_close(&b);
            for (int again = 0; again < 3; again++) {
                converse_late(models[5], n, (plan_cut)cut, &found);
                assert_same(&want, &found, models[5], "late threads", n);
            }
        }
    }
}

static void ranks_that_cannot_be_opened_say_why(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, models[0], &machine_threads, 1, PLAN_GATHER, false);
    const machine_setup setup = {
        .program = &b.program, .pool = b.pool, .inner = &machine_threads, .n_ranks = 1000};
    machine m;
    assert_int_not_equal(machine_open(&machine_ranks, &setup, &m, &error), QP_OK);
    assert_non_null(strstr(error.message, "1000 ranks cannot share"));
    machine_close(&m);
    bench_close(&b);
}

/* With one KV head for several ranks, whose norm spans all; and on GPUs, before any is opened. */
static void ranks_that_a_model_excludes_are_named(void **state)
{
    (void)state;
    static const char *const excluded[][2] = {{"synthetic:tiny-olmoe", "a mixture of experts"},
                                              {"golden/models/olmo2", "spans the heads"},
                                              {"golden/models/gemma2", "and the residual"}};
    bench b;
    machine m;
    for (size_t i = 0; i < sizeof excluded / sizeof *excluded; i++) {
        bench_open(&b, excluded[i][0], &machine_threads, 1, PLAN_GATHER, false);
        const machine_setup setup = {
            .program = &b.program, .pool = b.pool, .inner = &machine_cuda, .n_ranks = 2};
        machine_bytes bytes;
        assert_int_equal(machine_count_bytes(&machine_ranks, &setup, &bytes, &error),
                         QP_UNSUPPORTED);
        assert_non_null(strstr(error.message, "2 ranks on GPUs do not run a model with"));
        assert_non_null(strstr(error.message, excluded[i][1]));
        bench_close(&b);
    }
    bench_open(&b, "golden/models/olmo2", &machine_threads, 1, PLAN_GATHER, false);
    const machine_setup setup = {
        .program = &b.program, .pool = b.pool, .inner = &machine_threads, .n_ranks = 4};
    assert_int_equal(machine_open(&machine_ranks, &setup, &m, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "KV heads of this model, of which each rank"));
    machine_close(&m);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges_deliver_what_was_given),
        cmocka_unit_test(ranks_of_a_process_have_memory_in_common),
        cmocka_unit_test(failures_name_their_rank),
        cmocka_unit_test(idle_time_is_no_work),
        cmocka_unit_test(ranks_give_the_bits_of_one),
        cmocka_unit_test(fused_programs_have_ranks_too),
        cmocka_unit_test(partial_sums_are_near),
        cmocka_unit_test(delays_change_nothing),
        cmocka_unit_test(tensors_are_taken_apart_and_put_together),
        cmocka_unit_test_prestate(tensors_are_taken_apart_and_put_together, "experts"),
        cmocka_unit_test(ranks_that_cannot_be_opened_say_why),
        cmocka_unit_test(ranks_that_a_model_excludes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
