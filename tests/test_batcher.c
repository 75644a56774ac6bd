/* The batcher: requests of several threads at once get what they would get alone. */
#include "engine_test.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "server/batcher_state.h"
#include "server/logprobs.h"
#include "server/statistics.h"

#include <pthread.h>
#include <unistd.h>

static qp_error error;

enum { CONTEXT = 96, PAGE = 8, REQUESTS = 12, MADE = 20 };

static request *make_request(const qp_engine *engine, const int32_t *prompt, size_t n)
{
    request *r = request_new();
    assert_non_null(r);
    assert_ok(qp_sampling_defaults(engine, &r->sampling, &error));
    r->sampling.n_stop_tokens = 0;
    r->prompt = malloc(n * sizeof *prompt);
    memcpy(r->prompt, prompt, n * sizeof *prompt);
    r->n_prompt = n;
    r->max_tokens = MADE;
    return r;
}

/* What a choice has said. */
typedef struct answer {
    int32_t tokens[CONTEXT + 1];
    float logprobs[CONTEXT + 1];
    size_t count;
    token_event end;
    bool ended;
} answer;

static bool take(request *r, size_t choice, answer *a)
{
    token_event event;
    while (request_next(r, choice, &event)) {
        assert_false(a->ended);
        if (event.last) {
            a->ended = true;
            a->end = event;
            return true;
        }
        a->logprobs[a->count] = event.logprob;
        a->tokens[a->count++] = event.token;
    }
    return a->ended;
}

/* Reads all choices of one request to their ends. */
static void finish(request *r, answer *answers)
{
    size_t ended = 0;
    const uint64_t start = clock_ns();
    while (ended < r->n_choices) {
        ended = 0;
        for (size_t i = 0; i < r->n_choices; i++)
            ended += take(r, i, &answers[i]);
        usleep(200);
        assert_true(clock_ns() - start < 60000000000);
    }
}

static void alone(qp_engine *engine, const int32_t *prompt, size_t n, int32_t *made)
{
    qp_session *s = open_session(engine);
    int32_t row[MADE + 1];
    if (n > 1) free(eval_rows(engine, s, prompt, n - 1));
    row[0] = prompt[n - 1];
    assert_ok(qp_decode(engine, &s, 1, MADE, row, NULL, &error));
    memcpy(made, row + 1, MADE * sizeof *made);
    qp_session_close(s);
}

static void prompt_of(size_t i, int32_t *prompt, size_t *n)
{
    *n = 1 + i * 7 % 40;
    for (size_t t = 0; t < *n; t++)
        prompt[t] = (int32_t)((t * 31 + i * 17) % 200);
}

/* Few pages, so that choices are preempted. */
static qp_engine *open_small(int64_t sessions)
{
    return open_engine((qp_engine_options){.model = "synthetic:tiny",
                                           .context = CONTEXT,
                                           .chunk = 24,
                                           .page_size = PAGE,
                                           .pages = CONTEXT / PAGE + 2,
                                           .max_sessions = sessions,
                                           .max_outputs = 4 * sessions});
}

/* All requests at once; what they say is what each says alone. */
static void ask_all(qp_engine *engine, batcher *b, int32_t (*expected)[MADE], float *logprobs)
{
    int32_t prompt[CONTEXT];
    size_t n;
    request *requests[REQUESTS];
    for (size_t i = 0; i < REQUESTS; i++) {
        prompt_of(i, prompt, &n);
        requests[i] = make_request(engine, prompt, n);
        requests[i]->sampling.value[QP_TEMPERATURE] = 0;
        requests[i]->n_choices = i == 3 ? 3 : 1;
        requests[i]->top_logprobs = i == 5 ? 2 : -1;
        assert_ok(batcher_submit(b, requests[i], &error));
    }
    for (size_t i = 0; i < REQUESTS; i++) {
        answer answers[3] = {0};
        finish(requests[i], answers);
        for (size_t c = 0; c < requests[i]->n_choices; c++) {
            assert_int_equal(answers[c].count, MADE);
            assert_int_equal(answers[c].end.finish, QP_FINISH_LENGTH);
            assert_memory_equal(answers[c].tokens, expected[i], sizeof expected[i]);
        }
        for (size_t t = 0; t < MADE; t++)
            assert_true(i == 5 ? answers[0].logprobs[t] < 0 : answers[0].logprobs[t] == 0);
        if (i == 5) memcpy(logprobs, answers[0].logprobs, MADE * sizeof *logprobs);
        request_release(requests[i]);
    }
}

