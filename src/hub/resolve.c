/* Names of models: see resolve.h. */
#include "hub/resolve.h"

#include "base/names.h"
#include "base/option_hub.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char prefix[] = "hf:";

qp_status hub_of_environment(hub *out, qp_error *error)
{
    static _Thread_local option_hub settings; /* pulls run on threads of their own */
    if (!option_hub_read(&settings))
        return error_set(error, QP_INVALID,
                         "without HOME, HF_HOME or HF_HUB_CACHE there is no folder for models");
    *out = (hub){.endpoint = settings.endpoint,
                 .cache = settings.cache,
                 .token = *settings.token ? settings.token : NULL,
                 .offline = settings.offline};
    return QP_OK;
}

static bool is_prefixed(const char *text)
{
    return strncmp(text, prefix, sizeof prefix - 1) == 0;
}

qp_status hub_parse_name(const char *text, hub_reference *out, qp_error *error)
{
    return hub_parse(is_prefixed(text) ? text + sizeof prefix - 1 : text, out, error);
}

/* What is neither a file nor a short name, but perhaps meant to be one, or to be a repository. */
static qp_status check_name(const char *model, qp_error *error)
{
    const char *slash = strchr(model, '/'), *near = slash ? NULL : hub_nearest_name(model);
    const bool file =
        name_ends_with(model, ".gguf") || name_ends_with(model, ".json") || strchr("./~", *model);
    hub_reference reference;
    if (!*model) return error_set(error, QP_INVALID, "the name of the model is empty");
    if (file || strncmp(model, "synthetic:", 10) == 0 || access(model, F_OK) == 0) return QP_OK;
    if (near)
        return error_set(error, QP_IO, "there is no file or model called \"%s\"; did you mean %s?",
                         model, near);
    if (slash && !strchr(slash + 1, '/') && hub_parse(model, &reference, NULL) == QP_OK)
        return error_set(error, QP_IO,
                         "%s: no such file or folder; the model of Hugging Face with this name is "
                         "hf:%s (-hf %s on the command line)",
                         model, model, model);
    return QP_OK;
}

qp_status hub_resolve(const char *model, bool always, hub_fetcher *fetch, void *context,
                      char path[HUB_PATH_SIZE], qp_error *error)
{
    hub_reference reference;
    hub hub;
    if (!always && !is_prefixed(model) && (!hub_is_short_name(model) || access(model, F_OK) == 0)) {
        TRY(check_name(model, error));
        if (snprintf(path, HUB_PATH_SIZE, "%s", model) < HUB_PATH_SIZE) return QP_OK;
        return error_set(error, QP_INVALID, "the path of the model has more than %d bytes",
                         HUB_PATH_SIZE - 1);
    }
    TRY(hub_parse_name(model, &reference, error));
    TRY(hub_of_environment(&hub, error));
    if (hub_find(&hub, &reference, path, error) == QP_OK) return QP_OK;
    return hub.offline ? error->status : fetch(context, &hub, &reference, path, error);
}
