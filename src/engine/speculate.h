/* Speculation: tokens are proposed before the model has chosen them, and one pass verifies several.
 *
 *     text -> proposer -> proposals -> those that pay -> a pass with a row for each -> accepted
 *
 * A row's token is chosen as always: by the request's own sampler, from the same logits, with the
 * random numbers of the token's position. Proposals are accepted as long as they are what was
 * chosen, so the text is the same, to the bit, as without.
 *
 * How many proposals a pass verifies follows from what is measured: how often recent proposals of
 * the sequence were right, and how long passes take by their number of rows. Proposals are compared
 * with the text also where they were not verified. A sequence that has lost time by verifying stops
 * until the loss is a small share of its time.
 */
#pragma once

#include "base/status.h"
#include "quipu.h"

#include <stdint.h>

enum {
    SPECULATE_MOST = 15,   /* proposals of a sequence in a pass */
    SPECULATE_ROWS = 256,  /* rows of a pass */
    SPECULATE_GRADES = 11, /* what a proposer knows of a proposal */
};

struct qp_engine;

/* A sequence's proposals, and what became of earlier ones. */
typedef struct speculated {
    uint64_t session, sampler;      /* of the sequence; 0: none */
    int32_t tokens[SPECULATE_MOST]; /* [n_found]: proposals */
    size_t position;                /* of the first of them in the sequence's text */
    int n_found;
    int n;                          /* how many of them the pass verifies */
    uint8_t grades[SPECULATE_MOST]; /* of the proposals, below SPECULATE_GRADES */
    double right[SPECULATE_GRADES], tried[SPECULATE_GRADES]; /* of recent proposals */
    size_t right_at; /* tokens of the session when a proposal was last accepted, or at first */
    double lost_ns,
        total_ns; /* time that verifying took beyond what it saved; time of all passes */
} speculated;

/* A sequence, and where its proposals go. */
typedef struct speculated_sequence {
    const qp_sequence *of;
    speculated *slot;
    int most;                      /* proposals that the sequence has room for */
    int usable;                    /* and that may be verified */
    double likely[SPECULATE_MOST]; /* that this proposal and all before it are right */
} speculated_sequence;

/* What makes proposals. */
typedef struct proposer {
    /* Sets tokens, n_found (0 to `most` of the sequence and of the call) and grades of each slot.
     */
    qp_status (*propose)(struct proposer *self, const speculated_sequence *sequences, size_t n,
                         int most, qp_error *error);
    void (*close)(struct proposer *self); /* may be NULL */
    /* For a proposer with `passes`, measured by propose(): time of the last call, once the texts of
     * the sequences were read, and of one more proposal of every sequence. */
    double made_ns, step_ns;
    bool passes; /* another model proposes, in passes of its own: nothing is proposed that will
                  * not be verified */
} proposer;

typedef struct speculation {
    proposer *proposer;          /* NULL: the engine does not speculate */
    speculated *slots;           /* [max_sessions] */
    speculated_sequence *active; /* [n_active]: sequences of the call with proposals */
    size_t n_active;
    double row_ns[SPECULATE_ROWS + 1]; /* measured: time of a pass, by its rows; 0: unknown */
    uint64_t begin;                    /* clock_ns() when the call's proposals were made */
    bool decodes;                      /* every sequence of the call goes on from its last token */
} speculation;

/* Prompt lookup, see lookup.h. */
extern proposer proposer_lookup;

/* Takes the proposer over, also after a failure. */
qp_status speculation_init(speculation *s, proposer *proposer, int64_t max_sessions,
                           qp_error *error);
void speculation_free(speculation *s);

/* Before a call of qp_step(): compares earlier proposals with the text, makes new ones, and decides
 * how many of them a pass would verify. *pays: some would. */
qp_status speculation_propose(struct qp_engine *engine, const qp_sequence *all, size_t n,
                              bool *pays, qp_error *error);

/* Proposals are not verified in this call, because passes are in flight, or pages are missing. */
void speculation_put_off(struct qp_engine *engine);

/* The sequence's proposals if the call verifies some; else NULL. */
speculated *speculation_of(const struct qp_engine *engine, const qp_sequence *sequence);

/* How many of `most` passes a call may run in which nothing is verified: few after proposals that
 * were accepted, because proposals are made between calls. */
int64_t speculation_passes(const struct qp_engine *engine, int64_t most);

/* After the call: measures how long its passes took. */
void speculation_measure(struct qp_engine *engine, const qp_sequence *all, size_t n);
