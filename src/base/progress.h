/* The progress of long work, passed to a callback of the caller instead of printed: a library does
 * not know whether there is a terminal. A NULL progress is silent, so callers need no check.
 */
#pragma once

#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

/* Called from progress_advance(), at most every tenth of a second, and once at the end. */
typedef struct progress progress;
typedef void progress_sink(void *context, const progress *progress);

/* What an engine does when it opens, and how long that took. */
typedef struct progress_stage {
    const char *name; /* "packing weights" */
    uint64_t ns;
} progress_stage;

enum { PROGRESS_STAGES = 24 };

/* Long work with a known end, counted in bytes or tokens. Zero-initialise; one thread advances it.
 */
struct progress {
    progress_sink *sink; /* NULL: silent */
    void *context;
    const char *what; /* "reading weights" */
    bool tokens;      /* counted in tokens, else in bytes */
    uint64_t done, total;
    uint64_t begin_ns, reported_ns;
    progress_stage stages[PROGRESS_STAGES]; /* [n_stages], in the order in which they first ended */
    int n_stages;
    uint64_t staged_ns; /* when the last stage ended; 0: no time is taken */
};

/* Time is taken from here on. */
void progress_begin_stages(progress *progress);

/* All that was done since the last stage ended is the stage `name`, or a part of it. */
void progress_stage_ended(progress *progress, const char *name);

/* Starts an activity named `what`; sink and context are set already. */
void progress_begin(progress *progress, const char *what, uint64_t total);

/* The same, counted in tokens. The sink is called at once, because the first step may take long. */
void progress_begin_tokens(progress *progress, const char *what, uint64_t total);

void progress_advance(progress *progress, uint64_t amount);

/* Ends the progress, even if the count stopped short. Calls the sink if it has not been called
 * yet. */
void progress_end(progress *progress);

/* Appends "reading weights  42%  1.3 of 3.0 GB  2.1 GB/s", or "reading the prompt  42%  2560 of
 * 6031 tokens  183 tokens/s". */
void progress_print(const progress *progress, strbuf *out);
