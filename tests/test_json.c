/* src/base/json.h: values, errors, limits, and numbers as they were written. */
#include "test.h"

#include "base/json.h"
#include "base/strbuf.h"

static void test_json_values(void **state)
{
    (void)state;
    static const char text[] = "{\"i\": -7, \"d\": 2.5, \"b\": true, \"s\": \"x\", \"n\": null, "
                               "\"big\": 1e300, \"edge\": 9007199254740992, \"list\": []} \n";
    qp_error error;
    cJSON *root;
    assert_ok(json_parse(text, sizeof text - 1, "config.json", &root, &error));
    int64_t i = 1;
    double d = 1;
    bool b = false;
    const char *s = "untouched";
    assert_ok(json_get_i64(root, "i", "f", &i, &error));
    assert_int_equal(i, -7);
    assert_ok(json_get_i64(root, "edge", "f", &i, &error));
    assert_true(i == (int64_t)1 << 53);
    assert_ok(json_get_double(root, "d", "f", &d, &error));
    assert_true(d == 2.5);
    assert_ok(json_get_bool(root, "b", "f", &b, &error));
    assert_true(b);
    assert_ok(json_get_string(root, "n", "f", &s, &error));
    assert_ok(json_get_string(root, "absent", "f", &s, &error));
    assert_string_equal(s, "untouched");
    assert_ok(json_get_string(root, "s", "f", &s, &error));
    assert_string_equal(s, "x");
    assert_int_equal(json_get_i64(root, "d", "f", &i, &error), QP_FORMAT);
    assert_string_equal(error.message, "f: \"d\" must be a whole number, found 2.5");
    assert_int_equal(json_get_i64(root, "big", "f", &i, &error), QP_FORMAT);
    assert_int_equal(json_get_i64(root, "s", "f", &i, &error), QP_FORMAT);
    assert_int_equal(json_get_double(root, "b", "f", &d, &error), QP_FORMAT);
    assert_string_equal(error.message, "f: \"b\" must be a number, found a boolean");
    assert_int_equal(json_get_bool(root, "i", "f", &b, &error), QP_FORMAT);
    assert_int_equal(json_get_string(root, "list", "f", &s, &error), QP_FORMAT);
    assert_string_equal(error.message, "f: \"list\" must be a string, found an array");
    assert_null(json_get(NULL, "x"));
    cJSON_Delete(root);
}

static void test_json_broken(void **state)
{
    (void)state;
    qp_error error;
    cJSON *root;
    static const char *const texts[] = {"",     "{",           "{\"a\": }", "[1, 2",
                                        "{} x", "\"\\ud800\"", "nul",       "{\"a\":1}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        /* On the heap and exactly as long, so that a sanitizer sees a read past the end. */
        size_t length = strlen(texts[i]);
        char *copy = malloc(length + 1);
        memcpy(copy, texts[i], length);
        copy = realloc(copy, length ? length : 1);
        assert_int_equal(json_parse(copy, length, "t", &root, &error), QP_FORMAT);
        assert_null(root);
        assert_non_null(strstr(error.message, "not valid JSON"));
        free(copy);
    }
    assert_int_equal(json_parse("{\n  \"a\": ?\n}", 12, "t", &root, &error), QP_FORMAT);
    assert_string_equal(error.message, "t: not valid JSON at line 2, column 8");
    assert_int_equal(json_parse("[1]\n 2", 6, "t", &root, &error), QP_FORMAT);
    assert_string_equal(error.message,
                        "t: not valid JSON (text after the value) at line 2, column 2");
    char *deep = malloc(200000);
    memset(deep, '[', 200000);
    assert_int_equal(json_parse(deep, 200000, "t", &root, &error), QP_FORMAT);
    free(deep);
}

static void json_keeps_the_last_of_equal_keys(void **state)
{
    (void)state;
    qp_error error;
    cJSON *root;
    static const char text[] = "{\"a\": 1, \"b\": {\"c\": 1, \"c\": 2}, \"a\": [1], \"d\": 4, "
                               "\"a\": \"x\", \"A\": 5}";
    assert_ok(json_parse(text, sizeof text - 1, "t", &root, &error));
    char *printed = cJSON_PrintUnformatted(root);
    assert_string_equal(printed, "{\"a\":\"x\",\"b\":{\"c\":2},\"d\":4,\"A\":5}");
    cJSON_free(printed);
    cJSON_Delete(root);
    strbuf many = {0};
    strbuf_putc(&many, '{');
    for (int i = 0; i < 1000; i++)
        strbuf_printf(&many, "\"k%d\": %d, ", i % 100, i);
    strbuf_puts(&many, "\"last\": 0, \"last\": 1}");
    assert_ok(json_parse(many.data, many.length, "t", &root, &error));
    assert_int_equal(cJSON_GetArraySize(root), 101);
    int at = 0;
    for (const cJSON *item = root->child; item->next; item = item->next, at++)
        assert_true(item->valuedouble == 900 + at);
    assert_true(root->child->prev->valuedouble == 1);
    cJSON_Delete(root);
    strbuf_free(&many);
}

