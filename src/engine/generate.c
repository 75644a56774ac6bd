/* The generator: prompt in, tokens and text out. See qp_generate() in quipu.h, and generation.h. */
#include "engine/generation.h"

#include "base/clock.h"

#include <string.h>

const char *qp_finish_name(qp_finish finish)
{
    static const char *const names[] = {"stop", "stop", "length", "context", "cancelled"};
    return names[finish];
}

qp_status generation_keep_logits(void *session, size_t input, size_t token, const float *logits)
{
    (void)input, (void)token;
    qp_session *s = session;
    memcpy(s->logits, logits, (size_t)s->engine->plan.config.vocab_size * sizeof *logits);
    return QP_OK;
}

static qp_status eval(generation *g, const int32_t *tokens, size_t count, qp_error *error)
{
    qp_input input = {.session = g->session, .tokens = tokens, .count = count};
    return qp_eval(g->session->engine, &input, 1, generation_keep_logits, g->session,
                   g->options->cancel, error);
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

bool generation_hand_out(generation *g, int32_t token)
{
    bool ended = true;
    g->held++;
    g->last = token;
    g->taken = take_token(g, token, &ended);
    return g->goes_on = !ended;
}

static bool hand_out(void *context, const int32_t *tokens)
{
    return generation_hand_out(context, tokens[0]);
}

bool generation_is_cancelled(const generation *g)
{
    return g->options->cancel && *g->options->cancel;
}

int64_t generation_interval(const generation *g, int64_t usual)
{
    const qp_generate_options *o = g->options;
    int64_t count = o->eos_interval ? o->eos_interval : usual;
    int64_t room = g->session->engine->plan.options.context - (int64_t)g->session->count;
    int64_t left = o->max_tokens - (int64_t)g->result->generated_tokens;
    if (o->max_tokens && left < count) count = left;
    return room < count ? room : count;
}

/* Reads up to *count tokens, of which the first is given, and then hands out those that it has made
 * after them. *count: how many there were. A failure comes after the tokens that were made before
 * it. */
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
    for (int64_t i = 1; i <= made && g->goes_on && !generation_is_cancelled(g); i++)
        generation_hand_out(g, tokens[i]);
    return status;
}

/* Makes the request one for `count` passes of the session, which reads `token` first. */
static qp_status fill_request(generation *g, int64_t count, int32_t token, machine_request *request)
{
    qp_session *s = g->session;
    qp_engine *e = s->engine;
    TRY(session_take_pages(s, 0, (size_t)count, g->error));
    s->rope_length = (int64_t)s->count + count;
    batch_clear(&e->batch);
    batch_add_ahead(&e->batch, token, (int64_t)s->count, s->rope_length, s->pages.pages);
    batch_want(&e->batch, 0);
    sampler_set_row(&g->sampler, &e->batch, 0, s->count + 1);
    request->batch = &e->batch;
    request->passes = (int)count;
    return QP_OK;
}

/* The same as make_tokens(), by a machine that feeds tokens back to itself and hands them out as
 * they come. */
static qp_status feed_back(generation *g, machine_request *request, int64_t *count, int32_t *tokens)
{
    qp_session *s = g->session;
    int passes = 0;
    engine_run run;
    qp_status status = fill_request(g, *count, tokens[0], request);
    *count = 0;
    TRY(status);
    request->tokens = tokens + 1;
    run.request = *request;
    TRY(engine_begin_run(s->engine, &run, g->error));
    TRY(engine_end_run(s->engine, &run, &passes, g->error));
    memcpy(s->tokens + s->count, tokens, (size_t)passes * sizeof *tokens);
    s->count += (size_t)passes;
    *count = passes;
    return QP_OK;
}

/* Whether the engine has a machine that makes many tokens of one sequence at a time, of the
 * request's kind; *usual: how many. */
static qp_status find_pace(generation *g, machine_request *request, int64_t *usual)
{
    qp_session *s = g->session;
    const machine_pace pace = engine_pace(s->engine, 1, request->choice);
    *usual = 1;
    if (pace.runs > 1 || pace.passes < 2 || generation_interval(g, 1) < 1) return QP_OK;
    TRY(fill_request(g, 1, g->last, request));
    if (engine_find_machine(s->engine, request)) *usual = pace.passes;
    return QP_OK;
}

