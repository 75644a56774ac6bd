/* A grammar as an automaton with a stack: states that consume a byte, call rules, and count.
 *
 *     BYTES set       consume a byte of the set, go on at the next state
 *     CALL rule       push a frame, run the rule, go on at `next`
 *     SPLIT a b       go on at both
 *     JUMP a
 *     COUNT a b       the frame's count: below max, run the body at `a`; from min on, go on at `b`
 *     AGAIN a         the body has ended: count, go on at COUNT, which is `a`
 *     RETURN          pop the frame
 *     FAIL            no text goes on from here
 *
 * Small repetitions are unrolled. Others are rules of their own, whose frames have a counter, so
 * that {0,100000} takes no more states than {0,10}.
 */
#pragma once

#include "grammar/grammar.h"

enum { AUTOMATON_MAX_STATES = 1 << 18, AUTOMATON_UNROLL = 64 };

/* In place of the state after a call: the caller has nothing left to do, so its frame need not be
 * kept. Right-recursive rules take no depth this way. */
#define STATE_TAIL UINT32_MAX

typedef enum state_kind {
    STATE_BYTES,
    STATE_CALL,
    STATE_SPLIT,
    STATE_JUMP,
    STATE_COUNT,
    STATE_AGAIN,
    STATE_RETURN,
    STATE_FAIL,
} state_kind;

typedef struct state {
    state_kind kind;
    uint32_t a, b;     /* BYTES: a is the set. CALL: a is the rule's entry, b the state after it */
    uint32_t min, max; /* of the counter of the frames that are in this state; max 0: none */
} state;

typedef struct automaton {
    state *states;
    size_t n_states;
    byte_set *sets;
    size_t n_sets;
    uint32_t entry;       /* of the root */
    uint8_t classes[256]; /* bytes that no set distinguishes have one class, */
    uint8_t members[256]; /* and this is one of them: [n_classes] */
    int n_classes;
} automaton;

/* Takes the sets of the grammar over, checks it, and compiles it. automaton_free() the result, also
 * after a failure. */
qp_status automaton_compile(grammar *grammar, automaton *out, qp_error *error);
void automaton_free(automaton *automaton);
