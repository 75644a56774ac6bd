/* The page's files: see endpoints.h. */
#include "server/endpoints.h"

#include "base/checksum.h"
#include "base/embedded.h"
#include "server/server_state.h"

#include <stdio.h>
#include <string.h>

/* No inline code runs, and nothing is loaded from or sent to other hosts, so text of a model cannot
 * become code. */
static const char policy[] = "Content-Security-Policy: default-src 'none'; style-src 'self'; "
                             "script-src 'self'; connect-src 'self'; img-src data:; "
                             "font-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
                             "form-action 'none'";

static const char *type_of(const char *path)
{
    static const char *const types[][2] = {{".html", "text/html; charset=utf-8"},
                                           {".css", "text/css; charset=utf-8"},
                                           {".js", "text/javascript; charset=utf-8"},
                                           {".woff2", "font/woff2"}};
    const char *end = strrchr(path, '.');
    for (size_t i = 0; end && i < sizeof types / sizeof *types; i++)
        if (strcmp(end, types[i][0]) == 0) return types[i][1];
    return NULL;
}

/* Browsers keep the files, and ask whether they are still the same: another build has others. */
static void reply_file(exchange *x, const embedded_text *file, const char *type)
{
    char tag[32], header[48];
    snprintf(tag, sizeof tag, "\"%016llx\"",
             (unsigned long long)checksum(file->text, file->length, 0));
    snprintf(header, sizeof header, "ETag: %s", tag);
    exchange_add_header(x, header);
    exchange_add_header(x, "Cache-Control: no-cache");
    exchange_add_header(x, policy);
    exchange_add_header(x, "X-Content-Type-Options: nosniff");
    const char *kept = http_parser_header(exchange_request(x), "if-none-match");
    if (kept && strcmp(kept, tag) == 0)
        exchange_reply(x, 304, type, NULL, 0);
    else
        exchange_reply(x, 200, type, file->text, file->length);
}

void reply_page(server *s, exchange *x)
{
    (void)s;
    const char *path = exchange_request(x)->target + 1;
    if (!*path || strcmp(path, "index.html") == 0) path = "page/page.html";
    const char *type = type_of(path);
    const embedded_text *file = type ? embedded_find(path) : NULL;
    if (file) {
        reply_file(x, file, type);
        return;
    }
    api_error error = {0};
    api_refuse(&error, 404, NULL, "the page has no file /%.200s", path);
    server_reply_error(x, &error, API_OPENAI);
}

void reply_page_slash(const char *prefix, exchange *x)
{
    strbuf header = {0};
    strbuf_printf(&header, "Location: %s/", prefix);
    exchange_add_header(x, strbuf_text(&header));
    exchange_reply(x, 308, NULL, NULL, 0);
    strbuf_free(&header);
}
