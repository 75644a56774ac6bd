/* Machines through their interface. One run of several passes makes the same tokens as that many
 * single runs; a run ends when the caller asks for it; a machine says what it does not support;
 * machines over another one use its memory. The printed schedule is the one that runs.
 */
#include "engine_test.h"

#include "base/cpu.h"
#include "engine/engine.h"
#include "lower/lower.h"
#include "schedule/build.h"
#include "inspect/schedule_print.h"
#include "vm/machine.h"

#include <unistd.h>

enum { SEQUENCES = 3, CONTEXT = 32, PAGE = 4, PASSES = 9, VOCAB = 512 };

static const machine_type *const of_cpu[] = {&machine_reference, &machine_serial, &machine_threads,
                                             &machine_operators};
enum { N_OF_CPU = sizeof of_cpu / sizeof *of_cpu };

static qp_error error;

/* A model with the memory of a machine, and what its sequences hold. */
typedef struct bench {
    model *model;
    program program;
    thread_pool *pool;
    machine machine;
    batch batch;
    int32_t pages[SEQUENCES][CONTEXT / PAGE];
    int64_t past[SEQUENCES];
} bench;

static machine_setup setup_of(bench *b)
{
    return (machine_setup){
        .program = &b->program, .pool = b->pool, .cpu_features = cpu_features(0)};
}

static void bench_open(bench *b, const machine_type *type, const char *path, uint64_t order)
{
    *b = (bench){0};
    assert_ok(model_open(path, NULL, &b->model, &error));
    plan_options o = plan_default_options(model_get_config(b->model));
    o.max_tokens = 24;
    o.max_sequences = o.max_outputs = SEQUENCES;
    o.context = CONTEXT;
    o.page_size = PAGE;
    assert_ok(lower_build(model_get_config(b->model), b->model, &o, &b->program, &error));
    assert_ok(thread_pool_create(2, &b->pool, &error));
    assert_ok(batch_init(&b->batch, &b->program, &error));
    machine_setup setup = setup_of(b);
    setup.order = order;
    assert_ok(machine_open(type, &setup, &b->machine, &error));
    for (int s = 0; s < SEQUENCES; s++)
        for (int i = 0; i < CONTEXT / PAGE; i++) /* interleaved, from the last page on */
            b->pages[s][i] = (int32_t)(o.n_pages ? o.n_pages : SEQUENCES * CONTEXT / PAGE) - 1 -
                             (SEQUENCES * i + s);
}

static void bench_close(bench *b)
{
    machine_close(&b->machine);
    batch_free(&b->batch);
    thread_pool_destroy(b->pool);
    program_free(&b->program);
    model_close(b->model);
}

static void set_row(batch *b, int64_t row, int64_t position)
{
    ((int64_t *)b->of[PLAN_SEEDS])[row] = 7 + row;
    batch_i32(b, PLAN_SAMPLE_POSITIONS)[row] = (int32_t)position;
    ((float *)b->of[PLAN_TEMPERATURES])[row] = 1.5F;
    batch_i32(b, PLAN_TOP_KS)[row] = 0;
    ((float *)b->of[PLAN_TOP_PS])[row] = 1;
    ((float *)b->of[PLAN_MIN_PS])[row] = 0;
}

/* The batch of prompts of 5, 6 and 7 tokens, the logits of whose last are wanted. */
static void fill_prompts(bench *b)
{
    batch_clear(&b->batch);
    for (int s = 0; s < SEQUENCES; s++) {
        int32_t ids[8];
        const int64_t n = 5 + s, row = batch_tokens(&b->batch);
        for (int i = 0; i < n; i++)
            ids[i] = (37 * i + 11 * s + 3) % 250;
        batch_add(&b->batch, ids, n, 0, b->pages[s]);
        batch_set_angles(&b->batch, row, 0, n, n);
        batch_want(&b->batch, row + n - 1);
        set_row(&b->batch, s, n);
        b->past[s] = n;
    }
}

