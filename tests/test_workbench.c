/* The operator workbench: lists, descriptions, the generated book. */
#include "test.h"

#include "base/json.h"
#include "op/table.h"
#include "workbench/page.h"
#include "workbench/sources.h"
#include "workbench/workbench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    strbuf text = {0};
    char block[4096];
    size_t n;
    while ((n = fread(block, 1, sizeof block, file)) > 0)
        strbuf_append(&text, block, n);
    fclose(file);
    return strbuf_take(&text);
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" is missing", part);
}

static void pages_are_laid_out(void **state)
{
    (void)state;
    for (int markdown = 0; markdown < 2; markdown++) {
        strbuf out = {0};
        page page = {.out = &out, .markdown = markdown, .level = 1};
        page_title(&page, "name", "a summary");
        page_section(&page, "Part");
        page_paragraph(&page, "Some words.");
        page_table(&page, 2, (const char *const[]){">n", "text"});
        page_row(&page, (const char *const[]){"1", "a|b"});
        page_row(&page, (const char *const[]){"20", "\xc3\xa4"});
        page_table_end(&page);
        page_code(&page, "c", "int x;\n\n", 8);
        assert_string_equal(strbuf_text(&out),
                            markdown
                                ? "# name\n\nA summary.\n\n## Part\n\nSome words.\n\n"
                                  "| n | text |\n|---:|---|\n| 1 | a\\|b |\n| 20 | \xc3\xa4 |\n"
                                  "\n```c\nint x;\n```\n"
                                : "name: a summary\n\nPART\n\nSome words.\n\n"
                                  " n  text\n 1  a|b\n20  \xc3\xa4\n\nint x;\n");
        strbuf_free(&out);
    }
}

static void every_operator_is_described(void **state)
{
    (void)state;
    qp_error error;
    for (int code = 0; code < OP_COUNT; code++) {
        const op_info *op = op_get((op_code)code);
        for (workbench_format format = WORKBENCH_TEXT; format <= WORKBENCH_MARKDOWN; format++) {
            strbuf out = {0};
            assert_int_equal(workbench_describe(op->name, format, &out, &error), QP_OK);
            const char *text = strbuf_text(&out);
            char line[128];
            snprintf(line, sizeof line, "void %s_kernel(const op_call *call);", op->name);
            assert_contains(text, line);
            snprintf(line, sizeof line, "void %s_launch(const op_call *call, cudaStream_t stream)",
                     op->name);
            assert_contains(text, line);
            snprintf(line, sizeof line, "void %s_reference(const op_call *call)\n{", op->name);
            assert_contains(text, line);
            assert_contains(text, "typedef struct op_call {");
            assert_contains(text, op->formula);
            assert_contains(text, op->cases[0]);
            assert_null(strstr(text, "op_info op_"));
            strbuf_free(&out);
        }
    }
}

static void descriptions_are_json(void **state)
{
    (void)state;
    qp_error error;
    strbuf out = {0};
    cJSON *tree;
    assert_int_equal(workbench_describe_all(WORKBENCH_JSON, &out, &error), QP_OK);
    assert_int_equal(json_parse(out.data, out.length, "out", &tree, &error), QP_OK);
    assert_int_equal(cJSON_GetArraySize(tree), OP_COUNT);
    const cJSON *linear = cJSON_GetArrayItem(tree, OP_LINEAR);
    assert_string_equal(json_get(linear, "name")->valuestring, "linear");
    assert_int_equal(cJSON_GetArraySize(json_get(linear, "tensors")), 5);
    cJSON_Delete(tree);
    strbuf_clear(&out);
    assert_int_equal(workbench_list(0, 0, true, &out, &error), QP_OK);
    assert_int_equal(json_parse(out.data, out.length, "out", &tree, &error), QP_OK);
    assert_int_equal(cJSON_GetArraySize(tree), OP_COUNT);
    const cJSON *item;
    cJSON_ArrayForEach(item, tree)
    {
        const cJSON *variant = json_get(item, "variants")->child;
        assert_true(cJSON_IsTrue(json_get(variant, "usable")));
        for (variant = variant->next; variant; variant = variant->next)
            assert_true(cJSON_IsFalse(json_get(variant, "usable")));
    }
    cJSON_Delete(tree);
    strbuf_free(&out);
}

static void unknown_operators_are_refused(void **state)
{
    (void)state;
    qp_error error;
    strbuf out = {0};
    assert_int_equal(workbench_describe("rms", WORKBENCH_TEXT, &out, &error), QP_INVALID);
    assert_contains(error.message, "no operator 'rms'");
    assert_contains(error.message, "rms_norm");
    assert_int_equal(workbench_prompt("rms", NULL, false, &out, &error), QP_INVALID);
    assert_int_equal(out.length, 0);
}

static void sources_follow_calls(void **state)
{
    (void)state;
    const char *paths[SOURCES_MAX];
    int n = sources_called("paged_decode", paths);
    bool attention = false;
    for (int i = 0; i < n; i++)
        attention = attention || strcmp(paths[i], "src/op/attention/attention.c") == 0;
    assert_true(attention);
    assert_int_equal(sources_called("nothing", paths), 0);
    size_t length;
    sources_reference("nothing", &length);
    assert_int_equal(length, 0);
}

/* The program's copy of the header is the header. */
static void header_is_embedded(void **state)
{
    (void)state;
    char *header = read_text("../include/quipu_kernel.h");
    assert_non_null(header);
    assert_string_equal(embedded_find("include/quipu_kernel.h")->text, header);
    free(header);
}

static void book_is_up_to_date(void **state)
{
    (void)state;
    qp_error error;
    strbuf out = {0};
    assert_int_equal(workbench_describe_all(WORKBENCH_MARKDOWN, &out, &error), QP_OK);
    char *committed = read_text("../doc/OPERATORS.md");
    if (!committed || strcmp(committed, strbuf_text(&out)) != 0)
        fail_msg("doc/OPERATORS.md is not what the operators say; write it anew with "
                 "`build/quipu ops describe --all --format markdown > doc/OPERATORS.md`");
    free(committed);
    strbuf_free(&out);
}

static void prompt_is_one_page(void **state)
{
    (void)state;
    qp_error error;
    strbuf out = {0};
    assert_int_equal(workbench_prompt("add", "/nonexistent", false, &out, &error), QP_OK);
    assert_contains(strbuf_text(&out), "cc -std=gnu17 -O3 -march=native -shared -fPIC");
    assert_contains(strbuf_text(&out), "No candidate was checked yet.");
    strbuf_clear(&out);
    assert_int_equal(workbench_prompt("add", NULL, false, &out, &error), QP_OK);
    assert_null(strstr(strbuf_text(&out), "last attempt"));
    strbuf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_laid_out),    cmocka_unit_test(every_operator_is_described),
        cmocka_unit_test(descriptions_are_json), cmocka_unit_test(unknown_operators_are_refused),
        cmocka_unit_test(sources_follow_calls),  cmocka_unit_test(header_is_embedded),
        cmocka_unit_test(book_is_up_to_date),    cmocka_unit_test(prompt_is_one_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
