/* The automaton at work: all stacks that a text leads to, with everything computed once.
 *
 * A frame is (state, count, frame below). Equal frames are one number, so that stacks share their
 * lower frames. A configuration is the set of frames on top of the stacks after some text; all of
 * them are at BYTES states. Equal configurations are one number too, and each remembers where a
 * byte leads, so that known texts cost one look into a table a byte.
 *
 * Frame 0 is below every stack. A stack that pops down to it has reached the end: of the root's
 * text, or of what was started by stacks_start().
 *
 * Memory grows with the configurations that were met. The caller looks at `bytes` and compacts.
 */
#pragma once

#include "grammar/automaton.h"

enum {
    STACKS_MAX_DEPTH = 500,      /* of rules in each other */
    STACKS_MAX_FRAMES = 4096,    /* of a configuration */
    STACKS_MAX_WORK = 2 << 20,   /* frames, states and walks looked at for one mask or token */
    STACKS_MAX_BYTES = 48 << 20, /* after which a mask is refused */
    STACKS_KEEP_BYTES = 24 << 20 /* after which everything but what is in use is forgotten */
};

#define CONFIG_UNKNOWN UINT32_MAX
enum { CONFIG_DEAD = 0 };

typedef struct frame {
    uint32_t state, count, below;
    uint32_t depth;
    uint32_t next;  /* of the same hash; 0: none */
    uint32_t clear; /* the frame that allows the same tokens and stands for it in caches; 0: not
                     * yet known */
    uint32_t stamp; /* number of the last closure that met it */
} frame;

typedef struct config {
    uint32_t first, count; /* frames: members[first .. first + count), in rising order */
    uint32_t next;         /* of the same hash */
    bool ends;             /* the text may end here */
} config;

typedef struct reach {
    uint32_t first, count; /* states: reached[first .. first + count) */
    uint32_t stamp;
    bool known;
} reach;

typedef struct stacks {
    const automaton *m;
    uint32_t horizon; /* bytes of the longest token: counters that are farther from their limits do
                       * not matter to a mask */
    frame *frames;    /* [n_frames]; frames[0] is below all */
    size_t n_frames, frames_capacity;
    uint32_t *frame_buckets;
    config *configs; /* [n_configs]; configs[0] is dead */
    size_t n_configs, configs_capacity;
    uint32_t *config_buckets;
    uint32_t *members;
    size_t n_members, members_capacity;
    uint32_t *steps; /* [n_configs][n_classes]; CONFIG_UNKNOWN: not yet computed */
    size_t steps_capacity;
    reach *reaches; /* [n_states of m] */
    uint32_t *reached;
    size_t n_reached, reached_capacity;
    uint32_t reach_stamp;
    uint32_t *todo, *found; /* of a closure */
    size_t n_todo, todo_capacity, n_found, found_capacity;
    uint32_t stamp;
    size_t bytes, work; /* of memory; of the current mask: set to 0 by the caller */
    bool too_deep;      /* a rule was not entered, because of the depth */
    qp_status failed;   /* a limit was reached, or memory is out */
} stacks;

qp_status stacks_open(stacks *s, const automaton *m, uint32_t horizon, qp_error *error);
void stacks_free(stacks *s);

/* Counts work; false: it is too much, and `failed` says so. */
bool stacks_spend(stacks *s, size_t work);

/* The configuration at the beginning of the root; one that a frame leads to. CONFIG_DEAD after a
 * failure. */
uint32_t stacks_root(stacks *s);
uint32_t stacks_resume(stacks *s, uint32_t frame);

/* The configuration after one more byte; CONFIG_DEAD: no text goes on so. */
uint32_t stacks_compute(stacks *s, uint32_t config, uint8_t byte);

static inline uint32_t stacks_step(stacks *s, uint32_t config, uint8_t byte)
{
    const size_t at = (size_t)config * (size_t)s->m->n_classes + s->m->classes[byte];
    const uint32_t next = s->steps[at];
    return next != CONFIG_UNKNOWN ? next : stacks_compute(s, config, byte);
}

/* The frame with the same state that allows the same tokens, with counts and frames below made
 * clear of what is out of reach. */
uint32_t stacks_clear(stacks *s, uint32_t frame);

uint32_t stacks_frame(stacks *s, uint32_t state, uint32_t count, uint32_t below);

/* Moves the listed configurations to an emptied table and renumbers them. */
qp_status stacks_compact(stacks *s, uint32_t **configs, size_t n, qp_error *error);

/* The error of a failure. */
qp_status stacks_error(const stacks *s, qp_error *error);
