/* Passes of which a part is left out: what is skipped does not run and all else does, in engines,
 * in listings and in comparisons; what the pass does not have is refused by name.
 */
#include "engine_test.h"

#include "engine/engine.h"
#include "inspect/diff/diff.h"
#include "inspect/part.h"
#include "inspect/schedule_print.h"
#include "schedule/skip.h"

#include <unistd.h>

enum { N_IDS = 6, THREADS = 2 };
static const char model_name[] = "synthetic:tiny:BF16";
static const int32_t ids[N_IDS] = {5, 1, 200, 17, 99, 3};
static qp_error error;

static qp_status open_part(pass_part part, const char *exec, qp_engine **out)
{
    const qp_engine_options options = {
        .size = sizeof options, .model = model_name, .threads = THREADS, .exec = exec};
    return part_open(&options, &part, out, &error);
}

static const schedule *schedule_of(const qp_engine *engine)
{
    return machine_schedule(engine_machine(engine, 0));
}

/* Instructions of an operator (NULL: noops), and those that wait. */
static int count(const schedule *s, const char *op, int *waiting)
{
    int n = 0;
    *waiting = 0;
    for (int w = 0; w < s->options.workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const instruction *in = schedule_queue(s, w) + i;
            const bool noop = in->opcode == INSTRUCTION_NOOP;
            *waiting += in->waits[0].counter != 0;
            n += op ? !noop && strcmp(op_get((op_code)in->opcode)->name, op) == 0 : noop;
        }
    }
    return n;
}

static bool same_rows(qp_engine *engine, const float *expected)
{
    float *found = eval_fresh(engine, ids, N_IDS);
    const size_t bytes = (size_t)qp_engine_get_info(engine)->vocab_size * sizeof *found;
    const bool same = memcmp(found, expected, N_IDS * bytes) == 0;
    free(found);
    return same;
}

/* A session goes on without a kind, without waits, and whole again. */
static void test_a_kind_is_left_out_and_comes_back(void **state)
{
    (void)state;
    static const char *const execs[] = {"threads", "serial"};
    for (int i = 0; i < 2; i++) {
        qp_engine *engine;
        int waiting, none;
        assert_ok(open_part((pass_part){0}, execs[i], &engine));
        float *expected = eval_fresh(engine, ids, N_IDS);
        const int linear = count(schedule_of(engine), "linear", &waiting);
        assert_true(linear > 0 && waiting > 0);
        const int noops = count(schedule_of(engine), NULL, &waiting);
        assert_ok(part_reschedule(engine, NULL, &(pass_part){.skip = "linear"}, &error));
        assert_int_equal(count(schedule_of(engine), "linear", &none), 0);
        assert_int_equal(count(schedule_of(engine), NULL, &none), noops + linear);
        assert_int_equal(none, waiting); /* noops wait */
        assert_false(same_rows(engine, expected));
        assert_ok(part_reschedule(engine, NULL, &(pass_part){.skip = "ffn_down, rope"}, &error));
        assert_true(count(schedule_of(engine), "linear", &none) > 0);
        assert_int_equal(count(schedule_of(engine), "rope", &none), 0);
        assert_false(same_rows(engine, expected));
        assert_ok(part_reschedule(engine, NULL, &(pass_part){.skip = "waits"}, &error));
        assert_int_equal(count(schedule_of(engine), "linear", &none), linear);
        assert_int_equal(none, 0);
        float *any = eval_fresh(engine, ids, N_IDS); /* in any order, but it ends */
        free(any);
        assert_ok(qp_engine_reschedule(engine, NULL, &error));
        assert_true(same_rows(engine, expected));
        free(expected);
        qp_engine_close(engine);
    }
}

static void test_steps_outside_do_not_run(void **state)
{
    (void)state;
    qp_engine *engine;
    assert_ok(open_part((pass_part){.start_after = "0.attn_output", .stop_after = "1.rope"}, NULL,
                        &engine));
    const schedule *s = schedule_of(engine);
    const program *p = s->program;
    const int first = program_find_step(p, "attn_output", 0),
              last = program_find_step(p, "rope", 1);
    int inside = 0;
    for (int w = 0; w < s->options.workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const instruction *in = schedule_queue(s, w) + i;
            if (in->opcode == INSTRUCTION_NOOP) continue;
            assert_true(in->step > first && in->step <= last);
            inside++;
        }
    }
    assert_true(inside > 0);
    free(eval_fresh(engine, ids, N_IDS));
    qp_engine_close(engine);
}

