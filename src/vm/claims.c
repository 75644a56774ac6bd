/* Claims of cells: see claims.h. */
#include "vm/claims.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE_LINE = 64, DEPTH = 8 /* waits that are followed back */ };

/* A claim holds the number of the pass in its upper half, so that nothing needs to be reset: in
 * another pass all cells are left, and none is done. */
typedef struct claim {
    _Alignas(CACHE_LINE) atomic_ullong left; /* pass, first, end: 32, 16, 16 bits */
    atomic_ullong done;                      /* pass, count: 32, 32 bits */
} claim;

typedef struct band {
    cell_band cut;
    int32_t first; /* of its members */
} band;

struct claims {
    const schedule *schedule;
    cell_rule *rules;    /* [nodes] */
    claim *of;           /* [workers][longest] */
    int32_t *member_of;  /* [workers][longest]: its index in `members` */
    int32_t *band_of;    /* [members] */
    int32_t *members;    /* places, band after band; those of a band in the order of slices */
    band *bands;         /* those of one counter lie together */
    int32_t *first_band; /* [counters + 1]: whose signals a counter counts */
    int32_t n_members, n_bands;
    uint32_t pass;
    const int64_t *sizes;
    bool whole;
};

static const instruction *at(const claims *c, int32_t place)
{
    return &c->schedule->instructions[place];
}

/* ---- bands --------------------------------------------------------------------------------- */

#define ORDER(field)                                                                               \
    if (a->field != b->field) return a->field < b->field ? -1 : 1

/* The order of members: equal but for the slices are those of one band. */
static int compare_bands(const instruction *a, const instruction *b)
{
    ORDER(signal);
    ORDER(node);
    ORDER(opcode);
    ORDER(tokens.begin);
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        ORDER(waits[w].counter);
        ORDER(waits[w].needed);
    }
    ORDER(flags);
    return 0;
}

typedef struct member {
    const instruction *in;
    int32_t place;
} member;

static int compare_members(const void *x, const void *y)
{
    const instruction *a = ((const member *)x)->in, *b = ((const member *)y)->in;
    const int order = compare_bands(a, b);
    if (order) return order;
    ORDER(part);
    ORDER(units.begin);
    return 0;
}

/* Members [first, first + n), consecutive slices. */
static void add_band(claims *c, int32_t first, int32_t n)
{
    const instruction *one = at(c, c->members[first]), *last = at(c, c->members[first + n - 1]);
    band *b = &c->bands[c->n_bands];
    *b = (band){.cut = {one->units.begin, last->units.end, n}, .first = first};
    for (int32_t i = first; i < first + n; i++)
        c->band_of[i] = c->n_bands;
    c->n_bands++;
    c->first_band[one->signal + 1] = c->n_bands;
}

static bool follows(const instruction *a, const instruction *b)
{
    if (compare_bands(a, b) != 0) return false;
    return a->parts ? b->part == a->part + 1 : b->units.begin == a->units.end;
}

static void make_bands(claims *c, member *list)
{
    qsort(list, (size_t)c->n_members, sizeof *list, compare_members);
    for (int32_t i = 0; i < c->n_members; i++) {
        c->members[i] = list[i].place;
        c->member_of[list[i].place] = i;
    }
    for (int32_t i = 0, first = 0; i < c->n_members; i++) {
        if (i + 1 < c->n_members && follows(list[i].in, list[i + 1].in)) continue;
        add_band(c, first, i + 1 - first);
        first = i + 1;
    }
    for (int32_t i = 1; i <= c->schedule->n_counters; i++)
        if (c->first_band[i] < c->first_band[i - 1]) c->first_band[i] = c->first_band[i - 1];
}

static bool allocate(claims *c)
{
    const schedule *s = c->schedule;
    const size_t places = (size_t)s->options.workers * (size_t)s->longest;
    c->of = aligned_alloc(CACHE_LINE, (places + 1) * sizeof *c->of);
    c->member_of = calloc(places + 1, sizeof *c->member_of);
    c->band_of = calloc(places + 1, sizeof *c->band_of);
    c->members = calloc(places + 1, sizeof *c->members);
    c->bands = calloc(places + 1, sizeof *c->bands);
    c->first_band = calloc((size_t)s->n_counters + 1, sizeof *c->first_band);
    if (!c->of || !c->member_of || !c->band_of || !c->members || !c->bands || !c->first_band)
        return false;
    memset(c->of, 0xff, (places + 1) * sizeof *c->of); /* of no pass */
    return true;
}

