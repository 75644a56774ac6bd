/* Help on the terminal and the manual page, made from the option tables: see option.h. */
#include "base/option.h"

#include <string.h>

enum { HELP_WIDTH = 80, HELP_COLUMN = 26 };

/* Appends words, broken before `HELP_WIDTH`; the cursor stands at `column`, later lines begin at
 * `indent`. An empty line in the text stays one. */
static void put_wrapped(strbuf *out, const char *text, size_t column, size_t indent)
{
    bool first = true;
    while (*text) {
        size_t blank = strspn(text, " \n");
        const char *newline = memchr(text, '\n', blank);
        bool paragraph = newline && memchr(newline + 1, '\n', (size_t)(text + blank - newline - 1));
        text += blank;
        size_t length = strcspn(text, " \n");
        if (!length) break;
        if (!first && (paragraph || column + 1 + length > HELP_WIDTH)) {
            strbuf_printf(out, "\n%s%*s", paragraph ? "\n" : "", (int)indent, "");
            column = indent;
        } else if (!first) {
            strbuf_putc(out, ' ');
            column++;
        }
        strbuf_append(out, text, length);
        text += length;
        column += length;
        first = false;
    }
    strbuf_putc(out, '\n');
}

/* " K", " cpu|cuda" or nothing: the text after the flag. */
static void put_argument(const option_spec *option, strbuf *out)
{
    if (option->type == OPTION_FLAG) return;
    strbuf_putc(out, ' ');
    if (option->argument) {
        strbuf_puts(out, option->argument);
        return;
    }
    for (int i = 0; option->choices[i]; i++)
        strbuf_printf(out, "%s%s", i ? "|" : "", option->choices[i]);
}

/* Whether the flag or the help text already names the choices; else they are listed after the
 * help. */
static bool shows_choices(const option_spec *option)
{
    if (option->type != OPTION_CHOICE || !option->argument) return true;
    for (int i = 0; option->choices[i]; i++)
        if (!strstr(option->help, option->choices[i])) return false;
    return true;
}

/* "the help (default: 40)", "the help (a, b or c; default: a)" */
static void put_meaning(const option_spec *option, strbuf *out)
{
    bool choices = !shows_choices(option);
    strbuf_puts(out, option->help);
    if (option->type == OPTION_STRINGS) strbuf_puts(out, "; may be repeated");
    if (!choices && !option->fallback) return;
    strbuf_puts(out, " (");
    if (choices) option_expected(option, out);
    if (option->fallback)
        strbuf_printf(out, "%sdefault: %s", choices ? "; " : "", option->fallback);
    strbuf_puts(out, ")");
}

static void help_option(const option_spec *option, strbuf *out)
{
    strbuf left = {0}, right = {0};
    if (option->short_name)
        strbuf_printf(&left, "  -%c, ", option->short_name);
    else
        strbuf_puts(&left, "      ");
    strbuf_printf(&left, "--%s%s", option->negatable ? "[no-]" : "", option->name);
    put_argument(option, &left);
    strbuf_puts(out, strbuf_text(&left));
    if (left.length + 2 > HELP_COLUMN)
        strbuf_printf(out, "\n%*s", HELP_COLUMN, "");
    else
        strbuf_printf(out, "%*s", (int)(HELP_COLUMN - left.length), "");
    put_meaning(option, &right);
    put_wrapped(out, strbuf_text(&right), HELP_COLUMN, HELP_COLUMN);
    strbuf_free(&left);
    strbuf_free(&right);
}

/* A group's options; the title is left out where the group before had the same. Returns how many
 * expert options were left out. */
static int help_group(const option_group *group, const char *title_before, bool all, strbuf *out)
{
    int hidden = 0;
    bool titled = title_before && strcmp(title_before, group->title) == 0;
    for (const option_spec *option = group->options; option->name; option++) {
        if (option->expert && !all) {
            hidden++;
            continue;
        }
        if (!titled) strbuf_printf(out, "\n%s:\n", group->title);
        titled = true;
        help_option(option, out);
    }
    return hidden;
}

