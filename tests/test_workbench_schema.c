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
    {"'op_type': 'sampling'", "'op_type': 'a/b'", "name and op_type must be names of files"},
    {"{'samples': {'shape': ['rows'], 'dtype': 'int32'}}", "{}", "the definition has no outputs"},
    {"['rows', 'vocab']", "5", "the shape of \"probs\" must be null or an array of at most 8 axes"},
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

/* As many axes, or inputs and outputs, as fit, and one more. */
static qp_status many(int axes, int inputs, qp_error *error)
{
    static schema_definition definition;
    strbuf text = {0};
    cJSON *tree;
    strbuf_puts(&text,
                "{\"name\":\"a\",\"op_type\":\"b\",\"reference\":\"def run(): 1\",\"axes\":{");
    for (int i = 0; i < axes; i++)
        strbuf_printf(&text, "%s\"a%d\":{\"type\":\"var\"}", i ? "," : "", i);
    strbuf_puts(&text, "},\"inputs\":{");
    for (int i = 0; i < inputs; i++)
        strbuf_printf(&text, "%s\"i%d\":{\"shape\":[\"a0\"],\"dtype\":\"float32\"}", i ? "," : "",
                      i);
    strbuf_puts(&text, "},\"outputs\":{\"o\":{\"shape\":[\"a0\"],\"dtype\":\"float32\"}}}");
    assert_int_equal(json_parse(text.data, text.length, "set", &tree, error), QP_OK);
    const qp_status status = schema_read_definition(tree, "set", &definition, error);
    cJSON_Delete(tree);
    strbuf_free(&text);
    return status;
}

static void sizes_have_limits(void **state)
{
    (void)state;
    qp_error error = {0};
    assert_ok(many(SCHEMA_MAX_AXES, SCHEMA_MAX_TENSORS - 1, &error));
    assert_int_equal(many(SCHEMA_MAX_AXES + 1, 1, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "more than 64 axes"));
    assert_int_equal(many(1, SCHEMA_MAX_TENSORS, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "more than 48 inputs and outputs"));
}

static void workloads_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *tensor, *text, *refusal;
    } of[] = {{"'shape':['n'],", "{'uuid':'u','axes':{'n':-1},'inputs':{'x':{'type':'random'}}}",
               "workload u needs a size from 0 to "},
              {"", "{'uuid':'u','axes':{'n':1},'inputs':{'x':{'type':'scalar','value':'1'}}}",
               "the scalar input \"x\" needs a number as its value"},
              {"'shape':['n'],", "{'uuid':'u','axes':{'n':1},'inputs':{'x':{'type':'file'}}}",
               "must be random, scalar or safetensors, found \"file\""}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        static schema_definition definition;
        static schema_workload workload;
        qp_error error = {0};
        strbuf text = {0};
        cJSON *tree;
        strbuf_printf(&text,
                      "[{'name':'a','op_type':'b','reference':'def run(): 1','axes':{'n':{'type':"
                      "'var'}},'inputs':{'x':{%s'dtype':'float32'}},'outputs':{'o':{'shape':['n'],"
                      "'dtype':'float32'}}},%s]",
                      of[i].tensor, of[i].text);
        for (size_t c = 0; c < text.length; c++)
            if (text.data[c] == '\'') text.data[c] = '"';
        assert_ok(json_parse(text.data, text.length, "set", &tree, &error));
        assert_ok(schema_read_definition(cJSON_GetArrayItem(tree, 0), "set", &definition, &error));
        assert_int_not_equal(schema_read_workload(&definition, cJSON_GetArrayItem(tree, 1), "set",
                                                  &workload, &error),
                             QP_OK);
        if (!strstr(error.message, of[i].refusal)) fail_msg("%s", error.message);
        cJSON_Delete(tree);
        strbuf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(members_are_checked),
                                       cmocka_unit_test(sizes_have_limits),
                                       cmocka_unit_test(workloads_are_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
