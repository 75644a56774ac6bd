/* "/schedule" in a conversation: other queues for the passes that follow, and what they did to the
 * speed. The answers stay the same, to the bit. */
#include "cli/chat.h"

#include "base/option_cache.h"
#include "base/status.h"
#include "cli/terminal.h"

#include <string.h>
#include <sys/stat.h>

/* The settings say which schedule runs: those of the command line, until /schedule changes them. */
static void describe(const cli_settings *s, char *text, size_t size)
{
    if (s->schedule)
        snprintf(text, size, "%s", s->schedule);
    else
        snprintf(text, size, "%s, %s", cli_schedule_settings[s->setting],
                 cli_schedule_assignments[s->assign]);
}

/* Whether `word` is among the names; *out: its index. */
static bool find(const char *const *names, const char *word, int *out)
{
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], word) != 0) continue;
        *out = i;
        return true;
    }
    return false;
}

/* Reads "throughput dag", "wave" or a file into the settings. */
static qp_status read_argument(chat *c, const char *argument, cli_settings *s)
{
    char words[sizeof c->schedule_file], path[sizeof words], *rest = NULL;
    struct stat found;
    snprintf(words, sizeof words, "%s", argument);
    s->schedule = NULL;
    s->memory_fraction = 0;
    if (option_expand_home(words, path, sizeof path) && stat(path, &found) == 0) {
        memcpy(c->schedule_file, path, sizeof path);
        s->schedule = c->schedule_file;
        s->setting = s->assign = 0;
        return QP_OK;
    }
    for (char *word = strtok_r(words, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest))
        if (!find(cli_schedule_settings, word, &s->setting) &&
            !find(cli_schedule_assignments, word, &s->assign))
            return error_set(c->call->error, QP_INVALID,
                             "/schedule: expected latency or throughput, and rr, zz, wave, dag or "
                             "pool, or a file that quipu schedule --save wrote; found '%s'",
                             word);
    return QP_OK;
}

qp_status chat_reschedule(chat *c, const char *argument)
{
    cli_settings chosen = *c->call->settings;
    char before[sizeof c->schedule_before], now[sizeof before];
    describe(&chosen, before, sizeof before);
    if (!*argument) {
        terminal_say("The schedule is: %s.", before);
        return QP_OK;
    }
    TRY(read_argument(c, argument, &chosen));
    const cli_call call = {.settings = &chosen};
    const qp_schedule_options schedule = cli_schedule(&call);
    TRY(qp_engine_reschedule(c->engine, &schedule, c->call->error));
    *c->call->settings = chosen;
    describe(&chosen, now, sizeof now);
    terminal_say("The schedule is now: %s.", now);
    /* Else no answer was made since the last change: the one before it counts. */
    if (c->last.generated_tokens > 1 && c->speed_before <= 0) {
        memcpy(c->schedule_before, before, sizeof before);
        c->speed_before = (double)c->last.generated_tokens / c->last.generate_seconds;
    }
    return QP_OK;
}

void chat_compare_schedules(chat *c)
{
    char now[sizeof c->schedule_before];
    if (c->speed_before <= 0 || c->last.generated_tokens < 2) return;
    const double speed = (double)c->last.generated_tokens / c->last.generate_seconds;
    describe(c->call->settings, now, sizeof now);
    terminal_say("(%s: %.1f tokens/s; before, with %s: %.1f, a factor of %.2f.)", now, speed,
                 c->schedule_before, c->speed_before, speed / c->speed_before);
    c->speed_before = 0;
}