void option_help(const program_spec *program, const command_spec *command, bool all, strbuf *out)
{
    strbuf_printf(out, "usage: %s %s%s%s\n\n", program->name, command->name,
                  *command->synopsis ? " " : "", command->synopsis);
    put_wrapped(out, command->description ? command->description : command->summary, 0, 0);
    int hidden = 0;
    const char *title = NULL;
    for (const option_group *const *group = command->groups; group && *group; group++) {
        hidden += help_group(*group, title, all, out);
        title = (*group)->title;
    }
    const option_spec *first = option_at(command, 0);
    if (!first) return;
    char variable[64];
    option_environment_name(first, variable);
    strbuf_puts(out, "\n");
    if (hidden)
        strbuf_printf(out, "%d more option%s: %s %s --help-all\n", hidden, hidden > 1 ? "s" : "",
                      program->name, command->name);
    strbuf_printf(out, "The environment sets defaults: %s for --%s, and so on.\n", variable,
                  first->name);
}

enum { COMMAND_COLUMN = 19 }; /* where summaries begin: after "ops leaderboard" */

static void put_command_row(const command_spec *command, strbuf *out)
{
    strbuf_printf(out, "  %-*s  ", COMMAND_COLUMN - 4, command->name);
    put_wrapped(out, command->summary, COMMAND_COLUMN, COMMAND_COLUMN);
}

bool option_family_overview(const program_spec *program, const char *word, strbuf *out)
{
    bool found = false;
    size_t length = strlen(word);
    for (const command_spec *command = program->commands; command->name; command++) {
        if (strncmp(command->name, word, length) != 0 || command->name[length] != ' ') continue;
        if (!found) strbuf_printf(out, "usage: %s %s COMMAND [OPTION...]\n\n", program->name, word);
        found = true;
        put_command_row(command, out);
    }
    if (found)
        strbuf_printf(out, "\n%s %s COMMAND --help explains a command.\n", program->name, word);
    return found;
}

void option_overview(const program_spec *program, strbuf *out)
{
    strbuf_printf(out, "usage: %s COMMAND [OPTION...]\n\n", program->name);
    put_wrapped(out, program->description ? program->description : program->summary, 0, 0);
    if (!program->commands->heading) strbuf_puts(out, "\nCommands:\n");
    for (const command_spec *command = program->commands; command->name; command++) {
        if (command->heading) strbuf_printf(out, "\n%s:\n", command->heading);
        put_command_row(command, out);
    }
    strbuf_printf(out, "\n%s COMMAND --help explains a command, %s --version names this one.\n",
                  program->name, program->name);
}

/* The manual page ---------------------------------------------------------------------------- */

/* Text for troff: backslashes and dashes escaped, no line begins with a control character. */
static void man_text(const char *text, strbuf *out)
{
    for (bool line_begins = true; *text; text++) {
        if (line_begins && (*text == '.' || *text == '\'')) strbuf_puts(out, "\\&");
        line_begins = *text == '\n';
        if (*text == '\\')
            strbuf_puts(out, "\\e");
        else if (*text == '-')
            strbuf_puts(out, "\\-");
        else
            strbuf_putc(out, *text);
    }
}

/* An empty line separates paragraphs. */
static void man_paragraphs(const char *text, strbuf *out)
{
    const char *gap;
    strbuf part = {0};
    for (; (gap = strstr(text, "\n\n")); text = gap + 2) {
        strbuf_clear(&part);
        strbuf_append(&part, text, (size_t)(gap - text));
        man_text(strbuf_text(&part), out);
        strbuf_puts(out, "\n.PP\n");
    }
    man_text(text, out);
    strbuf_putc(out, '\n');
    strbuf_free(&part);
}

