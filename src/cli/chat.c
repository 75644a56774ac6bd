/* quipu chat: a conversation at the terminal, or line by line from a pipe.
 *
 * The conversation is kept as messages. For every answer it is rendered and tokenised whole, and
 * what the session already holds of it stays; so nothing that the model sees is ever cut or stale.
 */
#include "cli/chat_input.h"
#include "cli/cli.h"
#include "cli/conversation.h"

#include "base/option_cache.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

typedef struct chat {
    const cli_call *call;
    qp_engine *engine;
    qp_session *session;
    chat_input *input;
    qp_sampling sampling;
    conversation conversation;
    strbuf answer; /* the one being made */
    qp_generate_result last;
    size_t total_prompt, total_generated;
    int answers;
} chat;

static qp_status on_token(void *context, int32_t token, const char *text, size_t length)
{
    (void)token;
    chat *c = context;
    strbuf_append(&c->answer, text, length);
    qp_status status = cli_write(text, length, c->call->error);
    return status == QP_OK ? cli_flush(c->call->error) : status;
}

/* The conversation as the model's tokens. */
static qp_status render(chat *c, qp_tokens *tokens)
{
    const qp_vocabulary *vocabulary = qp_engine_vocabulary(c->engine);
    char *json = conversation_json(&c->conversation), *text = NULL;
    if (!json) return error_no_memory(c->call->error, "the conversation", 0);
    qp_status status = qp_render_chat(vocabulary, json, strlen(json), true, &text, c->call->error);
    if (status == QP_OK)
        status = qp_tokenize(vocabulary, text, strlen(text), QP_BOS_NEVER | QP_SPECIAL, tokens,
                             c->call->error);
    free(json);
    free(text);
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
        "  /reset       begin anew\n"
        "  /save FILE   keep the conversation, and /load it with a larger --context",
        needed, (long long)qp_engine_get_info(c->engine).context);
}

static qp_status generate(chat *c, const qp_tokens *tokens)
{
    size_t shared = shared_tokens(c->session, tokens);
    qp_session_truncate(c->session, shared);
    qp_generate_options options = {.prompt = tokens->data + shared,
                                   .n_prompt = tokens->count - shared,
                                   .sampling = &c->sampling,
                                   .max_tokens = c->call->settings->n_predict,
                                   .eos_interval = c->call->settings->eos_interval,
                                   .cancel = &cli_interrupted,
                                   .on_token = on_token,
                                   .context = c};
    strbuf_clear(&c->answer);
    /* At a terminal interrupts are caught all the time, and count from when a line was read. */
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
    if (c->last.finish == QP_FINISH_CANCELLED) fputs("(Stopped.)\n", stderr);
    if (c->last.finish == QP_FINISH_CONTEXT)
        fputs("(The context is full: the answer ends here. /drop or /reset makes room.)\n", stderr);
    if (c->last.finish == QP_FINISH_LENGTH)
        fprintf(stderr, "(Stopped after %lld tokens, as --n-predict says.)\n",
                (long long)c->call->settings->n_predict);
    return QP_OK;
}

/* Answers the question that the conversation ends with. */
static qp_status reply(chat *c)
{
    qp_tokens tokens = {0};
    qp_status status = render(c, &tokens);
    if (status == QP_OK && tokens.count >= (size_t)qp_engine_get_info(c->engine).context)
        status = full_context(c, tokens.count);
    if (status == QP_OK) status = generate(c, &tokens);
    qp_tokens_free(&tokens);
    return status;
}

/* Asks, answers, and keeps both; a question without an answer is not kept. */
static qp_status say(chat *c, const char *text)
{
    qp_error *error = c->call->error;
    TRY(conversation_add(&c->conversation, "user", text, strlen(text), error));
    qp_status status = reply(c);
    bool stopped = status == QP_OK && c->last.finish == QP_FINISH_CANCELLED;
    bool keep = status == QP_OK && !(stopped && c->answer.length == 0);
    if (keep)
        status = conversation_add(&c->conversation, "assistant", strbuf_text(&c->answer),
                                  c->answer.length, error);
    if (!keep || status != QP_OK) conversation_pop(&c->conversation);
    if (keep && c->call->settings->verbose) cli_report_statistics(c->engine, &c->last);
    if (stopped && !chat_input_is_terminal(c->input))
        return error_set(error, QP_CANCELLED, "interrupted");
    return status;
}

/* --- Commands: what begins with a slash. --- */

typedef qp_status chat_command(chat *c, const char *argument);

static qp_status do_help(chat *c, const char *argument);

static qp_status do_reset(chat *c, const char *argument)
{
    (void)argument;
    conversation_reset(&c->conversation);
    fputs("The conversation begins anew.\n", stderr);
    return QP_OK;
}

static qp_status do_drop(chat *c, const char *argument)
{
    (void)argument;
    bool dropped = conversation_drop_oldest(&c->conversation);
    fputs(dropped ? "The oldest question and its answer are forgotten.\n"
                  : "There is nothing to forget.\n",
          stderr);
    return QP_OK;
}

