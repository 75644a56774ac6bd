/* Grammars to automata: see automaton.h. */
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

/* A rule of the automaton: one of the grammar, or a counted repetition with what follows it in its
 * sequence. */
typedef struct target {
    grammar_expr expr;
    uint32_t min, max;          /* max 0: a rule of the grammar */
    uint32_t tail, tail_length; /* children[tail .. tail + tail_length) follow the repetition */
    uint32_t entry;
} target;

typedef struct compiler {
    const grammar *g;
    const grammar_facts *facts;
    automaton *out;
    size_t capacity;
    uint32_t *sizes; /* [n_exprs]: states of an expression, about */
    target *targets; /* the rules of the grammar first */
    size_t n_targets, targets_capacity;
    target now; /* the rule that is being compiled */
    qp_error *error;
} compiler;

static qp_status add(compiler *c, state_kind kind, uint32_t a, uint32_t b)
{
    automaton *m = c->out;
    if (m->n_states == AUTOMATON_MAX_STATES)
        return error_set(c->error, QP_UNSUPPORTED,
                         "the form is too large: it needs more than %d states",
                         AUTOMATON_MAX_STATES);
    if (m->n_states == c->capacity) {
        const size_t wanted = c->capacity ? 2 * c->capacity : 256;
        state *grown = realloc(m->states, wanted * sizeof *grown);
        if (!grown) return error_no_memory(c->error, "the grammar", wanted * sizeof *grown);
        m->states = grown;
        c->capacity = wanted;
    }
    m->states[m->n_states++] =
        (state){.kind = kind, .a = a, .b = b, .min = c->now.min, .max = c->now.max};
    return QP_OK;
}

static qp_status add_target(compiler *c, target t)
{
    if (c->n_targets == c->targets_capacity) {
        const size_t wanted = c->targets_capacity ? 2 * c->targets_capacity : 64;
        target *grown = realloc(c->targets, wanted * sizeof *grown);
        if (!grown) return error_no_memory(c->error, "the grammar", wanted * sizeof *grown);
        c->targets = grown;
        c->targets_capacity = wanted;
    }
    c->targets[c->n_targets++] = t;
    return QP_OK;
}

static uint32_t here(const compiler *c)
{
    return (uint32_t)c->out->n_states;
}

static qp_status compile(compiler *c, grammar_expr at);

/* SPLIT to the choices that match some text, each of which ends with a JUMP to the state after them
 * all. */
static qp_status compile_choice(compiler *c, const expr *e)
{
    uint32_t last = UINT32_MAX, jumps = UINT32_MAX; /* JUMPs so far, linked by `a` */
    for (uint32_t k = e->count; k-- > 0;)
        if (last == UINT32_MAX && c->facts->productive[c->g->children[e->first + k]]) last = k;
    for (uint32_t k = 0; k <= last && last != UINT32_MAX; k++) {
        const grammar_expr part = c->g->children[e->first + k];
        const uint32_t split = here(c);
        if (!c->facts->productive[part]) continue;
        if (k < last) TRY(add(c, STATE_SPLIT, split + 1, 0));
        TRY(compile(c, part));
        if (k == last) break;
        TRY(add(c, STATE_JUMP, jumps, 0));
        jumps = here(c) - 1;
        c->out->states[split].b = here(c);
    }
    while (jumps != UINT32_MAX) {
        const uint32_t next = c->out->states[jumps].a;
        c->out->states[jumps].a = here(c);
        jumps = next;
    }
    return QP_OK;
}

static qp_status compile_star(compiler *c, grammar_expr item)
{
    const uint32_t split = here(c);
    TRY(add(c, STATE_SPLIT, split + 1, 0));
    TRY(compile(c, item));
    TRY(add(c, STATE_JUMP, split, 0));
    c->out->states[split].b = here(c);
    return QP_OK;
}

