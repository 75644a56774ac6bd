/* The generator: prompt in, tokens and text out. See qp_generate() in quipu.h. */
#include "base/clock.h"
#include "generate/engine.h"
#include "generate/sampler.h"
#include "generate/stop_text.h"

#include <string.h>

enum { DEVICE_EOS_INTERVAL = 16 }; /* tokens that a GPU makes in one launch */

/* One call of qp_generate(). */
typedef struct generation {
    qp_session *session;
    const qp_generate_options *options;
    qp_generate_result *result;
    sampler sampler;
    tokenizer_decoder decoder; /* tokenizer NULL: the model has no vocabulary */
    stop_text stop;
    size_t held;     /* tokens that the session held when the last one handed out was made */
    qp_status taken; /* what became of that one */
    bool goes_on;    /* it did not end the answer */
    qp_error *error;
} generation;

const char *qp_finish_name(qp_finish finish)
{
    static const char *const names[] = {"stop", "stop_text", "length", "context", "cancelled"};
    return names[finish];
}

static qp_status keep_logits(void *context, size_t input, size_t token, const float *logits)
{
    (void)input, (void)token;
    qp_session *s = context;
    memcpy(s->logits, logits, (size_t)s->engine->plan.config.vocab_size * sizeof *logits);
    return QP_OK;
}

static qp_status eval(generation *g, const int32_t *tokens, size_t count, qp_error *error)
{
    qp_input input = {.session = g->session, .tokens = tokens, .count = count};
    return qp_eval(g->session->engine, &input, 1, keep_logits, g->session, g->options->cancel,
                   error);
}

static bool is_stop_token(const qp_sampling *sampling, int32_t token)
{
    for (size_t i = 0; i < sampling->n_stop_tokens; i++) {
        if (sampling->stop_tokens[i] == token) return true;
    }
    return false;
}

/* A callback may have said itself what went wrong. */
static qp_status handed_on(qp_status status, qp_error *error)
{
    if (status == QP_OK || (error && error->status == status)) return status;
    return error_set(error, status, "the answer could not be handed on");
}

/* Hands out what is certain of the pending text; all of it at the end. */
static qp_status emit(generation *g, int32_t token, bool at_end)
{
    size_t certain = stop_text_scan(&g->stop);
    if (at_end) certain = g->stop.pending.length;
    qp_status status = QP_OK;
    if (g->options->on_token && (token >= 0 || certain > 0))
        status = g->options->on_token(g->options->context, token, strbuf_text(&g->stop.pending),
                                      certain);
    stop_text_consume(&g->stop, certain);
    return status;
}

static qp_status add_text(generation *g, int32_t token, qp_error *error)
{
    if (g->decoder.tokenizer && token < tokenizer_vocab_size(g->decoder.tokenizer))
        TRY(tokenizer_decoder_push(&g->decoder, token, &g->stop.pending, error));
    return handed_on(emit(g, token, false), error);
}

static qp_status finish_text(generation *g, qp_error *error)
{
    if (g->decoder.tokenizer && !g->stop.found)
        TRY(tokenizer_decoder_flush(&g->decoder, &g->stop.pending, error));
    if (g->stop.pending.failed) return error_no_memory(error, "the text", g->stop.pending.length);
    return handed_on(emit(g, -1, true), error);
}

/* Hands a token out; *ended stays as it is unless the answer goes on. */
static qp_status take_token(generation *g, int32_t token, bool *ended)
{
    const qp_generate_options *o = g->options;
    qp_finish *finish = &g->result->finish;
    if (is_stop_token(o->sampling, token)) return *finish = QP_FINISH_STOP_TOKEN, QP_OK;
    g->result->generated_tokens++;
    TRY(add_text(g, token, g->error));
    if (g->stop.found) return *finish = QP_FINISH_STOP_TEXT, QP_OK;
    if (o->max_tokens && g->result->generated_tokens >= (size_t)o->max_tokens)
        return *finish = QP_FINISH_LENGTH, QP_OK;
    if (g->held >= (size_t)g->session->engine->plan.options.context)
        return *finish = QP_FINISH_CONTEXT, QP_OK;
    *ended = false;
    return QP_OK;
}

/* The next token of the answer; whether it goes on. */
static bool hand_out(void *context, int32_t token)
{
    generation *g = context;
    bool ended = true;
    g->held++;
    g->taken = take_token(g, token, &ended);
    return g->goes_on = !ended;
}

static bool is_cancelled(const generation *g)
{
    return g->options->cancel && *g->options->cancel;
}

/* On the CPU: reads up to *count tokens, of which the first is given, and then hands out those that
 * it has made behind them. *count: how many there were. A failure comes behind the tokens that were
 * made before it. */
