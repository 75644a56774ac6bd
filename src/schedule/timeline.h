/* What ran when: slices of work on tracks, from which pictures, tables and traces are made.
 *
 * A track is a worker; a slice is an instruction, or a part of one, with the times at which it
 * began to wait, to work and to signal. Predictions and measurements have the same form, so they
 * can be shown one above the other. A panel is one forward pass.
 */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"
#include "schedule/predict.h"
#include "schedule/schedule.h"

enum { TIMELINE_KINDS = 64, TIMELINE_NOOP = 0 };

/* The node of a schedule that a slice works on. */
typedef struct timeline_node {
    int kind;
    const char *name;   /* of its step: "attn_qkv" */
    int64_t layer;      /* -1: outside the layers */
    const char *detail; /* its operands */
    int of;             /* the program's node */
    const char
        *module; /* "model.layers.3.self_attn.q_proj", as PyTorch names it; NULL: not known */
    const char *weight; /* "model.layers.3.self_attn.q_proj.weight"; NULL: none */
} timeline_node;

/* A mathematical part of an operator, or a launch of several operators, as machines report them. */
typedef struct timeline_part {
    int32_t node, track;       /* of the program; where it ran */
    int32_t chunk, chunks;     /* of its operator; 0, 0: not cut, or a slice of an instruction */
    const char *kind;          /* "MatMul"; a text that stays */
    char inputs[64];           /* "1x64, 64x17": their shapes; empty: not known */
    char outputs[40];          /* the same; without inputs any text about the part */
    dtype type;                /* of its weights, of the cache, or of its output */
    int64_t elements;          /* of the output; 0: not known */
    uint64_t wait, begin, end; /* ns of any clock: since when its track waited for it, its work */
    double flops, bytes, weights, cached; /* of the bytes: of weights, of the KV cache */
} timeline_part;

typedef struct timeline_slice {
    int32_t track, node;
    int32_t number;            /* in its track */
    int32_t blocker;           /* the slice whose signal its wait is for; -1: none in this pass */
    const instruction *in;     /* NULL: a part, not an instruction */
    const timeline_part *part; /* borrowed; NULL: an instruction */
    uint64_t wait, work, signal, end; /* ns from the panel's beginning */
    double flops, bytes;              /* both 0: not known */
    double far; /* of the bytes: of weights and of a large KV cache, which do not stay in caches */
    bool help;  /* cells of another worker's shared instruction `in`, run during a wait: time alone,
                 * because FLOPs and bytes count where the instruction stands */
    bool critical; /* of the chain of slices, each begun when the one before ended, that the end of
                    * the pass waited for */
} timeline_slice;

typedef struct timeline_panel {
    char title[96];         /* "pass 3: 1 token at position 17" */
    int64_t tokens;         /* new in the pass */
    uint64_t length;        /* ns */
    timeline_slice *slices; /* [count], track by track, in order of time */
    int32_t count;
    int32_t *chain; /* [n_chain]: the critical slices, in order of time */
    int32_t n_chain;
} timeline_panel;

typedef struct timeline {
    const char *title; /* the model */
    char about[160];   /* "latency, rr, 2 workers" */
    int n_tracks;
    int ranks;     /* of tensor parallelism, each with as many tracks; 0: one */
    int n_at_once; /* tracks that work at the same time: 1 where there is one thread for all */
    const char *kinds[TIMELINE_KINDS]; /* "noop", "linear": colours and sums go by them */
    int n_kinds;
    timeline_node *nodes;
    int n_nodes;
    machine_profile limits; /* of what is read from memory, and of arithmetic */
    double near_limit;      /* bytes a second of what stays in caches; 0: all is read from memory */
    const char *unit;       /* what a track is called: "worker" */
    int32_t *part_nodes; /* [nodes of the schedule][TIMELINE_KINDS]: 1 + the node of a kind's parts;
                          * NULL where slices are instructions */
    arena memory;
} timeline;

/* A schedule's nodes and workers; no panels yet. `title`, a model's path, is borrowed and loses its
 * folders. timeline_free() the result, also after a failure. */
qp_status timeline_create(const schedule *schedule, const char *title, timeline *out,
                          qp_error *error);
void timeline_free(timeline *timeline);

/* The pass as predicted. timeline_panel_free() it, also after a failure. */
qp_status timeline_predicted(const schedule *schedule, const schedule_prediction *prediction,
                             timeline_panel *out, qp_error *error);

/* A pass as measured: `timings` [workers][longest] as a machine gives them, `begin` and `end` of
 * the pass by the same clock. `memory` and `sizes` are those of its batch: what slices cost
 * depends on them; only index tensors need to have data. Title and tokens are left to the caller.
 */
qp_status timeline_measured(const schedule *schedule, const instruction_timing *timings,
                            uint64_t begin, uint64_t end, const program_memory *memory,
                            const int64_t *sizes, timeline_panel *out, qp_error *error);
void timeline_panel_free(timeline_panel *panel);

/* Makes this a timeline of parts on `n_tracks` tracks, of which `n_at_once` work at the same time.
 * Its only nodes are those of the parts. */
qp_status timeline_take_parts(timeline *timeline, const schedule *schedule, int n_tracks,
                              int n_at_once, qp_error *error);

/* A pass of parts over a batch of these sizes, in order of time within a track. They are borrowed.
 */
qp_status timeline_in_parts(timeline *timeline, const schedule *schedule,
                            const timeline_part *parts, size_t count, const int64_t *sizes,
                            uint64_t begin, uint64_t end, timeline_panel *out, qp_error *error);

/* Makes this, of one rank's schedule, a timeline of several ranks with as many workers each. */
void timeline_take_ranks(timeline *timeline, int ranks);

/* The same pass on all ranks, [timeline->ranks], as one panel: an exchange begins when the last
 * rank has come to it. Title and tokens are those of the first. */
qp_status timeline_join_ranks(const timeline *timeline, const timeline_panel *ranks,
                              timeline_panel *out, qp_error *error);

/* "worker 3", or "rank 1 worker 3". */
void timeline_print_track(const timeline *timeline, int track, strbuf *out);

/* The slice whose end this one waited for: its blocker, or the last one before on its track.
 * Neither began later than this one. -1: none. */
int32_t timeline_cause(const timeline_panel *panel, int32_t slice);

/* Finds the critical slices; false: there is no memory. */
bool timeline_find_chain(timeline_panel *panel);

/* Whether a batch of these sizes reads so much of the KV cache that a CPU's caches do not keep it
 * from pass to pass. */
bool timeline_cache_is_far(const program *program, const int64_t *sizes);

/* The number of a kind of work, which is added if it is new; `name` is borrowed. */
int timeline_find_kind(timeline *timeline, const char *name);

/* What a slice does, by number: an instruction without work of its own is a noop. */
int timeline_slice_kind(const timeline *timeline, const timeline_slice *slice);

/* "#4a78b5": the same for a kind in every picture, and dark enough for white text. */
const char *timeline_color(const char *kind);

/* The text as a JSON string with its quotes, fit to stand in HTML. */
void timeline_print_string(const char *text, strbuf *out);

/* What a slice does: "0:128", "part 1/4", or the shapes of a part. */
void timeline_print_shape(const timeline_slice *slice, strbuf *out);

/* "attn_qkv 3", or "lm_head" where there is no layer. */
void timeline_print_step(const timeline_node *node, strbuf *out);
