/* Which worker runs which instruction: the five strategies.
 *
 * Queues are filled in the order of the draft, which respects every dependency, so the workers
 * cannot deadlock. Only `dag` uses another order, by the times at which it starts instructions; it
 * starts an instruction after those that it waits for have ended.
 */
#include "schedule/draft.h"

#include <stdlib.h>

static void assign_rr(draft *d)
{
    for (int i = 0; i < d->n_items; i++)
        d->worker[i] = d->lanes[i] % d->out->options.workers;
}

static void assign_zz(draft *d)
{
    int workers = d->out->options.workers;
    for (int i = 0; i < d->n_items; i++) {
        int round = d->lanes[i] / workers, at = d->lanes[i] % workers;
        d->worker[i] = round % 2 ? workers - 1 - at : at;
    }
}

/* A heap of workers: the least loaded at the root; among equals the lowest number. */
typedef struct load {
    double wave, total; /* ns of this wave, and of all so far */
    int worker;
} load;

static bool lighter(const load *a, const load *b)
{
    if (a->wave != b->wave) return a->wave < b->wave;
    if (a->total != b->total) return a->total < b->total;
    return a->worker < b->worker;
}

static void sift_load(load *heap, int n, int at)
{
    for (;;) {
        int least = at, left = 2 * at + 1;
        if (left < n && lighter(&heap[left], &heap[least])) least = left;
        if (left + 1 < n && lighter(&heap[left + 1], &heap[least])) least = left + 1;
        if (least == at) return;
        load moved = heap[at];
        heap[at] = heap[least];
        heap[least] = moved;
        at = least;
    }
}

/* The least loaded worker takes `cost`. */
static int take_lightest(load *heap, int n, double cost)
{
    int worker = heap[0].worker;
    heap[0].wave += cost;
    heap[0].total += cost;
    sift_load(heap, n, 0);
    return worker;
}

static void begin_wave(load *heap, int n)
{
    for (int i = 0; i < n; i++)
        heap[i].wave = 0;
    for (int i = n / 2 - 1; i >= 0; i--)
        sift_load(heap, n, i);
}

typedef struct costed {
    uint32_t cost;
    int item;
} costed;

static int costlier_first(const void *a, const void *b)
{
    const costed *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? 1 : -1;
    return x->item - y->item;
}

static qp_status assign_wave(draft *d, qp_error *error)
{
    int workers = d->out->options.workers;
    load *heap = calloc((size_t)workers, sizeof *heap);
    costed *wave = calloc((size_t)d->n_items, sizeof *wave);
    for (int i = 0; heap && i < workers; i++)
        heap[i].worker = i;
    for (int first = 0; heap && wave && first < d->n_items;) {
        int n = 0;
        for (int i = first; i < d->n_items && d->items[i].opcode == d->items[first].opcode; i++)
            wave[n++] = (costed){d->items[i].cost_ns, i};
        qsort(wave, (size_t)n, sizeof *wave, costlier_first);
        begin_wave(heap, workers);
        for (int i = 0; i < n; i++)
            d->worker[wave[i].item] = take_lightest(heap, workers, wave[i].cost);
        first += n;
    }
    bool enough = heap && wave;
    free(heap);
    free(wave);
    return enough ? QP_OK : error_no_memory(error, "the assignment", 0);
}

static bool is_memory_bound(const draft *d, int item)
{
    return d->items[item].opcode != INSTRUCTION_NOOP && d->memory_bound[d->items[item].node];
}

/* No queue of pool is longer than this many times the mean, because queues are padded to the
 * longest.
 */
enum { POOL_MOST_OF_MEAN = 4 };

/* The fewest workers of `workers` that may take `items` of `all` instructions. */
static int least_workers(int items, int all, int workers)
{
    int64_t most = ((int64_t)all * POOL_MOST_OF_MEAN + workers - 1) / workers;
    return (int)((items + most - 1) / most);
}

/* Returns n: workers [0, n) take memory-bound instructions, the others the rest. 0: by the costs,
 * one of the two is less than half a worker's work, so there is one pool for both. */
static int size_pools(const draft *d)
{
    int workers = d->out->options.workers, items = 0;
    double fraction = d->out->options.memory_fraction, memory = 0, all = 0;
    for (int i = 0; i < d->n_items; i++) {
        double ns = d->items[i].cost_ns + d->out->options.profile.signal_ns;
        all += ns;
        if (!is_memory_bound(d, i)) continue;
        memory += ns;
        items++;
    }
    if (fraction <= 0) {
        fraction = all > 0 ? memory / all : 1;
        if (fraction * workers < 0.5 || (1 - fraction) * workers < 0.5) return 0;
    }
    int least = least_workers(items, d->n_items, workers);
    int most = workers - least_workers(d->n_items - items, d->n_items, workers);
    int n = (int)(fraction * workers + 0.5);
    if (n > most) n = most;
    if (n < least) n = least;
    if (n < 1) n = 1;
    return n < workers ? n : workers - 1;
}

