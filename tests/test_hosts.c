/* What several hosts reach, as predicted: latency and bandwidth cost what the exchanges of a pass
 * make of them. */
#include "test.h"

#include "base/json.h"
#include "model/model.h"
#include "inspect/schedule_print.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 2 };

static const schedule_print_options usual = {.model = "synthetic:tiny",
                                             .workers = 2,
                                             .setting = "latency",
                                             .assignment = "rr",
                                             .ranks = MOST,
                                             .networks = "100000:0,100000:50,1:0"};

static void assert_near(double found, double want, double most)
{
    if (!(fabs(found - want) <= most)) fail_msg("expected %.3f, found %.3f", want, found);
}

static cJSON *predict(schedule_print_options options)
{
    qp_error error;
    strbuf text = {0};
    cJSON *json;
    options.json = true;
    assert_ok(schedule_print(&options, &text, &error));
    assert_ok(json_parse(strbuf_text(&text), text.length, "hosts", &json, &error));
    strbuf_free(&text);
    return json;
}

static const cJSON *host(const cJSON *json, int index)
{
    return cJSON_GetArrayItem(json_get(json, "hosts"), index);
}

static double pass_ns(const cJSON *json, int hosts, int network)
{
    const cJSON *of = cJSON_GetArrayItem(json_get(host(json, hosts), "networks"), network);
    return json_get(of, "pass_ns")->valuedouble;
}

/* Exchanges of a pass with the cut gather: four a layer, and the logits. */
static void each_exchange_takes_the_latency(void **state)
{
    (void)state;
    qp_error error;
    model *m;
    const model_options sizes = {.sizes_only = true};
    assert_ok(model_open("synthetic:tiny", &sizes, &m, &error));
    const model_config *c = model_get_config(m);
    const double exchanges = 4 * (double)c->n_layers + 1;
    const double columns =
        (double)(c->n_heads * c->head_dim + 2 * c->hidden_size + c->intermediate_size) *
            (double)c->n_layers +
        (double)c->vocab_size;
    cJSON *json = predict(usual);
    assert_near(pass_ns(json, 0, 1), pass_ns(json, 0, 0), 1); /* one host */
    assert_true(pass_ns(json, 1, 0) < pass_ns(json, 0, 0));
    assert_near(pass_ns(json, 1, 1) - pass_ns(json, 1, 0), exchanges * 50e3, 2 * exchanges);
    const double bytes = json_get(host(json, 1), "bytes_received")->valuedouble;
    assert_near(bytes, columns / MOST * sizeof(float), 0.5);
    assert_near(pass_ns(json, 1, 2) - pass_ns(json, 1, 0), bytes * 8 * (1 - 1e-5), 4 * exchanges);
    cJSON_Delete(json);
    model_close(m);
}

/* Three ranks have unequal parts: the one with most decides, at every exchange. */
static void ranks_wait_for_the_last(void **state)
{
    (void)state;
    schedule_print_options options = usual;
    options.ranks = 3;
    cJSON *json = predict(options);
    assert_int_equal(cJSON_GetArraySize(json_get(json, "hosts")), 3);
    assert_true(pass_ns(json, 2, 0) < pass_ns(json, 0, 0));
    assert_true(pass_ns(json, 2, 1) > pass_ns(json, 2, 0));
    cJSON_Delete(json);
}

static void a_picture_has_a_line_for_each_network(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0}, svg = {0};
    schedule_print_options options = usual;
    options.page = &svg;
    assert_ok(schedule_print(&options, &text, &error));
    assert_non_null(strstr(strbuf_text(&text), "hosts bytes received"));
    int lines = 0;
    for (const char *at = strbuf_text(&svg); (at = strstr(at, "Gbit/s, ")); at++)
        lines++;
    assert_int_equal(lines, 3);
    assert_non_null(strstr(strbuf_text(&svg), "</svg>"));
    strbuf_free(&text);
    strbuf_free(&svg);
}

static void networks_that_are_none_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"10",
                                      "10:",
                                      ":5",
                                      "10:5,",
                                      "a:b",
                                      "0:1",
                                      "10:-1",
                                      "10:nan",
                                      "nan:1",
                                      "10:5;1:1",
                                      "1:1,1:1,1:1,1:1,1:1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qp_error error = {0};
        strbuf text = {0};
        schedule_print_options options = usual;
        options.networks = bad[i];
        if (schedule_print(&options, &text, &error) != QP_INVALID ||
            !strstr(error.message, "Gbit/s and microseconds"))
            fail_msg("%s: %s", bad[i], error.message);
        strbuf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_exchange_takes_the_latency),
        cmocka_unit_test(ranks_wait_for_the_last),
        cmocka_unit_test(a_picture_has_a_line_for_each_network),
        cmocka_unit_test(networks_that_are_none_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
