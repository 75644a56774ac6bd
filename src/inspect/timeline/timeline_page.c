/* The data of the page: see timeline_page.h. */
#include "inspect/timeline/timeline_page.h"

#include "base/embedded.h"
#include "schedule/instruction_text.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

static const char page[] = "src/inspect/timeline/timeline.html", mark[] = "@DATA@";

static const embedded_text *find_page(const char **at)
{
    const embedded_text *text = embedded_find(page);
    assert(text);
    *at = strstr(text->text, mark);
    assert(*at);
    return text;
}

static void print_nodes(const timeline *t, strbuf *out)
{
    strbuf_puts(out, ",\n\"kinds\":[");
    for (int i = 0; i < t->n_kinds; i++)
        strbuf_printf(out, "%s[\"%s\",\"%s\"]", i ? "," : "", t->kinds[i],
                      timeline_color(t->kinds[i]));
    strbuf_puts(out, "],\n\"nodes\":[");
    for (int i = 0; i < t->n_nodes; i++) {
        const timeline_node *node = &t->nodes[i];
        strbuf_printf(out, "%s[%d,\"%s\",%" PRId64 ",\"%s\",\"%s\",\"%s\"]", i ? ",\n" : "",
                      node->kind, node->name, node->layer, node->detail,
                      node->module ? node->module : "", node->weight ? node->weight : "");
    }
    strbuf_puts(out, "]");
}

/* What a column has for a slice. */
typedef void print_cell(const timeline_slice *slice, strbuf *out);

static void print_node(const timeline_slice *slice, strbuf *out)
{
    strbuf_printf(out, "%d", slice->node);
}

static void print_shape(const timeline_slice *slice, strbuf *out)
{
    strbuf_putc(out, '"');
    timeline_print_shape(slice, out);
    strbuf_putc(out, '"');
}

static void print_waits(const timeline_slice *slice, strbuf *out)
{
    strbuf_putc(out, '"');
    instruction_print_waits(slice->in, out);
    strbuf_putc(out, '"');
}

static void print_signal(const timeline_slice *slice, strbuf *out)
{
    strbuf_printf(out, "%u", slice->in->signal);
}

static void print_blocker(const timeline_slice *slice, strbuf *out)
{
    strbuf_printf(out, "%d", slice->blocker);
}

static void print_cost(const timeline_slice *slice, strbuf *out)
{
    strbuf_printf(out, "%.0f,%.0f,%.0f", slice->flops, slice->bytes, slice->far);
}

static void print_column(const timeline_panel *panel, const char *name, print_cell *print,
                         strbuf *out)
{
    strbuf_printf(out, ",\n\"%s\":[", name);
    for (int32_t i = 0; i < panel->count; i++) {
        if (i) strbuf_putc(out, ',');
        print(&panel->slices[i], out);
    }
    strbuf_putc(out, ']');
}

static void print_chain(const timeline_panel *panel, strbuf *out)
{
    strbuf_puts(out, ",\n\"critical\":[");
    for (int32_t i = 0; i < panel->n_chain; i++)
        strbuf_printf(out, "%s%d", i ? "," : "", panel->chain[i]);
    strbuf_putc(out, ']');
}

static void print_noops(const timeline *t, const timeline_panel *panel, strbuf *out)
{
    const char *between = "";
    strbuf_puts(out, ",\n\"noop\":[");
    for (int32_t i = 0; i < panel->count; i++) {
        if (timeline_slice_kind(t, &panel->slices[i]) != TIMELINE_NOOP) continue;
        strbuf_printf(out, "%s%d", between, i);
        between = ",";
    }
    strbuf_putc(out, ']');
}

/* Each slice's times from the end of the one before: gap, wait, work, signal. */
static void print_times(const timeline_panel *panel, strbuf *out)
{
    uint64_t last = 0;
    strbuf_puts(out, ",\n\"times\":[");
    for (int32_t i = 0; i < panel->count; i++) {
        const timeline_slice *slice = &panel->slices[i];
        if (i == 0 || slice->track != slice[-1].track) last = 0;
        strbuf_printf(out, "%s%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, i ? "," : "",
                      slice->wait - last, slice->work - slice->wait, slice->signal - slice->work,
                      slice->end - slice->signal);
        last = slice->end;
    }
    strbuf_putc(out, ']');
}

/* How many slices each track has. */
static void print_counts(const timeline *t, const timeline_panel *panel, strbuf *out)
{
    int32_t at = 0;
    strbuf_puts(out, ",\"counts\":[");
    for (int track = 0; track < t->n_tracks; track++) {
        int32_t first = at;
        while (at < panel->count && panel->slices[at].track == track)
            at++;
        strbuf_printf(out, "%s%d", track ? "," : "", at - first);
    }
    strbuf_putc(out, ']');
}

static void print_panel(const timeline *t, const timeline_panel *panel, strbuf *out)
{
    strbuf_printf(out, "{\"title\":\"%s\",\"tokens\":%" PRId64 ",\"length\":%" PRIu64, panel->title,
                  panel->tokens, panel->length);
    print_counts(t, panel, out);
    print_column(panel, "node", print_node, out);
    print_times(panel, out);
    print_column(panel, "shape", print_shape, out);
    if (panel->count > 0 && panel->slices[0].in) {
        print_column(panel, "waits", print_waits, out);
        print_column(panel, "signals", print_signal, out);
    }
    print_column(panel, "blocker", print_blocker, out);
    print_column(panel, "cost", print_cost, out);
    print_chain(panel, out);
    print_noops(t, panel, out);
    strbuf_putc(out, '}');
}

void timeline_page_begin(const timeline *t, const timeline_panel *planned, strbuf *out)
{
    const char *at;
    const embedded_text *text = find_page(&at);
    strbuf_append(out, text->text, (size_t)(at - text->text));
    strbuf_puts(out, "{\"title\":");
    timeline_print_string(t->title, out);
    strbuf_puts(out, ",\"about\":");
    timeline_print_string(t->about, out);
    strbuf_printf(
        out,
        ",\"unit\":\"%s\",\"ranks\":%d,\"tracks\":%d,\"at_once\":%d,\"limits\":[%.0f,%.0f,%.0f]",
        t->unit, t->ranks > 1 ? t->ranks : 1, t->n_tracks, t->n_at_once, t->limits.bytes_per_second,
        t->limits.flops_per_second, t->near_limit);
    print_nodes(t, out);
    strbuf_puts(out, ",\n\"planned\":");
    if (planned)
        print_panel(t, planned, out);
    else
        strbuf_puts(out, "null");
    strbuf_puts(out, ",\n\"measured\":[");
}

void timeline_page_panel(const timeline *t, const timeline_panel *panel, bool first, strbuf *out)
{
    if (!first) strbuf_puts(out, ",\n");
    print_panel(t, panel, out);
}

void timeline_page_end(strbuf *out)
{
    const char *at;
    find_page(&at);
    strbuf_puts(out, "]}");
    strbuf_puts(out, at + sizeof mark - 1);
}
