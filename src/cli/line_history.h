/* Earlier messages of a person, and the file that keeps them. */
#pragma once

#include <stdbool.h>

enum { HISTORY_MOST = 1000 };

/* Zero-initialise; history_free() at the end. */
typedef struct line_history {
    char **items; /* [count], the oldest first */
    int count;
    char path[4096]; /* empty: kept in memory only */
} line_history;

/* Reads the file. Each message added later is appended to it at once; only its owner can read it.
 * If the file cannot be used, only the history is lost. */
void history_open(line_history *h, const char *path);

/* Adds a message, unless it equals the last one. */
void history_add(line_history *h, const char *text);

/* The nearest message from `from` down to 0 that contains `text`, or -1. */
int history_find(const line_history *h, int from, const char *text);

void history_free(line_history *h);