qp_status generation_go_on(generation *g)
{
    machine_penalties penalties;
    machine_request request = {.on_tokens = hand_out, .context = g, .cancel = g->options->cancel};
    int32_t tokens[QP_MAX_EOS_INTERVAL + 1]; /* one that is to be read, and those after it */
    int64_t usual = 1;
    qp_status status = QP_OK;
    sampler_hand_over(&g->sampler, &penalties, &request);
    if (g->goes_on) status = find_pace(g, &request, &usual);
    while (g->goes_on && status == QP_OK) {
        int64_t count = generation_interval(g, usual);
        if (generation_is_cancelled(g)) return error_set(g->error, QP_CANCELLED, "cancelled");
        tokens[0] = g->last;
        status =
            usual > 1 ? feed_back(g, &request, &count, tokens) : make_tokens(g, &count, tokens);
        penalties.fresh = false;
        g->result->generate_passes += (uint64_t)count;
    }
    return status;
}

static qp_status check_options(const qp_generate_options *o, qp_error *error)
{
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
    return QP_OK;
}

qp_status generation_open(generation *g, qp_session *session, const qp_generate_options *options,
                          qp_generate_result *result, qp_error *error)
{
    const qp_vocabulary *vocabulary = session->engine->vocabulary;
    *g = (generation){
        .session = session,
        .options = options,
        .result = result ? result : &g->own,
        .opened = clock_ns(),
        .error = error,
        .stop = {.stops = options->sampling->stops, .n_stops = options->sampling->n_stops}};
    *g->result = (qp_generate_result){0};
    if (vocabulary)
        tokenizer_decoder_init(&g->decoder, vocabulary->tokenizer,
                               TOKENIZER_DECODE_CONTINUE |
                                   (options->special ? TOKENIZER_DECODE_CONTROL : 0));
    TRY(check_options(options, error));
    return sampler_init(&g->sampler, session->engine, options->sampling, error);
}

void generation_begin(generation *g)
{
    qp_session *s = g->session;
    const size_t n = g->options->n_prompt, chunk = (size_t)s->engine->plan.options.max_tokens;
    for (size_t i = 0; i < s->count; i++)
        sampler_see(&g->sampler, s->tokens[i]);
    g->result->prompt_tokens = n;
    g->result->prompt_passes = g->result->shared_tokens ? 0 : (n + chunk - 1) / chunk;
    g->begun = clock_ns();
    g->held = s->count - 1;
    generation_hand_out(g, sampler_pick(&g->sampler, s->logits, s->count));
}

/* What the status of making tokens means for the answer. */
static qp_status finish(generation *g, qp_status status)
{
    bool ended = g->begun && !g->goes_on;
    if (g->begun) qp_session_truncate(g->session, g->held);
    if (ended) status = g->taken;
    if (!ended && status == QP_CANCELLED) {
        g->result->finish = QP_FINISH_CANCELLED;
        status = QP_OK;
    }
    return status == QP_OK ? finish_text(g, g->error) : status;
}

qp_status generation_close(generation *g, qp_status status)
{
    status = finish(g, status);
    uint64_t now = clock_ns(), begun = g->begun ? g->begun : now;
    g->result->prompt_seconds = (double)(begun - g->opened) * 1e-9;
    g->result->generate_seconds = (double)(now - begun) * 1e-9;
    sampler_free(&g->sampler);
    strbuf_free(&g->stop.pending);
    return status;
}

qp_status qp_generate(qp_session *session, const qp_generate_options *options,
                      qp_generate_result *result, qp_error *error)
{
    generation g;
    qp_status status = generation_open(&g, session, options, result, error);
    if (status == QP_OK) status = eval(&g, options->prompt, options->n_prompt, error);
    if (status == QP_OK) generation_begin(&g);
    if (status == QP_OK) status = generation_go_on(&g);
    return generation_close(&g, status);
}
