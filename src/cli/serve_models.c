/* How `quipu serve --models` hands its command line on to the processes of models. */
#include "cli/cli.h"

#include "base/strbuf.h"
#include "cli/option_groups.h"
#include "router/link.h"

#include <stdlib.h>
#include <string.h>

qp_status cli_ask_for_memory(void *settings, uint64_t bytes, qp_error *error)
{
    int link = (int)((const cli_settings *)settings)->started_by;
    return link_ask(&link, bytes, error);
}

/* The server's own: addresses, what it does before a request is passed on, and its models. */
static bool is_own(const char *name)
{
    static const char *const own[] = {"models",
                                      "models-memory",
                                      "keep-alive",
                                      "load-timeout",
                                      "started-by",
                                      "model",
                                      "hf",
                                      "alias",
                                      "host",
                                      "port",
                                      "api-prefix",
                                      "access-log",
                                      "log-json",
                                      "tls-cert",
                                      "tls-key",
                                      "cors-origin",
                                      "drain",
                                      "drain-delay",
                                      "max-connections",
                                      "max-client-connections"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(own[i], name) == 0) return true;
    return false;
}

static void put(strbuf *words, const char *text)
{
    strbuf_append(words, text, strlen(text) + 1);
}

/* The option as on a command line, word by word. */
static void put_option(const option_spec *o, const void *settings, strbuf *words)
{
    const void *value = (const char *)settings + o->field;
    const option_strings *strings = value;
    char name[80], text[64] = "";
    const bool off = o->type == OPTION_FLAG && !*(const bool *)value;
    snprintf(name, sizeof name, "--%s%s", off ? "no-" : "", o->name);
    if (o->type == OPTION_STRINGS) {
        for (int i = 0; i < strings->count; i++) {
            put(words, name);
            put(words, strings->items[i]);
        }
        return;
    }
    put(words, name);
    switch (o->type) {
    case OPTION_INTEGER:
        snprintf(text, sizeof text, "%lld", (long long)*(const int64_t *)value);
        break;
    case OPTION_NUMBER:
        snprintf(text, sizeof text, "%.17g", *(const double *)value);
        break;
    case OPTION_SIZE:
        snprintf(text, sizeof text, "%llu", (unsigned long long)*(const uint64_t *)value);
        break;
    default:
        break;
    }
    if (o->type == OPTION_STRING) put(words, *(const char *const *)value);
    if (o->type == OPTION_CHOICE) put(words, o->choices[*(const int *)value]);
    if (*text) put(words, text);
}

const char **cli_arguments_for_models(const cli_call *call, strbuf *words, size_t *count)
{
    const option_group *const groups[] = {
        &cli_serve_options,       &cli_access_options,  &cli_limit_options,
        &cli_setting_options,     &cli_context_options, &cli_engine_options,
        &cli_speculation_options, &cli_queue_options,   &cli_cache_options};
    const char *settings = (const char *)call->settings;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        for (const option_spec *o = groups[g]->options; o->name; o++)
            if (!is_own(o->name) &&
                option_source_at(call->options, settings + o->field) == OPTION_FROM_COMMAND_LINE)
                put_option(o, settings, words);
    }
    *count = 0;
    for (size_t i = 0; i < words->length; i++)
        *count += words->data[i] == '\0';
    const char **list = words->failed ? NULL : calloc(*count + 1, sizeof *list);
    size_t at = 0;
    for (size_t i = 0; list && i < *count; i++) {
        list[i] = words->data + at;
        at += strlen(list[i]) + 1;
    }
    return list;
}
