/* What is proposed, and how much of it is verified: see speculate.h. */
#include "engine/speculate.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/lookup.h"
#include "engine/step_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- prompt lookup ------------------------------------------------------------------------- */

_Static_assert((int)LOOKUP_MOST == (int)SPECULATE_MOST, "a search finds all that may be verified");

enum { AGREEMENTS = 5 };

/* Of a token after `agreed` ones that agree. */
static uint8_t grade_of(int agreed, bool foreseen)
{
    const int grade = agreed >= 9 ? 4 : agreed >= 5 ? 3 : agreed >= 3 ? 2 : agreed - 1;
    return (uint8_t)(foreseen ? AGREEMENTS + grade : grade);
}

static qp_status look_up(proposer *self, const speculated_sequence *all, size_t n, int most,
                         qp_error *error)
{
    (void)self, (void)error;
    for (size_t i = 0; i < n; i++) {
        const qp_session *s = all[i].of->session;
        const lookup_text text = {s->tokens, s->count, all[i].of->tokens[0]};
        const int room = all[i].most < most ? all[i].most : most;
        const lookup_found found = lookup_propose(text, room);
        speculated *p = all[i].slot;
        p->n_found = found.agreed ? room : 0;
        for (int k = 0; k < p->n_found; k++) {
            p->tokens[k] = found.tokens[k];
            /* It counts only if the proposals before it are right, which then agree too. */
            p->grades[k] = grade_of(found.agreed + k, found.foreseen[k]);
        }
    }
    return QP_OK;
}

proposer proposer_lookup = {.propose = look_up};

/* ---- the state ----------------------------------------------------------------------------- */

qp_status speculation_init(speculation *s, proposer *proposer, int64_t max_sessions,
                           qp_error *error)
{
    const size_t n = (size_t)max_sessions;
    *s = (speculation){.proposer = proposer};
    s->slots = calloc(n, sizeof *s->slots);
    s->active = calloc(n, sizeof *s->active);
    if (s->slots && s->active) return QP_OK;
    return error_no_memory(error, "proposals", n * (sizeof *s->slots + sizeof *s->active));
}

void speculation_free(speculation *s)
{
    if (s->proposer && s->proposer->close) s->proposer->close(s->proposer);
    free(s->slots);
    free(s->active);
    *s = (speculation){0};
}

/* ---- how often proposals are right --------------------------------------------------------- */

/* What is assumed before anything is known, with the weight of PRIOR_TRIES proposals. */
static const double prior[SPECULATE_GRADES] = {0.05, 0.15, 0.2, 0.3, 0.5, 0.15,
                                               0.4,  0.6,  0.8, 0.9, 0.7};
enum { PRIOR_TRIES = 2, GRADE_OF_MADE = 2 * AGREEMENTS /* of all proposals of a model */ };
#define MEMORY 0.93 /* what a proposal counts after the next one, compared with that */

/* How likely a proposal of the grade is right, half a standard deviation below the estimate,
 * because a wrong one costs time and one that was not verified may come again. */
static double chance(const speculated *p, int g)
{
    const double tried = p->tried[g] + PRIOR_TRIES;
    const double right = (p->right[g] + prior[g] * PRIOR_TRIES) / tried;
    return right - sqrt(right * (1 - right) / tried) / 2;
}

static void note_try(speculated *p, int g, bool right)
{
    p->right[g] = p->right[g] * MEMORY + right;
    p->tried[g] = p->tried[g] * MEMORY + 1;
}

/* Compares the proposals with the text that came, up to the first that was wrong. */
static void judge(speculated *p, const qp_sequence *s)
{
    const qp_session *session = s->session;
    for (int i = 0; i < p->n_found && p->position + (size_t)i <= session->count; i++) {
        const size_t at = p->position + (size_t)i;
        const int32_t came = at < session->count ? session->tokens[at] : s->tokens[0];
        note_try(p, p->grades[i], came == p->tokens[i]);
        if (came != p->tokens[i]) break;
    }
    p->n_found = p->n = 0;
}

static speculated *slot_of(qp_engine *e, const qp_sequence *s)
{
    speculated *p = &e->speculation.slots[s->session->slot];
    if (p->session != s->session->id || p->sampler != s->sampler->id)
        *p = (speculated){
            .session = s->session->id, .sampler = s->sampler->id, .right_at = s->session->count};
    return p;
}

/* ---- what passes cost ---------------------------------------------------------------------- */

