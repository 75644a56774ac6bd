/* One answer during its generation: see generation.h. */
#include "engine/generation.h"

#include "base/clock.h"
#include "base/sized.h"

const char *qp_finish_name(qp_finish finish)
{
    static const char *const names[] = {"stop", "stop", "length", "context", "cancelled"};
    return names[finish];
}

static bool is_stop_token(const qp_sampling *sampling, int32_t token)
{
    for (size_t i = 0; i < sampling->n_stop_tokens; i++) {
        if (sampling->stop_tokens[i] == token) return true;
    }
    return false;
}

/* The callback may have written the message itself. */
static qp_status handed_on(qp_status status, qp_error *error)
{
    if (status == QP_OK || (error && error->status == status)) return status;
    return error_set(error, status, "the answer could not be handed on");
}

/* Passes the certain part of the pending text to the caller; at the end all of it. */
static qp_status emit(generation *g, int32_t token, bool at_end)
{
    size_t certain = stop_text_scan(&g->stop);
    if (at_end) certain = g->stop.pending.length;
    qp_status status = QP_OK;
    if (g->options.on_token && (token >= 0 || certain > 0))
        status =
            g->options.on_token(g->options.context, token, strbuf_text(&g->stop.pending), certain);
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

/* The sampler chooses from the tokens with which the answer's form goes on. */
static qp_status bind(generation *g)
{
    const uint32_t *allowed;
    TRY(qp_matcher_allowed(g->matcher, &allowed, g->error));
    return qp_sampler_allow(g->sampler, allowed, g->error);
}

static qp_status open_matcher(generation *g)
{
    if (!g->sampling.grammar) return QP_OK;
    TRY(qp_matcher_open(g->session->engine, &g->sampling, &g->matcher, g->error));
    return bind(g);
}

/* Passes a token to the caller; sets *ended if the answer ends. The session holds all tokens before
 * this one. */
static qp_status take_token(generation *g, int32_t token, bool *ended)
{
    const qp_generate_options *o = &g->options;
    const qp_session *s = g->session;
    qp_finish *finish = &g->result.finish;
    if (is_stop_token(o->sampling, token)) return *finish = QP_FINISH_STOP_TOKEN, QP_OK;
    g->result.generated_tokens++;
    TRY(add_text(g, token, g->error));
    if (g->stop.found) return *finish = QP_FINISH_STOP_TEXT, QP_OK;
    if (o->max_tokens && g->result.generated_tokens >= (size_t)o->max_tokens)
        return *finish = QP_FINISH_LENGTH, QP_OK;
    if (s->count >= (size_t)s->engine->program.options.context)
        return *finish = QP_FINISH_CONTEXT, QP_OK;
    if (g->matcher) {
        TRY(qp_matcher_take(g->matcher, token, g->error));
        TRY(bind(g));
    }
    *ended = false;
    return QP_OK;
}

/* The time, without that in which the engine has packed weights: it is a part of loading them. */
static uint64_t working_ns(const generation *g)
{
    return clock_ns() - machine_packing_ns(engine_memory(g->session->engine));
}

static bool on_token(void *context, int32_t token)
{
    generation *g = context;
    bool ended = true;
    if (!g->begun) g->begun = working_ns(g);
    g->last = token;
    g->taken = take_token(g, token, &ended);
    return g->goes_on = !ended;
}

bool generation_is_cancelled(const generation *g)
{
    return engine_is_closing(g->session->engine) || (g->options.cancel && *g->options.cancel);
}

qp_sequence generation_sequence(generation *g, const qp_sequence *like)
{
    const qp_generate_options *o = &g->options;
    qp_sequence s = {.size = sizeof s,
                     .session = g->session,
                     .tokens = g->begun ? &g->last : o->prompt + g->read,
                     .count = g->begun ? 1 : o->n_prompt - g->read,
                     .like = like,
                     .sampler = g->sampler,
                     .interval = (size_t)o->eos_interval,
                     .cancel = o->cancel,
                     .on_token = on_token,
                     .context = g};
    if (o->max_tokens) s.max_tokens = (size_t)o->max_tokens - g->result.generated_tokens;
    return s;
}

void generation_take(generation *g, const qp_sequence *s)
{
    g->result.proposed_tokens += s->proposed;
    g->result.accepted_tokens += s->accepted;
    if (g->read == g->options.n_prompt) {
        g->result.generate_passes += s->passes;
        return;
    }
    g->read += s->read;
    if (s->like) g->result.shared_tokens += s->read;
    g->result.prompt_passes += s->passes;
    g->result.prompt_tokens = g->read;
}

static qp_status check_options(const qp_generate_options *o, qp_error *error)
{
    if (o->n_prompt == 0)
        return error_set(error, QP_INVALID,
                         "the prompt is empty: at least one token is needed to begin from");
    if (o->max_tokens < 0)
        return error_set(error, QP_INVALID,
                         "max_tokens must be 0 (until the context is full) or more, found %lld",
                         (long long)o->max_tokens);
    if (o->eos_interval < 0 || o->eos_interval > QP_MAX_EOS_INTERVAL)
        return error_set(error, QP_INVALID, "the EOS interval must be 0 to %d, found %lld",
                         QP_MAX_EOS_INTERVAL, (long long)o->eos_interval);
    for (size_t i = 0; i < o->sampling->n_stops; i++) {
        if (!*o->sampling->stops[i])
            return error_set(error, QP_INVALID, "a stop text must not be empty");
    }
    return QP_OK;
}

/* Reads the caller's structs, which may have another size. */
static qp_status read_options(generation *g, const qp_generate_options *options, qp_error *error)
{
    TRY(SIZED_READ(qp_generate_options, options, &g->options, error));
    g->sampling.size = sizeof g->sampling;
    if (g->options.sampling)
        TRY(SIZED_READ(qp_sampling, g->options.sampling, &g->sampling, error));
    else
        TRY(qp_sampling_defaults(g->session->engine, &g->sampling, error));
    g->options.sampling = &g->sampling;
    g->stop = (stop_text){.stops = g->sampling.stops, .n_stops = g->sampling.n_stops};
    return QP_OK;
}

qp_status generation_open(generation *g, qp_session *session, const qp_generate_options *options,
                          qp_generate_result *result, qp_error *error)
{
    const qp_vocabulary *vocabulary = session->engine->vocabulary;
    *g = (generation){.session = session, .goes_on = true, .error = error};
    g->opened = working_ns(g);
    if (result) TRY(SIZED_WRITE(qp_generate_result, &g->result, result, error));
    g->wanted = result;
    TRY(read_options(g, options, error));
    if (vocabulary)
        tokenizer_decoder_init(&g->decoder, vocabulary->tokenizer,
                               TOKENIZER_DECODE_CONTINUE |
                                   (g->options.special ? TOKENIZER_DECODE_CONTROL : 0));
    TRY(check_options(&g->options, error));
    TRY(engine_open_sampler(session->engine, &g->sampling, &g->sampler, error));
    return open_matcher(g);
}

/* Converts the status of qp_step() to the answer's finish reason. */
static qp_status finish(generation *g, qp_status status)
{
    if (!g->goes_on) status = g->taken;
    if (g->goes_on && status == QP_CANCELLED) {
        g->result.finish = QP_FINISH_CANCELLED;
        status = QP_OK;
    }
    return status == QP_OK ? finish_text(g, g->error) : status;
}

qp_status generation_close(generation *g, qp_status status)
{
    status = finish(g, status);
    uint64_t now = working_ns(g), begun = g->begun ? g->begun : now;
    g->result.prompt_seconds = (double)(begun - g->opened) * 1e-9;
    g->result.generate_seconds = (double)(now - begun) * 1e-9;
    if (g->wanted) SIZED_WRITE(qp_generate_result, &g->result, g->wanted, NULL);
    qp_sampler_close(g->sampler);
    qp_matcher_close(g->matcher);
    strbuf_free(&g->stop.pending);
    return status;
}