static void assign_pool(draft *d)
{
    int workers = d->out->options.workers, next[2] = {0};
    int n_memory = workers == 1 ? 0 : size_pools(d);
    if (n_memory == 0) {
        assign_rr(d);
        return;
    }
    for (int i = 0; i < d->n_items; i++) {
        if (i > 0 && d->lanes[i] == d->lanes[i - 1]) /* a share goes on after a segment's end */
            d->worker[i] = d->worker[i - 1];
        else if (is_memory_bound(d, i))
            d->worker[i] = next[0]++ % n_memory;
        else
            d->worker[i] = n_memory + next[1]++ % (workers - n_memory);
    }
}

/* ---- dag: list scheduling ---------------------------------------------------------------- */

typedef struct list_group {
    double ready;   /* when the last instruction that it waits for has signalled */
    double rest;    /* ns from its beginning to the end of the pass, on the longest path */
    int open_waits; /* counters that it waits for and that are not complete */
    int given;      /* instructions that have a worker */
} list_group;

typedef struct lister {
    draft *d;
    list_group *groups;
    int *open;                         /* [counters]: instructions that have not ended */
    double *complete;                  /* [counters]: when the last one did */
    int *first_waiting, *next_waiting; /* [counters], [groups * 2]: lists of the groups that wait */
    int *waiting, n_waiting;           /* heap: the earliest ready at the root */
    int *available, n_available;       /* heap: the longest rest at the root */
    costed *items;                     /* [n_items]: each group in turn, the costliest first */
    load *workers;                     /* heap; `wave` is when each is free */
} lister;

static bool ready_first(const lister *l, int a, int b)
{
    if (l->groups[a].ready != l->groups[b].ready) return l->groups[a].ready < l->groups[b].ready;
    return a < b;
}

static bool longer_first(const lister *l, int a, int b)
{
    if (l->groups[a].rest != l->groups[b].rest) return l->groups[a].rest > l->groups[b].rest;
    return a < b;
}

typedef bool group_order(const lister *l, int a, int b);

