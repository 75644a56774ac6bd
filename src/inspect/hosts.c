/* Several hosts, as predicted: see hosts.h. */
#include "inspect/hosts.h"

#include "base/json.h"
#include "base/output.h"
#include "lower/lower.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_POINTS = 16 };

/* One number of hosts. */
typedef struct point {
    int hosts;
    double bytes;              /* that a rank receives in a pass */
    double ns[HOSTS_NETWORKS]; /* of a pass, by network */
} point;

typedef struct prediction {
    const hosts_options *options;
    const schedule_options *schedule; /* as the first was made: with tokens and context */
    schedule_options made;
    point points[MOST_POINTS];
    int n;
} prediction;

/* ---- networks ------------------------------------------------------------------------------ */

qp_status hosts_read_networks(const char *text, hosts_options *out, qp_error *error)
{
    const char *at = text;
    for (out->n_networks = 0; *at; out->n_networks++) {
        char *end, *last;
        const double gigabits = strtod(at, &end);
        const double us = *end == ':' ? strtod(end + 1, &last) : -1;
        const bool ends = us >= 0 && last != end + 1 && (*last == 0 || (*last == ',' && last[1]));
        if (end == at || !ends || !(gigabits >= 0.001 && gigabits <= 1e5) || !(us <= 1e6) ||
            out->n_networks == HOSTS_NETWORKS)
            return error_set(error, QP_INVALID,
                             "networks are up to %d pairs of Gbit/s and microseconds, as in "
                             "10:30,100:5; found \"%.80s\"",
                             HOSTS_NETWORKS, text);
        out->networks[out->n_networks].gigabits = gigabits;
        out->networks[out->n_networks].latency_us = us;
        at = *last ? last + 1 : last;
    }
    return QP_OK;
}

static rank_network network_of(const hosts_options *o, int number)
{
    return (rank_network){.bytes_per_second = o->networks[number].gigabits * 1e9 / 8,
                          .latency_ns = o->networks[number].latency_us * 1e3};
}

/* ---- prediction ---------------------------------------------------------------------------- */

static qp_status predict_point(prediction *r, const program *p, int hosts, qp_error *error)
{
    point *at = &r->points[r->n];
    plan_options options = p->options;
    program own;
    schedule_ranks ranks = {0};
    options.ranks = hosts, options.rank = 0, options.cut = r->options->cut;
    qp_status status = lower_rebuild(p, &options, &own, error);
    if (status == QP_OK) status = schedule_ranks_make(&own, r->schedule, NULL, &ranks, error);
    *at = (point){.hosts = hosts};
    for (int i = 0; status == QP_OK && i < r->options->n_networks; i++) {
        const rank_network network = network_of(r->options, i);
        status = schedule_predict_ranks(&ranks, &network, &at->ns[i], error);
    }
    if (status == QP_OK) {
        at->bytes = schedule_rank_bytes(&ranks, 0);
        r->made = ranks.schedules[0].options;
        r->n++;
    }
    schedule_ranks_free(&ranks);
    program_free(&own);
    return status;
}

static qp_status predict(prediction *r, const program *p, qp_error *error)
{
    const int most = r->options->most;
    for (int hosts = 1; hosts <= most && r->n < MOST_POINTS;) {
        TRY(predict_point(r, p, hosts, error));
        hosts = hosts < most && 2 * hosts > most ? most : 2 * hosts;
    }
    return QP_OK;
}

static double speed_of(const prediction *r, int point, int network)
{
    return (double)r->made.tokens * 1e9 / r->points[point].ns[network];
}

/* ---- a table ------------------------------------------------------------------------------- */

static void name_network(const hosts_options *o, int number, char *text, size_t size)
{
    snprintf(text, size, "%g Gbit/s, %g us", o->networks[number].gigabits,
             o->networks[number].latency_us);
}

static void print_table(const prediction *r, strbuf *out)
{
    const schedule_options *s = &r->made;
    strbuf_printf(out,
                  "tokens/s as predicted: %lld token%s in a pass at %lld positions; each host has "
                  "%d worker%s, %.1f GB/s, %.1f GFLOP/s\n\n%5s %14s",
                  (long long)s->tokens, s->tokens == 1 ? "" : "s", (long long)s->context,
                  s->workers, s->workers == 1 ? "" : "s", s->profile.bytes_per_second / 1e9,
                  s->profile.flops_per_second / 1e9, "hosts", "bytes received");
    for (int i = 0; i < r->options->n_networks; i++) {
        char name[64];
        name_network(r->options, i, name, sizeof name);
        strbuf_printf(out, " %20s", name);
    }
    strbuf_putc(out, '\n');
    for (int p = 0; p < r->n; p++) {
        strbuf_printf(out, "%5d %14.0f", r->points[p].hosts, r->points[p].bytes);
        for (int i = 0; i < r->options->n_networks; i++)
            strbuf_printf(out, " %20.2f", speed_of(r, p, i));
        strbuf_putc(out, '\n');
    }
}

