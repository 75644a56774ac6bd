/* Cached prompts over a restart: see prompt_cache.h. */
#include "server/prompt_cache.h"

#include "base/files.h"
#include "engine/engine.h"
#include "engine/page_file.h"
#include "engine/prefix_file.h"
#include "server/random_id.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

enum { PATH_MOST = 4096 };

static void say(const server_options *o, qp_log_level level, const char *message)
{
    if (o->log) o->log(o->context, level, message);
}

/* ---- The secret ---------------------------------------------------------------------------- */

/* False: there is none, or only a part of one, from a process that was killed. */
static bool read_secret(const char *path, hash_key *secret)
{
    FILE *file = fopen(path, "rbe");
    const bool read = file && fread(secret, sizeof *secret, 1, file) == 1;
    if (file) fclose(file);
    return read;
}

qp_status prompt_cache_open(const char *folder, hash_key *secret, qp_error *error)
{
    char path[PATH_MOST];
    TRY(files_join(folder, "owners", path, sizeof path, error));
    const mode_t before = umask(0077); /* prompts are private */
    qp_status status = files_check_writable(path, error);
    if (status == QP_OK && !read_secret(path, secret)) {
        *secret = (hash_key){{random_number(), random_number()}};
        status = files_write(path, secret, sizeof *secret, error);
    }
    umask(before);
    return status;
}

/* ---- Pages --------------------------------------------------------------------------------- */

static qp_status path_of(const server_options *o, const qp_engine *engine, char path[PATH_MOST],
                         qp_error *error)
{
    char name[32];
    snprintf(name, sizeof name, "%016" PRIx64 ".pages", page_file_model(engine));
    return files_join(o->prompt_cache, name, path, PATH_MOST, error);
}

static void say_restored(const server_options *o, const char *path,
                         const prefix_file_result *result, int64_t page_size)
{
    char line[PATH_MOST + 256];
    if (!result->found) return;
    snprintf(line, sizeof line,
             "prompt cache: %" PRIu64 " tokens of earlier prompts are cached again (%.1f MiB, %s)",
             result->pages * (uint64_t)page_size, (double)result->bytes / (1 << 20), path);
    say(o, QP_LOG_NOTICE, line);
    if (!result->damaged) return;
    snprintf(line, sizeof line,
             "prompt cache: %s is damaged: %" PRIu64 " page%s, with all that follow%s, left out; "
             "their prompts will be computed again",
             path, result->damaged, result->damaged == 1 ? "" : "s",
             result->damaged == 1 ? "s it, is" : " them, are");
    say(o, QP_LOG_WARNING, line);
}

void prompt_cache_restore(const server_options *o, qp_engine *engine)
{
    char path[PATH_MOST], line[PATH_MOST + QP_ERROR_SIZE];
    prefix_file_result result;
    qp_error error;
    qp_status status = engine_open_prefixes(engine, &error);
    if (status == QP_OK) status = path_of(o, engine, path, &error);
    if (status == QP_OK && !engine->prefixes.pool) {
        say(o, QP_LOG_WARNING,
            "prompt cache: this model's prompts cannot be cached, because its RoPE angles depend "
            "on the length of the text");
        return;
    }
    if (status == QP_OK) status = prefix_file_restore(engine, path, &result, &error);
    if (status == QP_OK) {
        say_restored(o, path, &result, engine->pages.page_size);
        return;
    }
    snprintf(line, sizeof line, "prompt cache: %s; prompts will be computed again", error.message);
    say(o, QP_LOG_WARNING, line);
}

void prompt_cache_save(const server_options *o, qp_engine *engine)
{
    char path[PATH_MOST], line[PATH_MOST + QP_ERROR_SIZE];
    prefix_file_result result;
    qp_error error;
    if (engine->pages.n_idle == 0) return;
    qp_status status = path_of(o, engine, path, &error);
    if (status == QP_OK)
        status = prefix_file_save(engine, path, o->prompt_cache_size, &result, &error);
    if (status == QP_OK)
        snprintf(line, sizeof line, "prompt cache: %" PRIu64 " tokens saved (%.1f MiB, %s)",
                 result.pages * (uint64_t)engine->pages.page_size, (double)result.bytes / (1 << 20),
                 path);
    else
        snprintf(line, sizeof line, "prompt cache: %s; cached prompts are lost", error.message);
    say(o, status == QP_OK ? QP_LOG_NOTICE : QP_LOG_WARNING, line);
}