/* The batch of `passes` passes that read `tokens` first. */
static void fill_next(bench *b, const int32_t *tokens, int passes)
{
    batch_clear(&b->batch);
    for (int s = 0; s < SEQUENCES; s++) {
        const int64_t past = b->past[s];
        batch_add_ahead(&b->batch, tokens[s], past, past + passes, b->pages[s]);
        batch_set_angles(&b->batch, s, past, 1, past + 1);
        batch_want(&b->batch, s);
        set_row(&b->batch, s, past + 1);
        b->past[s] += passes;
    }
}

/* The prompts' tokens, then those of PASSES passes, `each` a run: (PASSES + 1, SEQUENCES). */
static void generate(bench *b, machine_choice choice, int each, int32_t *tokens)
{
    machine_request r = {.batch = &b->batch, .choice = choice, .tokens = tokens};
    int passes;
    fill_prompts(b);
    assert_ok(machine_run(&b->machine, &r, &error));
    assert_ok(machine_wait(&b->machine, &passes, &error));
    assert_int_equal(passes, 1);
    for (int pass = 0; pass < PASSES; pass += each) {
        r.passes = each;
        r.tokens = tokens + (pass + 1) * SEQUENCES;
        fill_next(b, tokens + pass * SEQUENCES, each);
        assert_ok(machine_run(&b->machine, &r, &error));
        assert_ok(machine_wait(&b->machine, &passes, &error));
        assert_int_equal(passes, each);
    }
}

static void test_passes_of_a_run_are_runs(void **state)
{
    (void)state;
    static const char *const models[] = {"golden/models/llama-text.gguf",
                                         "golden/models/llama-dynamic"};
    static const machine_choice choices[] = {MACHINE_LIKELIEST, MACHINE_SAMPLED};
    enum { TOKENS = (PASSES + 1) * SEQUENCES };
    for (int m = 0; m < 2; m++) {
        for (int c = 0; c < 2; c++) {
            int32_t first[N_OF_CPU][TOKENS], found[TOKENS];
            for (int t = 0; t < N_OF_CPU; t++) {
                bench b;
                bench_open(&b, of_cpu[t], models[m], 0);
                generate(&b, choices[c], 1, first[t]);
                generate(&b, choices[c], 3, found);
                assert_memory_equal(found, first[t], sizeof found);
                generate(&b, choices[c], PASSES, found);
                assert_memory_equal(found, first[t], sizeof found);
                bench_close(&b);
            }
            assert_memory_equal(first[1], first[0], sizeof found); /* references */
            assert_memory_equal(first[3], first[2], sizeof found); /* variants */
        }
    }
}

/* Counts tokens, and wants `most` passes. */
typedef struct listener {
    int passes, most;
    int32_t tokens[PASSES][SEQUENCES];
    int *cancel;
} listener;

static bool take_tokens(void *context, const int32_t *tokens)
{
    listener *l = context;
    memcpy(l->tokens[l->passes], tokens, sizeof l->tokens[0]);
    l->passes++;
    if (l->cancel && l->passes == l->most) *l->cancel = 1;
    return l->cancel || l->passes < l->most;
}

static void test_runs_end_when_told(void **state)
{
    (void)state;
    for (int t = 0; t < N_OF_CPU; t++) {
        bench b;
        int32_t tokens[(PASSES + 1) * SEQUENCES], found[PASSES * SEQUENCES];
        int passes, cancel = 0;
        bench_open(&b, of_cpu[t], "golden/models/llama-text.gguf", 0);
        generate(&b, MACHINE_SAMPLED, PASSES, tokens);
        for (int by_flag = 0; by_flag < 2; by_flag++) {
            listener l = {.most = 4, .cancel = by_flag ? &cancel : NULL};
            fill_prompts(&b);
            const machine_request prompts = {.batch = &b.batch};
            assert_ok(machine_pass(&b.machine, &prompts, &error));
            fill_next(&b, tokens, PASSES);
            const machine_request r = {.batch = &b.batch,
                                       .passes = PASSES,
                                       .choice = MACHINE_SAMPLED,
                                       .tokens = found,
                                       .on_tokens = take_tokens,
                                       .context = &l,
                                       .cancel = by_flag ? &cancel : NULL};
            assert_ok(machine_run(&b.machine, &r, &error));
            assert_ok(machine_wait(&b.machine, &passes, &error));
            assert_int_equal(passes, 4);
            assert_int_equal(l.passes, 4);
            assert_memory_equal(l.tokens, tokens + SEQUENCES, 4 * sizeof l.tokens[0]);
            assert_memory_equal(found, tokens + SEQUENCES, 4 * sizeof l.tokens[0]);
        }
        bench_close(&b);
    }
}