qp_status claims_create(const bound_schedule *setup, claims **out, qp_error *error)
{
    const schedule *s = setup->schedule;
    const size_t places = (size_t)s->options.workers * (size_t)s->longest;
    claims *c = *out = calloc(1, sizeof *c);
    member *list = calloc(places + 1, sizeof *list);
    if (c) c->schedule = s;
    if (!c || !list || !allocate(c)) {
        free(list);
        return error_no_memory(error, "the machine", places * sizeof *c->of);
    }
    for (int w = 0; w < s->options.workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const int32_t place = w * s->longest + i;
            if (at(c, place)->flags & INSTRUCTION_SHARED)
                list[c->n_members++] = (member){at(c, place), place};
        }
    }
    make_bands(c, list);
    free(list);
    return c->n_members ? cells_make_rules(setup, &c->rules, error) : QP_OK;
}

void claims_destroy(claims *c)
{
    if (!c) return;
    free(c->rules);
    free(c->of);
    free(c->member_of);
    free(c->band_of);
    free(c->members);
    free(c->bands);
    free(c->first_band);
    free(c);
}

/* ---- a pass -------------------------------------------------------------------------------- */

void claims_begin(claims *c, uint32_t pass, const int64_t *sizes, bool whole)
{
    c->pass = pass;
    c->sizes = sizes;
    c->whole = whole;
}

claimed claims_of(const claims *c, int32_t place)
{
    const int32_t member = c->member_of[place];
    const band *b = &c->bands[c->band_of[member]];
    const instruction *in = at(c, place);
    return (claimed){.in = in,
                     .place = place,
                     .cut = cells_cut(c->schedule, &c->rules[in->node], &b->cut, in,
                                      member - b->first, c->sizes, c->whole)};
}

static uint64_t word(uint32_t pass, uint32_t first, uint32_t end)
{
    return (uint64_t)pass << 32 | first << 16 | end;
}

static int32_t take(claims *c, const claimed *of, bool last)
{
    atomic_ullong *left = &c->of[of->place].left;
    unsigned long long found = atomic_load_explicit(left, memory_order_relaxed), next;
    uint32_t first, end;
    do {
        const bool ours = (uint32_t)(found >> 32) == c->pass;
        first = ours ? found >> 16 & 0xffff : 0;
        end = ours ? found & 0xffff : (uint32_t)of->cut.count;
        if (first == end) return -1;
        next = last ? word(c->pass, first, end - 1) : word(c->pass, first + 1, end);
    } while (!atomic_compare_exchange_weak_explicit(left, &found, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    return (int32_t)(last ? end - 1 : first);
}

int32_t claims_take_first(claims *c, const claimed *of)
{
    return take(c, of, false);
}

int32_t claims_take_last(claims *c, const claimed *of)
{
    return take(c, of, true);
}

bool claims_end(claims *c, const claimed *of, int32_t n)
{
    atomic_ullong *done = &c->of[of->place].done;
    unsigned long long found = atomic_load_explicit(done, memory_order_relaxed);
    uint32_t count;
    do
        count = ((uint32_t)(found >> 32) == c->pass ? (uint32_t)found : 0) + (uint32_t)n;
    while (!atomic_compare_exchange_weak_explicit(done, &found, (uint64_t)c->pass << 32 | count,
                                                  memory_order_acq_rel, memory_order_relaxed));
    return count == (uint32_t)of->cut.count;
}

/* ---- finding work -------------------------------------------------------------------------- */

/* Cells left of a member; those that are untouched in this pass count as most. */
static uint32_t left_of(const claims *c, int32_t place)
{
    const unsigned long long found = atomic_load_explicit(&c->of[place].left, memory_order_relaxed);
    if ((uint32_t)(found >> 32) != c->pass) return UINT32_MAX;
    return (uint32_t)(found & 0xffff) - (uint32_t)(found >> 16 & 0xffff);
}

static bool find_in_band(const claims *c, const band *b, claimed *out)
{
    uint32_t most = 0;
    int32_t best = -1;
    for (int32_t i = b->first; i < b->first + b->cut.members; i++) {
        const uint32_t left = left_of(c, c->members[i]);
        if (left <= most) continue;
        most = left;
        best = c->members[i];
    }
    if (best < 0) return false;
    *out = claims_of(c, best);
    return true;
}

static bool find(const claims *c, uint32_t counter, claims_ready *ready, const void *context,
                 bool alone, int depth, claimed *out)
{
    for (int32_t i = c->first_band[counter]; i < c->first_band[counter + 1]; i++) {
        const band *b = &c->bands[i];
        const instruction *in = at(c, c->members[b->first]);
        if (ready(context, in)) {
            if (find_in_band(c, b, out) && (alone || b->cut.members > 1 || out->cut.count > 1))
                return true;
            continue;
        }
        for (int w = 0; w < INSTRUCTION_WAITS && depth > 1; w++) {
            const uint32_t before = in->waits[w].counter;
            if (before == 0 || in->flags >> w & 1) continue;
            if (find(c, before, ready, context, alone, depth - 1, out)) return true;
        }
    }
    return false;
}

bool claims_find(const claims *c, uint32_t counter, claims_ready *ready, const void *context,
                 bool alone, claimed *out)
{
    return find(c, counter, ready, context, alone, DEPTH, out);
}
