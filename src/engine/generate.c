/* Answers to prompts, alone and side by side: see qp_generate() and qp_generate_together() in
 * quipu.h.
 *
 * Prompts are read first, by calls of qp_step() for these sequences only. If several answers begin
 * from the same prompt, one of them reads it for all. After that every call reads the last token of
 * each answer that continues.
 */
#include "engine/generation.h"

#include <stdlib.h>
#include <string.h>

/* Arrays of [n]. */
typedef struct gathering {
    qp_engine *engine;
    generation *all;
    size_t n;
    size_t *reader;         /* [i]: the answer that reads the prompt of answer i */
    qp_sequence *sequences; /* [n_called]: the sequences of a call */
    size_t *called;         /* [n_called]: their answers */
    size_t n_called;
    bool alone; /* errors need not name the answer */
    qp_error *error;
} gathering;

static qp_status allocate(gathering *t)
{
    const size_t n = t->n;
    t->all = calloc(n, sizeof *t->all);
    t->reader = calloc(n, sizeof *t->reader);
    t->sequences = calloc(n, sizeof *t->sequences);
    t->called = calloc(n, sizeof *t->called);
    if (t->all && t->reader && t->sequences && t->called) return QP_OK;
    return error_no_memory(t->error, "the answers", n * sizeof *t->all);
}

static void release(gathering *t)
{
    free(t->all);
    free(t->reader);
    free(t->sequences);
    free(t->called);
}

/* Adds to the message which answer failed. */
static qp_status of_answer(const gathering *t, size_t i, qp_status status)
{
    if (status == QP_OK || !t->error || t->alone) return status;
    const qp_error said = *t->error;
    return error_set(t->error, status, "answer %zu: %.*s", i, QP_ERROR_SIZE - 32, said.message);
}

/* Whether two answers have the same prompt, so that one of them can read it for both. */
static bool begin_alike(const generation *a, const generation *b)
{
    const qp_generate_options *x = &a->options, *y = &b->options;
    return a->session != b->session && a->session->engine == b->session->engine &&
           a->session->count == 0 && b->session->count == 0 && x->n_prompt == y->n_prompt &&
           memcmp(x->prompt, y->prompt, x->n_prompt * sizeof *x->prompt) == 0;
}

static qp_status open_all(gathering *t, const qp_answer *answers)
{
    for (size_t i = 0; i < t->n; i++) {
        const qp_answer *a = &answers[i];
        TRY(of_answer(t, i,
                      generation_open(&t->all[i], a->session, a->options, a->result, t->error)));
        size_t reader = 0;
        while (reader < i &&
               (t->reader[reader] != reader || !begin_alike(&t->all[reader], &t->all[i])))
            reader++;
        t->reader[i] = reader;
    }
    return QP_OK;
}

/* One call of qp_step() for the sequences that were collected. */
static qp_status call(gathering *t)
{
    qp_status status = engine_step(t->engine, t->sequences, t->n_called, t->error);
    for (size_t k = 0; k < t->n_called; k++)
        generation_take(&t->all[t->called[k]], &t->sequences[k]);
    for (size_t k = 0; k < t->n_called && status == QP_OK; k++) {
        const generation *g = &t->all[t->called[k]];
        if (!g->goes_on) status = of_answer(t, t->called[k], g->taken);
    }
    return status;
}

static void add(gathering *t, size_t i, const qp_sequence *like)
{
    t->called[t->n_called] = i;
    t->sequences[t->n_called++] = generation_sequence(&t->all[i], like);
}

/* Collects the answers whose prompts are not yet read completely. Answers that share a prompt are
 * included, until the one that reads it is cancelled. */
static void gather_prompts(gathering *t)
{
    t->n_called = 0;
    for (size_t i = 0; i < t->n; i++) {
        const generation *g = &t->all[i];
        if (g->begun || !g->goes_on || generation_is_cancelled(g)) continue;
        const size_t reader = t->reader[i];
        const qp_sequence *like = NULL;
        for (size_t k = 0; k < t->n_called; k++)
            if (t->called[k] == reader) like = &t->sequences[k];
        add(t, i, like);
    }
}

static void gather_going(gathering *t)
{
    t->n_called = 0;
    for (size_t i = 0; i < t->n; i++) {
        const generation *g = &t->all[i];
        if (g->begun && g->goes_on && !generation_is_cancelled(g)) add(t, i, NULL);
    }
}

static qp_status read_prompts(gathering *t)
{
    qp_status status = QP_OK;
    gather_prompts(t);
    engine_begin_reading(t->engine, t->sequences, t->n_called);
    for (; status == QP_OK && t->n_called > 0; gather_prompts(t))
        status = call(t);
    engine_end_reading(t->engine);
    return status;
}

static qp_status make_answers(gathering *t)
{
    TRY(read_prompts(t));
    for (gather_going(t); t->n_called > 0; gather_going(t))
        TRY(call(t));
    return QP_OK;
}

/* Closes all answers, also after an error; the first error counts. An answer that had not ended was
 * cancelled, or another answer's error ended it. */
static qp_status close_all(gathering *t, qp_status status)
{
    for (size_t i = 0; i < t->n; i++) {
        generation *g = &t->all[i];
        if (!g->session) continue;
        if (status != QP_OK) g->error = NULL; /* report the first error */
        qp_status ended = generation_close(g, QP_CANCELLED);
        if (status == QP_OK) status = of_answer(t, i, ended);
    }
    return status;
}

static qp_status generate(gathering *t, const qp_answer *answers)
{
    qp_status status = allocate(t);
    if (status == QP_OK) status = open_all(t, answers);
    if (status == QP_OK) status = make_answers(t);
    if (t->all) status = close_all(t, status);
    release(t);
    return status;
}

static qp_status enter_and_generate(gathering *t, const qp_answer *answers)
{
    TRY(engine_enter(t->engine, t->error));
    const qp_status status = generate(t, answers);
    engine_leave(t->engine);
    return status;
}

qp_status qp_generate_together(const qp_answer *answers, size_t n_answers, qp_error *error)
{
    if (n_answers == 0) return QP_OK;
    gathering t = {.engine = answers[0].session->engine, .n = n_answers, .error = error};
    return enter_and_generate(&t, answers);
}

qp_status engine_generate(qp_session *session, const qp_generate_options *options,
                          qp_generate_result *result, qp_error *error)
{
    const qp_answer answer = {.session = session, .options = options, .result = result};
    gathering t = {.engine = session->engine, .n = 1, .alone = true, .error = error};
    return generate(&t, &answer);
}

qp_status qp_generate(qp_session *session, const qp_generate_options *options,
                      qp_generate_result *result, qp_error *error)
{
    TRY(engine_enter(session->engine, error));
    const qp_status status = engine_generate(session, options, result, error);
    engine_leave(session->engine);
    return status;
}
