/* quipu chat: a conversation at the terminal, or line by line from a pipe. Its messages and what
 * the model has read of them are a qp_chat; its commands are in chat_commands.c. */
#include "cli/chat.h"

#include "base/files.h"
#include "base/status.h"
#include "cli/terminal.h"

#include <stdlib.h>
#include <string.h>

static qp_status on_text(void *context, const qp_text_piece *piece)
{
    chat *c = context;
    return answer_view_put(&c->view, piece, c->call->error);
}

/* The settings of the next answer. */
static qp_chat_options options_of(const chat *c)
{
    const cli_settings *s = c->call->settings;
    return (qp_chat_options){.size = sizeof(qp_chat_options),
                             .sampling = &c->sampling,
                             .max_tokens = c->max_tokens,
                             .variables = s->template_kwargs,
                             .cancel = &cli_interrupted,
                             .on_text = on_text,
                             .context = (void *)c,
                             .flags = s->parse_special ? QP_SPECIAL : 0,
                             .eos_interval = s->eos_interval};
}

static void report(chat *c)
{
    c->total_prompt += c->last.prompt_tokens;
    c->total_generated += c->last.generated_tokens;
    c->answers++;
    if (c->last.finish == QP_FINISH_CANCELLED) terminal_say("(Stopped.)");
    if (c->last.finish == QP_FINISH_CONTEXT)
        terminal_say("(The context is full: the answer ends here. /drop or /reset makes room.)");
    if (c->last.finish == QP_FINISH_LENGTH)
        terminal_say("(Stopped after %lld token%s, the most that n-predict allows.)",
                     (long long)c->max_tokens, c->max_tokens == 1 ? "" : "s");
    if (c->last.finish != QP_FINISH_CANCELLED) chat_compare_schedules(c);
    if (c->call->settings->verbose) cli_report_statistics(c->engine, &c->last);
}

/* Adds to the engine's sentence what a person can do. */
static qp_status full_context(const chat *c)
{
    char sentence[256];
    qp_error *error = c->call->error;
    snprintf(sentence, sizeof sentence, "%.*s", (int)strcspn(error->message, ":"), error->message);
    return error_set(
        error, QP_INVALID,
        "With this question %s. Nothing was cut; the question was not asked. You can:\n"
        "  /drop            forget the oldest question and its answer\n"
        "  /reset           start a new conversation\n"
        "  /set context N   make room",
        sentence);
}

/* Makes the answer to the messages, or to `question`, and shows it. */
static qp_status answer(chat *c, const char *question)
{
    qp_error *error = c->call->error;
    const qp_chat_options options = options_of(c);
    /* At a terminal, interrupts are caught during the whole conversation; they count from the
     * moment a line was read. */
    const bool terminal = chat_input_is_terminal(c->input);
    TRY(qp_chat_set(c->talk, &options, error));
    answer_view_begin(&c->view, c->call->settings);
    c->last.finish = QP_FINISH_STOP_TOKEN;
    if (!terminal) cli_catch_interrupt();
    qp_status status = question ? qp_chat_ask(c->talk, question, &c->last, error)
                                : qp_chat_answer(c->talk, &c->last, error);
    if (!terminal) cli_release_interrupt();
    if (status == QP_INVALID && c->last.finish == QP_FINISH_CONTEXT) return full_context(c);
    if (status != QP_OK) {
        if (!answer_view_is_empty(&c->view)) answer_view_end(&c->view, NULL); /* resets the style */
        return status;
    }
    TRY(answer_view_end(&c->view, error));
    report(c);
    return QP_OK;
}

/* Whether the answer was stopped before it said something. */
static bool is_empty(const chat *c)
{
    return c->last.finish == QP_FINISH_CANCELLED && answer_view_is_empty(&c->view);
}

/* An interrupt ends a conversation that is read from a pipe. */
static qp_status check_interrupt(const chat *c)
{
    if (c->last.finish != QP_FINISH_CANCELLED || chat_input_is_terminal(c->input)) return QP_OK;
    return error_set(c->call->error, QP_CANCELLED, "interrupted");
}

qp_status chat_say(chat *c, const char *text)
{
    c->again = 0;
    TRY(answer(c, text));
    if (is_empty(c)) TRY(qp_chat_drop(c->talk, 2, c->call->error));
    return check_interrupt(c);
}

