/* Ranks that exchange rows through memory that they share: what each gets, how a group fails, and
 * what the first rank's file must be before another opens it. Threads play the ranks; a thread that
 * makes the exchanges by hand plays a hostile one.
 */
#define _GNU_SOURCE /* memfd_create() */
#include "test.h"

#include "comm/comm_parts.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 3, TAG = 7 };

static qp_error error;

static void open_all(comm *ends[RANKS], int64_t patience_ms)
{
    assert_ok(comm_threads_open(RANKS, ends, &error));
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(comm_rank(ends[r]), r);
        assert_int_equal(comm_size(ends[r]), RANKS);
        ends[r]->patience_ms = patience_ms;
    }
}

/* Runs `play` as each rank at once, with its end, and closes the ends. */
static void run_all(comm *ends[RANKS], void *(*play)(void *))
{
    pthread_t threads[RANKS];
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, play, ends[r]), 0);
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
}

static void close_all(comm *ends[RANKS])
{
    for (int r = 0; r < RANKS; r++)
        comm_close(ends[r]);
}

/* ---- Exchanges --------------------------------------------------------------------------------
 */

static atomic_int wrong;

static void expect(bool right)
{
    if (!right) atomic_fetch_add(&wrong, 1);
}

/* As many bytes as the number and the rank say, each of which says whose it is. */
static size_t bytes_of(int rank, int number)
{
    return (size_t)(rank * 31 + number * 97) % 1000;
}

static void *exchange_many(void *context)
{
    comm *c = context;
    const int rank = comm_rank(c);
    for (int number = 0; number < 40; number++) {
        const size_t bytes = bytes_of(rank, number);
        unsigned char *stage = comm_stage(c, bytes);
        expect(stage && (uintptr_t)stage % 64 == 0);
        memset(stage, rank * 40 + number, bytes);
        const comm_part *parts = comm_exchange(c, TAG, bytes, 1000, COMM_SLOW);
        for (int r = 0; parts && r < RANKS; r++) {
            expect(parts[r].bytes == bytes_of(r, number));
            for (size_t i = 0; i < parts[r].bytes; i++)
                expect(((const unsigned char *)parts[r].data)[i] == r * 40 + number);
        }
        expect(parts != NULL && comm_check(c, NULL) == QP_OK);
    }
    return NULL;
}

static void all_get_what_each_gave(void **state)
{
    (void)state;
    comm *ends[RANKS];
    open_all(ends, 0);
    wrong = 0;
    run_all(ends, exchange_many);
    assert_int_equal(wrong, 0);
    close_all(ends);
}

static void common_memory_is_the_same(void **state)
{
    (void)state;
    comm *ends[RANKS];
    open_all(ends, 0);
    char *first[RANKS], *second[RANKS];
    for (int r = 0; r < RANKS; r++) {
        first[r] = comm_common(ends[r], 100);
        second[r] = comm_common(ends[r], 5);
        assert_non_null(first[r]);
        assert_ptr_equal(first[r], first[0]);
        assert_ptr_equal(second[r], second[0]);
        assert_true(second[r] >= first[r] + 100 && first[r][99] == 0);
        assert_true(comm_is_common(ends[r], first[0]) &&
                    comm_is_common(ends[r], first[0] + COMM_COMMON - 1));
        assert_false(comm_is_common(ends[r], first[0] - 1) ||
                     comm_is_common(ends[r], first[0] + COMM_COMMON));
        const size_t left = COMM_COMMON - ends[r]->common;
        assert_null(comm_common(ends[r], left + 1));
        assert_non_null(comm_common(ends[r], left));
        assert_null(comm_common(ends[r], 1));
    }
    close_all(ends);
}

/* ---- Failures ---------------------------------------------------------------------------------
 */

static void *exchange_apart(void *context)
{
    comm *c = context;
    if (!comm_stage(c, 4)) return NULL;
    expect(!comm_exchange(c, comm_rank(c) == 2 ? TAG + 1 : TAG, 4, 4, COMM_SLOW));
    return NULL;
}

static void *exchange_without_the_last(void *context)
{
    comm *c = context;
    if (comm_rank(c) == 2) return NULL;
    comm_stage(c, 4);
    expect(!comm_exchange(c, TAG, 4, 4, COMM_SLOW));
    return NULL;
}

static void *abort_in_the_first(void *context)
{
    comm *c = context;
    if (comm_rank(c) == 0) {
        comm_abort(c, "no more paper");
        comm_abort(c, "and no ink");
        return NULL;
    }
    comm_stage(c, 4);
    expect(!comm_exchange(c, TAG, 4, 4, COMM_SLOW));
    return NULL;
}

static void failures_reach_all_ranks(void **state)
{
    (void)state;
    static const struct {
        void *(*play)(void *);
        int64_t patience_ms;
        const char *says;
    } cases[] = {
        {exchange_apart, 0, "all ranks must run the same program"},
        {exchange_without_the_last, 50, "rank 2 has not answered rank"},
        {abort_in_the_first, 0, "rank 0: no more paper"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        comm *ends[RANKS];
        open_all(ends, cases[i].patience_ms);
        wrong = 0;
        run_all(ends, cases[i].play);
        assert_int_equal(wrong, 0);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(comm_check(ends[r], &error), QP_IO);
            if (!strstr(error.message, cases[i].says)) fail_msg("%s", error.message);
            comm_stage(ends[r], 4);
            assert_null(comm_exchange(ends[r], TAG, 4, 4, COMM_IDLE));
        }
        close_all(ends);
    }
}

