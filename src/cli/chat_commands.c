/* The commands of quipu chat, which begin with a slash: see chat.h. */
#include "cli/chat.h"

#include "base/option_cache.h"
#include "base/status.h"
#include "base/suggest.h"
#include "cli/terminal.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef qp_status chat_command(chat *c, const char *argument);

static qp_status do_help(chat *c, const char *argument);

static qp_status do_reset(chat *c, const char *argument)
{
    (void)argument;
    int count;
    TRY(chat_forget(c, true, &count));
    terminal_say("The conversation begins anew.");
    return QP_OK;
}

static qp_status do_drop(chat *c, const char *argument)
{
    (void)argument;
    int count;
    TRY(chat_forget(c, false, &count));
    terminal_note(0, count ? "The oldest question and its answer are forgotten."
                           : "There is nothing to forget.");
    return QP_OK;
}

static qp_status do_system(chat *c, const char *argument)
{
    TRY(chat_set_system(c, argument));
    terminal_note(0, *argument ? "The system message is set." : "The system message is removed.");
    return QP_OK;
}

static qp_status do_stats(chat *c, const char *argument)
{
    (void)argument;
    size_t held;
    qp_session_tokens(qp_chat_session(c->talk), &held);
    terminal_say("%d answer%s, %zu prompt tokens, %zu generated tokens; context %zu of %lld",
                 c->answers, c->answers == 1 ? "" : "s", c->total_prompt, c->total_generated, held,
                 (long long)qp_engine_get_info(c->engine)->context);
    if (c->answers) cli_report_statistics(c->engine, &c->last);
    return QP_OK;
}

/* The file that a command names. */
static qp_status name_file(const chat *c, const char *command, const char *argument, char *path,
                           size_t size)
{
    char name[4096];
    size_t length = strlen(argument);
    while (length && strchr(" \t\n", argument[length - 1])) /* completion appends a blank */
        length--;
    if (!length)
        return error_set(c->call->error, QP_INVALID, "%s needs the name of a file", command);
    snprintf(name, sizeof name, "%.*s", (int)length, argument);
    if (length < sizeof name && option_expand_home(name, path, size)) return QP_OK;
    return error_set(c->call->error, QP_INVALID, "%s: the path is too long", argument);
}

/* Whether the file may be written: it is new, or the person agrees to replace it. */
static bool may_write(const chat *c, const char *path)
{
    struct stat found;
    char question[4200];
    if (stat(path, &found) != 0 || !S_ISREG(found.st_mode)) return true;
    snprintf(question, sizeof question, "%s exists. Overwrite it? [y/N] ", path);
    return chat_input_confirm(c->input, question);
}

static qp_status do_save(chat *c, const char *argument)
{
    char path[4096];
    TRY(name_file(c, "/save", argument, path, sizeof path));
    if (!may_write(c, path)) {
        terminal_say("Nothing was saved.");
        return QP_OK;
    }
    int count;
    TRY(chat_save(c, path, &count));
    terminal_say("%d messages saved to %s", count, path);
    return QP_OK;
}

static qp_status do_load(chat *c, const char *argument)
{
    char path[4096];
    TRY(name_file(c, "/load", argument, path, sizeof path));
    int count;
    TRY(chat_load(c, path, &count));
    terminal_say("%d messages loaded from %s", count, path);
    return QP_OK;
}

static qp_status do_regenerate(chat *c, const char *argument)
{
    (void)argument;
    return chat_regenerate(c);
}

/* ---- /set ---------------------------------------------------------------------------------- */

static const struct {
    const char *name; /* the option's name */
    qp_setting setting;
    const char *help;
} settings[] = {
    {"temp", QP_TEMPERATURE, "temperature; 0 takes the likeliest token"},
    {"top-k", QP_TOP_K, "among the K likeliest tokens; 0: all"},
    {"top-p", QP_TOP_P, "among the likeliest that hold this probability"},
    {"min-p", QP_MIN_P, "at least this share of the greatest probability"},
    {"repetition-penalty", QP_REPETITION_PENALTY, "divides the logits of tokens seen"},
    {"presence-penalty", QP_PRESENCE_PENALTY, "subtracted once from tokens of the answer"},
    {"frequency-penalty", QP_FREQUENCY_PENALTY, "subtracted for each time in the answer"},
    {"seed", QP_SEED, "the same seed gives the same answers"},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };
