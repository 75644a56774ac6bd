/* Work that one thread cuts into pieces, of which threads that wait for it may take some.
 *
 * The owner publishes its pieces, runs those that no other thread takes, and returns when all are
 * done. Results do not depend on which thread runs a piece. There is one owner at a time.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef void crew_piece(void *context, int64_t piece);

/* Zero-initialise. */
typedef struct crew {
    atomic_ullong left; /* number of the work, next piece, pieces: 32, 16, 16 bits */
    atomic_int done;
    crew_piece *run;
    void *context;
} crew;

enum { CREW_MOST_PIECES = 0xffff };

/* Runs pieces 0 to n - 1, at most CREW_MOST_PIECES. */
void crew_run(crew *crew, int64_t n, crew_piece *run, void *context);

/* Called by threads that wait: runs a piece. False: there is none. */
bool crew_help(crew *crew);
