/* One answer during its generation: see generation.h. */
#include "engine/generation.h"

#include "base/clock.h"
#include "base/sized.h"

const char *qp_finish_name(qp_finish finish)
{
    static const char *const names[] = {"stop", "stop", "length", "context", "cancelled"};
    return names[finish];
}

/* Passes the pieces that are certain by now to the caller, and a token without text; -1: none. */
static qp_status hand_on_pieces(generation *g, int32_t token)
{
    const qp_generate_options *o = &g->options;
    qp_text_piece piece = {.size = sizeof piece};
    while (qp_text_stream_next(g->text, &piece))
        TRY(error_of_callback(o->on_text(o->context, &piece), g->error));
    if (!o->on_token || token < 0) return QP_OK;
    return error_of_callback(o->on_token(o->context, token, "", 0), g->error);
}

/* Passes the text that is certain by now to the caller, with a token; -1: without one, which an
 * empty text is not worth. */
static qp_status hand_on(generation *g, int32_t token)
{
    qp_text_piece piece = {.size = sizeof piece};
    if (g->options.on_text) return hand_on_pieces(g, token);
    const bool some = qp_text_stream_next(g->text, &piece);
    if (!g->options.on_token || (token < 0 && !some)) return QP_OK;
    return error_of_callback(
        g->options.on_token(g->options.context, token, some ? piece.text : "", piece.length),
        g->error);
}

static qp_status finish_text(generation *g)
{
    if (!g->text) return QP_OK; /* it was refused before it began */
    TRY(qp_text_stream_end(g->text, g->error));
    const qp_status status = hand_on(g, -1);
    return status == QP_CANCELLED ? QP_OK : status;
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
    TRY(qp_text_stream_add(g->text, token, g->error));
    const bool stopped = qp_text_stream_ended(g->text, finish, NULL);
    if (stopped && *finish == QP_FINISH_STOP_TOKEN) return QP_OK;
    g->result.generated_tokens++;
    const qp_status status = hand_on(g, token);
    g->cancelled = status == QP_CANCELLED;
    if (g->cancelled) return *finish = QP_FINISH_CANCELLED, QP_OK;
    if (status != QP_OK || stopped) return status;
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

static qp_status on_token(void *context, int32_t token)
{
    generation *g = context;
    bool ended = true;
    if (!g->begun) g->begun = working_ns(g);
    g->last = token;
    g->taken = take_token(g, token, &ended);
    g->goes_on = !ended;
    return ended ? QP_CANCELLED : QP_OK;
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
    return QP_OK;
}

qp_status generation_open(generation *g, qp_session *session, const qp_generate_options *options,
                          qp_generate_result *result, qp_error *error)
{
    *g = (generation){.session = session, .goes_on = true, .error = error};
    g->opened = working_ns(g);
    if (result) TRY(SIZED_WRITE(qp_generate_result, &g->result, result, error));
    g->wanted = result;
    TRY(read_options(g, options, error));
    TRY(check_options(&g->options, error));
    const qp_generate_options *o = &g->options;
    const qp_text_stream_options text = {.size = sizeof text,
                                         .sampling = &g->sampling,
                                         .special = o->special,
                                         .thinking = o->on_text != NULL,
                                         .tools = o->tools,
                                         .n_tools = o->on_text ? o->n_tools : 0,
                                         .prompt = o->prompt,
                                         .n_prompt = o->n_prompt};
    TRY(qp_text_stream_open(session->engine->vocabulary, &text, &g->text, error));
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
    return status == QP_OK && !g->cancelled ? finish_text(g) : status;
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
    qp_text_stream_close(g->text);
    return status;
}
