/* Limits of schemas and grammars: each is met, and passed by one. Work is counted, so nothing here
 * depends on time. */
#include "test.h"

#include "base/strbuf.h"
#include "grammar/automaton.h"
#include "grammar/gbnf.h"
#include "grammar/json_parts.h"
#include "grammar/json_schema.h"
#include "grammar/pattern.h"
#include "grammar/stacks.h"

static qp_error error;

/* Compiles a schema, or a grammar; frees the text. */
static qp_status compile(strbuf *text)
{
    grammar g = {0};
    automaton m = {0};
    const bool schema = text->data[0] == '{';
    qp_status status =
        (schema ? json_schema_parse : gbnf_read)(text->data, text->length, &g, &error);
    if (status == QP_OK) status = automaton_compile(&g, &m, &error);
    automaton_free(&m);
    grammar_free(&g);
    strbuf_free(text);
    return status;
}

static void put_times(strbuf *out, size_t n, const char *text)
{
    while (n-- > 0)
        strbuf_puts(out, text);
}

/* A text whose size is a number. */
typedef strbuf maker(size_t n);

static strbuf long_schema(size_t n)
{
    static const char before[] = "{\"title\":\"", after[] = "\"}";
    strbuf out = {0};
    strbuf_puts(&out, before);
    put_times(&out, n - (sizeof before - 1) - (sizeof after - 1), "x");
    strbuf_puts(&out, after);
    return out;
}

/* {"items":{"items": ... {}}}: n schemas. */
static strbuf nested_schemas(size_t n)
{
    strbuf out = {0};
    put_times(&out, n - 1, "{\"items\":");
    strbuf_puts(&out, "{}");
    put_times(&out, n - 1, "}");
    return out;
}

/* The alternatives, and the schema that has them. */
static strbuf many_schemas(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "{\"anyOf\":[true");
    put_times(&out, n - 1, ",{\"type\":\"null\"}");
    strbuf_puts(&out, "]}");
    return out;
}

static strbuf many_properties(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "{\"properties\":{");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(&out, "%s\"%zu\":true", i ? "," : "", i);
    strbuf_puts(&out, "}}");
    return out;
}

static strbuf long_key(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "{\"additionalProperties\":true,\"properties\":{\"");
    put_times(&out, n, "k");
    strbuf_puts(&out, "\":true}}");
    return out;
}

/* n values are copied. */
static strbuf much_merged(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "{\"allOf\":[{\"enum\":[1");
    put_times(&out, (n - 5) / 2 - 1, ",1"); /* copied twice, and 6 values */
    strbuf_puts(&out, "]}]}");
    return out;
}

static strbuf nested_brackets(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "root ::= ");
    put_times(&out, n, "(");
    strbuf_puts(&out, "\"a\"");
    put_times(&out, n, ")");
    return out;
}

static strbuf many_rules(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "root ::= \"a\"\n");
    for (size_t i = 1; i < n; i++)
        strbuf_printf(&out, "r%zu ::= \"a\"\n", i);
    return out;
}

static strbuf large_count(size_t n)
{
    strbuf out = {0};
    strbuf_printf(&out, "root ::= \"a\"{%zu}", n);
    return out;
}

static strbuf repeated_repetitions(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "root ::= \"a\"");
    put_times(&out, n, "?");
    return out;
}

/* As many states as repetitions that are written out have. */
static strbuf many_states(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "root ::= ");
    put_times(&out, n, "\"a\"{32} ");
    return out;
}

static void limits_are_met_and_passed(void **state)
{
    (void)state;
    static const struct {
        maker *make;
        size_t most;
        const char *says;
    } limits[] = {
        {long_schema, SCHEMA_MAX_TEXT, "may have 1048576 bytes, found 1048577"},
        {nested_schemas, SCHEMA_MAX_NESTING, "nested deeper than 200"},
        {many_schemas, SCHEMA_MAX_SCHEMAS, "it may have 20000 schemas"},
        {many_properties, SCHEMA_MAX_PROPERTIES, "may name 2000 properties, found 2001"},
        {long_key, JSON_MAX_KEY, "too large"},
        {much_merged, SCHEMA_MAX_MERGED, "join too much"},
        {nested_brackets, GBNF_MAX_NESTING, "too many brackets"},
        {many_rules, GRAMMAR_MAX_RULES, "16384 rules"},
        {large_count, GRAMMAR_MAX_COUNT, "more than a billion"},
        {repeated_repetitions, GBNF_MAX_NESTING - 1, "too many repetitions of a repetition"},
        {many_states, AUTOMATON_MAX_STATES / 32 - 1, "it needs more than 262144 states"},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        strbuf most = limits[i].make(limits[i].most), more = limits[i].make(limits[i].most + 1);
        if (compile(&most) != QP_OK) fail_msg("limit %zu: %s", i, error.message);
        if (compile(&more) == QP_OK) fail_msg("limit %zu is not one", i);
        if (!strstr(error.message, limits[i].says)) fail_msg("limit %zu: %s", i, error.message);
    }
}

