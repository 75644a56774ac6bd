/* Chrome's trace events: see timeline_chrome.h. */
#include "inspect/timeline/timeline_chrome.h"

#include "schedule/instruction_text.h"

#include <inttypes.h>

/* Numbers of threads. Perfetto takes thread 0 for the kernel's idle task and does not show its
 * name. */
enum { PROCESS = 1, PASSES = 1, WORKERS = 2 };

static void name_thread(const timeline *t, int thread, strbuf *out)
{
    strbuf_printf(out,
                  ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_sort_index\","
                  "\"args\":{\"sort_index\":%d}},\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                  "\"name\":\"thread_name\",\"args\":{\"name\":\"",
                  PROCESS, thread, thread, PROCESS, thread);
    if (thread == PASSES)
        strbuf_puts(out, "passes");
    else
        timeline_print_track(t, thread - WORKERS, out);
    strbuf_puts(out, "\"}}");
}

void timeline_chrome_begin(const timeline *t, strbuf *out)
{
    strbuf_puts(out, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"model\":");
    timeline_print_string(t->title, out);
    strbuf_puts(out, ",\"schedule\":");
    timeline_print_string(t->about, out);
    strbuf_printf(out,
                  "},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\","
                  "\"args\":{\"name\":\"quipu\"}}",
                  PROCESS);
    for (int thread = PASSES; thread < WORKERS + t->n_tracks; thread++)
        name_thread(t, thread, out);
}

/* The head of an event, up to its name. Times are in microseconds there. */
static void print_event(int thread, uint64_t begin, uint64_t end, const char *category, strbuf *out)
{
    uint64_t length = end - begin;
    strbuf_printf(out,
                  ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRIu64 ".%03d,\"dur\":%" PRIu64
                  ".%03d,\"cat\":\"%s\",\"name\":",
                  PROCESS, thread, begin / 1000, (int)(begin % 1000), length / 1000,
                  (int)(length % 1000), category);
}

static void print_wait(const timeline *t, const timeline_panel *panel, const timeline_slice *slice,
                       strbuf *out)
{
    strbuf_puts(out, "\"wait\",\"args\":{\"for\":\"");
    if (slice->in)
        instruction_print_waits(slice->in, out);
    else
        timeline_print_step(&t->nodes[slice->node], out);
    if (slice->blocker >= 0) {
        const timeline_slice *blocker = &panel->slices[slice->blocker];
        strbuf_puts(out, "\",\"ended by\":\"");
        timeline_print_step(&t->nodes[blocker->node], out);
        strbuf_puts(out, ", ");
        timeline_print_track(t, blocker->track, out);
        strbuf_printf(out, ", instruction %d", blocker->number);
    }
    strbuf_puts(out, "\"}}");
}

/* What is known of a part: shapes, type, elements, and which chunk of its operator it is. */
static void print_part(const timeline_part *part, strbuf *out)
{
    if (*part->inputs) strbuf_printf(out, "\",\"inputs\":\"%s", part->inputs);
    strbuf_printf(out, "\",\"%s\":\"%s", *part->inputs ? "outputs" : "shape", part->outputs);
    if (part->elements)
        strbuf_printf(out, "\",\"elements\":%" PRId64 ",\"type\":\"%s", part->elements,
                      dtype_name(part->type));
    if (part->chunks) strbuf_printf(out, "\",\"chunk\":\"%d/%d", part->chunk + 1, part->chunks);
}

static void print_work(const timeline *t, const timeline_slice *slice, strbuf *out)
{
    const timeline_node *node = &t->nodes[slice->node];
    strbuf_printf(out, "\"%s\",\"args\":{\"step\":\"", t->kinds[timeline_slice_kind(t, slice)]);
    timeline_print_step(node, out);
    if (node->module) strbuf_printf(out, "\",\"module\":\"%s", node->module);
    if (node->weight) strbuf_printf(out, "\",\"weight\":\"%s", node->weight);
    if (slice->part) {
        print_part(slice->part, out);
    } else {
        strbuf_puts(out, "\",\"slice\":\"");
        timeline_print_shape(slice, out);
    }
    strbuf_printf(out, "\",\"%s\":\"%s\",\"flops\":%.0f,\"bytes\":%.0f,\"critical\":%s",
                  slice->in ? "operands" : "operator", node->detail, slice->flops, slice->bytes,
                  slice->critical ? "true" : "false");
    if (slice->in) strbuf_printf(out, ",\"instruction\":%d", slice->number);
    strbuf_puts(out, "}}");
}

static void print_slice(const timeline *t, const timeline_panel *panel, const timeline_slice *slice,
                        uint64_t begin, strbuf *out)
{
    const int thread = slice->track + WORKERS;
    if (slice->work > slice->wait) {
        print_event(thread, begin + slice->wait, begin + slice->work, "wait", out);
        print_wait(t, panel, slice, out);
    }
    print_event(thread, begin + slice->work, begin + slice->signal, slice->help ? "help" : "work",
                out);
    print_work(t, slice, out);
    if (slice->end > slice->signal && slice->in) {
        print_event(thread, begin + slice->signal, begin + slice->end, "signal", out);
        strbuf_printf(out, "\"signal\",\"args\":{\"counter\":\"c%u\"}}", slice->in->signal);
    }
}

void timeline_chrome_panel(const timeline *t, const timeline_panel *panel, uint64_t begin,
                           strbuf *out)
{
    print_event(PASSES, begin, begin + panel->length, "pass", out);
    strbuf_printf(out, "\"%s\",\"args\":{\"tokens\":%" PRId64 "}}", panel->title, panel->tokens);
    for (int32_t i = 0; i < panel->count; i++)
        print_slice(t, panel, &panel->slices[i], begin, out);
}

void timeline_chrome_between(const char *name, uint64_t begin, uint64_t end, const char *arguments,
                             strbuf *out)
{
    print_event(PASSES, begin, end, "host", out);
    strbuf_printf(out, "\"%s\",\"args\":{%s}}", name, arguments);
}

void timeline_chrome_end(strbuf *out)
{
    strbuf_puts(out, "\n]}\n");
}
