/* "Did you mean ...?": the nearest of a set of words to one that is not in it. */
#pragma once

#include <stddef.h>

/* suggestion near = {.word = "topk"};
 * for (each candidate) suggest_offer(&near, candidate);
 * if (near.best) ... "did you mean %s?"
 */
typedef struct suggestion {
    const char *word;
    const char *best; /* NULL while no candidate is near enough */
    size_t distance;
} suggestion;

/* Candidates must live as long as the suggestion; of equally near ones the first offered stays. */
void suggest_offer(suggestion *near, const char *candidate);

/* Insertions, deletions, changes and swaps of neighbours that turn `a` into `b` (optimal string
 * alignment); SIZE_MAX when either is longer than 63 bytes. */
size_t suggest_distance(const char *a, const char *b);