static qp_status make_tokens(generation *g, int64_t *count, int32_t *tokens)
{
    const qp_session *s = g->session;
    qp_status status = QP_OK;
    int64_t made = 0;
    for (; made < *count; made++) {
        status = eval(g, &tokens[made], 1, g->error);
        if (status != QP_OK) break;
        tokens[made + 1] = sampler_pick(&g->sampler, s->logits, s->count);
    }
    *count = made;
    for (int64_t i = 1; i <= made && g->goes_on && !is_cancelled(g); i++)
        hand_out(g, tokens[i]);
    return status;
}

/* Samples until something ends the answer, as the result says then. The session forgets what was
 * made past the end. */
static qp_status answer(generation *g)
{
    qp_session *s = g->session;
    const int64_t context = s->engine->plan.options.context;
    const bool on_device = sampler_is_on_device(&g->sampler);
    const int64_t usual = on_device ? DEVICE_EOS_INTERVAL : 1;
    const int64_t interval = g->options->eos_interval ? g->options->eos_interval : usual;
    cuda_mega_way way = {.on_token = hand_out, .context = g, .cancel = g->options->cancel};
    int32_t tokens[QP_MAX_EOS_INTERVAL + 1]; /* one that is to be read, and those behind it */
    g->held = s->count - 1;
    tokens[0] = sampler_pick(&g->sampler, s->logits, s->count);
    hand_out(g, tokens[0]);
    qp_status status = QP_OK;
    if (g->goes_on && on_device) status = sampler_hand_over(&g->sampler, &way, g->error);
    while (g->goes_on && status == QP_OK) {
        int64_t count = interval, room = context - (int64_t)s->count;
        int64_t left = g->options->max_tokens - (int64_t)g->result->generated_tokens;
        if (is_cancelled(g)) status = error_set(g->error, QP_CANCELLED, "cancelled");
        if (status != QP_OK) break;
        if (g->options->max_tokens && left < count) count = left;
        if (room < count) count = room;
        status = on_device ? session_feed_back(s, &way, &count, tokens, g->error)
                           : make_tokens(g, &count, tokens);
        g->result->generate_passes += (uint64_t)count;
        tokens[0] = tokens[count];
    }
    qp_session_truncate(s, g->held);
    if (!g->goes_on) return g->taken;
    if (status == QP_CANCELLED) return g->result->finish = QP_FINISH_CANCELLED, QP_OK;
    return status;
}

static qp_status prefill(generation *g, qp_error *error)
{
    const qp_generate_options *o = g->options;
    if (o->n_prompt == 0)
        return error_set(error, QP_INVALID,
                         "the prompt is empty: at least one token is needed to begin from");
    if (o->eos_interval < 0 || o->eos_interval > QP_MAX_EOS_INTERVAL)
        return error_set(error, QP_INVALID, "the EOS interval must be 0 to %d, found %lld",
                         QP_MAX_EOS_INTERVAL, (long long)o->eos_interval);
    for (size_t i = 0; i < o->sampling->n_stops; i++) {
        if (!*o->sampling->stops[i])
            return error_set(error, QP_INVALID, "a stop text must not be empty");
    }
    size_t before;
    const int32_t *held = qp_session_tokens(g->session, &before);
    int64_t chunk = g->session->engine->plan.options.max_tokens;
    TRY(sampler_init(&g->sampler, g->session->engine, o->sampling, error));
    TRY(eval(g, o->prompt, o->n_prompt, error));
    for (size_t i = 0; i < before + o->n_prompt; i++)
        sampler_see(&g->sampler, held[i]);
    g->result->prompt_tokens = o->n_prompt;
    g->result->prompt_passes = (o->n_prompt + (size_t)chunk - 1) / (size_t)chunk;
    return QP_OK;
}

static qp_status run(generation *g, qp_error *error)
{
    uint64_t start = clock_ns();
    qp_status status = prefill(g, error);
    uint64_t prompted = clock_ns();
    g->result->prompt_seconds = (double)(prompted - start) * 1e-9;
    if (status == QP_CANCELLED) {
        g->result->finish = QP_FINISH_CANCELLED;
        return QP_OK;
    }
    if (status == QP_OK) status = answer(g);
    if (status == QP_OK) status = finish_text(g, error);
    g->result->generate_seconds = (double)(clock_ns() - prompted) * 1e-9;
    return status;
}

qp_status qp_generate(qp_session *session, const qp_generate_options *options,
                      qp_generate_result *result, qp_error *error)
{
    qp_generate_result own;
    generation g = {
        .session = session,
        .options = options,
        .result = result ? result : &own,
        .error = error,
        .stop = {.stops = options->sampling->stops, .n_stops = options->sampling->n_stops}};
    *g.result = (qp_generate_result){0};
    const qp_vocabulary *vocabulary = session->engine->vocabulary;
    if (vocabulary)
        tokenizer_decoder_init(&g.decoder, vocabulary->tokenizer,
                               TOKENIZER_DECODE_CONTINUE |
                                   (options->special ? TOKENIZER_DECODE_CONTROL : 0));
    qp_status status = run(&g, error);
    sampler_free(&g.sampler);
    strbuf_free(&g.stop.pending);
    return status;
}
