/* Schedules that a caller chooses: the logits stay the same to the bit, a file decides the threads,
 * what has no effect is refused, and a session goes on under another schedule.
 */
#include "engine_test.h"

#include "base/files.h"
#include "engine/engine.h"
#include "engine/schedule.h"
#include "schedule/build.h"
#include "schedule/cost.h"
#include "inspect/schedule_print.h"

#include <unistd.h>

enum { N_IDS = 12, THREADS = 2 };
static const char model_name[] = "synthetic:tiny:Q8_0";
static const int32_t ids[N_IDS] = {5, 1, 200, 17, 17, 99, 3, 250, 31, 8, 7, 400};
static const char *const settings[] = {"latency", "throughput"};
static const char *const assignments[] = {"rr", "zz", "wave", "dag", "pool"};

static qp_error error;

static qp_schedule_options choice(const char *setting, const char *assignment)
{
    return (qp_schedule_options){
        .size = sizeof(qp_schedule_options), .setting = setting, .assignment = assignment};
}

static qp_engine *open_with(const qp_schedule_options *schedule, const char *exec)
{
    return open_engine((qp_engine_options){
        .model = model_name, .threads = THREADS, .exec = exec, .schedule = schedule});
}

static size_t row_bytes(const qp_engine *engine)
{
    return (size_t)qp_engine_get_info(engine)->vocab_size * sizeof(float);
}

/* A session goes on after each change, and every engine begins as it was told. */
static void test_the_same_logits_by_every_schedule(void **state)
{
    (void)state;
    static const char *const execs[] = {"threads", "serial"};
    for (int e = 0; e < 2; e++) {
        qp_engine *usual = open_with(NULL, execs[e]);
        qp_engine *changing = open_with(NULL, execs[e]);
        qp_session *session = open_session(changing);
        float *expected = eval_fresh(usual, ids, N_IDS);
        const size_t bytes = row_bytes(usual);
        for (int i = 0; i < 10; i++) {
            qp_schedule_options how = choice(settings[i / 5], assignments[i % 5]);
            if (i % 5 == 4) how.memory_fraction = 0.5;
            qp_engine *engine = open_with(&how, execs[e]);
            const schedule *s = machine_schedule(engine_machine(engine, 0));
            assert_int_equal(s->options.setting, i / 5);
            assert_int_equal(s->options.assignment, i % 5);
            float *found = eval_fresh(engine, ids, N_IDS);
            assert_memory_equal(found, expected, N_IDS * bytes);
            free(found);
            qp_engine_close(engine);
            assert_ok(qp_engine_reschedule(changing, &how, &error));
            found = eval_rows(changing, session, ids + i, 1);
            assert_memory_equal(found, (char *)expected + (size_t)i * bytes, bytes);
            free(found);
        }
        free(expected);
        qp_session_close(session);
        qp_engine_close(changing);
        qp_engine_close(usual);
    }
}

static void save(const char *path, int workers, const char *model)
{
    strbuf out = {0};
    const schedule_print_options options = {.model = model,
                                            .workers = workers,
                                            .setting = "latency",
                                            .assignment = "dag",
                                            .save = path};
    assert_ok(schedule_print(&options, &out, &error));
    strbuf_free(&out);
}

static void test_a_schedule_from_a_file(void **state)
{
    (void)state;
    char path[] = "/tmp/quipu-schedule-XXXXXX";
    close(mkstemp(path));
    save(path, 1, model_name);
    const qp_schedule_options how = {.size = sizeof how, .file = path};
    qp_engine_options options = {.size = sizeof options, .model = model_name, .schedule = &how};
    qp_engine *engine = NULL;
    assert_ok(qp_engine_open(&options, &engine, &error)); /* the file decides the threads */
    assert_int_equal(qp_engine_get_info(engine)->threads, 1);
    const schedule *s = machine_schedule(engine_machine(engine, 0));
    assert_int_equal(s->options.assignment, SCHEDULE_DAG);
    save(path, THREADS, model_name);
    const qp_status status = qp_engine_reschedule(engine, &how, &error);
    assert_int_equal(status, QP_INVALID);
    assert_non_null(strstr(error.message, "2 workers, but this runs with 1 thread: give it -t 2"));
    float *rows = eval_fresh(engine, ids, 2); /* the old schedule is still there */
    free(rows);
    qp_engine_close(engine);
    save(path, THREADS, "synthetic:tiny:BF16");
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "made for another model"));
    unlink(path);
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_IO);
}

