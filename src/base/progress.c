/* See progress.h. */
#include "base/progress.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

enum { REPORT_EVERY_NS = 100 * 1000 * 1000 };

void progress_begin_stages(progress *progress)
{
    progress->n_stages = 0;
    progress->staged_ns = clock_ns();
}

void progress_stage_ended(progress *progress, const char *name)
{
    if (!progress || !progress->staged_ns) return;
    const uint64_t now = clock_ns();
    int i = 0;
    while (i < progress->n_stages && strcmp(progress->stages[i].name, name) != 0)
        i++;
    assert(i < PROGRESS_STAGES);
    if (i == progress->n_stages) progress->stages[progress->n_stages++] = (progress_stage){name, 0};
    progress->stages[i].ns += now - progress->staged_ns;
    progress->staged_ns = now;
}

void progress_begin(progress *progress, const char *what, uint64_t total)
{
    if (!progress) return;
    progress->what = what;
    progress->tokens = false;
    progress->total = total;
    progress->done = 0;
    progress->begin_ns = progress->reported_ns = clock_ns();
}

void progress_begin_tokens(progress *progress, const char *what, uint64_t total)
{
    progress_begin(progress, what, total);
    if (!progress || !progress->sink) return;
    progress->tokens = true;
    progress->sink(progress->context, progress);
}

void progress_advance(progress *progress, uint64_t amount)
{
    if (!progress || !progress->sink) return;
    progress->done += amount;
    uint64_t now = clock_ns();
    if (progress->done < progress->total && now - progress->reported_ns < REPORT_EVERY_NS) return;
    progress->reported_ns = now;
    progress->sink(progress->context, progress);
}

void progress_end(progress *progress)
{
    if (!progress || !progress->sink || progress->done >= progress->total) return;
    progress->done = progress->total;
    progress->sink(progress->context, progress);
}

void progress_print(const progress *progress, strbuf *out)
{
    double done = (double)progress->done, total = (double)progress->total;
    double seconds = (double)(clock_ns() - progress->begin_ns) * 1e-9;
    strbuf_printf(out, "%s %3.0f%%  ", progress->what, total > 0 ? 100 * done / total : 100);
    if (progress->tokens) {
        strbuf_printf(out, "%.0f of %.0f tokens", done, total);
        if (seconds > 0.5 && done > 0) strbuf_printf(out, "  %.0f tokens/s", done / seconds);
        return;
    }
    strbuf_printf(out, "%.1f of %.1f GB", done * 1e-9, total * 1e-9);
    if (seconds > 0.5) strbuf_printf(out, "  %.1f GB/s", done * 1e-9 / seconds);
}
