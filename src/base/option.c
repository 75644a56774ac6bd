/* Options from the command line and the environment: see option.h.
 *
 * The only file in the tree that reads the environment. Words are sorted into flags and values
 * here; what a value's text means is option_value.c's business.
 */
#include "base/option.h"

#include "base/option_cache.h"
#include "base/option_foreign.h"
#include "base/option_value.h"
#include "base/suggest.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* The parser's state. */
typedef struct parser {
    const program_spec *program;
    const command_spec *command;
    int argc;
    char **argv;
    int next; /* the next word to read */
    void *fields;
    option_result *result;
    qp_error *error;
} parser;

/* A path may begin with ~/ where no shell expanded it, as in -m '~/x.gguf' or --model=~/x.gguf. */
static qp_status expand_path(parser *p, const char *where, const char **text)
{
    char path[4096];
    if (!option_expand_home(*text, path, sizeof path))
        return error_set(p->error, QP_INVALID, "%s: the path is too long", where);
    size_t size = strlen(path) + 1;
    char *kept = arena_alloc(&p->result->memory, size, 1);
    if (!kept) return error_no_memory(p->error, "options", size);
    *text = memcpy(kept, path, size);
    return QP_OK;
}

static qp_status store_from(parser *p, int index, option_source source, const char *where,
                            const char *text)
{
    const option_spec *option = option_at(p->command, index);
    void *field = (char *)p->fields + option->field;
    if (option->hint != OPTION_HINT_NONE && text[0] == '~') TRY(expand_path(p, where, &text));
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

/* Whether `names` (separated by blanks, may be NULL) holds `name`. */
static bool lists_name(const char *names, const char *name)
{
    return names && option_has_word(names, name, strlen(name));
}

static bool exclude_each_other(const option_spec *a, const option_spec *b)
{
    return lists_name(a->excludes, b->name) || lists_name(b->excludes, a->name);
}

/* Whether the option has a value from `source` or a higher one; a flag that is off does not
 * count. */
static bool is_given(const parser *p, int index, option_source source)
{
    const option_spec *option = option_at(p->command, index);
    const void *field = (const char *)p->fields + option->field;
    if (p->result->sources[index] < source) return false;
    return option->type != OPTION_FLAG || *(const bool *)field;
}

/* An option that was given and excludes the one at `index`, or NULL. */
static const option_spec *find_rival(const parser *p, int index, option_source source)
{
    const option_spec *option = option_at(p->command, index), *other;
    for (int i = 0; (other = option_at(p->command, i)); i++)
        if (i != index && exclude_each_other(option, other) && is_given(p, i, source)) return other;
    return NULL;
}

static qp_status check_rivals(const parser *p)
{
    const option_spec *option, *rival;
    for (int i = 0; (option = option_at(p->command, i)); i++) {
        if (!is_given(p, i, OPTION_FROM_ENVIRONMENT)) continue;
        rival = find_rival(p, i, OPTION_FROM_ENVIRONMENT);
        if (!rival) continue;
        bool environment = p->result->sources[i] == OPTION_FROM_ENVIRONMENT;
        return error_set(p->error, QP_INVALID, "--%s and --%s exclude each other%s", option->name,
                         rival->name, environment ? " (the environment sets both)" : "");
    }
    return QP_OK;
}

/* Whether another command takes `text` for its option of the same name. */
static bool suits_another_command(const parser *p, const option_spec *option, const char *text)
{
    union {
        const char *text;
        int64_t integer;
        double number;
    } scratch;
    const option_spec *other;
    for (const command_spec *command = p->program->commands; command->name; command++)
        for (int i = 0; (other = option_at(command, i)); i++)
            if (strcmp(other->name, option->name) == 0 && other->type != OPTION_STRINGS &&
                option_store(other, "", text, &scratch, NULL, NULL) == QP_OK)
                return true;
    return false;
}

/* One variable serves all commands that have the option. If only other commands accept its value,
 * this command keeps its default. */
static qp_status store_variable(parser *p, int index, const char *name, const char *text)
{
    const option_spec *option = option_at(p->command, index);
    if (p->result->sources[index] == OPTION_FROM_COMMAND_LINE) return QP_OK;
    if (find_rival(p, index, OPTION_FROM_COMMAND_LINE)) return QP_OK;
    qp_status status = store_from(p, index, OPTION_FROM_ENVIRONMENT, name, text);
    if (status != QP_INVALID || !suits_another_command(p, option, text)) return status;
    *p->error = (qp_error){0};
    return QP_OK;
}

static qp_status store_environment(parser *p)
{
    const option_spec *option;
    for (int i = 0; (option = option_at(p->command, i)); i++) {
        char name[64];
        option_environment_name(option, name);
        const char *text = getenv(name);
        if (text && *text) TRY(store_variable(p, i, name, text));
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

/* The commands that have the flag (`length` bytes with the dashes): two by name. */
static void list_owners(const program_spec *program, const char *flag, size_t length, strbuf *out)
{
    int owners = 0;
    bool negated;
    for (const command_spec *command = program->commands; command->name; command++) {
        int index = flag[1] == '-' ? find_long(command, flag + 2, length - 2, &negated)
                                   : find_short(command, flag[1]);
        if (index < 0) continue;
        if (owners++ < 2) strbuf_printf(out, "%s%s", owners > 1 ? ", " : "", command->name);
    }
    if (owners > 2) strbuf_printf(out, " and %d more", owners - 2);
}

/* Names the commands that have the option, or the nearest option; of a negated flag, its negation.
 */
static qp_status unknown_option(parser *p, const char *flag, size_t length)
{
    char word[64];
    const option_spec *option;
    strbuf owners = {0};
    list_owners(p->program, flag, length, &owners);
    bool owned = owners.length > 0;
    if (owned)
        error_set(p->error, QP_INVALID,
                  "%s has no %.*s, which is an option of %s; see %s %s --help", p->command->name,
                  (int)length, flag, strbuf_text(&owners), p->program->name, p->command->name);
    strbuf_free(&owners);
    if (owned) return QP_INVALID;
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

/* Stores `attached`, the text after the flag, or else the next word. */
static qp_status take_value(parser *p, int index, const char *flag, const char *attached)
{
    if (!attached && p->next >= p->argc)
        return missing_value(p, option_at(p->command, index), flag);
    const char *text = attached ? attached : p->argv[p->next++];
    return store_from(p, index, OPTION_FROM_COMMAND_LINE, flag, text);
}

/* Says what to use in place of a flag of a similar program; `value`: the value it cannot have. */
static qp_status refuse_foreign(parser *p, const option_foreign *row, const char *flag,
                                const char *value)
{
    strbuf advice = {0};
    option_foreign_advice(p->program, row, &advice);
    error_set(p->error, QP_INVALID, "%s has no %s%s%.60s: %s", p->program->name, flag,
              value && *value ? " " : "", value ? value : "", strbuf_text(&advice));
    strbuf_free(&advice);
    return QP_INVALID;
}

/* Sets the option to what the row has for the value. A flag that needs no value takes the next word
 * only if the row has it. */
static qp_status take_foreign_value(parser *p, const option_foreign *row, int index,
                                    const char *flag, const char *attached)
{
    const char *value = attached ? attached : p->next < p->argc ? p->argv[p->next] : NULL, *out;
    size_t length;
    const bool bare = option_foreign_value(row, "", &out, &length);
    if (!attached && bare &&
        (!value || !*value || *value == '-' || !option_foreign_value(row, value, &out, &length)))
        value = "";
    else if (!value)
        return error_set(p->error, QP_INVALID, "%s needs a value", flag);
    else if (!attached)
        p->next++;
    if (!option_foreign_value(row, value, &out, &length))
        return refuse_foreign(p, row, flag, value);
    if (length == 0 || index < 0) return QP_OK;
    char *kept = arena_alloc(&p->result->memory, length + 1, 1);
    if (!kept) return error_no_memory(p->error, "options", length + 1);
    memcpy(kept, out, length);
    kept[length] = '\0';
    return store_from(p, index, OPTION_FROM_COMMAND_LINE, flag, kept);
}

/* A flag (`length` bytes of `word`, with its dashes) that the command does not have: one of a
 * similar program, or a mistake. */
static qp_status other_option(parser *p, const char *word, size_t length)
{
    char flag[72];
    int index;
    const option_foreign *row =
        option_foreign_find(p->program->foreign_flags, p->command, word, length, &index);
    if (!row || length >= sizeof flag) return unknown_option(p, word, length);
    snprintf(flag, sizeof flag, "%.*s", (int)length, word);
    const char *attached = word[length] == '=' ? word + length + 1 : NULL;
    if (row->option ? index < 0 : !row->values && !row->holds)
        return refuse_foreign(p, row, flag, NULL);
    if (row->values) return take_foreign_value(p, row, index, flag, attached);
    if (index >= 0 && option_at(p->command, index)->type != OPTION_FLAG)
        return take_value(p, index, flag, attached);
    if (attached)
        return error_set(p->error, QP_INVALID, "%s takes no value, found '%.100s'", flag, attached);
    return index < 0 ? QP_OK : store_from(p, index, OPTION_FROM_COMMAND_LINE, flag, "1");
}

/* --name, --name=value, --name value, --no-name; or -name, of options that allow it. */
static qp_status parse_long(parser *p, const char *word, size_t dashes)
{
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    bool help_all = length == strlen("--help-all") && memcmp(word, "--help-all", length) == 0;
    if (help_all || (length == strlen("--help") && memcmp(word, "--help", length) == 0)) {
        if (equals)
            return error_set(p->error, QP_INVALID, "%.*s takes no value, found '%.100s'",
                             (int)length, word, equals + 1);
        p->result->help = true;
        p->result->help_all = help_all;
        return QP_OK;
    }
    bool negated;
    int index = find_long(p->command, word + dashes, length - dashes, &negated);
    if (index < 0) return other_option(p, word, length);
    const option_spec *option = option_at(p->command, index);
    char flag[72];
    snprintf(flag, sizeof flag, "--%s%s", negated ? "no-" : "", option->name);
    if (option->type != OPTION_FLAG) return take_value(p, index, flag, equals ? equals + 1 : NULL);
    if (equals)
        return error_set(p->error, QP_INVALID, "%s takes no value, found '%.100s'", flag,
                         equals + 1);
    return store_from(p, index, OPTION_FROM_COMMAND_LINE, flag, negated ? "0" : "1");
}

/* A word such as -temp is a long option with one dash too few, rather than letters in a bundle:
 * those are -vn5. */
static qp_status check_single_dash(parser *p, const char *word)
{
    size_t length = strcspn(word, "=");
    bool negated;
    if (length <= 2) return QP_OK;
    int index = find_long(p->command, word + 1, length - 1, &negated);
    bool help = length == 5 && memcmp(word, "-help", 5) == 0;
    if (index < 0 && !help) return QP_OK;
    return error_set(p->error, QP_INVALID,
                     "unknown option %.*s; did you mean -%.*s? See %s %s --help", (int)length, word,
                     (int)length, word, p->program->name, p->command->name);
}

/* The rest of a bundle as the value of its last letter; if it is no valid value, the word is no
 * bundle. */
static qp_status take_attached(parser *p, int index, const char *flag, const char *word,
                               const char *attached)
{
    qp_status status = take_value(p, index, flag, attached);
    if (status == QP_INVALID && isalpha((unsigned char)*attached))
        error_prefix(p->error, "unknown option %.60s", word);
    return status;
}

/* Whether a word such as -hf is a long option that may be written with one dash. */
static bool is_single_dash(const parser *p, const char *word)
{
    bool negated;
    int index = find_long(p->command, word + 1, strcspn(word + 1, "="), &negated);
    return index >= 0 && option_at(p->command, index)->single_dash;
}

/* -v, -n5, -n 5, -vn5 */
static qp_status parse_short(parser *p, const char *word)
{
    if (strcmp(word, "-h") == 0 && find_short(p->command, 'h') < 0) {
        p->result->help = true;
        return QP_OK;
    }
    if (is_single_dash(p, word)) return parse_long(p, word, 1);
    const size_t length = strcspn(word, "=");
    int option;
    if (length > 2 &&
        option_foreign_find(p->program->foreign_flags, p->command, word, length, &option))
        return other_option(p, word, length);
    TRY(check_single_dash(p, word));
    for (const char *letter = word + 1; *letter; letter++) {
        char flag[3] = {'-', *letter, '\0'};
        int index = find_short(p->command, *letter);
        if (index < 0 && !word[2]) return other_option(p, word, 2);
        if (index < 0)
            return error_set(p->error, QP_INVALID, "unknown option %s in '%.60s'; see %s %s --help",
                             flag, word, p->program->name, p->command->name);
        if (option_at(p->command, index)->type != OPTION_FLAG)
            return letter[1] ? take_attached(p, index, flag, word, letter + 1)
                             : take_value(p, index, flag, NULL);
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
            TRY(parse_long(p, word, 2));
        else
            TRY(parse_short(p, word));
    }
    return QP_OK;
}

/* The first word as an option's value: see first_word in option.h. */
static qp_status take_first_word(parser *p)
{
    const command_spec *command = p->command;
    option_result *result = p->result;
    bool negated;
    if (!command->first_word || result->n_positional <= command->positional_maximum ||
        result->n_positional == 0)
        return QP_OK;
    const char *word = result->positional[0];
    const int index =
        find_long(command, command->first_word, strlen(command->first_word), &negated);
    if (result->sources[index] == OPTION_FROM_COMMAND_LINE ||
        find_rival(p, index, OPTION_FROM_COMMAND_LINE) ||
        (strpbrk(word, " \t\n") && access(word, F_OK) != 0))
        return QP_OK;
    result->positional++;
    result->n_positional--;
    return store_from(p, index, OPTION_FROM_COMMAND_LINE, "the first word", word);
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
    TRY(parse_words(&p));
    if (out->help) return QP_OK;
    TRY(take_first_word(&p));
    TRY(store_environment(&p));
    TRY(check_rivals(&p));
    return check_positional(&p);
}

void option_result_free(option_result *result)
{
    arena_free(&result->memory);
    *result = (option_result){0};
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