/* Alternatives that only a comparison of each with each could tell apart. */
static strbuf compared_pairs(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "{\"oneOf\":[");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(&out, "%s{\"enum\":[%zu]}", i ? "," : "", i);
    strbuf_puts(&out, "]}");
    return out;
}

static strbuf two_enums(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "{\"oneOf\":[{\"enum\":[1");
    put_times(&out, n - 1, ",1");
    strbuf_puts(&out, "]},{\"enum\":[2");
    put_times(&out, n - 1, ",2");
    strbuf_puts(&out, "]}]}");
    return out;
}

static strbuf shared_properties(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "{\"allOf\":[");
    for (int k = 0; k < 2; k++) {
        strbuf_puts(&out, k ? ",{\"properties\":{" : "{\"properties\":{");
        for (size_t i = 0; i < n; i++)
            strbuf_printf(&out, "%s\"%zu\":{}", i ? "," : "", k ? n - i : i);
        strbuf_puts(&out, "}}");
    }
    strbuf_puts(&out, "]}");
    return out;
}

static strbuf repeated_names(size_t n)
{
    strbuf out = many_properties(SCHEMA_MAX_PROPERTIES);
    out.length--; /* the last brace */
    strbuf_puts(&out, ",\"required\":[\"1999\"");
    put_times(&out, n - 1, ",\"1999\"");
    strbuf_puts(&out, "]}");
    return out;
}

/* Patterns that share no name, which takes a long walk to see. */
static strbuf compared_patterns(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "{\"prefixItems\":[true");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(&out,
                      ",{\"patternProperties\":{\"^[a-z]{1,60}%zu$\":true,"
                      "\"^[a-z]{2,60}%zux$\":{}}}",
                      i, i);
    strbuf_puts(&out, "]}");
    return out;
}

static strbuf reference_pairs(size_t n)
{
    strbuf out = {0};
    strbuf_puts(&out, "{\"$defs\":{\"a\":true");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(&out, ",\"%zu\":true", i);
    strbuf_puts(&out, "},\"anyOf\":[true");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(&out, ",{\"$ref\":\"#/$defs/%zu\"}", i);
    strbuf_puts(&out, "]}");
    return out;
}

/* What takes quadratic time is done while it is small, and refused for its work when it is large.
 */
static void work_is_bounded(void **state)
{
    (void)state;
    static const struct {
        maker *make;
        size_t few, many;
    } loops[] = {{compared_pairs, 300, 20000},    {two_enums, 500, 50000},
                 {shared_properties, 300, 10000}, {repeated_names, 1000, 90000},
                 {compared_patterns, 3, 3000},    {reference_pairs, 1000, 15000}};
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++) {
        strbuf few = loops[i].make(loops[i].few), many = loops[i].make(loops[i].many);
        if (compile(&few) != QP_OK) fail_msg("loop %zu: %s", i, error.message);
        if (compile(&many) == QP_OK) fail_msg("loop %zu is not bounded", i);
        if (!strstr(error.message, "too much work") && !strstr(error.message, "too large"))
            fail_msg("loop %zu: %s", i, error.message);
    }
}

/* Bounds are what the grammar's numbers can be compared with. */
static void bounds_have_limits(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *refusal; /* NULL: none */
    } cases[] = {
        {"{\"type\":\"integer\",\"maximum\":18446744073709551615}", NULL},
        {"{\"type\":\"integer\",\"maximum\":1e20}", "a bound must be less than 2^64, found 1e+20"},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":18446744073709551615}", "less than 2^64"},
        {"{\"type\":\"number\",\"minimum\":9e18}", NULL},
        {"{\"type\":\"number\",\"minimum\":1e19}", "a bound must be less than 2^63, found 1e+19"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        strbuf schema = {0};
        strbuf_puts(&schema, cases[i].schema);
        const qp_status status = compile(&schema);
        if (status != (cases[i].refusal ? QP_UNSUPPORTED : QP_OK))
            fail_msg("%s: %s", cases[i].schema, error.message);
        if (cases[i].refusal) assert_non_null(strstr(error.message, cases[i].refusal));
    }
}

