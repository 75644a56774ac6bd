/* quipu load: the command around src/load. */
#include "cli/cli.h"

#include "base/status.h"
#include "cli/option_groups.h"
#include "load/load.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_MOST = 4096 };

/* What is read from files for a run. */
typedef struct load_files {
    char *text, *replay, *key, *costs;
} load_files;

static qp_status read_files(const cli_call *call, load_options *o, load_files *files)
{
    const cli_settings *s = call->settings;
    size_t length;
    if (s->text) {
        TRY(cli_read_file(s->text, CLI_TEXT_MOST, &files->text, &o->text_length, call->error));
        if (utf8_valid_run(files->text, o->text_length) != o->text_length)
            return error_set(call->error, QP_FORMAT, "%s: the text is not UTF-8", s->text);
        o->text = files->text;
    }
    if (s->replay) {
        TRY(cli_read_file(s->replay, CLI_TEXT_MOST, &files->replay, &o->replay_length,
                          call->error));
        o->replay = files->replay;
    }
    if (s->costs) {
        TRY(cli_read_file(s->costs, CLI_TEXT_MOST, &files->costs, &o->costs_length, call->error));
        o->costs = files->costs;
    }
    if (s->api_key_file) {
        TRY(cli_read_file(s->api_key_file, KEY_MOST, &files->key, &length, call->error));
        files->key[strcspn(files->key, "\r\n")] = '\0';
        if (!*files->key)
            return error_set(call->error, QP_FORMAT, "%s: the first line holds no key",
                             s->api_key_file);
        o->api_key = files->key;
    }
    return QP_OK;
}

/* Refuses options of a simulation without --simulate. */
static qp_status check_simulation(const cli_call *call)
{
    const char *settings = (const char *)call->settings;
    for (const option_spec *o = cli_simulation_options.options; o->name; o++)
        if (!call->settings->costs &&
            option_source_at(call->options, settings + o->field) == OPTION_FROM_COMMAND_LINE)
            return error_set(call->error, QP_INVALID, "--%s needs --simulate COSTS", o->name);
    return QP_OK;
}

/* The settings that stand for each other: a run has streams, and an end. */
static void complete(load_options *o)
{
    bool arrivals = o->rate > 0 || o->replay;
    if (!o->streams && !arrivals) o->streams = 1;
    if (!o->requests && !(o->seconds > 0) && !o->replay)
        o->requests = 10 * (o->streams ? o->streams : 1);
}

static qp_status options_of(const cli_call *call, load_options *o, load_files *files)
{
    const cli_settings *s = call->settings;
    /* QUIPU_MODEL names a file for the other commands. */
    bool named = option_source_at(call->options, &s->served) == OPTION_FROM_COMMAND_LINE;
    *o = (load_options){.url = s->url,
                        .model = named ? s->served : NULL,
                        .chat = s->chat,
                        .streams = s->streams,
                        .rate = s->rate,
                        .requests = s->requests,
                        .seconds = s->duration,
                        .warmup = s->warmup,
                        .input_tokens = s->input_tokens,
                        .output_tokens = s->output_tokens,
                        .shared_prefix = s->shared_prefix,
                        .prefix_groups = s->prefix_groups,
                        .words = s->words,
                        .vocab_size = s->vocab_size,
                        .temperature = s->temperature,
                        .ignore_eos = s->ignore_eos,
                        .seed = (uint64_t)s->seed,
                        .speed = s->speed,
                        .scale = s->scale,
                        .context = s->context,
                        .skip = s->skip,
                        .sample = s->sample,
                        .servers = s->servers,
                        .copies = s->copies,
                        .router = (load_router)s->router,
                        .parallel = s->parallel,
                        .chunk = s->chunk,
                        .kv_positions = s->kv_positions,
                        .timeout = s->silence,
                        .cancel = &cli_interrupted,
                        .progress = cli_progress()};
    TRY(check_simulation(call));
    if (s->limits) TRY(load_parse_limits(s->limits, &o->limits, call->error));
    TRY(read_files(call, o, files));
    complete(o);
    return QP_OK;
}

static qp_status print(const cli_call *call, const load_options *o, const load_result *result)
{
    strbuf out = {0};
    qp_status status = call->settings->json ? load_print_json(o, result, &out, call->error)
                                            : load_print(o, result, &out, call->error);
    if (status == QP_OK) status = cli_write(strbuf_text(&out), out.length, call->error);
    strbuf_free(&out);
    return status;
}

/* What was answered before an interrupt or a failure is printed too; as JSON also that nothing was
 * answered before an interrupt, because a program reads it. */
static qp_status run(const cli_call *call, const load_options *o)
{
    load_result result;
    cli_catch_interrupt();
    qp_status status = load_run(o, &result, call->error);
    cli_release_interrupt();
    size_t failed = result.n_records - result.counts[LOAD_DONE];
    const bool interrupted = status == QP_CANCELLED && call->settings->json;
    if (status == QP_OK || result.counts[LOAD_DONE] || interrupted) {
        qp_status printed = print(call, o, &result);
        if (status == QP_OK) status = printed;
    }
    if (status == QP_OK && failed)
        status = error_set(call->error, QP_IO, "%zu of %zu requests failed; the first: %s", failed,
                           result.n_records, result.first_failure.message);
    load_result_free(&result);
    return status;
}

qp_status command_load(const cli_call *call)
{
    load_options options;
    load_files files = {0};
    qp_status status = options_of(call, &options, &files);
    if (status == QP_OK) status = run(call, &options);
    free(files.text);
    free(files.replay);
    free(files.key);
    free(files.costs);
    return status;
}