/* Makes another answer, with another seed. */
static qp_status answer_again(chat *c)
{
    const double seed = c->sampling.value[QP_SEED];
    c->sampling.value[QP_SEED] = seed + (double)++c->again;
    const qp_status status = answer(c, NULL);
    c->sampling.value[QP_SEED] = seed;
    return status;
}

qp_status chat_regenerate(chat *c)
{
    cJSON *messages;
    qp_error *error = c->call->error;
    TRY(chat_messages(c, &messages));
    const cJSON *last = messages->child ? messages->child->prev : NULL;
    const bool answered = strcmp(chat_message_text(last, "role"), "assistant") == 0;
    char *before = answered ? json_print(last) : NULL;
    cJSON_Delete(messages);
    if (!answered)
        return error_set(error, QP_INVALID, "There is no answer yet that another could replace");
    if (!before) return error_no_memory(error, "the last answer", 0);
    qp_status status = QP_OK;
    if (c->sampling.value[QP_TEMPERATURE] == 0)
        status = error_set(error, QP_INVALID,
                           "At temperature 0 the answer would be the same; /set temp 0.8 first");
    else {
        status = qp_chat_drop(c->talk, 1, error);
        if (status == QP_OK) status = answer_again(c);
        const bool empty = status == QP_OK && is_empty(c);
        if (empty) qp_chat_drop(c->talk, 1, NULL);
        if (empty || status != QP_OK) qp_chat_add(c->talk, before, strlen(before), NULL);
    }
    cJSON_free(before);
    return status == QP_OK ? check_interrupt(c) : status;
}

/* A failed command or question prints a message, and the conversation goes on; a failed write to
 * standard output ends it. From a pipe messages are easily missed, so the exit status also reports
 * the failure. */
static qp_status converse(chat *c)
{
    qp_status first_failure = QP_OK;
    qp_error *error = c->call->error;
    for (bool quit = false; !quit;) {
        char *line;
        *error = (qp_error){0};
        TRY(chat_input_read(c->input, &line, error));
        if (!line) break;
        bool command = *line == '/';
        qp_status status = command ? chat_run_command(c, line, &quit)
                           : *line ? chat_say(c, line)
                                   : QP_OK;
        free(line);
        if (status == QP_CANCELLED || (status == QP_IO && !command)) return status;
        if (status != QP_OK) terminal_note(0, error->message);
        if (first_failure == QP_OK) first_failure = status;
    }
    if (first_failure == QP_OK || chat_input_is_terminal(c->input)) return QP_OK;
    return error_set(error, first_failure, "some commands or questions failed: see above");
}

static void greet(const chat *c)
{
    const char *model = NULL;
    if (cli_model_path(c->call, &model) != QP_OK) return;
    terminal_say("%s, context %lld. Type a message, or /help.", files_last(model),
                 (long long)qp_engine_get_info(c->engine)->context);
}

qp_status chat_open(chat *c)
{
    const cli_call *call = c->call;
    TRY(cli_open_engine(call, 1, &c->engine));
    const qp_vocabulary *vocabulary = qp_engine_vocabulary(c->engine);
    if (!vocabulary || !qp_chat_template(vocabulary))
        return error_set(call->error, QP_UNSUPPORTED,
                         "the model has no chat template; `quipu run --raw` continues plain text "
                         "with it");
    if (!c->sampling.size) {
        TRY(cli_sampling_likely(call, c->engine, &c->sampling));
        if (call->settings->verbose) cli_report_sampling(call, &c->sampling);
    }
    const qp_chat_options options = options_of(c);
    return qp_chat_open(c->engine, &options, &c->talk, call->error);
}

static qp_status begin(chat *c)
{
    const char *system = c->call->settings->system;
    TRY(chat_open(c));
    if (system) TRY(chat_set_system(c, system));
    TRY(chat_input_open(chat_complete, &c->input, c->call->error));
    if (chat_input_is_terminal(c->input)) greet(c);
    return converse(c);
}

qp_status command_chat(const cli_call *call)
{
    chat c = {.call = call, .max_tokens = call->settings->n_predict, .last.size = sizeof c.last};
    const qp_status status = begin(&c);
    chat_input_close(c.input);
    answer_view_free(&c.view);
    cli_sampling_free(&c.sampling);
    qp_chat_close(c.talk);
    qp_engine_close(c.engine);
    return status;
}
