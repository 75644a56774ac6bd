/* Calls: from a body to prompts, from events to replies. See call.h. */
#include "server/call.h"

#include "base/clock.h"
#include "engine/sampling.h"
#include "server/answer.h"
#include "server/json_memory.h"
#include "server/lora.h"
#include "server/random_id.h"
#include "server/routes.h"
#include "server/server_state.h"
#include "text/json_string.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- Lifetime ------------------------------------------------------------------------------ */

static void call_free(void *context)
{
    call *c = context;
    for (size_t i = 0; i < c->n_answers; i++)
        answer_free(&c->answers[i]);
    for (size_t i = 0; i < c->n_prompts; i++) {
        request_release(c->prompts[i].request);
        free(c->prompts[i].text);
    }
    free(c->answers);
    free(c->prompts);
    free(c->tools.names);
    qp_grammar_close(c->form);
    cJSON_Delete(c->body);
    strbuf_free(&c->out);
    strbuf_free(&c->head);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void start(worker_task *task), resume(worker_task *task);

/* On the I/O thread: lets a worker read the events again. */
static void go_on(void *context)
{
    call *c = context;
    if (atomic_exchange(&c->resuming, 1)) return;
    exchange_hold(c->exchange);
    c->task.run = resume;
    workers_put(c->server->workers, LANE_SHORT, &c->task);
}

static void on_gone(void *context)
{
    call *c = context;
    for (size_t i = 0; i < c->n_prompts; i++) {
        if (c->prompts[i].request) request_cancel(c->prompts[i].request, REQUEST_ALL_CHOICES);
    }
    go_on(c);
}

call *call_new(server *server, exchange *x, const route *route, uint64_t owner)
{
    call *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->server = server;
    c->exchange = x;
    c->route = route;
    c->dialect = route->dialect;
    c->owner = owner;
    c->cache_key = server->options->shared_cache ? 0 : owner;
    c->task.run = start;
    c->created = time(NULL);
    c->arrived = clock_ns();
    random_id(c->id, 25);
    pthread_mutex_init(&c->lock, NULL);
    exchange_handler handler = {.context = c, .free_context = call_free};
    exchange_set_handler(x, &handler);
    return c;
}

static void flush(call *c)
{
    if (c->out.length) exchange_send(c->exchange, c->out.data, c->out.length);
    strbuf_clear(&c->out);
}

/* ---- Starting ------------------------------------------------------------------------------ */

/* Bytes; of a longer one, reading, templates, tokens and the reply may take long: 64 KiB took 27
 * ms, and eight such requests at a time 100 ms of the workers for short tasks. */
enum { SHORT_BODY = 8 << 10 };

void call_put(call *c)
{
    c->is_long = exchange_request(c->exchange)->body.length > SHORT_BODY;
    workers_put(c->server->workers, c->is_long ? LANE_LONG : LANE_SHORT, &c->task);
}

/* Leaves a call whose form may take long to compile to the worker for such; false: it is there. */
static bool put_among_long(call *c)
{
    const bool has_form = *c->p.form.field || *c->p.tool.field || (c->p.tools && c->p.tools->child);
    if (c->is_long || !has_form) return false;
    c->is_long = true;
    pthread_mutex_unlock(&c->lock);
    workers_put(c->server->workers, LANE_LONG, &c->task);
    return true;
}

static void reply_error(call *c, const api_error *error)
{
    c->replied = true;
    server_reply_error(c->exchange, error, c->route->style);
}

static int64_t default_length(const server *s)
{
    return s->options->max_tokens ? (int64_t)s->options->max_tokens : -1;
}

/* Settings that exclude each other, and the window of penalties. */
static qp_status check_sampling(call *c, api_error *error)
{
    double *setting = c->p.sampling.value;
    const bool penalties = setting[QP_REPETITION_PENALTY] != 1 ||
                           setting[QP_PRESENCE_PENALTY] != 0 || setting[QP_FREQUENCY_PENALTY] != 0;
    if (setting[QP_MIROSTAT] != 0 && setting[QP_TEMPERATURE] == 0)
        return api_refuse(error, 400, "mirostat",
                          "\"mirostat\" and a temperature of 0 exclude each other: the likeliest "
                          "token leaves nothing to choose");
    if (!penalties || c->p.penalty_window < 0 || c->p.penalty_window >= c->server->info.context)
        return QP_OK;
    if (c->p.penalty_window > 0)
        return api_refuse(
            error, 400, "repeat_last_n",
            "\"repeat_last_n\" may be -1 or 0 beside a penalty, found %lld: penalties "
            "are about all tokens of the prompt and the answer, or off",
            (long long)c->p.penalty_window);
    setting[QP_REPETITION_PENALTY] = 1;
    setting[QP_PRESENCE_PENALTY] = setting[QP_FREQUENCY_PENALTY] = 0;
    return QP_OK;
}

/* Sets c->p to defaults, then reads the body by a table of fields. */
static qp_status read_body(call *c, field_tables fields, api_error *error)
{
    const strbuf *body = &exchange_request(c->exchange)->body;
    const size_t valid = utf8_valid_run(strbuf_text(body), body->length);
    if (valid < body->length)
        return api_refuse(error, 400, NULL, "the body is not UTF-8 from byte %zu on", valid);
    qp_status status =
        json_parse_exact(strbuf_text(body), body->length, "the body", &c->body, &error->error);
    if (status != QP_OK) return api_failed(error, QP_FORMAT);
    c->p = (parameters){.sampling = c->server->defaults,
                        .n = 1,
                        .best_of = -1,
                        .max_tokens = default_length(c->server),
                        .top_logprobs = -1,
                        .thinking_budget = -1,
                        .penalty_window = -1,
                        .timeout = c->server->options->timeout};
    if (c->dialect && c->dialect->likely)
        sampling_exclude_unlikely(c->server->engine, &c->p.sampling);
    TRY(fields_read(fields, c->body, &c->p, error));
    TRY(check_sampling(c, error));
    if (c->p.max_tokens < 0 || c->p.min_tokens <= c->p.max_tokens) return QP_OK;
    return api_refuse(
        error, 400, "min_tokens",
        "\"min_tokens\" of %lld cannot be reached: the answer has at most %lld tokens",
        (long long)c->p.min_tokens, (long long)c->p.max_tokens);
}

/* Allocates the answers: one for each prompt and choice. */
static qp_status make_answers(call *c, api_error *error)
{
    size_t n = c->embeds ? 1 : (size_t)c->p.n;
    c->answers = calloc(c->n_prompts * n, sizeof *c->answers);
    if (!c->answers)
        return api_failed(error, error_no_memory(&error->error, "the answers", c->n_prompts * n));
    c->n_answers = c->n_prompts * n;
    for (size_t i = 0; i < c->n_answers; i++) {
        answer *a = &c->answers[i];
        a->call = c;
        a->prompt = i / n;
        a->index = i;
        if (answer_open(a, &error->error) != QP_OK) return api_failed(error, error->error.status);
    }
    return QP_OK;
}

static void seed_at_random(qp_sampling *sampling)
{
    if (sampling->source[QP_SEED] != QP_FROM_NEUTRAL) return;
    sampling->value[QP_SEED] = (double)(random_number() >> 11);
}

static qp_status fill_request(const call *c, request *r, api_error *error)
{
    const parameters *p = &c->p;
    r->n_choices = c->embeds ? 1 : (size_t)p->n;
    r->sampling = p->sampling;
    r->sampling.n_stops = 0;
    r->sampling.grammar = c->form;
    if (p->has_breakers) r->sampling.dry_breakers = p->breakers;
    seed_at_random(&r->sampling);
    if (p->n_biases) {
        r->biases = malloc(p->n_biases * sizeof *r->biases);
        if (!r->biases)
            return api_failed(error, error_no_memory(&error->error, "the biases", p->n_biases));
        memcpy(r->biases, p->biases, p->n_biases * sizeof *r->biases);
        r->sampling.logit_bias = r->biases;
        r->sampling.n_logit_bias = p->n_biases;
    }
    r->max_tokens = p->max_tokens > 0 ? (size_t)p->max_tokens : 0;
    r->prompt_only = p->max_tokens == 0;
    r->min_tokens = (size_t)p->min_tokens;
    r->ignore_eos = p->ignore_eos;
    r->top_logprobs = p->logprobs ? (int)(p->top_logprobs > 0 ? p->top_logprobs : 0) : -1;
    r->prompt_logprobs = p->echo && p->logprobs;
    r->progress = p->progress && p->stream && c->dialect->progress;
    r->embed = c->embeds;
    r->embed_last = c->server->pooling == POOLING_LAST;
    r->cache_key = c->cache_key;
    TRY(lora_choose(c, &r->adapters, error));
    if (p->timeout > 0) r->deadline = c->arrived + (uint64_t)(p->timeout * 1e9);
    r->context = (void *)c;
    if (!c->chat) return QP_OK;
    const thought_end_kind then = !c->form || p->thoughts_in_text ? THOUGHT_TEXT
                                  : *p->tool.field                ? THOUGHT_CALLS
                                                                  : THOUGHT_FORM;
    qp_status status = thought_rules_make(c->server->vocabulary, r->prompt, r->n_prompt,
                                          p->thinking_budget, then, &r->thoughts, &error->error);
    return status == QP_OK ? QP_OK : api_failed(error, status);
}

/* The words by which the clients of each API notice that they must shorten a conversation. */
static const char *const about_length[] = {
    [API_OPENAI] =
        "the request has %zu tokens%s but this model's maximum context length is %zu "
        "tokens; nothing was cut: send less, or start the server with a larger --context",
    [API_ANTHROPIC] = "prompt is too long: %zu tokens%s > %zu maximum; nothing was cut: send less, "
                      "or start the server with a larger --context",
    [API_OLLAMA] = "the request has %zu tokens%s but the context has %zu; nothing was cut: send "
                   "less, or start the server with a larger --context",
    [API_LLAMA_CPP] = "the request (%zu tokens)%s exceeds the available context size (%zu tokens); "
                      "nothing was cut: send less, or start the server with a larger --context",
};

/* Refuses a prompt that leaves no room for an answer; the message has both numbers. */
static qp_status check_length(const call *c, const request *r, api_error *error)
{
    const size_t context = (size_t)c->server->info.context;
    const bool answers = request_positions(r) > r->n_prompt;
    if (request_positions(r) <= context) return QP_OK;
    error->code = "context_length_exceeded";
    error->n_prompt = r->n_prompt;
    error->n_context = context;
    return api_refuse(error, 400, call_prompt_name(c), about_length[c->route->style], r->n_prompt,
                      answers ? ", and one for an answer," : "", context);
}

static qp_status check_biases(const call *c, api_error *error)
{
    const int64_t vocab_size = c->server->info.vocab_size;
    for (size_t i = 0; i < c->p.n_biases; i++)
        if (c->p.biases[i].token >= vocab_size)
            return api_refuse(error, 400, "logit_bias",
                              "\"logit_bias\" names token %d, but the vocabulary has the ids 0 to "
                              "%lld",
                              (int)c->p.biases[i].token, (long long)vocab_size - 1);
    return QP_OK;
}

/* More answers than may wait would find the queue full at any time: no retry mends that. */
static qp_status check_answers(const call *c, api_error *error)
{
    const size_t most = c->server->options->max_queued;
    if (c->n_answers <= most) return QP_OK;
    return api_refuse(
        error, 400, c->n_prompts > 1 ? call_prompt_name(c) : "n",
        "the request is for %zu answers, but %zu may wait: send several with fewer, or "
        "start the server with a larger --max-queued",
        c->n_answers, most);
}

static qp_status submit(call *c, api_error *error)
{
    TRY(check_answers(c, error));
    TRY(check_biases(c, error));
    for (size_t i = 0; i < c->n_prompts; i++) {
        request *r = c->prompts[i].request;
        TRY(fill_request(c, r, error));
        TRY(check_length(c, r, error));
    }
    for (size_t i = 0; i < c->n_prompts; i++) {
        exchange_hold(c->exchange); /* until the last event of the request */
        qp_status status = batcher_submit(c->server->batcher, c->prompts[i].request, &error->error);
        if (status == QP_OK) continue;
        exchange_release(c->exchange);
        /* Those before it end; the answers of this one and of those after it are over. */
        for (size_t done = 0; done < i; done++)
            request_cancel(c->prompts[done].request, REQUEST_ALL_CHOICES);
        return api_failed(error, status);
    }
    return QP_OK;
}

/* Handles an endpoint that makes no text: replies at once. */
static void answer_at_once(call *c)
{
    api_error error = {0};
    exchange *x = c->exchange;
    field_tables fields = c->route->fields; /* none: nothing is read */
    qp_status status = fields ? read_body(c, fields, &error) : QP_OK;
    if (status == QP_OK) status = c->route->answer(c, &error);
    if (status != QP_OK)
        reply_error(c, &error);
    else
        server_reply_text(x, c->route->type ? c->route->type : "application/json", &c->out);
    exchange_release(x);
}

/* A stream begins as soon as its request is accepted, so that proxies see that it is. */
static void begin(call *c)
{
    if (c->streaming || c->replied || !c->p.stream) return;
    c->streaming = true;
    exchange_begin(c->exchange, 200, c->dialect->stream_type);
    if (c->dialect->begin) c->dialect->begin(c);
}

/* The dialect has written the reply while it read: nothing is to be made. */
static void reply_at_once(call *c)
{
    exchange *x = c->exchange;
    c->replied = true;
    server_reply_text(x, c->p.stream ? c->dialect->stream_type : "application/json", &c->out);
    pthread_mutex_unlock(&c->lock);
    exchange_release(x);
}

/* Reads the body and submits its prompts; if that fails, replies with an error. */
static void start(worker_task *task)
{
    call *c = (call *)task;
    exchange *x = c->exchange;
    api_error error = {0};
    json_memory_clear();
    if (!c->dialect) {
        answer_at_once(c);
        return;
    }
    pthread_mutex_lock(&c->lock);
    qp_status status = exchange_is_gone(x) ? QP_CANCELLED : QP_OK;
    if (status == QP_OK && !c->body) status = read_body(c, c->dialect->fields, &error);
    if (status == QP_OK && put_among_long(c)) return;
    if (status == QP_OK) status = c->dialect->read(c, c->body, &error);
    if (status == QP_OK && c->n_prompts == 0) {
        reply_at_once(c);
        return;
    }
    if (status == QP_OK) status = call_open_form(c, &error);
    if (status == QP_OK && json_memory_failed()) /* a conversation may lack a part */
        status = api_failed(&error, error_no_memory(&error.error, "the request", 0));
    if (status == QP_OK) status = make_answers(c, &error);
    if (status == QP_OK) status = submit(c, &error);
    if (status == QP_OK) {
        exchange_handler handler = {c, on_gone, go_on, call_free};
        exchange_set_handler(x, &handler);
        begin(c);
        flush(c);
    } else {
        reply_error(c, &error);
    }
    pthread_mutex_unlock(&c->lock);
    exchange_release(x);
}

/* ---- Events -------------------------------------------------------------------------------- */

static bool all_over(const call *c, size_t prompt)
{
    size_t n = c->n_answers / c->n_prompts;
    for (size_t i = prompt * n; i < (prompt + 1) * n; i++) {
        if (!c->answers[i].over) return false;
    }
    return true;
}

static void fail(call *c, const request *r)
{
    api_error error = {.error = r->error};
    if (c->replied) return;
    /* A form that takes too much is the client's mistake. */
    api_failed(&error, r->error.status == QP_UNSUPPORTED ? QP_UNSUPPORTED : QP_IO);
    if (c->streaming) {
        c->dialect->fail(c, &error);
        flush(c);
        exchange_end(c->exchange);
        c->replied = true;
    } else {
        reply_error(c, &error);
    }
    for (size_t i = 0; i < c->n_prompts; i++)
        request_cancel(c->prompts[i].request, REQUEST_ALL_CHOICES);
}

static void take_event(call *c, answer *a, request *r, const token_event *event)
{
    if (event->reading) {
        begin(c);
        if (!c->replied) c->dialect->progress(c, a, (size_t)event->token);
        return;
    }
    if (!event->last) {
        begin(c);
        answer_add_token(a, r, event);
        return;
    }
    a->over = true;
    c->n_over++;
    if (event->finish == REQUEST_FAILED) {
        fail(c, r);
        return;
    }
    if (event->finish == REQUEST_TIMED_OUT && !a->n_tokens && !c->streaming && !c->replied) {
        api_error error = {0};
        api_refuse(&error, 504, NULL, "the time for the answer was over before its first token");
        reply_error(c, &error);
    }
    begin(c);
    answer_end(a, r, event);
}

static double seconds(uint64_t from, uint64_t to)
{
    return from && to > from ? (double)(to - from) * 1e-9 : 0;
}

/* For the access log: of all answers, and the times of the first prompt. */
static void note_facts(const call *c)
{
    const request *r = c->prompts[0].request;
    const call_usage sum = call_sum_usage(c);
    const uint64_t first = r->first_token ? r->first_token : r->finished;
    const exchange_facts facts = {.known = true,
                                  .prompt = sum.prompt,
                                  .cached = sum.cached,
                                  .made = sum.completion,
                                  .queued = seconds(c->arrived, r->admitted),
                                  .reading = seconds(r->admitted, first),
                                  .making = seconds(first, clock_ns())};
    exchange_set_facts(c->exchange, &facts);
}

/* Ends the reply when all answers have ended. */
static void end_if_over(call *c)
{
    if (c->n_over < c->n_answers || c->replied) return;
    note_facts(c);
    c->replied = true;
    if (!c->p.stream) {
        c->dialect->whole(c);
        server_reply_text(c->exchange, "application/json", &c->out);
        strbuf_clear(&c->out);
        return;
    }
    if (c->dialect->end) c->dialect->end(c);
    flush(c);
    exchange_end(c->exchange);
}

/* Reads the available events of a prompt. False: the client reads too slowly; the prompt is held
 * until it has caught up. True: all were read; *over: the last event was among them. */
static bool take_events(call *c, size_t prompt, bool *over)
{
    request *r = c->prompts[prompt].request;
    size_t n = c->n_answers / c->n_prompts;
    do {
        for (size_t i = 0; i < n; i++) {
            token_event event;
            answer *a = &c->answers[prompt * n + i];
            while (!a->over && request_next(r, i, &event))
                take_event(c, a, r, &event);
        }
        if (!c->replied) flush(c);
        if (!all_over(c, prompt) && exchange_is_full(c->exchange)) return false;
        *over = all_over(c, prompt);
    } while (!*over && !request_drained(r));
    return true;
}

/* Works on a prompt that this worker has taken; returns how many references to the exchange the
 * caller must release. */
static int work_on(call *c, size_t prompt)
{
    bool over = false;
    json_memory_clear();
    c->prompts[prompt].held = !take_events(c, prompt, &over);
    end_if_over(c);
    return over;
}

static void release_times(exchange *x, int times)
{
    while (times-- > 0)
        exchange_release(x);
}

void call_take_events(request *r)
{
    call *c = r->context;
    exchange *x = c->exchange;
    int done = 0;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->n_prompts; i++) {
        if (c->prompts[i].request == r) done += work_on(c, i);
    }
    pthread_mutex_unlock(&c->lock);
    request_release(r);
    release_times(x, done);
}

