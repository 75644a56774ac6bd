/* Several ranks in one timeline: the tracks of each rank follow those of the one before. */
#include "schedule/timeline.h"

#include "op/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void timeline_take_ranks(timeline *t, int ranks)
{
    const size_t used = strlen(t->about);
    t->ranks = ranks;
    t->n_tracks *= ranks;
    t->n_at_once *= ranks;
    snprintf(t->about + used, sizeof t->about - used, " on each of %d ranks", ranks);
}

void timeline_print_track(const timeline *t, int track, strbuf *out)
{
    const int each = t->ranks > 1 ? t->n_tracks / t->ranks : t->n_tracks;
    if (t->ranks > 1) strbuf_printf(out, "rank %d ", track / each);
    strbuf_printf(out, "%s %d", t->unit, track % each);
}

/* Whether the slice exchanges rows with other ranks. */
static bool is_exchange(const timeline_slice *slice)
{
    return !slice->help && slice->in && slice->in->opcode != INSTRUCTION_NOOP &&
           op_exchanges((op_code)slice->in->opcode);
}

/* The exchange of that node on each rank, by its number in the joined panel. */
typedef struct meeting {
    int32_t node;
    int32_t *slices; /* [ranks]; -1: none */
} meeting;

/* A rank that came early waited for the last one, and for what the last one waited for. */
static void wait_for_last(timeline_panel *panel, const meeting *at, int ranks)
{
    int32_t last = -1;
    for (int r = 0; r < ranks; r++) {
        const int32_t i = at->slices[r];
        if (i >= 0 && (last < 0 || panel->slices[i].work > panel->slices[last].work)) last = i;
    }
    for (int r = 0; last >= 0 && r < ranks; r++) {
        const int32_t i = at->slices[r];
        if (i < 0 || i == last) continue;
        timeline_slice *early = &panel->slices[i];
        const uint64_t met = panel->slices[last].work;
        early->work = met < early->signal ? met : early->signal;
        early->blocker = timeline_cause(panel, last);
    }
}

/* `first` [ranks + 1]: where the slices of each rank begin. */
static bool meet(timeline_panel *panel, const int32_t *first, int ranks)
{
    meeting at = {.slices = malloc((size_t)ranks * sizeof *at.slices)};
    if (!at.slices) return false;
    for (int32_t i = first[0]; i < first[1]; i++) {
        if (!is_exchange(&panel->slices[i])) continue;
        at.node = panel->slices[i].node;
        for (int r = 0; r < ranks; r++) {
            at.slices[r] = -1;
            for (int32_t k = first[r]; k < first[r + 1] && at.slices[r] < 0; k++)
                if (panel->slices[k].node == at.node && is_exchange(&panel->slices[k]))
                    at.slices[r] = k;
        }
        wait_for_last(panel, &at, ranks);
    }
    free(at.slices);
    return true;
}

/* Appends a rank's slices, on tracks after those of the ranks before. */
static void append(timeline_panel *out, const timeline_panel *rank, int first_track)
{
    const int32_t before = out->count;
    for (int32_t i = 0; i < rank->count; i++) {
        timeline_slice *slice = &out->slices[out->count++];
        *slice = rank->slices[i];
        slice->track += first_track;
        slice->critical = false;
        if (slice->blocker >= 0) slice->blocker += before;
        if (slice->end > out->length) out->length = slice->end;
    }
}

qp_status timeline_join_ranks(const timeline *t, const timeline_panel *ranks, timeline_panel *out,
                              qp_error *error)
{
    const int n = t->ranks, workers = t->n_tracks / n;
    int32_t *first = calloc((size_t)n + 1, sizeof *first);
    size_t count = 0;
    for (int r = 0; r < n; r++)
        count += (size_t)ranks[r].count;
    *out = ranks[0];
    out->chain = NULL;
    out->n_chain = out->count = 0;
    out->slices = calloc(count + 1, sizeof *out->slices);
    bool enough = first && out->slices;
    for (int r = 0; enough && r < n; r++) {
        append(out, &ranks[r], r * workers);
        first[r + 1] = out->count;
    }
    enough = enough && meet(out, first, n) && timeline_find_chain(out);
    free(first);
    return enough ? QP_OK : error_no_memory(error, "the timeline", count * sizeof *out->slices);
}