static void heap_push(const lister *l, int *heap, int *n, int group, group_order *before)
{
    int at = (*n)++;
    for (; at > 0 && before(l, group, heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = group;
}

static int heap_pop(const lister *l, int *heap, int *n, group_order *before)
{
    int root = heap[0], moved = heap[--*n], at = 0;
    for (int child; (child = 2 * at + 1) < *n; at = child) {
        if (child + 1 < *n && before(l, heap[child + 1], heap[child])) child++;
        if (!before(l, heap[child], moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
    return root;
}

/* The longest instruction of a group, and the signal at its end. */
static double group_ns(const draft *d, const draft_group *group)
{
    double longest = 0;
    for (int i = group->first; i < group->first + group->count; i++) {
        if (d->items[i].cost_ns > longest) longest = d->items[i].cost_ns;
    }
    return longest + d->out->options.profile.signal_ns;
}

/* Computes `rest` from the end to the beginning; the rest of a counter is the longest of its
 * consumers'. */
static void measure_rests(lister *l)
{
    const draft *d = l->d;
    double *longest = l->complete; /* by counter; the array is free until times are known */
    for (int g = d->n_groups - 1; g >= 0; g--) {
        const draft_group *group = &d->groups[g];
        l->groups[g].rest = group_ns(d, group) + (group->signal ? longest[group->signal] : 0);
        for (int w = 0; w < INSTRUCTION_WAITS && !group->previous; w++) {
            int counter = group->waits[w];
            if (counter && l->groups[g].rest > longest[counter])
                longest[counter] = l->groups[g].rest;
        }
    }
    for (int c = 0; c < d->n_counters; c++)
        longest[c] = 0;
}

static void begin_list(lister *l)
{
    const draft *d = l->d;
    for (int c = 0; c < d->n_counters; c++) {
        l->open[c] = (int)d->out->per_pass[c];
        l->first_waiting[c] = -1;
    }
    for (int g = 0; g < d->n_groups; g++) {
        const draft_group *group = &d->groups[g];
        for (int w = 0; w < INSTRUCTION_WAITS && !group->previous; w++) {
            int counter = group->waits[w], link = g * INSTRUCTION_WAITS + w;
            if (!counter) continue;
            l->groups[g].open_waits++;
            l->next_waiting[link] = l->first_waiting[counter];
            l->first_waiting[counter] = link;
        }
        if (l->groups[g].open_waits == 0) heap_push(l, l->waiting, &l->n_waiting, g, ready_first);
    }
}

/* Ends an instruction. If it was its counter's last, groups that waited for the counter may become
 * ready. */
static void end_item(lister *l, int counter, double end)
{
    if (!counter) return;
    if (end > l->complete[counter]) l->complete[counter] = end;
    if (--l->open[counter] > 0) return;
    double at = l->complete[counter] + l->d->out->options.profile.signal_ns;
    for (int link = l->first_waiting[counter]; link >= 0; link = l->next_waiting[link]) {
        int g = link / INSTRUCTION_WAITS;
        if (at > l->groups[g].ready) l->groups[g].ready = at;
        if (--l->groups[g].open_waits == 0) heap_push(l, l->waiting, &l->n_waiting, g, ready_first);
    }
}

/* Sorts each group's instructions: the worker that is free first takes the costliest. */
static void sort_items(lister *l)
{
    const draft *d = l->d;
    for (int i = 0; i < d->n_items; i++)
        l->items[i] = (costed){d->items[i].cost_ns, i};
    for (int g = 0; g < d->n_groups; g++)
        qsort(l->items + d->groups[g].first, (size_t)d->groups[g].count, sizeof *l->items,
              costlier_first);
}

/* When a worker becomes free, it takes an instruction of the ready group with the longest path to
 * the end; if none is ready, it waits for the first that will be. */
static void list_items(lister *l)
{
    draft *d = l->d;
    for (int n = 0; n < d->n_items; n++) {
        double now = l->workers[0].wave;
        if (l->n_available == 0 && l->groups[l->waiting[0]].ready > now)
            now = l->groups[l->waiting[0]].ready;
        while (l->n_waiting && l->groups[l->waiting[0]].ready <= now) {
            int ready = heap_pop(l, l->waiting, &l->n_waiting, ready_first);
            heap_push(l, l->available, &l->n_available, ready, longer_first);
        }
        int g = l->available[0], item = l->items[d->groups[g].first + l->groups[g].given++].item;
        if (l->groups[g].given == d->groups[g].count)
            heap_pop(l, l->available, &l->n_available, longer_first);
        double begin = now > l->groups[g].ready ? now : l->groups[g].ready;
        double end = begin + d->items[item].cost_ns;
        d->worker[item] = l->workers[0].worker;
        d->queue[n] = item;
        l->workers[0].wave = end;
        sift_load(l->workers, d->out->options.workers, 0);
        end_item(l, d->groups[g].signal, end);
    }
}

static qp_status assign_dag(draft *d, qp_error *error)
{
    size_t groups = (size_t)d->n_groups, counters = (size_t)d->n_counters;
    arena memory = {0};
    lister l = {.d = d,
                .groups = arena_alloc(&memory, groups, sizeof *l.groups),
                .open = arena_alloc(&memory, counters, sizeof *l.open),
                .complete = arena_alloc(&memory, counters, sizeof *l.complete),
                .first_waiting = arena_alloc(&memory, counters, sizeof *l.first_waiting),
                .next_waiting = arena_alloc(&memory, groups * INSTRUCTION_WAITS, sizeof(int)),
                .waiting = arena_alloc(&memory, groups, sizeof *l.waiting),
                .available = arena_alloc(&memory, groups, sizeof *l.available),
                .items = arena_alloc(&memory, (size_t)d->n_items, sizeof *l.items),
                .workers = arena_alloc(&memory, (size_t)d->out->options.workers, sizeof(load))};
    bool enough = l.groups && l.open && l.complete && l.first_waiting && l.next_waiting &&
                  l.waiting && l.available && l.items && l.workers;
    if (enough) {
        for (int i = 0; i < d->out->options.workers; i++)
            l.workers[i].worker = i;
        sort_items(&l);
        measure_rests(&l);
        begin_list(&l);
        list_items(&l);
    }
    arena_free(&memory);
    return enough ? QP_OK : error_no_memory(error, "the assignment", 0);
}

qp_status assign_workers(draft *d, qp_error *error)
{
    d->worker = calloc((size_t)d->n_items, sizeof *d->worker);
    d->queue = calloc((size_t)d->n_items, sizeof *d->queue);
    if (!d->worker || !d->queue) return error_no_memory(error, "the assignment", 0);
    for (int i = 0; i < d->n_items; i++)
        d->queue[i] = i;
    switch (d->out->options.assignment) {
    case SCHEDULE_RR:
        assign_rr(d);
        return QP_OK;
    case SCHEDULE_ZZ:
        assign_zz(d);
        return QP_OK;
    case SCHEDULE_WAVE:
        return assign_wave(d, error);
    case SCHEDULE_DAG:
        return assign_dag(d, error);
    case SCHEDULE_POOL:
        assign_pool(d);
        return QP_OK;
    }
    return error_set(error, QP_INVALID, "there is no assignment %d",
                     (int)d->out->options.assignment);
}
