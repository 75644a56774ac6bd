/* Chat templates: compared with jinja2's results, and limited in what harmful ones can do.
 *
 * golden/template_*.json come from scripts/template_goldens.py. A null text means that jinja2
 * refuses the template; then quipu must refuse it too.
 */
#include "test.h"

#include "base/json.h"
#include "template/template.h"

#include <locale.h>

static cJSON *load_json(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    fclose(file);
    cJSON *tree = cJSON_ParseWithLength(text, (size_t)size);
    free(text);
    assert_non_null(tree);
    return tree;
}

static qp_status render_with(const char *source, const cJSON *context,
                             const template_options *options, strbuf *out, qp_error *error)
{
    template *compiled = NULL;
    qp_status status = template_compile(source, strlen(source), &compiled, error);
    if (status == QP_OK) status = template_render(compiled, context, options, out, error);
    template_free(compiled);
    return status;
}

/* Renders with a context given as JSON; the caller frees `out`. */
static qp_status render_json(const char *source, const char *context,
                             const template_options *options, strbuf *out, qp_error *error)
{
    cJSON *tree = cJSON_Parse(context);
    assert_non_null(tree);
    qp_status status = render_with(source, tree, options, out, error);
    cJSON_Delete(tree);
    return status;
}

/* Whether the text of a case comes out, or the template is refused where jinja2 refuses. */
static bool check_case(const char *label, const char *source, const cJSON *context,
                       const cJSON *expected, const template_options *options)
{
    qp_error error = {0};
    strbuf out = {0};
    qp_status status = render_with(source, context, options, &out, &error);
    const char *want = cJSON_GetStringValue(expected), *got = strbuf_text(&out);
    bool same = want ? status == QP_OK && strcmp(got, want) == 0 : status != QP_OK;
    if (!same)
        print_error("%s\n  wanted %s\n  found  %s\n", label, want ? want : "(an error)",
                    status == QP_OK ? got : error.message);
    strbuf_free(&out);
    return same;
}

static void expressions_match_jinja2(void **state)
{
    (void)state;
    cJSON *golden = load_json("golden/template_expressions.json"), *item;
    const cJSON *context = cJSON_GetObjectItem(golden, "context");
    template_options options = {.now = 1767323045};
    int wrong = 0, count = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(golden, "cases"))
    {
        const char *source = cJSON_GetArrayItem(item, 0)->valuestring;
        wrong += !check_case(source, source, context, cJSON_GetArrayItem(item, 1), &options);
        count++;
    }
    cJSON_Delete(golden);
    assert_true(count > 500);
    assert_int_equal(wrong, 0);
}

static void chats_match_jinja2(void **state)
{
    (void)state;
    cJSON *golden = load_json("golden/template_chats.json"), *item;
    const cJSON *templates = cJSON_GetObjectItem(golden, "templates");
    const cJSON *contexts = cJSON_GetObjectItem(golden, "contexts");
    template_options options = {.now = 1767323045};
    int wrong = 0, count = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(golden, "cases"))
    {
        const char *name = cJSON_GetArrayItem(item, 0)->valuestring;
        int index = cJSON_GetArrayItem(item, 1)->valueint;
        char label[80];
        snprintf(label, sizeof label, "%s, conversation %d", name, index);
        wrong +=
            !check_case(label, cJSON_GetObjectItem(templates, name)->valuestring,
                        cJSON_GetArrayItem(contexts, index), cJSON_GetArrayItem(item, 2), &options);
        count++;
    }
    cJSON_Delete(golden);
    assert_true(count > 300);
    assert_int_equal(wrong, 0);
}

