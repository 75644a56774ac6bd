/* "/set" of quipu chat: settings of the answers that follow. Ollama's words are understood: "/set
 * parameter temperature 0.5", "/set nothink". */
#include "cli/chat.h"

#include "base/option_foreign.h"
#include "base/status.h"
#include "base/suggest.h"
#include "cli/terminal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef qp_status store(chat *c, double value);

static qp_status check_whole(const chat *c, const char *name, double value, double least,
                             double most)
{
    if (value >= least && value <= most && value == floor(value)) return QP_OK;
    return error_set(c->call->error, QP_INVALID,
                     "%s: expected a whole number from %.0f to %.0f, found %.10g", name, least,
                     most, value);
}

static qp_status store_most_tokens(chat *c, double value)
{
    TRY(check_whole(c, "n-predict", value, 0, 1 << 30));
    c->max_tokens = (int64_t)value;
    return QP_OK;
}

/* What a position of the KV cache takes, in bytes, by the plans of two contexts; 0: not known. */
static double position_bytes(const chat *c)
{
    double bytes[2] = {0};
    const cli_settings *s = c->call->settings;
    for (int i = 0; i < 2; i++) {
        char *text;
        cJSON *plan = NULL;
        qp_plan_options options = {.size = sizeof options,
                                   .kv_type = cli_kv_types[s->kv_type],
                                   .tokens = 1,
                                   .context = 64 << i};
        if (cli_model_path(c->call, &options.model) != QP_OK) return 0;
        if (qp_describe_plan(&options, true, &text, NULL) != QP_OK) return 0;
        if (json_parse(text, strlen(text), "the plan", &plan, NULL) == QP_OK)
            bytes[i] = cJSON_GetNumberValue(json_get(json_get(plan, "bytes"), "kv_cache"));
        cJSON_Delete(plan);
        qp_free(text);
    }
    return (bytes[1] - bytes[0]) / 64;
}

/* Opens the engine anew, with another context and the same conversation. */
static qp_status reopen(chat *c, int64_t context, const char *messages)
{
    double value[QP_SETTING_COUNT];
    qp_source source[QP_SETTING_COUNT];
    memcpy(value, c->sampling.value, sizeof value);
    memcpy(source, c->sampling.source, sizeof source);
    qp_chat_close(c->talk);
    cli_sampling_free(&c->sampling); /* its form belongs to the engine's vocabulary */
    qp_engine_close(c->engine);
    c->talk = NULL;
    c->engine = NULL;
    c->call->settings->context = context;
    TRY(chat_open(c));
    for (int i = 0; i < QP_SETTING_COUNT; i++)
        if (source[i] == QP_FROM_REQUEST)
            TRY(qp_sampling_set(&c->sampling, (qp_setting)i, value[i], source[i], c->call->error));
    return qp_chat_add(c->talk, messages, strlen(messages), c->call->error);
}

static qp_status store_context(chat *c, double value)
{
    qp_error *error = c->call->error, reason;
    const int64_t before = c->call->settings->context;
    char *messages;
    TRY(check_whole(c, "context", value, 16, 1 << 26));
    const double bytes = position_bytes(c) * value;
    TRY(qp_chat_messages(c->talk, &messages, error));
    terminal_say("The model is opened anew for %.0f positions, whose KV cache takes %.1f MiB; the "
                 "conversation is read again with the next question.",
                 value, bytes / (1 << 20));
    qp_status status = reopen(c, (int64_t)value, messages);
    reason = *error;
    if (status != QP_OK && reopen(c, before, messages) == QP_OK) *error = reason;
    qp_free(messages);
    return status;
}

/* ---- the table ----------------------------------------------------------------------------- */