static void test_a_stop_ends_a_run_of_one_sequence(void **state)
{
    (void)state;
    bench b;
    int32_t tokens[PASSES], again[PASSES];
    const int32_t id = 5;
    int passes;
    bench_open(&b, &machine_threads, "golden/models/llama-text.gguf", 0);
    batch_add_ahead(&b.batch, id, 0, PASSES, b.pages[0]);
    batch_want(&b.batch, 0);
    set_row(&b.batch, 0, 1);
    machine_request r = {
        .batch = &b.batch, .passes = PASSES, .choice = MACHINE_SAMPLED, .tokens = tokens};
    assert_ok(machine_pass(&b.machine, &r, &error));
    int stop = 3;
    while (stop > 0 && tokens[stop] == tokens[stop - 1])
        stop--;
    for (int i = 0; i < stop; i++)
        if (tokens[i] == tokens[stop]) stop = i;
    r.stops = &tokens[stop];
    r.n_stops = 1;
    r.tokens = again;
    assert_ok(machine_run(&b.machine, &r, &error));
    assert_ok(machine_wait(&b.machine, &passes, &error));
    assert_int_equal(passes, stop + 1);
    assert_memory_equal(again, tokens, (size_t)passes * sizeof *tokens);
    bench_close(&b);
}

static void refused(const bench *b, machine_request r, const char *what)
{
    const char *why = machine_accepts(&b->machine, &r);
    r.batch = &b->batch;
    why = machine_accepts(&b->machine, &r);
    assert_non_null(why);
    if (!strstr(why, what)) fail_msg("no \"%s\" in \"%s\"", what, why);
    assert_int_equal(machine_run(&b->machine, &r, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, why));
    assert_non_null(strstr(error.message, b->machine.type->name));
}

static void test_what_is_not_done_is_said(void **state)
{
    (void)state;
    int32_t tokens[PASSES * SEQUENCES];
    for (int t = 0; t < N_OF_CPU; t++) {
        bench b;
        bench_open(&b, of_cpu[t], "golden/models/llama-text.gguf", 0);
        fill_prompts(&b);
        machine_request r = {.batch = &b.batch, .tokens = tokens, .choice = MACHINE_LIKELIEST};
        assert_null(machine_accepts(&b.machine, &r));
        r.passes = 2;
        refused(&b, r, "one new token of each sequence");
        fill_next(&b, (int32_t[SEQUENCES]){1, 2, 3}, 2);
        assert_null(machine_accepts(&b.machine, &r));
        r.choice = MACHINE_LOGITS;
        refused(&b, r, "none are chosen");
        r = (machine_request){.batch = &b.batch, .choice = MACHINE_SAMPLED, .tokens = tokens};
        r.passes = 2;
        r.logits = true;
        refused(&b, r, "of passes alone");
        r.passes = 1;
        r.logits = false;
        r.last = 1;
        refused(&b, r, "after the logits");
        r.last = 0;
        r.first = 1;
        assert_null(machine_accepts(&b.machine, &r));
        r.passes = 2;
        refused(&b, r, "run all steps");
        r.passes = 1;
        r.first = 0;
        r.continues = true;
        refused(&b, r, "under way");
        bench_close(&b);
    }
}