static void errors_name_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *source, *message;
        qp_status status;
    } cases[] = {
        {"a\n{{ 1 + }}", "chat template, line 2, column 8: expected an expression", QP_FORMAT},
        {"äö{{ x.y.z }}", "line 1, column 10: 'dict object' has no attribute 'y'", QP_FORMAT},
        {"{% if x %}\n", "expected 'elif' or 'else' or 'endif', found the end of the template",
         QP_FORMAT},
        {"{% for %}", "line 1, column 8", QP_FORMAT},
        {"{% nope %}", "found 'nope'", QP_FORMAT},
        {"{{ 'abc }}", "this string has no closing quote", QP_FORMAT},
        {"{# abc", "this comment has no end", QP_FORMAT},
        {"{% raw %}x", "no {% endraw %}", QP_FORMAT},
        {"{{ (1] }}", "unexpected ']', expected ')'", QP_FORMAT},
        {"{{ 9223372036854775808 }}", "64 bits", QP_FORMAT},
        {"{{ 9223372036854775807 + 1 }}", "64 bits", QP_FORMAT},
        {"{{ (-9223372036854775807 - 1) // -1 }}", "64 bits", QP_FORMAT},
        {"{{ 3 ** 99 }}", "64 bits", QP_FORMAT},
        {"{{ undefined_thing + 1 }}", "'undefined_thing' is undefined", QP_FORMAT},
        {"{{ x | nope }}", "no filter named 'nope'", QP_FORMAT},
        {"{{ x is nope }}", "no test named 'nope'", QP_FORMAT},
        {"{{ 1 + 'a' }}", "unsupported operand types for +: 'int' and 'str'", QP_FORMAT},
        {"{{ [].append(1) }}", "not allowed", QP_FORMAT},
        {"\n {{ raise_exception('no ' ~ x.a) }}",
         "line 2, column 5: the template refuses the conversation: no 1", QP_INVALID},
        {"{% include 'x' %}", "the tag 'include' is not supported", QP_UNSUPPORTED},
        {"\xff", "line 1, column 1: not UTF-8", QP_FORMAT},
        {"{{ '\\ud800' }}", "not a Unicode character", QP_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qp_error error = {0};
        strbuf out = {0};
        strbuf_puts(&out, "kept");
        qp_status status = render_json(cases[i].source, "{\"x\": {\"a\": 1}}", NULL, &out, &error);
        if (status != cases[i].status || !strstr(error.message, cases[i].message))
            fail_msg("%s: status %d, \"%s\"", cases[i].source, (int)status, error.message);
        assert_string_equal(strbuf_text(&out), "kept");
        strbuf_free(&out);
    }
}

/* Repeats `piece` into a template between two ends. */
static char *repeated(const char *before, const char *piece, int times, const char *after)
{
    strbuf text = {0};
    strbuf_puts(&text, before);
    for (int i = 0; i < times; i++)
        strbuf_puts(&text, piece);
    strbuf_puts(&text, after);
    return strbuf_take(&text);
}

static void expect_limit(const char *source, const char *message)
{
    qp_error error = {0};
    strbuf out = {0};
    template_options options = {
        .max_steps = 300000, .max_output = 100000, .max_memory = (size_t)64 << 20};
    qp_status status = render_json(source, "{\"xs\": [1, 2]}", &options, &out, &error);
    if (status == QP_OK || !strstr(error.message, message))
        fail_msg("%.60s: status %d, \"%s\"", source, (int)status, error.message);
    strbuf_free(&out);
}

static void hostile_templates_are_bounded(void **state)
{
    (void)state;
    expect_limit("{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
                 "steps");
    expect_limit("{{ 'x' * 99999999999 }}", "memory");
    expect_limit("{{ 'x' * 200000 }}", "writes more than 100000 bytes");
    expect_limit("{{ [1] * 9223372036854775807 }}", "memory");
    expect_limit("{{ range(10 ** 9) }}", "range of more than");
    expect_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply");
    expect_limit(
        "{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}",
        "more than");
    expect_limit(
        "{% set ns = namespace(l=[1]) %}{% for i in range(150) %}{% set ns.l = [ns.l, ns.l] %}"
        "{% endfor %}{{ ns.l == [ns.l, 1] }}{{ ns.l }}",
        "writes more than");
    expect_limit("{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}"
                 "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
                 "{{ ns.a == ns.b }}",
                 "steps");
    expect_limit("{% set ns = namespace(a=(1,)) %}{% for i in range(60) %}"
                 "{% set ns.a = (ns.a, ns.a) %}{% endfor %}{{ {ns.a: 1} }}",
                 "steps");
    expect_limit("{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}", "nested too deeply");
    expect_limit("{% set ns = namespace(l=1) %}{% for i in range(300) %}{% set ns.l = [ns.l] %}"
                 "{% endfor %}{{ ns.l | tojson }}",
                 "nested too deeply");
    expect_limit("{% for x in xs recursive %}{{ loop(xs) }}{% endfor %}", "nested too deeply");
    expect_limit("{{ '%999999999d' % 1 }}", "memory");
    expect_limit("{{ '{:999999999}'.format('x') }}", "memory");
    expect_limit(
        "{% set s = 'ab' * 40000 %}{% for i in range(99999) %}{% if 'ba!' in s %}{% endif %}"
        "{% endfor %}",
        "steps");
}

