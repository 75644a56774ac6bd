/* Times of kernels for workbench_improve(): see improve_times.h. */
#include "workbench/improve_times.h"

#include "workbench/device_bench.h"
#include "workbench/timing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool improve_is_named(const workbench_improve_options *o, const char *workload)
{
    const char *found = o->workload ? strstr(workload, o->workload) : workload;
    return found && found < workload + strcspn(workload, ":") + 1;
}

static improve_time time_on_cpu(const workbench_improve_options *o, const candidate *candidate,
                                const char *workload, bool alone)
{
    timing_report report;
    const timing_request request = {.op = candidate->op,
                                    .workload = workload,
                                    .candidate = candidate,
                                    .features = o->features,
                                    .threads = o->threads,
                                    .timeout_ms = o->timeout_ms,
                                    .rounds = o->repetitions,
                                    .alone = alone,
                                    .seed = o->seed};
    improve_time t = {0};
    timing_run(&request, &report);
    const timing *own = &report.entries[report.n > 0 ? report.n - 1 : 0];
    t.declined = report.declined;
    t.status = report.status != CHECK_PASSED ? report.status : own->status;
    snprintf(t.detail, sizeof t.detail, "%s", report.detail);
    if (t.declined || t.status != CHECK_PASSED) return t;
    const timing *best = &report.entries[report.n > 1 ? report.n - 2 : 0];
    t.seconds = own->result.seconds.median;
    t.others = alone ? 0 : best->result.seconds.median;
    t.bytes = own->result.bytes;
    t.flops = own->result.flops;
    t.of_read = own->result.of_read;
    t.of_float = own->result.of_float;
    snprintf(t.name, sizeof t.name, "%s", best->name);
    return t;
}

static improve_time time_on_gpu(const workbench_improve_options *o, const candidate *candidate,
                                const char *workload, bool alone)
{
    device_timing own, best = {0};
    device_timing_request request = {.op = candidate->op,
                                     .workload = workload,
                                     .candidate = candidate,
                                     .rounds = o->repetitions,
                                     .timeout_ms = o->timeout_ms,
                                     .seed = o->seed};
    improve_time t = {0};
    device_timing_run(&request, &own);
    t.declined = own.declined;
    t.status = own.status;
    snprintf(t.detail, sizeof t.detail, "%s", own.detail);
    if (t.declined || t.status != CHECK_PASSED) return t;
    request.candidate = NULL;
    if (!alone) device_timing_run(&request, &best);
    t.seconds = own.seconds.median;
    t.others = best.status == CHECK_PASSED && !best.declined ? best.seconds.median : 0;
    t.bytes = own.bytes;
    t.flops = own.flops;
    t.of_read = own.copying > 0 ? own.bytes / own.copying : 0;
    snprintf(t.name, sizeof t.name, "%s",
             t.others > 0 && best.kernel >= 0 ? candidate->op->cuda[best.kernel].name : "kernel");
    return t;
}

improve_time improve_time_of(const workbench_improve_options *o, const candidate *candidate,
                             const char *workload, bool alone)
{
    return (o->device ? time_on_gpu : time_on_cpu)(o, candidate, workload, alone);
}

void improve_tell(const improve_time *t, const char *workload, strbuf *text)
{
    const int length = (int)strcspn(workload, ":");
    strbuf_printf(text, "%.*s: %.3g us", length, workload, t->seconds * 1e6);
    if (t->others > 0)
        strbuf_printf(text, ", quipu's %s %.3g us: %.2f times as fast", t->name, t->others * 1e6,
                      t->others / t->seconds);
    strbuf_printf(text, "; %.1f GB/s", t->bytes * 1e-9);
    if (t->of_read > 0) strbuf_printf(text, ", %.0f%% of reading memory", 100 * t->of_read);
    strbuf_printf(text, ", %.1f GFLOP/s", t->flops * 1e-9);
    if (t->of_float > 0) strbuf_printf(text, ", %.0f%% of the FMA units", 100 * t->of_float);
    strbuf_putc(text, '\n');
}

double improve_mean(const workbench_improve_options *o, const candidate *candidate)
{
    double logarithms = 0;
    int n = 0;
    for (const char *const *text = candidate->op->workloads; *text; text++) {
        if (!improve_is_named(o, *text)) continue;
        const improve_time t = improve_time_of(o, candidate, *text, true);
        if (t.declined) continue;
        if (t.status != CHECK_PASSED || (o->cancel && *o->cancel)) return 0;
        logarithms += log(t.seconds);
        n++;
    }
    return n > 0 ? exp(logarithms / n) : 0;
}
