/* The option table: parsing, sources, messages, help, manual page, completions, suggestions. */
#include "test.h"

#include "base/option.h"
#include "base/suggest.h"

#include <sys/wait.h>
#include <unistd.h>

typedef struct settings {
    const char *model;
    option_strings stop;
    bool echo, bos, raw;
    int64_t top_k, n;
    double temperature;
    uint64_t memory;
    int device;
} settings;

static const char *const devices[] = {"auto", "cpu", "cuda", NULL};

static const option_spec shared_options[] = {
    {"model", 'm', OPTION_STRING_AT(settings, model), .argument = "MODEL", .hint = OPTION_HINT_FILE,
     .help = "a GGUF file, or a folder with 'safetensors' [both: fine]"},
    {"device", 0, OPTION_CHOICE_AT(settings, device), .choices = devices, .fallback = "auto",
     .help = "where to run"},
    {0}};

static const option_spec run_options[] = {
    {"top-k", 0, OPTION_INTEGER_AT(settings, top_k), .argument = "K", .maximum = 1000,
     .fallback = "40", .help = "sample among the K likeliest tokens"},
    {"number", 'n', OPTION_INTEGER_AT(settings, n), .argument = "N", .help = "tokens to write"},
    {"temp", 0, OPTION_NUMBER_AT(settings, temperature), .argument = "T", .high = 100,
     .help = "temperature"},
    {"memory", 0, OPTION_SIZE_AT(settings, memory), .argument = "BYTES", .fallback = "1G",
     .help = "the most memory to use"},
    {"stop", 's', OPTION_STRINGS_AT(settings, stop), .argument = "TEXT", .help = "stop at TEXT"},
    {"echo", 'e', OPTION_FLAG_AT(settings, echo), .help = "print the prompt too"},
    {"raw", 0, OPTION_FLAG_AT(settings, raw), .expert = true, .excludes = "memory echo",
     .help = "as it is"},
    {"bos", 0, OPTION_FLAG_AT(settings, bos), .negatable = true, .fallback = "on",
     .help = "begin with the token that begins a text"},
    {0}};

static const option_group shared_group = {"Model", shared_options};
static const option_group run_group = {"Running", run_options};
static const option_group *const run_groups[] = {&shared_group, &run_group, NULL};
static const option_group *const model_groups[] = {&shared_group, NULL};

static const command_spec commands[] = {
    {.name = "run",
     .synopsis = "-m MODEL [OPTION...] [FILE]",
     .summary = "answer a prompt",
     .description = "Reads a prompt and writes\nthe answer.\n\n.A second paragraph: \\n stays.",
     .groups = run_groups,
     .positional_maximum = 2,
     .positional_hint = OPTION_HINT_FILE},
    {.name = "info",
     .synopsis = "[OPTION...]",
     .first_word = "model",
     .summary = "tell about it",
     .groups = model_groups},
    {.name = "ops check",
     .synopsis = "OP...",
     .summary = "check what's there",
     .groups = model_groups,
     .positional_minimum = 1,
     .positional_maximum = -1},
    {.name = "ops list", .synopsis = "", .summary = "list them"},
    {0}};

static const option_foreign foreign_flags[] = {
    {.names = "-ngl --gpu-layers",
     .option = "device",
     .values = "0=cpu 99=cuda",
     .text = "use --device"},
    {.names = "--max --num", .option = "number", .values = "-1=0 *=*"},
    {.names = "-j", .option = "top-k"},
    {.names = "--color", .option = "echo", .values = "=1 on=1 off="},
    {.names = "--mirostat", .values = "0=", .text = "it has none"},
    {.names = "--jinja", .holds = true},
    {.names = "--ctx-size -cs", .text = "use -n"},
    {.names = "-np", .commands = "info", .holds = true},
    {.names = "-np", .text = "of info only"},
    {0}};
static const option_foreign foreign_commands[] = {
    {.names = "serve", .text = "it has no server"}, {.names = "show", .option = "info"}, {0}};
static const option_entry statuses[] = {{"2", "Wrong usage"}, {0}};

