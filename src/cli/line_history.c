/* Earlier messages of a person: see line_history.h.
 *
 * In the file each message is a line, with \n for its line breaks and \\ for its backslashes.
 */
#include "cli/line_history.h"

#include "base/replace_file.h"
#include "base/strbuf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MOST = 16 << 20 };

static void drop_first(line_history *h)
{
    free(h->items[0]);
    memmove(h->items, h->items + 1, (size_t)--h->count * sizeof *h->items);
}

static bool keep(line_history *h, const char *text)
{
    if (h->count && strcmp(h->items[h->count - 1], text) == 0) return false;
    char *copy = strdup(text);
    if (!copy) return false;
    if (h->count == HISTORY_MOST) drop_first(h);
    h->items[h->count++] = copy;
    return true;
}

static void put_escaped(const char *text, strbuf *out)
{
    for (; *text; text++) {
        if (*text == '\n')
            strbuf_puts(out, "\\n");
        else if (*text == '\\')
            strbuf_puts(out, "\\\\");
        else
            strbuf_putc(out, *text);
    }
    strbuf_putc(out, '\n');
}

/* Undoes put_escaped(), in place. */
static void unescape(char *line)
{
    char *to = line;
    for (const char *from = line; *from; from++) {
        bool escaped = *from == '\\' && from[1];
        if (escaped) from++;
        *to++ = escaped && *from == 'n' ? '\n' : *from;
    }
    *to = '\0';
}

static void make_folders(const char *path)
{
    char folder[4096];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
        mkdir(folder, 0700);
    }
}

static int open_private(const char *path, int flags)
{
    return open(path, flags | O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
}

/* Rewrites a file that has grown too long with the messages that are kept. */
static void rewrite(const line_history *h)
{
    file_replacement to;
    strbuf text = {0};
    for (int i = 0; i < h->count; i++)
        put_escaped(h->items[i], &text);
    if (!text.failed && file_replacement_begin(h->path, 0600, &to, NULL) == QP_OK) {
        if (fwrite(text.data, 1, text.length, to.stream) == text.length)
            file_replacement_end(&to, NULL);
        file_replacement_drop(&to);
    }
    strbuf_free(&text);
}

void history_open(line_history *h, const char *path)
{
    char *line = NULL;
    size_t capacity = 0, read = 0;
    int lines = 0;
    ssize_t length;
    h->items = calloc(HISTORY_MOST, sizeof *h->items);
    if (!h->items) return;
    snprintf(h->path, sizeof h->path, "%s", path);
    make_folders(path);
    FILE *file = fopen(path, "re");
    if (!file) return;
    while (read < FILE_MOST && (length = getline(&line, &capacity, file)) > 0) {
        read += (size_t)length;
        if (line[length - 1] == '\n') line[--length] = '\0';
        unescape(line);
        if (*line) keep(h, line);
        lines++;
    }
    free(line);
    fclose(file);
    if (lines > 2 * HISTORY_MOST) rewrite(h);
}

void history_add(line_history *h, const char *text)
{
    strbuf line = {0};
    if (!h->items || !keep(h, text) || !*h->path) return;
    put_escaped(text, &line);
    int fd = open_private(h->path, O_APPEND);
    if (fd >= 0 && !line.failed) {
        ssize_t ignored = write(fd, line.data, line.length);
        (void)ignored;
    }
    if (fd >= 0) close(fd);
    strbuf_free(&line);
}

int history_find(const line_history *h, int from, const char *text)
{
    for (int i = from; i >= 0; i--)
        if (strstr(h->items[i], text)) return i;
    return -1;
}

void history_free(line_history *h)
{
    for (int i = 0; i < h->count; i++)
        free(h->items[i]);
    free(h->items);
    *h = (line_history){0};
}