/* Asks one request and checks its answer. The number of prompt tokens that the cache had. */
static size_t ask_one(qp_engine *engine, batcher *b, const int32_t *expected, size_t i)
{
    int32_t prompt[CONTEXT];
    size_t n;
    answer got[1] = {0};
    prompt_of(i, prompt, &n);
    request *r = make_request(engine, prompt, n);
    r->sampling.value[QP_TEMPERATURE] = 0;
    assert_ok(batcher_submit(b, r, &error));
    finish(r, got);
    assert_int_equal(got[0].count, MADE);
    assert_memory_equal(got[0].tokens, expected, MADE * sizeof *expected);
    const size_t cached = r->cached_tokens;
    request_release(r);
    return cached;
}

static void answers_are_those_of_each_alone(void **state)
{
    (void)state;
    int32_t prompt[CONTEXT], expected[REQUESTS][MADE];
    float logprobs[2][MADE];
    size_t n;
    batcher *b;
    qp_engine *engine = open_small(5);
    for (size_t i = 0; i < REQUESTS; i++) {
        prompt_of(i, prompt, &n);
        alone(engine, prompt, n, expected[i]);
    }
    assert_ok(batcher_open(&(batcher_options){0}, engine, &b, &error));
    ask_all(engine, b, expected, logprobs[0]);
    ask_all(engine, b, expected, logprobs[1]); /* now from the cache */
    assert_memory_equal(logprobs[0], logprobs[1], sizeof logprobs[0]);
    batcher_stats stats;
    assert_ok(batcher_snapshot(b, &stats, &error));
    assert_int_equal(stats.requests, 2 * REQUESTS);
    assert_int_equal(stats.finished[QP_FINISH_LENGTH], 2 * (REQUESTS + 2));
    assert_int_equal(stats.generated_tokens, 2 * (REQUESTS + 2) * MADE);
    assert_int_equal(stats.first_token.count, 2 * REQUESTS);
    assert_int_equal(stats.next_token.count, 2 * (REQUESTS + 2) * (MADE - 1));
    assert_int_equal(stats.running + stats.waiting + stats.pages_used, 0);
    assert_true(stats.n_tree > 0 && stats.n_recent > 0);
    batcher_stats_free(&stats);
    /* With as few pages another request may have evicted a prompt, but not the one just asked. */
    ask_one(engine, b, expected[5], 5);
    assert_true(ask_one(engine, b, expected[5], 5) >= PAGE);
    batcher_stop(b);
    assert_int_equal(batcher_snapshot(b, &stats, &error), QP_CANCELLED);
    batcher_close(b);
    qp_engine_close(engine);
}

/* An answer that would end at its first token has min_tokens, which change nothing but that; its
 * neighbour with log-probabilities has those of qp_eval(). */
static void min_tokens_hold_stops_back(void **state)
{
    (void)state;
    enum { LEAST = 7 };
    int32_t prompt[CONTEXT], likeliest[MADE];
    size_t n;
    batcher *b;
    qp_engine *engine = open_small(3);
    const size_t vocab = (size_t)qp_engine_get_info(engine)->vocab_size;
    prompt_of(4, prompt, &n);
    alone(engine, prompt, n, likeliest);
    assert_ok(batcher_open(&(batcher_options){0}, engine, &b, &error));
    request *ends = make_request(engine, prompt, n), *scored = make_request(engine, prompt, n);
    ends->sampling.value[QP_TEMPERATURE] = scored->sampling.value[QP_TEMPERATURE] = 0;
    ends->sampling.stop_tokens[0] = likeliest[0];
    ends->sampling.n_stop_tokens = 1;
    ends->min_tokens = LEAST;
    scored->top_logprobs = 0;
    assert_ok(batcher_submit(b, ends, &error));
    assert_ok(batcher_submit(b, scored, &error));
    answer answers[2] = {0};
    finish(ends, &answers[0]);
    finish(scored, &answers[1]);
    assert_true(answers[0].count >= LEAST);
    assert_int_not_equal(answers[0].tokens[0], likeliest[0]);
    for (size_t i = 0; i < answers[0].count; i++)
        assert_int_not_equal(answers[0].tokens[i], likeliest[0]);
    assert_memory_equal(answers[1].tokens, likeliest, sizeof likeliest);
    request_release(ends);
    request_release(scored);
    batcher_close(b);
    memcpy(prompt + n, likeliest, sizeof likeliest);
    float *rows = eval_fresh(engine, prompt, n + MADE);
    for (size_t i = 0; i < MADE; i++)
        assert_true(answers[1].logprobs[i] ==
                    logprob_of(rows + (n - 1 + i) * vocab,
                               logprobs_sum(rows + (n - 1 + i) * vocab, vocab), likeliest[i]));
    free(rows);
    qp_engine_close(engine);
}

