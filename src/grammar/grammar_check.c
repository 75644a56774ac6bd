/* Whether a grammar can be used: see grammar_check() in grammar.h. */
#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

/* Which expressions have a property that follows from those of their parts: a sequence has it if
 * all parts have it, a choice if one has. Each expression is settled once, and then those that
 * contain it are looked at, so the time is linear. */
typedef struct solver {
    const grammar *g;
    uint8_t *holds;     /* [n_exprs] */
    uint32_t *missing;  /* [n_exprs]: parts of a sequence that are not settled */
    uint32_t *users;    /* expressions by the part that they contain, */
    uint32_t *first;    /* [n_exprs + 2]: those of part i are users[first[i] .. first[i + 1]) */
    grammar_expr *todo; /* [n_exprs] */
    size_t n_todo;
} solver;

/* Calls `visit` for each part of each expression. */
static void for_parts(solver *s, void (*visit)(solver *s, grammar_expr part, grammar_expr user))
{
    const grammar *g = s->g;
    for (size_t i = 0; i < g->n_exprs; i++) {
        const expr *e = &g->exprs[i];
        const grammar_expr user = (grammar_expr)i;
        if (e->kind == EXPR_REPEAT) visit(s, e->first, user);
        if (e->kind == EXPR_RULE) visit(s, g->rules[e->first].expr, user);
        for (uint32_t k = 0; (e->kind == EXPR_SEQUENCE || e->kind == EXPR_CHOICE) && k < e->count;
             k++)
            visit(s, g->children[e->first + k], user);
    }
}

/* Counts go two places further, so that add_user() leaves first[i] where the users of i begin. */
static void count_user(solver *s, grammar_expr part, grammar_expr user)
{
    (void)user;
    s->first[part + 2]++;
}

static void add_user(solver *s, grammar_expr part, grammar_expr user)
{
    s->users[s->first[part + 1]++] = user;
}

static void settle(solver *s, grammar_expr e)
{
    if (s->holds[e]) return;
    s->holds[e] = 1;
    s->todo[s->n_todo++] = e;
}

/* A part of `user` is settled. */
static void learn(solver *s, grammar_expr user)
{
    if (s->g->exprs[user].kind == EXPR_SEQUENCE && --s->missing[user] > 0) return;
    settle(s, user);
}

static void solve(solver *s, bool (*begins)(const grammar *g, const expr *e))
{
    const grammar *g = s->g;
    for (size_t i = 0; i < g->n_exprs; i++) {
        const expr *e = &g->exprs[i];
        s->missing[i] = e->count;
        if (e->kind == EXPR_EMPTY || (e->kind == EXPR_REPEAT && e->min == 0) || begins(g, e))
            settle(s, (grammar_expr)i);
    }
    while (s->n_todo > 0) {
        const grammar_expr e = s->todo[--s->n_todo];
        for (uint32_t k = s->first[e]; k < s->first[e + 1]; k++)
            learn(s, s->users[k]);
    }
}

static bool never(const grammar *g, const expr *e)
{
    (void)g, (void)e;
    return false;
}

static bool has_a_byte(const grammar *g, const expr *e)
{
    if (e->kind != EXPR_BYTES) return false;
    const uint64_t *bits = g->sets[e->first].bits;
    return bits[0] | bits[1] | bits[2] | bits[3];
}

static void solver_free(solver *s)
{
    free(s->missing);
    free(s->users);
    free(s->first);
    free(s->todo);
}

static qp_status find_facts(const grammar *g, grammar_facts *facts, qp_error *error)
{
    const size_t n = g->n_exprs, parts = n + g->n_children;
    solver s = {.g = g};
    facts->nullable = calloc(n, 1);
    facts->productive = calloc(n, 1);
    s.missing = calloc(n, sizeof *s.missing);
    s.users = calloc(parts, sizeof *s.users);
    s.first = calloc(n + 2, sizeof *s.first);
    s.todo = calloc(n, sizeof *s.todo);
    const bool good =
        facts->nullable && facts->productive && s.missing && s.users && s.first && s.todo;
    if (good) {
        for_parts(&s, count_user);
        for (size_t i = 0; i < n; i++)
            s.first[i + 2] += s.first[i + 1];
        for_parts(&s, add_user);
        s.holds = facts->nullable;
        solve(&s, never);
        s.holds = facts->productive;
        solve(&s, has_a_byte);
    }
    solver_free(&s);
    return good ? QP_OK : error_no_memory(error, "the grammar", parts);
}

