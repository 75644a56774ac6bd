/* Making a schedule from a program, and keeping it in a file. */
#pragma once

#include "base/strbuf.h"
#include "schedule/schedule.h"

enum { USUAL_CONTEXT = 1024, USUAL_TILE = 128 }; /* defaults of the options */

/* The best number of parts of a sequence's positions for a latency schedule: as many as give each
 * worker a part of a KV head. */
int64_t schedule_kv_partitions(int workers, int64_t n_kv_heads);

/* The schedule options of a run, as far as the program decides them: for few tokens, up to the
 * logits, because choosing tokens is not scheduled. The machine sets the number of workers. */
schedule_options schedule_run_options(const program *program);

/* schedule_free() the result, also after a failure. */
qp_status schedule_build(const program *program, const schedule_options *options, schedule *out,
                         qp_error *error);

/* The queues as bytes: a header (magic, version, fingerprint, counts, checksum), the signals of
 * each counter and the lengths of the queues, then int32 [workers][longest][32], little-endian. A
 * file has those of each rank in turn: `ranks` [n_ranks]. */
void schedule_write(const schedule *schedule, strbuf *out);
qp_status schedule_save(const schedule *ranks, int n_ranks, const char *path, qp_error *error);

/* Reads the options that the first rank's schedule in a file was made with, but not its queues.
 * QP_FORMAT if the file is not a schedule or is damaged. */
qp_status schedule_peek(const char *path, schedule_options *out, qp_error *error);

/* Reads queues for the same program again: those of its rank, from a file of as many ranks as the
 * program has, or from bytes that schedule_write() gave. QP_FORMAT says what is wrong if they are
 * damaged, if they are for another version, model or program, or if the schedule is not sound
 * (schedule_verify()). schedule_free() it, also after a failure. */
qp_status schedule_load(const char *path, const program *program, schedule *out, qp_error *error);
qp_status schedule_read(const char *name, const void *bytes, size_t n_bytes, const program *program,
                        schedule *out, qp_error *error);
