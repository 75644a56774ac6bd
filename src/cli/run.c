/* quipu run: one prompt, one answer or several. */
#include "cli/cli.h"

#include "base/json.h"
#include "base/status.h"
#include "cli/answer_view.h"
#include "cli/dump.h"
#include "text/json_string.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct run_output {
    bool keep;   /* the answer until it has ended; else it is written to stdout as it is made */
    bool ids;    /* the answer is token ids: the model has no vocabulary */
    size_t made; /* tokens so far */
    bool begun;  /* the prompt was printed on the answer's line: nothing is drawn */
    answer_view view;
    strbuf text;   /* kept */
    strbuf tokens; /* "1, 2, 3" */
    qp_error *error;
} run_output;

static qp_status on_token(void *context, int32_t token, const char *text, size_t length)
{
    run_output *out = context;
    char id[16];
    if (out->ids && token >= 0) {
        length = (size_t)snprintf(id, sizeof id, "%s%d", out->made++ ? "," : "", token);
        text = id;
    }
    if (out->keep) {
        strbuf_append(&out->text, text, length);
        if (token >= 0) strbuf_printf(&out->tokens, "%s%d", out->tokens.length ? ", " : "", token);
        return QP_OK;
    }
    if (length == 0) return QP_OK;
    if (!out->begun) return answer_view_write(&out->view, text, length, out->error);
    TRY(cli_write(text, length, out->error));
    return cli_flush(out->error);
}

/* At a terminal thoughts are apart. */
static qp_status on_text(void *context, const qp_text_piece *piece)
{
    run_output *out = context;
    return answer_view_put(&out->view, piece, out->error);
}

/* Appends the template's variables of --chat-template-kwargs, as members of an object. */
static qp_status put_variables(const cli_call *call, strbuf *json)
{
    cJSON *variables;
    const char *given = call->settings->template_kwargs;
    if (!given) return QP_OK;
    TRY(json_parse_exact(given, strlen(given), "--chat-template-kwargs", &variables, call->error));
    char *text = cJSON_IsObject(variables) ? json_print(variables) : NULL;
    cJSON_Delete(variables);
    if (!text)
        return error_set(call->error, QP_INVALID,
                         "--chat-template-kwargs: expected an object of JSON, such as "
                         "{\"enable_thinking\": false}");
    const size_t length = strlen(text);
    if (length > 2) strbuf_append(json, text + 1, length - 2);
    if (length > 2) strbuf_puts(json, ", ");
    cJSON_free(text);
    return QP_OK;
}

/* The conversation that --chat makes of a prompt, as tokens. */
static qp_status tokenize_chat(const cli_call *call, const qp_vocabulary *vocabulary,
                               const char *prompt, size_t length, qp_tokens *tokens)
{
    strbuf json = {0};
    unsigned flags = call->settings->parse_special ? QP_SPECIAL : 0;
    const char *system = call->settings->system;
    strbuf_puts(&json, "{");
    const qp_status put = put_variables(call, &json);
    strbuf_puts(&json, "\"messages\": [");
    if (system) {
        strbuf_puts(&json, "{\"role\": \"system\", \"content\": ");
        json_put_string(&json, system, strlen(system));
        strbuf_puts(&json, "}, ");
    }
    strbuf_puts(&json, "{\"role\": \"user\", \"content\": ");
    json_put_string(&json, prompt, length);
    strbuf_puts(&json, "}]}");
    qp_status status = put != QP_OK  ? put
                       : json.failed ? error_no_memory(call->error, "the conversation", length)
                                     : qp_tokenize_chat(vocabulary, json.data, json.length, true,
                                                        flags, tokens, call->error);
    strbuf_free(&json);
    return status;
}

/* Whether the prompt is sent as a message of a conversation. */
static bool wants_chat(const cli_settings *s, const qp_vocabulary *vocabulary)
{
    return vocabulary && (s->chat || s->system || (!s->raw && qp_chat_template(vocabulary)));
}

