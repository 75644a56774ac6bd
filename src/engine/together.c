/* Several answers at once: see qp_generate_together() in quipu.h.
 *
 * Prompts are read as one evaluation; of answers that begin from the same prompt one reads it, and
 * the others share its pages. Then rounds: each makes as many tokens of every answer that
 * goes on as nobody minds to be late, and hands them out. What is left of the last answer is made
 * as if it were alone.
 */
#include "engine/decode.h"
#include "engine/generation.h"

#include <stdlib.h>
#include <string.h>

/* Arrays of `n` and what a round reads and makes, [QP_MAX_EOS_INTERVAL + 1][n]. */
typedef struct gathering {
    qp_engine *engine;
    generation *all;
    size_t n;
    generation **going; /* those that go on, in order */
    size_t n_going;
    qp_input *inputs;
    size_t *readers;  /* [n_inputs]: the answer whose prompt each input is */
    size_t *input_of; /* [n]: the input that is each answer's prompt */
    size_t n_inputs;
    qp_session **sessions;
    sampler **samplers;
    int32_t *tokens;
    const volatile int *cancel; /* that all of them look at; NULL: there is none such */
    qp_error *error;
} gathering;

static qp_status allocate(gathering *t)
{
    const size_t n = t->n, rows = QP_MAX_EOS_INTERVAL + 1;
    t->all = calloc(n, sizeof *t->all);
    t->going = calloc(n, sizeof *t->going);
    t->inputs = calloc(n, sizeof *t->inputs);
    t->readers = calloc(2 * n, sizeof *t->readers);
    t->input_of = t->readers + n;
    t->sessions = calloc(n, sizeof *t->sessions);
    t->samplers = calloc(n, sizeof *t->samplers);
    t->tokens = calloc(n, rows * sizeof *t->tokens);
    if (t->all && t->going && t->inputs && t->readers && t->sessions && t->samplers && t->tokens)
        return QP_OK;
    return error_no_memory(t->error, "the answers", n * rows * sizeof *t->tokens);
}

static void release(gathering *t)
{
    free(t->all);
    free(t->going);
    free(t->inputs);
    free(t->readers);
    free(t->sessions);
    free(t->samplers);
    free(t->tokens);
}

/* Says whose fault it is. */
static qp_status of_answer(size_t i, qp_status status, qp_error *error)
{
    if (status == QP_OK || !error) return status;
    const qp_error said = *error;
    return error_set(error, status, "answer %zu: %.*s", i, QP_ERROR_SIZE - 32, said.message);
}

static qp_status open_all(gathering *t, const qp_answer *answers)
{
    t->cancel = answers[0].options->cancel;
    for (size_t i = 0; i < t->n; i++) {
        const qp_answer *a = &answers[i];
        if (a->options->cancel != t->cancel) t->cancel = NULL;
        TRY(of_answer(i, generation_open(&t->all[i], a->session, a->options, a->result, t->error),
                      t->error));
    }
    return QP_OK;
}

static qp_status keep_logits(void *context, size_t input, size_t token, const float *logits)
{
    const gathering *t = context;
    return generation_keep_logits(t->all[t->readers[input]].session, input, token, logits);
}

/* Whether two answers begin from the same tokens, so that one of them reads these for both. */
static bool begin_alike(const generation *a, const generation *b)
{
    const qp_generate_options *x = a->options, *y = b->options;
    return a->session != b->session && a->session->engine == b->session->engine &&
           a->session->count == 0 && b->session->count == 0 && x->n_prompt == y->n_prompt &&
           memcmp(x->prompt, y->prompt, x->n_prompt * sizeof *x->prompt) == 0;
}

/* The input whose prompt is that of answer i too; n_inputs: there is none. */
static size_t find_reader(const gathering *t, size_t i)
{
    size_t input = 0;
    while (input < t->n_inputs && !begin_alike(&t->all[t->readers[input]], &t->all[i]))
        input++;
    return input;
}

