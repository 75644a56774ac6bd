/* GET /metrics: Prometheus' text format. Names are those of vLLM with another prefix, so the same
 * numbers can be given with vLLM's prefix, for its boards and for routers; and llama.cpp's names.
 */
#include "server/endpoints.h"

#include "server/lora.h"
#include "server/process.h"
#include "server/routes.h"
#include "server/server_state.h"
#include "server/statistics.h"
#include "text/json_string.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* A writer of lines that all have a prefix, and the model as a label. */
typedef struct metrics {
    strbuf *out;
    const char *prefix;
    strbuf label; /* model_name="..." */
} metrics;

static void begin(metrics *m, const char *name, const char *type, const char *help)
{
    strbuf_printf(m->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", m->prefix, name, help, m->prefix,
                  name, type);
}

static void put(metrics *m, const char *name, const char *more, double value)
{
    const bool labels = m->label.length || *more;
    strbuf_printf(m->out, "%s%s%s%s%s%s %.17g\n", m->prefix, name, labels ? "{" : "",
                  strbuf_text(&m->label), more, labels ? "}" : "", value);
}

static void put_one(metrics *m, const char *name, const char *type, const char *help, double value)
{
    begin(m, name, type, help);
    put(m, name, "", value);
}

static void put_histogram(metrics *m, const char *name, const char *help, const histogram *h)
{
    const double *bounds = histogram_bounds(h->unit);
    const char *label = strbuf_text(&m->label), *prefix = m->prefix;
    uint64_t below = 0;
    begin(m, name, "histogram", help);
    for (int i = 0; i < HISTOGRAM_BOUNDS; i++) {
        below += h->counts[i];
        strbuf_printf(m->out, "%s%s_bucket{%s,le=\"%g\"} %llu\n", prefix, name, label, bounds[i],
                      (unsigned long long)below);
    }
    strbuf_printf(m->out, "%s%s_bucket{%s,le=\"+Inf\"} %llu\n", prefix, name, label,
                  (unsigned long long)h->count);
    strbuf_printf(m->out, "%s%s_sum{%s} %.17g\n%s%s_count{%s} %llu\n", prefix, name, label, h->sum,
                  prefix, name, label, (unsigned long long)h->count);
}

/* ---- Names that vLLM has, too -------------------------------------------------------------- */

static void put_shared_counters(metrics *m, const batcher_stats *s)
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
    put_one(m, "prompt_tokens_cached_total", "counter", "Tokens of prompts that the cache had.",
            (double)s->cached_tokens);
    put_one(m, "spec_decode_num_drafts_total", "counter", "Drafts that were verified.",
            (double)s->drafts);
    begin(m, "spec_decode_num_accepted_tokens_per_pos_total", "counter",
          "Proposed tokens that were accepted, by their place in the draft.");
    for (int i = 0; i < STATS_DRAFT; i++) {
        char label[32];
        snprintf(label, sizeof label, ",position=\"%d\"", i);
        if (s->accepted_at[i] || i == 0)
            put(m, "spec_decode_num_accepted_tokens_per_pos_total", label,
                (double)s->accepted_at[i]);
    }
    put_one(m, "num_preemptions_total", "counter", "Choices that lost their pages to others.",
            (double)s->preemptions);
}

static void put_shared_gauges(metrics *m, const batcher_stats *s)
{
    put_one(m, "num_requests_running", "gauge", "Choices that have a slot.", (double)s->running);
    put_one(m, "num_requests_waiting", "gauge", "Choices that wait for one.", (double)s->waiting);
    put_one(m, "kv_cache_usage_perc", "gauge", "Share of the KV cache that choices hold, 0 to 1.",
            s->pages_total ? (double)s->pages_used / (double)s->pages_total : 0);
}

static void put_histograms(metrics *m, const batcher_stats *s)
{
    put_histogram(m, "time_to_first_token_seconds", "From arrival to the first token.",
                  &s->first_token);
    put_histogram(m, "inter_token_latency_seconds", "Between tokens of a choice.", &s->next_token);
    put_histogram(m, "e2e_request_latency_seconds", "From arrival to the end.", &s->end_to_end);
    put_histogram(m, "request_queue_time_seconds", "From arrival to a slot.", &s->queued);
    put_histogram(m, "request_prefill_time_seconds", "From a slot to the first token.",
                  &s->reading);
    put_histogram(m, "request_decode_time_seconds", "From the first token to the end.", &s->making);
    put_histogram(m, "request_inference_time_seconds", "From a slot to the end.", &s->running_time);
    put_histogram(m, "request_prompt_tokens", "Tokens of a prompt.", &s->prompt_length);
    put_histogram(m, "request_generation_tokens", "Tokens of an answer.", &s->answer_length);
    put_histogram(m, "request_params_max_tokens", "Most tokens of an answer.", &s->most_tokens);
    put_histogram(m, "request_time_per_output_token_seconds",
                  "Per token of a choice after its first.", &s->per_token);
    put_histogram(m, "request_prefill_kv_computed_tokens",
                  "Tokens of a prompt that the cache did not have.", &s->computed_length);
    put_histogram(m, "request_max_num_generation_tokens", "Tokens of a request's longest choice.",
                  &s->longest_answer);
    put_histogram(m, "request_params_n", "Choices of a request.", &s->choices);
    put_histogram(m, "iteration_tokens_total", "Tokens of a step.", &s->batch_length);
}