static const program_spec program = {.name = "quipu",
                                     .version = "1.2",
                                     .summary = "runs models",
                                     .description = "quipu runs models.",
                                     .commands = commands,
                                     .foreign_flags = foreign_flags,
                                     .foreign_commands = foreign_commands,
                                     .exit_statuses = statuses};

/* One parse; the words are the arguments after the command. */
typedef struct attempt {
    settings values;
    option_result result;
    qp_error error;
    qp_status status;
} attempt;

static attempt try_command(int index, int argc, char **argv)
{
    attempt a = {0};
    a.status = option_parse(&program, &commands[index], argc, argv, &a.values, &a.result, &a.error);
    a.result.fields = NULL; /* `a` moves when it is returned */
    return a;
}

#define TRY_RUN(...)                                                                               \
    try_command(0, (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), (char *[]){__VA_ARGS__})

static void assert_message(const attempt *a, const char *expected)
{
    assert_int_equal(a->status, QP_INVALID);
    assert_string_equal(a->error.message, expected);
}

static option_source source_of(attempt *a, const void *field)
{
    a->result.fields = &a->values;
    return option_source_at(&a->result, field);
}

static void test_defaults(void **state)
{
    (void)state;
    qp_error error;
    settings values = {.n = 7};
    option_result result = {0};
    assert_ok(option_parse(&program, &commands[0], 0, NULL, &values, &result, &error));
    assert_null(values.model);
    assert_int_equal(values.top_k, 40);
    assert_int_equal(values.n, 7);
    assert_true(values.bos);
    assert_false(values.echo);
    assert_int_equal(values.memory, 1 << 30);
    assert_int_equal(values.device, 0);
    assert_int_equal(option_source_at(&result, &values.top_k), OPTION_FROM_DEFAULT);
    option_result_free(&result);
}

static void test_forms(void **state)
{
    (void)state;
    attempt a = TRY_RUN("--top-k", "5", "one", "--temp=0.25", "-en3", "-mx.gguf", "--no-bos",
                        "--stop", "a", "-s", "b", "-sc", "--device", "cuda", "--", "--echo");
    assert_int_equal(a.status, QP_OK);
    assert_int_equal(a.values.top_k, 5);
    assert_int_equal(a.values.n, 3);
    assert_true(a.values.echo);
    assert_false(a.values.bos);
    assert_true(a.values.temperature == 0.25);
    assert_string_equal(a.values.model, "x.gguf");
    assert_int_equal(a.values.device, 2);
    assert_int_equal(a.values.stop.count, 3);
    assert_string_equal(a.values.stop.items[0], "a");
    assert_string_equal(a.values.stop.items[2], "c");
    assert_int_equal(a.result.n_positional, 2);
    assert_string_equal(a.result.positional[0], "one");
    assert_string_equal(a.result.positional[1], "--echo");
    assert_int_equal(source_of(&a, &a.values.top_k), OPTION_FROM_COMMAND_LINE);
    assert_int_equal(source_of(&a, &a.values.memory), OPTION_FROM_DEFAULT);
    option_result_free(&a.result);

    a = TRY_RUN("-n", "-4", "-", "--bos", "--top-k=1", "--top-k=2", "--model=");
    assert_int_equal(a.status, QP_OK);
    assert_int_equal(a.values.n, -4);
    assert_int_equal(a.values.top_k, 2);
    assert_string_equal(a.values.model, "");
    assert_string_equal(a.result.positional[0], "-");
    option_result_free(&a.result);
}

static void test_help_wins(void **state)
{
    (void)state;
    attempt a = TRY_RUN("-e", "--help", "--nonsense");
    assert_int_equal(a.status, QP_OK);
    assert_true(a.result.help);
    option_result_free(&a.result);
    a = TRY_RUN("--help-all");
    assert_true(a.result.help && a.result.help_all);
    option_result_free(&a.result);
    a = try_command(2, 1, (char *[]){"-h"}); /* though a word is required */
    assert_int_equal(a.status, QP_OK);
    assert_true(a.result.help);
    option_result_free(&a.result);
}

