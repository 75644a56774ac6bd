/* The printed form of a schedule: complete, with consistent numbers. */
#include "test.h"

#include "base/json.h"
#include "inspect/schedule_print.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const schedule_print_options usual = {.model = "synthetic:tiny",
                                             .workers = 3,
                                             .setting = "latency",
                                             .assignment = "dag",
                                             .fuse = true,
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

/* What is not fused is what CPU threads run: no operator that a trace would not have. */
static void test_it_is_what_threads_run(void **state)
{
    (void)state;
    static const char *const run[] = {
        "embedding",     "rms_norm",     "linear", "rope", "kv_append",
        "paged_prefill", "silu_and_mul", "noop" /* of the rows moved by wanted_rows */};
    schedule_print_options options = usual;
    options.fuse = false;
    cJSON *json = print_json(options);
    const cJSON *opcodes = json_get(json, "opcodes");
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        if (!cJSON_GetObjectItem(opcodes, run[i])) fail_msg("no %s", run[i]);
    }
    assert_int_equal(cJSON_GetArraySize(opcodes), sizeof run / sizeof *run);
    cJSON_Delete(json);
}

/* Columns stay where their headings are, however long the operators' names. */
static void test_columns_are_straight(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0};
    schedule_print_options options = usual;
    options.list = true;
    assert_ok(schedule_print(&options, &text, &error));
    const char *list = strstr(strbuf_text(&text), "worker 0\n");
    assert_non_null(list);
    list = strchr(list, '\n') + 1;
    const size_t slice = (size_t)(strstr(list, "slice") - list);
    int n = 0;
    for (const char *row = strchr(list, '\n') + 1; *row != '\n'; row = strchr(row, '\n') + 1, n++) {
        assert_true(row[slice - 1] == ' ' && row[slice] != ' ');
        assert_null(memchr(row + 25, ' ', strcspn(row + 25, " "))); /* the name is one word */
    }
    assert_true(n > 10);
    assert_non_null(strstr(list, "norm_gate_up_silu")); /* longer than the usual column */
    strbuf_free(&text);
}

/* The schedule of sums clears as many rows as the megakernel's pass has: one. */
static void test_sums_clear_one_row(void **state)
{
    (void)state;
    schedule_print_options options = usual;
    options.sums = true;
    options.list = true;
    cJSON *json = print_json(options);
    double all = 0, clear = 0;
    const cJSON *queue, *item;
    cJSON_ArrayForEach(queue, json_get(json, "queues"))
    {
        cJSON_ArrayForEach(item, queue)
        {
            bool clears = strcmp(json_get(item, "opcode")->valuestring, "embedding_clear") == 0;
            all += number(item, "cost_ns");
            clear += clears ? number(item, "cost_ns") : 0;
        }
    }
    assert_true(clear > 0 && clear < 0.1 * all);
    cJSON_Delete(json);
}

/* Where nearly all work is of one kind, workers are not set apart for the other. */
static void test_pool_keeps_both_workers_busy(void **state)
{
    (void)state;
    schedule_print_options options = usual;
    options.workers = 2;
    options.assignment = "pool";
    cJSON *json = print_json(options);
    assert_true(number(json, "balance") < 1.2);
    cJSON_Delete(json);
    options.memory_fraction = 0.5; /* as asked: all but little on one */
    json = print_json(options);
    assert_true(number(json, "balance") > 1.5);
    cJSON_Delete(json);
}

/* A saved schedule comes back the same; another model's is refused. */
static void test_a_saved_schedule_is_shown(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0};
    char path[] = "/tmp/quipu-schedule-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    schedule_print_options options = usual;
    options.save = path;
    cJSON *saved = print_json(options);
    options.save = NULL;
    options.load = path;
    options.workers = 7; /* the file knows better */
    options.assignment = "rr";
    cJSON *loaded = print_json(options);
    static const char *const keys[] = {"workers", "instructions", "counters", "predicted_ns"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_true(number(saved, keys[i]) == number(loaded, keys[i]));
    assert_true(number(loaded, "made_now_differences") == 0);
    assert_string_equal(json_get(loaded, "assign")->valuestring, "dag");
    cJSON_Delete(saved);
    cJSON_Delete(loaded);
    options.model = "synthetic:smollm2-135m";
    assert_int_equal(schedule_print(&options, &text, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "made for another model"));
    options.model = usual.model;
    options.context = 64; /* a schedule outlives a context, a chunk and a type of the cache */
    options.chunk = 16;
    options.kv_type = "F32";
    assert_ok(schedule_print(&options, &text, &error));
    strbuf_free(&text);
    unlink(path);
    assert_int_equal(schedule_print(&options, &text, &error), QP_IO);
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
        cmocka_unit_test(test_it_is_what_threads_run),
        cmocka_unit_test(test_columns_are_straight),
        cmocka_unit_test(test_sums_clear_one_row),
        cmocka_unit_test(test_pool_keeps_both_workers_busy),
        cmocka_unit_test(test_a_saved_schedule_is_shown),
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_what_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
