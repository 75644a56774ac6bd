/* The server's workers: long tasks delay no short ones, and none is lost at the end. */
#include "test.h"

#include "server/workers.h"

#include <semaphore.h>
#include <stdatomic.h>

static qp_error error;
static atomic_int n_done;
static sem_t blocked, short_done;

static bool nothing_more(void *context)
{
    (void)context;
    return false;
}

static void block(worker_task *task)
{
    (void)task;
    sem_wait(&blocked);
    atomic_fetch_add(&n_done, 1);
}

static void count(worker_task *task)
{
    (void)task;
    atomic_fetch_add(&n_done, 1);
    sem_post(&short_done);
}

/* Eight tasks for which the worker of long ones waits, and all workers of short ones are free. */
static void long_tasks_delay_no_short_ones(void **state)
{
    (void)state;
    enum { LONG = 8, SHORT = 20 };
    worker_pool *pool;
    worker_task slow[LONG], quick[SHORT];
    atomic_store(&n_done, 0);
    sem_init(&blocked, 0, 0);
    sem_init(&short_done, 0, 0);
    assert_ok(workers_open(1, nothing_more, NULL, &pool, &error));
    for (int i = 0; i < LONG; i++) {
        slow[i] = (worker_task){.run = block};
        workers_put(pool, LANE_LONG, &slow[i]);
    }
    for (int i = 0; i < SHORT; i++) {
        quick[i] = (worker_task){.run = count};
        workers_put(pool, LANE_SHORT, &quick[i]);
        sem_wait(&short_done);
    }
    assert_int_equal(atomic_load(&n_done), SHORT);
    for (int i = 0; i < LONG; i++)
        sem_post(&blocked);
    workers_close(pool);
    assert_int_equal(atomic_load(&n_done), LONG + SHORT);
}

static worker_pool *its_pool;
static worker_task later;

static void put_another(worker_task *task)
{
    (void)task;
    sem_wait(&blocked);
    workers_put(its_pool, LANE_LONG, &later);
}

static void end(worker_pool *pool)
{
    sem_post(&blocked);
    workers_close(pool);
}

/* A short task that hands itself on while the pool is closed. */
static void the_end_loses_no_task(void **state)
{
    (void)state;
    worker_task first = {.run = put_another};
    later = (worker_task){.run = count};
    for (int i = 0; i < 50; i++) {
        atomic_store(&n_done, 0);
        assert_ok(workers_open(2, nothing_more, NULL, &its_pool, &error));
        workers_put(its_pool, LANE_SHORT, &first);
        end(its_pool);
        assert_int_equal(atomic_load(&n_done), 1);
    }
}

/* A task that comes again and again: what else there is to do has its turns meanwhile. */
enum { AGAIN = 1000 };
static atomic_int n_again, first_more;

static bool note_more(void *context)
{
    int none = -1;
    (void)context;
    atomic_compare_exchange_strong(&first_more, &none, atomic_load(&n_again));
    return false;
}

static void come_again(worker_task *task)
{
    if (atomic_fetch_add(&n_again, 1) + 1 < AGAIN)
        workers_put(its_pool, LANE_SHORT, task);
    else
        sem_post(&short_done);
}

static void tasks_that_keep_coming_stop_nothing(void **state)
{
    (void)state;
    worker_task task = {.run = come_again};
    atomic_store(&n_again, 0);
    atomic_store(&first_more, -1);
    assert_ok(workers_open(1, note_more, NULL, &its_pool, &error));
    atomic_store(&first_more, -1);
    workers_put(its_pool, LANE_SHORT, &task);
    sem_wait(&short_done);
    workers_close(its_pool);
    assert_in_range(atomic_load(&first_more), 0, AGAIN - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_tasks_delay_no_short_ones),
        cmocka_unit_test(the_end_loses_no_task),
        cmocka_unit_test(tasks_that_keep_coming_stop_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