static qp_status do_system(chat *c, const char *argument)
{
    TRY(conversation_set_system(&c->conversation, argument, c->call->error));
    fputs(*argument ? "The system message is set.\n" : "The system message is removed.\n", stderr);
    return QP_OK;
}

static qp_status do_stats(chat *c, const char *argument)
{
    (void)argument;
    size_t held;
    qp_session_tokens(c->session, &held);
    fprintf(stderr, "%d answers, %zu prompt tokens, %zu generated tokens; context %zu of %lld\n",
            c->answers, c->total_prompt, c->total_generated, held,
            (long long)qp_engine_get_info(c->engine).context);
    if (c->answers) cli_report_statistics(c->engine, &c->last);
    return QP_OK;
}

/* The file that a command names. */
static qp_status name_file(const chat *c, const char *command, const char *argument, char *path,
                           size_t size)
{
    if (!*argument)
        return error_set(c->call->error, QP_INVALID, "%s needs the name of a file", command);
    if (option_expand_home(argument, path, size)) return QP_OK;
    return error_set(c->call->error, QP_INVALID, "%s: the path is too long", argument);
}

static qp_status do_save(chat *c, const char *argument)
{
    char path[4096];
    TRY(name_file(c, "/save", argument, path, sizeof path));
    TRY(conversation_save(&c->conversation, path, c->call->error));
    fprintf(stderr, "%d messages saved to %s\n", conversation_length(&c->conversation), path);
    return QP_OK;
}

static qp_status do_load(chat *c, const char *argument)
{
    char path[4096];
    TRY(name_file(c, "/load", argument, path, sizeof path));
    TRY(conversation_load(&c->conversation, path, c->call->error));
    fprintf(stderr, "%d messages loaded from %s\n", conversation_length(&c->conversation), path);
    return QP_OK;
}

static const struct {
    const char *name, *argument, *help;
    chat_command *run; /* NULL: quit */
} commands[] = {
    {"/help", "", "this list", do_help},
    {"/reset", "", "begin the conversation anew", do_reset},
    {"/drop", "", "forget the oldest question and its answer", do_drop},
    {"/system", "TEXT", "set the system message; without TEXT, remove it", do_system},
    {"/stats", "", "tokens and speed", do_stats},
    {"/save", "FILE", "write the conversation as JSON", do_save},
    {"/load", "FILE", "read a conversation", do_load},
    {"/quit", "", "end; so does Ctrl-D", NULL},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static qp_status do_help(chat *c, const char *argument)
{
    (void)c, (void)argument;
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(stderr, "  %-8s %-5s %s\n", commands[i].name, commands[i].argument,
                commands[i].help);
    fputs("Ctrl-C stops an answer. A line that ends in \\ goes on in the next.\n", stderr);
    return QP_OK;
}

/* Runs a command line; *quit when it was /quit. */
static qp_status run_command(chat *c, const char *line, bool *quit)
{
    size_t length = strcspn(line, " \t");
    const char *argument = line + length + strspn(line + length, " \t");
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strlen(commands[i].name) != length || memcmp(commands[i].name, line, length) != 0)
            continue;
        *quit = !commands[i].run;
        return *quit ? QP_OK : commands[i].run(c, argument);
    }
    return error_set(c->call->error, QP_INVALID, "%.*s is not a command; /help lists them",
                     (int)length, line);
}

/* What could not be done is told, and the conversation goes on, except where nobody reads it. From
 * a pipe, nobody may have seen what was told, so the process's status says it again. */
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
        qp_status status = command ? run_command(c, line, &quit) : *line ? say(c, line) : QP_OK;
        free(line);
        if (status == QP_CANCELLED || (status == QP_IO && !command)) return status;
        if (status != QP_OK) fprintf(stderr, "%s\n", error->message);
        if (first_failure == QP_OK) first_failure = status;
    }
    if (first_failure == QP_OK || chat_input_is_terminal(c->input)) return QP_OK;
    return error_set(error, first_failure, "not everything could be done: see above");
}

static void greet(const chat *c)
{
    const char *model = NULL;
    if (cli_model_path(c->call, &model) != QP_OK) return;
    const char *slash = strrchr(model, '/');
    fprintf(stderr, "%s, context %lld. Type a message, or /help.\n",
            slash && slash[1] ? slash + 1 : model,
            (long long)qp_engine_get_info(c->engine).context);
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
    TRY(cli_sampling(call, c->engine, &c->sampling));
    if (call->settings->verbose) cli_report_sampling(&c->sampling);
    TRY(conversation_init(&c->conversation, call->error));
    const char *system = call->settings->system;
    return system ? conversation_set_system(&c->conversation, system, call->error) : QP_OK;
}

qp_status command_chat(const cli_call *call)
{
    chat c = {.call = call};
    qp_status status = open_chat(&c);
    if (status == QP_OK) status = chat_input_open(&c.input, call->error);
    if (status == QP_OK) {
        if (chat_input_is_terminal(c.input)) greet(&c);
        status = converse(&c);
    }
    chat_input_close(c.input);
    conversation_free(&c.conversation);
    strbuf_free(&c.answer);
    cli_sampling_free(&c.sampling);
    qp_session_close(c.session);
    qp_engine_close(c.engine);
    return status;
}
