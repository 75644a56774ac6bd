/* Prompt lookup: proposes the tokens that followed the last time that the text read the same.
 *
 * Nothing is kept between calls, so a text may be shortened, forked or replaced at any time. A
 * search reads the text once from its end, about 1 us for each 4,000 tokens, and LOOKUP_BACK tokens
 * for each proposal.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LOOKUP_LONGEST = 16, /* tokens that are compared */
    LOOKUP_MOST = 15,    /* proposals */
    LOOKUP_BACK = 256    /* tokens before a place in which its token may have been foreseen */
};

/* A text: `held`, [n_held], and one token after it. */
typedef struct lookup_text {
    const int32_t *held;
    size_t n_held;
    int32_t last;
} lookup_text;

/* What is proposed after a text. */
typedef struct lookup_found {
    int agreed; /* tokens that agree with the end of the text; 0: nothing is proposed */
    int32_t tokens[LOOKUP_MOST];
    bool foreseen[LOOKUP_MOST]; /* at its place the token was what lookup would have proposed */
} lookup_found;

/* Finds the place in the text whose preceding tokens agree with the text's end for longest, at most
 * LOOKUP_LONGEST tokens; of several the latest. Proposes `most` tokens that follow it; past the end
 * of the text they continue with the proposed ones, as repetitions do.
 *
 * A token that was not foreseen where it stands, such as a value between the names of a list of
 * records, is less likely to follow again. */
lookup_found lookup_propose(lookup_text text, int most);
