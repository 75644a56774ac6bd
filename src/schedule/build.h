/* Making a schedule from a program, and keeping it in a file. */
#ifndef QUIPU_SCHEDULE_BUILD_H
#define QUIPU_SCHEDULE_BUILD_H

#include "schedule/schedule.h"

enum { USUAL_CONTEXT = 1024, USUAL_TILE = 128 }; /* where the options do not say */

/* Parts that a latency schedule's plan had best split a sequence's positions in: as many as give
 * each worker a part of a KV head. */
int64_t schedule_kv_partitions(int workers, int64_t n_kv_heads);

/* The options of the schedule that a run has, as far as the program decides them: for few tokens,
 * up to the logits, after which tokens are chosen apart. How many workers there are is the
 * machine's to say. */
schedule_options schedule_run_options(const program *program);

/* schedule_free() the result, also after a failure. QP_UNSUPPORTED where the program is for one of
 * several ranks. */
qp_status schedule_build(const program *program, const schedule_options *options, schedule *out,
                         qp_error *error);

/* The queues in a file: a header (magic, version, fingerprint, counts, checksum), the signals of
 * each counter and the lengths of the queues, then int32 [workers][longest][32], little-endian. */
qp_status schedule_save(const schedule *schedule, const char *path, qp_error *error);

/* What the schedule in a file was made with, before its queues are read: its options. QP_FORMAT
 * when it is none or damaged. */
qp_status schedule_peek(const char *path, schedule_options *out, qp_error *error);

/* Reads queues for the same program again. QP_FORMAT, with what is wrong, when the file is
 * damaged, of another version, model or plan, or when what it says is not sound: the result has
 * been through schedule_verify(). schedule_free() it, also after a failure. */
qp_status schedule_load(const char *path, const program *program, schedule *out, qp_error *error);

#endif
