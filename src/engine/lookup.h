/* Prompt lookup: proposes the tokens that followed the last time that the text read the same.
 *
 * Nothing is kept between calls, so a text may be shortened, forked or replaced at any time. A
 * search reads the text once from its end, about 1 us for each 4,000 tokens.
 */
#ifndef QUIPU_ENGINE_LOOKUP_H
#define QUIPU_ENGINE_LOOKUP_H

#include <stddef.h>
#include <stdint.h>

enum { LOOKUP_LONGEST = 16 }; /* tokens that are compared */

/* A text: `held`, [n_held], and one token after it. */
typedef struct lookup_text {
    const int32_t *held;
    size_t n_held;
    int32_t last;
} lookup_text;

/* Finds the place in the text whose preceding tokens agree with the text's end for longest, at most
 * LOOKUP_LONGEST tokens; of several the latest. Writes `most` tokens that follow it to `out`; past
 * the end of the text they continue with the proposed ones, as repetitions do. Returns how many
 * tokens agreed; 0: the last token is new to the text, and nothing is proposed. */
int lookup_propose(lookup_text text, int32_t *out, int most);

#endif