/* Proposes what the requests are known to get, and wrong tokens now and then, as if rows cost
 * nothing.
 */
typedef struct known {
    proposer proposer;
    speculation *speculation;
    int32_t (*expected)[MADE];
    int n_proposed;
} known;

/* The tokens of the text that begins as the sequence's; NULL: it is no request's. */
static const int32_t *text_of(const known *k, const qp_session *s, size_t *prompt)
{
    int32_t tokens[CONTEXT];
    for (size_t i = 0; i < REQUESTS; i++) {
        prompt_of(i, tokens, prompt);
        if (s->count >= *prompt && memcmp(s->tokens, tokens, *prompt * sizeof *tokens) == 0)
            return k->expected[i];
    }
    return NULL;
}

static qp_status propose_known(proposer *self, const speculated_sequence *all, size_t n, int most,
                               qp_error *why)
{
    known *k = (known *)self;
    (void)why;
    for (int rows = 1; rows <= SPECULATE_ROWS; rows++)
        k->speculation->row_ns[rows] = 1e6;
    for (size_t i = 0; i < n; i++) {
        size_t prompt;
        speculated *p = all[i].slot;
        const int32_t *text = text_of(k, all[i].of->session, &prompt);
        p->lost_ns = 0;
        p->n_found = 0;
        while (text && p->n_found < most && p->n_found < all[i].most) {
            const size_t at = p->position + (size_t)p->n_found - prompt;
            if (at >= MADE) break;
            p->tokens[p->n_found++] = (text[at] + (k->n_proposed++ % 7 == 0)) % 200;
        }
    }
    return QP_OK;
}

/* Choices that verify proposals get the same answers with the same log-probabilities. */
static void answers_are_the_same_with_proposals(void **state)
{
    (void)state;
    int32_t prompt[CONTEXT], expected[REQUESTS][MADE];
    float logprobs[2][MADE];
    size_t n;
    batcher *b;
    batcher_stats stats;
    for (int on = 0; on < 2; on++) {
        qp_engine *engine = open_small(5);
        known k = {.proposer = {.propose = propose_known},
                   .speculation = &engine->speculation,
                   .expected = expected};
        for (size_t i = 0; i < REQUESTS && !on; i++) {
            prompt_of(i, prompt, &n);
            alone(engine, prompt, n, expected[i]);
        }
        if (on) assert_ok(speculation_init(&engine->speculation, &k.proposer, 5, &error));
        assert_ok(batcher_open(&(batcher_options){0}, engine, &b, &error));
        ask_all(engine, b, expected, logprobs[on]);
        assert_ok(batcher_snapshot(b, &stats, &error));
        assert_true(on ? stats.accepted_tokens > REQUESTS : stats.proposed_tokens == 0);
        assert_true(stats.accepted_tokens <= stats.proposed_tokens);
        batcher_stats_free(&stats);
        batcher_close(b);
        qp_engine_close(engine);
    }
    assert_memory_equal(logprobs[0], logprobs[1], sizeof logprobs[0]);
}

/* Log-probabilities of a prompt are those of qp_eval(), in as many calls as rows of logits allow.
 */