static const char MOST_TOKENS[] = "n-predict";

static void list_setting(const char *name, double value, const char *help)
{
    char row[128];
    snprintf(row, sizeof row, "%-8.10g %s", value, help);
    terminal_note_row(name, row);
}

static void list_settings(const chat *c)
{
    for (int i = 0; i < N_SETTINGS; i++)
        list_setting(settings[i].name, c->sampling.value[settings[i].setting], settings[i].help);
    list_setting(MOST_TOKENS, (double)c->max_tokens, "tokens of an answer at most; 0: no limit");
}

static qp_status unknown_setting(const chat *c, const char *name)
{
    suggestion near = {.word = name};
    for (int i = 0; i < N_SETTINGS; i++)
        suggest_offer(&near, settings[i].name);
    suggest_offer(&near, MOST_TOKENS);
    if (near.best)
        return error_set(c->call->error, QP_INVALID, "There is no setting %s. Did you mean %s?",
                         name, near.best);
    return error_set(c->call->error, QP_INVALID, "There is no setting %s: /set lists them.", name);
}

static qp_status store_setting(chat *c, const char *name, double value)
{
    if (strcmp(name, MOST_TOKENS) == 0) {
        if (value < 0 || value > 1 << 30 || value != (double)(int64_t)value)
            return error_set(c->call->error, QP_INVALID,
                             "%s: expected a whole number from 0 to 1073741824, found %g", name,
                             value);
        c->max_tokens = (int64_t)value;
        return QP_OK;
    }
    for (int i = 0; i < N_SETTINGS; i++)
        if (strcmp(settings[i].name, name) == 0)
            return qp_sampling_set(&c->sampling, settings[i].setting, value, QP_FROM_REQUEST,
                                   c->call->error);
    return unknown_setting(c, name);
}

static qp_status do_set(chat *c, const char *argument)
{
    char name[32], *end;
    size_t length = strcspn(argument, " \t=");
    snprintf(name, sizeof name, "%.*s", (int)length, argument);
    const char *text = argument + length + strspn(argument + length, " \t=");
    if (!*name) {
        list_settings(c);
        return QP_OK;
    }
    double value = strtod(text, &end);
    if (end == text || end[strspn(end, " \t")] || !isfinite(value))
        return error_set(c->call->error, QP_INVALID,
                         "/set NAME VALUE: expected a number, found '%s'", text);
    TRY(store_setting(c, name, value));
    terminal_say("%s is %g.", name, value);
    return QP_OK;
}

/* ---- The table ----------------------------------------------------------------------------- */

