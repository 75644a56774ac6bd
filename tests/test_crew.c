/* Pieces of work run once each, whether the owner runs them all or others help, work after work. */
#include "test.h"

#include "base/crew.h"

#include <pthread.h>
#include <string.h>

enum { PIECES = 40, WORKS = 3000, HELPERS = 3 };

typedef struct job {
    atomic_int runs[PIECES];
} job;

static crew shared;
static atomic_bool over;

static void count(void *context, int64_t piece)
{
    job *j = context;
    atomic_fetch_add(&j->runs[piece], 1);
}

static void *help(void *context)
{
    (void)context;
    while (!atomic_load(&over))
        crew_help(&shared);
    return NULL;
}

static void run_once(crew *c, int64_t n)
{
    job j;
    memset(&j, 0, sizeof j);
    crew_run(c, n, count, &j);
    for (int i = 0; i < PIECES; i++)
        assert_int_equal(atomic_load(&j.runs[i]), i < n);
    assert_false(crew_help(c));
}

static void the_owner_runs_what_nobody_takes(void **state)
{
    (void)state;
    crew alone = {0};
    assert_false(crew_help(&alone));
    run_once(&alone, 0);
    run_once(&alone, PIECES);
    run_once(&alone, 1);
}

/* The pieces' counts are on the owner's stack: a helper that came late would be seen, by sanitizers
 * at the latest. */
static void helpers_take_each_piece_once(void **state)
{
    (void)state;
    pthread_t threads[HELPERS];
    for (int i = 0; i < HELPERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, help, NULL), 0);
    for (int i = 0; i < WORKS; i++) {
        job j;
        memset(&j, 0, sizeof j);
        const int n = i % (PIECES + 1);
        crew_run(&shared, n, count, &j);
        for (int k = 0; k < PIECES; k++)
            assert_int_equal(atomic_load(&j.runs[k]), k < n);
    }
    atomic_store(&over, true);
    for (int i = 0; i < HELPERS; i++)
        pthread_join(threads[i], NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_owner_runs_what_nobody_takes),
        cmocka_unit_test(helpers_take_each_piece_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
