/* What the transports of a group have in common. */
#pragma once

#include "comm/comm.h"

/* Addresses are kept for so much; only pages that were written take memory. */
#define COMM_COMMON ((size_t)4 << 30)

typedef struct comm_type {
    /* Exchanges the stage; false: the group has failed (comm_fail()). */
    bool (*exchange)(comm *comm, uint32_t tag, size_t bytes, size_t most, comm_wait wait);
    void *(*stage)(comm *comm, size_t bytes);
    /* The memory that all ranks share, COMM_COMMON bytes; NULL: there is none. */
    char *(*common)(const comm *comm);
    /* Whether another rank has failed; *message (may be NULL) says how. */
    bool (*failed)(const comm *comm, const char **message);
    void (*fail)(comm *comm, const char *message);
    void (*close)(comm *comm);
} comm_type;

struct comm {
    const comm_type *type;
    int rank, size;
    uint32_t number;     /* of the next exchange */
    uint64_t idle_since; /* when the last exchange ended, clock_ns() */
    int64_t patience_ms; /* in place of the 4 seconds and of ten minutes; 0: these */
    comm_part *parts;    /* [size] */
    crew crew;
    size_t common; /* bytes of the common memory that were taken */
};

/* Memory that all ranks share, if all want that and run on one host: a group that exchanges there,
 * and owns `messages`. Else `messages`. */
comm *comm_share(comm *messages, bool wanted);

/* A wait that has begun. */
typedef struct comm_watch {
    comm_wait wait;
    uint64_t patience_ns, waited_ns, last_ns;
    int looks;
} comm_watch;

comm_watch comm_watch_begin(const comm *comm, comm_wait wait);

/* Called in a loop: spins, then yields the processor, and sleeps where the wait is idle. False: it
 * has taken too long. */
bool comm_watch_goes_on(comm_watch *watch);

/* Fails the group because `late` did not come. */
void comm_fail_late(comm *comm, int late, const comm_watch *watch);

/* Fails the group because `other` makes another exchange than this rank. */
void comm_fail_apart(comm *comm, int other, uint32_t tag, uint32_t found);
