/* What definitions and solutions of a data set must be: one member of a good one is changed. */
#include "test.h"

#include "base/json.h"
#include "base/strbuf.h"
#include "workbench/schema.h"

#include <string.h>

static const char good[] =
    "[{'name': 'draw', 'op_type': 'sampling', 'axes': {'rows': {'type': 'var'}, 'vocab': {'type': "
    "'const', 'value': 50}}, 'inputs': {'probs': {'shape': ['rows', 'vocab'], 'dtype': "
    "'float32'}}, "
    "'outputs': {'samples': {'shape': ['rows'], 'dtype': 'int32'}}, 'reference': 'def run(): 1'}, "
    "{'name': 's', 'definition': 'draw', 'author': 'a', 'spec': {'language': 'python', "
    "'target_hardware': ['cpu'], 'entry_point': 'main.py::run'}, 'sources': [{'path': 'main.py', "
    "'content': 'def run(): pass'}]}]";

static const struct {
    const char *from, *to, *refusal; /* refusal NULL: none */
} cases[] = {
    {"'draw'", "'draw'", NULL},
    {"'var'", "'free'", "the type of axis \"rows\" must be \"const\" or \"var\", found \"free\""},
    {"'value': 50", "'value': -1", "axis \"vocab\" needs a value from 0 to"},
    {"'const', 'value': 50", "'const'", "axis \"vocab\" needs a value from 0 to"},
    {"['rows'], 'dtype': 'int32'", "null, 'dtype': 'int32'",
     "the output \"samples\" is a scalar; outputs must be tensors"},
    {"main.py::run", "main.py", "entry_point must be FILE::FUNCTION, found \"main.py\""},
    {"main.py::run", "main.py::", "entry_point must be FILE::FUNCTION, found \"main.py::\""},
};

/* The good text with one change, and JSON's quotes. */
static void change(const char *from, const char *to, strbuf *out)
{
    const char *at = strstr(good, from);
    assert_non_null(at);
    strbuf_append(out, good, (size_t)(at - good));
    strbuf_puts(out, to);
    strbuf_puts(out, at + strlen(from));
    for (size_t i = 0; i < out->length; i++) {
        if (out->data[i] == '\'') out->data[i] = '"';
    }
}

static void members_are_checked(void **state)
{
    (void)state;
    static schema_definition definition;
    static schema_solution solution;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qp_error error = {0};
        strbuf text = {0};
        cJSON *tree;
        change(cases[i].from, cases[i].to, &text);
        assert_ok(json_parse(text.data, text.length, "set", &tree, &error));
        qp_status status =
            schema_read_definition(cJSON_GetArrayItem(tree, 0), "set", &definition, &error);
        if (status == QP_OK)
            status = schema_read_solution(cJSON_GetArrayItem(tree, 1), "set", &solution, &error);
        if (!cases[i].refusal) assert_ok(status);
        if (cases[i].refusal) {
            assert_int_not_equal(status, QP_OK);
            assert_non_null(strstr(error.message, cases[i].refusal));
        }
        cJSON_Delete(tree);
        strbuf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(members_are_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
