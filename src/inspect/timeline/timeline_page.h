/* A timeline as one HTML page that needs nothing else: what was planned above what was measured, to
 * be zoomed, with the critical path and the sums by operator. The page is timeline.html, which is
 * compiled into the executable; these functions write its data, panel by panel, so that only one
 * panel is in memory. */
#pragma once

#include "schedule/timeline.h"

/* `planned` may be NULL. */
void timeline_page_begin(const timeline *timeline, const timeline_panel *planned, strbuf *out);

/* A measured pass; `first`: none came before. */
void timeline_page_panel(const timeline *timeline, const timeline_panel *panel, bool first,
                         strbuf *out);

void timeline_page_end(strbuf *out);
