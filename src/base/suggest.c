/* The nearest word: see suggest.h. */
#include "base/suggest.h"

#include <stdint.h>
#include <string.h>

enum { WORD_MAX = 63 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t suggest_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > WORD_MAX || m > WORD_MAX) return SIZE_MAX;
    /* rows[i % 3][j]: the distance of a's first i bytes from b's first j. */
    size_t rows[3][WORD_MAX + 1];
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            row[j] = least(above[j] + 1, row[j - 1] + 1);
            row[j] = least(row[j], above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], second[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

void suggest_offer(suggestion *near, const char *candidate)
{
    size_t distance = suggest_distance(near->word, candidate);
    /* If more than a third of the letters differ, another word was meant; short words may have one
     * slip. */
    size_t limit = strlen(near->word) / 3;
    if (distance > (limit ? limit : 1)) return;
    if (near->best && distance >= near->distance) return;
    near->best = candidate;
    near->distance = distance;
}
