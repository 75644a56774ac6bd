/* Halves the sequence of matches: see first_rule.h. */
#include "inspect/diff/first_rule.h"

#include "base/hash.h"
#include "engine/engine.h"
#include "lower/lower.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct search {
    const qp_engine_options *options;
    const int32_t *tokens;
    int32_t *drawn; /* where none were given */
    int64_t n_tokens, singles;
    float *expected, *found; /* [1 + singles][vocab_size]; NULL before the first run */
    size_t n;                /* of each */
    int n_rules;             /* matches that were replaced, and launch rules */
    char last[128];          /* the last of them */
    double tolerance;
} search;

typedef struct rows {
    float *at;
    size_t vocab_size;
} rows;

static qp_status keep(void *context, size_t input, size_t token, const float *logits)
{
    rows *to = context;
    (void)input, (void)token;
    memcpy(to->at, logits, to->vocab_size * sizeof *logits);
    to->at += to->vocab_size;
    return QP_OK;
}

static qp_status evaluate(const search *s, qp_engine *e, float *logits, qp_error *error)
{
    rows to = {logits, (size_t)e->info.vocab_size};
    qp_session *session = NULL;
    const int64_t together = s->n_tokens - s->singles;
    TRY(qp_session_open(e, &session, error));
    qp_status status = QP_OK;
    for (int64_t at = 0; at < s->n_tokens && status == QP_OK;) {
        const int64_t count = at < together ? together : 1;
        const qp_input input = {
            .session = session, .tokens = s->tokens + at, .count = (size_t)count};
        status = qp_eval(e, &input, 1, keep, &to, NULL, error);
        at += count;
    }
    qp_session_close(session);
    return status;
}

/* What the engine's rules are. */
static void look(search *s, const qp_engine *e)
{
    const program *p = &e->program;
    const bool on_gpu = machine_inner_type(&e->slots[ENGINE_MACHINES - 1])->on_gpu;
    const uint32_t launch = on_gpu ? lower_launch_rules(p) : 0;
    s->n_rules = p->n_matches;
    snprintf(s->last, sizeof s->last, "%s", p->last_rule);
    for (int i = 0; i < LOWER_RULES; i++) {
        if (!(launch >> i & 1)) continue;
        s->n_rules++;
        snprintf(s->last, sizeof s->last, "%s", lower_rule_name(i));
    }
    s->tolerance = on_gpu || p->options.kv_partitions > 1 ? 1e-2 : 1e-5;
}

static qp_status allocate(search *s, const qp_engine *e, qp_error *error)
{
    s->n = (size_t)(1 + s->singles) * (size_t)e->info.vocab_size;
    s->expected = calloc(s->n, sizeof *s->expected);
    s->found = calloc(s->n, sizeof *s->found);
    s->drawn = calloc((size_t)s->n_tokens, sizeof *s->drawn);
    if (!s->expected || !s->found || !s->drawn)
        return error_no_memory(error, "logits", s->n * sizeof *s->found);
    for (int64_t i = 0; i < s->n_tokens; i++)
        s->drawn[i] = (int32_t)(hash_random(1, 0, (uint64_t)i) % (uint64_t)e->info.vocab_size);
    if (!s->tokens) s->tokens = s->drawn;
    return QP_OK;
}

/* Takes the first n matches; n < 0: all. The first run's logits are expected. */
static qp_status run(search *s, int n, qp_error *error)
{
    qp_engine_options options = *s->options;
    qp_engine *e = NULL;
    char rules[512];
    const char *given = options.rules && *options.rules ? options.rules : NULL;
    snprintf(rules, sizeof rules, "%s%s%d", given ? given : "", given ? "," : "", n);
    options.rules = n < 0 ? given : rules;
    TRY(qp_engine_open(&options, &e, error));
    const bool is_first = !s->expected;
    qp_status status = is_first ? allocate(s, e, error) : QP_OK;
    if (status == QP_OK) status = evaluate(s, e, is_first ? s->expected : s->found, error);
    look(s, e);
    qp_engine_close(e);
    return status;
}

/* The distance of the logits, relative to their norm. */
static double distance(const search *s)
{
    double sum = 0, norm = 0;
    for (size_t i = 0; i < s->n; i++) {
        sum += ((double)s->found[i] - s->expected[i]) * ((double)s->found[i] - s->expected[i]);
        norm += (double)s->expected[i] * s->expected[i];
    }
    return sum > 0 ? sqrt(sum / norm) : sum; /* NaN stays NaN */
}

static bool differs(const search *s)
{
    return !(distance(s) <= s->tolerance);
}

/* The result is right with `low` matches and differs with `high`. */
static qp_status halve(search *s, int low, int high, strbuf *out, qp_error *error)
{
    const int all = high;
    double before = 0, after = distance(s);
    char name[sizeof s->last];
    snprintf(name, sizeof name, "%s", s->last);
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        TRY(run(s, middle, error));
        if (!differs(s)) {
            low = middle;
            before = distance(s);
            continue;
        }
        high = middle;
        after = distance(s);
        snprintf(name, sizeof name, "%s", s->last);
    }
    strbuf_printf(out,
                  "%s is the first rule whose result differs, match %d of %d: the logits are %.3g "
                  "of their norm from those without rules, and %.3g without this match\n",
                  name, high, all, after, before);
    return QP_OK;
}

static qp_status compare(search *s, strbuf *out, bool *equal, qp_error *error)
{
    TRY(run(s, 0, error));
    TRY(run(s, -1, error));
    *equal = !differs(s);
    if (!*equal) return halve(s, 0, s->n_rules, out, error);
    strbuf_printf(out,
                  "no rule's result differs: with all of %d matches the logits are %.3g of their "
                  "norm from those without rules\n",
                  s->n_rules, distance(s));
    return QP_OK;
}

qp_status first_rule_find(const qp_engine_options *options, const int32_t *tokens, int64_t n_tokens,
                          int64_t singles, strbuf *out, bool *equal, qp_error *error)
{
    search s = {.options = options,
                .tokens = tokens,
                .n_tokens = n_tokens,
                .singles = singles < n_tokens ? singles : n_tokens - 1};
    const machine_type *type;
    TRY(machine_type_find(options->exec, &type, error));
    if (type->whole)
        return error_set(error, QP_UNSUPPORTED,
                         "%s needs all of its rules, so none can be left out to find the first "
                         "whose result differs: compare it step by step, without --first-rule",
                         type->name);
    const qp_status status = compare(&s, out, equal, error);
    free(s.expected);
    free(s.found);
    free(s.drawn);
    return status;
}
