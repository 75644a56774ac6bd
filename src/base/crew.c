/* Pieces of work that waiting threads take: see crew.h. */
#include "base/crew.h"

#include <assert.h>
#include <sched.h>

enum { PIECE_BITS = 16, LOOKS = 4096 };

/* Takes a piece. The number of the work in the same word sees to it that the piece belongs to the
 * work whose pieces were counted; its function stays until all of its pieces are done. */
bool crew_help(crew *c)
{
    unsigned long long left = atomic_load_explicit(&c->left, memory_order_acquire);
    for (;;) {
        const unsigned next = left >> PIECE_BITS & CREW_MOST_PIECES, n = left & CREW_MOST_PIECES;
        if (next >= n) return false;
        if (!atomic_compare_exchange_weak_explicit(&c->left, &left, left + (1ULL << PIECE_BITS),
                                                   memory_order_acquire, memory_order_acquire))
            continue;
        c->run(c->context, next);
        atomic_fetch_add_explicit(&c->done, 1, memory_order_release);
        return true;
    }
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void crew_run(crew *c, int64_t n, crew_piece *run, void *context)
{
    assert(n >= 0 && n <= CREW_MOST_PIECES);
    const unsigned long long number = atomic_load_explicit(&c->left, memory_order_relaxed) >> 32;
    c->run = run;
    c->context = context;
    atomic_store_explicit(&c->done, 0, memory_order_relaxed);
    atomic_store_explicit(&c->left, (number + 1) << 32 | (unsigned long long)n,
                          memory_order_release);
    while (crew_help(c))
        ;
    for (int looks = 0; atomic_load_explicit(&c->done, memory_order_acquire) < n; looks++) {
        relax();
        if (looks > LOOKS) sched_yield(); /* the helper may need this processor */
    }
}
