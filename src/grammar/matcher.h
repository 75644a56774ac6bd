/* Which tokens may come next: a grammar, a vocabulary, and the texts that follow the one through
 * the other.
 *
 * The mask of a state is found by a walk over the trie of the vocabulary. Most of it depends on the
 * state alone, not on what lies on the stack: inside a string of JSON all tokens without a quote
 * are allowed, whatever the string is a part of. So masks have two parts, both of which are kept:
 *
 *     local mask of (state, count)    tokens that stay inside the rule, and the nodes of the trie
 *                                     where the rule ends, after which the stack decides
 *     mask of a frame                 the local one, with the walks from those nodes on
 *
 * A text in several frames at a time has the union of their masks.
 *
 * A form may be shared by any number of matchers and threads; a mutex guards it.
 */
#pragma once

#include "grammar/grammar.h"
#include "grammar/token_trie.h"

/* The public structs: see quipu.h. */
typedef struct qp_grammar form;
typedef struct qp_matcher matcher;

/* Compiles the grammar, which it takes apart. form_release() the result; the trie must outlive it.
 */
qp_status form_open(grammar *grammar, const token_trie *trie, form **out, qp_error *error);
const tokenizer *form_tokenizer(const form *form);
void form_hold(form *form);
void form_release(form *form); /* NULL is allowed */

/* Computes masks that are likely to be needed, for about so long. */
void form_warm(form *form, uint64_t ns);

/* A text at its beginning. `stops`: [n_stops] tokens that end it, QP_MAX_STOP_TOKENS at most and 1
 * at least; `rows`: of the mask, at least as many as the vocabulary has tokens. Holds the form.
 * matcher_close() the result. */
qp_status matcher_open(form *form, const int32_t *stops, size_t n_stops, size_t rows, matcher **out,
                       qp_error *error);
void matcher_close(matcher *matcher); /* NULL is allowed */

/* The tokens that may come next: bits [(rows + 31) / 32], valid until the next call. A stop token
 * is allowed where the text may end. QP_UNSUPPORTED if the grammar is too ambiguous here, or the
 * vocabulary has no token for what must come. */
qp_status matcher_mask(matcher *matcher, const uint32_t **mask, qp_error *error);

/* Appends a token and makes the mask after it, if the form has met both before and no other thread
 * holds it now: takes a microsecond or so. False: nothing has changed. */
bool matcher_follow(matcher *matcher, int32_t token);

/* Work for the matcher's tokens and masks so far, in the unit of STACKS_MAX_WORK. */
uint64_t matcher_work(const matcher *matcher);

/* Appends a token; QP_INVALID if the mask does not allow it. */
qp_status matcher_take(matcher *matcher, int32_t token, qp_error *error);

/* Whether the text may end here. */
bool matcher_may_end(matcher *matcher);
