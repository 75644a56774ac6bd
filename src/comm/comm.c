/* Groups of ranks, whatever carries their bytes: see comm.h. */
#include "comm/comm_parts.h"

#include "base/clock.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    COMMON_ALIGNMENT = 4096,
    LOOKS_PER_CLOCK = 64,
    OWN_TIMES = 4, /* other ranks may take this many times what this rank took itself */
};
static const uint64_t SECOND_NS = 1000000000, SPIN_NS = 50000, YIELD_NS = 5000000;
static const uint64_t BUSY_SECONDS = 4, SLOW_SECONDS = 600;
/* The most time that one reading of the clock may add: the process may have been suspended. */
static const uint64_t LONGEST_LOOK_NS = 100000000;

int comm_rank(const comm *c)
{
    return c->rank;
}

int comm_size(const comm *c)
{
    return c->size;
}

crew *comm_crew(comm *c)
{
    return &c->crew;
}

void comm_close(comm *c)
{
    if (!c) return;
    free(c->parts);
    c->parts = NULL;
    c->type->close(c);
}

void *comm_stage(comm *c, size_t bytes)
{
    return c->type->stage(c, bytes);
}

void *comm_common(comm *c, size_t bytes)
{
    char *memory = c->type->common ? c->type->common(c) : NULL;
    if (!memory || bytes > COMM_COMMON - c->common) return NULL;
    char *at = memory + c->common;
    c->common += (bytes + COMMON_ALIGNMENT - 1) / COMMON_ALIGNMENT * COMMON_ALIGNMENT;
    return at;
}

bool comm_is_common(const comm *c, const void *at)
{
    const char *memory = c->type->common ? c->type->common(c) : NULL;
    const uintptr_t begin = (uintptr_t)memory, address = (uintptr_t)at;
    return memory && address >= begin && address - begin < COMM_COMMON;
}

const comm_part *comm_exchange(comm *c, uint32_t tag, size_t bytes, size_t most, comm_wait wait)
{
    if (c->type->failed(c, NULL)) return NULL;
    if (!c->type->exchange(c, tag, bytes, most, wait)) return NULL;
    c->number++;
    c->idle_since = clock_ns();
    return c->parts;
}

void comm_abort(comm *c, const char *why)
{
    char message[QP_ERROR_SIZE];
    snprintf(message, sizeof message, "rank %d: %s", c->rank, why);
    if (!c->type->failed(c, NULL)) c->type->fail(c, message);
}

qp_status comm_check(const comm *c, qp_error *error)
{
    const char *message = "";
    if (!c->type->failed(c, &message)) return QP_OK;
    return error_set(error, QP_IO, "%s", message);
}

/* ---- waiting ------------------------------------------------------------------------------- */

static uint64_t patience_of(const comm *c, comm_wait wait, uint64_t now)
{
    const uint64_t given = (uint64_t)c->patience_ms * 1000000;
    const bool busy = wait == COMM_BUSY && c->idle_since && now > c->idle_since;
    const uint64_t own = busy ? now - c->idle_since : 0;
    if (wait == COMM_SLOW) return given ? given : SLOW_SECONDS * SECOND_NS;
    return (given ? given : BUSY_SECONDS * SECOND_NS) + OWN_TIMES * own;
}

comm_watch comm_watch_begin(const comm *c, comm_wait wait)
{
    const uint64_t now = clock_ns();
    return (comm_watch){.wait = wait, .patience_ns = patience_of(c, wait, now), .last_ns = now};
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

bool comm_watch_goes_on(comm_watch *w)
{
    relax();
    if (++w->looks % LOOKS_PER_CLOCK != 0 && w->waited_ns < SPIN_NS) return true;
    const uint64_t now = clock_ns(), since = now - w->last_ns;
    w->last_ns = now;
    w->waited_ns += since < LONGEST_LOOK_NS ? since : LONGEST_LOOK_NS;
    if (w->wait != COMM_IDLE && w->waited_ns > w->patience_ns) return false;
    if (w->waited_ns < SPIN_NS) return true;
    if (w->wait == COMM_IDLE && w->waited_ns > YIELD_NS)
        nanosleep(&(struct timespec){.tv_nsec = w->waited_ns > SECOND_NS ? 1000000 : 100000}, NULL);
    else
        sched_yield();
    return true;
}

void comm_fail_late(comm *c, int late, const comm_watch *w)
{
    char message[QP_ERROR_SIZE];
    snprintf(message, sizeof message,
             "rank %d has not answered rank %d for %.1f seconds: it has ended, or hangs", late,
             c->rank, (double)w->waited_ns / (double)SECOND_NS);
    c->type->fail(c, message);
}

void comm_fail_apart(comm *c, int other, uint32_t tag, uint32_t found)
{
    char message[QP_ERROR_SIZE];
    snprintf(message, sizeof message,
             "rank %d is at another place than rank %d: exchange %u is %08x there and %08x here; "
             "all ranks must run the same program with the same options",
             other, c->rank, c->number, found, tag);
    c->type->fail(c, message);
}
