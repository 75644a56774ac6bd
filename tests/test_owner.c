/* One owner at a time: what a second thread and what callbacks may do with an engine, and that it
 * may be closed at any time. The pairs of calls are also run under ThreadSanitizer: OWNER_ROUNDS
 * says how often. */
#include "engine_test.h"

#include "engine/owner.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PROMPT = 5, ROW = 512, CALLS_AT_ONCE = 2 };

static const int32_t prompt[PROMPT] = {3, 1, 4, 1, 5};

/* What a call works on. */
typedef struct world {
    qp_engine *engine;
    qp_session *session, *other;
    qp_sampler *sampler;
    qp_sampling sampling;
    qp_trace *trace;
    char file[64];
} world;

/* `traced`: with a trace, for which the machine is measured. */
static world open_world(bool traced)
{
    qp_error error;
    world w = {.sampling = {.size = sizeof w.sampling}};
    const qp_trace_options options = {.size = sizeof options, .max_passes = 2};
    w.engine = open_engine((qp_engine_options){.model = "synthetic:tiny",
                                               .threads = 1,
                                               .context = 64,
                                               .max_sessions = 6,
                                               .max_outputs = 6});
    w.session = open_session(w.engine);
    w.other = open_session(w.engine);
    assert_ok(qp_sampling_defaults(w.engine, &w.sampling, &error));
    assert_ok(qp_sampler_open(w.engine, &w.sampling, &w.sampler, &error));
    if (traced) assert_ok(qp_trace_open(w.engine, &options, &w.trace, &error));
    snprintf(w.file, sizeof w.file, "/tmp/quipu-owner-%d", (int)getpid());
    return w;
}

static void close_world(world *w)
{
    qp_trace_close(w->trace);
    qp_sampler_close(w->sampler);
    qp_session_close(w->other);
    qp_session_close(w->session);
    qp_engine_close(w->engine);
    unlink(w->file);
}

/* ---- the calls ----------------------------------------------------------------------------- */

static qp_status step(world *w, qp_error *error)
{
    qp_sequence s = {.size = sizeof s,
                     .session = w->session,
                     .tokens = prompt,
                     .count = 1,
                     .sampler = w->sampler,
                     .max_tokens = 1};
    return qp_step(w->engine, &s, 1, error);
}

static qp_status eval(world *w, qp_error *error)
{
    const qp_input input = {.session = w->other, .tokens = prompt, .count = 2};
    return qp_eval(w->engine, &input, 1, NULL, NULL, NULL, error);
}

static qp_status decode(world *w, qp_error *error)
{
    int32_t tokens[4] = {1};
    return qp_decode(w->engine, &w->other, 1, 2, tokens, NULL, error);
}

static qp_status generate_on(qp_session *session, qp_error *error)
{
    const qp_generate_options options = {
        .size = sizeof options, .prompt = prompt, .n_prompt = PROMPT, .max_tokens = 2};
    return qp_generate(session, &options, NULL, error);
}

static qp_status generate(world *w, qp_error *error)
{
    return generate_on(w->session, error);
}

static qp_status open_and_close(world *w, qp_error *error)
{
    qp_session *s;
    TRY(qp_session_open(w->engine, &s, error));
    const qp_status status = generate_on(s, error);
    qp_session_close(s);
    return status;
}

static qp_status fork_session(world *w, qp_error *error)
{
    qp_session *s;
    TRY(qp_session_fork(w->other, &s, error));
    qp_session_close(s);
    return QP_OK;
}

static qp_status truncate_session(world *w, qp_error *error)
{
    return qp_session_truncate(w->session, 1, error);
}

static qp_status adapt_session(world *w, qp_error *error)
{
    return qp_session_adapt(w->session, NULL, 0, error);
}

static qp_status tokens(world *w, qp_error *error)
{
    size_t count;
    (void)error;
    qp_session_tokens(w->session, &count);
    return QP_OK;
}