static void prompts_have_logprobs(void **state)
{
    (void)state;
    int32_t prompt[CONTEXT];
    size_t n;
    batcher *b;
    answer answers[1] = {0};
    qp_engine *engine = open_small(2);
    const size_t vocab = (size_t)qp_engine_get_info(engine)->vocab_size;
    prompt_of(5, prompt, &n);
    float *rows = eval_fresh(engine, prompt, n);
    assert_ok(batcher_open(&(batcher_options){0}, engine, &b, &error));
    for (int again = 0; again < 2; again++) {
        request *r = make_request(engine, prompt, n);
        r->prompt_logprobs = r->prompt_only = true;
        r->top_logprobs = 3;
        answers[0] = (answer){0};
        assert_ok(batcher_submit(b, r, &error));
        finish(r, answers);
        assert_int_equal(answers[0].count, 0);
        for (size_t t = 1; t < n; t++) {
            const float *row = rows + (t - 1) * vocab;
            token_top top[3];
            assert_true(r->prompt_logprob[t] ==
                        logprob_of(row, logprobs_sum(row, vocab), prompt[t]));
            assert_int_equal(logprobs_top(row, vocab, logprobs_sum(row, vocab), 3, top), 3);
            assert_memory_equal(top, r->prompt_top + t * 3, sizeof top);
            assert_true(top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob);
        }
        request_release(r);
    }
    free(rows);
    batcher_close(b);
    qp_engine_close(engine);
}

static qp_status add_hidden(void *context, size_t token, const float *hidden)
{
    double *sum = context; /* [4], then those of the last token */
    (void)token;
    for (int i = 0; i < 4; i++) {
        sum[i] += hidden[i];
        sum[4 + i] = hidden[i];
    }
    return QP_OK;
}

/* An embedding is the mean of what qp_step() hands out, or the last of it. */
static void prompts_have_embeddings(void **state)
{
    (void)state;
    int32_t prompt[CONTEXT];
    size_t n;
    batcher *b;
    answer answers[1] = {0}, last[1] = {0};
    double sum[8] = {0};
    qp_engine *engine = open_small(3);
    prompt_of(5, prompt, &n);
    qp_session *session = open_session(engine);
    for (size_t read = 0; read < n;) {
        qp_sequence s = {.size = sizeof s,
                         .session = session,
                         .tokens = prompt + read,
                         .count = n - read,
                         .every_row = true,
                         .on_hidden = add_hidden,
                         .context = sum};
        assert_ok(qp_step(engine, &s, 1, &error));
        assert_true(s.read > 0);
        read += s.read;
    }
    qp_session_close(session);
    assert_ok(batcher_open(&(batcher_options){0}, engine, &b, &error));
    request *r = make_request(engine, prompt, n);
    r->embed = true;
    assert_ok(batcher_submit(b, r, &error));
    finish(r, answers);
    assert_int_equal(answers[0].end.finish, QP_FINISH_LENGTH);
    for (int i = 0; i < 4; i++) {
        assert_true(r->embedding[i] == (float)(sum[i] / (double)n));
        assert_true(sum[i] != 0);
    }
    request_release(r);
    r = make_request(engine, prompt, n);
    r->embed = r->embed_last = true;
    assert_ok(batcher_submit(b, r, &error));
    finish(r, last);
    for (int i = 0; i < 4; i++)
        assert_true(r->embedding[i] == (float)sum[4 + i]);
    request_release(r);
    batcher_close(b);
    qp_engine_close(engine);
}

