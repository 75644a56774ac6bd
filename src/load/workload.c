#include "load/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Keys of parts: keys of shared parts and of other parts must differ. */
enum { KEY_PREFIX = 1, KEY_OWN = 2, KEY_BLOCK = 3, KEY_ARRIVAL = 4, KEY_SAMPLE = 5 };

static qp_status check_options(const load_options *o, qp_error *error)
{
    if (o->shared_prefix > o->input_tokens)
        return error_set(error, QP_INVALID,
                         "--shared-prefix %lld is longer than the prompts of --input-tokens %lld",
                         (long long)o->shared_prefix, (long long)o->input_tokens);
    if (o->vocab_size && o->vocab_size < 64)
        return error_set(error, QP_INVALID, "--vocab-size is %lld; at least 64 ids are needed",
                         (long long)o->vocab_size);
    if (o->text && !o->text_length)
        return error_set(error, QP_INVALID, "the text that prompts are taken from is empty");
    return QP_OK;
}

/* The trace's number of tokens, scaled; at least one. */
static int64_t scaled(const workload *w, int64_t tokens)
{
    double value = (double)tokens * w->options->scale;
    return value < 1 ? 1 : (int64_t)value;
}

static uint64_t key_of(int kind, uint64_t id)
{
    return prompt_mix((uint64_t)kind, id);
}

/* Whether row i belongs to a conversation of the sample. All conversations often share the first
 * block of a prompt, a system prompt, so the second block tells them apart. */
static bool is_sampled(const workload *w, size_t i)
{
    const trace_request *r = &w->trace.requests[i];
    if (w->options->sample < 2) return true;
    uint64_t conversation = r->n_blocks ? w->trace.blocks[r->first_block + (r->n_blocks > 1)] : i;
    uint64_t key = prompt_mix(w->options->seed, key_of(KEY_SAMPLE, conversation));
    return key % (uint64_t)w->options->sample == 0;
}

static qp_status choose_rows(workload *w, qp_error *error)
{
    const load_options *o = w->options;
    size_t most = o->requests ? (size_t)o->requests : SIZE_MAX;
    size_t most_blocks = 0;
    w->rows = calloc(w->trace.n_requests, sizeof *w->rows);
    if (!w->rows) return error_no_memory(error, "the trace", w->trace.n_requests);
    for (size_t i = (size_t)o->skip; i < w->trace.n_requests && w->n_rows < most; i++) {
        const trace_request *r = &w->trace.requests[i];
        int64_t need = scaled(w, r->input_tokens) + scaled(w, r->output_tokens);
        if (!is_sampled(w, i)) continue;
        if (o->context && need > o->context) {
            w->left_out++;
            continue;
        }
        if (r->n_blocks > most_blocks) most_blocks = r->n_blocks;
        w->rows[w->n_rows++] = i;
    }
    if (!w->n_rows)
        return error_set(
            error, QP_INVALID,
            "no request of the trace can be run: %zu of its %zu need more than --context "
            "%lld positions, --skip leaves out %lld, and --sample keeps one in %lld",
            w->left_out, w->trace.n_requests, (long long)o->context, (long long)o->skip,
            (long long)o->sample);
    w->trace_begin = w->trace.requests[w->rows[0]].seconds;
    w->parts = calloc(most_blocks + 2, sizeof *w->parts);
    return w->parts ? QP_OK : error_no_memory(error, "a prompt", most_blocks);
}

qp_status workload_open(const load_options *options, workload *out, qp_error *error)
{
    *out = (workload){.options = options,
                      .source = {options->seed, options->vocab_size, options->text,
                                 options->text ? options->text_length : 0},
                      .ids = !options->chat && !options->text && !options->words};
    TRY(check_options(options, error));
    if (options->replay) {
        TRY(trace_file_read(options->replay, options->replay_length, &out->trace, error));
        return choose_rows(out, error);
    }
    out->parts = calloc(2, sizeof *out->parts);
    return out->parts ? QP_OK : error_no_memory(error, "a prompt", 0);
}

void workload_close(workload *w)
{
    trace_file_free(&w->trace);
    free(w->rows);
    free(w->parts);
    *w = (workload){0};
}