static void resume(worker_task *task)
{
    call *c = (call *)task;
    exchange *x = c->exchange;
    int done = 1;
    atomic_store(&c->resuming, 0);
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->n_prompts; i++) {
        if (c->prompts[i].held) done += work_on(c, i);
    }
    pthread_mutex_unlock(&c->lock);
    release_times(x, done);
}

/* ---- Sums ---------------------------------------------------------------------------------- */

call_usage call_sum_usage(const call *c)
{
    call_usage sum = {0};
    for (size_t i = 0; i < c->n_prompts; i++) {
        sum.prompt += c->prompts[i].request->n_prompt;
        sum.cached += c->prompts[i].request->cached_tokens;
    }
    for (size_t i = 0; i < c->n_answers; i++) {
        sum.completion += c->answers[i].n_tokens;
        sum.thinking += c->answers[i].n_thinking;
    }
    return sum;
}

void call_put_length(call *c, const char *more)
{
    json_put(&c->out, "{'input_tokens':%z%s}", c->prompts[0].request->n_prompt, more);
}

bool call_was_cut(const answer *a)
{
    return a->finish != QP_FINISH_STOP_TOKEN && a->finish != QP_FINISH_STOP_TEXT;
}

const char *call_finish_reason(const answer *a)
{
    if (call_was_cut(a)) return "length";
    return a->tool_calls ? "tool_calls" : "stop";
}