static void cancelled_and_late_requests_end(void **state)
{
    (void)state;
    const int32_t prompt[] = {1, 2, 3};
    batcher *b;
    qp_engine *engine = open_small(1);
    assert_ok(batcher_open(&(batcher_options){.max_queued = 2}, engine, &b, &error));
    request *late = make_request(engine, prompt, 3), *gone = make_request(engine, prompt, 3);
    late->deadline = 1;
    answer answers[2] = {0};
    assert_ok(batcher_submit(b, late, &error));
    finish(late, &answers[0]);
    assert_int_equal(answers[0].end.finish, REQUEST_TIMED_OUT);
    gone->max_tokens = 0;
    assert_ok(batcher_submit(b, gone, &error)); /* its ring fills, and it stops there */
    token_event event;
    while (!request_next(gone, 0, &event))
        usleep(100);
    request_cancel(gone, REQUEST_ALL_CHOICES);
    finish(gone, &answers[1]);
    assert_int_equal(answers[1].end.finish, QP_FINISH_CANCELLED);
    request_release(late);
    request_release(gone);
    request *many = make_request(engine, prompt, 3);
    const size_t n_choices = many->n_choices;
    many->n_choices = REQUEST_MAX_CHOICES + 1;
    assert_int_equal(batcher_submit(b, many, &error), QP_INVALID);
    assert_non_null(strstr(error.message, " choices are asked for, at most "));
    many->n_choices = 2;
    many->embed = true;
    assert_int_equal(batcher_submit(b, many, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "an embedding has one choice, found 2"));
    many->n_choices = n_choices;
    many->embed = false;
    many->top_logprobs = REQUEST_MAX_TOP + 1;
    assert_int_equal(batcher_submit(b, many, &error), QP_INVALID);
    assert_non_null(strstr(error.message, " alternatives are asked for, at most "));
    request_release(many);
    batcher_stop(b);
    request *refused = make_request(engine, prompt, 3);
    assert_int_equal(batcher_submit(b, refused, &error), QP_CANCELLED);
    request_release(refused);
    batcher_close(b);
    qp_engine_close(engine);
}

/* A request whose choices want long answers, with none of its tokens read yet. */
static request *submit_long(const qp_engine *engine, batcher *b, size_t n_choices)
{
    int32_t prompt[CONTEXT];
    size_t n;
    prompt_of(2, prompt, &n);
    request *r = make_request(engine, prompt, n);
    r->n_choices = n_choices;
    r->max_tokens = 0;
    r->sampling.value[QP_TEMPERATURE] = 0;
    assert_ok(batcher_submit(b, r, &error));
    return r;
}

static size_t events_of(const request *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_choices; i++)
        n += atomic_load(&r->choices[i].written);
    return n;
}

/* Many answers that nobody reads take turns in two slots and then leave them; each ends, cut off,
 * if it stays unread, and is whole if it is read in time. */
static void unread_answers_leave_their_slots(void **state)
{
    (void)state;
    enum { MANY = 6 };
    batcher *b;
    qp_engine *engine = open_small(2);
    assert_ok(
        batcher_create(&(batcher_options){.stall_limit_ns = 1000000000000}, engine, &b, &error));
    request *unread = submit_long(engine, b, MANY);
    for (size_t seen = 0, turns = 0; turns < 2000; turns++, seen = events_of(unread)) {
        batcher_turn(b);
        if (seen == MANY * (RING_EVENTS - 1)) break;
    }
    assert_int_equal(events_of(unread), MANY * (RING_EVENTS - 1));
    assert_true(b->n_stalled >= MANY - 2);
    assert_int_equal(b->n_queued, 0);
    request *other = submit_long(engine, b, 1);
    answer got[MANY] = {0}, short_one = {0};
    for (size_t turns = 0; turns < 200 && !take(other, 0, &short_one); turns++)
        batcher_turn(b);
    assert_int_equal(short_one.end.finish, QP_FINISH_CONTEXT);
    for (size_t turns = 0, ended = 0; turns < 2000 && ended < MANY - 1; turns++) {
        batcher_turn(b);
        ended = 0;
        for (size_t i = 1; i < MANY; i++)
            ended += take(unread, i, &got[i]);
    }
    for (size_t i = 1; i < MANY; i++) {
        assert_int_equal(got[i].end.finish, QP_FINISH_CONTEXT);
        assert_memory_equal(got[i].tokens, short_one.tokens, short_one.count * sizeof(int32_t));
    }
    request *last[2] = {submit_long(engine, b, 1), submit_long(engine, b, 1)}; /* want both slots */
    for (size_t turns = 0; turns < 4; turns++)
        batcher_turn(b);
    assert_int_equal(unread->choices[0].phase, CHOICE_STALLED);
    b->options.stall_limit_ns = 1;
    batcher_turn(b);
    while (!take(unread, 0, &got[0]))
        ;
    assert_int_equal(got[0].end.finish, REQUEST_TIMED_OUT);
    for (size_t i = 0; i < 2; i++)
        request_release(last[i]);
    request_release(other);
    request_release(unread);
    batcher_close(b);
    qp_engine_close(engine);
}

