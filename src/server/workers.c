/* Threads that parse and format: see workers.h. */
#include "server/workers.h"

#include "base/platform.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { LANES = LANE_LONG + 1 };

typedef struct worker {
    worker_pool *pool;
    worker_lane lane;
    pthread_t thread;
    int event; /* -1: not open */
    bool started;
    atomic_bool sleeps;
} worker;

struct worker_pool {
    bool (*more)(void *context);
    void *context;
    pthread_mutex_t lock;
    struct {
        worker_task *first, **last;
    } queue[LANES];
    atomic_bool ending;
    int n_workers;
    worker workers[]; /* the first is for long tasks */
};

static void wake(worker_pool *pool, worker_lane lane)
{
    for (int i = 0; i < pool->n_workers; i++) {
        worker *w = &pool->workers[i];
        if (w->lane != lane || !atomic_exchange(&w->sleeps, false)) continue;
        platform_event_signal(w->event);
        return;
    }
}

void workers_wake(worker_pool *pool)
{
    wake(pool, LANE_SHORT);
}

static worker_task *take_task(worker_pool *pool, worker_lane lane)
{
    pthread_mutex_lock(&pool->lock);
    worker_task *task = pool->queue[lane].first;
    if (task) pool->queue[lane].first = task->next;
    if (!pool->queue[lane].first) pool->queue[lane].last = &pool->queue[lane].first;
    pthread_mutex_unlock(&pool->lock);
    return task;
}

/* Does a task, and a piece of other work, which tasks that keep coming would else hold up; false:
 * there was neither. */
static bool work(worker_pool *pool, worker_lane lane)
{
    worker_task *task = take_task(pool, lane);
    if (task) task->run(task);
    const bool more = lane == LANE_SHORT && pool->more(pool->context);
    return task || more;
}

/* Sleeps until woken. Sets `sleeps`, then checks for work once more: a thread that adds work reads
 * `sleeps` afterwards, so either this check finds the work or that thread wakes the worker. */
static void sleep_until_woken(worker *w)
{
    atomic_store(&w->sleeps, true);
    if (work(w->pool, w->lane) || atomic_load(&w->pool->ending)) {
        atomic_store(&w->sleeps, false);
        return;
    }
    platform_event_wait(w->event);
}

static void *worker_main(void *context)
{
    worker *w = context;
    while (!atomic_load(&w->pool->ending)) {
        /* More than one piece: another worker may help. */
        for (int done = 0; work(w->pool, w->lane); done++) {
            if (done == 1) wake(w->pool, w->lane);
        }
        sleep_until_woken(w);
    }
    while (work(w->pool, w->lane))
        ;
    return NULL;
}

void workers_put(worker_pool *pool, worker_lane lane, worker_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&pool->lock);
    *pool->queue[lane].last = task;
    pool->queue[lane].last = &task->next;
    pthread_mutex_unlock(&pool->lock);
    wake(pool, lane);
}

qp_status workers_open(int n_workers, bool (*more)(void *context), void *context, worker_pool **out,
                       qp_error *error)
{
    n_workers++; /* the one for long tasks */
    worker_pool *pool = calloc(1, sizeof *pool + (size_t)n_workers * sizeof *pool->workers);
    *out = pool;
    if (!pool) return error_no_memory(error, "the workers", sizeof *pool);
    pool->more = more;
    pool->context = context;
    for (int i = 0; i < LANES; i++)
        pool->queue[i].last = &pool->queue[i].first;
    pthread_mutex_init(&pool->lock, NULL);
    for (int i = 0; i < n_workers; i++, pool->n_workers++) {
        worker *w = &pool->workers[i];
        w->pool = pool;
        w->lane = i == 0 ? LANE_LONG : LANE_SHORT;
        w->event = platform_event_open(true);
        if (w->event < 0) break;
    }
    int started = 0;
    while (pool->n_workers == n_workers && started < n_workers) {
        worker *w = &pool->workers[started];
        w->started = pthread_create(&w->thread, NULL, worker_main, w) == 0;
        if (!w->started) break;
        started++;
    }
    if (started == n_workers) return QP_OK;
    workers_close(pool);
    *out = NULL;
    return error_set(error, QP_IO, "the system refused to start %d threads for the server",
                     n_workers);
}

void workers_close(worker_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->ending, true);
    for (int i = 0; i < pool->n_workers; i++) {
        worker *w = &pool->workers[i];
        if (!w->started) continue;
        platform_event_signal(w->event);
        pthread_join(w->thread, NULL);
    }
    /* What the last short tasks have put there. */
    while (work(pool, LANE_LONG) || work(pool, LANE_SHORT))
        ;
    for (int i = 0; i < pool->n_workers; i++)
        close(pool->workers[i].event);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