static void put_ends(metrics *m, const double ends[], const char *const reasons[], int n)
{
    begin(m, "request_success_total", "counter", "Choices that have ended, by their end.");
    for (int i = 0; i < n; i++) {
        char label[64];
        snprintf(label, sizeof label, ",finished_reason=\"%s\"", reasons[i]);
        put(m, "request_success_total", label, ends[i]);
    }
}

/* ---- Each prefix --------------------------------------------------------------------------- */

static void put_own(metrics *m, const batcher_stats *s)
{
    static const char *const reasons[] = {"stop", "stop_text", "length", "context", "abort"};
    enum { REASONS = QP_FINISH_CANCELLED - QP_FINISH_STOP_TOKEN + 1 };
    double ends[REASONS];
    for (int i = 0; i < REASONS; i++)
        ends[i] = (double)s->finished[QP_FINISH_STOP_TOKEN + i];
    put_shared_counters(m, s);
    put_one(m, "slots_given_up_total", "counter",
            "Choices that gave their slot up for a while and kept their pages.", (double)s->parked);
    put_one(m, "steps_total", "counter", "Calls of the engine.", (double)s->steps);
    put_one(m, "passes_total", "counter", "Forward passes.", (double)s->passes);
    put_ends(m, ends, reasons, REASONS);
    put_one(m, "request_failed_total", "counter", "Choices that failed, or whose time was over.",
            (double)(s->finished[REQUEST_FAILED] + s->finished[REQUEST_TIMED_OUT]));
    put_shared_gauges(m, s);
    put_one(m, "kv_cache_pages", "gauge", "Pages of the KV cache.", (double)s->pages_total);
    put_one(m, "kv_cache_pages_used", "gauge", "Pages that choices hold.", (double)s->pages_used);
    put_one(m, "kv_cache_pages_cached", "gauge", "Pages that the prefix cache alone holds.",
            (double)s->pages_cached);
    put_one(m, "engine_step_own_seconds", "gauge", "The engine thread's own time of a step, mean.",
            s->own_steps ? s->own_seconds / (double)s->own_steps : 0);
    put_histograms(m, s);
}

/* Names of the adapters that sequences use, which run or wait, with commas. */
static void put_adapters(const server *server, const batcher_stats *s, bool waiting, strbuf *out)
{
    uint64_t used = 0;
    strbuf names = {0};
    for (size_t i = 0; i < s->n_sequences; i++)
        if ((s->sequences[i].state == SEQUENCE_WAITING) == waiting)
            used |= s->sequences[i].adapters;
    for (int64_t i = 0; i < server->info.n_adapters; i++)
        if (used >> i & 1)
            strbuf_printf(&names, "%s%s", names.length ? "," : "", lora_name(server, i));
    json_put_string(out, strbuf_text(&names), names.length);
    strbuf_free(&names);
}

/* Its value is the time: routers take the latest of several. */
static void put_lora(metrics *m, const server *server, const batcher_stats *s)
{
    if (!server->info.n_adapters) return;
    begin(m, "lora_requests_info", "gauge", "Adapters of requests, in labels.");
    strbuf_printf(m->out,
                  "%slora_requests_info{%s,max_lora=\"%lld\",running_lora_adapters=", m->prefix,
                  strbuf_text(&m->label), (long long)server->info.n_adapters);
    put_adapters(server, s, false, m->out);
    strbuf_puts(m->out, ",waiting_lora_adapters=");
    put_adapters(server, s, true, m->out);
    strbuf_printf(m->out, "} %lld\n", (long long)time(NULL));
}

/* What vLLM tells of its states: quipu's engine never sleeps, and whatever waits lacks room. */
static void put_states(metrics *m, const batcher_stats *s)
{
    begin(m, "num_requests_waiting_by_reason", "gauge", "Choices that wait, by what they lack.");
    put(m, "num_requests_waiting_by_reason", ",reason=\"capacity\"", (double)s->waiting);
    begin(m, "engine_sleep_state", "gauge", "Whether the engine is in this state.");
    put(m, "engine_sleep_state", ",sleep_state=\"awake\"", 1);
}

