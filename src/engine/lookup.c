/* Prompt lookup: see lookup.h. */
#include "engine/lookup.h"

/* Token `at` of the text. */
static int32_t token_at(lookup_text text, size_t at)
{
    return at < text.n_held ? text.held[at] : text.last;
}

/* How many tokens that end before position `end` of the held ones agree with those that end with
 * the text. */
static int agreement(lookup_text text, size_t end)
{
    int n = 1; /* the last token itself */
    for (size_t i = 1; i < end && n < LOOKUP_LONGEST; i++, n++)
        if (text.held[end - 1 - i] != text.held[text.n_held - i]) break;
    return n;
}

/* Finds the place after `least` that agrees for longest; *agreed tokens do, or none. */
static size_t find_place(lookup_text text, size_t least, int *agreed)
{
    size_t best = 0;
    *agreed = 0;
    for (size_t end = text.n_held; end > least && *agreed < LOOKUP_LONGEST; end--) {
        if (text.held[end - 1] != text.last) continue;
        const int n = agreement(text, end);
        if (n <= *agreed) continue;
        *agreed = n;
        best = end;
    }
    return best;
}

/* Whether the text before position `at` made its token likely. */
static bool is_foreseen(lookup_text text, size_t at)
{
    const lookup_text before = {text.held, at - 1, text.held[at - 1]};
    const size_t least = before.n_held > LOOKUP_BACK ? before.n_held - LOOKUP_BACK : 0;
    int agreed;
    const size_t place = find_place(before, least, &agreed);
    return agreed && text.held[place] == token_at(text, at);
}

lookup_found lookup_propose(lookup_text text, int most)
{
    lookup_found out = {0};
    const size_t place = find_place(text, 0, &out.agreed);
    for (int i = 0; out.agreed && i < most; i++) {
        const size_t at = place + (size_t)i;
        const bool repeats = at > text.n_held;
        out.tokens[i] = repeats ? out.tokens[at - text.n_held - 1] : token_at(text, at);
        out.foreseen[i] = repeats || is_foreseen(text, at);
    }
    return out;
}
