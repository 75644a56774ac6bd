/* What a person sees of a schedule: complete, and the numbers agree with each other. */
#include "test.h"

#include "base/json.h"
#include "schedule/print.h"

#include <math.h>

static const schedule_print_options usual = {.model = "synthetic:tiny",
                                             .workers = 3,
                                             .setting = "latency",
                                             .assignment = "dag",
                                             .verify = true};

static cJSON *print_json(schedule_print_options options)
{
    qp_error error;
    strbuf text = {0};
    cJSON *json;
    options.json = true;
    assert_ok(schedule_print(&options, &text, &error));
    assert_ok(json_parse(strbuf_text(&text), text.length, "the schedule", &json, &error));
    strbuf_free(&text);
    return json;
}

static double number(const cJSON *json, const char *key)
{
    double value = NAN;
    qp_error error;
    assert_ok(json_get_double(json, key, "the schedule", &value, &error));
    return value;
}

static void test_numbers_agree(void **state)
{
    (void)state;
    schedule_print_options options = usual;
    options.list = true;
    cJSON *json = print_json(options);
    int instructions = 0;
    double end = 0, work = 0;
    const cJSON *queue, *item, *opcode;
    cJSON_ArrayForEach(queue, json_get(json, "queues"))
    {
        double free_at = 0;
        cJSON_ArrayForEach(item, queue)
        {
            instructions++;
            assert_true(number(item, "begin_ns") >= free_at); /* one thing at a time */
            free_at = number(item, "end_ns");
            assert_true(free_at == number(item, "begin_ns") + number(item, "cost_ns"));
            work += number(item, "cost_ns");
            if (free_at > end) end = free_at;
        }
    }
    int counted = 0;
    cJSON_ArrayForEach(opcode, json_get(json, "opcodes")) counted += opcode->valueint;
    assert_int_equal(instructions, (int)number(json, "instructions"));
    assert_int_equal(counted, instructions);
    assert_true(number(json, "predicted_ns") == end);
    assert_true(number(json, "critical_path_ns") <= end);
    assert_true(work <= 3 * end && number(json, "balance") >= 1);
    cJSON_Delete(json);
}

static void test_one_worker_does_all_the_work(void **state)
{
    (void)state;
    schedule_print_options options = usual;
    options.workers = 1;
    options.list = true;
    options.signal_ns = 1e-3;
    cJSON *json = print_json(options);
    double work = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetArrayItem(json_get(json, "queues"), 0)) work +=
        number(item, "cost_ns");
    assert_true(number(json, "balance") == 1);
    assert_true(fabs(number(json, "predicted_ns") - work) < 1);
    cJSON_Delete(json);
}

static void test_listing_shows_every_knot(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0};
    schedule_print_options options = usual;
    options.setting = "throughput";
    options.list = true;
    assert_ok(schedule_print(&options, &text, &error));
    static const char *const parts[] = {"worker 2\n", "attn_qkv 1", "paged_prefill",
                                        "previous c", "t128:256",   "out=attn[256:384]",
                                        "verified"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_non_null(strstr(strbuf_text(&text), parts[i]));
    strbuf_free(&text);
}

/* The page has its data in place of the mark, and what is predicted. */
static void test_page(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0}, page = {0};
    schedule_print_options options = usual;
    options.page = &page;
    assert_ok(schedule_print(&options, &text, &error));
    assert_null(strstr(strbuf_text(&page), "@DATA@"));
    static const char *const parts[] = {"<!DOCTYPE html>",         "\"title\":\"synthetic:tiny\"",
                                        "latency, dag, 3 workers", "\"planned\":{\"title\":",
                                        "\"measured\":[]}",        "</html>"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strstr(strbuf_text(&page), parts[i])) fail_msg("no %s", parts[i]);
    }
    strbuf_free(&text);
    strbuf_free(&page);
}

static void test_what_is_not_there_is_refused(void **state)
{
    (void)state;
    schedule_print_options bad[] = {usual, usual, usual, usual, usual};
    bad[0].workers = 0;
    bad[1].setting = "slow";
    bad[2].assignment = "best";
    bad[3].model = "/nonexistent/model.gguf";
    bad[4].save = "/nonexistent/schedule";
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qp_error error = {0};
        strbuf text = {0};
        assert_int_not_equal(schedule_print(&bad[i], &text, &error), QP_OK);
        assert_true(strlen(error.message) > 10);
        strbuf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_agree),
        cmocka_unit_test(test_one_worker_does_all_the_work),
        cmocka_unit_test(test_listing_shows_every_knot),
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_what_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