static qp_status sampler(world *w, qp_error *error)
{
    qp_sampler *s;
    TRY(qp_sampler_open(w->engine, &w->sampling, &s, error));
    qp_sampler_close(s);
    return QP_OK;
}

static qp_status allow(world *w, qp_error *error)
{
    uint32_t mask[ROW / 32] = {0xff};
    TRY(qp_sampler_allow(w->sampler, mask, error));
    return qp_sampler_allow(w->sampler, NULL, error);
}

static qp_status reschedule(world *w, qp_error *error)
{
    const qp_schedule_options how = {.size = sizeof how, .assignment = "zz"};
    const qp_status status = qp_engine_reschedule(w->engine, &how, error);
    return status == QP_INVALID ? QP_OK : status; /* it is traced */
}

static qp_status measure(world *w, qp_error *error)
{
    double rate;
    const qp_status status = qp_measure_read(w->engine, &rate, error);
    return status == QP_UNSUPPORTED ? QP_OK : status;
}

static qp_status print(world *w, qp_error *error)
{
    char *text = NULL;
    size_t length;
    const qp_status status = qp_trace_print(w->trace, QP_TRACE_TABLE, &text, &length, error);
    qp_free(text);
    return status == QP_INVALID ? QP_OK : status; /* nothing was traced yet */
}

static qp_status save(world *w, qp_error *error)
{
    return qp_session_save(w->other, w->file, error);
}

static qp_status load(world *w, qp_error *error)
{
    qp_session *s;
    TRY(qp_session_open(w->engine, &s, error));
    const qp_status status = qp_session_load(s, w->file, error);
    qp_session_close(s);
    return status == QP_IO ? QP_OK : status; /* there is no file yet */
}

static qp_status info(world *w, qp_error *error)
{
    (void)error;
    assert_int_equal(qp_engine_get_info(w->engine)->vocab_size, ROW);
    assert_null(qp_engine_vocabulary(w->engine));
    return QP_OK;
}

typedef qp_status call(world *w, qp_error *error);

static call *const calls[] = {
    step,   eval,    decode, generate,         open_and_close, fork_session,
    tokens, sampler, allow,  reschedule,       measure,        print,
    save,   load,    info,   truncate_session, adapt_session};
enum { CALLS = sizeof calls / sizeof *calls };

/* ---- pairs --------------------------------------------------------------------------------- */

typedef struct caller {
    pthread_t thread;
    pthread_barrier_t *start;
    world *w;
    call *call;
    int rounds;
} caller;

static void *run_caller(void *context)
{
    const caller *c = context;
    qp_error error;
    pthread_barrier_wait(c->start);
    for (int i = 0; i < c->rounds; i++) {
        const qp_status status = c->call(c->w, &error);
        if (status == QP_OK) continue;
        /* The sessions grow until they are full. */
        if (status != QP_BUSY && !strstr(error.message, "the context is full"))
            fail_msg("status %d: %s", status, error.message);
    }
    return NULL;
}

static void run_pair(world *w, call *a, call *b, int rounds)
{
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, CALLS_AT_ONCE);
    caller callers[CALLS_AT_ONCE] = {{.call = a}, {.call = b}};
    for (int i = 0; i < CALLS_AT_ONCE; i++) {
        callers[i].start = &start;
        callers[i].w = w;
        callers[i].rounds = rounds;
        assert_int_equal(pthread_create(&callers[i].thread, NULL, run_caller, &callers[i]), 0);
    }
    for (int i = 0; i < CALLS_AT_ONCE; i++)
        pthread_join(callers[i].thread, NULL);
    pthread_barrier_destroy(&start);
}

static void every_pair_of_calls(void **state)
{
    (void)state;
    const char *given = getenv("OWNER_ROUNDS");
    const int rounds = given ? atoi(given) : 2;
    world w = open_world(true);
    for (int a = 0; a < CALLS; a++) {
        for (int b = a; b < CALLS; b++)
            run_pair(&w, calls[a], calls[b], rounds);
        assert_int_equal(qp_session_truncate(w.session, 0, NULL), QP_OK);
        assert_int_equal(qp_session_truncate(w.other, 0, NULL), QP_OK);
    }
    close_world(&w);
}