/* Logits of prompts in any order of instructions that the schedule allows are the references'. */
static void test_serial_in_any_order(void **state)
{
    (void)state;
    float *expected = NULL;
    size_t bytes = 0;
    for (uint64_t order = 0; order < 12; order++) {
        bench b;
        bench_open(&b, order ? &machine_serial : &machine_reference,
                   "golden/models/llama-text.gguf", order - 1);
        fill_prompts(&b);
        const machine_request r = {.batch = &b.batch, .logits = true};
        assert_ok(machine_pass(&b.machine, &r, &error));
        if (!expected) {
            bytes = SEQUENCES * (size_t)b.program.config.vocab_size * sizeof *expected;
            expected = malloc(bytes);
            assert_non_null(expected);
            memcpy(expected, machine_logits(&b.machine), bytes);
        }
        assert_memory_equal(machine_logits(&b.machine), expected, bytes);
        bench_close(&b);
    }
    free(expected);
}

/* Two machines of one thread and of two take turns over the memory of a third. */
static void test_machines_over_another(void **state)
{
    (void)state;
    bench b;
    machine over[2];
    thread_pool *alone;
    int32_t tokens[SEQUENCES], expected[(PASSES + 1) * SEQUENCES];
    bench_open(&b, &machine_operators, "golden/models/llama-text.gguf", 0);
    generate(&b, MACHINE_LIKELIEST, 1, expected);
    assert_ok(thread_pool_create(1, &alone, &error));
    for (int i = 0; i < 2; i++) {
        machine_setup setup = setup_of(&b);
        setup.over = &b.machine;
        if (i) setup.pool = alone;
        assert_ok(machine_open(&machine_threads, &setup, &over[i], &error));
        assert_int_equal(machine_schedule(&over[i])->options.workers, i ? 1 : 2);
    }
    fill_prompts(&b);
    const machine_request r = {.batch = &b.batch, .choice = MACHINE_LIKELIEST, .tokens = tokens};
    assert_ok(machine_pass(&over[0], &r, &error));
    for (int pass = 0; pass < PASSES; pass++) {
        assert_memory_equal(tokens, expected + pass * SEQUENCES, sizeof tokens);
        fill_next(&b, tokens, 1);
        assert_ok(machine_pass(pass % 3 == 2 ? &b.machine : &over[pass % 3], &r, &error));
    }
    assert_memory_equal(tokens, expected + PASSES * SEQUENCES, sizeof tokens);
    machine_close(&over[0]);
    machine_close(&over[1]);
    thread_pool_destroy(alone);
    bench_close(&b);
}

static void test_tensors_and_pages(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, &machine_threads, "golden/models/llama-text.gguf", 0);
    const size_t bytes = b.program.tensors[PLAN_V_CACHE].bytes;
    const size_t page = bytes / (size_t)b.program.capacity.of[AXIS_PAGES];
    char *written = malloc(bytes), *read = malloc(bytes);
    assert_true(written && read);
    for (size_t i = 0; i < bytes; i++)
        written[i] = (char)(i * 31 + i / page);
    assert_ok(machine_write(&b.machine, PLAN_V_CACHE, 1, written, bytes, &error));
    assert_ok(machine_copy_page(&b.machine, 2, 5, &error));
    assert_ok(machine_read(&b.machine, PLAN_V_CACHE, 1, read, bytes, &error));
    memcpy(written + 5 * page, written + 2 * page, page);
    assert_memory_equal(read, written, bytes);
    free(written);
    free(read);
    bench_close(&b);
}

