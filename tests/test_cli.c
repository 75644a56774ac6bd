/* The program's tables, and the parts of the command line that need no process of their own. */
#include "test.h"

#include "cli/cli.h"

static void tables_hold_what_they_promise(void **state)
{
    (void)state;
    qp_error error = {0};
    assert_ok(option_check(cli_program(), &error));
}

static void every_command_has_its_function(void **state)
{
    (void)state;
    for (const command_spec *command = cli_program()->commands; command->name; command++) {
        if (!cli_function(command)) fail_msg("%s has no function", command->name);
        for (const command_spec *other = cli_program()->commands; other != command; other++) {
            if (cli_function(other) == cli_function(command))
                fail_msg("%s and %s share one", other->name, command->name);
        }
    }
}

/* ---- names of similar programs, in tests/foreign ------------------------------------------- */

static const command_spec *command_called(const char *name)
{
    char *words[] = {(char *)name};
    const command_spec *command;
    int used;
    qp_error error = {0};
    const qp_status status = command_find(cli_program(), 1, words, &command, &used, &error);
    if (strncmp(error.message, "unknown", 7) == 0) print_error("%s\n", error.message);
    assert_true(strncmp(error.message, "unknown", 7) != 0);
    return status == QP_OK ? command : NULL;
}

/* Whether the command takes the flag, or says what to use. */
static bool is_answered(const command_spec *command, const char *flag)
{
    char *words[] = {(char *)flag, "--help"};
    cli_settings settings = {0};
    option_result result = {0};
    qp_error error = {0};
    option_parse(cli_program(), command, 2, words, &settings, &result, &error);
    option_result_free(&result);
    const bool answered = !strstr(error.message, "unknown option") &&
                          !strstr(error.message, ", which is an option of ") &&
                          !strstr(error.message, "unexpected");
    if (!answered) print_error("%s %s: %s\n", command->name, flag, error.message);
    return answered;
}

static void names_of_similar_programs_have_answers(void **state)
{
    (void)state;
    static const struct {
        const char *list, *commands[2];
    } programs[] = {{"foreign/llama-cli.txt", {"run", "chat"}},
                    {"foreign/llama-server.txt", {"serve"}},
                    {"foreign/vllm-serve.txt", {"serve"}},
                    {"foreign/ollama.txt", {NULL}}}; /* its lines begin with the command */
    int unanswered = 0, names = 0;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        char line[128];
        FILE *file = fopen(programs[i].list, "r");
        assert_non_null(file);
        while (fgets(line, sizeof line, file)) {
            line[strcspn(line, "\n")] = '\0';
            char *flag = strchr(line, ' ');
            if (flag) *flag++ = '\0';
            for (int c = 0; c < 2; c++) {
                const char *name = programs[i].commands[c] ? programs[i].commands[c] : line;
                if (c > 0 && !programs[i].commands[c]) continue;
                const command_spec *command = command_called(name);
                const char *given = programs[i].commands[0] ? line : flag;
                if (command && given) unanswered += !is_answered(command, given);
            }
            names++;
        }
        fclose(file);
    }
    assert_int_equal(unanswered, 0);
    assert_true(names > 1000);
}

/* What means the same is taken as it is. */
static void names_of_similar_programs_are_taken(void **state)
{
    (void)state;
    char *words[] = {"m.gguf",
                     "--ctx-size",
                     "4096",
                     "-ngl",
                     "0",
                     "--jinja",
                     "-fa",
                     "on",
                     "-np",
                     "4",
                     "--think=false",
                     "-sps",
                     "0.5",
                     "--kv-cache-dtype",
                     "fp8",
                     "--cont-batching"};
    cli_settings settings = {0};
    option_result result = {0};
    qp_error error = {0};
    assert_ok(option_parse(cli_program(), command_called("serve"), sizeof words / sizeof *words,
                           words, &settings, &result, &error));
    assert_string_equal(settings.model, "m.gguf");
    assert_int_equal(settings.context, 4096);
    assert_string_equal(cli_devices[settings.device], "cpu");
    assert_int_equal(settings.parallel, 4);
    assert_string_equal(cli_kv_types[settings.kv_type], "F8");
    assert_string_equal(settings.template_kwargs, "{\"enable_thinking\":false}");
    option_result_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_hold_what_they_promise),
        cmocka_unit_test(every_command_has_its_function),
        cmocka_unit_test(names_of_similar_programs_have_answers),
        cmocka_unit_test(names_of_similar_programs_are_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
