#include "load/pass_costs.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MOST 1e12

/* A test's pass. */
typedef struct measured {
    bool prompt;
    double rows, positions, seconds; /* positions: that its rows attend to, together */
} measured;

typedef struct measurements {
    measured all[PASS_COSTS_MOST];
    size_t count;
} measurements;

/* "model,device,gigabytes,threads,parallel,depth,test,tokens_per_second,...": see bench.c. */
static qp_status read_line(measurements *m, const char *line, size_t number, qp_error *error)
{
    double parallel, depth, rate;
    char kind[3];
    int tokens;
    if (!*line || strncmp(line, "model,", 6) == 0) return QP_OK;
    if (sscanf(line, "%*[^,],%*[^,],%*[^,],%*[^,],%lf,%lf,%2[pgt]%d,%lf", &parallel, &depth, kind,
               &tokens, &rate) != 5 ||
        !(parallel >= 1 && parallel <= NUMBER_MOST) || !(depth >= 0 && depth <= NUMBER_MOST) ||
        tokens < 1 || !(rate > 1 / NUMBER_MOST && rate < NUMBER_MOST))
        return error_set(error, QP_FORMAT,
                         "line %zu of the costs is \"%.80s\"; expected a row of quipu bench -o csv",
                         number, line);
    const bool prompt = strcmp(kind, "pp") == 0;
    if (prompt && parallel > 1) return QP_OK; /* perhaps several passes */
    if (m->count == PASS_COSTS_MOST)
        return error_set(error, QP_FORMAT, "the costs have more than %d rows", PASS_COSTS_MOST);
    const double rows = prompt ? tokens : parallel;
    m->all[m->count++] = (measured){prompt, rows, rows * (depth + (tokens + 1) / 2.0), rows / rate};
    return QP_OK;
}

/* Least squares over tests of one kind, each compared with the mean of those of its size. */
static qp_status slope(const measurements *m, bool prompt, double *out, qp_error *error)
{
    double above = 0, below = 0;
    for (size_t i = 0; i < m->count; i++) {
        double positions = 0, seconds = 0, n = 0;
        const measured *a = m->all + i;
        if (a->prompt != prompt) continue;
        for (const measured *b = m->all; b < m->all + m->count; b++) {
            if (b->prompt != prompt || b->rows != a->rows) continue;
            positions += b->positions;
            seconds += b->seconds;
            n++;
        }
        above += (a->positions - positions / n) * (a->seconds - seconds / n);
        below += (a->positions - positions / n) * (a->positions - positions / n);
    }
    if (!(below > 0))
        return error_set(error, QP_FORMAT,
                         "the costs have no two tests %s of the same size at different depths; "
                         "measure them with quipu bench %s",
                         prompt ? "ppN" : "tgN", prompt ? "-p N -d DEPTH" : "-n N -d DEPTH");
    *out = fmax(above / below, 0);
    return QP_OK;
}

static int by_rows(const void *a, const void *b)
{
    const double x = ((const measured *)a)->rows, y = ((const measured *)b)->rows;
    return (x > y) - (x < y);
}

/* One point for each number of rows: the mean of its tests without attention; never falling. */
static void set_products(measurements *m, pass_costs *out)
{
    qsort(m->all, m->count, sizeof *m->all, by_rows);
    for (size_t i = 0, n; i < m->count; i += n) {
        double sum = 0, before = out->count ? out->seconds[out->count - 1] : 0;
        for (n = 0; i + n < m->count && m->all[i + n].rows == m->all[i].rows; n++) {
            const measured *a = m->all + i + n;
            sum += a->seconds - a->positions * (a->prompt ? out->per_prompt : out->per_decoded);
        }
        out->rows[out->count] = m->all[i].rows;
        out->seconds[out->count++] = fmax(sum / (double)n, before);
    }
}

qp_status pass_costs_read(const char *text, size_t length, pass_costs *out, qp_error *error)
{
    measurements m = {.count = 0};
    char line[1024];
    *out = (pass_costs){0};
    for (size_t at = 0, number = 1; at < length; number++) {
        const char *end = memchr(text + at, '\n', length - at);
        const size_t n = end ? (size_t)(end - text) - at : length - at;
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1),
                 text + at);
        line[strcspn(line, "\r")] = '\0';
        TRY(read_line(&m, line, number, error));
        at += n + 1;
    }
    TRY(slope(&m, true, &out->per_prompt, error));
    TRY(slope(&m, false, &out->per_decoded, error));
    set_products(&m, out);
    return out->count > 1 ? QP_OK
                          : error_set(error, QP_FORMAT,
                                      "all tests of the costs are of one size; measure two at "
                                      "least, such as pp512 and tg128");
}

double pass_costs_products(const pass_costs *c, double rows)
{
    size_t i = 1;
    if (rows <= c->rows[0]) return c->seconds[0];
    while (i + 1 < c->count && c->rows[i] < rows)
        i++;
    const double part = (rows - c->rows[i - 1]) / (c->rows[i] - c->rows[i - 1]);
    return c->seconds[i - 1] + part * (c->seconds[i] - c->seconds[i - 1]);
}
