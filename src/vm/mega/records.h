/* Times that a launch of the megakernel recorded of its passes, converted to the host's clock. */
#pragma once

#include "vm/machine.h"
#include "vm/mega/megakernel.h"

/* Fills in the records of a launch's first n passes. The launch's first pass has the number `first`
 * among the recorded passes. The launch had ended at `now`. */
qp_status mega_read_records(const cuda_mega *mega, size_t first, machine_record *records, int n,
                            uint64_t now, qp_error *error);

/* Converts the times of a launch's n passes from the blocks' clock to the host's clock; the last
 * pass ended at `now`. Also finds where each pass begins and ends: a pass ends, and the next
 * begins, when the first block has the token. */
qp_status mega_place_records(const schedule *schedule, machine_record *records, int n, uint64_t now,
                             qp_error *error);