static void man_option(const option_spec *option, strbuf *out)
{
    strbuf tag = {0}, body = {0};
    char variable[64];
    option_environment_name(option, variable);
    if (option->short_name) strbuf_printf(&tag, "-%c, ", option->short_name);
    strbuf_printf(&tag, "--%s%s", option->negatable ? "[no-]" : "", option->name);
    put_argument(option, &tag);
    put_meaning(option, &body);
    strbuf_puts(out, ".TP\n.B ");
    man_text(strbuf_text(&tag), out);
    strbuf_putc(out, '\n');
    man_text(strbuf_text(&body), out);
    strbuf_puts(out, ".\n");
    if (option->type != OPTION_FLAG && option->type != OPTION_STRING &&
        option->type != OPTION_STRINGS && option->type != OPTION_CHOICE) {
        strbuf_clear(&body);
        option_expected(option, &body);
        strbuf_puts(out, "Expects ");
        man_text(strbuf_text(&body), out);
        strbuf_puts(out, ".\n");
    }
    strbuf_printf(out, "Environment: %s.\n", variable);
    strbuf_free(&tag);
    strbuf_free(&body);
}

/* Whether an earlier command has the group already. */
static bool group_seen(const program_spec *program, const command_spec *until,
                       const option_group *wanted)
{
    for (const command_spec *command = program->commands; command != until; command++)
        for (const option_group *const *group = command->groups; group && *group; group++)
            if (*group == wanted) return true;
    return false;
}

/* The titles of groups that earlier commands have; groups with one title follow each other. */
static void man_seen_groups(const program_spec *program, const command_spec *command, strbuf *out)
{
    const char *last = NULL;
    for (const option_group *const *group = command->groups; group && *group; group++) {
        if (!group_seen(program, command, *group)) continue;
        if (last && strcmp(last, (*group)->title) == 0) continue;
        strbuf_puts(out, last ? ", " : ".PP\nOptions as above: ");
        man_text((*group)->title, out);
        last = (*group)->title;
    }
    if (last) strbuf_puts(out, ".\n");
}

/* A group is written in full at the first command that has it, and by reference at the others. */
static void man_command(const program_spec *program, const command_spec *command, strbuf *out)
{
    strbuf_puts(out, ".SS ");
    man_text(command->name, out);
    strbuf_printf(out, "\n.B %s ", program->name);
    man_text(command->name, out);
    strbuf_putc(out, ' ');
    man_text(command->synopsis, out);
    strbuf_puts(out, "\n.PP\n");
    man_paragraphs(command->description ? command->description : command->summary, out);
    for (const option_group *const *group = command->groups; group && *group; group++) {
        if (group_seen(program, command, *group)) continue;
        strbuf_puts(out, ".PP\n");
        man_text((*group)->title, out);
        strbuf_puts(out, ":\n");
        for (const option_spec *option = (*group)->options; option->name; option++)
            man_option(option, out);
    }
    man_seen_groups(program, command, out);
}

/* A table of words and their meanings, under a title of its own unless `title` is NULL. */
static void man_entries(const char *title, const option_entry *entries, strbuf *out)
{
    if (!entries) return;
    if (title) strbuf_printf(out, ".SH %s\n", title);
    for (const option_entry *entry = entries; entry->name; entry++) {
        strbuf_puts(out, ".TP\n.B ");
        man_text(entry->name, out);
        strbuf_putc(out, '\n');
        man_text(entry->text, out);
        strbuf_puts(out, ".\n");
    }
}

void option_man(const program_spec *program, strbuf *out)
{
    strbuf_puts(out, ".TH ");
    for (const char *c = program->name; *c; c++)
        strbuf_putc(out, *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c);
    strbuf_printf(out, " 1 \"\" \"%s %s\"\n.SH NAME\n%s \\- ", program->name, program->version,
                  program->name);
    man_text(program->summary, out);
    strbuf_printf(out, "\n.SH SYNOPSIS\n.B %s\nCOMMAND [OPTION...]\n.SH DESCRIPTION\n",
                  program->name);
    man_paragraphs(program->description ? program->description : program->summary, out);
    strbuf_puts(out, ".SH COMMANDS\n");
    for (const command_spec *command = program->commands; command->name; command++)
        man_command(program, command, out);
    strbuf_puts(out, ".SH ENVIRONMENT\nEach option has a variable, named with it above, that sets "
                     "its value;\nthe command line wins over it. For a flag it is 1 or 0.\n");
    man_entries(NULL, program->variables, out);
    man_entries("FILES", program->files, out);
    man_entries("EXIT STATUS", program->exit_statuses, out);
    man_entries("EXAMPLES", program->examples, out);
}
