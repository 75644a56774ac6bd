/* The figures of a run, defined as `vllm bench serve` defines them:
 *
 *     TTFT    from sending (with arrival times: from the arrival) to the first event with text
 *     TPOT    (last event - first event) / (output tokens - 1), of requests with two tokens or more
 *     ITL     between two events of one answer, of all answers together
 *     E2EL    from sending to the last event with text
 *
 * Rates are over the time from the start of the first request to the end of the last. Percentiles
 * are interpolated between the two nearest values.
 */
#include "load/load.h"

#include "base/output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* One measure over all requests, in milliseconds. */
typedef struct spread {
    size_t count;
    double mean, deviation, p50, p90, p95, p99, most;
} spread;

typedef struct figures {
    spread ttft, tpot, itl, e2e;
    double input_tokens, output_tokens, cached_tokens, events;
    size_t good;
} figures;

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* A quantile of sorted values; q from 0 to 1. */
static double percentile(const float *values, size_t count, double q)
{
    double at = q * (double)(count - 1);
    size_t low = (size_t)at;
    double part = at - (double)low;
    if (low + 1 >= count) return values[count - 1];
    return values[low] + part * ((double)values[low + 1] - values[low]);
}

/* Sorts the values. */
static spread spread_of(float *values, size_t count)
{
    double sum = 0, squares = 0;
    if (!count) return (spread){0};
    qsort(values, count, sizeof *values, compare);
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    double mean = sum / (double)count;
    for (size_t i = 0; i < count; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    return (spread){.count = count,
                    .mean = mean,
                    .deviation = sqrt(squares / (double)count),
                    .p50 = percentile(values, count, 0.5),
                    .p90 = percentile(values, count, 0.9),
                    .p95 = percentile(values, count, 0.95),
                    .p99 = percentile(values, count, 0.99),
                    .most = values[count - 1]};
}

static double ttft_of(const load_record *r)
{
    return (r->first - r->begun) * 1e3;
}

static double e2e_of(const load_record *r)
{
    return (r->last - r->begun) * 1e3;
}

/* Time per output token; 0 for an answer of one token. */
static double tpot_of(const load_record *r)
{
    return r->output_tokens > 1 ? (r->last - r->first) * 1e3 / (r->output_tokens - 1) : 0;
}

static bool is_good(const load_limits *limits, const load_record *r)
{
    return !(limits->ttft && ttft_of(r) > limits->ttft) &&
           !(limits->tpot && tpot_of(r) > limits->tpot) &&
           !(limits->e2e && e2e_of(r) > limits->e2e);
}

static bool has_limits(const load_options *o)
{
    return o->limits.ttft || o->limits.tpot || o->limits.e2e;
}

static qp_status compute(const load_options *o, const load_result *result, figures *out,
                         qp_error *error)
{
    size_t n = result->n_records, n_done = 0, n_tpot = 0;
    float *values = calloc(3 * n + 1, sizeof *values);
    float *ttft = values, *e2e = values + n, *tpot = values + 2 * n;
    *out = (figures){0};
    if (!values) return error_no_memory(error, "the figures", 3 * n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        const load_record *r = &result->records[i];
        if (r->outcome != LOAD_DONE) continue;
        ttft[n_done] = (float)ttft_of(r);
        e2e[n_done++] = (float)e2e_of(r);
        if (r->output_tokens > 1) tpot[n_tpot++] = (float)tpot_of(r);
        out->input_tokens += r->input_tokens;
        out->output_tokens += r->output_tokens;
        out->cached_tokens += r->cached_tokens;
        out->events += r->events;
        out->good += is_good(&o->limits, r);
    }
    out->ttft = spread_of(ttft, n_done);
    out->e2e = spread_of(e2e, n_done);
    out->tpot = spread_of(tpot, n_tpot);
    out->itl = spread_of(result->gaps, result->n_gaps);
    free(values);
    return QP_OK;
}

static double per_second(double count, const load_result *r)
{
    return r->seconds > 0 ? count / r->seconds : 0;
}

static void print_spread(const char *name, const spread *s, strbuf *out)
{
    if (!s->count) return;
    strbuf_printf(out, "%-26s %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, s->mean, s->p50, s->p90,
                  s->p99, s->most);
}

static void print_failures(const load_result *r, strbuf *out)
{
    static const char *const names[LOAD_OUTCOMES] = {[LOAD_REFUSED] = "refused",
                                                     [LOAD_BROKEN] = "without a connection",
                                                     [LOAD_UNCLEAR] = "not as the API says",
                                                     [LOAD_TIMEOUT] = "too late",
                                                     [LOAD_DROPPED] = "interrupted"};
    for (int i = 0; i < LOAD_OUTCOMES; i++)
        if (names[i] && r->counts[i]) strbuf_printf(out, "%-26s %9zu\n", names[i], r->counts[i]);
    if (r->left_out)
        strbuf_printf(out, "%-26s %9zu   too long for --context\n", "left out", r->left_out);
}

qp_status load_print(const load_options *options, const load_result *r, strbuf *out,
                     qp_error *error)
{
    figures f;
    TRY(compute(options, r, &f, error));
    strbuf_printf(out, "%-26s %9zu   %.2f a second, in %.2f s\n", "requests answered",
                  r->counts[LOAD_DONE], per_second((double)r->counts[LOAD_DONE], r), r->seconds);
    print_failures(r, out);
    strbuf_printf(out, "%-26s %9.0f   %.1f a second", "tokens in", f.input_tokens,
                  per_second(f.input_tokens, r));
    if (f.cached_tokens) strbuf_printf(out, ", %.0f from the server's cache", f.cached_tokens);
    strbuf_printf(out, "\n%-26s %9.0f   %.1f a second", "tokens out", f.output_tokens,
                  per_second(f.output_tokens, r));
    if (f.events) strbuf_printf(out, ", in %.0f events", f.events);
    strbuf_putc(out, '\n');
    if (has_limits(options))
        strbuf_printf(out, "%-26s %9zu   %.2f a second\n", "requests within limits", f.good,
                      per_second((double)f.good, r));
    strbuf_printf(out, "\n%-26s %9s %9s %9s %9s %9s\n", "milliseconds", "mean", "p50", "p90", "p99",
                  "most");
    print_spread("to the first token (TTFT)", &f.ttft, out);
    print_spread("per token after it (TPOT)", &f.tpot, out);
    print_spread("between events (ITL)", &f.itl, out);
    print_spread("end to end (E2EL)", &f.e2e, out);
    return output_done(out, error);
}

static void add(cJSON *root, const char *prefix, const char *name, double value)
{
    char key[64];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    cJSON_AddNumberToObject(root, key, value);
}

static void add_spread(cJSON *root, const char *name, const spread *s)
{
    add(root, "mean_", name, s->mean);
    add(root, "median_", name, s->p50);
    add(root, "std_", name, s->deviation);
    add(root, "p50_", name, s->p50);
    add(root, "p90_", name, s->p90);
    add(root, "p95_", name, s->p95);
    add(root, "p99_", name, s->p99);
    add(root, "max_", name, s->most);
}

qp_status load_print_json(const load_options *options, const load_result *r, strbuf *out,
                          qp_error *error)
{
    figures f;
    TRY(compute(options, r, &f, error));
    cJSON *root = cJSON_CreateObject();
    size_t done = r->counts[LOAD_DONE];
    cJSON_AddStringToObject(root, "model_id", r->model);
    cJSON_AddStringToObject(root, "endpoint", options->chat ? "chat" : "completions");
    add(root, "max_concurrency", "", (double)options->streams);
    add(root, "request_rate", "", options->rate);
    add(root, "duration", "", r->seconds);
    add(root, "completed", "", (double)done);
    add(root, "failed", "", (double)(r->n_records - done));
    add(root, "refused", "", (double)r->counts[LOAD_REFUSED]);
    add(root, "broken", "", (double)r->counts[LOAD_BROKEN]);
    add(root, "unclear", "", (double)r->counts[LOAD_UNCLEAR]);
    add(root, "timeouts", "", (double)r->counts[LOAD_TIMEOUT]);
    add(root, "left_out", "", (double)r->left_out);
    if (r->first_failure.status != QP_OK)
        cJSON_AddStringToObject(root, "first_failure", r->first_failure.message);
    add(root, "total_input_tokens", "", f.input_tokens);
    add(root, "total_cached_tokens", "", f.cached_tokens);
    add(root, "total_output_tokens", "", f.output_tokens);
    add(root, "total_events", "", f.events);
    add(root, "request_throughput", "", per_second((double)done, r));
    add(root, "output_throughput", "", per_second(f.output_tokens, r));
    add(root, "total_token_throughput", "", per_second(f.input_tokens + f.output_tokens, r));
    if (has_limits(options)) add(root, "request_goodput", "", per_second((double)f.good, r));
    add_spread(root, "ttft_ms", &f.ttft);
    add_spread(root, "tpot_ms", &f.tpot);
    add_spread(root, "itl_ms", &f.itl);
    add_spread(root, "e2el_ms", &f.e2e);
    return output_json(root, out, error);
}