static void nested_sources_are_bounded(void **state)
{
    (void)state;
    static const char *const shapes[][3] = {
        {"{{ ", "(", "1"},
        {"{{ ", "[", ""},
        {"{{ ", "{1:", ""},
        {"{{ ", "-", "1 }}"},
        {"{{ ", "not ", "1 }}"},
        {"", "{% if 1 %}", ""},
        {"{{ ", "x[", ""},
        {"{{ ", "f(", ""},
        {"{{ ", "1 if 1 else ", "1 }}"},
        {"{% set ", "(", ""},
        {"{{ 1", "+1", " }}"},
        {"{{ 1", "|abs", " }}"},
        {"{{ x", ".a", " }}"},
        {"{{ 1 ", "and 1 ", "}}"},
        {"{{ 1", " if 1", " }}"},
        {"{{ x", "[0]", " }}"},
        {"", "{% set x %}", ""},
        {"{{ 1", " == 1", " }}"},
        {"{{ 1", "~1", " }}"},
        {"{% if 0 %}", "{% elif 0 %}", "{% endif %}"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        char *source = repeated(shapes[i][0], shapes[i][1], 20000, shapes[i][2]);
        qp_error error = {0};
        strbuf out = {0};
        assert_non_null(source);
        render_json(source, "{}", NULL, &out, &error); /* any answer, but an answer */
        strbuf_free(&out);
        free(source);
    }
}

static void data_nests_within_bounds(void **state)
{
    (void)state;
    cJSON *context = cJSON_CreateObject(), *inner = cJSON_AddArrayToObject(context, "deep");
    for (int i = 0; i < 5000; i++) {
        cJSON *next = cJSON_CreateArray();
        cJSON_AddItemToArray(inner, next);
        inner = next;
    }
    qp_error error = {0};
    strbuf out = {0};
    assert_int_equal(render_with("{{ deep }}", context, NULL, &out, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "nested too deeply"));
    cJSON_Delete(context);
    strbuf_free(&out);
    assert_int_equal(render_json("{{ x }}", "[1]", NULL, &out, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "must be an object, found an array"));
}

static void the_clock_is_the_callers(void **state)
{
    (void)state;
    static const struct {
        int64_t now;
        int32_t offset;
        const char *text;
    } cases[] = {
        {0, 0, "1970-01-01 00:00:00 Thu 001 1970-W01"},
        {0, -3600, "1969-12-31 23:00:00 Wed 365 1970-W01"},
        {951782400, 0, "2000-02-29 00:00:00 Tue 060 2000-W09"},
        {1767225599, 3600, "2026-01-01 00:59:59 Thu 001 2026-W01"},
        {1704067199, 0, "2023-12-31 23:59:59 Sun 365 2023-W52"},
        {1609459200, 0, "2021-01-01 00:00:00 Fri 001 2020-W53"},
        {-62135596800, 0, "1-01-01 00:00:00 Mon 001 0001-W01"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qp_error error = {0};
        strbuf out = {0};
        template_options options = {.now = cases[i].now, .utc_offset = cases[i].offset};
        assert_ok(render_json("{{ strftime_now('%Y-%m-%d %H:%M:%S %a %j %G-W%V') }}", "{}",
                              &options, &out, &error));
        assert_string_equal(strbuf_text(&out), cases[i].text);
        strbuf_free(&out);
    }
}

/* Those directives that no golden expression has, and the flags of padding and case. */
static void directives_have_forms(void **state)
{
    (void)state;
    qp_error error = {0};
    strbuf out = {0};
    template_options options = {.now = 1614870367};
    assert_ok(render_json("{{ strftime_now('%C %g %h %k %l %M %P %r|%n|%t|%_d %0e %-H %^a %^B %_j "
                          "%s') }}",
                          "{}", &options, &out, &error));
    assert_string_equal(strbuf_text(&out), "20 21 Mar 15  3 06 pm 03:06:07 PM|\n|\t| 4 04 15 THU "
                                           "MARCH  63 1614870367");
    strbuf_free(&out);
    assert_int_equal(render_json("{{ strftime_now('%Q') }}", "{}", &options, &out, &error),
                     QP_FORMAT);
    assert_non_null(strstr(error.message, "%Q"));
    strbuf_free(&out);
}

/* A comma as the decimal point of the process must not show. */
static void numbers_ignore_the_locale(void **state)
{
    (void)state;
    const char *set = setlocale(LC_NUMERIC, "de_DE.UTF-8");
    if (!set) set = setlocale(LC_NUMERIC, "fr_FR.UTF-8");
    qp_error error = {0};
    strbuf out = {0};
    qp_status status =
        render_json("{{ 2.5 }} {{ '1.5' | float }} {{ '%.2f' % 1.5 }} {{ 1.25 | round(1) }}", "{}",
                    NULL, &out, &error);
    setlocale(LC_NUMERIC, "C");
    assert_ok(status);
    assert_string_equal(strbuf_text(&out), "2.5 1.5 1.50 1.2");
    strbuf_free(&out);
}

/* The example of the header: one compiled template, many renders. */
static void templates_can_be_rendered_again(void **state)
{
    (void)state;
    static const char source[] = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    qp_error error = {0};
    template *compiled;
    assert_ok(template_compile(source, strlen(source), &compiled, &error));
    for (int i = 0; i < 3; i++) {
        char json[80];
        strbuf out = {0};
        snprintf(json, sizeof json, "{\"messages\":[{\"role\":\"user\",\"content\":%d}]}", i);
        cJSON *context = cJSON_Parse(json);
        assert_ok(template_render(compiled, context, NULL, &out, &error));
        snprintf(json, sizeof json, "user:%d;", i);
        assert_string_equal(strbuf_text(&out), json);
        strbuf_free(&out);
        cJSON_Delete(context);
    }
    template_free(compiled);
    template_free(NULL);
}

/* ceil() and floor() give integers in Python, so there is no negative zero. */
static void rounding_to_zero(void **state)
{
    (void)state;
    qp_error error;
    strbuf out = {0};
    assert_ok(render_json(
        "{{ -0.5 | round(0, 'ceil') }} {{ (-0.5) | round(0, 'ceil') }} {{ (-0.01) | round(1, "
        "'ceil') }} {{ (-0.5) | round }}",
        "{}", NULL, &out, &error));
    assert_string_equal(strbuf_text(&out), "0.0 0.0 0.0 -0.0");
    strbuf_free(&out);
}

/* Numbers of a conversation are those that were written. */
static void context_numbers(void **state)
{
    (void)state;
    static const char json[] =
        "{\"n\": [1234567890123456789, 1000000000000000, 1.0, 2e3, 7, -0.0, 12345678901234567890]}";
    static const char source[] = "{{ n }}|{{ n | tojson }}|{{ n[0] + 1 }}|{{ n[2] is float }}";
    qp_error error;
    cJSON *context;
    strbuf out = {0};
    assert_ok(json_parse_exact(json, sizeof json - 1, "t", &context, &error));
    assert_ok(render_with(source, context, NULL, &out, &error));
    static const char list[] =
        "[1234567890123456789, 1000000000000000, 1.0, 2000.0, 7, -0.0, 1.2345678901234567e+19]";
    char expected[512];
    snprintf(expected, sizeof expected, "%s|%s|1234567890123456790|True", list, list);
    assert_string_equal(strbuf_text(&out), expected);
    strbuf_free(&out);
    cJSON_Delete(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_match_jinja2),
        cmocka_unit_test(chats_match_jinja2),
        cmocka_unit_test(context_numbers),
        cmocka_unit_test(rounding_to_zero),
        cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(hostile_templates_are_bounded),
        cmocka_unit_test(nested_sources_are_bounded),
        cmocka_unit_test(data_nests_within_bounds),
        cmocka_unit_test(the_clock_is_the_callers),
        cmocka_unit_test(directives_have_forms),
        cmocka_unit_test(numbers_ignore_the_locale),
        cmocka_unit_test(templates_can_be_rendered_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