/* Those that ended have no part in the next round. */
static void keep_going(gathering *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_going; i++)
        if (t->going[i]->goes_on && !generation_is_cancelled(t->going[i]))
            t->going[n++] = t->going[i];
    t->n_going = n;
}

static qp_status read_prompts(gathering *t)
{
    for (size_t i = 0; i < t->n; i++) {
        const generation *g = &t->all[i];
        const size_t input = t->input_of[i] = find_reader(t, i);
        if (input < t->n_inputs) continue;
        t->readers[input] = i;
        t->inputs[input] = (qp_input){
            .session = g->session, .tokens = g->options->prompt, .count = g->options->n_prompt};
        t->n_inputs++;
    }
    TRY(qp_eval(t->engine, t->inputs, t->n_inputs, keep_logits, t, t->cancel, t->error));
    for (size_t i = 0; i < t->n; i++) {
        generation *g = t->going[i] = &t->all[i];
        const generation *reader = &t->all[t->readers[t->input_of[i]]];
        if (reader != g) {
            session_share(g->session, reader->session);
            g->result->shared_tokens = g->options->n_prompt;
        }
    }
    for (size_t i = 0; i < t->n; i++)
        generation_begin(&t->all[i]);
    t->n_going = t->n;
    keep_going(t);
    return QP_OK;
}

/* Passes of a round: as many as the least patient of the answers allows. */
static int64_t passes_of(const gathering *t, int64_t usual)
{
    int64_t least = QP_MAX_EOS_INTERVAL;
    for (size_t i = 0; i < t->n_going; i++) {
        int64_t count = generation_interval(t->going[i], usual);
        if (count < least) least = count;
    }
    return least;
}

static qp_status run_round(gathering *t)
{
    const size_t n = t->n_going;
    bool choose = false;
    for (size_t i = 0; i < n; i++) {
        t->sessions[i] = t->going[i]->session;
        t->samplers[i] = &t->going[i]->sampler;
        t->tokens[i] = t->going[i]->last;
        choose |= sampler_chooses(t->samplers[i]);
    }
    decoding d = {.engine = t->engine,
                  .sessions = t->sessions,
                  .samplers = choose ? t->samplers : NULL,
                  .n_sessions = n};
    const size_t count = d.count = (size_t)passes_of(t, decode_passes(&d));
    TRY(decode(&d, t->tokens, t->cancel, t->error));
    for (size_t i = 0; i < n; i++) {
        generation *g = t->going[i];
        g->result->generate_passes += count;
        for (size_t pass = 1; pass <= count && g->goes_on && !generation_is_cancelled(g); pass++)
            generation_hand_out(g, t->tokens[pass * n + i]);
        if (!g->goes_on) TRY(of_answer((size_t)(g - t->all), g->taken, t->error));
    }
    keep_going(t);
    return QP_OK;
}

static qp_status make_answers(gathering *t)
{
    TRY(read_prompts(t));
    while (t->n_going > 1)
        TRY(run_round(t));
    return t->n_going ? generation_go_on(t->going[0]) : QP_OK;
}

/* All are closed, whatever became of the others; the first fault counts. An answer that goes on
 * was cancelled, or is left behind by the fault. */
static qp_status close_all(gathering *t, qp_status status)
{
    qp_status first = status == QP_CANCELLED ? QP_OK : status;
    for (size_t i = 0; i < t->n; i++) {
        generation *g = &t->all[i];
        if (!g->session) continue;
        if (first != QP_OK) g->error = NULL; /* what went wrong first is told */
        qp_status ended = generation_close(g, QP_CANCELLED);
        if (first == QP_OK) first = of_answer(i, ended, t->error);
    }
    return first;
}

qp_status qp_generate_together(const qp_answer *answers, size_t n_answers, qp_error *error)
{
    if (n_answers == 0) return QP_OK;
    gathering t = {.engine = answers[0].session->engine, .n = n_answers, .error = error};
    qp_status status = allocate(&t);
    if (status == QP_OK) status = open_all(&t, answers);
    if (status == QP_OK) status = make_answers(&t);
    if (t.all) status = close_all(&t, status);
    release(&t);
    return status;
}
