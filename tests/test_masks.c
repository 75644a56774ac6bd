/* Masks of forms are made on a thread of their own. Where a test must know that a mask is not yet
 * made, it holds the form's lock, which the thread needs: nothing here depends on time.
 */
#include "engine_test.h"

#include "grammar/form.h"
#include "server/batcher_state.h"

#include <unistd.h>

enum { FORMED = 8, MADE = 12 };

static qp_error error;
static qp_vocabulary *vocabulary;

static const char text_model[] = "golden/models/llama-text.gguf";

static int open_vocabulary(void **state)
{
    (void)state;
    assert_ok(qp_vocabulary_open(text_model, &vocabulary, &error));
    return 0;
}

static int close_vocabulary(void **state)
{
    (void)state;
    qp_vocabulary_close(vocabulary);
    return 0;
}

static qp_grammar *open_form(const char *text)
{
    qp_grammar *form;
    assert_ok(qp_grammar_open(vocabulary, QP_GRAMMAR_GBNF, text, strlen(text), &form, &error));
    return form;
}

/* ---- the batcher --------------------------------------------------------------------------- */

static request *submit(qp_engine *engine, batcher *b, qp_grammar *form)
{
    static const int32_t prompt[] = {3, 4, 5};
    request *r = request_new();
    assert_non_null(r);
    assert_ok(qp_sampling_defaults(engine, &r->sampling, &error));
    r->sampling.value[QP_TEMPERATURE] = 0;
    if (!form) r->sampling.n_stop_tokens = 0;
    r->sampling.grammar = form;
    r->prompt = malloc(sizeof prompt);
    memcpy(r->prompt, prompt, sizeof prompt);
    r->n_prompt = sizeof prompt / sizeof *prompt;
    r->max_tokens = MADE;
    assert_ok(batcher_submit(b, r, &error));
    return r;
}

/* Reads what the request has said: the text is appended; true once it has ended. */
static bool read_answer(request *r, strbuf *text, token_event *end)
{
    token_event event;
    while (request_next(r, 0, &event)) {
        size_t length;
        if (event.last) return *end = event, true;
        const char *piece = qp_token_piece(vocabulary, event.token, &length);
        strbuf_append(text, piece, length);
    }
    return false;
}

/* A batcher without a thread, over an engine with a slot for each request. */
static batcher *open_batcher(qp_engine **engine, bool invariant)
{
    batcher *b;
    *engine = open_engine((qp_engine_options){.model = text_model,
                                              .context = 64,
                                              .max_sessions = FORMED + 1,
                                              .max_outputs = 16,
                                              .batch_invariant = invariant});
    assert_ok(batcher_create(&(batcher_options){0}, *engine, &b, &error));
    return b;
}

static void turn_until_ended(batcher *b, request *r, strbuf *text, token_event *end)
{
    while (!read_answer(r, text, end))
        if (!batcher_turn(b)) usleep(100); /* a mask is being made */
}

/* Eight answers wait for masks, and another one is made as if they were not there. */
static void a_mask_that_is_not_made_delays_nobody(void **state)
{
    (void)state;
    qp_engine *engine;
    batcher *b = open_batcher(&engine, false);
    qp_grammar *form = open_form("root ::= [a-c]{200}");
    request *formed[FORMED], *plain;
    strbuf text = {0};
    token_event end = {0};
    pthread_mutex_lock(&form->lock);
    for (int i = 0; i < FORMED; i++)
        formed[i] = submit(engine, b, form);
    plain = submit(engine, b, NULL);
    while (!read_answer(plain, &text, &end))
        assert_true(batcher_turn(b)); /* no turn was without work */
    assert_int_equal(end.finish, QP_FINISH_LENGTH);
    for (int i = 0; i < FORMED; i++)
        assert_int_equal(atomic_load(&formed[i]->choices->written), 0);
    pthread_mutex_unlock(&form->lock);
    for (int i = 0; i < FORMED; i++) {
        strbuf_clear(&text);
        turn_until_ended(b, formed[i], &text, &end);
        assert_int_equal(end.finish, QP_FINISH_LENGTH);
        assert_true(text.length >= MADE);
        assert_int_equal(strspn(strbuf_text(&text), "abc"), text.length);
        request_release(formed[i]);
    }
    request_release(plain);
    strbuf_free(&text);
    batcher_close(b);
    qp_grammar_close(form);
    qp_engine_close(engine);
}

