/* Keeps tensors of passes in a file: see dump.h. */
#include "cli/dump.h"

#include "base/replace_file.h"
#include "base/status.h"

#include <errno.h>
#include <string.h>

qp_status dump_open(dump *d, qp_error *error)
{
    d->error = error;
    d->data = tmpfile();
    if (d->data) return QP_OK;
    return error_set(error, QP_IO, "--dump: a temporary file cannot be made: %s", strerror(errno));
}

/* What safetensors calls a type; NULL: it has no such type. */
static const char *type_name(const char *type)
{
    static const char *const names[][2] = {{"F32", "F32"}, {"F16", "F16"}, {"BF16", "BF16"},
                                           {"I32", "I32"}, {"I64", "I64"}, {"F8_E4M3", "F8_E4M3"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], type) == 0) return names[i][1];
    return NULL;
}

qp_status dump_tensor(void *context, const qp_tensor *t)
{
    dump *d = context;
    const char *type = type_name(t->type);
    if (!type)
        return error_set(d->error, QP_UNSUPPORTED,
                         "--dump: %s has the type %s, for which safetensors has no name", t->name,
                         t->type);
    strbuf_printf(&d->header, "%s\"%llu.%s\":{\"dtype\":\"%s\",\"shape\":[", d->count++ ? "," : "{",
                  (unsigned long long)t->pass, t->name, type);
    for (int i = 0; i < t->rank; i++)
        strbuf_printf(&d->header, "%s%lld", i ? "," : "", (long long)t->dims[i]);
    strbuf_printf(&d->header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)d->bytes,
                  (unsigned long long)(d->bytes + t->bytes));
    d->bytes += t->bytes;
    if (fwrite(t->data, 1, t->bytes, d->data) == t->bytes) return QP_OK;
    return error_set(d->error, QP_IO, "--dump: a temporary file cannot be written: %s",
                     strerror(errno));
}

static bool copy(FILE *from, FILE *to)
{
    char bytes[1 << 16];
    rewind(from);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, from)) > 0;)
        if (fwrite(bytes, 1, n, to) != n) return false;
    return !ferror(from);
}

qp_status dump_write(dump *d, const char *path)
{
    file_replacement to;
    unsigned char length[8];
    strbuf_puts(&d->header, d->count ? "}" : "{}");
    while (d->header.length % 8)
        strbuf_putc(&d->header, ' ');
    if (d->header.failed) return error_no_memory(d->error, "the names of tensors", 0);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)d->header.length >> 8 * i);
    TRY(file_replacement_begin(path, 0666, &to, d->error));
    const bool written =
        fwrite(length, 1, 8, to.stream) == 8 &&
        fwrite(d->header.data, 1, d->header.length, to.stream) == d->header.length &&
        copy(d->data, to.stream);
    qp_status status =
        written ? file_replacement_end(&to, d->error) : file_replacement_failed(&to, d->error);
    file_replacement_drop(&to);
    if (status == QP_OK)
        fprintf(stderr, "%zu tensors (%.1f MiB) written to %s\n", d->count,
                (double)d->bytes / (1 << 20), path);
    return status;
}

void dump_close(dump *d)
{
    if (d->data) fclose(d->data);
    strbuf_free(&d->header);
    *d = (dump){0};
}
