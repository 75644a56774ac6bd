/* The page's files: see page.h. */
#include "server/page.h"

#include "base/embedded.h"

#include <string.h>

static const struct {
    const char *path, *text, *type;
} files[] = {
    {"/", "src/server/page/page.html", "text/html; charset=utf-8"},
    {"/index.html", "src/server/page/page.html", "text/html; charset=utf-8"},
    {"/page.css", "src/server/page/page.css", "text/css; charset=utf-8"},
    {"/markdown.js", "src/server/page/markdown.js", "text/javascript; charset=utf-8"},
    {"/chat.js", "src/server/page/chat.js", "text/javascript; charset=utf-8"},
    {"/engine.js", "src/server/page/engine.js", "text/javascript; charset=utf-8"},
    {"/timeline.js", "src/server/page/timeline.js", "text/javascript; charset=utf-8"},
};

/* No inline code runs, and nothing is loaded from or sent to other hosts, so text of a model cannot
 * become code. */
static const char policy[] = "Content-Security-Policy: default-src 'none'; style-src 'self'; "
                             "script-src 'self'; connect-src 'self'; img-src data:; "
                             "frame-ancestors 'none'; base-uri 'none'";

void reply_page(server *s, exchange *x)
{
    (void)s;
    const char *path = exchange_request(x)->target;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const embedded_text *text =
            strcmp(files[i].path, path) == 0 ? embedded_find(files[i].text) : NULL;
        if (!text) continue;
        exchange_add_header(x, policy);
        exchange_add_header(x, "X-Content-Type-Options: nosniff");
        exchange_reply(x, 200, files[i].type, text->text, text->length);
        return;
    }
    api_error error = {0};
    api_refuse(&error, 404, NULL, "this build has no page");
    server_reply_error(x, &error, API_OPENAI);
}