/* Time of a pass of `rows` rows, from the nearest numbers of rows that were measured. */
static double between(const speculation *s, int64_t rows)
{
    const double growth = 0.1; /* of the time of the largest pass known, for each further row */
    int64_t below = rows, above = rows;
    while (below > 0 && s->row_ns[below] == 0)
        below--;
    while (above < SPECULATE_ROWS && s->row_ns[above] == 0)
        above++;
    const double low = s->row_ns[below], high = s->row_ns[above];
    if (below == 0) return high;
    if (above == below) return low;
    if (high == 0) return low * (1 + growth * (double)(rows - below) / (double)below);
    return low + (high - low) * (double)(rows - below) / (double)(above - below);
}

/* The same; 0: nothing was measured. A pass takes no longer than one of more rows: while all passes
 * have proposals, what was measured without is old. */
static double time_of(const speculation *s, int64_t rows)
{
    double ns = between(s, rows);
    for (int64_t more = rows; more <= SPECULATE_ROWS; more++)
        if (s->row_ns[more] > 0 && s->row_ns[more] < ns) ns = s->row_ns[more];
    return ns;
}

/* A moving mean. What disturbs a pass makes it longer, so a pass that took longer than expected
 * counts less than one that took less time, and no pass counts as much longer. */
static void note_time(speculation *s, int64_t rows, double ns)
{
    const double longest = 1.5, weight_longer = 0.25, weight_shorter = 0.5;
    if (rows > SPECULATE_ROWS) return;
    double *mean = &s->row_ns[rows];
    const double expected = time_of(s, rows);
    if (expected > 0 && ns > longest * expected) ns = longest * expected;
    if (*mean == 0) *mean = ns;
    *mean += (ns - *mean) * (ns > *mean ? weight_longer : weight_shorter);
}

/* ---- how many proposals pay ---------------------------------------------------------------- */

/* What a sequence may lose by verifying: a share of its time, and some passes at its beginning. */
#define LOSS  0.02
#define AHEAD 1.5
/* Proposals of another model that do not pay are tried again when the loss is below this share. */
#define TRIAL 0.01
/* Proposals are verified if they raise tokens per second by this factor. */
#define GAIN 1.03
/* What is likelier than this may lose twice as much. */
#define NEARLY_CERTAIN 0.9

/* Time that the sequence may still lose; `pass_ns`: of a pass without proposals. */
static double budget_of(const speculated *p, double pass_ns)
{
    const double most = LOSS * p->total_ns + AHEAD * pass_ns;
    return (chance(p, p->grades[0]) > NEARLY_CERTAIN ? 2 * most : most) - p->lost_ns;
}

/* Sets how likely the sequence's proposals are accepted. */
static void set_likely(speculated_sequence *a)
{
    double accepted = 1;
    for (int k = 0; k < a->usable; k++) {
        accepted *= chance(a->slot, a->slot->grades[k]);
        a->likely[k] = accepted;
    }
}

/* The sequence whose next proposal is the likeliest to be accepted; -1: there is no other proposal.
 */
static int64_t likeliest(const speculation *s, double *probability)
{
    int64_t best = -1;
    *probability = 0;
    for (size_t i = 0; i < s->n_active; i++) {
        const speculated_sequence *a = &s->active[i];
        if (a->slot->n >= a->usable || a->likely[a->slot->n] <= *probability) continue;
        *probability = a->likely[a->slot->n];
        best = (int64_t)i;
    }
    return best;
}

/* Sets how many proposals each sequence verifies, the likeliest `count` of all. */
static void take(speculation *s, int64_t count)
{
    double probability;
    for (size_t i = 0; i < s->n_active; i++)
        s->active[i].slot->n = 0;
    for (; count > 0; count--)
        s->active[likeliest(s, &probability)].slot->n++;
}

/* Takes the number of proposals with which tokens come fastest, perhaps 0. `rows`: of a pass
 * without any; `most`: rows that a pass may have. No sequence gets proposals whose rejection it
 * could not afford. */