static void test_bad_flags(void **state)
{
    (void)state;
    static const struct {
        char *word, *message;
    } cases[] = {
        {"--topk", "unknown option --topk; did you mean --top-k? See quipu run --help"},
        {"--tpo-k=5", "unknown option --tpo-k; did you mean --top-k? See quipu run --help"},
        {"--no-bso", "unknown option --no-bso; did you mean --no-bos? See quipu run --help"},
        {"--no-echo", "unknown option --no-echo; see quipu run --help"},
        {"--hepl", "unknown option --hepl; did you mean --help? See quipu run --help"},
        {"--frobnicate", "unknown option --frobnicate; see quipu run --help"},
        {"--=", "unknown option --; see quipu run --help"},
        {"-eq", "unknown option -q in '-eq'; see quipu run --help"},
        {"-eh", "unknown option -h in '-eh'; see quipu run --help"},
        {"-z", "unknown option -z; see quipu run --help"},
        {"-ngl", "-ngl needs a value"},
        {"-ngl=9", "quipu has no -ngl 9: use --device"},
        {"--num=x", "--num: expected an integer, found 'x'"},
        {"--mirostat=2", "quipu has no --mirostat 2: it has none"},
        {"--jinja=1", "--jinja takes no value, found '1'"},
        {"-cs", "quipu has no -cs: use -n"},
        {"-np", "quipu has no -np: of info only"},
        {"--ctx-size", "quipu has no --ctx-size: use -n"},
        {"-temp", "unknown option -temp; did you mean --temp? See quipu run --help"},
        {"-number=4", "unknown option -number; did you mean --number? See quipu run --help"},
        {"-help", "unknown option -help; did you mean --help? See quipu run --help"},
        {"-nx", "unknown option -nx: -n: expected an integer, found 'x'"},
        {"-n5x", "-n: expected an integer, found '5x'"},
        {"--help=x", "--help takes no value, found 'x'"},
        {"--help-all=", "--help-all takes no value, found ''"},
        {"--echo=1", "--echo takes no value, found '1'"},
        {"--top-k", "--top-k needs a value: expected an integer from 0 to 1000"},
        {"-n", "-n needs a value: expected an integer"},
        {"--device", "--device needs a value: expected auto, cpu or cuda"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attempt a = TRY_RUN(cases[i].word);
        assert_message(&a, cases[i].message);
        option_result_free(&a.result);
    }
}

/* Flags of similar programs that mean something here are taken. */
static void test_foreign_flags(void **state)
{
    (void)state;
    attempt a =
        TRY_RUN("-ngl", "0", "--max", "-1", "-j", "7", "--color", "--mirostat", "0", "--jinja");
    assert_int_equal(a.status, QP_OK);
    assert_int_equal(a.values.device, 1);
    assert_int_equal(a.values.n, 0);
    assert_int_equal(a.values.top_k, 7);
    assert_true(a.values.echo);
    option_result_free(&a.result);
    a = TRY_RUN("--color", "off", "--num", "9", "--gpu-layers=99");
    assert_int_equal(a.status, QP_OK);
    assert_false(a.values.echo);
    assert_int_equal(a.values.n, 9);
    assert_int_equal(a.values.device, 2);
    assert_int_equal(a.result.n_positional, 0);
    option_result_free(&a.result);
    a = try_command(1, 1, (char *[]){"-np"});
    assert_int_equal(a.status, QP_OK);
    option_result_free(&a.result);
    a = try_command(1, 2, (char *[]){"-j", "7"});
    assert_message(&a, "quipu has no -j: here it is --top-k of `quipu run`");
    option_result_free(&a.result);
}

/* The first word is the model, where the command says so and -m is not given. */
static void test_first_word(void **state)
{
    (void)state;
    attempt a = try_command(1, 1, (char *[]){"x.gguf"});
    assert_int_equal(a.status, QP_OK);
    assert_string_equal(a.values.model, "x.gguf");
    assert_int_equal(a.result.n_positional, 0);
    option_result_free(&a.result);
    a = try_command(1, 3, (char *[]){"x.gguf", "-m", "y.gguf"});
    assert_message(&a, "unexpected 'x.gguf'; usage: quipu info [OPTION...]");
    option_result_free(&a.result);
    a = try_command(1, 1, (char *[]){"why is it so"});
    assert_message(&a, "unexpected 'why is it so'; usage: quipu info [OPTION...]");
    option_result_free(&a.result);
}

static void test_flags_of_other_commands(void **state)
{
    (void)state;
    static const struct {
        int command;
        char *word, *message;
    } cases[] = {
        {1, "--top-k=5", "info has no --top-k, which is an option of run; see quipu info --help"},
        {1, "--no-bos", "info has no --no-bos, which is an option of run; see quipu info --help"},
        {1, "-n", "info has no -n, which is an option of run; see quipu info --help"},
        {3, "-m",
         "ops list has no -m, which is an option of run, info and 1 more; see quipu ops list "
         "--help"},
        {1, "--top", "unknown option --top; see quipu info --help"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attempt a = try_command(cases[i].command, 1, (char *[]){cases[i].word});
        assert_message(&a, cases[i].message);
        option_result_free(&a.result);
    }
}

static void test_bad_values(void **state)
{
    (void)state;
    static char *const integers[] = {"",   "x",    "5x",  " 5",  "5 ", "1001",
                                     "-1", "0x10", "1e2", "4.0", "+",  "99999999999999999999"};
    static char *const numbers[] = {"",     "nan", "inf", "-inf", "1e999", "0x1p3", "1,5",
                                    "1.5x", "-1",  "101", " 1",   ".",     "1e"};
    static char *const sizes[] = {"",     "-1", "1.5", "K",   "5X",  "5KK", "8388608T",
                                  "0x10", "1i", "5B5", "1e3", "1 G", "nan", "99999999999999999999"};
    char message[200];
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        attempt a = TRY_RUN("--top-k", integers[i]);
        snprintf(message, sizeof message, "--top-k: expected an integer from 0 to 1000, found '%s'",
                 integers[i]);
        assert_message(&a, message);
        assert_int_equal(a.values.top_k, 40);
        option_result_free(&a.result);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        attempt a = TRY_RUN("--temp", numbers[i]);
        snprintf(message, sizeof message, "--temp: expected a number from 0 to 100, found '%s'",
                 numbers[i]);
        assert_message(&a, message);
        option_result_free(&a.result);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        attempt a = TRY_RUN("--memory", sizes[i]);
        snprintf(message, sizeof message,
                 "--memory: expected a size such as 512M or 2G, found '%s'", sizes[i]);
        assert_message(&a, message);
        option_result_free(&a.result);
    }
    attempt a = TRY_RUN("--device=gpu");
    assert_message(&a, "--device: expected auto, cpu or cuda, found 'gpu'");
    option_result_free(&a.result);
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        char *text;
        uint64_t bytes;
    } cases[] = {{"0", 0},
                 {"512", 512},
                 {"512B", 512},
                 {"64K", 65536},
                 {"64k", 65536},
                 {"1.5M", 1572864},
                 {"2GiB", 2147483648u},
                 {"3GB", 3221225472u},
                 {"1T", 1099511627776u},
                 {"9007199254740993", 9007199254740993u}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attempt a = TRY_RUN("--memory", cases[i].text);
        assert_int_equal(a.status, QP_OK);
        assert_true(a.values.memory == cases[i].bytes);
        option_result_free(&a.result);
    }
}

