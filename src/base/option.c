/* Options from the command line and the environment: see option.h.
 *
 * The only file in the tree that reads the environment. Words are sorted into flags and values
 * here; what a value's text means is option_value.c's business.
 */
#include "base/option.h"

#include "base/option_value.h"
#include "base/suggest.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const option_spec *option_at(const command_spec *command, int index)
{
    for (const option_group *const *group = command->groups; group && *group; group++)
        for (const option_spec *option = (*group)->options; option->name; option++)
            if (index-- == 0) return option;
    return NULL;
}

void option_environment_name(const option_spec *option, char out[64])
{
    int length = snprintf(out, 64, "QUIPU_%s", option->name);
    for (int i = 0; i < length && i < 63; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

/* Parsing ------------------------------------------------------------------------------------ */

/* What one run of the parser carries along. */
typedef struct parser {
    const program_spec *program;
    const command_spec *command;
    int argc;
    char **argv;
    int next; /* the word to read next */
    void *fields;
    option_result *result;
    qp_error *error;
} parser;

/* The value of an option at the command line replaces what the environment put into a list. */
static qp_status store_from(parser *p, int index, option_source source, const char *where,
                            const char *text)
{
    const option_spec *option = option_at(p->command, index);
    void *field = (char *)p->fields + option->field;
    if (option->type == OPTION_STRINGS && p->result->sources[index] != source)
        *(option_strings *)field = (option_strings){0};
    TRY(option_store(option, where, text, field, &p->result->memory, p->error));
    p->result->sources[index] = (unsigned char)source;
    return QP_OK;
}

static qp_status store_defaults(parser *p)
{
    const option_spec *option;
    for (int i = 0; (option = option_at(p->command, i)); i++) {
        assert(i < OPTION_LIMIT);
        if (!option->fallback) continue;
        TRY(option_store(option, option->name, option->fallback, (char *)p->fields + option->field,
                         &p->result->memory, p->error));
    }
    return QP_OK;
}

static qp_status store_environment(parser *p)
{
    const option_spec *option;
    for (int i = 0; (option = option_at(p->command, i)); i++) {
        char name[64];
        option_environment_name(option, name);
        const char *text = getenv(name);
        if (text && *text) TRY(store_from(p, i, OPTION_FROM_ENVIRONMENT, name, text));
    }
    return QP_OK;
}

/* The option called `name` (of `length` bytes), or -1. "no-NAME" finds a negatable flag. */
static int find_long(const command_spec *command, const char *name, size_t length, bool *negated)
{
    const option_spec *option;
    for (int i = 0; (option = option_at(command, i)); i++) {
        size_t size = strlen(option->name);
        *negated = false;
        if (size == length && memcmp(option->name, name, length) == 0) return i;
        *negated = true;
        if (option->negatable && length == size + 3 && memcmp(name, "no-", 3) == 0 &&
            memcmp(option->name, name + 3, size) == 0)
            return i;
    }
    return -1;
}

static int find_short(const command_spec *command, char name)
{
    const option_spec *option;
    for (int i = 0; (option = option_at(command, i)); i++)
        if (option->short_name == name) return i;
    return -1;
}

/* Names the nearest option; of a negated flag, its negation. */
static qp_status unknown_option(parser *p, const char *flag, size_t length)
{
    char word[64];
    const option_spec *option;
    snprintf(word, sizeof word, "%.*s", (int)(length > 2 ? length - 2 : 0), flag + 2);
    suggestion near = {.word = word};
    suggestion negated = {.word = strncmp(word, "no-", 3) == 0 ? word + 3 : ""};
    suggest_offer(&near, "help");
    for (int i = 0; (option = option_at(p->command, i)); i++) {
        suggest_offer(&near, option->name);
        if (option->negatable) suggest_offer(&negated, option->name);
    }
    const char *best = near.best ? near.best : negated.best;
    const char *no = best && !near.best ? "no-" : "";
    int shown = length > 60 ? 60 : (int)length;
    const char *program = p->program->name, *command = p->command->name;
    if (!best)
        return error_set(p->error, QP_INVALID, "unknown option %.*s; see %s %s --help", shown, flag,
                         program, command);
    return error_set(p->error, QP_INVALID,
                     "unknown option %.*s; did you mean --%s%s? See %s %s --help", shown, flag, no,
                     best, program, command);
}

static qp_status missing_value(parser *p, const option_spec *option, const char *flag)
{
    strbuf expected = {0};
    option_expected(option, &expected);
    error_set(p->error, QP_INVALID, "%s needs a value: expected %s", flag, strbuf_text(&expected));
    strbuf_free(&expected);
    return QP_INVALID;
}

/* Stores `attached`, the text behind the flag, or else the next word. */
static qp_status take_value(parser *p, int index, const char *flag, const char *attached)
{
    if (!attached && p->next >= p->argc)
        return missing_value(p, option_at(p->command, index), flag);
    const char *text = attached ? attached : p->argv[p->next++];
    return store_from(p, index, OPTION_FROM_COMMAND_LINE, flag, text);
}

/* --name, --name=value, --name value, --no-name */
static qp_status parse_long(parser *p, const char *word)
{
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    if (strcmp(word, "--help") == 0) {
        p->result->help = true;
        return QP_OK;
    }
    bool negated;
    int index = find_long(p->command, word + 2, length - 2, &negated);
    if (index < 0) return unknown_option(p, word, length);
    const option_spec *option = option_at(p->command, index);
    char flag[72];
    snprintf(flag, sizeof flag, "--%s%s", negated ? "no-" : "", option->name);
    if (option->type != OPTION_FLAG) return take_value(p, index, flag, equals ? equals + 1 : NULL);
    if (equals)
        return error_set(p->error, QP_INVALID, "%s takes no value, found '%.100s'", flag,
                         equals + 1);
    return store_from(p, index, OPTION_FROM_COMMAND_LINE, flag, negated ? "0" : "1");
}

/* -v, -n5, -n 5, -vn5 */
static qp_status parse_short(parser *p, const char *word)
{
    for (const char *letter = word + 1; *letter; letter++) {
        char flag[3] = {'-', *letter, '\0'};
        int index = find_short(p->command, *letter);
        if (index < 0 && *letter == 'h') {
            p->result->help = true;
            return QP_OK;
        }
        if (index < 0)
            return error_set(p->error, QP_INVALID, "unknown option %s in '%.60s'; see %s %s --help",
                             flag, word, p->program->name, p->command->name);
        if (option_at(p->command, index)->type != OPTION_FLAG)
            return take_value(p, index, flag, letter[1] ? letter + 1 : NULL);
        TRY(store_from(p, index, OPTION_FROM_COMMAND_LINE, flag, "1"));
    }
    return QP_OK;
}

static qp_status parse_words(parser *p)
{
    bool options_ended = false;
    while (p->next < p->argc && !p->result->help) {
        const char *word = p->argv[p->next++];
        if (options_ended || word[0] != '-' || word[1] == '\0')
            p->result->positional[p->result->n_positional++] = word;
        else if (strcmp(word, "--") == 0)
            options_ended = true;
        else if (word[1] == '-')
            TRY(parse_long(p, word));
        else
            TRY(parse_short(p, word));
    }
    return QP_OK;
}

static qp_status check_positional(const parser *p)
{
    const command_spec *command = p->command;
    int found = p->result->n_positional, most = command->positional_maximum;
    const char *program = p->program->name;
    if (most >= 0 && found > most)
        return error_set(p->error, QP_INVALID, "unexpected '%.100s'; usage: %s %s%s%s",
                         p->result->positional[most], program, command->name,
                         *command->synopsis ? " " : "", command->synopsis);
    if (found < command->positional_minimum)
        return error_set(p->error, QP_INVALID, "something is missing; usage: %s %s %s", program,
                         command->name, command->synopsis);
    return QP_OK;
}

qp_status option_parse(const program_spec *program, const command_spec *command, int argc,
                       char **argv, void *fields, option_result *out, qp_error *error)
{
    parser p = {.program = program,
                .command = command,
                .argc = argc,
                .argv = argv,
                .fields = fields,
                .result = out,
                .error = error};
    out->command = command;
    out->fields = fields;
    out->positional = arena_alloc(&out->memory, (size_t)argc, sizeof *out->positional);
    if (!out->positional) return error_no_memory(error, "options", (size_t)argc * sizeof(char *));
    TRY(store_defaults(&p));
    TRY(store_environment(&p));
    TRY(parse_words(&p));
    return out->help ? QP_OK : check_positional(&p);
}

void option_result_free(option_result *result)
{
    arena_free(&result->memory);
    *result = (option_result){0};
}

/* Commands ----------------------------------------------------------------------------------- */

/* How many of argv's first words spell the command's name; 0 when they do not. */
static int words_matched(const char *name, int argc, char **argv)
{
    for (int words = 0; words < argc; words++) {
        size_t length = strcspn(name, " ");
        if (strlen(argv[words]) != length || memcmp(argv[words], name, length) != 0) return 0;
        if (name[length] == '\0') return words + 1;
        name += length + 1;
    }
    return 0;
}

/* Whether `word` is the first of the command's two words. */
static bool begins_with_word(const char *name, const char *word)
{
    size_t length = strcspn(name, " ");
    return name[length] == ' ' && strlen(word) == length && memcmp(name, word, length) == 0;
}

/* Only the first of two words was given: the second ones that there are. */
static qp_status missing_word(const program_spec *program, const char *word, qp_error *error)
{
    strbuf words = {0};
    for (const command_spec *c = program->commands; c->name; c++)
        if (begins_with_word(c->name, word))
            strbuf_printf(&words, "%s%s", words.length ? ", " : "", c->name + strlen(word) + 1);
    error_set(error, QP_INVALID, "'%s' is followed by one of %s; see %s --help", word,
              strbuf_text(&words), program->name);
    strbuf_free(&words);
    return QP_INVALID;
}

static qp_status unknown_command(const program_spec *program, int argc, char **argv,
                                 qp_error *error)
{
    char first[64], typed[130];
    bool family = false;
    for (const command_spec *c = program->commands; c->name; c++)
        family |= begins_with_word(c->name, argv[0]);
    if (family && (argc == 1 || argv[1][0] == '-')) return missing_word(program, argv[0], error);
    snprintf(typed, sizeof typed, "%.60s%s%.60s", argv[0], family && argc > 1 ? " " : "",
             family && argc > 1 ? argv[1] : "");
    suggestion near = {.word = typed};
    for (const command_spec *c = program->commands; c->name; c++) {
        suggest_offer(&near, c->name);
        snprintf(first, sizeof first, "%.*s", (int)strcspn(c->name, " "), c->name);
        if (!near.best && strcmp(first, c->name) != 0 && suggest_distance(typed, first) <= 1)
            near.best = c->name;
    }
    if (near.best)
        return error_set(error, QP_INVALID,
                         "unknown command '%s'; did you mean '%s'? See %s --help", typed, near.best,
                         program->name);
    return error_set(error, QP_INVALID, "unknown command '%s'; see %s --help", typed,
                     program->name);
}

qp_status command_find(const program_spec *program, int argc, char **argv, const command_spec **out,
                       int *used, qp_error *error)
{
    *out = NULL;
    *used = 0;
    if (argc < 1)
        return error_set(error, QP_INVALID, "no command given; see %s --help", program->name);
    for (const command_spec *command = program->commands; command->name; command++) {
        int words = words_matched(command->name, argc, argv);
        if (words <= *used) continue;
        *used = words;
        *out = command;
    }
    return *out ? QP_OK : unknown_command(program, argc, argv, error);
}

/* Reporting and checking --------------------------------------------------------------------- */

option_source option_source_at(const option_result *result, const void *field)
{
    const option_spec *option;
    for (int i = 0; (option = option_at(result->command, i)); i++)
        if ((const char *)result->fields + option->field == (const char *)field)
            return (option_source)result->sources[i];
    assert(!"no option of the command fills this member");
    return OPTION_FROM_DEFAULT;
}

void option_report(const option_result *result, strbuf *out)
{
    const option_spec *option;
    for (int i = 0; (option = option_at(result->command, i)); i++) {
        char name[64];
        option_environment_name(option, name);
        strbuf_printf(out, "--%s: ", option->name);
        option_print(option, (const char *)result->fields + option->field, out);
        switch ((option_source)result->sources[i]) {
        case OPTION_FROM_DEFAULT:
            strbuf_puts(out, " (default)\n");
            break;
        case OPTION_FROM_ENVIRONMENT:
            strbuf_printf(out, " (%s)\n", name);
            break;
        case OPTION_FROM_COMMAND_LINE:
            strbuf_puts(out, " (command line)\n");
            break;
        }
    }
}

static qp_status check_option(const command_spec *command, const option_spec *option, int index,
                              qp_error *error)
{
    const char *fault = NULL;
    const option_spec *other;
    bool negated;
    if (find_long(command, option->name, strlen(option->name), &negated) != index)
        fault = "its name is taken";
    for (int i = 0; i < index && (other = option_at(command, i)); i++)
        if (option->short_name && other->short_name == option->short_name)
            fault = "its letter is taken";
    if (index >= OPTION_LIMIT) fault = "the command has too many options";
    if (strlen(option->name) > 48) fault = "its name is too long";
    if (!option->help || !*option->help) fault = "it has no help";
    if (option->type == OPTION_CHOICE && (!option->choices || !option->choices[0]))
        fault = "it has no choices";
    if (option->type != OPTION_FLAG && option->type != OPTION_CHOICE && !option->argument)
        fault = "its value has no name";
    if (option->type != OPTION_FLAG && option->negatable) fault = "only a flag is negatable";
    if (option->type == OPTION_STRINGS && option->fallback) fault = "a list has no default";
    if (fault)
        return error_set(error, QP_INVALID, "option table: %s --%s: %s", command->name,
                         option->name, fault);
    return QP_OK;
}

static qp_status check_fallback(const command_spec *command, const option_spec *option,
                                qp_error *error)
{
    union {
        const char *text;
        int64_t integer;
        double number;
    } scratch;
    if (!option->fallback) return QP_OK;
    if (option_store(option, option->name, option->fallback, &scratch, NULL, error) == QP_OK)
        return QP_OK;
    return error_prefix(error, "option table: the default of %s", command->name);
}

qp_status option_check(const program_spec *program, qp_error *error)
{
    for (const command_spec *command = program->commands; command->name; command++) {
        const option_spec *option;
        if (!command->summary || !command->synopsis)
            return error_set(error, QP_INVALID, "option table: %s lacks a summary or a synopsis",
                             command->name);
        for (int i = 0; (option = option_at(command, i)); i++) {
            TRY(check_option(command, option, i, error));
            TRY(check_fallback(command, option, error));
        }
    }
    return QP_OK;
}