static const struct {
    const char *name, *other; /* another name for it, or NULL */
    const char *argument, *help;
    chat_command *run; /* NULL: quit */
} commands[] = {
    {"/help", "/?", "", "this list", do_help},
    {"/set", NULL, "NAME VALUE", "change a setting of the answers; alone, list them", do_set},
    {"/schedule", NULL, "HOW", "other queues for the threads, such as dag; alone, say which",
     chat_reschedule},
    {"/system", NULL, "TEXT", "set the system message; without TEXT, remove it", do_system},
    {"/regen", NULL, "", "make the last answer again, with another seed", do_regenerate},
    {"/drop", NULL, "", "forget the oldest question and its answer", do_drop},
    {"/clear", "/reset", "", "begin the conversation anew", do_reset},
    {"/save", NULL, "FILE", "write the conversation as JSON", do_save},
    {"/load", NULL, "FILE", "read a conversation", do_load},
    {"/stats", NULL, "", "tokens and speed", do_stats},
    {"/bye", "/exit", "", "end; so do /quit and Ctrl-D", NULL},
    {"/quit", NULL, "", NULL, NULL},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static qp_status do_help(chat *c, const char *argument)
{
    (void)argument;
    for (int i = 0; i < N_COMMANDS; i++) {
        char usage[40];
        if (!commands[i].help) continue;
        snprintf(usage, sizeof usage, "%s%s%s %s", commands[i].name, commands[i].other ? ", " : "",
                 commands[i].other ? commands[i].other : "", commands[i].argument);
        terminal_note_row(usage, commands[i].help);
    }
    terminal_note(
        0,
        chat_input_is_terminal(c->input)
            ? "Ctrl-C stops an answer. Alt-Enter, or \\ and Enter, breaks a line; pasted lines are "
              "one message. Tab completes commands and files, Ctrl-R searches older messages."
            : "A line that ends in \\ goes on in the next.");
    return QP_OK;
}

static bool is_name(const char *name, const char *word, size_t length)
{
    return name && strlen(name) == length && memcmp(name, word, length) == 0;
}

static qp_status unknown_command(const chat *c, const char *word, size_t length)
{
    char typed[40];
    snprintf(typed, sizeof typed, "%.*s", (int)length, word);
    suggestion near = {.word = typed};
    for (int i = 0; i < N_COMMANDS; i++) {
        suggest_offer(&near, commands[i].name);
        if (commands[i].other) suggest_offer(&near, commands[i].other);
    }
    if (near.best)
        return error_set(c->call->error, QP_INVALID, "%s is not a command; did you mean %s?", typed,
                         near.best);
    return error_set(c->call->error, QP_INVALID, "%s is not a command; /help lists them", typed);
}

qp_status chat_run_command(chat *c, const char *line, bool *quit)
{
    size_t length = strcspn(line, " \t\n");
    const char *argument = line + length + strspn(line + length, " \t\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        if (!is_name(commands[i].name, line, length) && !is_name(commands[i].other, line, length))
            continue;
        *quit = !commands[i].run;
        return *quit ? QP_OK : commands[i].run(c, argument);
    }
    return unknown_command(c, line, length);
}

/* ---- Completion ---------------------------------------------------------------------------- */

/* Offers `word` and a blank where it begins with `typed`. */
static void offer(completions *out, const char *typed, const char *word)
{
    char text[64];
    if (!word || strncmp(word, typed, strlen(typed)) != 0) return;
    snprintf(text, sizeof text, "%s ", word);
    completions_add(out, text);
}

/* Files that begin with `typed`; the folder stays as it was typed. */
static void offer_files(completions *out, const char *typed)
{
    const char *slash = strrchr(typed, '/');
    size_t length = slash ? (size_t)(slash + 1 - typed) : 0;
    char folder[4096], path[8192], word[8192];
    snprintf(path, sizeof path, "%.*s", (int)length, typed);
    if (!option_expand_home(length ? path : ".", folder, sizeof folder)) return;
    DIR *directory = opendir(folder);
    if (!directory) return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        const char *name = entry->d_name, *begun = typed + length;
        struct stat found;
        if (strncmp(name, begun, strlen(begun)) != 0 || (name[0] == '.' && !*begun)) continue;
        snprintf(path, sizeof path, "%.4000s/%s", folder, name);
        bool is_folder = stat(path, &found) == 0 && S_ISDIR(found.st_mode);
        snprintf(word, sizeof word, "%.*s%s%s", (int)length, typed, name, is_folder ? "/" : " ");
        completions_add(out, word);
    }
    closedir(directory);
}

/* Settings and assignments of a schedule, also after the first word, and files. */
static void offer_schedules(const char *text, const char *argument, completions *out)
{
    const char *last = strrchr(argument, ' ');
    const char *word = last ? last + 1 : argument;
    out->start = (size_t)(word - text);
    for (int i = 0; cli_schedule_settings[i]; i++)
        offer(out, word, cli_schedule_settings[i]);
    for (int i = 0; cli_schedule_assignments[i]; i++)
        offer(out, word, cli_schedule_assignments[i]);
    if (word == argument && *word) offer_files(out, word);
}

void chat_complete(const char *text, completions *out)
{
    size_t length = strcspn(text, " \t");
    if (*text != '/') return;
    if (!text[length]) {
        for (int i = 0; i < N_COMMANDS; i++) {
            offer(out, text, commands[i].name);
            offer(out, text, commands[i].other);
        }
        return;
    }
    const char *argument = text + length + strspn(text + length, " \t");
    out->start = (size_t)(argument - text);
    if (is_name("/save", text, length) || is_name("/load", text, length))
        offer_files(out, argument);
    if (is_name("/schedule", text, length)) offer_schedules(text, argument, out);
    if (!is_name("/set", text, length)) return;
    for (int i = 0; i < N_SETTINGS; i++)
        offer(out, argument, settings[i].name);
    offer(out, argument, MOST_TOKENS);
}
