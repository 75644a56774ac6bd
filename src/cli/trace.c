/* quipu trace: what every worker did while a model answered. */
#include "cli/cli.h"

#include "base/status.h"
#include "inspect/steps_print.h"

#include <stdlib.h>
#include <string.h>

/* Writes the trace in one format to a file, and says so, or to standard output where the path is
 * NULL or "-". */
static qp_status write_form(const cli_call *call, const qp_trace *trace, qp_trace_form form,
                            const char *path)
{
    char *text = NULL;
    size_t length = 0;
    TRY(qp_trace_print(trace, form, &text, &length, call->error));
    const bool file = path && strcmp(path, "-") != 0;
    qp_status status = file ? cli_write_file(path, text, length, call->error)
                            : cli_write(text, length, call->error);
    if (status == QP_OK && file)
        fprintf(stderr, "%s written (%.1f MB)%s\n", path, (double)length * 1e-6,
                form == QP_TRACE_HTML     ? ": a page for a browser"
                : form == QP_TRACE_CHROME ? ": ui.perfetto.dev opens it"
                                          : "");
    free(text);
    return status;
}

static qp_status write_forms(const cli_call *call, const qp_trace *trace)
{
    const cli_settings *s = call->settings;
    if (s->out) TRY(write_form(call, trace, QP_TRACE_CHROME, s->out));
    if (s->html) TRY(write_form(call, trace, QP_TRACE_HTML, s->html));
    if (s->svg) TRY(write_form(call, trace, QP_TRACE_SVG, s->svg));
    if (s->table || (!s->out && !s->html && !s->svg))
        TRY(write_form(call, trace, QP_TRACE_TABLE, NULL));
    return QP_OK;
}

/* Takes the likeliest tokens and ignores the end of the answer, so that the trace has the requested
 * length. */
static qp_status generate(const cli_call *call, qp_session *session, const qp_tokens *tokens,
                          const qp_sampling *sampling, int64_t count)
{
    /* The text is not shown, so a GPU may make as many tokens at a time as it can. */
    int64_t interval = count < QP_MAX_EOS_INTERVAL ? count : QP_MAX_EOS_INTERVAL;
    const qp_generate_options options = {.size = sizeof options,
                                         .prompt = tokens->data,
                                         .n_prompt = tokens->count,
                                         .sampling = sampling,
                                         .max_tokens = count,
                                         .eos_interval = interval,
                                         .cancel = &cli_interrupted};
    qp_generate_result result = {.size = sizeof result};
    TRY(qp_generate(session, &options, &result, call->error));
    if (result.finish == QP_FINISH_CANCELLED)
        return error_set(call->error, QP_CANCELLED, "interrupted");
    if (result.finish == QP_FINISH_CONTEXT)
        return error_set(call->error, QP_INVALID,
                         "the context is full after %zu tokens; give a larger one with -c, or less "
                         "to generate with -n",
                         result.generated_tokens);
    return QP_OK;
}

static qp_status trace_answer(const cli_call *call, qp_engine *engine, const qp_tokens *tokens)
{
    const cli_settings *s = call->settings;
    size_t chunk = (size_t)qp_engine_get_info(engine)->chunk;
    size_t passes = (tokens->count + chunk - 1) / chunk;
    qp_session *session = NULL;
    qp_trace *trace = NULL;
    qp_sampling sampling = {.size = sizeof sampling};
    TRY(qp_sampling_defaults(engine, &sampling, call->error));
    sampling.n_stop_tokens = 0;
    TRY(qp_sampling_set(&sampling, QP_TEMPERATURE, 0, QP_FROM_REQUEST, call->error));
    TRY(qp_session_open(engine, &session, call->error));
    /* A warm-up pass: it reads the weights from the file and starts the threads. */
    qp_status status = generate(call, session, tokens, &sampling, 2);
    if (status == QP_OK) status = qp_session_truncate(session, 0, call->error);
    const qp_engine_info info = *qp_engine_get_info(engine);
    const char *device = strcmp(info.device, "cpu") == 0 ? "cpu" : "cuda";
    const qp_trace_options options = {.size = sizeof options,
                                      .max_passes = passes + (size_t)s->n_predict - 1,
                                      .prompt_passes = passes,
                                      .parts = s->parts,
                                      .tracks = (int)s->tracks,
                                      .costs = cli_costs_path(device, info.workers)};
    if (status == QP_OK) status = qp_trace_open(engine, &options, &trace, call->error);
    if (status == QP_OK) status = generate(call, session, tokens, &sampling, s->n_predict);
    if (status == QP_OK) status = write_forms(call, trace);
    qp_trace_close(trace);
    qp_session_close(session);
    return status;
}

/* The threads' schedule, or for a plan that has none the operators, unless a GPU is asked for by
 * name. */
static void choose_exec(cli_settings *s)
{
    const bool padded = strcmp(cli_plan_forms[s->plan_form], "padded") == 0;
    if (strcmp(cli_execs[s->exec], "auto") != 0 || strcmp(cli_devices[s->device], "cuda") == 0)
        return;
    s->exec = cli_exec_index(padded ? "operators" : "threads");
}

/* Refuses options that would have no effect. */
static qp_status check_together(const cli_call *call)
{
    const cli_settings *s = call->settings;
    const char *exec = cli_execs[s->exec];
    const bool cuts = strcmp(exec, "serial") == 0 || strcmp(exec, "operators") == 0;
    if (cuts || option_source_at(call->options, &s->tracks) != OPTION_FROM_COMMAND_LINE)
        return QP_OK;
    return error_set(call->error, QP_INVALID,
                     "--tracks cuts what --exec serial and --exec operators run, and has no effect "
                     "on %s",
                     exec);
}

static qp_status describe(const cli_call *call)
{
    const cli_settings *s = call->settings;
    plan_print_options options = {.context = s->context,
                                  .sequences = 1,
                                  .ranks = 1,
                                  .page_size = s->page_size,
                                  .kv_type = cli_kv_types[s->kv_type],
                                  .form = (plan_form)s->plan_form,
                                  .fuse = s->fuse};
    strbuf text = {0};
    TRY(cli_model_path(call, &options.model));
    qp_status status = steps_print(&options, &text, call->error);
    if (status == QP_OK) status = cli_write(strbuf_text(&text), text.length, call->error);
    strbuf_free(&text);
    return status;
}

/* A config.json alone gets weights that are made up. */
static qp_status take_config(const cli_call *call)
{
    static char name[4200];
    const char *path, *dot;
    TRY(cli_model_path(call, &path));
    dot = strrchr(path, '.');
    if (!dot || strcmp(dot, ".json") != 0 || strncmp(path, "synthetic:", 10) == 0) return QP_OK;
    snprintf(name, sizeof name, "synthetic:%s%s", strchr(path, '/') ? "" : "./", path);
    call->settings->model = name;
    call->settings->hub = NULL;
    fprintf(stderr, "quipu: %s has no weights: they are made up, as by -m %s\n", path, name);
    return QP_OK;
}

qp_status command_trace(const cli_call *call)
{
    qp_engine *engine = NULL;
    qp_tokens tokens = {0};
    choose_exec(call->settings);
    if (call->settings->describe) return describe(call);
    TRY(check_together(call));
    TRY(take_config(call));
    qp_status status = cli_open_engine(call, 1, &engine);
    if (status == QP_OK) status = cli_read_tokens(call, qp_engine_vocabulary(engine), &tokens);
    cli_catch_interrupt();
    if (status == QP_OK) status = trace_answer(call, engine, &tokens);
    cli_release_interrupt();
    qp_tokens_free(&tokens);
    qp_engine_close(engine);
    return status;
}