/* Where passes read either prompts or decode, the one that waits for its mask does not keep prompts
 * back. */
static void prompts_are_read_while_a_mask_is_made(void **state)
{
    (void)state;
    qp_engine *engine;
    batcher *b = open_batcher(&engine, true);
    qp_grammar *form = open_form("root ::= [a-c]{200}");
    request *formed = submit(engine, b, form);
    strbuf text = {0};
    token_event end = {0};
    while (atomic_load(&formed->choices->written) == 0)
        if (!batcher_turn(b)) usleep(100);
    pthread_mutex_lock(&form->lock);
    while (batcher_turn(b)) /* until it waits */
        ;
    request *plain = submit(engine, b, NULL);
    while (!read_answer(plain, &text, &end))
        assert_true(batcher_turn(b));
    assert_int_equal(end.finish, QP_FINISH_LENGTH);
    pthread_mutex_unlock(&form->lock);
    turn_until_ended(b, formed, &text, &end);
    request_release(formed);
    request_release(plain);
    strbuf_free(&text);
    batcher_close(b);
    qp_grammar_close(form);
    qp_engine_close(engine);
}

/* It ends at once, although the thread has its text. */
static void an_answer_that_waits_for_a_mask_can_be_cancelled(void **state)
{
    (void)state;
    qp_engine *engine;
    batcher *b = open_batcher(&engine, false);
    qp_grammar *form = open_form("root ::= [a-c]+");
    strbuf text = {0};
    token_event end = {0};
    pthread_mutex_lock(&form->lock);
    request *r = submit(engine, b, form);
    batcher_turn(b);
    request_cancel(r, REQUEST_ALL_CHOICES);
    batcher_turn(b);
    assert_true(read_answer(r, &text, &end));
    assert_int_equal(end.finish, QP_FINISH_CANCELLED);
    pthread_mutex_unlock(&form->lock);
    request_release(r);
    strbuf_free(&text);
    batcher_close(b);
    qp_grammar_close(form);
    qp_engine_close(engine);
}

/* A form without a stop token cannot be begun: that fails its own answer only. */
static void a_mask_that_fails_ends_its_answer(void **state)
{
    (void)state;
    qp_engine *engine;
    batcher *b = open_batcher(&engine, false);
    qp_grammar *form = open_form("root ::= [a-c]+");
    request *hopeless = submit(engine, b, form), *plain = submit(engine, b, NULL);
    strbuf text = {0};
    token_event end = {0};
    hopeless->sampling.n_stop_tokens = 0;
    turn_until_ended(b, plain, &text, &end);
    assert_int_equal(end.finish, QP_FINISH_LENGTH);
    turn_until_ended(b, hopeless, &text, &end);
    assert_int_equal(end.finish, REQUEST_FAILED);
    assert_non_null(strstr(hopeless->error.message, "ends with a stop token"));
    request_release(hopeless);
    request_release(plain);
    strbuf_free(&text);
    batcher_close(b);
    qp_grammar_close(form);
    qp_engine_close(engine);
}

/* ---- the thread ---------------------------------------------------------------------------- */

enum { TEXTS = 3, LOGGED = 8 };

/* Which of the texts had a mask each time when one was made. */
typedef struct progress_log {
    mask_text *texts[TEXTS];
    bool had[LOGGED][TEXTS];
    atomic_int n;
} progress_log;