/* ---- a call under way ---------------------------------------------------------------------- */

/* A generation whose callback waits. */
typedef struct going {
    world *w;
    pthread_t thread;
    sem_t inside, go_on;
    bool waits;
    size_t tokens;
    qp_generate_result result;
    qp_status status;
    qp_error error;
} going;

static qp_status on_token(void *context, int32_t token, const char *text, size_t length)
{
    going *g = context;
    (void)token;
    (void)text;
    (void)length;
    if (g->tokens++ > 0 || !g->waits) return QP_OK;
    sem_post(&g->inside);
    while (sem_wait(&g->go_on) != 0) {
    }
    return QP_OK;
}

static void *run_going(void *context)
{
    going *g = context;
    const qp_generate_options options = {.size = sizeof options,
                                         .prompt = prompt,
                                         .n_prompt = PROMPT,
                                         .max_tokens = 50,
                                         .on_token = on_token,
                                         .context = g};
    g->result.size = sizeof g->result;
    g->status = qp_generate(g->w->session, &options, &g->result, &g->error);
    return NULL;
}

static void begin(going *g, world *w)
{
    *g = (going){.w = w, .waits = true};
    sem_init(&g->inside, 0, 0);
    sem_init(&g->go_on, 0, 0);
    assert_int_equal(pthread_create(&g->thread, NULL, run_going, g), 0);
    while (sem_wait(&g->inside) != 0) {
    }
}

static void end(going *g)
{
    sem_post(&g->go_on);
    pthread_join(g->thread, NULL);
    sem_destroy(&g->inside);
    sem_destroy(&g->go_on);
}

/* Every call that can say so is refused while another thread's is under way, and does no harm. */
static void a_second_thread_is_refused(void **state)
{
    (void)state;
    world w = open_world(true);
    going g;
    begin(&g, &w);
    for (int i = 0; i < CALLS; i++) {
        qp_error error = {0};
        if (calls[i] == info || calls[i] == tokens) continue;
        assert_int_equal(calls[i](&w, &error), QP_BUSY);
        assert_non_null(strstr(error.message, "another thread uses the engine"));
    }
    end(&g);
    assert_int_equal(g.status, QP_OK);
    assert_int_equal(g.result.generated_tokens, 50);
    close_world(&w);
}

/* ---- callbacks ----------------------------------------------------------------------------- */

typedef struct nested {
    world *w;
    bool done, closes_engine;
} nested;

static qp_status call_all(void *context, int32_t token)
{
    nested *n = context;
    qp_error error;
    (void)token;
    if (n->done) return QP_CANCELLED;
    n->done = true;
    call *const refused[] = {step, eval, decode, generate, truncate_session, reschedule, save};
    call *const allowed[] = {fork_session, tokens, sampler, allow, info};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(refused[i](n->w, &error), QP_BUSY);
        assert_non_null(strstr(error.message, "a callback made this call"));
    }
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        assert_ok(allowed[i](n->w, &error));
    if (n->closes_engine) {
        qp_session_close(n->w->session);
        qp_engine_close(n->w->engine);
    }
    return QP_OK;
}

static void run_nested(world *w, bool closes_engine)
{
    qp_error error;
    nested n = {.w = w, .closes_engine = closes_engine};
    qp_sequence s = {.size = sizeof s,
                     .session = w->session,
                     .tokens = prompt,
                     .count = PROMPT,
                     .sampler = w->sampler,
                     .on_token = call_all,
                     .context = &n};
    assert_ok(qp_step(w->engine, &s, 1, &error));
    assert_true(n.done);
    assert_int_equal(s.chosen, 1);
}

static void callbacks_may_not_run_passes(void **state)
{
    (void)state;
    world w = open_world(true);
    run_nested(&w, false);
    close_world(&w);
}

