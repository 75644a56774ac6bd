/* GET /metrics: Prometheus' text format, with names as vLLM gives them, but for the prefix. */
#include "server/api_state.h"

#include "server/process.h"
#include "server/server_state.h"
#include "server/statistics.h"
#include "text/json_string.h"

#include <string.h>

/* A writer of lines that all have the model as a label. */
typedef struct metrics {
    strbuf *out;
    strbuf label; /* model_name="..." */
} metrics;

static void begin(metrics *m, const char *name, const char *type, const char *help)
{
    strbuf_printf(m->out, "# HELP quipu:%s %s\n# TYPE quipu:%s %s\n", name, help, name, type);
}

static void put(metrics *m, const char *name, const char *more, double value)
{
    strbuf_printf(m->out, "quipu:%s{%s%s} %.17g\n", name, strbuf_text(&m->label), more, value);
}

static void put_one(metrics *m, const char *name, const char *type, const char *help, double value)
{
    begin(m, name, type, help);
    put(m, name, "", value);
}

static void put_histogram(metrics *m, const char *name, const char *help, const histogram *h)
{
    const double *bounds = histogram_bounds(h->unit);
    const char *label = strbuf_text(&m->label);
    uint64_t below = 0;
    begin(m, name, "histogram", help);
    for (int i = 0; i < HISTOGRAM_BOUNDS; i++) {
        below += h->counts[i];
        strbuf_printf(m->out, "quipu:%s_bucket{%s,le=\"%g\"} %llu\n", name, label, bounds[i],
                      (unsigned long long)below);
    }
    strbuf_printf(m->out, "quipu:%s_bucket{%s,le=\"+Inf\"} %llu\n", name, label,
                  (unsigned long long)h->count);
    strbuf_printf(m->out, "quipu:%s_sum{%s} %.17g\nquipu:%s_count{%s} %llu\n", name, label, h->sum,
                  name, label, (unsigned long long)h->count);
}

static void put_counters(metrics *m, const batcher_stats *s)
{
    put_one(m, "prompt_tokens_total", "counter", "Tokens of prompts that were admitted.",
            (double)s->prompt_tokens);
    put_one(m, "generation_tokens_total", "counter", "Tokens that were chosen.",
            (double)s->generated_tokens);
    put_one(m, "prefix_cache_queries_total", "counter",
            "Tokens of prompts, looked up in the cache.", (double)s->prompt_tokens);
    put_one(m, "prefix_cache_hits_total", "counter", "Tokens of prompts that the cache had.",
            (double)s->cached_tokens);
    put_one(m, "spec_decode_num_draft_tokens_total", "counter",
            "Proposed tokens that were verified.", (double)s->proposed_tokens);
    put_one(m, "spec_decode_num_accepted_tokens_total", "counter",
            "Proposed tokens that were accepted.", (double)s->accepted_tokens);
    put_one(m, "slots_given_up_total", "counter",
            "Choices that gave their slot up for a while and kept their pages.", (double)s->parked);
    put_one(m, "num_preemptions_total", "counter", "Choices that lost their pages to others.",
            (double)s->preemptions);
    put_one(m, "steps_total", "counter", "Calls of the engine.", (double)s->steps);
    put_one(m, "passes_total", "counter", "Forward passes.", (double)s->passes);
    begin(m, "request_success_total", "counter", "Choices that have ended, by their end.");
    for (int i = QP_FINISH_STOP_TOKEN; i <= QP_FINISH_CANCELLED; i++) {
        static const char *const reasons[] = {
            ",finished_reason=\"stop\"", ",finished_reason=\"stop_text\"",
            ",finished_reason=\"length\"", ",finished_reason=\"context\"",
            ",finished_reason=\"abort\""};
        put(m, "request_success_total", reasons[i], (double)s->finished[i]);
    }
    put_one(m, "request_failed_total", "counter", "Choices that failed, or whose time was over.",
            (double)(s->finished[REQUEST_FAILED] + s->finished[REQUEST_TIMED_OUT]));
}

static void put_gauges(metrics *m, const batcher_stats *s)
{
    put_one(m, "num_requests_running", "gauge", "Choices that have a slot.", (double)s->running);
    put_one(m, "num_requests_waiting", "gauge", "Choices that wait for one.", (double)s->waiting);
    put_one(m, "kv_cache_usage_perc", "gauge", "Share of the KV cache that choices hold, 0 to 1.",
            s->pages_total ? (double)s->pages_used / (double)s->pages_total : 0);
    put_one(m, "kv_cache_pages", "gauge", "Pages of the KV cache.", (double)s->pages_total);
    put_one(m, "kv_cache_pages_used", "gauge", "Pages that choices hold.", (double)s->pages_used);
    put_one(m, "kv_cache_pages_cached", "gauge", "Pages that the prefix cache alone holds.",
            (double)s->pages_cached);
    put_one(m, "engine_step_own_seconds", "gauge", "The engine thread's own time of a step, mean.",
            s->own_steps ? s->own_seconds / (double)s->own_steps : 0);
}

static void put_histograms(metrics *m, const batcher_stats *s)
{
    put_histogram(m, "time_to_first_token_seconds", "From arrival to the first token.",
                  &s->first_token);
    put_histogram(m, "inter_token_latency_seconds", "Between tokens of a choice.", &s->next_token);
    put_histogram(m, "e2e_request_latency_seconds", "From arrival to the end.", &s->end_to_end);
    put_histogram(m, "request_queue_time_seconds", "From arrival to a slot.", &s->queued);
    put_histogram(m, "request_prompt_tokens", "Tokens of a prompt.", &s->prompt_length);
    put_histogram(m, "request_generation_tokens", "Tokens of an answer.", &s->answer_length);
    put_histogram(m, "iteration_tokens_total", "Tokens of a step.", &s->batch_length);
}

/* The names that Prometheus' own clients give; the heap is ours. */
static void put_process(metrics *m)
{
    const process_usage used = process_measure();
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"process_resident_memory_bytes", "gauge", "Memory of the process in RAM.",
         used.resident_bytes},
        {"process_cpu_seconds_total", "counter", "Processor time of all threads.",
         used.cpu_seconds},
        {"process_open_fds", "gauge", "Open files and connections.", used.open_files},
        {"process_max_fds", "gauge", "Open files that the process may have.", used.open_files_most},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        strbuf_printf(m->out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", rows[i].name, rows[i].help,
                      rows[i].name, rows[i].type, rows[i].name, rows[i].value);
    put_one(m, "heap_bytes", "gauge", "Memory that malloc() has given out.", used.heap_bytes);
}

qp_status answer_metrics(call *c, cJSON **out, api_error *error)
{
    batcher_stats stats;
    metrics m = {.out = &c->out};
    const char *alias = c->server->options->alias;
    *out = NULL;
    qp_status status = batcher_snapshot(c->server->batcher, &stats, &error->error);
    if (status != QP_OK) return api_failed(error, status);
    strbuf_puts(&m.label, "model_name=");
    json_put_string(&m.label, alias, strlen(alias));
    put_counters(&m, &stats);
    put_gauges(&m, &stats);
    put_histograms(&m, &stats);
    put_process(&m);
    strbuf_free(&m.label);
    batcher_stats_free(&stats);
    return QP_OK;
}
