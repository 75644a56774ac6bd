/* Sampling settings of a call: the model's, overridden by the command line's. */
#include "cli/cli.h"

#include "base/status.h"
#include "engine/sampling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CLI_FORM_MOST = 1 << 20 };

/* The value that an option has for a setting, and the option's field. */
static double given_setting(const cli_settings *s, qp_setting setting, const void **field)
{
    switch (setting) {
    case QP_TEMPERATURE:
        return *field = &s->temperature, s->temperature;
    case QP_TOP_K:
        return *field = &s->top_k, (double)s->top_k;
    case QP_TOP_P:
        return *field = &s->top_p, s->top_p;
    case QP_MIN_P:
        return *field = &s->min_p, s->min_p;
    case QP_REPETITION_PENALTY:
        return *field = &s->repetition_penalty, s->repetition_penalty;
    case QP_PRESENCE_PENALTY:
        return *field = &s->presence_penalty, s->presence_penalty;
    case QP_FREQUENCY_PENALTY:
        return *field = &s->frequency_penalty, s->frequency_penalty;
    case QP_SEED:
        return *field = &s->seed, (double)s->seed;
    default:
        return *field = &s->drawing[setting], s->drawing[setting];
    }
}

/* Copies one setting when the command line or the environment gave it. */
static qp_status overlay(const cli_call *call, qp_sampling *out, qp_setting setting,
                         const void *field, double value)
{
    if (option_source_at(call->options, field) == OPTION_FROM_DEFAULT) return QP_OK;
    return qp_sampling_set(out, setting, value, QP_FROM_PROGRAM, call->error);
}

static qp_status parse_bias(const char *text, qp_logit_bias *out, qp_error *error)
{
    char *end;
    long token = strtol(text, &end, 10);
    if (end != text && *end == ':' && token >= 0 && token <= INT32_MAX) {
        char *number = end + 1;
        errno = 0;
        float bias = strtof(number, &end);
        if (end != number && !*end && bias < INFINITY && (isfinite(bias) || errno != ERANGE)) {
            *out = (qp_logit_bias){(int32_t)token, bias};
            return QP_OK;
        }
    }
    return error_set(
        error, QP_INVALID,
        "--logit-bias must be a token id, a colon and a finite number, such as 15043:-2.5, "
        "or -inf, which excludes the token; "
        "found \"%s\"",
        text);
}

static qp_status read_biases(const cli_call *call, qp_sampling *out)
{
    const option_strings *given = &call->settings->logit_biases;
    if (given->count == 0) return QP_OK;
    qp_logit_bias *biases = calloc((size_t)given->count, sizeof *biases);
    if (!biases) return error_no_memory(call->error, "logit biases", (size_t)given->count);
    out->logit_bias = biases;
    out->n_logit_bias = (size_t)given->count;
    for (int i = 0; i < given->count; i++) {
        qp_status status = parse_bias(given->items[i], &biases[i], call->error);
        if (status != QP_OK) return status;
    }
    return QP_OK;
}

/* The form of answers: a file, or the text itself, which `mark` tells apart. */
static qp_status read_form(const cli_call *call, qp_engine *engine, const char *option,
                           qp_grammar_kind kind, const char *given, const char *mark,
                           qp_grammar **out)
{
    char *text = NULL;
    size_t length = strlen(given);
    const bool itself = strstr(given, mark);
    const char *path = strcmp(given, "-") == 0 ? NULL : given;
    if (!itself) TRY(cli_read_file(path, CLI_FORM_MOST, &text, &length, call->error));
    qp_status status = qp_grammar_open(qp_engine_vocabulary(engine), kind, itself ? given : text,
                                       length, out, call->error);
    free(text);
    return status == QP_OK ? QP_OK : error_prefix(call->error, "--%s", option);
}

bool cli_form_is_input(const cli_settings *s)
{
    return (s->json_schema && strcmp(s->json_schema, "-") == 0) ||
           (s->grammar && strcmp(s->grammar, "-") == 0);
}

static qp_status read_forms(const cli_call *call, qp_engine *engine, qp_sampling *out)
{
    const cli_settings *s = call->settings;
    if (s->json_schema)
        return read_form(call, engine, "json-schema", QP_GRAMMAR_JSON_SCHEMA, s->json_schema, "{",
                         &out->grammar);
    if (s->grammar)
        return read_form(call, engine, "grammar", QP_GRAMMAR_GBNF, s->grammar,
                         "::=", &out->grammar);
    return QP_OK;
}

qp_status cli_sampling(const cli_call *call, qp_engine *engine, qp_sampling *out)
{
    const cli_settings *s = call->settings;
    *out = (qp_sampling){.size = sizeof *out};
    TRY(qp_sampling_defaults(engine, out, call->error));
    for (int i = 0; i < QP_SETTING_COUNT; i++) {
        const void *field;
        const double value = given_setting(s, (qp_setting)i, &field);
        TRY(overlay(call, out, (qp_setting)i, field, value));
    }
    out->stops = s->stops.items;
    out->n_stops = (size_t)s->stops.count;
    if (s->ignore_eos) {
        out->n_stop_tokens = 0;
        out->stop_tokens_source = QP_FROM_PROGRAM;
    }
    TRY(read_forms(call, engine, out));
    return read_biases(call, out);
}

qp_status cli_sampling_likely(const cli_call *call, qp_engine *engine, qp_sampling *out)
{
    TRY(cli_sampling(call, engine, out));
    sampling_exclude_unlikely(engine, out);
    return QP_OK;
}

void cli_sampling_free(qp_sampling *sampling)
{
    free((void *)sampling->logit_bias);
    sampling->logit_bias = NULL;
    qp_grammar_close(sampling->grammar);
    sampling->grammar = NULL;
}

/* Where a value comes from, for people; `field`: the option that can give it. */
static const char *name_source(const cli_call *call, qp_source source, const void *field)
{
    static const char *const names[] = {"default", "generation_config.json", NULL, "request"};
    if (source != QP_FROM_PROGRAM) return names[source];
    return option_source_at(call->options, field) == OPTION_FROM_ENVIRONMENT ? "environment"
                                                                             : "command line";
}

void cli_report_sampling(const cli_call *call, const qp_sampling *sampling)
{
    const void *fields[QP_SETTING_COUNT];
    for (int s = 0; s < QP_SETTING_COUNT; s++) {
        given_setting(call->settings, (qp_setting)s, &fields[s]);
        fprintf(stderr, "quipu: %s = %.10g (%s)\n", qp_setting_name((qp_setting)s),
                sampling->value[s], name_source(call, sampling->source[s], fields[s]));
    }
    fprintf(stderr, "quipu: stop tokens =");
    for (size_t i = 0; i < sampling->n_stop_tokens; i++)
        fprintf(stderr, " %d", sampling->stop_tokens[i]);
    const qp_source source = sampling->stop_tokens_source;
    fprintf(stderr, " (%s)\n",
            source == QP_FROM_MODEL ? "the model"
                                    : name_source(call, source, &call->settings->ignore_eos));
}