static void note(void *context)
{
    progress_log *log = context;
    const int n = atomic_load(&log->n);
    for (int i = 0; i < TEXTS && n < LOGGED; i++) {
        const uint32_t *mask = NULL;
        qp_error why;
        if (log->texts[i]) masks_get(log->texts[i], &mask, &why);
        log->had[n][i] = mask != NULL;
    }
    atomic_store(&log->n, n + 1);
}

static void wait_for(progress_log *log, int n)
{
    while (atomic_load(&log->n) < n)
        usleep(100);
}

static void begin(mask_maker *maker, qp_grammar *form, mask_text **text)
{
    const int32_t stop = qp_special_token(vocabulary, QP_ROLE_EOS);
    assert_ok(
        masks_begin(maker, form, &stop, 1, (size_t)qp_vocabulary_size(vocabulary), text, &error));
}

static int32_t token_of(const char *text)
{
    qp_tokens tokens = {0};
    assert_ok(qp_tokenize(vocabulary, text, strlen(text), QP_BOS_NEVER, &tokens, &error));
    const int32_t last = tokens.data[tokens.count - 1];
    qp_tokens_free(&tokens);
    return last;
}

/* Text 0 has the thread; 1 has taken work before, the walk from the end of its inner rule; 2 has
 * not, and is next although it asked last. */
static void the_text_with_least_work_is_next(void **state)
{
    (void)state;
    mask_maker *maker;
    progress_log log = {0};
    qp_grammar *held = open_form("root ::= \"a\"+"),
               *other = open_form("root ::= (x \"b\")+\nx ::= [a-c]"),
               *third = open_form("root ::= [x-z]+");
    assert_ok(masks_open(note, &log, &maker, &error));
    begin(maker, other, &log.texts[1]);
    wait_for(&log, 1);
    masks_take(log.texts[1], token_of("a"));
    wait_for(&log, 2);
    pthread_mutex_lock(&held->lock);
    begin(maker, held, &log.texts[0]);
    masks_take(log.texts[1], token_of("b"));
    begin(maker, third, &log.texts[2]);
    pthread_mutex_unlock(&held->lock);
    wait_for(&log, 5);
    /* Text 0 may have been taken after 2, if the thread had not yet begun; 1 is always last. */
    assert_true(log.had[3][0] && log.had[3][2] && !log.had[3][1]);
    assert_true(log.had[4][1]);
    for (int i = 0; i < TEXTS; i++)
        masks_end(log.texts[i]);
    masks_close(maker);
    qp_grammar_close(held);
    qp_grammar_close(other);
    qp_grammar_close(third);
}

/* What a form has met is followed on the caller's thread: no mask is asked for. */
static void what_is_known_asks_nobody(void **state)
{
    (void)state;
    enum { LEARN = 8 };
    mask_maker *maker;
    progress_log log = {0};
    const uint32_t *mask = NULL;
    const int32_t a = token_of("a");
    int asked = 0;
    qp_grammar *form = open_form("root ::= \"a\"+");
    assert_ok(masks_open(note, &log, &maker, &error));
    begin(maker, form, &log.texts[0]);
    wait_for(&log, 1);
    for (int i = 0; i < 2 * LEARN; i++) {
        if (i == LEARN) asked = atomic_load(&log.n);
        masks_take(log.texts[0], a);
        do
            assert_ok(masks_get(log.texts[0], &mask, &error));
        while (!mask && usleep(100) == 0);
        assert_true(mask[a / 32] >> a % 32 & 1);
    }
    assert_true(asked > 1); /* what came after the first "a" was new */
    assert_int_equal(atomic_load(&log.n), asked);
    masks_end(log.texts[0]);
    masks_close(maker);
    qp_grammar_close(form);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_that_is_not_made_delays_nobody),
        cmocka_unit_test(prompts_are_read_while_a_mask_is_made),
        cmocka_unit_test(an_answer_that_waits_for_a_mask_can_be_cancelled),
        cmocka_unit_test(a_mask_that_fails_ends_its_answer),
        cmocka_unit_test(the_text_with_least_work_is_next),
        cmocka_unit_test(what_is_known_asks_nobody),
    };
    return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}