static void test_positional(void **state)
{
    (void)state;
    attempt a = TRY_RUN("a", "b", "c");
    assert_message(&a, "unexpected 'c'; usage: quipu run -m MODEL [OPTION...] [FILE]");
    option_result_free(&a.result);
    a = try_command(2, 0, NULL);
    assert_message(&a, "something is missing; usage: quipu ops check OP...");
    option_result_free(&a.result);
    a = try_command(2, 3, (char *[]){"x", "y", "z"});
    assert_int_equal(a.status, QP_OK);
    assert_int_equal(a.result.n_positional, 3);
    option_result_free(&a.result);
}

static void test_environment(void **state)
{
    (void)state;
    setenv("QUIPU_TOP_K", "9", 1);
    setenv("QUIPU_ECHO", "yes", 1);
    setenv("QUIPU_BOS", "off", 1);
    setenv("QUIPU_NUMBER", "", 1); /* empty: not set */
    setenv("QUIPU_STOP", "end", 1);
    attempt a = TRY_RUN("-e");
    assert_int_equal(a.status, QP_OK);
    assert_int_equal(a.values.top_k, 9);
    assert_false(a.values.bos);
    assert_int_equal(a.values.stop.count, 1);
    assert_int_equal(source_of(&a, &a.values.top_k), OPTION_FROM_ENVIRONMENT);
    assert_int_equal(source_of(&a, &a.values.echo), OPTION_FROM_COMMAND_LINE);
    assert_int_equal(source_of(&a, &a.values.n), OPTION_FROM_DEFAULT);
    option_result_free(&a.result);

    a = TRY_RUN("--top-k=3", "--stop", "x", "--bos"); /* the command line wins, also over lists */
    assert_int_equal(a.values.top_k, 3);
    assert_true(a.values.bos);
    assert_int_equal(a.values.stop.count, 1);
    assert_string_equal(a.values.stop.items[0], "x");
    option_result_free(&a.result);

    setenv("QUIPU_TOP_K", "many", 1);
    a = TRY_RUN("-e");
    assert_message(&a, "QUIPU_TOP_K: expected an integer from 0 to 1000, found 'many'");
    option_result_free(&a.result);
    setenv("QUIPU_TOP_K", "1", 1);
    setenv("QUIPU_ECHO", "2", 1);
    a = TRY_RUN("x");
    assert_message(&a, "QUIPU_ECHO: expected 1, 0, true, false, yes, no, on or off, found '2'");
    option_result_free(&a.result);
    unsetenv("QUIPU_TOP_K");
    unsetenv("QUIPU_ECHO");
    unsetenv("QUIPU_BOS");
    unsetenv("QUIPU_NUMBER");
    unsetenv("QUIPU_STOP");
}

