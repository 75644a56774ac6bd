/* quipu chat: a conversation at the terminal, or line by line from a pipe. Its commands are in
 * chat_commands.c.
 *
 * The conversation is kept as messages. For every answer the whole of it is rendered and tokenised
 * again; the session keeps the cache of the tokens that have not changed. So the model never sees a
 * cut or outdated conversation.
 */
#include "cli/chat.h"

#include "base/option_cache.h"
#include "base/status.h"
#include "cli/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static qp_status on_token(void *context, int32_t token, const char *text, size_t length)
{
    (void)token;
    chat *c = context;
    strbuf_append(&c->answer, text, length);
    qp_status status = terminal_show_text(&c->wrap, text, length, c->call->error);
    return status == QP_OK ? cli_flush(c->call->error) : status;
}

/* The conversation as the model's tokens. */
static qp_status render(chat *c, qp_tokens *tokens)
{
    char *json = conversation_json(&c->conversation);
    if (!json) return error_no_memory(c->call->error, "the conversation", 0);
    unsigned flags = c->call->settings->parse_special ? QP_SPECIAL : 0;
    qp_status status = qp_tokenize_chat(qp_engine_vocabulary(c->engine), json, strlen(json), true,
                                        flags, tokens, c->call->error);
    free(json);
    return status;
}

/* How many tokens the session and the conversation share from the start; at least one token is
 * left to evaluate, for its logits. */
static size_t shared_tokens(const qp_session *session, const qp_tokens *tokens)
{
    size_t count, shared = 0;
    const int32_t *held = qp_session_tokens(session, &count);
    while (shared < count && shared + 1 < tokens->count && held[shared] == tokens->data[shared])
        shared++;
    return shared;
}

static qp_status full_context(const chat *c, size_t needed)
{
    return error_set(
        c->call->error, QP_INVALID,
        "With this question the conversation takes %zu tokens, but the context has room for %lld. "
        "Nothing was cut; the question was not asked. You can:\n"
        "  /drop        forget the oldest question and its answer\n"
        "  /reset       start a new conversation\n"
        "  /save FILE   keep the conversation, and /load it with a larger --context",
        needed, (long long)qp_engine_get_info(c->engine)->context);
}

static qp_status generate(chat *c, const qp_tokens *tokens)
{
    size_t shared = shared_tokens(c->session, tokens);
    TRY(qp_session_truncate(c->session, shared, c->call->error));
    qp_generate_options options = {.size = sizeof options,
                                   .prompt = tokens->data + shared,
                                   .n_prompt = tokens->count - shared,
                                   .sampling = &c->sampling,
                                   .max_tokens = c->max_tokens,
                                   .eos_interval = c->call->settings->eos_interval,
                                   .cancel = &cli_interrupted,
                                   .on_token = on_token,
                                   .context = c};
    strbuf_clear(&c->answer);
    word_wrap_free(&c->wrap);
    c->wrap = (word_wrap){0};
    /* At a terminal, interrupts are caught during the whole conversation; they count from the
     * moment a line was read. */
    bool terminal = chat_input_is_terminal(c->input);
    if (!terminal) cli_catch_interrupt();
    qp_status status = qp_generate(c->session, &options, &c->last, c->call->error);
    if (!terminal) cli_release_interrupt();
    TRY(status);
    TRY(cli_write("\n", 1, c->call->error));
    TRY(cli_flush(c->call->error));
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
    return QP_OK;
}

/* Answers the question that the conversation ends with. */
static qp_status reply(chat *c)
{
    qp_tokens tokens = {0};
    qp_status status = render(c, &tokens);
    if (status == QP_OK && tokens.count >= (size_t)qp_engine_get_info(c->engine)->context)
        status = full_context(c, tokens.count);
    if (status == QP_OK) status = generate(c, &tokens);
    qp_tokens_free(&tokens);
    return status;
}

/* Answers the question that the conversation ends with, and adds the answer; *kept: whether there
 * was an answer to add. */