static void callbacks_may_close_everything(void **state)
{
    (void)state;
    qp_error error;
    world w = open_world(true);
    run_nested(&w, true);
    w.session = w.other;
    assert_int_equal(generate(&w, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "closed"));
    qp_trace_close(w.trace);
    qp_sampler_close(w.sampler);
    qp_session_close(w.other);
}

/* ---- closing ------------------------------------------------------------------------------- */

static void *close_engine(void *engine)
{
    qp_engine_close(engine);
    return NULL;
}

/* The call that is under way ends as if it were cancelled, and what belongs to the engine is closed
 * after it. */
static void closing_ends_what_is_under_way(void **state)
{
    (void)state;
    qp_error error;
    size_t count;
    world w = open_world(true);
    going g;
    pthread_t closer;
    begin(&g, &w);
    assert_int_equal(pthread_create(&closer, NULL, close_engine, w.engine), 0);
    while (!engine_is_closing(w.engine))
        sched_yield();
    end(&g);
    pthread_join(closer, NULL);
    assert_int_equal(g.status, QP_OK);
    assert_int_equal(g.result.finish, QP_FINISH_CANCELLED);
    assert_int_equal(g.result.generated_tokens, 1);
    assert_int_equal(generate(&w, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "the engine has been closed"));
    assert_int_equal(allow(&w, &error), QP_INVALID);
    assert_int_equal(fork_session(&w, &error), QP_INVALID);
    assert_non_null(qp_session_tokens(w.session, &count));
    assert_int_equal(count, PROMPT);
    qp_session_close(w.session);
    qp_session_close(w.other);
    qp_trace_close(w.trace);
    qp_sampler_close(w.sampler);
}

static qp_status ignore_logits(void *context, size_t input, size_t token, const float *logits)
{
    (void)input;
    (void)token;
    (void)logits;
    sem_post(context);
    return QP_OK;
}

typedef struct reader {
    world *w;
    sem_t begun;
    qp_status status;
    qp_error error;
} reader;

/* Reads over and over, until it is refused. */
static void *keep_reading(void *context)
{
    reader *r = context;
    do {
        const qp_input input = {.session = r->w->other, .tokens = prompt, .count = 1};
        r->status = qp_eval(r->w->engine, &input, 1, ignore_logits, &r->begun, NULL, &r->error);
        if (r->status == QP_OK) r->status = qp_session_truncate(r->w->other, 0, &r->error);
    } while (r->status == QP_OK);
    qp_session_close(r->w->other);
    return NULL;
}

static void closing_between_calls(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        world w = open_world(false);
        reader r = {.w = &w};
        pthread_t thread;
        sem_init(&r.begun, 0, 0);
        assert_int_equal(pthread_create(&thread, NULL, keep_reading, &r), 0);
        while (sem_wait(&r.begun) != 0) {
        }
        qp_engine_close(w.engine);
        pthread_join(thread, NULL);
        assert_true(r.status == QP_CANCELLED || r.status == QP_INVALID);
        sem_destroy(&r.begun);
        qp_trace_close(w.trace);
        qp_sampler_close(w.sampler);
        qp_session_close(w.session);
    }
}

static void null_is_refused(void **state)
{
    (void)state;
    qp_error error;
    assert_int_equal(qp_step(NULL, NULL, 0, &error), QP_INVALID);
    qp_engine_close(NULL);
    qp_session_close(NULL);
    qp_sampler_close(NULL);
    qp_trace_close(NULL);
    qp_chat_close(NULL);
    qp_text_stream_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_calls),
        cmocka_unit_test(a_second_thread_is_refused),
        cmocka_unit_test(callbacks_may_not_run_passes),
        cmocka_unit_test(callbacks_may_close_everything),
        cmocka_unit_test(closing_ends_what_is_under_way),
        cmocka_unit_test(closing_between_calls),
        cmocka_unit_test(null_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