/* Options that exclude each other: an error from one source, the higher source otherwise. */
static void test_rivals(void **state)
{
    (void)state;
    attempt a = TRY_RUN("--raw", "-e");
    assert_message(&a, "--echo and --raw exclude each other");
    option_result_free(&a.result);
    setenv("QUIPU_RAW", "1", 1);
    a = TRY_RUN("-e");
    assert_int_equal(a.status, QP_OK);
    assert_true(a.values.echo && !a.values.raw);
    option_result_free(&a.result);
    setenv("QUIPU_ECHO", "1", 1);
    a = TRY_RUN("x");
    assert_message(&a, "--echo and --raw exclude each other (the environment sets both)");
    option_result_free(&a.result);
    setenv("QUIPU_RAW", "0", 1);
    a = TRY_RUN("x");
    assert_int_equal(a.status, QP_OK);
    option_result_free(&a.result);
    unsetenv("QUIPU_RAW");
    unsetenv("QUIPU_ECHO");
}

/* A variable that another command's option of the same name takes is no mistake here. */
static void test_variable_of_another_command(void **state)
{
    (void)state;
    static const char *const two[] = {"cpu", "cuda", NULL};
    const option_spec options[] = {{"device", 0, OPTION_CHOICE_AT(settings, device), .choices = two,
                                    .fallback = "cpu", .help = "x"},
                                   {0}};
    const option_group group = {"Options", options};
    const option_group *const groups[] = {&group, NULL};
    const command_spec both[] = {
        commands[0], {.name = "plan", .synopsis = "", .summary = "b", .groups = groups}, {0}};
    const program_spec wider = {.name = "p", .commands = both};
    settings values = {0};
    option_result result = {0};
    qp_error error = {0};
    setenv("QUIPU_DEVICE", "auto", 1);
    assert_ok(option_parse(&wider, &both[1], 0, NULL, &values, &result, &error));
    assert_int_equal(values.device, 0);
    assert_int_equal(option_source_at(&result, &values.device), OPTION_FROM_DEFAULT);
    option_result_free(&result);
    setenv("QUIPU_DEVICE", "tpu", 1);
    assert_int_equal(option_parse(&wider, &both[1], 0, NULL, &values, &result, &error), QP_INVALID);
    assert_string_equal(error.message, "QUIPU_DEVICE: expected cpu or cuda, found 'tpu'");
    option_result_free(&result);
    char *words[] = {"--device", "cuda"}; /* the variable is not even read */
    assert_ok(option_parse(&wider, &both[1], 2, words, &values, &result, &error));
    assert_int_equal(values.device, 1);
    option_result_free(&result);
    unsetenv("QUIPU_DEVICE");
}

