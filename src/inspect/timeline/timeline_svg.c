/* Timelines drawn: see timeline_svg.h. One path holds all slices of a kind, as strokes as wide as a
 * track; of many tracks in whole pixels, each from where the one before ends: that keeps a pass of
 * thousands of slices below 100 KB. */
#include "inspect/timeline/timeline_svg.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 1200, GUTTER = 76, RANKS_GUTTER = 112, TOP = 26, TITLE = 24, GAP = 14, LEGEND = 30 };
static const double TOGETHER = 0.3; /* pixels between rectangles that become one */
static const double LETTER = 6.2;   /* pixels of a letter */

typedef struct drawing {
    const timeline *timeline;
    strbuf *out;
    double scale; /* pixels a ns */
    double row;   /* pixels a track */
    double top;   /* of the first track of the panel that is drawn */
    bool many;    /* tracks: whole pixels will do, and no waits, which are where nothing is drawn */
} drawing;

/* Room for the names of tracks. */
static int gutter_of(const timeline *t)
{
    return t->ranks > 1 ? RANKS_GUTTER : GUTTER;
}

static double x_of(const drawing *d, uint64_t ns)
{
    return gutter_of(d->timeline) + (double)ns * d->scale;
}

static double row_of(const drawing *d, const timeline_slice *slice)
{
    return d->top + d->row * slice->track;
}

static double height_of(const drawing *d)
{
    return d->row - (d->row >= 8 ? 2 : d->row >= 4 ? 1 : 0);
}

/* A stroke in the making, of one track. */
typedef struct span {
    int track; /* -1: none */
    double begin, end, y;
    long pen;      /* where the path's last stroke ended, in whole pixels; of many tracks */
    int pen_track; /* on that track */
} span;

static const span nothing = {.track = -1, .pen_track = -1};

static void draw_pixels(const drawing *d, span *s)
{
    long begin = lrint(s->begin), length = lrint(s->end) - begin;
    if (length < 1) return;
    if (s->pen_track == s->track)
        strbuf_printf(d->out, "m%ld 0h%ld", begin - s->pen, length);
    else
        strbuf_printf(d->out, "M%ld %.1fh%ld", begin, s->y, length);
    s->pen_track = s->track;
    s->pen = begin + length;
}

static void draw_span(const drawing *d, span *s)
{
    if (s->track < 0) return;
    if (d->many)
        draw_pixels(d, s);
    else if (s->end - s->begin >= 0.05)
        strbuf_printf(d->out, "M%.1f %.1fh%.1f", s->begin, s->y, s->end - s->begin);
    s->track = -1;
}

static void add_span(const drawing *d, span *s, int track, double begin, double end, double y)
{
    if (s->track == track && begin - s->end < TOGETHER) {
        s->end = end;
        return;
    }
    draw_span(d, s);
    s->track = track;
    s->begin = begin;
    s->end = end;
    s->y = y;
}

/* The middle of a slice's track. */
static double middle_of(const drawing *d, const timeline_slice *slice)
{
    return row_of(d, slice) + height_of(d) / 2;
}

static void draw_waits(const drawing *d, const timeline_panel *panel)
{
    span s = nothing;
    if (d->many) return;
    strbuf_printf(d->out, "<path class=\"wait\" stroke-width=\"%.1f\" d=\"",
                  fmax(1, height_of(d) / 3));
    for (int32_t i = 0; i < panel->count; i++) {
        const timeline_slice *slice = &panel->slices[i];
        double begin = x_of(d, slice->wait), end = x_of(d, slice->work);
        if (end - begin > TOGETHER) add_span(d, &s, slice->track, begin, end, middle_of(d, slice));
    }
    draw_span(d, &s);
    strbuf_puts(d->out, "\"/>\n");
}