/* Costs that make other queues than guesses do: every piece of a product takes as long. */
static void write_costs(const char *path)
{
    cost_table table = {.device = "cpu",
                        .workers = THREADS,
                        .limits = {1e9, 1e9, 500},
                        .n_curves = 1,
                        .curves[0] = {.op = OP_LINEAR,
                                      .type = DTYPE_Q8_0,
                                      .fixed_ns = 40000,
                                      .n_points = 1,
                                      .points[0] = {1, 0.001, 1}}};
    snprintf(table.version, sizeof table.version, "%s", qp_version());
    cost_machine(table.machine, sizeof table.machine);
    strbuf text = {0};
    assert_ok(cost_print(&table, &text, &error));
    assert_ok(files_write(path, text.data, text.length, &error));
    strbuf_free(&text);
    assert_ok(cost_load(path, &(cost_origin){.workers = THREADS}, &table, &error));
}

/* Equal but for the costs themselves. */
static bool same_queues(const schedule *a, const schedule *b)
{
    if (a->options.workers != b->options.workers || a->longest != b->longest) return false;
    for (int i = 0; i < a->options.workers * a->longest; i++) {
        instruction x = a->instructions[i], y = b->instructions[i];
        x.cost_ns = y.cost_ns = 0;
        if (memcmp(&x, &y, sizeof x) != 0) return false;
    }
    return true;
}

/* What `quipu schedule` prints and saves is what an engine runs, with measured costs too, by which
 * three of the assignments deal. */
static void test_what_is_printed_is_what_runs(void **state)
{
    (void)state;
    char path[] = "/tmp/quipu-schedule-XXXXXX", costs[] = "/tmp/quipu-costs-XXXXXX";
    int changed = 0;
    close(mkstemp(path));
    close(mkstemp(costs));
    write_costs(costs);
    for (int i = 0; i < 20; i++) {
        const char *measured = i >= 10 ? costs : NULL;
        const qp_schedule_options how = choice(settings[i / 5 % 2], assignments[i % 5]);
        const qp_engine_options options = {
            .size = sizeof options, .model = model_name, .threads = THREADS, .schedule = &how};
        const engine_part part = {.costs = measured}, guessed = {.costs = NULL};
        const schedule_print_options print = {.model = model_name,
                                              .workers = THREADS,
                                              .setting = how.setting,
                                              .assignment = how.assignment,
                                              .costs = measured,
                                              .save = path};
        strbuf out = {0};
        schedule saved;
        qp_engine *engine, *other;
        assert_ok(schedule_print(&print, &out, &error));
        assert_ok(engine_open_part(&options, &part, &engine, &error));
        assert_ok(engine_open_part(&options, &guessed, &other, &error));
        assert_ok(schedule_load(path, &engine->program, &saved, &error));
        assert_true(same_queues(&saved, machine_schedule(engine_machine(engine, 0))));
        changed += !same_queues(&saved, machine_schedule(engine_machine(other, 0)));
        schedule_free(&saved);
        qp_engine_close(engine);
        qp_engine_close(other);
        strbuf_free(&out);
    }
    assert_true(changed > 0);
    unlink(path);
    unlink(costs);
}

static void refused(qp_schedule_options how, const char *exec, bool fuse, const char *what)
{
    const qp_engine_options options = {.size = sizeof options,
                                       .model = model_name,
                                       .threads = 1,
                                       .exec = exec,
                                       .fuse = fuse,
                                       .schedule = &how};
    qp_engine *engine = NULL;
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_INVALID);
    if (!strstr(error.message, what)) fail_msg("no \"%s\" in \"%s\"", what, error.message);
}

static void test_what_has_no_effect_is_refused(void **state)
{
    (void)state;
    qp_schedule_options how = choice("latency", "dag");
    refused(how, "operators", false, "operators runs none");
    refused(how, "reference", false, "reference runs none");
    how.memory_fraction = 0.5;
    refused(how, NULL, false, "for the assignment pool");
    how = choice("latency", "pool");
    how.memory_fraction = 2;
    refused(how, NULL, false, "must be 0 to 1");
    refused(choice("throughput", NULL), NULL, true, "few tokens");
    refused(choice("fast", NULL), NULL, false, "latency, throughput");
    refused(choice(NULL, "largest"), NULL, false, "rr, zz, wave, dag, pool");
    how = choice(NULL, "zz");
    how.file = "/nonexistent";
    refused(how, NULL, false, "leave them out");
    qp_engine *engine = open_with(NULL, "operators");
    how = choice(NULL, NULL);
    assert_int_equal(qp_engine_reschedule(engine, &how, &error), QP_UNSUPPORTED);
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_logits_by_every_schedule),
        cmocka_unit_test(test_a_schedule_from_a_file),
        cmocka_unit_test(test_what_is_printed_is_what_runs),
        cmocka_unit_test(test_what_has_no_effect_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
