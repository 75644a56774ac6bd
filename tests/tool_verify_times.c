/* How long passes take that verify proposals of one sequence.
 *
 *     tool_verify_times MODEL EXEC CONTEXT...
 *
 * After each number of positions: the median time of a token in runs of 16 passes, and of a call
 * that reads the last token and 0 to 7 proposals, all of which are wrong, as multiples of that.
 */
#include "base/clock.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 31, MOST_ROWS = 8, RUN = 16 };

static qp_engine *engine;
static qp_error error;
static int32_t last;
static int proposals;
static uint64_t drawn;

static void check(qp_status status)
{
    if (status == QP_OK) return;
    fprintf(stderr, "%s\n", error.message);
    exit(1);
}

static qp_status propose(proposer *self, const speculated_sequence *all, size_t n, int most,
                         qp_error *why)
{
    (void)self, (void)n, (void)why;
    speculated *p = all->slot;
    p->n_found = proposals < most ? proposals : most;
    for (int i = 0; i < p->n_found; i++) {
        p->grades[i] = SPECULATE_GRADES - 2;
        p->tokens[i] = (int32_t)(drawn++ % 400);
    }
    return QP_OK;
}

/* What is measured has no say in what is verified. */
static void set_times(qp_session *session, bool many)
{
    speculation *s = &engine->speculation;
    speculated *p = &s->slots[session->slot];
    for (int rows = 1; rows <= SPECULATE_ROWS; rows++)
        s->row_ns[rows] = 1e9;
    p->lost_ns = 0;
    for (int g = 0; g < SPECULATE_GRADES; g++)
        p->right[g] = p->tried[g] = 100;
    p->right_at = many ? 0 : session->count;
}

static qp_status on_token(void *context, int32_t token)
{
    int *wanted = context;
    last = token;
    return --*wanted > 0 ? QP_OK : QP_CANCELLED;
}

/* Milliseconds of a call that makes `wanted` tokens, each. */
static double call(qp_session *session, qp_sampler *sampler, size_t context, int wanted)
{
    const size_t made = (size_t)wanted;
    qp_session_truncate(session, context, NULL);
    qp_sequence s = {.size = sizeof s,
                     .session = session,
                     .tokens = &last,
                     .count = 1,
                     .sampler = sampler,
                     .max_tokens = made > 1 ? made : 0,
                     .on_token = on_token,
                     .context = &wanted};
    set_times(session, wanted > 1);
    const uint64_t begin = clock_ns();
    check(qp_step(engine, &s, 1, &error));
    return (double)(clock_ns() - begin) * 1e-6 / (double)s.passes;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(qp_session *session, qp_sampler *sampler, size_t context, int wanted)
{
    double ms[CALLS];
    for (int i = 0; i < CALLS; i++)
        ms[i] = call(session, sampler, context, wanted);
    qsort(ms, CALLS, sizeof *ms, compare);
    return ms[CALLS / 2];
}

static void measure(size_t context)
{
    qp_session *session;
    qp_sampler *sampler;
    qp_sampling greedy = {.size = sizeof greedy};
    int32_t *ids = calloc(context, sizeof *ids);
    check(qp_sampling_defaults(engine, &greedy, &error));
    check(qp_sampling_set(&greedy, QP_TEMPERATURE, 0, QP_FROM_REQUEST, &error));
    greedy.n_stop_tokens = 0;
    check(qp_sampler_open(engine, &greedy, &sampler, &error));
    check(qp_session_open(engine, &session, &error));
    for (size_t i = 0; i < context; i++)
        ids[i] = (int32_t)(i * 97 % 400);
    const qp_input input = {.session = session, .tokens = ids, .count = context};
    check(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error));
    last = 7;
    proposals = 0;
    call(session, sampler, context, 1); /* makes the slot of the sequence */
    const double plain = median(session, sampler, context, RUN);
    printf("%6zu positions: %.3f ms a token;", context, plain);
    for (proposals = 0; proposals < MOST_ROWS; proposals++)
        printf(" %d: %.3f", proposals + 1, median(session, sampler, context, 1) / plain);
    printf("\n");
    qp_session_close(session);
    qp_sampler_close(sampler);
    free(ids);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: tool_verify_times MODEL EXEC CONTEXT...\n");
        return 1;
    }
    proposer wrong = {.propose = propose};
    const long longest = strtol(argv[argc - 1], NULL, 10);
    const qp_engine_options options = {.size = sizeof options,
                                       .model = argv[1],
                                       .exec = argv[2],
                                       .context = longest + 64,
                                       .speculate = "lookup"};
    check(qp_engine_open(&options, &engine, &error));
    engine->speculation.proposer = &wrong;
    for (int i = 3; i < argc; i++)
        measure((size_t)strtol(argv[i], NULL, 10));
    qp_engine_close(engine);
    return 0;
}