static void draw_kind(const drawing *d, const timeline_panel *panel, int kind)
{
    span s = nothing;
    strbuf_printf(d->out, "<path class=\"work\" stroke=\"%s\" stroke-width=\"%.1f\" d=\"",
                  timeline_color(d->timeline->kinds[kind]), height_of(d));
    for (int32_t i = 0; i < panel->count; i++) {
        const timeline_slice *slice = &panel->slices[i];
        if (timeline_slice_kind(d->timeline, slice) == kind)
            add_span(d, &s, slice->track, x_of(d, slice->work), x_of(d, slice->signal),
                     middle_of(d, slice));
    }
    draw_span(d, &s);
    strbuf_puts(d->out, "\"/>\n");
}

static void draw_labels(const drawing *d, const timeline_panel *panel)
{
    if (d->row < 12) return;
    for (int32_t i = 0; i < panel->count; i++) {
        const timeline_slice *slice = &panel->slices[i];
        double letters = (double)strlen(d->timeline->nodes[slice->node].name) + 3;
        if ((double)(slice->signal - slice->work) * d->scale < LETTER * letters) continue;
        strbuf_printf(d->out, "<text class=\"in\" x=\"%.1f\" y=\"%.1f\">", x_of(d, slice->work) + 4,
                      row_of(d, slice) + height_of(d) / 2 + 3.5);
        timeline_print_step(&d->timeline->nodes[slice->node], d->out);
        strbuf_puts(d->out, "</text>\n");
    }
}

static void draw_chain(const drawing *d, const timeline_panel *panel)
{
    double thick = fmin(3, fmax(1.2, d->row / 8));
    span s = nothing;
    strbuf_puts(d->out, "<path class=\"link\" d=\"");
    for (int32_t i = 0; i < panel->n_chain; i++) {
        const timeline_slice *slice = &panel->slices[panel->chain[i]];
        double y = row_of(d, slice) + height_of(d) - thick / 2;
        strbuf_printf(d->out, "%c%.1f %.1fH%.1f", i ? 'L' : 'M', x_of(d, slice->work), y,
                      x_of(d, slice->signal));
    }
    strbuf_printf(d->out, "\"/>\n<path class=\"critical\" stroke-width=\"%.1f\" d=\"", thick);
    for (int32_t i = 0; i < panel->n_chain; i++) {
        const timeline_slice *slice = &panel->slices[panel->chain[i]];
        add_span(d, &s, slice->track, x_of(d, slice->work), x_of(d, slice->signal),
                 row_of(d, slice) + height_of(d) - thick / 2);
    }
    draw_span(d, &s);
    strbuf_puts(d->out, "\"/>\n");
}

static void draw_tracks(const drawing *d)
{
    int every = (int)ceil(12 / d->row);
    strbuf_printf(d->out, "<path class=\"track\" stroke-width=\"%.1f\" d=\"", height_of(d));
    for (int track = 0; track < d->timeline->n_tracks; track++)
        strbuf_printf(d->out, "M%d %.1fH%d", gutter_of(d->timeline),
                      d->top + d->row * track + height_of(d) / 2, WIDTH);
    strbuf_puts(d->out, "\"/>\n");
    for (int track = 0; track < d->timeline->n_tracks; track += every) {
        strbuf_printf(d->out, "<text class=\"soft\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">",
                      gutter_of(d->timeline) - 8,
                      d->top + d->row * track + fmax(height_of(d), 8) / 2 + 3.5);
        timeline_print_track(d->timeline, track, d->out);
        strbuf_puts(d->out, "</text>\n");
    }
}

static void draw_panel(const drawing *d, const timeline_panel *panel)
{
    strbuf_printf(d->out, "<text class=\"title\" x=\"4\" y=\"%.1f\">%s, %.3f ms</text>\n",
                  d->top - 7, panel->title, (double)panel->length / 1e6);
    draw_tracks(d);
    draw_waits(d, panel);
    for (int kind = 0; kind < d->timeline->n_kinds; kind++) {
        for (int32_t i = 0; i < panel->count; i++) {
            if (timeline_slice_kind(d->timeline, &panel->slices[i]) != kind) continue;
            draw_kind(d, panel, kind);
            break;
        }
    }
    draw_labels(d, panel);
    if (panel->n_chain > 0) draw_chain(d, panel);
}