static int64_t take_best(speculation *s, int64_t rows, int64_t most)
{
    const double alone = time_of(s, rows);
    double tokens = (double)rows, fastest = tokens / alone * GAIN, probability;
    int64_t best = 0, count = 0;
    int deepest = 0;
    for (size_t i = 0; i < s->n_active; i++)
        set_likely(&s->active[i]);
    take(s, 0);
    for (int64_t i; rows + count < most && (i = likeliest(s, &probability)) >= 0;) {
        speculated_sequence *a = &s->active[i];
        const int depth = a->slot->n + 1 > deepest ? a->slot->n + 1 : deepest;
        const double ns = time_of(s, rows + count + 1) + s->proposer->step_ns * depth;
        if ((ns - alone) * (a->slot->n + 1) / (double)(count + 1) > budget_of(a->slot, alone)) {
            a->usable = a->slot->n;
            continue;
        }
        a->slot->n++;
        count++;
        deepest = depth;
        tokens += probability;
        if (tokens / ns <= fastest) continue;
        fastest = tokens / ns;
        best = count;
    }
    take(s, best);
    return best;
}

/* Rows that a pass may have. On a GPU more rows would be in another class of batches, or run on
 * another machine, whose logits differ in their last bits. */
static int64_t most_rows(const qp_engine *e, int64_t rows)
{
    enum { FEW = 8, SOME = 63 };
    const plan_options *o = &e->program.options;
    int64_t most = o->max_outputs < o->max_tokens ? o->max_outputs : o->max_tokens;
    const int64_t same = rows <= FEW ? FEW : rows <= SOME ? SOME : rows;
    const machine *first = engine_machine(e, 0);
    if (e->device.context && most > same) most = same;
    if (rows == 1 && first->type->verify_rows) {
        const int64_t fits = first->type->verify_rows(first->self);
        if (most > fits) most = fits;
    }
    return most < SPECULATE_ROWS ? most : SPECULATE_ROWS;
}

/* ---- a call -------------------------------------------------------------------------------- */

/* How many tokens the sequence has room for, besides the one that is chosen in any case. With a
 * mask, only the caller knows what may follow the next token. */
static int room_of(const qp_engine *e, const qp_sequence *s)
{
    size_t room = (size_t)e->program.options.context - s->session->count - 1;
    if (s->sampler->allowed || sampler_picks(s->sampler)) return 0;
    if (s->max_tokens && s->max_tokens - 1 < room) room = s->max_tokens - 1;
    return room < SPECULATE_MOST ? (int)room : SPECULATE_MOST;
}

static void find_active(qp_engine *e, const qp_sequence *all, size_t n)
{
    speculation *s = &e->speculation;
    s->n_active = 0;
    s->decodes = n > 0;
    for (size_t i = 0; i < n; i++) {
        if (!step_continues(&all[i]) || step_is_cancelled(&all[i])) {
            s->decodes = false;
            continue;
        }
        speculated *p = slot_of(e, &all[i]);
        judge(p, &all[i]);
        p->position = all[i].session->count + 1;
        const int room = room_of(e, &all[i]);
        if (room > 0)
            s->active[s->n_active++] =
                (speculated_sequence){.of = &all[i], .slot = p, .most = room};
    }
    if (!s->decodes) s->n_active = 0;
}

/* Proposals that come for nothing: all of them first, then those that pay. */
static qp_status choose_of_free(speculation *s, int64_t rows, int64_t most, qp_error *error)
{
    TRY(s->proposer->propose(s->proposer, s->active, s->n_active, SPECULATE_MOST, error));
    for (size_t i = 0; i < s->n_active; i++) {
        speculated_sequence *a = &s->active[i];
        a->usable = a->slot->n_found;
    }
    take_best(s, rows, most);
    return QP_OK;
}

/* Asks a proposer that has passes of its own. One that was cancelled, or has no room, proposes
 * nothing. */
static qp_status make_proposals(speculation *s, int depth, qp_error *error)
{
    qp_error why;
    qp_status status = s->proposer->propose(s->proposer, s->active, s->n_active, depth, &why);
    if (status == QP_OK) return QP_OK;
    for (size_t i = 0; i < s->n_active; i++)
        s->active[i].slot->n_found = 0;
    if (status == QP_CANCELLED || status == QP_NO_MEMORY) return QP_OK;
    return error_set(error, status, "the draft model: %.*s", QP_ERROR_SIZE - 32, why.message);
}

/* Proposals that take passes: first how many would pay, then these. From time to time a few are
 * tried, although they would not have paid so far. */
