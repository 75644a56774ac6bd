/* A pool of threads: see threads.h. */
#include "base/threads.h"

#include "base/clock.h"
#include "base/platform.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct pool_thread {
    thread_pool *pool;
    pthread_t handle;
    int worker;
    int wanted; /* workers that the pool will have */
} pool_thread;

/* A run starts with a new generation and ends when `running` is zero. Both sides spin for a short
 * while before they sleep: between the operators of a forward pass the next run comes sooner than a
 * sleeping thread could be woken. On a busy machine a longer spin would take time from other
 * processes. */
struct thread_pool {
    pthread_mutex_t mutex;
    pthread_cond_t start, done;
    thread_task *task;
    void *context;
    atomic_ulong generation; /* counts runs; a thread that sees a new value has work */
    atomic_int running;      /* threads still in the current run */
    atomic_int sleepers;     /* threads that wait for `start` under the mutex */
    atomic_bool stop;
    bool caller_sleeps; /* the caller waits for `done`; under the mutex */
    int n_workers;
    pool_thread threads[]; /* n_workers - 1: worker 0 is the caller */
};

enum { SPIN_NS = 50000, LOOKS_PER_CLOCK = 64 };

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static bool has_work(thread_pool *pool, unsigned long seen)
{
    return atomic_load(&pool->generation) != seen || atomic_load(&pool->stop);
}

/* Waits for a generation other than `seen`. */
static void await_work(thread_pool *pool, unsigned long seen)
{
    uint64_t until = clock_ns() + SPIN_NS;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (has_work(pool, seen)) return;
            relax();
        }
    } while (clock_ns() < until);
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!has_work(pool, seen))
        pthread_cond_wait(&pool->start, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

/* The last worker of a run wakes the caller if it sleeps. */
static void finish_run(thread_pool *pool)
{
    if (atomic_fetch_sub_explicit(&pool->running, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_lock(&pool->mutex);
    if (pool->caller_sleeps) pthread_cond_signal(&pool->done);
    pthread_mutex_unlock(&pool->mutex);
}

static void await_done(thread_pool *pool)
{
    uint64_t until = clock_ns() + SPIN_NS;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (atomic_load_explicit(&pool->running, memory_order_acquire) == 0) return;
            relax();
        }
    } while (clock_ns() < until);
    pthread_mutex_lock(&pool->mutex);
    pool->caller_sleeps = true;
    while (atomic_load_explicit(&pool->running, memory_order_acquire) != 0)
        pthread_cond_wait(&pool->done, &pool->mutex);
    pool->caller_sleeps = false;
    pthread_mutex_unlock(&pool->mutex);
}

/* Pins each thread to a processor of its own where there are enough, so that two workers never
 * share one while another is idle. The caller's own thread is not pinned, because it does not
 * belong to the pool. */
static void pin_thread(int worker, int n_workers)
{
    int allowed[PLATFORM_PROCESSORS];
    if (platform_processors(allowed) >= n_workers) platform_bind(&allowed[worker], 1);
}

static void *thread_main(void *argument)
{
    pool_thread *self = argument;
    thread_pool *pool = self->pool;
    pin_thread(self->worker, self->wanted);
    for (unsigned long seen = 0;; seen++) {
        await_work(pool, seen);
        if (atomic_load_explicit(&pool->stop, memory_order_acquire)) return NULL;
        pool->task(pool->context, self->worker, pool->n_workers);
        finish_run(pool);
    }
}

qp_status thread_pool_create(int n_workers, thread_pool **out, qp_error *error)
{
    *out = NULL;
    if (n_workers < 1 || n_workers > 1024)
        return error_set(error, QP_INVALID, "threads must be 1 to 1024, found %d", n_workers);
    size_t bytes = sizeof(thread_pool) + (size_t)(n_workers - 1) * sizeof(pool_thread);
    thread_pool *pool = calloc(1, bytes);
    if (!pool) return error_no_memory(error, "the thread pool", bytes);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->n_workers = 1;
    for (int i = 0; i < n_workers - 1; i++) {
        pool->threads[i] = (pool_thread){.pool = pool, .worker = i + 1, .wanted = n_workers};
        if (pthread_create(&pool->threads[i].handle, NULL, thread_main, &pool->threads[i]) != 0) {
            thread_pool_destroy(pool);
            return error_set(error, QP_IO, "cannot start thread %d of %d", i + 2, n_workers);
        }
        pool->n_workers++;
    }
    *out = pool;
    return QP_OK;
}

/* A sleeper holds the mutex from its check to its wait, so a wake-up under the mutex cannot be
 * missed. */
static void wake_sleepers(thread_pool *pool)
{
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->mutex);
}

void thread_pool_run(thread_pool *pool, thread_task *task, void *context)
{
    if (!pool || pool->n_workers == 1) {
        task(context, 0, 1);
        return;
    }
    pool->task = task;
    pool->context = context;
    atomic_store_explicit(&pool->running, pool->n_workers - 1, memory_order_relaxed);
    atomic_fetch_add(&pool->generation, 1);
    wake_sleepers(pool);
    task(context, 0, pool->n_workers);
    await_done(pool);
}

int thread_pool_size(const thread_pool *pool)
{
    return pool ? pool->n_workers : 1;
}

void thread_pool_destroy(thread_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, true);
    wake_sleepers(pool);
    for (int i = 0; i < pool->n_workers - 1; i++)
        pthread_join(pool->threads[i].handle, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

void threads_bind(int index, int n_others, int count)
{
    int allowed[PLATFORM_PROCESSORS];
    if (platform_processors(allowed) < (n_others + 1) * count) return;
    platform_bind(&allowed[index * count], count);
}

int threads_available(void)
{
    int allowed[PLATFORM_PROCESSORS];
    const int n = platform_processors(allowed);
    return n > 0 ? n : 1;
}

bool threads_bound_by_parent(void)
{
    return platform_bound_by_parent();
}
