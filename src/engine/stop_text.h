/* Finds stop texts in a stream whose pieces may cut them anywhere. */
#pragma once

#include "base/strbuf.h"

typedef struct stop_text {
    const char *const *stops; /* [n_stops], none empty */
    size_t n_stops;
    strbuf pending;    /* text that the caller has not received yet */
    const char *found; /* the stop text that appeared; pending ends before it. NULL: none */
} stop_text;

/* Examines the text appended to `pending` and returns how many bytes of it are certain: no stop
 * text begins in them. If a stop text is found, the pending text is cut before it and all of it is
 * certain. */
size_t stop_text_scan(stop_text *stop);

/* Removes the first `count` bytes of the pending text. */
void stop_text_consume(stop_text *stop, size_t count);
