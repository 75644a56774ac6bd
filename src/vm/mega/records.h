/* What a launch of the megakernel recorded of its passes, by this computer's clock. */
#ifndef QUIPU_VM_MEGA_RECORDS_H
#define QUIPU_VM_MEGA_RECORDS_H

#include "vm/machine.h"
#include "vm/mega/megakernel.h"

/* Fills in the records of a launch's first n passes, the first of which is the `first` that was
 * recorded; the launch was over at `now`. */
qp_status mega_read_records(const cuda_mega *mega, size_t first, machine_record *records, int n,
                            uint64_t now, qp_error *error);

/* Turns the times of a launch's n passes, as blocks stamped them, to this computer's clock, by
 * which the last pass ended at `now`, and finds where each begins and ends: passes meet where the
 * first block has the token. */
qp_status mega_place_records(const schedule *schedule, machine_record *records, int n, uint64_t now,
                             qp_error *error);

#endif
