/* Lines of the access log: see access_log.h. */
#include "server/access_log.h"

#include "base/clock.h"
#include "server/exchange.h"
#include "text/json_string.h"

#include <string.h>
#include <time.h>

static void put_time(strbuf *out)
{
    char text[40];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    strbuf_printf(out, "%s.%03ldZ", text, now.tv_nsec / 1000000);
}

static void put_text(strbuf *out, const char *name, const char *text)
{
    strbuf_printf(out, ",\"%s\":", name);
    json_put_string(out, text, strlen(text));
}

static void put_head(strbuf *out, const char *level)
{
    strbuf_puts(out, "{\"time\":\"");
    put_time(out);
    strbuf_printf(out, "\",\"level\":\"%s\"", level);
}

void access_log_put_message(qp_log_level level, const char *message, strbuf *out)
{
    put_head(out, level == QP_LOG_WARNING ? "warning" : "info");
    put_text(out, "message", message);
    strbuf_putc(out, '}');
}

static double rate_of(const exchange_facts *f)
{
    return f->making > 0 && f->made > 1 ? (double)(f->made - 1) / f->making : 0;
}

static void put_json(const exchange *x, double seconds, strbuf *out)
{
    const exchange_facts *f = &x->facts;
    put_head(out, "info");
    put_text(out, "request_id", x->id);
    if (*x->trace) strbuf_printf(out, ",\"trace_id\":\"%.32s\"", x->trace + 3);
    put_text(out, "client", x->client);
    put_text(out, "method", x->request.method);
    put_text(out, "path", x->request.target);
    strbuf_printf(out, ",\"status\":%d,\"bytes\":%llu,\"seconds\":%.6f", x->status,
                  (unsigned long long)x->bytes, seconds);
    if (f->known)
        strbuf_printf(out,
                      ",\"prompt_tokens\":%zu,\"cached_tokens\":%zu,\"completion_tokens\":%zu,"
                      "\"queue_seconds\":%.6f,\"prompt_seconds\":%.6f,\"completion_seconds\":%.6f,"
                      "\"tokens_per_second\":%.3f",
                      f->prompt, f->cached, f->made, f->queued, f->reading, f->making, rate_of(f));
    strbuf_puts(out, x->ended ? "}" : ",\"left\":true}");
}

static void put_line(const exchange *x, double seconds, strbuf *out)
{
    const exchange_facts *f = &x->facts;
    put_time(out);
    strbuf_printf(out, " %s %s \"", x->id, x->client);
    for (const char *c = x->request.target; *c; c++) /* decoded, so any byte may be there */
        strbuf_printf(out, (unsigned char)*c < ' ' || *c == '"' || *c == 127 ? "\\x%02x" : "%c",
                      (unsigned char)*c);
    strbuf_printf(out, "\" %s %d, %llu bytes, %.3f s", x->request.method, x->status,
                  (unsigned long long)x->bytes, seconds);
    if (f->known)
        strbuf_printf(
            out,
            ": queue %.3f s, prompt %zu tokens (%zu cached) %.3f s, answer %zu tokens %.3f "
            "s (%.1f tokens/s)",
            f->queued, f->prompt, f->cached, f->reading, f->made, f->making, rate_of(f));
    if (!x->ended) strbuf_puts(out, ", the client left");
}

void access_log_put(const exchange *x, bool json, strbuf *out)
{
    const double seconds = (double)(clock_ns() - x->begun) * 1e-9;
    (json ? put_json : put_line)(x, seconds, out);
}