/* A request of one text does not wait for one of many, nor a key of one request for one of many. */
static void requests_and_keys_take_turns(void **state)
{
    (void)state;
    for (int keys = 0; keys < 2; keys++) {
        batcher *b;
        qp_engine *engine = open_small(2);
        assert_ok(batcher_create(&(batcher_options){0}, engine, &b, &error));
        request *many[4] = {0};
        for (size_t i = 0; i < 4; i++)
            if (keys || i == 0) many[i] = submit_long(engine, b, keys ? 1 : 8);
        for (int turns = 0; turns < 4; turns++)
            batcher_turn(b);
        int32_t prompt[1] = {7};
        request *one = make_request(engine, prompt, 1);
        one->cache_key = (uint64_t)keys;
        assert_ok(batcher_submit(b, one, &error));
        batcher_turn(b);
        assert_int_equal(one->choices[0].phase, CHOICE_RUNNING);
        assert_true(one->first_token != 0);
        assert_int_equal(b->stats.parked, 1);
        for (size_t i = 0; i < 4; i++)
            request_release(many[i]);
        request_release(one);
        batcher_close(b);
        qp_engine_close(engine);
    }
}

/* A choice that gives its slot up before it has read anything keeps nothing, and leaks nothing. */
static void unread_prompts_keep_nothing(void **state)
{
    (void)state;
    batcher *b;
    int32_t prompt[CONTEXT];
    size_t n;
    qp_engine *engine = open_small(2);
    request *all[3];
    assert_ok(batcher_create(&(batcher_options){0}, engine, &b, &error));
    for (size_t i = 0; i < 3; i++) {
        prompt_of(i == 2 ? 0 : 5 + i * 6, prompt, &n); /* of 36, 38 and 1 tokens */
        all[i] = make_request(engine, prompt, n);
        all[i]->max_tokens = 1;
        all[i]->cache_key = i == 2;
    }
    assert_ok(batcher_submit(b, all[0], &error));
    assert_ok(batcher_submit(b, all[1], &error));
    batcher_turn(b); /* reads 24 tokens of the first */
    choice *c = &all[1]->choices[0];
    assert_int_equal(c->session->count, 0);
    assert_ok(batcher_submit(b, all[2], &error));
    batcher_turn(b);
    assert_int_equal(c->phase, CHOICE_WAITING);
    for (size_t turns = 0; turns < 20 && c->phase == CHOICE_WAITING; turns++)
        batcher_turn(b);
    assert_int_equal(c->phase, CHOICE_RUNNING);
    assert_null(c->parked.pages.pages);
    for (size_t i = 0; i < 3; i++)
        request_release(all[i]);
    batcher_close(b);
    qp_engine_close(engine);
}

static void what_cannot_be_done_is_refused(void **state)
{
    (void)state;
    int32_t prompt[CONTEXT + 1] = {1};
    batcher *b;
    qp_engine *engine = open_small(1);
    assert_ok(batcher_open(&(batcher_options){.max_queued = 1}, engine, &b, &error));
    request *r = make_request(engine, prompt, CONTEXT + 1);
    assert_int_equal(batcher_submit(b, r, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "97 tokens"));
    r->n_prompt = 1;
    r->prompt[0] = 1 << 20;
    assert_int_equal(batcher_submit(b, r, &error), QP_INVALID);
    r->prompt[0] = 1;
    r->n_choices = 2;
    assert_int_equal(batcher_submit(b, r, &error), QP_NO_MEMORY);
    request_release(r);
    batcher_close(b);
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_each_alone),
        cmocka_unit_test(min_tokens_hold_stops_back),
        cmocka_unit_test(answers_are_the_same_with_proposals),
        cmocka_unit_test(prompts_have_logprobs),
        cmocka_unit_test(prompts_have_embeddings),
        cmocka_unit_test(cancelled_and_late_requests_end),
        cmocka_unit_test(unread_answers_leave_their_slots),
        cmocka_unit_test(requests_and_keys_take_turns),
        cmocka_unit_test(unread_prompts_keep_nothing),
        cmocka_unit_test(what_cannot_be_done_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