static void test_home(void **state)
{
    (void)state;
    setenv("HOME", "/home/ann", 1);
    attempt a = TRY_RUN("--model=~/x.gguf", "-s", "~/y");
    assert_string_equal(a.values.model, "/home/ann/x.gguf");
    assert_string_equal(a.values.stop.items[0], "~/y"); /* not a path */
    option_result_free(&a.result);
}

static void test_commands(void **state)
{
    (void)state;
    qp_error error;
    const command_spec *command;
    int used;
    assert_ok(command_find(&program, 2, (char *[]){"info", "x"}, &command, &used, &error));
    assert_ptr_equal(command, &commands[1]);
    assert_int_equal(used, 1);
    assert_ok(command_find(&program, 3, (char *[]){"ops", "check", "x"}, &command, &used, &error));
    assert_ptr_equal(command, &commands[2]);
    assert_int_equal(used, 2);
    static const struct {
        char *words[2], *message;
    } cases[] = {
        {{"inof", "x"}, "unknown command 'inof'; did you mean 'info'? See quipu --help"},
        {{"ops", "chekc"},
         "unknown command 'ops chekc'; did you mean 'ops check'? See quipu --help"},
        {{"ops", "zzzzzz"},
         "unknown command 'ops zzzzzz'; 'ops' is followed by one of check, list"},
        {{"opss", "x"}, "unknown command 'opss'; did you mean 'ops check'? See quipu --help"},
        {{"", "x"}, "unknown command ''; see quipu --help"},
        {{"-m", "x"}, "expected a command before -m, as in quipu run -m; quipu --help lists them"},
        {{"serve", "x"}, "quipu has no command 'serve': it has no server"},
        {{"op", "s check"}, "unknown command 'op'; did you mean 'ops check'? See quipu --help"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *words[] = {cases[i].words[0], cases[i].words[1]};
        assert_int_equal(command_find(&program, 2, words, &command, &used, &error), QP_INVALID);
        assert_string_equal(error.message, cases[i].message);
        assert_null(command);
    }
    assert_int_equal(command_find(&program, 0, NULL, &command, &used, &error), QP_INVALID);
    assert_string_equal(error.message, "no command given; see quipu --help");
}

static void test_tables_checked(void **state)
{
    (void)state;
    qp_error error;
    assert_ok(option_check(&program, &error));
    static const struct {
        option_spec second;
        const char *fault;
    } cases[] = {
        {{"top-k", 0, OPTION_FLAG_AT(settings, echo), .help = "x"}, "its name is taken"},
        {{"other", 'k', OPTION_FLAG_AT(settings, echo), .help = "x"}, "its letter is taken"},
        {{"other", 0, OPTION_FLAG_AT(settings, echo)}, "it has no help"},
        {{"other", 0, OPTION_CHOICE_AT(settings, device), .help = "x"}, "it has no choices"},
        {{"other", 0, OPTION_INTEGER_AT(settings, n), .help = "x"}, "its value has no name"},
        {{"other", 0, OPTION_INTEGER_AT(settings, n), .help = "x", .argument = "N",
          .fallback = "y"},
         "expected an integer, found 'y'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const option_spec options[] = {
            {"top-k", 'k', OPTION_INTEGER_AT(settings, top_k), .argument = "K", .help = "x"},
            cases[i].second,
            {0}};
        const option_group group = {"Options", options};
        const option_group *const groups[] = {&group, NULL};
        const command_spec bad[] = {{.name = "a", .synopsis = "", .summary = "b", .groups = groups},
                                    {0}};
        const program_spec wrong = {.name = "p", .commands = bad};
        assert_int_equal(option_check(&wrong, &error), QP_INVALID);
        assert_non_null(strstr(error.message, cases[i].fault));
    }
}

static void test_help_text(void **state)
{
    (void)state;
    strbuf out = {0};
    option_help(&program, &commands[0], false, &out);
    assert_string_equal(
        strbuf_text(&out),
        "usage: quipu run -m MODEL [OPTION...] [FILE]\n"
        "\n"
        "Reads a prompt and writes the answer.\n"
        "\n"
        ".A second paragraph: \\n stays.\n"
        "\n"
        "Model:\n"
        "  -m, --model MODEL       a GGUF file, or a folder with 'safetensors' [both:\n"
        "                          fine]\n"
        "      --device auto|cpu|cuda\n"
        "                          where to run (default: auto)\n"
        "\n"
        "Running:\n"
        "      --top-k K           sample among the K likeliest tokens (default: 40)\n"
        "  -n, --number N          tokens to write\n"
        "      --temp T            temperature\n"
        "      --memory BYTES      the most memory to use (default: 1G)\n"
        "  -s, --stop TEXT         stop at TEXT; may be repeated\n"
        "  -e, --echo              print the prompt too\n"
        "      --[no-]bos          begin with the token that begins a text (default: on)\n"
        "\n"
        "1 more option: quipu run --help-all\n"
        "The environment sets defaults: QUIPU_MODEL for --model, and so on.\n");
    strbuf_clear(&out);
    option_help(&program, &commands[0], true, &out);
    assert_non_null(strstr(out.data, "      --raw               as it is\n"));
    assert_null(strstr(out.data, "more option"));
    strbuf_clear(&out);
    assert_true(option_family_overview(&program, "ops", &out));
    assert_non_null(strstr(out.data, "usage: quipu ops COMMAND [OPTION...]\n\n  ops check  "));
    assert_null(strstr(out.data, "run"));
    assert_false(option_family_overview(&program, "run", &out));
    strbuf_clear(&out);
    option_overview(&program, &out);
    assert_non_null(strstr(out.data, "  ops check        check what's there\n"));
    strbuf_free(&out);
}

/* Runs `command` with `text` in a file whose path replaces the %s, and returns its output, empty
 * when it is silent; NULL where the tool `needed` is absent. free() the output. */
static char *feed(const char *needed, const char *command, const char *text, int *exit_status)
{
    char line[512], path[] = "/tmp/quipu-option-XXXXXX";
    snprintf(line, sizeof line, "command -v %s >/dev/null 2>&1", needed);
    if (system(line) != 0) return NULL;
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, text, strlen(text)), (ssize_t)strlen(text));
    close(descriptor);
    snprintf(line, sizeof line, command, path);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    strbuf out = {0};
    strbuf_puts(&out, "");
    for (int c; (c = fgetc(pipe)) != EOF;)
        strbuf_putc(&out, (char)c);
    *exit_status = WEXITSTATUS(pclose(pipe));
    unlink(path);
    return strbuf_take(&out);
}