static void print_json(const prediction *r, strbuf *out)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "tokens", (double)r->made.tokens);
    cJSON_AddNumberToObject(root, "context", (double)r->made.context);
    cJSON_AddNumberToObject(root, "workers", r->made.workers);
    cJSON *list = cJSON_AddArrayToObject(root, "hosts");
    for (int p = 0; p < r->n; p++) {
        cJSON *item = cJSON_CreateObject(), *networks;
        cJSON_AddNumberToObject(item, "hosts", r->points[p].hosts);
        cJSON_AddNumberToObject(item, "bytes_received", r->points[p].bytes);
        networks = cJSON_AddArrayToObject(item, "networks");
        for (int i = 0; i < r->options->n_networks; i++) {
            cJSON *one = cJSON_CreateObject();
            cJSON_AddNumberToObject(one, "gigabits_per_second", r->options->networks[i].gigabits);
            cJSON_AddNumberToObject(one, "latency_us", r->options->networks[i].latency_us);
            cJSON_AddNumberToObject(one, "pass_ns", r->points[p].ns[i]);
            cJSON_AddNumberToObject(one, "tokens_per_second", speed_of(r, p, i));
            cJSON_AddItemToArray(networks, one);
        }
        cJSON_AddItemToArray(list, item);
    }
    output_json_line(root, out, NULL);
}

/* ---- a picture ----------------------------------------------------------------------------- */

enum { WIDTH = 640, HEIGHT = 380, LEFT = 64, RIGHT = 20, TOP = 46, BOTTOM = 40 };
static const char *const colors[HOSTS_NETWORKS] = {"#4a78b5", "#d0702a", "#4c9a57", "#9260ad"};

/* Colours that are visible on white and on black. */
static const char style[] =
    "<style>text{font:12px system-ui,sans-serif;fill:#7a838d}.title{font-weight:600}"
    ".grid{stroke:#8b95a040;fill:none}.line{fill:none;stroke-width:2}</style>\n";

typedef struct axes {
    double most_hosts, most_speed, step;
} axes;

static double x_of(const axes *a, double hosts)
{
    const double span = a->most_hosts > 1 ? log2(a->most_hosts) : 1;
    return LEFT + log2(hosts) / span * (WIDTH - LEFT - RIGHT);
}

static double y_of(const axes *a, double speed)
{
    return HEIGHT - BOTTOM - speed / a->most_speed * (HEIGHT - TOP - BOTTOM);
}

/* Round steps, some five up to the greatest speed. */
static axes axes_of(const prediction *r)
{
    axes a = {.most_hosts = r->points[r->n - 1].hosts};
    double most = 0;
    for (int p = 0; p < r->n; p++)
        for (int i = 0; i < r->options->n_networks; i++)
            most = fmax(most, speed_of(r, p, i));
    a.step = pow(10, floor(log10(most / 5)));
    a.step *= most / a.step > 25 ? 5 : most / a.step > 10 ? 2 : 1;
    a.most_speed = ceil(most / a.step) * a.step;
    return a;
}

static void draw_axes(const prediction *r, const axes *a, strbuf *out)
{
    for (double speed = 0; speed <= a->most_speed * 1.001; speed += a->step)
        strbuf_printf(out,
                      "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                      "text-anchor=\"end\">%g</text>\n",
                      LEFT, y_of(a, speed), WIDTH - RIGHT, LEFT - 8, y_of(a, speed) + 4, speed);
    for (int p = 0; p < r->n; p++)
        strbuf_printf(out,
                      "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" "
                      "text-anchor=\"middle\">%d</text>\n",
                      x_of(a, r->points[p].hosts), TOP, HEIGHT - BOTTOM,
                      x_of(a, r->points[p].hosts), HEIGHT - BOTTOM + 16, r->points[p].hosts);
    strbuf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">hosts</text>\n", WIDTH - RIGHT,
                  HEIGHT - 6);
}

static void draw_line(const prediction *r, const axes *a, int network, strbuf *out)
{
    char name[64];
    strbuf_printf(out, "<path class=\"line\" stroke=\"%s\" d=\"", colors[network]);
    for (int p = 0; p < r->n; p++)
        strbuf_printf(out, "%c%.1f %.1f", p ? 'L' : 'M', x_of(a, r->points[p].hosts),
                      y_of(a, speed_of(r, p, network)));
    name_network(r->options, network, name, sizeof name);
    strbuf_printf(out,
                  "\"/>\n<path class=\"line\" stroke=\"%s\" d=\"M%d 32h16\"/><text x=\"%d\" "
                  "y=\"36\">%s</text>\n",
                  colors[network], LEFT + 150 * network, LEFT + 150 * network + 22, name);
}

static void draw(const prediction *r, strbuf *out)
{
    const axes a = axes_of(r);
    strbuf_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
        "height=\"%d\">\n%s<text class=\"title\" x=\"%d\" y=\"16\">tokens/s as predicted, "
        "%lld token%s in a pass; a host has %d workers and %.0f GB/s</text>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT, style, LEFT, (long long)r->made.tokens,
        r->made.tokens == 1 ? "" : "s", r->made.workers, r->made.profile.bytes_per_second / 1e9);
    draw_axes(r, &a, out);
    for (int i = 0; i < r->options->n_networks; i++)
        draw_line(r, &a, i, out);
    strbuf_puts(out, "</svg>\n");
}

qp_status hosts_print(const program *p, const schedule_options *schedule, const hosts_options *o,
                      strbuf *out, qp_error *error)
{
    prediction r = {.options = o, .schedule = schedule};
    TRY(predict(&r, p, error));
    if (o->json)
        print_json(&r, out);
    else
        print_table(&r, out);
    if (o->svg) draw(&r, o->svg);
    return QP_OK;
}
