/* Panels of a timeline, one above the other at one scale, as a picture for documents. */
#pragma once

#include "schedule/timeline.h"

/* Colours, waits and the critical path are those of the page; slices too narrow to be seen are
 * drawn together with their neighbours of the same kind. */
void timeline_svg_print(const timeline *timeline, const timeline_panel *const *panels, int n,
                        strbuf *out);