/* The tool reads the text without a word of complaint. */
static void assert_accepted(const char *needed, const char *command, const char *text)
{
    int status;
    char *output = feed(needed, command, text, &status);
    if (!output) fail_msg("%s is not installed; ./dev test installs it", needed);
    assert_string_equal(output, "");
    assert_int_equal(status, 0);
    free(output);
}

static void test_man_page(void **state)
{
    (void)state;
    strbuf out = {0};
    option_man(&program, &out);
    assert_false(out.failed);
    assert_non_null(strstr(out.data, "\n.SS ops check\n"));
    assert_non_null(strstr(out.data, "\n.B \\-n, \\-\\-number N\n"));
    assert_non_null(strstr(out.data, "\n\\&.A second paragraph: \\en stays.\n"));
    assert_non_null(strstr(out.data, "Environment: QUIPU_TOP_K.\n"));
    assert_non_null(strstr(out.data, "\n.SH EXIT STATUS\n.TP\n.B 2\nWrong usage.\n"));
    /* A shared group is listed once. */
    const char *first = strstr(out.data, "\\-\\-model");
    assert_non_null(first);
    assert_null(strstr(first + 1, "\\-\\-model MODEL\n"));
    assert_accepted("groff", "groff -ww -man -Tutf8 -z %s 2>&1", out.data);
    strbuf_free(&out);
}

