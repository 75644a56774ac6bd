/* The process's side of the link: see link.h. */
#include "router/link.h"

#include "base/strbuf.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void tell(int link, const strbuf *line)
{
    for (size_t sent = 0; sent < line->length;) {
        const ssize_t n = send(link, strbuf_text(line) + sent, line->length - sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) return; /* the router is gone, which the next read says */
        if (n > 0) sent += (size_t)n;
    }
}

qp_status link_ask(void *link, uint64_t bytes, qp_error *error)
{
    const int descriptor = *(int *)link;
    char answer[8];
    size_t length = 0;
    strbuf line = {0};
    strbuf_printf(&line, "needs %llu\n", (unsigned long long)bytes);
    tell(descriptor, &line);
    strbuf_free(&line);
    while (length < 3) {
        const ssize_t n = read(descriptor, answer + length, 3 - length);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return error_set(error, QP_CANCELLED, "the server ends before the model is loaded");
        length += (size_t)n;
    }
    return QP_OK;
}

void link_tell_ready(int link)
{
    strbuf line = {0};
    strbuf_puts(&line, "ready\n");
    tell(link, &line);
    strbuf_free(&line);
}

void link_tell_failed(int link, const char *why)
{
    strbuf line = {0};
    strbuf_printf(&line, "failed %s", why);
    for (size_t i = 0; i < line.length; i++)
        if (line.data[i] == '\n') line.data[i] = ' ';
    strbuf_putc(&line, '\n');
    tell(link, &line);
    strbuf_free(&line);
}
