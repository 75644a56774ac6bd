/* The summary of a trace: see timeline_table.h. */
#include "inspect/timeline/timeline_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void timeline_table_add(timeline_table *table, const timeline *t, const timeline_panel *panel)
{
    for (int32_t i = 0; i < panel->count; i++) {
        const timeline_slice *slice = &panel->slices[i];
        timeline_sum *sum = &table->sums[timeline_slice_kind(t, slice)];
        if (!slice->help) /* else the instruction is counted where it stands */
            *(slice->end > slice->wait ? &sum->slices : &sum->joined) += 1;
        sum->wait += (double)(slice->work - slice->wait);
        sum->work += (double)(slice->signal - slice->work);
        sum->flops += slice->flops;
        sum->bytes += slice->bytes;
        sum->far += slice->far;
        table->signal += (double)(slice->end - slice->signal);
    }
    table->passes++;
    table->tokens += panel->tokens;
    table->length += (double)panel->length;
}

static int by_work(const void *a, const void *b)
{
    const timeline_sum *x = a, *y = b;
    if (x->work != y->work) return x->work > y->work ? -1 : 1;
    return x->kind - y->kind;
}

/* The sums of what there was, the largest first; how many. */
static int take_sums(const timeline_table *table, const timeline *t, timeline_sum *sums)
{
    int n = 0;
    for (int kind = 0; kind < t->n_kinds; kind++) {
        if (table->sums[kind].slices == 0) continue;
        sums[n] = table->sums[kind];
        sums[n++].kind = kind;
    }
    qsort(sums, (size_t)n, sizeof *sums, by_work);
    return n;
}

static double divide(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* The width of the first column: a launch of several operators has a long name. */
static int name_width(const timeline *t, const timeline_sum *sums, int n)
{
    int width = 18;
    for (int i = 0; i < n; i++) {
        int length = (int)strlen(t->kinds[sums[i].kind]);
        if (length > width) width = length;
    }
    return width;
}

/* Bytes that come from memory; the others come from caches. */
static double far_of(const timeline *t, const timeline_sum *sum)
{
    return t->near_limit > 0 ? sum->far : sum->bytes;
}

void timeline_table_raise(const timeline_table *table, timeline *t)
{
    machine_profile *limits = &t->limits;
    for (int kind = 0; kind < t->n_kinds; kind++) {
        const timeline_sum *sum = &table->sums[kind];
        const double seconds = sum->work / t->n_at_once / 1e9, far = far_of(t, sum);
        limits->bytes_per_second = fmax(limits->bytes_per_second, divide(far, seconds));
        limits->flops_per_second = fmax(limits->flops_per_second, divide(sum->flops, seconds));
        if (t->near_limit > 0)
            t->near_limit = fmax(t->near_limit, divide(sum->bytes - far, seconds));
    }
}

/* The least seconds that the limits allow. */
static double least_time(const timeline *t, const timeline_sum *sum)
{
    const double far = far_of(t, sum);
    const double memory = divide(far, t->limits.bytes_per_second);
    const double caches = divide(sum->bytes - far, t->near_limit);
    const double flops = divide(sum->flops, t->limits.flops_per_second);
    return fmax(fmax(memory, caches), flops);
}

static void print_sum(const timeline_table *table, const timeline *t, const timeline_sum *sum,
                      int width, strbuf *out)
{
    double passes = (double)table->passes, tracks = t->n_at_once;
    double ns = sum->work / tracks; /* of all passes */
    strbuf_printf(out, "%-*s %8.0f %11.1f %6.1f%%", width, t->kinds[sum->kind],
                  (double)sum->slices / passes, ns / passes / 1e3, 100 * divide(ns, table->length));
    if (sum->flops > 0 || sum->bytes > 0)
        strbuf_printf(out, " %8.1f %9.1f %8.1f%%", divide(sum->bytes, ns), divide(sum->flops, ns),
                      100 * divide(least_time(t, sum) * 1e9, ns));
    else
        strbuf_printf(out, " %8s %9s %9s", "", "", "");
    strbuf_printf(out, " %11.1f\n", sum->wait / tracks / passes / 1e3);
}

static void print_rest(const timeline_table *table, const char *name, double ns, int width,
                       strbuf *out)
{
    strbuf_printf(out, "%-*s %8s %11.1f %6.1f%%\n", width, name, "",
                  ns / (double)table->passes / 1e3, 100 * divide(ns, table->length));
}

/* Prints the kinds that have no row. */
static void print_joined(const timeline_table *table, const timeline *t, strbuf *out)
{
    int n = 0;
    for (int kind = 0; kind < t->n_kinds; kind++) {
        const timeline_sum *sum = &table->sums[kind];
        if (sum->slices > 0 || sum->joined == 0) continue;
        strbuf_printf(out, "%s%s", n++ ? ", " : "as part of others: ", t->kinds[kind]);
    }
    if (n > 0) strbuf_putc(out, '\n');
}

void timeline_table_print(const timeline_table *table, const timeline *t, const char *title,
                          strbuf *out)
{
    if (table->passes == 0) return;
    double tracks = t->n_at_once, passes = (double)table->passes;
    strbuf_printf(out, "%s: %" PRId64 " pass%s of %.4g token%s, %.3f ms%s\n", title, table->passes,
                  table->passes == 1 ? "" : "es", (double)table->tokens / passes,
                  table->tokens == table->passes ? "" : "s", table->length / passes / 1e6,
                  table->passes == 1 ? "" : " each");
    timeline_sum sums[TIMELINE_KINDS];
    const int n = take_sums(table, t, sums), width = name_width(t, sums, n);
    strbuf_printf(out, "%-*s %8s %11s %7s %8s %9s %9s %11s\n", width, "operator", "slices",
                  "time us", "share", "GB/s", "GFLOP/s", "of limit", "waiting us");
    double wait = 0, work = 0;
    for (int i = 0; i < n; i++) {
        print_sum(table, t, &sums[i], width, out);
        wait += sums[i].wait / tracks;
        work += sums[i].work / tracks;
    }
    double signal = table->signal / tracks;
    if (wait > 0) print_rest(table, "waiting", wait, width, out);
    if (signal > 0) print_rest(table, "signals", signal, width, out);
    print_rest(table, "outside", table->length - work - wait - signal, width, out);
    print_rest(table, "pass", table->length, width, out);
    print_joined(table, t, out);
}
