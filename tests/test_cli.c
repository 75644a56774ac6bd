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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_hold_what_they_promise),
        cmocka_unit_test(every_command_has_its_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