static void test_completion_syntax(void **state)
{
    (void)state;
    strbuf out = {0};
    option_completion_bash(&program, &out);
    assert_accepted("bash", "bash -n %s 2>&1", strbuf_text(&out));
    strbuf_clear(&out);
    option_completion_zsh(&program, &out);
    assert_non_null(strstr(out.data, "'\\''safetensors'\\'' \\[both\\: fine\\]"));
    assert_accepted("zsh", "zsh -n %s 2>&1", strbuf_text(&out));
    strbuf_clear(&out);
    option_completion_fish(&program, &out);
    assert_non_null(strstr(out.data, "-l no-bos"));
    assert_accepted("fish", "fish -n %s 2>&1", strbuf_text(&out));
    assert_false(out.failed);
    strbuf_free(&out);
}

/* What bash would offer after the words; the last is the one at the cursor. */
static void assert_bash_offers(const char *script, const char *words, const char *expected)
{
    strbuf out = {0};
    strbuf_puts(&out, script);
    strbuf_printf(&out,
                  "\nCOMP_WORDS=(quipu %s)\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
                  "_quipu\necho -n \"${COMPREPLY[*]}\"\n",
                  words);
    int status;
    char *output = feed("bash", "cd / && bash --norc %s 2>&1", strbuf_text(&out), &status);
    assert_non_null(output);
    assert_string_equal(output, expected);
    free(output);
    strbuf_free(&out);
}

static void test_bash_offers(void **state)
{
    (void)state;
    strbuf out = {0};
    option_completion_bash(&program, &out);
    const char *script = strbuf_text(&out);
    assert_bash_offers(script, "''", "--help --version run info ops");
    assert_bash_offers(script, "r", "run");
    assert_bash_offers(script, "ops ''", "check list");
    assert_bash_offers(script, "ops check --d", "--device");
    assert_bash_offers(script, "run --device ''", "auto cpu cuda");
    assert_bash_offers(script, "run --device = c", "cpu cuda");
    assert_bash_offers(script, "run --device =", "auto cpu cuda");
    assert_bash_offers(script, "run --top-k ''", "");
    assert_bash_offers(script, "run --no", "--no-bos");
    assert_bash_offers(script, "run -m et", "etc");
    assert_bash_offers(script, "run et", "etc");
    assert_bash_offers(script, "info et", "");
    strbuf_free(&out);
}

static void test_suggestions(void **state)
{
    (void)state;
    assert_int_equal(suggest_distance("", ""), 0);
    assert_int_equal(suggest_distance("", "abc"), 3);
    assert_int_equal(suggest_distance("kitten", "sitting"), 3);
    assert_int_equal(suggest_distance("ab", "ba"), 1);
    assert_int_equal(suggest_distance("ca", "abc"), 3); /* no edit within a swapped pair */
    char longest[64], longer[65];
    memset(longest, 'a', 63);
    longest[63] = '\0';
    memset(longer, 'a', 64);
    longer[64] = '\0';
    assert_int_equal(suggest_distance(longest, ""), 63);
    assert_int_equal(suggest_distance(longest, longest), 0);
    assert_true(suggest_distance(longer, "a") == SIZE_MAX);
    suggestion near = {.word = "lama"};
    suggest_offer(&near, "gamma");
    assert_null(near.best);
    suggest_offer(&near, "llama");
    suggest_offer(&near, "lamb");
    assert_string_equal(near.best, "llama");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_help_wins),
        cmocka_unit_test(test_bad_flags),
        cmocka_unit_test(test_flags_of_other_commands),
        cmocka_unit_test(test_foreign_flags),
        cmocka_unit_test(test_first_word),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_positional),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_rivals),
        cmocka_unit_test(test_variable_of_another_command),
        cmocka_unit_test(test_home),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_tables_checked),
        cmocka_unit_test(test_help_text),
        cmocka_unit_test(test_man_page),
        cmocka_unit_test(test_completion_syntax),
        cmocka_unit_test(test_bash_offers),
        cmocka_unit_test(test_suggestions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