static void draw_ruler(const drawing *d)
{
    double rough = 100 / d->scale, tick = pow(10, floor(log10(rough)));
    tick *= tick * 2 >= rough ? 2 : tick * 5 >= rough ? 5 : 10;
    bool ms = tick >= 1e4;
    int digits = (int)fmax(0, ceil(log10((ms ? 1e6 : 1e3) / tick)));
    const int gutter = gutter_of(d->timeline);
    for (int i = 0; gutter + i * tick * d->scale < WIDTH - 40; i++) {
        double x = gutter + i * tick * d->scale;
        strbuf_printf(d->out,
                      "<path class=\"tick\" d=\"M%.1f 12v8\"/><text class=\"soft\" x=\"%.1f\" "
                      "y=\"19\">%.*f %s</text>\n",
                      x, x + 4, digits, i * tick / (ms ? 1e6 : 1e3), ms ? "ms" : "us");
    }
}

static void draw_legend(const drawing *d, const timeline_panel *const *panels, int n, double y)
{
    double x = 4;
    for (int kind = 0; kind < d->timeline->n_kinds; kind++) {
        bool used = false;
        for (int p = 0; p < n && !used; p++) {
            for (int32_t i = 0; i < panels[p]->count && !used; i++)
                used = timeline_slice_kind(d->timeline, &panels[p]->slices[i]) == kind;
        }
        if (!used) continue;
        const char *name = d->timeline->kinds[kind];
        strbuf_printf(d->out,
                      "<rect fill=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"9\" height=\"9\" rx=\"2\"/>"
                      "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                      timeline_color(name), x, y - 8, x + 13, y, name);
        x += 34 + LETTER * (double)strlen(name);
    }
    if (panels[0]->n_chain > 0)
        strbuf_printf(
            d->out,
            "<path class=\"critical\" stroke-width=\"3\" d=\"M%.1f %.1fh12\"/><text class=\"soft\" "
            "x=\"%.1f\" y=\"%.1f\">critical path</text>\n",
            x, y - 3.5, x + 16, y);
}

/* Colours that are visible on white and on black. */
static const char style[] =
    "<style>text{font:11px system-ui,sans-serif}.title{font-weight:600;font-size:12px;"
    "fill:#7a838d}.soft{fill:#7a838d}.in{fill:#fff}.track{stroke:#8b95a01c}"
    ".wait{stroke:#8b95a055}.track,.wait,.work,.critical{fill:none}"
    ".tick{stroke:#8b95a0}.critical{stroke:#e0124a}.link{fill:none;stroke:#e0124a;stroke-width:.8;"
    "stroke-opacity:.45}</style>\n";

void timeline_svg_print(const timeline *t, const timeline_panel *const *panels, int n, strbuf *out)
{
    uint64_t longest = 1;
    for (int p = 0; p < n; p++) {
        if (panels[p]->length > longest) longest = panels[p]->length;
    }
    drawing d = {.timeline = t, .out = out, .scale = (WIDTH - gutter_of(t) - 4) / (double)longest};
    d.many = t->n_tracks > 32;
    d.row = fmin(34, fmax(3, floor(480.0 / t->n_tracks)));
    double panel = TITLE + d.row * t->n_tracks + GAP, height = TOP + n * panel + LEGEND;
    strbuf_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
                  "height=\"%.0f\">\n",
                  WIDTH, height, WIDTH, height);
    strbuf_puts(out, style);
    draw_ruler(&d);
    for (int p = 0; p < n; p++) {
        d.top = TOP + p * panel + TITLE;
        draw_panel(&d, panels[p]);
    }
    draw_legend(&d, panels, n, height - 12);
    strbuf_puts(out, "</svg>\n");
}