static void test_fewer_layers(void **state)
{
    (void)state;
    qp_engine *all, *two, *one;
    assert_ok(open_part((pass_part){0}, NULL, &all));
    assert_ok(open_part((pass_part){.layers = 2}, NULL, &two));
    assert_ok(open_part((pass_part){.layers = 1}, "operators", &one)); /* on any machine */
    float *expected = eval_fresh(all, ids, N_IDS);
    assert_true(same_rows(two, expected));
    assert_false(same_rows(one, expected));
    assert_int_equal(qp_engine_get_info(two)->read_bytes, qp_engine_get_info(all)->read_bytes);
    assert_true(qp_engine_get_info(one)->read_bytes < qp_engine_get_info(all)->read_bytes);
    free(expected);
    qp_engine_close(all);
    qp_engine_close(two);
    qp_engine_close(one);
    assert_int_equal(open_part((pass_part){.layers = 3}, NULL, &all), QP_INVALID);
    assert_non_null(strstr(error.message, "the model has 2 layers"));
}

static void test_what_is_not_there_is_refused(void **state)
{
    (void)state;
    static const struct {
        pass_part part;
        const char *exec, *said;
    } cases[] = {
        {{.skip = "linear,lineer"}, NULL, "no \"lineer\" to skip"},
        {{.skip = "all_reduce"}, NULL, "no \"all_reduce\""}, /* one rank has none */
        {{.skip = "linear"}, "operators", "operators runs none"},
        {{.stop_after = "rope"}, NULL, "a step of every layer"},
        {{.start_after = "lm_head"}, NULL, "nothing would run"},
        {{.start_after = "1.rope", .stop_after = "0.rope"}, NULL, "nothing would run"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qp_engine *engine = NULL;
        assert_int_equal(open_part(cases[i].part, cases[i].exec, &engine), QP_INVALID);
        if (!strstr(error.message, cases[i].said))
            fail_msg("no \"%s\" in \"%s\"", cases[i].said, error.message);
    }
    qp_engine *engine;
    strbuf kinds = {0};
    assert_ok(open_part((pass_part){0}, "operators", &engine));
    assert_int_equal(part_print_kinds(engine, &kinds, &error), QP_INVALID);
    qp_engine_close(engine);
}

/* The listing shows noops in the places of what is left out, and predicts less. */
static void test_a_listing_of_a_part(void **state)
{
    (void)state;
    strbuf text = {0};
    schedule_print_options options = {.model = model_name,
                                      .workers = THREADS,
                                      .setting = "throughput",
                                      .assignment = "dag",
                                      .skip = "linear"};
    assert_ok(schedule_print(&options, &text, &error));
    assert_null(strstr(strbuf_text(&text), "\nlinear"));
    assert_non_null(strstr(strbuf_text(&text), "\nnoop"));
    assert_non_null(strstr(strbuf_text(&text), "\nrms_norm"));
    options.layers = 9;
    assert_int_equal(schedule_print(&options, &text, &error), QP_INVALID);
    strbuf_free(&text);
}

static bool compare(diff_options options, strbuf *text)
{
    bool equal = false;
    options.model = model_name;
    strbuf_clear(text);
    if (diff_print(&options, text, &equal, &error) != QP_OK) fail_msg("%s", error.message);
    return equal;
}

static void test_comparisons(void **state)
{
    (void)state;
    char path[] = "/tmp/quipu-schedule-XXXXXX";
    strbuf text = {0};
    bool equal;
    close(mkstemp(path));
    const schedule_print_options saved = {
        .model = model_name, .workers = 3, .setting = "latency", .assignment = "zz", .save = path};
    assert_ok(schedule_print(&saved, &text, &error));
    assert_true(compare((diff_options){.schedule = path, .singles = 2}, &text));
    assert_non_null(strstr(strbuf_text(&text), "3 threads"));
    assert_false(compare((diff_options){.skip = "silu_and_mul", .threads = 2}, &text));
    assert_non_null(strstr(strbuf_text(&text), "step 0.activation, tensor ffn"));
    diff_options options = {.model = model_name, .b = "operators", .skip = "linear"};
    assert_int_equal(diff_print(&options, &text, &equal, &error), QP_UNSUPPORTED);
    options = (diff_options){.model = model_name, .ranks = 2, .skip = "linear"};
    assert_int_equal(diff_print(&options, &text, &equal, &error), QP_UNSUPPORTED);
    assert_true(compare((diff_options){.schedule = path, .context = 64}, &text));
    options = (diff_options){.model = model_name, .context = 8, .n_tokens = 9};
    assert_int_equal(diff_print(&options, &text, &equal, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "9 tokens do not fit a context of 8"));
    unlink(path);
    strbuf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_kind_is_left_out_and_comes_back),
        cmocka_unit_test(test_steps_outside_do_not_run),
        cmocka_unit_test(test_fewer_layers),
        cmocka_unit_test(test_what_is_not_there_is_refused),
        cmocka_unit_test(test_a_listing_of_a_part),
        cmocka_unit_test(test_comparisons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