static qp_status compile_optional(compiler *c, grammar_expr item, uint32_t times)
{
    uint32_t splits = UINT32_MAX; /* linked by `b` */
    for (uint32_t i = 0; i < times; i++) {
        TRY(add(c, STATE_SPLIT, here(c) + 1, splits));
        splits = here(c) - 1;
        TRY(compile(c, item));
    }
    while (splits != UINT32_MAX) {
        const uint32_t next = c->out->states[splits].b;
        c->out->states[splits].b = here(c);
        splits = next;
    }
    return QP_OK;
}

static bool is_counted(uint64_t times, uint32_t size)
{
    return times > 1 && times * (size + UINT64_C(1)) > AUTOMATON_UNROLL;
}

/* The tail belongs to the rule, so that a text that may go on both ways stays in one rule. */
static qp_status compile_counted(compiler *c, const expr *e, uint32_t tail, uint32_t tail_length)
{
    if (c->facts->nullable[e->first])
        return error_set(c->error, QP_UNSUPPORTED,
                         "a repetition of more than %d states repeats what may be empty",
                         AUTOMATON_UNROLL);
    const uint32_t rule = (uint32_t)c->n_targets;
    TRY(add_target(c, (target){.expr = e->first,
                               .min = e->min,
                               .max = e->max,
                               .tail = tail,
                               .tail_length = tail_length}));
    return add(c, STATE_CALL, rule, here(c) + 1);
}

static uint64_t times_of(const expr *e)
{
    return e->max == GRAMMAR_UNBOUNDED ? e->min + UINT64_C(1) : e->max;
}

static bool is_counted_expr(const compiler *c, const expr *e)
{
    const bool star = e->max == GRAMMAR_UNBOUNDED && c->facts->nullable[e->first];
    return e->kind == EXPR_REPEAT && c->facts->productive[e->first] && !star &&
           is_counted(times_of(e), c->sizes[e->first]);
}

static qp_status compile_sequence(compiler *c, uint32_t first, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        const grammar_expr part = c->g->children[first + k];
        const expr *e = &c->g->exprs[part];
        if (is_counted_expr(c, e)) return compile_counted(c, e, first + k + 1, count - k - 1);
        TRY(compile(c, part));
    }
    return QP_OK;
}

static qp_status compile_repeat(compiler *c, const expr *e)
{
    const bool unbounded = e->max == GRAMMAR_UNBOUNDED;
    if (!c->facts->productive[e->first]) return QP_OK; /* zero times */
    if (is_counted_expr(c, e)) return compile_counted(c, e, 0, 0);
    if (unbounded && c->facts->nullable[e->first]) return compile_star(c, e->first);
    for (uint32_t i = 0; i < e->min; i++)
        TRY(compile(c, e->first));
    return unbounded ? compile_star(c, e->first) : compile_optional(c, e->first, e->max - e->min);
}

static qp_status compile(compiler *c, grammar_expr at)
{
    const expr *e = &c->g->exprs[at];
    if (!c->facts->productive[at]) return add(c, STATE_FAIL, 0, 0);
    switch (e->kind) {
    case EXPR_EMPTY:
        return QP_OK;
    case EXPR_BYTES:
        return add(c, STATE_BYTES, e->first, 0);
    case EXPR_SEQUENCE:
        return compile_sequence(c, e->first, e->count);
    case EXPR_CHOICE:
        return compile_choice(c, e);
    case EXPR_REPEAT:
        return compile_repeat(c, e);
    case EXPR_RULE:
        return add(c, STATE_CALL, e->first, here(c) + 1);
    }
    return QP_OK;
}

static qp_status compile_target(compiler *c, size_t index)
{
    c->targets[index].entry = here(c);
    const target t = c->targets[index];
    c->now = t;
    if (t.max == 0) {
        TRY(compile(c, t.expr));
        return add(c, STATE_RETURN, 0, 0);
    }
    TRY(add(c, STATE_COUNT, here(c) + 1, 0));
    TRY(compile(c, t.expr));
    TRY(add(c, STATE_AGAIN, t.entry, 0));
    c->out->states[t.entry].b = here(c);
    TRY(compile_sequence(c, t.tail, t.tail_length));
    return add(c, STATE_RETURN, 0, 0);
}