void grammar_facts_free(grammar_facts *facts)
{
    free(facts->nullable);
    free(facts->productive);
    *facts = (grammar_facts){0};
}

/* ---- Left recursion ------------------------------------------------------------------------ */

typedef struct beginnings {
    const grammar *g;
    const grammar_facts *facts;
    uint8_t *seen; /* [n_exprs] */
    const char *rule;
    int depth;
    qp_error *error;
} beginnings;

enum { NOT_SEEN, UNDER_WAY, DONE };

static qp_status look_at(beginnings *b, grammar_expr at);

/* What a sequence may begin with: its first part, and the next one if that may be empty. */
static qp_status look_at_parts(beginnings *b, const expr *e)
{
    for (uint32_t k = 0; k < e->count; k++) {
        const grammar_expr part = b->g->children[e->first + k];
        TRY(look_at(b, part));
        if (e->kind == EXPR_SEQUENCE && !b->facts->nullable[part]) break;
    }
    return QP_OK;
}

static qp_status look_at_rule(beginnings *b, const expr *e)
{
    const char *outer = b->rule;
    b->rule = b->g->rules[e->first].name;
    qp_status status = look_at(b, b->g->rules[e->first].expr);
    b->rule = outer;
    return status;
}

static qp_status look_at(beginnings *b, grammar_expr at)
{
    const expr *e = &b->g->exprs[at];
    if (b->seen[at] == DONE) return QP_OK;
    if (b->seen[at] == UNDER_WAY)
        return error_set(b->error, QP_UNSUPPORTED,
                         "%s begins with itself before any text (left recursion); write it as a "
                         "repetition",
                         b->rule);
    if (b->depth == GRAMMAR_MAX_NESTING)
        return error_set(b->error, QP_UNSUPPORTED,
                         "%s: more than %d expressions begin with each other", b->rule,
                         GRAMMAR_MAX_NESTING);
    b->seen[at] = UNDER_WAY;
    b->depth++;
    qp_status status = QP_OK;
    if (e->kind == EXPR_SEQUENCE || e->kind == EXPR_CHOICE) status = look_at_parts(b, e);
    if (e->kind == EXPR_REPEAT) status = look_at(b, e->first);
    if (e->kind == EXPR_RULE) status = look_at_rule(b, e);
    b->depth--;
    b->seen[at] = DONE;
    return status;
}

static qp_status check_recursion(const grammar *g, const grammar_facts *facts, qp_error *error)
{
    beginnings b = {.g = g, .facts = facts, .error = error};
    b.seen = calloc(g->n_exprs, 1);
    if (!b.seen) return error_no_memory(error, "the grammar", g->n_exprs);
    qp_status status = QP_OK;
    for (size_t i = 0; i < g->n_rules && status == QP_OK; i++) {
        b.rule = g->rules[i].name;
        status = look_at(&b, g->rules[i].expr);
    }
    free(b.seen);
    return status;
}

qp_status grammar_check(const grammar *g, grammar_facts *facts, qp_error *error)
{
    if (g->failed == QP_NO_MEMORY) return error_no_memory(error, "the grammar", 0);
    if (g->failed != QP_OK)
        return error_set(error, g->failed,
                         "the form is too large: it may have %d expressions and %d rules",
                         GRAMMAR_MAX_EXPRS, GRAMMAR_MAX_RULES);
    for (size_t i = 0; i < g->n_rules; i++)
        if (!g->rules[i].set)
            return error_set(error, QP_FORMAT, "the rule \"%s\" is not defined", g->rules[i].name);
    TRY(find_facts(g, facts, error));
    TRY(check_recursion(g, facts, error));
    const bool productive = facts->productive[g->rules[0].expr];
    if (!productive && *g->nothing) return error_set(error, QP_INVALID, "%s", g->nothing);
    if (!productive)
        return error_set(error, QP_INVALID,
                         "no text has this form: %s contains itself without an end, or excludes "
                         "everything",
                         g->rules[0].name);
    return QP_OK;
}
