/* Sources in temporary folders: see solution.h. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "workbench/solution.h"

#include "base/files.h"
#include "base/printable.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOG_BYTES = 4096 };

static qp_status make_folder(solution_files *out, qp_error *error)
{
    *out = (solution_files){0};
    snprintf(out->folder, sizeof out->folder, "/tmp/quipu-XXXXXX");
    if (mkdtemp(out->folder)) return QP_OK;
    out->folder[0] = '\0';
    return error_set(error, QP_IO, "no folder can be made in /tmp");
}

qp_status solution_write(const schema_solution *solution, const char *where, solution_files *out,
                         qp_error *error)
{
    const cJSON *source;
    TRY(make_folder(out, error));
    snprintf(out->entry, sizeof out->entry, "%s/solution/%s", out->folder, solution->file);
    cJSON_ArrayForEach(source, solution->sources)
    {
        const char *path, *content;
        char to[512];
        TRY(schema_string(source, "path", where, &path, error));
        TRY(schema_string(source, "content", where, &content, error));
        snprintf(to, sizeof to, "%s/solution/%s", out->folder, path);
        TRY(files_write(to, content, strlen(content), error));
    }
    return QP_OK;
}

qp_status solution_write_reference(const schema_definition *definition, solution_files *out,
                                   qp_error *error)
{
    TRY(make_folder(out, error));
    snprintf(out->entry, sizeof out->entry, "%s/solution/reference.py", out->folder);
    return files_write(out->entry, definition->reference, strlen(definition->reference), error);
}

qp_status solution_compile(solution_files *files, const op_info *op, bool unconfined,
                           const volatile int *cancel, qp_error *error)
{
    return candidate_open(op, files->entry, unconfined, cancel, &files->library, error);
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

void solution_remove(solution_files *files)
{
    candidate_close(&files->library);
    strbuf_free(&files->log);
    if (files->folder[0]) nftw(files->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    files->folder[0] = '\0';
}

function_source solution_source(const schema_solution *solution, const solution_files *files)
{
    bool is_c = strcmp(solution->language, "c") == 0;
    return (function_source){.folder = files->folder,
                             .language = solution->language,
                             .binding = solution->binding,
                             .file = solution->file,
                             .symbol = solution->symbol,
                             .sources = solution->sources,
                             .fills_outputs = solution->fills_outputs,
                             .library = is_c ? files->library.library : NULL};
}

function_source solution_reference_source(const solution_files *files)
{
    return (function_source){.folder = files->folder,
                             .language = "python",
                             .file = "reference.py",
                             .symbol = "run",
                             .fills_outputs = false};
}

const char *solution_log(solution_files *files)
{
    char path[128], text[LOG_BYTES];
    snprintf(path, sizeof path, "%s/log.txt", files->folder);
    strbuf_clear(&files->log);
    int log = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t n = log >= 0 ? read(log, text, sizeof text) : 0;
    if (log >= 0) close(log);
    unlink(path);
    if (n > 0) strbuf_put_printable(&files->log, text, (size_t)n);
    return strbuf_text(&files->log);
}