/* Parts are older than what contains them, so one pass suffices. */
static void find_sizes(compiler *c)
{
    for (size_t i = 0; i < c->g->n_exprs; i++) {
        const expr *e = &c->g->exprs[i];
        uint64_t size = 1;
        for (uint32_t k = 0; (e->kind == EXPR_SEQUENCE || e->kind == EXPR_CHOICE) && k < e->count;
             k++)
            size += c->sizes[c->g->children[e->first + k]] + (e->kind == EXPR_CHOICE);
        if (e->kind == EXPR_REPEAT) {
            const uint64_t times = times_of(e);
            const uint32_t item = c->sizes[e->first];
            size = is_counted(times, item) ? 1 : times * (item + UINT64_C(1));
        }
        c->sizes[i] = size > UINT32_MAX ? UINT32_MAX : (uint32_t)size;
    }
}

/* Calls get their targets' entries, and those with nothing after them become tail calls. */
static void link_calls(compiler *c)
{
    automaton *m = c->out;
    for (size_t i = 0; i < m->n_states; i++) {
        state *s = &m->states[i];
        if (s->kind != STATE_CALL) continue;
        s->a = c->targets[s->a].entry;
        while (m->states[s->b].kind == STATE_JUMP)
            s->b = m->states[s->b].a;
        if (m->states[s->b].kind == STATE_RETURN) s->b = STATE_TAIL;
    }
}

/* Splits classes by each set until no set distinguishes bytes of one class. */
static void find_classes(automaton *m)
{
    int count = 1;
    memset(m->classes, 0, sizeof m->classes);
    for (size_t i = 0; i < m->n_sets && count < 256; i++) {
        int inside[256], outside[256];
        memset(inside, -1, sizeof inside);
        memset(outside, -1, sizeof outside);
        int next = 0;
        for (int byte = 0; byte < 256; byte++) {
            int *to = byte_set_has(&m->sets[i], (uint8_t)byte) ? inside : outside;
            if (to[m->classes[byte]] < 0) to[m->classes[byte]] = next++;
            m->classes[byte] = (uint8_t)to[m->classes[byte]];
        }
        count = next;
    }
    for (int byte = 255; byte >= 0; byte--)
        m->members[m->classes[byte]] = (uint8_t)byte;
    m->n_classes = count;
}

static qp_status run(compiler *c)
{
    const grammar *g = c->g;
    c->sizes = calloc(g->n_exprs, sizeof *c->sizes);
    if (!c->sizes) return error_no_memory(c->error, "the grammar", g->n_exprs);
    find_sizes(c);
    for (size_t i = 0; i < g->n_rules; i++)
        TRY(add_target(c, (target){.expr = g->rules[i].expr}));
    for (size_t i = 0; i < c->n_targets; i++)
        TRY(compile_target(c, i));
    link_calls(c);
    c->out->entry = c->targets[0].entry;
    return QP_OK;
}

qp_status automaton_compile(grammar *g, automaton *out, qp_error *error)
{
    grammar_facts facts = {0};
    compiler c = {.g = g, .facts = &facts, .out = out, .error = error};
    *out = (automaton){0};
    qp_status status = grammar_check(g, &facts, error);
    if (status == QP_OK) status = run(&c);
    grammar_facts_free(&facts);
    free(c.sizes);
    free(c.targets);
    if (status != QP_OK) return status;
    out->sets = g->sets;
    out->n_sets = g->n_sets;
    g->sets = NULL;
    g->n_sets = g->sets_capacity = 0;
    find_classes(out);
    return QP_OK;
}

void automaton_free(automaton *m)
{
    free(m->states);
    free(m->sets);
    *m = (automaton){0};
}