static const struct {
    const char *name, *other; /* the option's name, and other programs' names for it */
    const char *help;
    int setting; /* a qp_setting; -1: has a function */
    store *store;
} settings[] = {
    {"temp", "temperature", "temperature; 0 takes the likeliest token", QP_TEMPERATURE, NULL},
    {"top-k", "", "among the K likeliest tokens; 0: all", QP_TOP_K, NULL},
    {"top-p", "", "among the likeliest that hold this probability", QP_TOP_P, NULL},
    {"min-p", "", "at least this share of the greatest probability", QP_MIN_P, NULL},
    {"repetition-penalty", "", "divides the logits of tokens seen", QP_REPETITION_PENALTY, NULL},
    {"presence-penalty", "", "subtracted once from tokens of the answer", QP_PRESENCE_PENALTY,
     NULL},
    {"frequency-penalty", "", "subtracted for each time in the answer", QP_FREQUENCY_PENALTY, NULL},
    {"seed", "", "the same seed gives the same answers", QP_SEED, NULL},
    {"n-predict", "num-predict", "tokens of an answer at most; 0: no limit", -1, store_most_tokens},
    {"context", "num-ctx", "positions of the conversation: opens the model anew", -1,
     store_context},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

/* Words of other programs that set no number. */
static const struct {
    const char *words; /* separated by blanks */
    const char *answer;
} answers[] = {
    {"repeat-penalty", "It is repetition-penalty here, and counts all tokens of the context."},
    {"repeat-last-n", "repetition-penalty counts all tokens of the context."},
    {"num-gpu num-thread",
     "The device and the threads are chosen at the start: quipu chat --device "
     "cpu -t 8."},
    {"stop", "Stop texts are given at the start: quipu chat --stop TEXT."},
    {"format noformat",
     "A form of answers is given at the start: quipu chat --json-schema FILE, or "
     "--grammar FILE."},
    {"history nohistory",
     "What was typed is kept in ~/.local/state/quipu/history, which may be removed."},
};

void chat_complete_settings(const char *typed, completions *out)
{
    for (int i = 0; i < N_SETTINGS; i++)
        chat_offer(out, typed, settings[i].name);
}

static double value_of(const chat *c, int i)
{
    if (settings[i].setting >= 0) return c->sampling.value[settings[i].setting];
    return settings[i].store == store_context ? (double)qp_engine_get_info(c->engine)->context
                                              : (double)c->max_tokens;
}

void chat_list_settings(const chat *c)
{
    for (int i = 0; i < N_SETTINGS; i++) {
        char row[128];
        snprintf(row, sizeof row, "%-8.10g %s", value_of(c, i), settings[i].help);
        terminal_note_row(settings[i].name, row);
    }
}

static qp_status unknown_setting(const chat *c, const char *name)
{
    suggestion near = {.word = name};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (option_has_word(answers[i].words, name, strlen(name)))
            return error_set(c->call->error, QP_INVALID, "%s", answers[i].answer);
    for (int i = 0; i < N_SETTINGS; i++)
        suggest_offer(&near, settings[i].name);
    if (near.best)
        return error_set(c->call->error, QP_INVALID, "There is no setting %s. Did you mean %s?",
                         name, near.best);
    return error_set(c->call->error, QP_INVALID, "There is no setting %s: /set lists them.", name);
}

static int find_setting(const char *name)
{
    int i = 0;
    while (i < N_SETTINGS && strcmp(settings[i].name, name) != 0 &&
           strcmp(settings[i].other, name) != 0)
        i++;
    return i;
}

static qp_status store_number(chat *c, const char *name, const char *text)
{
    char *end;
    const int i = find_setting(name);
    if (i == N_SETTINGS) return unknown_setting(c, name);
    if (!*text) {
        terminal_say("%s is %.10g: %s.", settings[i].name, value_of(c, i), settings[i].help);
        return QP_OK;
    }
    const double value = strtod(text, &end);
    if (end == text || end[strspn(end, " \t")] || !isfinite(value))
        return error_set(c->call->error, QP_INVALID, "/set %s VALUE: expected a number, found '%s'",
                         settings[i].name, text);
    if (settings[i].store)
        TRY(settings[i].store(c, value));
    else
        TRY(qp_sampling_set(&c->sampling, (qp_setting)settings[i].setting, value, QP_FROM_REQUEST,
                            c->call->error));
    terminal_say("%s is %.10g.", settings[i].name, value);
    return QP_OK;
}

/* "/set nothink" and other words without a value; false: it is none of them. */
static bool store_word(const chat *c, const char *name)
{
    cli_settings *s = c->call->settings;
    const bool off = strncmp(name, "no", 2) == 0;
    const char *word = off ? name + 2 : name;
    if (strcmp(word, "think") == 0)
        s->template_kwargs = off ? "{\"enable_thinking\": false}" : "{\"enable_thinking\": true}";
    else if (strcmp(word, "wordwrap") == 0)
        s->plain = off;
    else if (strcmp(name, "verbose") == 0 || strcmp(name, "quiet") == 0)
        s->verbose = *name == 'v';
    else
        return false;
    terminal_say("%s is set.", name);
    return true;
}

qp_status chat_set(chat *c, const char *argument)
{
    char name[32];
    if (strncmp(argument, "parameter ", 10) == 0) argument += 10;
    if (strncmp(argument, "system ", 7) == 0) return chat_set_system(c, argument + 7);
    const size_t length = strcspn(argument, " \t=");
    snprintf(name, sizeof name, "%.*s", (int)length, argument);
    for (char *at = name; *at; at++)
        if (*at == '_') *at = '-';
    const char *text = argument + length + strspn(argument + length, " \t=");
    if (!*name) {
        chat_list_settings(c);
        return QP_OK;
    }
    return store_word(c, name) ? QP_OK : store_number(c, name, text);
}