/* ---- The file of processes --------------------------------------------------------------------
 */

static comm *shared[RANKS];
static bool wanted[RANKS];

static void *share(void *context)
{
    comm *c = context;
    shared[comm_rank(c)] = comm_share(c, wanted[comm_rank(c)]);
    return exchange_many(shared[comm_rank(c)]);
}

/* Ranks share a file if all want that, and exchange the same way in any case. */
static void ranks_share_if_all_want_it(void **state)
{
    (void)state;
    for (int unwilling = -1; unwilling < RANKS; unwilling++) {
        comm *ends[RANKS];
        open_all(ends, 0);
        wrong = 0;
        for (int r = 0; r < RANKS; r++)
            wanted[r] = r != unwilling;
        run_all(ends, share);
        assert_int_equal(wrong, 0);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(shared[r] == ends[r], unwilling >= 0);
            assert_int_equal(comm_rank(shared[r]), r);
        }
        if (unwilling < 0) { /* the same bytes at different addresses */
            int *a = comm_common(shared[0], 8), *b = comm_common(shared[2], 8);
            assert_ptr_not_equal(a, b);
            *a = 77;
            assert_int_equal(*b, 77);
            assert_null(comm_stage(shared[0], ((size_t)1 << 30) + 1));
            assert_int_equal(comm_check(shared[1], &error), QP_IO);
            assert_non_null(strstr(error.message, "more than a gigabyte in one exchange"));
        }
        close_all(shared);
        if (unwilling < 0) close_all(ends); /* after a failure they stay open */
    }
}

/* As shared.c has it; what rank 0 tells the others of its file. */
typedef struct file_offer {
    uint64_t key;
    int32_t process, file;
    int32_t has;
} file_offer;
enum { TAG_SHARE = 0x73686172 };

typedef enum forgery { HONEST, OTHER_NAME, OTHER_SIZE, OTHER_KEY, NO_FILE, ON_DISK } forgery;
static forgery played;

/* Rank 0 offers a file by hand: two exchanges, of which the first describes it. */
static void offer_by_hand(comm *c, size_t bytes)
{
    char path[] = "/tmp/quipu-test-comm-XXXXXX";
    const int file = played == ON_DISK
                         ? mkstemp(path)
                         : memfd_create(played == OTHER_NAME ? "other" : "quipu-ranks", 0);
    if (played == ON_DISK) unlink(path);
    expect(ftruncate(file, (off_t)bytes + (played == OTHER_SIZE ? 4096 : 0)) == 0);
    file_offer own = {
        .key = 99, .process = getpid(), .file = played == NO_FILE ? 1000 : file, .has = 1};
    const uint64_t key = played == OTHER_KEY ? 98 : 99;
    expect(pwrite(file, &key, sizeof key, 0) == sizeof key);
    for (int round = 0; round < 2; round++) {
        memcpy(comm_stage(c, sizeof own), &own, sizeof own);
        const comm_part *parts = comm_exchange(c, TAG_SHARE, sizeof own, sizeof own, COMM_SLOW);
        for (int r = 1; parts && r < RANKS && round == 1; r++) {
            file_offer other;
            memcpy(&other, parts[r].data, sizeof other);
            expect(other.has == (played == HONEST));
        }
    }
    close(file);
}

static size_t file_bytes;

static void *share_with_a_forger(void *context)
{
    comm *c = context;
    if (comm_rank(c) == 0)
        offer_by_hand(c, file_bytes);
    else
        shared[comm_rank(c)] = comm_share(c, true);
    return NULL;
}

static void foreign_files_are_not_opened(void **state)
{
    (void)state;
    comm *ends[RANKS];
    open_all(ends, 0);
    for (int r = 0; r < RANKS; r++)
        wanted[r] = true;
    wrong = 0;
    run_all(ends, share);
    /* The size of a right file, by that of the mapping: the last page is the end of the common
     * memory. */
    char *common = comm_common(shared[0], 1), *stage = comm_stage(shared[0], 64);
    const size_t number = shared[0]->number % 2;
    file_bytes = (size_t)(common - stage) + COMM_COMMON + (number << 30) + 4096;
    close_all(shared);
    for (played = HONEST; played <= ON_DISK; played++) {
        open_all(ends, 0);
        wrong = 0;
        run_all(ends, share_with_a_forger);
        if (wrong) fail_msg("forgery %d", (int)played);
        for (int r = 1; r < RANKS; r++)
            assert_int_equal(shared[r] == ends[r], played != HONEST);
        comm_close(ends[0]);
        for (int r = 1; r < RANKS; r++)
            comm_close(shared[r]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_get_what_each_gave),
        cmocka_unit_test(common_memory_is_the_same),
        cmocka_unit_test(failures_reach_all_ranks),
        cmocka_unit_test(ranks_share_if_all_want_it),
        cmocka_unit_test(foreign_files_are_not_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