/* vLLM's: sizes of the cache are labels, and reasons are those of OpenAI's API. */
static void put_vllm(metrics *m, const server *server, const batcher_stats *s)
{
    static const char *const reasons[] = {"stop", "length", "abort", "error"};
    const uint64_t *f = s->finished;
    const double ends[] = {
        (double)(f[QP_FINISH_STOP_TOKEN] + f[QP_FINISH_STOP_TEXT]),
        (double)(f[QP_FINISH_LENGTH] + f[QP_FINISH_CONTEXT]),
        (double)(f[QP_FINISH_CANCELLED] + f[REQUEST_TIMED_OUT]),
        (double)f[REQUEST_FAILED],
    };
    char label[96];
    m->prefix = "vllm:";
    strbuf_puts(&m->label, ",engine=\"0\"");
    put_shared_counters(m, s);
    put_ends(m, ends, reasons, sizeof ends / sizeof *ends);
    put_shared_gauges(m, s);
    begin(m, "cache_config_info", "gauge", "Sizes of the KV cache, in labels.");
    snprintf(label, sizeof label,
             ",block_size=\"%zu\",num_gpu_blocks=\"%zu\",enable_prefix_caching=\"True\"",
             s->page_size, s->pages_total);
    put(m, "cache_config_info", label, 1);
    put_states(m, s);
    put_lora(m, server, s);
    put_histograms(m, s);
}

/* llama.cpp's have no labels. */
static void put_llama_cpp(metrics *m, const batcher_stats *s)
{
    const double read = (double)(s->prompt_tokens - s->cached_tokens);
    m->prefix = "llamacpp:";
    strbuf_clear(&m->label);
    put_one(m, "prompt_tokens_total", "counter", "Tokens of prompts that were read.", read);
    put_one(m, "prompt_tokens_cached_total", "counter", "Tokens of prompts that the cache had.",
            (double)s->cached_tokens);
    put_one(m, "prompt_seconds_total", "counter", "Time in which prompts were read.",
            s->reading.sum);
    put_one(m, "tokens_predicted_total", "counter", "Tokens that were chosen.",
            (double)s->generated_tokens);
    put_one(m, "tokens_predicted_seconds_total", "counter", "Time in which tokens were chosen.",
            s->making.sum);
    put_one(m, "n_decode_total", "counter", "Forward passes.", (double)s->passes);
    put_one(m, "spec_decode_num_draft_tokens_total", "counter",
            "Proposed tokens that were verified.", (double)s->proposed_tokens);
    put_one(m, "spec_decode_num_accepted_tokens_total", "counter",
            "Proposed tokens that were accepted.", (double)s->accepted_tokens);
    put_one(m, "prompt_tokens_seconds", "gauge", "Tokens of prompts read in a second, mean.",
            s->reading.sum > 0 ? read / s->reading.sum : 0);
    put_one(m, "predicted_tokens_seconds", "gauge", "Tokens chosen in a second, mean.",
            s->making.sum > 0 ? (double)s->generated_tokens / s->making.sum : 0);
    put_one(m, "requests_processing", "gauge", "Choices that have a slot.", (double)s->running);
    put_one(m, "requests_deferred", "gauge", "Choices that wait for one.", (double)s->waiting);
}

/* The name that vLLM's server has from its HTTP library. */
static void put_statuses(metrics *m, const server *s)
{
    m->prefix = "";
    strbuf_clear(&m->label);
    begin(m, "http_requests_total", "counter", "Requests, by path and status.");
    for (const route *r = routes; r->method; r++) {
        for (int status = 1; status < HTTP_STATUSES; status++) {
            const uint64_t count = atomic_load(&s->statuses[r - routes][status]);
            if (count)
                strbuf_printf(m->out,
                              "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} "
                              "%llu\n",
                              r->path, r->method, status, (unsigned long long)count);
        }
    }
}

/* The names that Prometheus' own clients give; the heap is ours. */
static void put_process(metrics *m)
{
    const process_usage used = process_measure();
    metrics plain = {.out = m->out, .prefix = ""};
    put_one(m, "heap_bytes", "gauge", "Memory that malloc() has given out.", used.heap_bytes);
    put_one(&plain, "process_resident_memory_bytes", "gauge", "Memory of the process in RAM.",
            used.resident_bytes);
    put_one(&plain, "process_cpu_seconds_total", "counter", "Processor time of all threads.",
            used.cpu_seconds);
    put_one(&plain, "process_open_fds", "gauge", "Open files and connections.", used.open_files);
    put_one(&plain, "process_max_fds", "gauge", "Open files that the process may have.",
            used.open_files_most);
}

qp_status answer_metrics(call *c, api_error *error)
{
    batcher_stats stats;
    metrics m = {.out = &c->out, .prefix = "quipu:"};
    const char *alias = c->server->options->alias;
    qp_status status = batcher_snapshot(c->server->batcher, &stats, &error->error);
    if (status != QP_OK) return api_failed(error, status);
    strbuf_puts(&m.label, "model_name=");
    json_put_string(&m.label, alias, strlen(alias));
    put_own(&m, &stats);
    put_process(&m);
    if (!c->server->options->own_metrics) {
        put_vllm(&m, c->server, &stats);
        put_llama_cpp(&m, &stats);
    }
    put_statuses(&m, c->server);
    strbuf_free(&m.label);
    batcher_stats_free(&stats);
    return QP_OK;
}
