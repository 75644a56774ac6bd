/* quipu pull, list and rm: fetch models from a hub, list and remove them. */
#include "cli/cli.h"

#include "base/option_cache.h"
#include "hub/resolve.h"
#include "text/json_string.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void show_fetch(void *context, const progress *progress)
{
    cli_progress_callback *show = cli_progress();
    strbuf line = {0};
    progress_print(progress, &line);
    double seconds = (double)(progress->reported_ns - progress->begin_ns) * 1e-9;
    if (progress->done && progress->done < progress->total && seconds > 0)
        strbuf_printf(&line, "  %.0f s left",
                      seconds * (double)(progress->total - progress->done) /
                          (double)progress->done);
    if (show) show(context, strbuf_text(&line), progress->done >= progress->total);
    strbuf_free(&line);
}

static qp_status print_short_names(qp_error *error)
{
    strbuf out = {0};
    strbuf_puts(&out, "usage: quipu pull NAME, OWNER/REPOSITORY[:FILE.gguf] or "
                      "OWNER/REPOSITORY[:TYPE]\n\n");
    strbuf_printf(&out, "%-16s %-54s %s\n", "name", "model", "licence");
    const hub_short_name *name;
    for (int i = 0; (name = hub_short_name_at(i)); i++)
        strbuf_printf(&out, "%-16s %-54s %s\n", name->name, name->reference, name->licence);
    qp_status status =
        out.failed ? error_no_memory(error, "the list", 0) : cli_write(out.data, out.length, error);
    strbuf_free(&out);
    return status;
}

/* Fetches a model, with a progress line. After an interrupt, the next fetch continues with what has
 * arrived. */
static qp_status fetch(void *context, hub *hub, const hub_reference *reference,
                       char path[HUB_PATH_SIZE], qp_error *error)
{
    (void)context;
    progress progress = {.sink = show_fetch};
    char name[3 * HUB_NAME_SIZE];
    hub->progress = &progress;
    hub->cancel = &cli_interrupted;
    hub_print_reference(reference, name, sizeof name);
    fprintf(stderr, "quipu: fetching %s from %s%s%s\n", name, hub->endpoint,
            reference->licence ? ", licence " : "", reference->licence ? reference->licence : "");
    cli_catch_interrupt();
    qp_status status = hub_pull(hub, reference, path, error);
    cli_release_interrupt();
    hub->progress = NULL;
    hub->cancel = NULL;
    if (status != QP_OK && cli_progress()) cli_show_line(NULL, "");
    return status;
}

qp_status cli_hub_path(const char *model, bool always, const char **path, qp_error *error)
{
    static char found[HUB_PATH_SIZE];
    *path = found;
    return hub_resolve(model, always, fetch, NULL, found, error);
}

qp_status command_pull(const cli_call *call)
{
    hub hub;
    hub_reference reference;
    char path[HUB_PATH_SIZE];
    if (call->options->n_positional == 0) return print_short_names(call->error);
    const char *text = call->options->positional[0];
    TRY(hub_parse_name(text, &reference, call->error));
    TRY(hub_of_environment(&hub, call->error));
    TRY(fetch(NULL, &hub, &reference, path, call->error));
    TRY(cli_write(path, strlen(path), call->error));
    return cli_write("\n", 1, call->error);
}

/* What `quipu list` prints. */
typedef struct list {
    strbuf text;
    bool json;
    int count;
} list;

static qp_status add_entry(void *context, const hub_entry *entry, qp_error *error)
{
    list *l = context;
    if (l->json) {
        strbuf_printf(&l->text, "%s\n  {\"name\": ", l->count ? "," : "");
        json_put_string(&l->text, entry->reference, strlen(entry->reference));
        strbuf_puts(&l->text, ", \"path\": ");
        json_put_string(&l->text, entry->path, strlen(entry->path));
        strbuf_printf(&l->text, ", \"bytes\": %llu}", (unsigned long long)entry->bytes);
    } else {
        strbuf_printf(&l->text, "%8.2f GB  %s\n", (double)entry->bytes * 1e-9, entry->reference);
    }
    l->count++;
    return l->text.failed ? error_no_memory(error, "the list", l->text.length) : QP_OK;
}

/* The default model does not come from the hub, but is listed too. */
static qp_status add_default_model(list *l, qp_error *error)
{
    struct stat found;
    hub_entry entry;
    if (!option_cache_path(QUIPU_DEFAULT_MODEL, entry.path, sizeof entry.path) ||
        stat(entry.path, &found) != 0)
        return QP_OK;
    snprintf(entry.reference, sizeof entry.reference, "%s (the default model)",
             QUIPU_DEFAULT_MODEL);
    entry.bytes = (uint64_t)found.st_size;
    return add_entry(l, &entry, error);
}

qp_status command_list(const cli_call *call)
{
    list l = {.json = call->settings->json};
    hub hub;
    TRY(hub_of_environment(&hub, call->error));
    if (l.json) strbuf_putc(&l.text, '[');
    qp_status status = add_default_model(&l, call->error);
    if (status == QP_OK) status = hub_list(&hub, add_entry, &l, call->error);
    if (l.json) strbuf_puts(&l.text, "\n]\n");
    if (status == QP_OK && l.count == 0 && !l.json)
        fputs("quipu: no models are here yet; `quipu pull` lists names\n", stderr);
    if (status == QP_OK) status = cli_write(strbuf_text(&l.text), l.text.length, call->error);
    strbuf_free(&l.text);
    return status;
}

static void tell_removed(const char *name, uint64_t bytes)
{
    fprintf(stderr, "quipu: removed %s, %.2f GB\n", name, (double)bytes * 1e-9);
}

/* With the settings of sampling beside it. */
static qp_status remove_default_model(qp_error *error)
{
    static const char name[] = QUIPU_DEFAULT_MODEL;
    char path[HUB_PATH_SIZE], settings[HUB_PATH_SIZE + 32];
    struct stat found;
    if (!option_cache_path(name, path, sizeof path) || stat(path, &found) != 0)
        return error_set(error, QP_IO, "%s is not in the cache", name);
    if (unlink(path) != 0)
        return error_set(error, QP_IO, "%s: cannot be removed: %s", path, strerror(errno));
    snprintf(settings, sizeof settings, "%.*s.generation_config.json",
             (int)(strlen(path) - strlen(".gguf")), path);
    unlink(settings);
    tell_removed(name, (uint64_t)found.st_size);
    return QP_OK;
}

qp_status command_rm(const cli_call *call)
{
    const char *text = call->options->positional[0];
    if (strcmp(text, QUIPU_DEFAULT_MODEL) == 0) return remove_default_model(call->error);
    hub hub;
    hub_reference reference;
    uint64_t bytes;
    TRY(hub_parse_name(text, &reference, call->error));
    TRY(hub_of_environment(&hub, call->error));
    TRY(hub_remove(&hub, &reference, &bytes, call->error));
    tell_removed(text, bytes);
    return QP_OK;
}