size_t workload_count(const workload *w)
{
    if (w->options->replay) return w->n_rows;
    return w->options->requests ? (size_t)w->options->requests : SIZE_MAX;
}

bool workload_has_arrivals(const workload *w)
{
    return w->options->replay || w->options->rate > 0;
}

/* Evenly distributed in (0, 1]. */
static double uniform(uint64_t seed, uint64_t i)
{
    return (double)((prompt_mix(seed, i) >> 11) + 1) * 0x1p-53;
}

double workload_arrival(const workload *w, size_t i, double before)
{
    if (w->options->replay)
        return (w->trace.requests[w->rows[i]].seconds - w->trace_begin) / w->options->speed;
    if (i == 0) return 0;
    return before - log(uniform(prompt_mix(w->options->seed, KEY_ARRIVAL), i)) / w->options->rate;
}

/* The row of the trace for request i; the warm-up starts at the first row. */
static const trace_request *row_of(const workload *w, size_t i)
{
    if (i >= WORKLOAD_WARMUP) i -= WORKLOAD_WARMUP;
    return &w->trace.requests[w->rows[i % w->n_rows]];
}

void workload_lengths(const workload *w, size_t i, int64_t *input, int64_t *output)
{
    *input = w->options->input_tokens;
    *output = w->options->output_tokens;
    if (!w->options->replay) return;
    *input = scaled(w, row_of(w, i)->input_tokens);
    *output = scaled(w, row_of(w, i)->output_tokens);
}

int64_t workload_block(const workload *w)
{
    return scaled(w, TRACE_BLOCK);
}

const uint64_t *workload_blocks(const workload *w, size_t i, size_t *n)
{
    *n = w->options->replay ? row_of(w, i)->n_blocks : 0;
    return *n ? w->trace.blocks + row_of(w, i)->first_block : NULL;
}

/* The prompt of a row with hash_ids: one part for each block, and one for the remaining tokens. The
 * warm-up shares no blocks with the measured requests, so it does not fill the prefix cache for
 * them. */
static size_t block_parts(const workload *w, size_t i, int64_t n_tokens)
{
    const trace_request *row = row_of(w, i);
    const int64_t block = workload_block(w);
    size_t n = 0;
    if (i >= WORKLOAD_WARMUP) return 0;
    for (; n < row->n_blocks && n_tokens > 0; n++) {
        int64_t take = n_tokens < block ? n_tokens : block;
        w->parts[n] = (prompt_part){key_of(KEY_BLOCK, w->trace.blocks[row->first_block + n]), take};
        n_tokens -= take;
    }
    return n;
}

static size_t prompt_parts(const workload *w, size_t i)
{
    const load_options *o = w->options;
    int64_t input, output, given = 0;
    size_t n = 0;
    workload_lengths(w, i, &input, &output);
    if (o->replay)
        n = block_parts(w, i, input);
    else if (o->shared_prefix)
        w->parts[n++] = (prompt_part){key_of(KEY_PREFIX, (uint64_t)i % (uint64_t)o->prefix_groups),
                                      o->shared_prefix};
    for (size_t k = 0; k < n; k++)
        given += w->parts[k].n_tokens;
    if (input > given) w->parts[n++] = (prompt_part){key_of(KEY_OWN, i), input - given};
    return n;
}

void workload_body(const workload *w, size_t i, strbuf *out)
{
    const load_options *o = w->options;
    int64_t input, output;
    size_t n = prompt_parts(w, i);
    workload_lengths(w, i, &input, &output);
    strbuf_puts(out, "{\"model\":");
    strbuf_puts(out, w->model); /* already a JSON string */
    strbuf_puts(out, o->chat ? ",\"messages\":[{\"role\":\"user\",\"content\":" : ",\"prompt\":");
    if (w->ids)
        prompt_ids(&w->source, w->parts, n, out);
    else
        prompt_text(&w->source, w->parts, n, out);
    if (o->chat) strbuf_puts(out, "}]");
    strbuf_printf(out, ",\"max_tokens\":%lld,\"temperature\":%.9g,\"stream\":true",
                  (long long)output, o->temperature);
    strbuf_puts(out, ",\"stream_options\":{\"include_usage\":true}");
    if (o->ignore_eos) strbuf_puts(out, ",\"ignore_eos\":true");
    strbuf_putc(out, '}');
}