static qp_status choose_of_made(speculation *s, int64_t rows, int64_t most, qp_error *error)
{
    int depth = 0;
    for (size_t i = 0; i < s->n_active; i++) {
        speculated_sequence *a = &s->active[i];
        memset(a->slot->grades, GRADE_OF_MADE, sizeof a->slot->grades);
        a->usable = a->most;
    }
    if (take_best(s, rows, most) == 0 && rows + (int64_t)s->n_active <= most)
        for (size_t i = 0; i < s->n_active; i++) {
            speculated *p = s->active[i].slot;
            p->n = p->lost_ns < TRIAL * p->total_ns;
        }
    for (size_t i = 0; i < s->n_active; i++)
        if (s->active[i].slot->n > depth) depth = s->active[i].slot->n;
    if (depth == 0) return QP_OK;
    TRY(make_proposals(s, depth, error));
    for (size_t i = 0; i < s->n_active; i++)
        if (s->active[i].slot->n > s->active[i].slot->n_found)
            s->active[i].slot->n = s->active[i].slot->n_found;
    return QP_OK;
}

qp_status speculation_propose(qp_engine *e, const qp_sequence *all, size_t n, bool *pays,
                              qp_error *error)
{
    speculation *s = &e->speculation;
    const int64_t rows = (int64_t)n;
    *pays = false;
    if (!s->proposer) return QP_OK;
    find_active(e, all, n);
    /* The first pass measures what one costs. */
    if (s->n_active > 0 && rows <= SPECULATE_ROWS && time_of(s, rows) > 0)
        TRY((s->proposer->passes ? choose_of_made : choose_of_free)(s, rows, most_rows(e, rows),
                                                                    error));
    for (size_t i = 0; i < s->n_active; i++)
        *pays |= s->active[i].slot->n > 0;
    s->begin = clock_ns();
    return QP_OK;
}

void speculation_put_off(qp_engine *e)
{
    for (size_t i = 0; i < e->speculation.n_active; i++)
        e->speculation.active[i].slot->n = 0;
}

speculated *speculation_of(const qp_engine *e, const qp_sequence *sequence)
{
    const speculation *s = &e->speculation;
    if (!s->proposer || s->n_active == 0) return NULL;
    speculated *p = &s->slots[sequence->session->slot];
    return p->session == sequence->session->id && p->n > 0 ? p : NULL;
}

int64_t speculation_passes(const qp_engine *e, int64_t most)
{
    enum { LONGER = 8 }; /* tokens for each further pass */
    const speculation *s = &e->speculation;
    for (size_t i = 0; s->proposer && i < s->n_active; i++) {
        const size_t held = s->active[i].of->session->count, from = s->active[i].slot->right_at;
        const int64_t passes = held > from ? 1 + (int64_t)((held - from) / LONGER) : 1;
        most = passes < most ? passes : most;
    }
    return most;
}

/* What the sequence's proposals cost and saved in a pass that takes `ns`; `verified`: proposals of
 * all. */
static void note_loss(const speculation *s, const speculated_sequence *a, double ns, double alone,
                      int64_t rows, int64_t verified)
{
    enum { MOST_SAVED = 8 }; /* passes: what was saved long ago does not pay for losses now */
    speculated *p = a->slot;
    p->total_ns += ns + (p->n ? s->proposer->made_ns : 0);
    if (p->n == 0) return;
    if (a->of->accepted) p->right_at = a->of->session->count;
    const double cost = (ns - alone + s->proposer->made_ns) * p->n / (double)verified;
    p->lost_ns += cost - (double)a->of->accepted * alone / (double)rows;
    if (p->lost_ns < -MOST_SAVED * alone) p->lost_ns = -MOST_SAVED * alone;
}

void speculation_measure(qp_engine *e, const qp_sequence *all, size_t n)
{
    speculation *s = &e->speculation;
    const double ns = (double)(clock_ns() - s->begin);
    int64_t verified = 0;
    size_t passes = 0;
    if (!s->proposer || !s->decodes) return;
    for (size_t i = 0; i < n; i++)
        if (all[i].passes > passes) passes = all[i].passes;
    for (size_t i = 0; i < s->n_active; i++)
        verified += s->active[i].slot->n;
    if (passes == 0 || (int64_t)n + verified > SPECULATE_ROWS) return;
    const int64_t rows = (int64_t)n + verified;
    note_time(s, rows, ns / (double)passes);
    /* The usual times, so that a pass that was disturbed is not a loss. */
    const double usual = time_of(s, rows) * (double)passes, alone = time_of(s, (int64_t)n);
    for (size_t i = 0; i < s->n_active; i++)
        note_loss(s, &s->active[i], usual, alone, (int64_t)n, verified);
}