/* Numbers are printed with the digits that they were written with. */
static void json_keeps_numbers(void **state)
{
    (void)state;
    qp_error error;
    cJSON *root, *inner;
    static const char text[] =
        "{\"a, -1\\\"2\":[9007199254740993,-12345678901234567890,1.0,-0.0,2e3,0.1,7],"
        "\"b\":{\"3\":\"4\",\"c\":1000000000000000,\"d\":true,\"e\":1.5E+2},\"f\":5}";
    assert_ok(json_parse_exact(text, sizeof text - 1, "t", &root, &error));
    inner = cJSON_Duplicate(cJSON_GetObjectItem(root, "b"), true);
    char *printed = json_print(root), *part = json_print(inner);
    assert_string_equal(printed, text);
    assert_string_equal(part, "{\"3\":\"4\",\"c\":1000000000000000,\"d\":true,\"e\":1.5E+2}");
    const cJSON *list = root->child;
    assert_string_equal(json_number_text(cJSON_GetArrayItem(list, 0)), "9007199254740993");
    assert_string_equal(json_number_text(cJSON_GetArrayItem(list, 2)), "1.0");
    assert_null(json_number_text(cJSON_GetArrayItem(list, 5)));
    assert_null(json_number_text(cJSON_GetArrayItem(list, 6)));
    cJSON_free(printed);
    cJSON_free(part);
    cJSON_Delete(root);
    cJSON_Delete(inner);
    /* What cJSON takes for a number and JSON does not is printed as JSON has it. */
    static const char loose[] = "[01.0,-00009007199254740993,1.,1.e2,{\"a\":\"a\",\"a\":2.0},3.0]";
    assert_ok(json_parse_exact(loose, sizeof loose - 1, "t", &root, &error));
    printed = json_print(root);
    assert_string_equal(printed, "[1,-9007199254740992,1,100,{\"a\":2.0},3.0]");
    cJSON_free(printed);
    cJSON_Delete(root);
}

/* Strings end at a NUL here: refused, not cut. */
static void json_with_a_nul_is_refused(void **state)
{
    (void)state;
    qp_error error;
    cJSON *root;
    static const char escaped[] = "{\"a\": \"x\\u0000y\"}", raw[] = "[\"x\0y\"]",
                      fine[] = "[\"\\\\u0000\"]";
    assert_int_equal(json_parse(escaped, sizeof escaped - 1, "t", &root, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "NUL character (\\u0000)"));
    assert_int_equal(json_parse(raw, sizeof raw - 1, "t", &root, &error), QP_UNSUPPORTED);
    assert_ok(json_parse(fine, sizeof fine - 1, "t", &root, &error));
    assert_string_equal(root->child->valuestring, "\\u0000");
    cJSON_Delete(root);
}

/* A value may cost two bytes of text and eighty of memory. */
static void json_of_too_many_values_is_refused(void **state)
{
    (void)state;
    qp_error error;
    cJSON *root;
    strbuf text = {0};
    strbuf_putc(&text, '[');
    for (int i = 0; i < 2 << 20; i++)
        strbuf_puts(&text, "[],");
    strbuf_puts(&text, "\"in a string ,,,[[[ \\\",,\"]");
    assert_int_equal(json_parse(text.data, text.length, "t", &root, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "t: the JSON text holds more than 4194304 values"));
    assert_null(root);
    strbuf_clear(&text);
    strbuf_putc(&text, '"');
    for (int i = 0; i < 1 << 20; i++)
        strbuf_puts(&text, ",[{\\\"");
    strbuf_putc(&text, '"');
    assert_ok(json_parse(text.data, text.length, "t", &root, &error));
    cJSON_Delete(root);
    strbuf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_values),
        cmocka_unit_test(test_json_broken),
        cmocka_unit_test(json_keeps_the_last_of_equal_keys),
        cmocka_unit_test(json_keeps_numbers),
        cmocka_unit_test(json_with_a_nul_is_refused),
        cmocka_unit_test(json_of_too_many_values_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
