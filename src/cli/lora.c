/* --lora, --lora-modules and their kin: the adapters that a command's settings name. */
#include "cli/cli.h"

#include "base/files.h"
#include "base/status.h"
#include "file/mapping.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Reads SCALE of FILE:SCALE, which is cut off there. A path that exists has none. */
static qp_status cut_scale(const cli_call *call, char *path, double *scale)
{
    char *colon = strrchr(path, ':'), *end;
    *scale = 1;
    if (!colon || file_exists(path) || strchr(colon, '/')) return QP_OK;
    *scale = strtod(colon + 1, &end);
    if (end == colon + 1 || *end || !isfinite(*scale) || *scale == 0)
        return error_set(call->error, QP_INVALID,
                         "--lora: the scale must be a finite number other than 0, found '%.200s'; "
                         "an adapter that adds nothing is left out",
                         colon + 1);
    *colon = '\0';
    return QP_OK;
}

/* Copies of texts, which the process keeps. */
typedef struct kept_text {
    struct kept_text *next;
    char text[];
} kept_text;

static char *keep_text(const char *text)
{
    static kept_text *all;
    kept_text *one = malloc(sizeof *one + strlen(text) + 1);
    if (!one) return NULL;
    strcpy(one->text, text);
    one->next = all;
    all = one;
    return one->text;
}

/* NAME=PATH[:SCALE], or without NAME. The parts are in memory that the process keeps. */
static qp_status read_adapter(const cli_call *call, const char *text, bool waits, cli_adapter *out)
{
    char *path = keep_text(text), *equals = path ? strchr(path, '=') : NULL;
    if (!path) return error_no_memory(call->error, "an adapter's name", strlen(text));
    out->name = NULL;
    if (equals && !file_exists(path) && !memchr(path, '/', (size_t)(equals - path))) {
        *equals = '\0';
        out->name = path;
        path = equals + 1;
    }
    if (waits && (!out->name || !*out->name))
        return error_set(call->error, QP_INVALID,
                         "--lora-modules: expected NAME=PATH, by which requests choose the "
                         "adapter, found '%.200s'",
                         text);
    out->adapter = (qp_adapter){.path = path, .waits = waits};
    TRY(cut_scale(call, path, &out->adapter.scale));
    if (!out->name) out->name = files_last(path);
    return QP_OK;
}

qp_status cli_read_adapters(const cli_call *call, cli_adapters *out)
{
    const cli_settings *s = call->settings;
    const option_strings *all[] = {&s->lora, &s->lora_modules};
    *out = (cli_adapters){0};
    for (int list = 0; list < 2; list++)
        for (int i = 0; i < all[list]->count; i++) {
            if (out->n == CLI_ADAPTERS)
                return error_set(call->error, QP_INVALID,
                                 "at most %d adapters can be given, found more", CLI_ADAPTERS);
            cli_adapter one = {0};
            TRY(read_adapter(call, all[list]->items[i], list == 1 || s->lora_waits, &one));
            out->of[out->n] = one.adapter;
            out->names[out->n++] = one.name;
        }
    return QP_OK;
}
