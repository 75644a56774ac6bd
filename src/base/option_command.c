/* Which command the first words of a command line name: see option.h. */
#include "base/option.h"

#include "base/option_foreign.h"
#include "base/suggest.h"

#include <stdio.h>
#include <string.h>

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

/* Lists the second words of a family of commands. */
static void put_second_words(const program_spec *program, const char *word, strbuf *out)
{
    const char *separator = "";
    for (const command_spec *c = program->commands; c->name; c++) {
        if (!begins_with_word(c->name, word)) continue;
        strbuf_printf(out, "%s%s", separator, c->name + strlen(word) + 1);
        separator = ", ";
    }
}

/* Reports an unknown second word that resembles none of the known ones. */
static qp_status unknown_second_word(const program_spec *program, const char *typed,
                                     const char *word, qp_error *error)
{
    strbuf words = {0};
    put_second_words(program, word, &words);
    error_set(error, QP_INVALID, "unknown command '%s'; '%s' is followed by one of %s", typed, word,
              strbuf_text(&words));
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
    int none;
    const option_foreign *row = option_foreign_find(program->foreign_commands, program->commands,
                                                    argv[0], strlen(argv[0]), &none);
    if (row)
        return error_set(error, QP_INVALID, "%s has no command '%s': %s", program->name, argv[0],
                         row->text);
    if (argv[0][0] == '-')
        return error_set(error, QP_INVALID,
                         "expected a command before %s, as in %s %s %s; %s --help lists them",
                         argv[0], program->name, program->commands->name, argv[0], program->name);
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
    if (family) return unknown_second_word(program, typed, argv[0], error);
    return error_set(error, QP_INVALID, "unknown command '%s'; see %s --help", typed,
                     program->name);
}

/* The command that a similar program's command means; NULL: none. */
static const command_spec *find_foreign(const program_spec *program, const char *word)
{
    for (const option_foreign *row = program->foreign_commands; row && row->names; row++)
        for (const command_spec *c = program->commands; row->option && c->name; c++)
            if (strcmp(row->names, word) == 0 && strcmp(c->name, row->option) == 0) return c;
    return NULL;
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
    if (!*out && (*out = find_foreign(program, argv[0]))) *used = 1;
    return *out ? QP_OK : unknown_command(program, argc, argv, error);
}
