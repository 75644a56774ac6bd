/* The commands of quipu chat, which begin with a slash: see chat.h. */
#include "cli/chat.h"

#include "base/files.h"
#include "base/option_cache.h"
#include "base/status.h"
#include "base/suggest.h"
#include "cli/terminal.h"

#include <dirent.h>
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
    return files_path_too_long(argument, c->call->error);
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

/* ---- /show --------------------------------------------------------------------------------- */

static qp_status show_model(chat *c)
{
    char *text;
    const char *path;
    TRY(cli_model_path(c->call, &path));
    TRY(qp_describe_model(path, false, &text, c->call->error));
    terminal_note(0, text);
    qp_free(text);
    return QP_OK;
}

static qp_status show_messages(chat *c)
{
    cJSON *messages;
    TRY(chat_messages(c, &messages));
    for (const cJSON *message = messages->child; message; message = message->next)
        terminal_note_row(chat_message_text(message, "role"),
                          chat_message_text(message, "content"));
    if (!messages->child) terminal_say("There are no messages yet.");
    cJSON_Delete(messages);
    return QP_OK;
}

static qp_status show_system(chat *c)
{
    cJSON *messages;
    TRY(chat_messages(c, &messages));
    const bool there = strcmp(chat_message_text(messages->child, "role"), "system") == 0;
    terminal_note(0, there ? chat_message_text(messages->child, "content")
                           : "There is no system message: /system sets one.");
    cJSON_Delete(messages);
    return QP_OK;
}

static qp_status show_settings(chat *c)
{
    chat_list_settings(c);
    return QP_OK;
}

static qp_status show_template(chat *c)
{
    terminal_note(0, qp_chat_template(qp_engine_vocabulary(c->engine)));
    return QP_OK;
}

static const struct {
    const char *name, *other;
    qp_status (*show)(chat *c);
} shown[] = {
    {"info", "modelfile", show_model},         {"messages", "", show_messages},
    {"settings", "parameters", show_settings}, {"system", "", show_system},
    {"template", "", show_template},
};
enum { N_SHOWN = sizeof shown / sizeof *shown };

static qp_status do_show(chat *c, const char *argument)
{
    const size_t length = strcspn(argument, " \t");
    char wanted[32];
    snprintf(wanted, sizeof wanted, "%.*s", (int)length, argument);
    for (int i = 0; i < N_SHOWN; i++)
        if (strcmp(shown[i].name, *wanted ? wanted : "info") == 0 ||
            (*wanted && strcmp(shown[i].other, wanted) == 0))
            return shown[i].show(c);
    return error_set(c->call->error, QP_INVALID,
                     "/show shows info, messages, settings, system or template, not '%s'", wanted);
}

/* ---- /thoughts ----------------------------------------------------------------------------- */

static qp_status do_thoughts(chat *c, const char *argument)
{
    for (int i = 0; *argument && cli_thoughts[i]; i++) {
        if (strncmp(argument, cli_thoughts[i], strlen(cli_thoughts[i])) != 0) continue;
        c->call->settings->thoughts = i;
        terminal_say(i ? "Thoughts are folded to a line; /thoughts shows the last."
                       : "Thoughts are shown.");
        return QP_OK;
    }
    if (!*argument) return answer_view_thoughts(&c->view, c->call->error);
    return error_set(c->call->error, QP_INVALID, "/thoughts takes show or fold, not '%s'",
                     argument);
}

/* ---- The table ----------------------------------------------------------------------------- */

static const struct {
    const char *name, *other; /* another name for it, or NULL */
    const char *argument, *help;
    chat_command *run; /* NULL: quit */
} commands[] = {
    {"/help", "/?", "", "this list", do_help},
    {"/set", NULL, "NAME VALUE", "change a setting of the answers; without a name, list them",
     chat_set},
    {"/show", NULL, "WHAT", "info, messages, settings, system or template", do_show},
    {"/edit", NULL, "TEXT", "write a message in $EDITOR; without TEXT, the last one", chat_edit},
    {"/copy", NULL, "", "put the last answer into the clipboard", chat_copy},
    {"/thoughts", NULL, "HOW", "show or fold thoughts; without a word, show the last", do_thoughts},
    {"/schedule", NULL, "HOW", "other queues for the threads, such as dag; without HOW, say which",
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
            ? "Ctrl-C stops an answer. \"\"\" begins and ends a message of several lines; "
              "Alt-Enter, or "
              "\\ and Enter, breaks a line, too, and pasted lines are one message. Tab completes "
              "commands and files, Ctrl-R searches older messages."
            : "A line that ends in \\ goes on in the next; \"\"\" begins and ends several lines.");
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

void chat_offer(completions *out, const char *typed, const char *word)
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
        chat_offer(out, word, cli_schedule_settings[i]);
    for (int i = 0; cli_schedule_assignments[i]; i++)
        chat_offer(out, word, cli_schedule_assignments[i]);
    if (word == argument && *word) offer_files(out, word);
}

void chat_complete(const char *text, completions *out)
{
    size_t length = strcspn(text, " \t");
    if (*text != '/') return;
    if (!text[length]) {
        for (int i = 0; i < N_COMMANDS; i++) {
            chat_offer(out, text, commands[i].name);
            chat_offer(out, text, commands[i].other);
        }
        return;
    }
    const char *argument = text + length + strspn(text + length, " \t");
    out->start = (size_t)(argument - text);
    if (is_name("/save", text, length) || is_name("/load", text, length))
        offer_files(out, argument);
    if (is_name("/schedule", text, length)) offer_schedules(text, argument, out);
    if (is_name("/set", text, length)) chat_complete_settings(argument, out);
    for (int i = 0; is_name("/show", text, length) && i < N_SHOWN; i++)
        chat_offer(out, argument, shown[i].name);
}
