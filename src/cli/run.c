/* quipu run: one prompt, one answer. */
#include "cli/cli.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

typedef struct run_output {
    bool json;
    strbuf text;   /* of the answer, for --json */
    strbuf tokens; /* "1, 2, 3" */
    qp_error *error;
} run_output;

static qp_status on_token(void *context, int32_t token, const char *text, size_t length)
{
    run_output *out = context;
    if (out->json) {
        strbuf_append(&out->text, text, length);
        if (token >= 0) strbuf_printf(&out->tokens, "%s%d", out->tokens.length ? ", " : "", token);
        return QP_OK;
    }
    qp_status status = cli_write(text, length, out->error);
    return status == QP_OK && length ? cli_flush(out->error) : status;
}

/* The conversation that --chat makes of a prompt, rendered; to free(). */
static qp_status render_prompt(const cli_call *call, const qp_vocabulary *vocabulary,
                               const char *prompt, size_t length, char **out)
{
    strbuf json = {0};
    const char *system = call->settings->system;
    strbuf_puts(&json, "[");
    if (system) {
        strbuf_puts(&json, "{\"role\": \"system\", \"content\": ");
        cli_json_string(&json, system, strlen(system));
        strbuf_puts(&json, "}, ");
    }
    strbuf_puts(&json, "{\"role\": \"user\", \"content\": ");
    cli_json_string(&json, prompt, length);
    strbuf_puts(&json, "}]");
    qp_status status =
        json.failed ? error_no_memory(call->error, "the conversation", length)
                    : qp_render_chat(vocabulary, json.data, json.length, true, out, call->error);
    strbuf_free(&json);
    return status;
}

static qp_status choose_mode(const cli_call *call, const qp_vocabulary *vocabulary, bool *chat)
{
    const cli_settings *s = call->settings;
    if (s->raw && s->chat)
        return error_set(call->error, QP_INVALID, "--raw and --chat exclude each other");
    if (s->raw && s->system)
        return error_set(call->error, QP_INVALID,
                         "--system belongs to a conversation and --raw is none");
    *chat = s->chat || s->system || (!s->raw && vocabulary && qp_chat_template(vocabulary));
    return QP_OK;
}

/* The prompt's tokens; of a model without a vocabulary, the prompt is a list of ids. */
static qp_status tokenize_prompt(const cli_call *call, const qp_vocabulary *vocabulary,
                                 qp_tokens *tokens)
{
    char *text = NULL, *rendered = NULL;
    size_t length;
    bool chat = false;
    qp_status status = choose_mode(call, vocabulary, &chat);
    if (status == QP_OK) status = cli_read_prompt(call, &text, &length);
    if (status == QP_OK && !vocabulary)
        status =
            cli_parse_ids(text, "the prompt (the model has no vocabulary)", tokens, call->error);
    else if (status == QP_OK && chat)
        status = render_prompt(call, vocabulary, text, length, &rendered);
    if (status == QP_OK && rendered)
        status = qp_tokenize(vocabulary, rendered, strlen(rendered), QP_BOS_NEVER | QP_SPECIAL,
                             tokens, call->error);
    else if (status == QP_OK && vocabulary)
        status = qp_tokenize(vocabulary, text, length, QP_BOS_DEFAULT, tokens, call->error);
    if (status == QP_OK && call->settings->echo && !call->settings->json)
        status = cli_write(text, length, call->error);
    free(text);
    free(rendered);
    return status;
}

static qp_status print_json(const run_output *out, const qp_tokens *prompt,
                            const qp_generate_result *r, qp_error *error)
{
    strbuf text = {0};
    strbuf_puts(&text, "{\"text\": ");
    cli_json_string(&text, strbuf_text(&out->text), out->text.length);
    strbuf_printf(&text, ", \"tokens\": [%s], \"prompt_tokens\": [", strbuf_text(&out->tokens));
    for (size_t i = 0; i < prompt->count; i++)
        strbuf_printf(&text, "%s%d", i ? ", " : "", prompt->data[i]);
    strbuf_printf(&text,
                  "], \"finish_reason\": \"%s\", \"prompt_seconds\": %.6f, "
                  "\"generate_seconds\": %.6f}\n",
                  qp_finish_name(r->finish), r->prompt_seconds, r->generate_seconds);
    qp_status status = text.failed || out->text.failed || out->tokens.failed
                           ? error_no_memory(error, "the answer", text.length)
                           : cli_write(text.data, text.length, error);
    strbuf_free(&text);
    return status;
}

static qp_status answer(const cli_call *call, qp_engine *engine, qp_session *session,
                        const qp_tokens *prompt)
{
    run_output out = {.json = call->settings->json, .error = call->error};
    qp_sampling sampling = {0};
    qp_generate_result result;
    qp_status status = cli_sampling(call, engine, &sampling);
    if (status == QP_OK && call->settings->verbose) cli_report_sampling(&sampling);
    qp_generate_options options = {.prompt = prompt->data,
                                   .n_prompt = prompt->count,
                                   .sampling = &sampling,
                                   .max_tokens = call->settings->n_predict,
                                   .eos_interval = call->settings->eos_interval,
                                   .special = call->settings->special,
                                   .cancel = &cli_interrupted,
                                   .on_token = on_token,
                                   .context = &out};
    cli_catch_interrupt();
    if (status == QP_OK) status = qp_generate(session, &options, &result, call->error);
    cli_release_interrupt();
    if (status == QP_OK && out.json) status = print_json(&out, prompt, &result, call->error);
    if (status == QP_OK && !out.json) status = cli_write("\n", 1, call->error);
    if (status == QP_OK) status = cli_flush(call->error);
    if (status == QP_OK) cli_report_statistics(engine, &result);
    if (status == QP_OK && result.finish == QP_FINISH_CANCELLED)
        status = error_set(call->error, QP_CANCELLED, "interrupted");
    cli_sampling_free(&sampling);
    strbuf_free(&out.text);
    strbuf_free(&out.tokens);
    return status;
}

qp_status command_run(const cli_call *call)
{
    qp_engine *engine = NULL;
    qp_session *session = NULL;
    qp_tokens prompt = {0};
    qp_status status = cli_open_engine(call, 1, &engine);
    if (status == QP_OK) status = qp_session_open(engine, &session, call->error);
    if (status == QP_OK) status = tokenize_prompt(call, qp_engine_vocabulary(engine), &prompt);
    if (status == QP_OK) status = answer(call, engine, session, &prompt);
    qp_tokens_free(&prompt);
    qp_session_close(session);
    qp_engine_close(engine);
    return status;
}