/* Tags make alternatives different in one pass, whatever their number. */
static void tagged_alternatives_are_many(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        strbuf out = {0};
        strbuf_puts(&out, "{\"oneOf\":[");
        for (int i = 0; i < 3000; i++)
            strbuf_printf(&out,
                          kind ? "%s{\"const\":\"a%d\"}"
                               : "%s{\"type\":\"object\",\"properties\":{\"t\":{\"const\":%d}},"
                                 "\"required\":[\"t\"]}",
                          i ? "," : "", i);
        strbuf_puts(&out, "]}");
        assert_ok(compile(&out));
    }
    strbuf same = {0};
    strbuf_puts(&same, "{\"oneOf\":[{\"const\":1},{\"const\":2},{\"const\":1.0}]}");
    assert_int_equal(compile(&same), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "may overlap"));
}

/* A closure that visits many states and reaches few is work too. */
static void closures_are_bounded(void **state)
{
    (void)state;
    strbuf text = {0};
    strbuf_puts(&text, "root ::= (\"\"");
    put_times(&text, 60000, "|\"\"");
    strbuf_puts(&text, ") \"a\"");
    grammar g = {0};
    automaton m = {0};
    stacks s;
    assert_ok(gbnf_read(text.data, text.length, &g, &error));
    assert_ok(automaton_compile(&g, &m, &error));
    assert_ok(stacks_open(&s, &m, 16, &error));
    stacks_root(&s);
    assert_true(s.failed == QP_OK && s.work >= 60000);
    s.work = STACKS_MAX_WORK - 100;
    stacks_free(&s);
    assert_ok(stacks_open(&s, &m, 16, &error));
    s.work = STACKS_MAX_WORK - 100;
    stacks_root(&s);
    assert_int_equal(s.failed, QP_UNSUPPORTED);
    s.work = 0;
    s.failed = QP_OK;
    assert_true(stacks_spend(&s, STACKS_MAX_WORK)); /* as walks over the vocabulary do */
    assert_false(stacks_spend(&s, 1));
    assert_int_equal(s.failed, QP_UNSUPPORTED);
    stacks_free(&s);
    automaton_free(&m);
    grammar_free(&g);
    strbuf_free(&text);
}

/* A text that is no form says where it stops being one. */
static void what_is_no_form_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *refusal;
    } cases[] = {
        {"root ::= \"\\x4g\"", "an escape lacks hexadecimal digits"},
        {"root ::= \"\\ud800\"", "an escape is no character of Unicode"},
        {"root ::= \"\\U00110000\"", "an escape is no character of Unicode"},
        {"root ::= \"\xff\"", "line 1 of the grammar: the text is not UTF-8"},
        {"root ::= [z-a]", "a range of a class ends before it begins"},
        {"root ::= \"a\"{x}", "a repetition lacks its count"},
        {"root ::= \"a\"{2", "a repetition lacks its \"}\""},
        {"root ::= \"a\"\n\n\"b\"", "line 3 of the grammar: expected a rule, NAME ::= ..."},
        {"{\"title\":\"\xff\"}", "the schema is not UTF-8"},
        {"{\"pattern\":\"\\\\x4g\"}", "an escape without its hexadecimal digits"},
        {"{\"pattern\":\"a\\\\\"}", "a backslash without a character"},
        {"{\"pattern\":\"[z-a]\"}", "has a range that is none"},
        {"{\"pattern\":\"[a-\\\\d]\"}", "has a range that is none"},
        {"{\"pattern\":\"a{x}\"}", "a repetition without a count"},
        {"{\"pattern\":\"a{1000000001}\"}", "a count that is too large"},
        {"{\"pattern\":\"a{2,1}\"}", "a repetition that is none"},
        {"{\"pattern\":\"a)b\"}", "a closing bracket without an opening one"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        strbuf text = {0};
        strbuf_puts(&text, cases[i].text);
        if (compile(&text) == QP_OK) fail_msg("%s is a form", cases[i].text);
        if (!strstr(error.message, cases[i].refusal))
            fail_msg("%s: %s, expected %s", cases[i].text, error.message, cases[i].refusal);
    }
    grammar g = {0};
    assert_int_equal(pattern_read("a\xff", &g, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "has bytes that are no UTF-8 at character"));
    grammar_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_form_is_refused),
        cmocka_unit_test(limits_are_met_and_passed),
        cmocka_unit_test(work_is_bounded),
        cmocka_unit_test(bounds_have_limits),
        cmocka_unit_test(tagged_alternatives_are_many),
        cmocka_unit_test(closures_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
