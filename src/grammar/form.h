/* A form of answers with the masks that it keeps: the inside of matcher.h, whose head says how
 * masks are made. Callers hold the form's lock.
 */
#pragma once

#include "grammar/matcher.h"
#include "grammar/stacks.h"
#include "quipu.h"

#include <pthread.h>
#include <stdatomic.h>

enum { FORM_WALK = 8 }; /* nodes of the vocabulary's trie that are as much work as a frame */

typedef struct mask {
    uint64_t key;
    uint32_t *bits;
    uint32_t *exits; /* [n_exits] of a local mask: nodes of the trie where the rule may end */
    size_t n_exits, exits_capacity;
} mask;

/* Masks by key, with open addressing. */
typedef struct mask_table {
    mask **slots;
    size_t count, capacity;
} mask_table;

struct qp_grammar {
    atomic_uint references;
    const token_trie *trie;
    automaton m;
    pthread_mutex_t lock; /* over all that follows */
    stacks s;
    mask_table local, of_frame, of_config;
    matcher *matchers;
    uint32_t path[TRIE_MAX_PIECE + 2]; /* configurations of a walk, by depth */
};

struct qp_matcher {
    form *form;
    matcher *next, *previous;
    uint32_t config;
    bool over;     /* a stop token was taken */
    uint64_t work; /* in all */
    bool masked;   /* `bits` are those of the present configuration */
    size_t rows;
    int32_t stops[QP_MAX_STOP_TOKENS];
    size_t n_stops;
    uint32_t bits[]; /* [(rows + 31) / 32] */
};

static inline size_t mask_words(size_t rows)
{
    return (rows + 31) / 32;
}

static inline void mask_allow(uint32_t *bits, int32_t token)
{
    bits[token >> 5] |= UINT32_C(1) << (token & 31);
}

/* The mask of all frames of a configuration that has one at least. NULL: form_give_up(). */
mask *form_config_mask(form *form, uint32_t index);

/* The same if it is known; else NULL. */
const mask *form_known_mask(const form *form, uint32_t index);

/* Forgets everything but where the texts are. */
qp_status form_forget(form *form, qp_error *error);

/* After a failure nothing that was computed can be trusted: forgets it, and returns the error. */
qp_status form_give_up(form *form, qp_error *error);