/* Whether standard input may hold text: it is a pipe, a socket or a file. */
static bool has_standard_input(void)
{
    struct stat found;
    return fstat(STDIN_FILENO, &found) == 0 &&
           (S_ISFIFO(found.st_mode) || S_ISSOCK(found.st_mode) || S_ISREG(found.st_mode));
}

/* Tells a person that quipu waits for standard input, because a writer may neither write nor close
 * it. */
static void explain_wait(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&input, 1, 2000) == 0)
        fputs("quipu: reading standard input, which goes before the prompt; "
              "without it, add </dev/null\n",
              stderr);
}

/* `echo TEXT | quipu run -p QUESTION`: the text of standard input goes before the prompt, on lines
 * of its own. */
static qp_status join_standard_input(const cli_call *call, char **prompt, size_t *length)
{
    char *input;
    size_t size;
    strbuf joined = {0};
    explain_wait();
    TRY(cli_read_file(NULL, CLI_TEXT_MOST, &input, &size, call->error));
    if (size) {
        strbuf_append(&joined, input, size);
        if (input[size - 1] != '\n') strbuf_putc(&joined, '\n');
    }
    strbuf_append(&joined, *prompt, *length);
    free(input);
    free(*prompt);
    *length = joined.length;
    *prompt = strbuf_take(&joined);
    return *prompt ? QP_OK : error_no_memory(call->error, "the prompt", size);
}

/* `quipu run MODEL why is the sky blue`: the words after the model are the prompt. */
static qp_status take_words(const cli_call *call)
{
    static strbuf text; /* the settings point to it */
    const option_result *given = call->options;
    if (given->n_positional == 0) return QP_OK;
    if (call->settings->prompt || call->settings->file)
        return error_set(call->error, QP_INVALID,
                         "unexpected '%.100s': the prompt is given by %s already",
                         given->positional[0], call->settings->prompt ? "-p" : "-f");
    for (int i = 0; i < given->n_positional; i++)
        strbuf_printf(&text, "%s%s", i ? " " : "", given->positional[i]);
    if (text.failed) return error_no_memory(call->error, "the prompt", text.length);
    call->settings->prompt = strbuf_text(&text);
    return QP_OK;
}

