/* A timeline in the JSON that ui.perfetto.dev and chrome://tracing open: an array of events, here
 * complete slices ("ph": "X") of which no two on a track overlap.
 *
 * Each worker is a thread with slices for wait, work and signal; a track of its own holds the
 * passes and what happens between them. Written panel by panel, so that one panel is in memory.
 */
#pragma once

#include "schedule/timeline.h"

void timeline_chrome_begin(const timeline *timeline, strbuf *out);

/* A pass that began `begin` ns after the trace did. */
void timeline_chrome_panel(const timeline *timeline, const timeline_panel *panel, uint64_t begin,
                           strbuf *out);

/* Something between the passes, such as the sampling of a token. `arguments`: members of a JSON
 * object. */
void timeline_chrome_between(const char *name, uint64_t begin, uint64_t end, const char *arguments,
                             strbuf *out);

void timeline_chrome_end(strbuf *out);