static qp_status answer_question(chat *c, bool *kept)
{
    qp_error *error = c->call->error;
    qp_status status = reply(c);
    bool stopped = status == QP_OK && c->last.finish == QP_FINISH_CANCELLED;
    *kept = status == QP_OK && !(stopped && c->answer.length == 0);
    if (*kept)
        status = conversation_add(&c->conversation, "assistant", strbuf_text(&c->answer),
                                  c->answer.length, error);
    if (*kept && c->call->settings->verbose) cli_report_statistics(c->engine, &c->last);
    *kept = *kept && status == QP_OK;
    if (stopped && !chat_input_is_terminal(c->input))
        return error_set(error, QP_CANCELLED, "interrupted");
    return status;
}

/* Asks, answers, and keeps both; a question without an answer is removed. */
static qp_status say(chat *c, const char *text)
{
    bool kept;
    c->again = 0;
    TRY(conversation_add(&c->conversation, "user", text, strlen(text), c->call->error));
    qp_status status = answer_question(c, &kept);
    if (!kept) conversation_pop(&c->conversation);
    return status;
}

/* Answers the question with another seed, so that the answer differs. */
static qp_status answer_again(chat *c, bool *kept)
{
    const double seed = c->sampling.value[QP_SEED];
    if (c->sampling.value[QP_TEMPERATURE] == 0)
        return error_set(c->call->error, QP_INVALID,
                         "At temperature 0 the answer would be the same; /set temp 0.8 first");
    c->sampling.value[QP_SEED] = seed + (double)++c->again;
    qp_status status = answer_question(c, kept);
    c->sampling.value[QP_SEED] = seed;
    return status;
}

qp_status chat_regenerate(chat *c)
{
    bool kept = false;
    cJSON *before = conversation_take_answer(&c->conversation);
    if (!before)
        return error_set(c->call->error, QP_INVALID,
                         "There is no answer yet that another could "
                         "replace");
    qp_status status = answer_again(c, &kept);
    if (kept)
        cJSON_Delete(before);
    else
        conversation_give_back(&c->conversation, before);
    return status;
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
                           : *line ? say(c, line)
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
    const char *slash = strrchr(model, '/');
    terminal_say("%s, context %lld. Type a message, or /help.",
                 slash && slash[1] ? slash + 1 : model,
                 (long long)qp_engine_get_info(c->engine)->context);
}

static qp_status open_chat(chat *c)
{
    const cli_call *call = c->call;
    TRY(cli_open_engine(call, 1, &c->engine));
    const qp_vocabulary *vocabulary = qp_engine_vocabulary(c->engine);
    if (!vocabulary || !qp_chat_template(vocabulary))
        return error_set(call->error, QP_UNSUPPORTED,
                         "the model has no chat template; `quipu run --raw` continues plain text "
                         "with it");
    TRY(qp_session_open(c->engine, &c->session, call->error));
    TRY(cli_sampling_likely(call, c->engine, &c->sampling));
    if (call->settings->verbose) cli_report_sampling(call, &c->sampling);
    TRY(conversation_init(&c->conversation, call->error));
    const char *system = call->settings->system;
    return system ? conversation_set_system(&c->conversation, system, call->error) : QP_OK;
}

qp_status command_chat(const cli_call *call)
{
    chat c = {.call = call, .max_tokens = call->settings->n_predict, .last.size = sizeof c.last};
    qp_status status = open_chat(&c);
    if (status == QP_OK) status = chat_input_open(chat_complete, &c.input, call->error);
    if (status == QP_OK) {
        if (chat_input_is_terminal(c.input)) greet(&c);
        status = converse(&c);
    }
    chat_input_close(c.input);
    conversation_free(&c.conversation);
    strbuf_free(&c.answer);
    word_wrap_free(&c.wrap);
    cli_sampling_free(&c.sampling);
    qp_session_close(c.session);
    qp_engine_close(c.engine);
    return status;
}