/* Whether a person at a terminal gave a model and no prompt: for a conversation. */
static bool wants_conversation(const cli_call *call)
{
    const cli_settings *s = call->settings;
    return option_source_at(call->options, &s->model) == OPTION_FROM_COMMAND_LINE && !s->prompt &&
           !s->file && !s->raw && !s->json && !s->echo && s->parallel == 1 &&
           isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

static qp_status read_prompt(const cli_call *call, char **text, size_t *length)
{
    const cli_settings *s = call->settings;
    const bool taken = cli_form_is_input(s);
    if (taken && !s->prompt && !s->file)
        return error_set(call->error, QP_INVALID,
                         "the form of the answer is read from standard input; give the prompt with "
                         "-p or -f");
    TRY(cli_read_prompt(call, text, length));
    if (!s->prompt && *length == 0)
        return error_set(call->error, QP_INVALID,
                         "the prompt is empty: %s has no text; give a prompt with -p TEXT",
                         s->file ? s->file : "standard input");
    return s->prompt && !taken && has_standard_input() ? join_standard_input(call, text, length)
                                                       : QP_OK;
}

static qp_status tokenize_prompt(const cli_call *call, const qp_vocabulary *vocabulary,
                                 qp_tokens *tokens)
{
    char *text = NULL;
    size_t length;
    const unsigned special = call->settings->parse_special ? QP_SPECIAL : 0;
    qp_status status = read_prompt(call, &text, &length);
    if (status == QP_OK && wants_chat(call->settings, vocabulary))
        status = tokenize_chat(call, vocabulary, text, length, tokens);
    else if (status == QP_OK)
        status = cli_tokenize(call, vocabulary, text, length, QP_BOS_DEFAULT | special, tokens);
    if (status == QP_OK && call->settings->echo && !call->settings->json)
        status = cli_write(text, length, call->error);
    free(text);
    return status;
}

/* The settings that determine the answer: with the same model they reproduce it. */
static void put_settings(const qp_generate_options *options, strbuf *text)
{
    const qp_sampling *sampling = options->sampling;
    strbuf_puts(text, ", \"settings\": {");
    for (int i = 0; i < QP_SETTING_COUNT; i++)
        strbuf_printf(text, "\"%s\": %.17g, ", qp_setting_name((qp_setting)i), sampling->value[i]);
    strbuf_printf(text, "\"max_tokens\": %lld, \"stop\": [", (long long)options->max_tokens);
    for (size_t i = 0; i < sampling->n_stops; i++) {
        if (i) strbuf_puts(text, ", ");
        json_put_string(text, sampling->stops[i], strlen(sampling->stops[i]));
    }
    strbuf_puts(text, "], \"stop_tokens\": [");
    for (size_t i = 0; i < sampling->n_stop_tokens; i++)
        strbuf_printf(text, "%s%d", i ? ", " : "", sampling->stop_tokens[i]);
    strbuf_puts(text, "], \"logit_bias\": {");
    for (size_t i = 0; i < sampling->n_logit_bias; i++)
        strbuf_printf(text, "%s\"%d\": %.9g", i ? ", " : "", sampling->logit_bias[i].token,
                      (double)sampling->logit_bias[i].bias);
    strbuf_puts(text, "}}");
}

static void put_json(const cli_call *call, const qp_engine *engine, const run_output *out,
                     const qp_generate_options *options, const qp_generate_result *r, strbuf *text)
{
    const qp_engine_info info = *qp_engine_get_info(engine);
    const char *model = "";
    if (cli_model_path(call, &model) != QP_OK) model = "";
    strbuf_puts(text, "{\"model\": ");
    json_put_string(text, model, strlen(model));
    strbuf_puts(text, ", \"device\": ");
    json_put_string(text, info.device, strlen(info.device));
    strbuf_puts(text, ", \"text\": ");
    json_put_string(text, strbuf_text(&out->text), out->text.length);
    strbuf_printf(text, ", \"tokens\": [%s], \"prompt_tokens\": [", strbuf_text(&out->tokens));
    for (size_t i = 0; i < options->n_prompt; i++)
        strbuf_printf(text, "%s%d", i ? ", " : "", options->prompt[i]);
    strbuf_printf(text,
                  "], \"finish_reason\": \"%s\", \"prompt_seconds\": %.6f, "
                  "\"generate_seconds\": %.6f, \"generate_passes\": %llu, "
                  "\"proposed_tokens\": %zu, \"accepted_tokens\": %zu",
                  qp_finish_name(r->finish), r->prompt_seconds, r->generate_seconds,
                  (unsigned long long)r->generate_passes, r->proposed_tokens, r->accepted_tokens);
    put_settings(options, text);
    strbuf_puts(text, "}");
    text->failed |= out->text.failed || out->tokens.failed;
}

/* Writes the text that was built, and frees it. */
static qp_status print_text(strbuf *text, qp_error *error)
{
    qp_status status = text->failed ? error_no_memory(error, "the answer", text->length)
                                    : cli_write(strbuf_text(text), text->length, error);
    strbuf_free(text);
    return status;
}

/* The options of qp_generate() for a call. */
static qp_generate_options options_of(const cli_call *call, const qp_tokens *prompt,
                                      const qp_sampling *sampling, run_output *out)
{
    return (qp_generate_options){.size = sizeof(qp_generate_options),
                                 .prompt = prompt->data,
                                 .n_prompt = prompt->count,
                                 .sampling = sampling,
                                 .max_tokens = call->settings->n_predict,
                                 .eos_interval = call->settings->eos_interval,
                                 .special = call->settings->special,
                                 .cancel = &cli_interrupted,
                                 .on_token = on_token,
                                 .on_text = out->view.drawn ? on_text : NULL,
                                 .context = out};
}

static qp_status check_finish(const qp_generate_result *r, qp_error *error)
{
    if (r->finish != QP_FINISH_CANCELLED) return QP_OK;
    return error_set(error, QP_CANCELLED, "interrupted");
}

static qp_status answer_once(const cli_call *call, qp_engine *engine, const qp_tokens *prompt,
                             const qp_sampling *sampling)
{
    run_output out = {.keep = call->settings->json,
                      .ids = !qp_engine_vocabulary(engine),
                      .begun = call->settings->echo,
                      .error = call->error};
    if (!out.keep && !out.ids && !out.begun) answer_view_begin(&out.view, call->settings);
    const qp_generate_options options = options_of(call, prompt, sampling, &out);
    qp_generate_result result = {.size = sizeof result};
    qp_session *session = NULL;
    strbuf text = {0};
    qp_status status = qp_session_open(engine, &session, call->error);
    if (status == QP_OK) status = qp_generate(session, &options, &result, call->error);
    if (status == QP_OK && !out.keep && !out.begun) {
        status = answer_view_end(&out.view, call->error);
    } else if (status == QP_OK) {
        if (out.keep) put_json(call, engine, &out, &options, &result, &text);
        strbuf_puts(&text, "\n");
        status = print_text(&text, call->error);
    }
    if (status == QP_OK) status = cli_flush(call->error);
    if (status == QP_OK) cli_report_statistics(engine, &result);
    if (status == QP_OK) status = check_finish(&result, call->error);
    qp_session_close(session);
    strbuf_free(&out.text);
    strbuf_free(&out.tokens);
    answer_view_free(&out.view);
    return status;
}

/* ---- several answers ----------------------------------------------------------------------- */

/* One of the answers, with a seed of its own. */
typedef struct run_answer {
    qp_sampling sampling;
    qp_generate_options options;
    qp_generate_result result;
    run_output out;
} run_answer;

static qp_status print_answers(const cli_call *call, const qp_engine *engine,
                               const run_answer *answers, int64_t n)
{
    const bool json = call->settings->json;
    strbuf text = {0};
    if (call->settings->echo && !json) strbuf_puts(&text, "\n");
    for (int64_t i = 0; i < n; i++) {
        const run_answer *a = &answers[i];
        if (json) {
            strbuf_puts(&text, i ? ",\n " : "[");
            put_json(call, engine, &a->out, &a->options, &a->result, &text);
            continue;
        }
        strbuf_printf(&text, "%s--- %lld\n", i ? "\n" : "", (long long)i + 1);
        strbuf_append(&text, strbuf_text(&a->out.text), a->out.text.length);
        strbuf_puts(&text, "\n");
    }
    if (json) strbuf_puts(&text, "]\n");
    TRY(print_text(&text, call->error));
    return cli_flush(call->error);
}

/* Statistics of all answers: the prompts were read together, and the answers took the time of the
 * longest.
 */
static void report_answers(const run_answer *answers, int64_t n)
{
    size_t tokens = 0;
    double seconds = 1e-9, prompt_seconds = 1e-9;
    size_t prompts = 0; /* tokens that were read */
    for (int64_t i = 0; i < n; i++) {
        const qp_generate_result *r = &answers[i].result;
        tokens += r->generated_tokens;
        prompts += r->prompt_tokens - r->shared_tokens;
        if (r->generate_seconds > seconds) seconds = r->generate_seconds;
        if (r->prompt_seconds > prompt_seconds) prompt_seconds = r->prompt_seconds;
    }
    fprintf(stderr,
            "%lld answers: prompt %zu tokens, %.1f tokens/s; generated %zu tokens, %.1f tokens/s\n",
            (long long)n, prompts, (double)prompts / prompt_seconds, tokens,
            (double)tokens / seconds);
}

static qp_status make_answers(const cli_call *call, qp_engine *engine, const qp_tokens *prompt,
                              const qp_sampling *sampling, run_answer *answers, qp_answer *asked)
{
    const int64_t n = call->settings->parallel;
    for (int64_t i = 0; i < n; i++) {
        run_answer *a = &answers[i];
        a->sampling = *sampling;
        a->result.size = sizeof a->result;
        a->sampling.value[QP_SEED] += (double)i;
        a->out =
            (run_output){.keep = true, .ids = !qp_engine_vocabulary(engine), .error = call->error};
        a->options = options_of(call, prompt, &a->sampling, &a->out);
        asked[i] = (qp_answer){.options = &a->options, .result = &a->result};
        TRY(qp_session_open(engine, &asked[i].session, call->error));
    }
    TRY(qp_generate_together(asked, (size_t)n, call->error));
    TRY(print_answers(call, engine, answers, n));
    report_answers(answers, n);
    for (int64_t i = 0; i < n; i++)
        TRY(check_finish(&answers[i].result, call->error));
    return QP_OK;
}

static qp_status answer_together(const cli_call *call, qp_engine *engine, const qp_tokens *prompt,
                                 const qp_sampling *sampling)
{
    const size_t n = (size_t)call->settings->parallel;
    run_answer *answers = calloc(n, sizeof *answers);
    qp_answer *asked = calloc(n, sizeof *asked);
    qp_status status = answers && asked
                           ? make_answers(call, engine, prompt, sampling, answers, asked)
                           : error_no_memory(call->error, "the answers", n * sizeof *answers);
    for (size_t i = 0; answers && asked && i < n; i++) {
        qp_session_close(asked[i].session);
        strbuf_free(&answers[i].out.text);
        strbuf_free(&answers[i].out.tokens);
    }
    free(answers);
    free(asked);
    return status;
}

static qp_status answer(const cli_call *call, qp_engine *engine, const qp_tokens *prompt)
{
    qp_sampling sampling = {.size = sizeof sampling};
    qp_status status = cli_sampling_likely(call, engine, &sampling);
    if (status == QP_OK && call->settings->verbose) cli_report_sampling(call, &sampling);
    cli_catch_interrupt();
    if (status == QP_OK)
        status = (call->settings->parallel > 1 ? answer_together : answer_once)(call, engine,
                                                                                prompt, &sampling);
    cli_release_interrupt();
    cli_sampling_free(&sampling);
    return status;
}

static qp_status run(const cli_call *call)
{
    qp_engine *engine = NULL;
    qp_tokens prompt = {0};
    qp_status status = cli_open_engine_at_once(call, call->settings->parallel, &engine);
    if (status == QP_OK) status = tokenize_prompt(call, qp_engine_vocabulary(engine), &prompt);
    if (status == QP_OK) status = answer(call, engine, &prompt);
    qp_tokens_free(&prompt);
    qp_engine_close(engine);
    return status;
}

/* With --dump the tensors are kept, also those of an answer that was interrupted. */
static qp_status run_with_dump(const cli_call *call)
{
    dump kept = {0};
    cli_call with = *call;
    with.dump = &kept;
    TRY(dump_open(&kept, call->error));
    qp_status status = run(&with);
    if (status == QP_OK || (status == QP_CANCELLED && kept.count > 0)) {
        const qp_status written = dump_write(&kept, call->settings->out);
        if (status == QP_OK) status = written;
    }
    dump_close(&kept);
    return status;
}

qp_status command_run(const cli_call *call)
{
    const cli_settings *s = call->settings;
    TRY(take_words(call));
    if (!s->dump != !s->out)
        return error_set(
            call->error, QP_INVALID,
            "--dump NAMES says which tensors are kept, and --out FILE where: give both");
    if (s->dump) return run_with_dump(call);
    return wants_conversation(call) ? command_chat(call) : run(call);
}