static void test_records(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, &machine_threads, "golden/models/llama-text.gguf", 0);
    const schedule *s = machine_schedule(&b.machine);
    const size_t places = (size_t)s->options.workers * (size_t)s->longest;
    instruction_timing *timings = calloc(2 * places, sizeof *timings);
    machine_record records[2] = {{.timings = timings}, {.timings = timings + places}};
    int32_t tokens[3 * SEQUENCES];
    assert_ok(machine_time(&b.machine, &(machine_timing){.max_passes = 2}, &error));
    fill_next(&b, (int32_t[SEQUENCES]){1, 2, 3}, 3);
    const machine_request r = {.batch = &b.batch,
                               .passes = 3,
                               .choice = MACHINE_LIKELIEST,
                               .tokens = tokens,
                               .records = records,
                               .n_records = 2};
    assert_ok(machine_pass(&b.machine, &r, &error));
    for (int i = 0; i < 2; i++) {
        assert_true(records[i].timed && records[i].begin < records[i].end);
        const instruction_timing *last = &records[i].timings[s->length[0] - 1];
        assert_true(last->end > records[i].begin && last->end <= records[i].end);
    }
    assert_true(records[1].begin >= records[0].end);
    free(timings);
    bench_close(&b);
    bench_open(&b, &machine_reference, "golden/models/llama-text.gguf", 0);
    assert_null(machine_schedule(&b.machine));
    assert_int_equal(machine_time(&b.machine, &(machine_timing){.max_passes = 2}, &error),
                     QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "use threads, serial or operators"));
    bench_close(&b);
}

static void test_names(void **state)
{
    (void)state;
    static const char *const names[] = {"reference", "serial", "threads",
                                        "operators", "cuda",   "megakernel"};
    static const char *const old[][2] = {{"ref", "reference now"},
                                         {"ops", "operators now, and cuda on a GPU"},
                                         {"mk", "megakernel now"},
                                         {"cuda-ops", "cuda now"}};
    const machine_type *type;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_ok(machine_type_find(names[i], &type, &error));
        assert_string_equal(type->name, names[i]);
        assert_ptr_equal(machine_type_at((int)i), type);
        qp_engine *engine = NULL;
        const qp_engine_options options = {
            .size = sizeof options, .model = "synthetic:tiny", .threads = 1, .exec = names[i]};
        if (type->on_gpu) continue;
        assert_ok(qp_engine_open(&options, &engine, &error));
        assert_ptr_equal(engine_machine(engine, 0)->type, type);
        qp_engine_close(engine);
    }
    assert_null(machine_type_at(6));
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        assert_int_equal(machine_type_find(old[i][0], &type, &error), QP_INVALID);
        assert_non_null(strstr(error.message, old[i][1]));
        assert_non_null(strstr(error.message, "reference, serial, threads"));
    }
}

/* The queues that `quipu schedule --save` writes are those that an engine's threads read. */
static void test_what_is_printed_runs(void **state)
{
    (void)state;
    char path[] = "/tmp/quipu-schedule-XXXXXX";
    close(mkstemp(path));
    for (int fuse = 0; fuse < 2; fuse++) {
        strbuf out = {0};
        schedule loaded;
        const schedule_print_options options = {.model = "synthetic:smollm2-135m",
                                                .workers = 2,
                                                .setting = "latency",
                                                .assignment = "rr",
                                                .fuse = fuse,
                                                .save = path};
        qp_engine *engine = open_engine(
            (qp_engine_options){.model = "synthetic:smollm2-135m", .threads = 2, .fuse = fuse});
        const schedule *runs = machine_schedule(engine_machine(engine, 0));
        assert_ok(schedule_print(&options, &out, &error));
        assert_ok(schedule_load(path, &engine->program, &loaded, &error));
        assert_int_equal(loaded.longest, runs->longest);
        assert_memory_equal(loaded.instructions, runs->instructions,
                            2 * (size_t)runs->longest * sizeof *runs->instructions);
        schedule_free(&loaded);
        strbuf_free(&out);
        qp_engine_close(engine);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes_of_a_run_are_runs),
        cmocka_unit_test(test_runs_end_when_told),
        cmocka_unit_test(test_a_stop_ends_a_run_of_one_sequence),
        cmocka_unit_test(test_what_is_not_done_is_said),
        cmocka_unit_test(test_serial_in_any_order),
        cmocka_unit_test(test_machines_over_another),
        cmocka_unit_test(test_tensors_and_pages),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_what_is_printed_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
