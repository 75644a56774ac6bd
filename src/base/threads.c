/* A pool of threads: see threads.h. */
#define _GNU_SOURCE
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct pool_thread {
    thread_pool *pool;
    pthread_t handle;
    int worker;
} pool_thread;

struct thread_pool {
    pthread_mutex_t mutex;
    pthread_cond_t start, done;
    thread_task *task;
    void *context;
    unsigned long generation; /* counts runs; a thread that sees a new value has work */
    int running;              /* threads still in the current run */
    bool stop;
    int n_workers;
    pool_thread threads[]; /* n_workers - 1: worker 0 is the caller */
};

static void *thread_main(void *argument)
{
    pool_thread *self = argument;
    thread_pool *pool = self->pool;
    unsigned long seen = 0;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (!pool->stop && pool->generation == seen)
            pthread_cond_wait(&pool->start, &pool->mutex);
        if (pool->stop) break;
        seen = pool->generation;
        pthread_mutex_unlock(&pool->mutex);
        pool->task(pool->context, self->worker, pool->n_workers);
        pthread_mutex_lock(&pool->mutex);
        if (--pool->running == 0) pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
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
        pool->threads[i] = (pool_thread){.pool = pool, .worker = i + 1};
        if (pthread_create(&pool->threads[i].handle, NULL, thread_main, &pool->threads[i]) != 0) {
            thread_pool_destroy(pool);
            return error_set(error, QP_IO, "cannot start thread %d of %d", i + 2, n_workers);
        }
        pool->n_workers++;
    }
    *out = pool;
    return QP_OK;
}

void thread_pool_run(thread_pool *pool, thread_task *task, void *context)
{
    if (!pool || pool->n_workers == 1) {
        task(context, 0, 1);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->task = task;
    pool->context = context;
    pool->running = pool->n_workers - 1;
    pool->generation++;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->mutex);
    task(context, 0, pool->n_workers);
    pthread_mutex_lock(&pool->mutex);
    while (pool->running > 0)
        pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

int thread_pool_size(const thread_pool *pool)
{
    return pool ? pool->n_workers : 1;
}

void thread_pool_destroy(thread_pool *pool)
{
    if (!pool) return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->n_workers - 1; i++)
        pthread_join(pool->threads[i].handle, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

int threads_available(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    return 1;
}
