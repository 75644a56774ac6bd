/* Prompt lookup: see lookup.h. */
#include "engine/lookup.h"

/* How many tokens that end before position `end` of the held ones agree with those that end with
 * the text. */
static int agreement(lookup_text text, size_t end)
{
    int n = 1; /* the last token itself */
    for (size_t i = 1; i < end && n < LOOKUP_LONGEST; i++, n++)
        if (text.held[end - 1 - i] != text.held[text.n_held - i]) break;
    return n;
}

int lookup_propose(lookup_text text, int32_t *out, int most)
{
    size_t best = 0; /* the position after the place */
    int longest = 0;
    for (size_t end = text.n_held; end > 0 && longest < LOOKUP_LONGEST; end--) {
        if (text.held[end - 1] != text.last) continue;
        const int n = agreement(text, end);
        if (n <= longest) continue;
        longest = n;
        best = end;
    }
    for (int i = 0; longest && i < most; i++) {
        const size_t at = best + (size_t)i;
        out[i] = at < text.n_held    ? text.held[at]
                 : at == text.n_held ? text.last
                                     : out[at - text.n_held - 1];
    }
    return longest;
}
